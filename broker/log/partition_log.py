"""One replica's log: its segments, epochs and producers, which always agree.

Theory of operation.  All code runs on the event loop's thread and never waits.  An append goes to the page cache and is
readable at once.  The group flush (`flush.py`) then makes it durable; its tickets name the data that it flushed.  A
ticket counts only for the *generation* of the log from which it was taken.  Every truncation begins a new generation.
So a flush of truncated records never vouches for later records at the same offsets.

**Three marks.**  `flushed_offset`: the log is durable up to here.  `high_watermark`: the log is committed up to here,
as the caller reports.  `truncation_floor`: the recovery point or watermark that the facts hold, or that is being
written to them.  A restart trusts everything below the recovery point without reading it, and refuses a log that ends
below the watermark.  So the floor must be lowered, by `LogManager.lower_truncation_floor`, before a truncation below
it.  The floor never exceeds the watermark, and committed records are truncated only after an unclean election.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from broker.core.epochs import EpochCache
from broker.core.producer_state import Duplicate, ProducerState, Refuse
from broker.log.produced import Produced, check_produced, refused
from broker.log.producer_snapshots import load_producers, remove_old_snapshots, remove_snapshots, write_snapshot
from broker.log.segment import Segment
from broker.log.segments import batch_start, read_batches, recovery_point, retained_start, size_from
from broker.log.state import STATE_VERSION, UNSYNCED, LogState, RecoveryPoint, SegmentState, epochs_before
from broker.log.timestamps import find_newest, find_timestamp
from broker.log.types import Appended, LogConfig, LogKey, Refused, TimestampOffset
from broker.log.unflushed import Unflushed
from quorumlog.runtime.disk import Disk, DiskError, DiskFile
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import BatchHeader, BatchRefusal, check_batches, patch, seal

LOGS = "logs"
RELATIVE_OFFSET_MAX = 2**31 - 1
Batches = bytes | bytearray | memoryview


class FlushTicket(NamedTuple):
    """The data of one log that one flush makes durable, and the end offset that this proves."""

    log: PartitionLog
    generation: int
    end_offset: int
    files: tuple[DiskFile, ...]
    folders: tuple[str, ...]
    folders_first: bool  # files were deleted: make that durable before later appends
    close: tuple[DiskFile, ...]
    folder_fact: bytes | None  # the folder's fact to write; None: it is up to date


class PartitionLog:
    """The log of one replica, made by `LogManager`.  The package's docstring describes the interface."""

    def __init__(self, disk: Disk, key: LogKey, topic: str, folder: str, config: LogConfig, state: LogState) -> None:
        self.key = key
        self.topic = topic
        self._config = config
        self.folder = f"{LOGS}/{folder}"
        self.start_offset = state.start_offset
        self.high_watermark = state.high_watermark
        self.epochs = EpochCache(state.epochs, state.end_offset)
        self.truncation_floor = state.recovery.offset
        self.folder_fact: bytes | None = None  # the value of the folder's fact; None: there is none
        self.is_closed = False
        self._written_watermark = 0  # among the facts
        self.generation = 0
        self.on_flushed: Callable[[int], None] | None = None
        self.notify_dirty: Callable[[PartitionLog], None] = _ignore
        self.written_start_offset = state.start_offset  # among the facts
        self.is_changed = False  # since its state was last written among the facts
        self.appended_since_checkpoint = 0  # bytes
        self._disk = disk
        self._segments = [
            Segment(
                disk,
                self.folder,
                one.base_offset,
                end_offset=one.end_offset,
                size=one.size,
                newest_timestamp=one.newest_timestamp,
            )
            for one in state.segments
        ]
        self._flushed_offset = state.end_offset
        self._has_folder = bool(state.segments) or disk.exists(self.folder)
        self._producers: ProducerState | None = None
        self._producerless_offset = state.producerless_offset
        self._unflushed = Unflushed()

    # -- properties

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        if self.is_dirty:  # without write caching, callers wait for the flush from now on
            self.notify_dirty(self)

    @property
    def directory_id(self) -> UUID:
        return self._disk.directory_id

    @property
    def end_offset(self) -> int:
        return self.epochs.end_offset

    @property
    def durable_offset(self) -> int:
        """End of the durable records, whatever `write_caching` is."""
        return self._flushed_offset

    @property
    def flushed_offset(self) -> int:
        """End of the records that may be acknowledged: the durable ones, or all of them with `write_caching`."""
        return self.end_offset if self.config.write_caching else self._flushed_offset

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    @property
    def producers(self) -> ProducerState:
        if self._producers is None:
            self._producers = load_producers(
                self._disk, self.folder, self._segments, self.end_offset, self._producerless_offset
            )
        return self._producers

    @property
    def is_dirty(self) -> bool:
        """Whether the log has something to flush."""
        return bool(self._unflushed) or self._flushed_offset < self.end_offset

    # -- appending

    def append_as_leader(self, batches: Batches | Produced, leader_epoch: int, now_ms: int) -> Appended | Refused:
        """Append a client's batches, with their offsets and epoch set.

        batches: checked by `check_produced`, unless they are `Produced` already.  The records of batches with
            compression are checked only if the caller has done so.
        """
        assert leader_epoch >= self.epochs.latest, f"{self.folder}: epoch {leader_epoch} after {self.epochs.latest}"
        produced = batches if isinstance(batches, Produced) else check_produced(batches, self.config)
        if isinstance(produced, Refused):
            return produced
        headers = produced.headers
        if headers[0].has_producer_id:  # such a batch is always the only one
            verdict = self.producers.check(headers[0], self.start_offset)
            if isinstance(verdict, Duplicate):
                self.producers.renew(headers[0].producer_id)
                return Appended(verdict.first_offset, verdict.end_offset, duplicate=True)
            if isinstance(verdict, Refuse):
                return Refused(int(verdict.code), verdict.reason)
        data = bytearray(produced.data)
        first = offset = self.end_offset
        position = 0
        placed = []
        for claimed, max_timestamp in zip(headers, produced.max_timestamps, strict=True):
            header = claimed._replace(base_offset=offset, leader_epoch=leader_epoch)
            if max_timestamp == claimed.max_timestamp:
                patch(data, offset, leader_epoch, position)
            else:
                header = header._replace(max_timestamp=max_timestamp)
                seal(data, header, position)
            placed.append(header)
            offset += header.last_offset_delta + 1
            position += header.size
        self._append(data, placed, now_ms)
        return Appended(first, offset)

    def append_as_follower(self, batches: Batches, leader_epoch: int, now_ms: int) -> Appended | Refused:
        """Append the batches of the leader of `leader_epoch` unchanged; they must continue where this log ends."""
        # Check headers and checksums only.  Acknowledged batches must be copied byte for byte, even a batch from an
        # older release whose records contradict its header: a follower that refused it would stop replicating.
        headers = check_batches(batches)
        if isinstance(headers, BatchRefusal):
            return refused(headers)
        self.epochs.truncate_to(self.end_offset)  # drop an epoch that began here and has no record
        offset, epoch = self.end_offset, self.epochs.latest
        first = offset
        for header in headers:
            if header.base_offset != offset:
                return Refused(int(KafkaCode.CORRUPT_MESSAGE), f"offset {header.base_offset} where {offset} must come")
            if header.leader_epoch < epoch:
                return Refused(int(KafkaCode.CORRUPT_MESSAGE), f"leader epoch {header.leader_epoch} after {epoch}")
            if header.leader_epoch > leader_epoch:
                reason = f"leader epoch {header.leader_epoch} from the leader of {leader_epoch}"
                return Refused(int(KafkaCode.UNKNOWN_LEADER_EPOCH), reason)
            offset, epoch = header.end_offset, header.leader_epoch
        if headers:
            self._append(batches, headers, now_ms)
        return Appended(first, offset)

    def begin_epoch(self, leader_epoch: int) -> None:
        """Begin a new leader's epoch at the end of the log; in memory only, since every batch will carry it."""
        self.epochs.assign(leader_epoch, self.end_offset)

    def _append(self, data: Batches, headers: Sequence[BatchHeader], now_ms: int) -> None:
        producers = self.producers
        segment = self._active_for(len(data), headers, now_ms)
        segment.last_append_ms = now_ms
        try:
            segment.append(data, headers, self.config.index_interval)
        except DiskError:
            self.notify_dirty(self)  # the next flush fails and reports the error
            raise
        for header in headers:
            self.epochs.advance(header.leader_epoch, header.base_offset, header.end_offset)
            if header.has_producer_id:
                producers.apply(header, header.base_offset, header.end_offset)
        assert segment.end_offset == self.end_offset, f"{segment.path}: {segment.end_offset} != {self.end_offset}"
        self.appended_since_checkpoint += len(data)
        self._unflushed.add(segment.file)
        self._note_change()

    def _active_for(self, size: int, headers: Sequence[BatchHeader], now_ms: int) -> Segment:
        """Return the segment for the next batches: the last one, or a new one."""
        if self._segments:
            active = self._segments[-1]
            if active.first_append_ms is None:
                active.first_append_ms = now_ms
            aged = now_ms - active.first_append_ms >= self.config.segment_age_max_ms > 0
            full = active.size + size > self.config.segment_size_max
            far = headers[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            gone = active.end_offset <= self.start_offset  # about to be deleted
            if active.size == 0 or not (aged or full or far or gone):
                return active
            self._seal(active)
        if not self._has_folder:
            self._disk.make_dir(self.folder)
            self._has_folder = True
            self._unflushed.folder_created()
        segment = Segment.create(self._disk, self.folder, self.end_offset)
        segment.first_append_ms = now_ms
        self._segments.append(segment)
        self._unflushed.folder_changed()
        return segment

    def _seal(self, segment: Segment) -> None:
        """Write the index of a segment that grows no more, and the state of the producers at its end."""
        self._write_aside(segment)
        segment.unload_index()

    def _write_aside(self, segment: Segment) -> None:
        if (file := segment.persist_index()) is not None:
            self._close_after_flush(file)
        producers = self.producers
        if len(producers) or producers.has_expired:
            self._close_after_flush(write_snapshot(self._disk, self.folder, self.end_offset, producers))
        else:
            self._producerless_offset = self.end_offset

    def _close_after_flush(self, file: DiskFile) -> None:
        self._unflushed.add_last(file)
        self._note_change()

    # -- flushing

    def _note_change(self) -> None:
        self.is_changed = True
        self.notify_dirty(self)

    def take_ticket(self) -> FlushTicket:
        """Return everything that is not durable, and hand it over to the flush."""
        wanted = UNSYNCED if self.config.write_caching else b""
        taken = self._unflushed.take()
        folders = [LOGS] if taken.parent_changed else []
        if taken.folder_changed:
            folders.append(self.folder)
        return FlushTicket(
            log=self,
            generation=self.generation,
            end_offset=self.end_offset,
            files=taken.files,
            folders=tuple(folders),
            folders_first=taken.folders_first,
            close=taken.close,
            folder_fact=wanted if self._has_folder and wanted != self.folder_fact else None,
        )

    def flush_done(self, ticket: FlushTicket) -> None:
        """Take in that the data of `ticket` is durable.  A ticket of another generation proves nothing."""
        for file in ticket.close:
            if file.path not in self._unflushed:
                file.close()
        if ticket.generation != self.generation:
            return
        assert self._flushed_offset <= ticket.end_offset <= self.end_offset, (self._flushed_offset, ticket.end_offset)
        if ticket.end_offset > self._flushed_offset:
            self._flushed_offset = ticket.end_offset
            if self.on_flushed is not None:
                self.on_flushed(ticket.end_offset)

    # -- reading

    def read(self, offset: int, max_bytes: int, up_to_offset: int) -> bytes:
        """Return whole batches of one segment, from the one that holds `offset`; none ends above `up_to_offset`.

        They have at most `max_bytes`, but there is at least one.  The caller has checked that the log holds `offset`.
        """
        assert self.start_offset <= offset <= self.end_offset, f"{self.folder}: {offset} is outside"
        up_to_offset = min(up_to_offset, self.end_offset)
        if offset >= up_to_offset:
            return b""
        return read_batches(self._segments, offset, max_bytes, up_to_offset, self.epochs.epoch_of)

    def size_from(self, offset: int) -> int:
        """Return the bytes of the batches from the one that holds `offset` on.

        Raises: CorruptStoreError, DiskError.
        """
        return 0 if offset >= self.end_offset else size_from(self._segments, offset)

    def size_between(self, offset: int, up_to_offset: int) -> int:
        """Return the bytes of the batches that an unbounded `read` would return for this range.

        Raises: CorruptStoreError, DiskError.
        """
        return 0 if offset >= up_to_offset else self.size_from(offset) - self.size_from(up_to_offset)

    async def offset_for_timestamp(self, timestamp_ms: int, up_to_offset: int) -> TimestampOffset | None:
        """Return the first record below `up_to_offset` with a timestamp of at least `timestamp_ms`."""
        return await find_timestamp(self._segments, timestamp_ms, self.start_offset, up_to_offset, self.epochs.epoch_of)

    async def max_timestamp_offset(self, up_to_offset: int) -> TimestampOffset | None:
        """Return the first of the newest records below `up_to_offset`."""
        return await find_newest(self._segments, self.start_offset, up_to_offset, self.epochs.epoch_of)

    # -- truncating

    def truncate_to(self, offset: int) -> None:
        """Truncate the log at `offset`.  A batch that holds `offset` is removed as a whole."""
        assert offset >= self.truncation_floor, f"{self.folder}: {offset} is below {self.truncation_floor}"
        assert offset >= self.start_offset, f"{self.folder}: {offset} is below the start {self.start_offset}"
        if offset >= self.end_offset:
            self.epochs.truncate_to(self.end_offset)
            return
        end_offset = self._cut_segments(offset)
        self.epochs.truncate_to(end_offset)
        self.generation += 1
        self._flushed_offset = min(self._flushed_offset, end_offset)
        self.high_watermark = min(self.high_watermark, end_offset)
        self.start_offset = min(self.start_offset, end_offset)  # it may lie within the batch that was removed
        self._producers = None
        if self._producerless_offset > end_offset:
            self._producerless_offset = -1 if self.start_offset > 0 else 0
        remove_snapshots(self._disk, self.folder, above=end_offset)
        self._unflushed.folder_changed()
        self._unflushed.folder_first()
        self._note_change()

    def _cut_segments(self, offset: int) -> int:
        """Truncate the segments at `offset`; return the new end of the log."""
        while self._segments and self._segments[-1].base_offset >= offset:
            self._remove_segment(self._segments.pop())
        if not self._segments or self._segments[-1].end_offset <= offset:
            return offset
        last = self._segments[-1]
        position = last.position_of(offset)
        end_offset = last.header_at(position).base_offset
        if position == 0:
            self._remove_segment(self._segments.pop())
        else:
            last.truncate(position, end_offset)
            self._unflushed.add(last.file)
        return end_offset

    def _remove_segment(self, segment: Segment) -> None:
        self._unflushed.remove(segment.path, segment.index_path)
        segment.remove()
        self.is_changed = True

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the watermark to `offset`, or to the end of the log if that is lower; never lower it."""
        offset = min(offset, self.end_offset)
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.is_changed = True

    def advance_start_offset(self, offset: int) -> None:
        """Raise the start to `offset`, but not above the watermark.  Retention deletes the segments below it later."""
        offset = min(offset, self.high_watermark)
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.drop_before(offset)
            self.is_changed = True

    def restart_at(self, offset: int, epoch: int = -1) -> None:
        """Drop all records; the next offset is `offset`.  The manager has already written that to the facts.

        epoch: epoch of the record before `offset`; -1 if it is unknown.
        """
        while self._segments:
            self._remove_segment(self._segments.pop())
        remove_snapshots(self._disk, self.folder, above=-1)
        self.epochs = EpochCache(epochs_before(offset, epoch), offset)
        self.start_offset = self.high_watermark = self._flushed_offset = self.truncation_floor = offset
        self._written_watermark = 0
        self._producers, self._producerless_offset = None, offset
        self.generation += 1
        if self._has_folder:
            self._unflushed.folder_first()
        self._note_change()

    # -- upkeep: called by the manager

    def retained_start(self, now_ms: int, wall_ms: int) -> int:
        """Return where the log should start by the topic's retention; see `segments.retained_start`."""
        deletable_end = min(self.high_watermark, self._flushed_offset)
        return retained_start(self._segments, self.start_offset, deletable_end, self.config, now_ms, wall_ms)

    def expire_producers(self, now_ms: int) -> None:
        if self._producers is None:
            return
        if self._producers.expire(now_ms, self.config.producer_expiration_ms, self.high_watermark):
            self.is_changed = True

    def prepare_checkpoint(self) -> None:
        """Write the index and the producers' state, for which a restart would otherwise read the log.

        The caller flushes them before it calls `take_state`.
        """
        if self._segments and (self.appended_since_checkpoint or self.start_offset >= self.end_offset):
            self._write_aside(self._segments[-1])

    def take_state(self) -> LogState:
        """Return the state to write to the facts now; everything in it is durable already."""
        self.is_changed = False
        self.appended_since_checkpoint = 0
        recovery = self._recovery_point()
        self.truncation_floor = max(recovery.offset, self._written_watermark)
        self.written_start_offset = self.start_offset
        return LogState(
            version=STATE_VERSION,
            start_offset=self.start_offset,
            end_offset=self.end_offset,
            high_watermark=self.high_watermark,
            recovery=recovery,
            segments=[
                SegmentState(one.base_offset, one.end_offset, one.size, one.newest_timestamp)
                for one in self._segments
                if one.end_offset > self.start_offset
            ],
            epochs=list(self.epochs.entries),
            producerless_offset=self._producerless_offset,
        )

    def take_watermark(self) -> int:
        """Return the watermark to write to the facts now; everything below it is durable."""
        self._written_watermark = min(self.high_watermark, self._flushed_offset)
        self.truncation_floor = max(self.truncation_floor, self._written_watermark)
        return self._written_watermark

    def lower_watermark(self, offset: int) -> None:
        """Lower the watermark to `offset`.  The caller removes the watermark from the facts."""
        if self.start_offset <= offset < self.end_offset:  # the batch that holds it will be removed as a whole
            offset = batch_start(self._segments, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self._written_watermark = 0

    def restore_watermark(self, offset: int) -> None:
        """Raise the watermark to the one in the facts; recovery has found that the log reaches it."""
        self.advance_high_watermark(offset)
        self._written_watermark = offset
        self.truncation_floor = max(self.truncation_floor, offset)

    def _recovery_point(self) -> RecoveryPoint:
        offset = min(self._flushed_offset, self.high_watermark)
        offset = max(offset, self.start_offset)
        return recovery_point(self._segments, offset, self.start_offset, self.end_offset)

    def remove_below_start(self) -> None:
        """Delete the segments below the start that the facts no longer name."""
        start_offset = min(self.start_offset, self.written_start_offset)  # it may have moved since the facts were made
        while self._segments and self._segments[0].end_offset <= start_offset:
            self._remove_segment(self._segments.pop(0))
        remove_old_snapshots(self._disk, self.folder)

    def loaded_indexes(self) -> Iterator[Segment]:
        """Return the sealed segments whose index is in memory."""
        return (segment for segment in self._segments[:-1] if segment.loaded_index_size)

    def recovered(self, segments: Iterable[Segment], flushed_offset: int) -> None:
        """Take over the segments that recovery found.  Data above `flushed_offset` may be only in the page cache."""
        self._segments = list(segments)
        self._flushed_offset = flushed_offset
        self.high_watermark = min(self.high_watermark, self.truncation_floor)  # records above may be other ones now
        self._producerless_offset = min(self._producerless_offset, self.truncation_floor)
        remove_snapshots(self._disk, self.folder, above=self.end_offset)
        # Names, deletions and truncations may also be only in the page cache: the next flush makes them durable.
        if self._has_folder:
            self._unflushed.folder_created()
            self._unflushed.folder_changed()
            self._unflushed.folder_first()
        for segment in self._segments:
            if segment.end_offset >= flushed_offset:
                self._unflushed.add(segment.file)
        self.is_changed = True

    def close(self) -> None:
        """Close the files; nothing is flushed."""
        self.is_closed = True
        self.generation += 1
        for file in self._unflushed.take().close:
            file.close()
        for segment in self._segments:
            segment.close()


def _ignore(log: PartitionLog) -> None:
    """Do nothing, until the manager has set `notify_dirty`."""
