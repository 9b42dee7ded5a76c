"""Appends to a log.  A leader gives batches their offsets; a follower copies batches unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from broker.core.producer_state import Accept, Duplicate, Refuse, Verification
from broker.core.transactions import Marker
from broker.log.durability import Durability
from broker.log.marks import LogMarks
from broker.log.produced import Produced, check_produced, refused
from broker.log.producers import LogProducers, read_marker
from broker.log.recent import RecentAppends
from broker.log.segment import Segment
from broker.log.segments import LogSegments
from broker.log.types import Appended, LogConfig, Refused
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.control_records import EndTxnMarker, build_marker
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import (
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    BatchRefusal,
    check_batches,
    parse_header,
    patch,
    seal,
)

RELATIVE_OFFSET_MAX = 2**31 - 1
Batches = bytes | bytearray | memoryview


class LogWriter:
    """Appends to one log.  Every method may raise CorruptStoreError or DiskError."""

    def __init__(
        self,
        folder: str,
        marks: LogMarks,
        segments: LogSegments,
        producers: LogProducers,
        durability: Durability,
        recent: RecentAppends,
    ) -> None:
        self._folder = folder
        self._marks = marks
        self._segments = segments
        self._producers = producers
        self._durability = durability
        self._recent = recent

    def append_as_leader(
        self,
        batches: Batches | Produced,
        leader_epoch: int,
        now_ms: int,
        config: LogConfig,
        verification: Verification | None = None,
        *,
        is_coordinated: bool = False,
        append_time_ms: int = NO_TIMESTAMP,
    ) -> Appended | Refused:
        """Append a client's batches, with their offsets and epoch set in place if their memory can be written.

        The memory belongs to the log from now on, and the caller does not change it: the log serves reads from it.

        batches: checked by `check_produced`, unless they are `Produced` already.  `check_produced` does not check the
            records of batches with compression; the caller may have checked them.
        verification: see `ProducerState.check`.
        is_coordinated: a coordinator appends for a producer, and has checked everything except the producer's epoch.
        append_time_ms: the wall time that becomes the timestamp of all records; -1: they keep their own.
        """
        epochs = self._marks.epochs
        assert leader_epoch >= epochs.latest, f"{self._folder}: epoch {leader_epoch} after {epochs.latest}"
        produced = batches if isinstance(batches, Produced) else check_produced(batches, config)
        if isinstance(produced, Refused):
            return produced
        if produced.headers[0].has_producer_id:  # such a batch is always the only one
            outcome = self._recognise_or_refuse(produced.headers[0], verification, is_coordinated)
            if outcome is not None:
                return outcome
        view = memoryview(produced.data)
        data = memoryview(bytearray(view)) if view.readonly else view
        first = epochs.end_offset
        headers = _place(data, produced, first, leader_epoch, append_time_ms)
        segment = self._append(data, headers, now_ms, config)
        self._recent.keep(segment, segment.size - len(data), data)
        return Appended(first, headers[-1].end_offset)

    def _recognise_or_refuse(
        self, header: BatchHeader, verification: Verification | None, is_coordinated: bool
    ) -> Appended | Refused | None:
        """Return the outcome of a batch that is in the log already or must not be in it; None if it is to be appended.

        verification, is_coordinated: see `append_as_leader`.
        """
        producers = self._producers.state
        verdict: Accept | Duplicate | Refuse
        if is_coordinated:
            verdict = producers.check_coordinated(header.producer_id, header.producer_epoch)
        else:
            verdict = producers.check(header, self._marks.start_offset, verification)
        if isinstance(verdict, Duplicate):
            producers.renew(header.producer_id)
            return Appended(verdict.first_offset, verdict.end_offset, duplicate=True)
        if isinstance(verdict, Refuse):
            return Refused(int(verdict.code), verdict.reason)
        return None

    def append_marker(
        self, marker: Marker, timestamp_ms: int, leader_epoch: int, now_ms: int, config: LogConfig
    ) -> Appended | Refused:
        """Append the marker that ends a transaction, as a leader, unless it is in the log already."""
        epochs = self._marks.epochs
        assert leader_epoch >= epochs.latest, f"{self._folder}: epoch {leader_epoch} after {epochs.latest}"
        verdict = self._producers.state.check_marker(marker)
        if isinstance(verdict, Refuse):
            return Refused(int(verdict.code), verdict.reason)
        if isinstance(verdict, Duplicate):
            return Appended(verdict.first_offset, verdict.end_offset, duplicate=True)
        decision = EndTxnMarker(marker.is_commit, marker.coordinator_epoch)
        data = build_marker(decision, *marker.producer, timestamp_ms)
        offset = epochs.end_offset
        patch(data, offset, leader_epoch)
        self._append(data, [parse_header(data)], now_ms, config)
        return Appended(offset, offset + 1)

    def append_as_follower(
        self, batches: Batches, leader_epoch: int, now_ms: int, config: LogConfig
    ) -> Appended | Refused:
        """Append the batches of the leader of `leader_epoch` unchanged; they must continue where this log ends."""
        # Check headers and checksums only.  Acknowledged batches must be copied byte for byte, even if the records of a
        # batch from an older release contradict its header.  A follower that refused this batch would stop replicating.
        headers = check_batches(batches)
        if isinstance(headers, BatchRefusal):
            return refused(headers)
        epochs = self._marks.epochs
        first = offset = epochs.end_offset
        epochs.truncate_to(offset)  # drop an epoch that began here and has no record
        epoch = epochs.latest
        for header in headers:
            if header.base_offset != offset:
                return Refused(int(KafkaCode.CORRUPT_MESSAGE), f"offset {header.base_offset} instead of {offset}")
            if header.leader_epoch < epoch:
                return Refused(int(KafkaCode.CORRUPT_MESSAGE), f"leader epoch {header.leader_epoch} after {epoch}")
            if header.leader_epoch > leader_epoch:
                reason = f"leader epoch {header.leader_epoch} from the leader of {leader_epoch}"
                return Refused(int(KafkaCode.UNKNOWN_LEADER_EPOCH), reason)
            offset, epoch = header.end_offset, header.leader_epoch
        if headers:
            self._append(batches, headers, now_ms, config)
        return Appended(first, offset)

    def _append(self, data: Batches, headers: Sequence[BatchHeader], now_ms: int, config: LogConfig) -> Segment:
        """Append to the active segment or a new one; return it."""
        marks = self._marks
        producers = self._producers.state
        segment = self._segment_for(len(data), headers, now_ms, config)
        segment.last_append_ms = now_ms
        try:
            if segment.discard_stale_index():
                self._durability.folder_changed()  # the deletion becomes durable with the batches
            segment.append(data, headers, config.index_interval)
        except DiskError:
            self._durability.request_flush()  # the next flush fails and reports the error
            raise
        epochs = marks.epochs
        position = 0
        for header in headers:
            epochs.advance(header.leader_epoch, header.base_offset, header.end_offset)
            if header.has_producer_id:
                marker = read_marker(data, header, position) if header.is_control else None
                producers.apply(header, header.base_offset, header.end_offset, marker)
            position += header.size
        assert segment.end_offset == epochs.end_offset, f"{segment.path}: {segment.end_offset} != {epochs.end_offset}"
        marks.appended_since_checkpoint += len(data)
        self._durability.add(segment.file)
        self._durability.note_change()
        return segment

    def _segment_for(self, size: int, headers: Sequence[BatchHeader], now_ms: int, config: LogConfig) -> Segment:
        """Return the segment for the next batches: the active one, or a new one."""
        active = self._segments.active
        if active is not None:
            if active.first_append_ms is None:
                active.first_append_ms = now_ms
            aged = now_ms - active.first_append_ms >= config.segment_age_max_ms > 0
            full = active.size + size > config.segment_size_max
            far = headers[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            gone = active.end_offset <= self._marks.start_offset  # about to be deleted
            if active.size == 0 or not (aged or full or far or gone or active.is_frozen):
                return active
            self._seal(active)
        return self._segments.add(self._marks.end_offset, now_ms)

    def roll_aged(self, now_ms: int, age_max_ms: int) -> None:
        """Seal the active segment if it is older than `age_max_ms`, so that compaction need not wait for an append."""
        active = self._segments.active
        if active is None or not active.size:
            return
        if active.first_append_ms is None:
            active.first_append_ms = now_ms
        if now_ms - active.first_append_ms >= age_max_ms > 0:
            self._seal(active)
            self._segments.add(self._marks.end_offset, now_ms)
            self._durability.note_change()

    def _seal(self, segment: Segment) -> None:
        """Write the index of a segment that no longer grows, and the state of the producers at its end."""
        self._segments.persist_index(segment)
        self._producers.write_snapshot()
        segment.unload_index()


def _place(
    data: memoryview, produced: Produced, offset: int, leader_epoch: int, append_time_ms: int
) -> list[BatchHeader]:
    """Write offsets, epoch and timestamps into batches, the first of which begins at `offset`; return their headers.

    append_time_ms: see `LogWriter.append_as_leader`.
    """
    placed = []
    position = 0
    for claimed, max_timestamp in zip(produced.headers, produced.max_timestamps, strict=True):
        header = claimed._replace(base_offset=offset, leader_epoch=leader_epoch)
        if append_time_ms != NO_TIMESTAMP:
            attributes = header.attributes | TIMESTAMP_TYPE_FLAG
            header = header._replace(attributes=attributes, max_timestamp=append_time_ms)
        elif max_timestamp != claimed.max_timestamp:
            header = header._replace(max_timestamp=max_timestamp)
        if (header.attributes, header.max_timestamp) == (claimed.attributes, claimed.max_timestamp):
            patch(data, offset, leader_epoch, position)
        else:
            seal(data, header, position)
        placed.append(header)
        offset = header.end_offset
        position += header.size
    return placed
