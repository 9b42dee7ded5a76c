"""The producers of a log: their state in memory, and its snapshots beside the segments.

`<offset>.producers` is the state after all batches below `offset`; the batch headers and markers after a snapshot give
the rest.  A damaged snapshot loses nothing: an older snapshot and more headers, or all headers, give the same state.
But no header describes records that retention has deleted.  So wherever the log may be truncated, a snapshot must exist
between the start of the log and that offset.  And the facts name a start only once the state at this offset, or later,
is durable (`LogMarks.writable_start_offset`).

Compaction removes a marker once no record of its transaction is left.  So a snapshot from below a compacted part may
name an open transaction whose marker no longer exists.  Such a snapshot is not used.  A snapshot may also name aborted
transactions whose markers were removed since; these are dropped when it is loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from crc32c import crc32c

from broker.core.producer_state import CorruptSnapshotError, ProducerState
from broker.core.transactions import Marker, ProducerKey
from broker.log.durability import Durability
from broker.log.marks import LogMarks
from broker.log.segment import segment_path
from broker.log.segments import LogSegments
from quorumlog.runtime.disk import Disk
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.control_records import parse_marker
from quorumlog.wire.record_batch import BatchHeader, Buffer

KEPT = 3
_CRC = struct.Struct(">I")

logger = get_logger("log")


def read_marker(data: Buffer, header: BatchHeader, position: int = 0) -> Marker | None:
    """Return the marker in the batch at `position`; None if the batch is not a marker, or is malformed."""
    found = parse_marker(data, header, position)
    if found is None:
        return None
    return Marker(ProducerKey(header.producer_id, header.producer_epoch), found.is_commit, found.coordinator_epoch)


class LogProducers:
    """The producers of one log.  Their state is loaded when it is first needed."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        marks: LogMarks,
        segments: LogSegments,
        durability: Durability,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._marks = marks
        self._segments = segments
        self._durability = durability
        self._state: ProducerState | None = None
        self._written_offset = -1  # of the newest snapshot that this process has given to a flush

    def move_to(self, disk: Disk) -> None:
        """Use the copies of the snapshots on another disk."""
        self._disk = disk
        self._written_offset = -1

    @property
    def state(self) -> ProducerState:
        """The state at the end of the log.

        Raises: CorruptStoreError, DiskError.
        """
        if self._state is None:
            self._state = self._load()
        return self._state

    def _load(self) -> ProducerState:
        producers, offset = self._newest_snapshot()
        self._drop_removed_markers(producers, offset)
        for segment in self._segments.all:
            if segment.end_offset <= offset:
                continue
            start = segment.position_of(max(offset, segment.base_offset))
            # Check the batches: after a damaged header, this leader would treat new ones as duplicates or out of order.
            for header, batch in segment.batches(start, self._marks.epochs.epoch_of):
                marker = read_marker(batch, header) if header.is_control else None
                producers.apply(header, header.base_offset, header.end_offset, marker)
        self._read_times(producers)
        return producers

    def _read_times(self, producers: ProducerState) -> None:
        """Read the times of open transactions, which snapshots do not contain."""
        for producer_id, first_offset in producers.transactions.open.items():
            producer = producers.get(producer_id)
            if producer is not None and producer.last_timestamp_ms < 0 and first_offset >= self._marks.start_offset:
                producer.last_timestamp_ms = self._header_of(first_offset).max_timestamp

    def _header_of(self, offset: int) -> BatchHeader:
        """Return the header of the batch that holds `offset`, checked."""
        segment = self._segments.at(offset)
        return segment.checked_header_at(segment.position_of(offset), self._marks.epochs.epoch_of)

    def _drop_removed_markers(self, producers: ProducerState, end_offset: int) -> None:
        """Drop the aborted transactions whose markers are below the start, or were removed by compaction."""
        transactions, start = producers.transactions, self._marks.start_offset
        transactions.drop_before(start)
        compacted_end = min(self._marks.compacted_end, end_offset)
        rows = transactions.aborted_between(start, compacted_end)
        if not rows:
            return
        present = set()
        for row in rows:
            if row.last_offset < compacted_end:
                header = self._header_of(row.last_offset)
                if header.is_control and header.base_offset == row.last_offset:
                    present.add(row.last_offset)
        transactions.keep_markers(start, compacted_end, present)

    @property
    def stable_offset(self) -> int:
        """The last stable offset; never below the start of the log."""
        marks = self._marks
        return max(self.state.transactions.stable_offset(marks.high_watermark), marks.start_offset)

    def compacted(self, start: int, end: int, markers: Collection[int]) -> None:
        """Note that compaction has left only these markers from `start` to `end`."""
        if self._state is not None:
            self._state.transactions.keep_markers(start, end, markers)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Drop the producers without a batch for `expiration_ms`, if their last batch is committed."""
        if self._state is None:
            return
        self._state.transactions.drop_before(self._marks.start_offset)
        self._state.transactions.forget_decided(self._marks.high_watermark)
        if self._state.expire(now_ms, expiration_ms, self._marks.high_watermark):
            self._marks.is_changed = True

    def truncated(self, end_offset: int) -> None:
        """Go back to the state at the new end of the log."""
        self._state, self._written_offset = None, -1
        self._remove_snapshots(above=end_offset)

    def restarted(self) -> None:
        """Drop all producers; the log is empty."""
        self._remove_snapshots(above=-1)
        self._state, self._written_offset = None, -1

    def recovered(self) -> None:
        """Drop the state above the end of the log that a crash has left."""
        self._remove_snapshots(above=self._marks.end_offset)

    # -- snapshots

    @property
    def has_snapshot_at_end(self) -> bool:
        """Return whether the next flush makes the state at the end of the log durable, if it is not durable already."""
        return self._marks.end_offset in (self._marks.producerless_offset, self._written_offset)

    def write_snapshot(self) -> None:
        """Have the next flush make the state at the end of the log durable, if the log has or had any producer."""
        end_offset, state = self._marks.end_offset, self.state
        if self.has_snapshot_at_end:
            return
        if not len(state) and not state.has_expired and state.transactions.is_empty:
            self._marks.producerless_offset = end_offset
            return
        path = segment_path(self._folder, end_offset, "producers")
        # The batches below a good snapshot of an earlier process may be deleted.  So it is not written again: a power
        # failure could leave a torn one.
        if self._read_snapshot(end_offset) is None:
            self._disk.remove(path)
            data = state.snapshot()
            file = self._disk.open(path, create=True)
            file.append(_CRC.pack(crc32c(data)) + data)
        else:
            file = self._disk.open(path)
        self._durability.add_snapshot(file, end_offset)
        self._written_offset = end_offset

    def remove_old_snapshots(self) -> None:
        """Delete the snapshots that neither a start nor a truncation needs.

        The last `KEPT` are kept, and the last `KEPT` of those at or below the truncation floor.  Above the floor, those
        at the base of a segment are kept as well: the floor may rise to any offset there, and retention may delete all
        earlier segments.
        """
        floor, offsets = self._marks.truncation_floor, self._snapshot_offsets()
        below = [offset for offset in offsets if offset <= floor]
        bases = {segment.base_offset for segment in self._segments.all}
        kept = {*below[-KEPT:], *offsets[-KEPT:], *bases.difference(below)}
        for offset in offsets:
            if offset not in kept:
                self._disk.remove(segment_path(self._folder, offset, "producers"))

    def _remove_snapshots(self, above: int) -> None:
        """Delete the snapshots of offsets above `above`, which the log no longer reaches."""
        for offset in self._snapshot_offsets():
            if offset > above:
                self._disk.remove(segment_path(self._folder, offset, "producers"))

    def _snapshot_offsets(self) -> list[int]:
        """Return the offsets of the snapshots, ascending."""
        names = (name.partition(".") for name in self._disk.list(self._folder))
        return sorted(int(stem) for stem, _, kind in names if kind == "producers" and stem.isdigit())

    def _newest_snapshot(self) -> tuple[ProducerState, int]:
        """Return the last known state at or below the end of the log, and its offset."""
        end_offset = self._marks.end_offset
        has_expired = False
        for offset in reversed(self._snapshot_offsets()):
            if not self._marks.producerless_offset < offset <= end_offset:
                continue
            state = self._read_snapshot(offset)
            if state is None:
                continue
            if offset >= self._marks.compacted_end or not state.transactions.open:
                return state, offset
            has_expired = has_expired or state.has_expired
        state = ProducerState()
        state.has_expired = has_expired
        producerless_offset = self._marks.producerless_offset
        return state, producerless_offset if producerless_offset <= end_offset else -1

    def _read_snapshot(self, offset: int) -> ProducerState | None:
        """Return the state in the snapshot of this offset; None if it is damaged or does not exist."""
        path = segment_path(self._folder, offset, "producers")
        if not self._disk.exists(path):
            return None
        file = self._disk.open(path)
        data = file.pread(0, file.size)
        file.close()
        try:
            if len(data) < _CRC.size or crc32c(data[_CRC.size :]) != _CRC.unpack_from(data)[0]:
                raise CorruptSnapshotError("checksum does not match")
            return ProducerState.restore(data[_CRC.size :])
        except CorruptSnapshotError as error:
            logger.warning("producer snapshot ignored", file=path, reason=str(error))
            return None
