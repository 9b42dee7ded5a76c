"""One replica's log: its segments, epochs and producers, which always agree.

Theory of operation.  All code runs on the event loop's thread and never waits, except for look-ups by timestamp, which
decompress batches in other threads.  The log is composed of parts, each of which uses only parts above it:

    part          for                                                        module
    LogMarks      start, end, watermark, durable end; values in `facts.db`  marks.py
    Durability    data that is not durable yet; tickets for the group flush  durability.py
    RecentAppends the last appends by leaders on this broker, in memory     recent.py
    LogSegments   the list of segments: adding, truncating, removing         segments.py
    LogProducers  the state of the producers and its snapshots               producers.py
    LogReader     reads by offset, look-ups by time                          reader.py
    LogWriter     appends of a leader and of a follower; new segments        writer.py
    LogUpkeep     retention, checkpoints, expiry of producers                upkeep.py
    LogCompaction the dirty part, and the swap of compacted segments         compaction.py

`PartitionLog` is the interface for the replica.  It coordinates the changes that concern several parts: truncation, a
restart at another offset, and the result of a recovery.  The manager and the group flush call `marks`, `durability`,
`upkeep` and `compaction` themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from broker.core.epochs import EpochCache
from broker.core.producer_state import ProducerState, Verification
from broker.core.transactions import AbortedTransaction, Marker
from broker.log.compaction import LogCompaction
from broker.log.durability import Durability
from broker.log.marks import LogMarks
from broker.log.produced import Produced
from broker.log.producers import LogProducers
from broker.log.reader import LogReader
from broker.log.recent import RecentAppends
from broker.log.segment import Segment
from broker.log.segments import LogSegments, known_segment
from broker.log.state import LogState
from broker.log.types import LOGS, Appended, LogConfig, LogKey, Refused, TimestampOffset
from broker.log.upkeep import LogUpkeep
from broker.log.writer import Batches, LogWriter
from quorumlog.runtime.disk import Disk, DiskFile
from quorumlog.wire.record_batch import NO_TIMESTAMP, iter_headers


class PartitionLog:
    """The log of one replica, made by `LogManager`.  The package's docstring states which errors to expect.

    folder_name: the name of the log's folder in `logs`.  folder: the path of this folder in the data directory.
    """

    def __init__(
        self,
        disk: Disk,
        key: LogKey,
        topic: str,
        folder_name: str,
        config: LogConfig,
        state: LogState,
        recent: RecentAppends,
    ) -> None:
        self.key = key
        self.topic = topic
        self.directory_id = disk.directory_id
        self.folder_name = folder_name
        self.folder = path = f"{LOGS}/{folder_name}"
        self._config = config
        self.marks = marks = LogMarks(state)
        has_folder = bool(state.segments) or disk.exists(path)
        segments = [known_segment(disk, path, one) for one in state.segments]
        self.durability = Durability(marks, segments, path, has_folder=has_folder, write_caching=config.write_caching)
        self._segments = LogSegments(disk, path, segments, self.durability, recent)
        self._producers = LogProducers(disk, path, marks, self._segments, self.durability)
        self._reader = LogReader(path, marks, self._segments, recent)
        self._writer = LogWriter(path, marks, self._segments, self._producers, self.durability, recent)
        self.upkeep = LogUpkeep(marks, self._segments, self._producers)
        self.compaction = LogCompaction(disk, path, marks, self._segments, self._producers, self.durability)

    # -- properties

    @property
    def config(self) -> LogConfig:
        return self._config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._config = config
        self.durability.set_write_caching(config.write_caching)

    @property
    def epochs(self) -> EpochCache:
        return self.marks.epochs

    @property
    def start_offset(self) -> int:
        return self.marks.start_offset

    @property
    def durable_start_offset(self) -> int:
        """The lowest start offset that a restart may find."""
        return self.marks.durable_start_offset

    @property
    def moved_from(self) -> tuple[UUID, ...]:
        """The directories from which this log has moved, with all its records.  See `LogMarks.moved_from`."""
        return self.marks.moved_from

    @property
    def end_offset(self) -> int:
        return self.marks.epochs.end_offset

    @property
    def high_watermark(self) -> int:
        return self.marks.high_watermark

    @property
    def truncation_floor(self) -> int:
        """The lowest offset to which `truncate_to` is permitted; see `LogManager.lower_truncation_floor`."""
        return self.marks.truncation_floor

    @property
    def flushed_offset(self) -> int:
        """End of the records that may be acknowledged.  See `Durability.flushed_offset`."""
        return self.durability.flushed_offset

    @property
    def is_settled(self) -> bool:
        """Return whether everything appended may be acknowledged, and every truncation is durable."""
        return self.flushed_offset >= self.end_offset and not self.durability.is_truncating

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return self._segments.size

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments.all

    @property
    def producers(self) -> ProducerState:
        """The state of the producers at the end of the log.

        Raises: CorruptStoreError, DiskError.
        """
        return self._producers.state

    # -- appending

    def append_as_leader(
        self,
        batches: Batches | Produced,
        leader_epoch: int,
        now_ms: int,
        verification: Verification | None = None,
        *,
        is_coordinated: bool = False,
        append_time_ms: int = NO_TIMESTAMP,
    ) -> Appended | Refused:
        """Append a client's batches; see `LogWriter.append_as_leader`."""
        return self._writer.append_as_leader(
            batches,
            leader_epoch,
            now_ms,
            self._config,
            verification,
            is_coordinated=is_coordinated,
            append_time_ms=append_time_ms,
        )

    def append_marker(self, marker: Marker, timestamp_ms: int, leader_epoch: int, now_ms: int) -> Appended | Refused:
        """End the transaction of a producer; see `LogWriter.append_marker`."""
        return self._writer.append_marker(marker, timestamp_ms, leader_epoch, now_ms, self._config)

    def append_as_follower(self, batches: Batches, leader_epoch: int, now_ms: int) -> Appended | Refused:
        """Append a leader's batches; see `LogWriter.append_as_follower`."""
        return self._writer.append_as_follower(batches, leader_epoch, now_ms, self._config)

    def roll_aged(self, now_ms: int) -> None:
        """Seal the active segment of a compacted log once it is old enough, even if nothing is appended.

        Raises: CorruptStoreError, DiskError.
        """
        config = self._config
        if config.compacts:
            self._writer.roll_aged(now_ms, min(config.segment_age_max_ms, config.compaction.max_lag_ms))

    def begin_epoch(self, leader_epoch: int) -> None:
        """Begin a new leader's epoch at the end of the log, in memory only: every batch will carry the epoch."""
        self.marks.epochs.assign(leader_epoch, self.end_offset)

    # -- reading

    def read(self, offset: int, max_bytes: int, up_to_offset: int) -> bytes | memoryview:
        """Return whole batches; see `LogReader.read`."""
        return self._reader.read(offset, max_bytes, up_to_offset)

    @property
    def last_stable_offset(self) -> int:
        """End of the records that are committed, and whose transactions are decided.

        Raises: CorruptStoreError, DiskError.
        """
        return self._producers.stable_offset

    def aborted_in(self, batches: bytes | memoryview, offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in `batches`, which were read at `offset`.

        Raises: CorruptStoreError, DiskError.
        """
        transactions = self._producers.state.transactions
        if not transactions.has_aborted_from(offset):
            return []
        end_offset = offset
        for _, header in iter_headers(batches):
            end_offset = header.end_offset
        return transactions.aborted_between(offset, end_offset)

    def size_from(self, offset: int) -> int:
        """Return the size in bytes of the batches from the one that holds `offset` on.

        Raises: CorruptStoreError, DiskError.
        """
        return self._reader.size_from(offset)

    def size_between(self, offset: int, up_to_offset: int) -> int:
        """Return the size in bytes of the batches that an unbounded `read` would return for this range.

        Raises: CorruptStoreError, DiskError.
        """
        return self._reader.size_between(offset, up_to_offset)

    async def offset_for_timestamp(self, timestamp_ms: int, up_to_offset: int) -> TimestampOffset | None:
        """Return the first record below `up_to_offset` with a timestamp of at least `timestamp_ms`."""
        return await self._reader.offset_for_timestamp(timestamp_ms, up_to_offset)

    async def max_timestamp_offset(self, up_to_offset: int) -> TimestampOffset | None:
        """Return the record below `up_to_offset` with the newest timestamp; the first one if there are several."""
        return await self._reader.max_timestamp_offset(up_to_offset)

    # -- moving the marks

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the watermark to `offset`, but not above the end of the log.  A lower `offset` changes nothing."""
        self.marks.advance_high_watermark(offset)

    def advance_start_offset(self, offset: int) -> None:
        """Raise the start to `offset`, but not above the watermark.  Retention deletes the segments below it later."""
        self.marks.advance_start_offset(offset)

    def lower_watermark(self, offset: int) -> None:
        """Lower the watermark before a truncation at `offset`.  The caller removes the watermark from the facts."""
        self.marks.lower_watermark(self.batch_start(offset))

    # -- truncating

    def batch_start(self, offset: int) -> int:
        """Return the base offset of the batch that holds `offset`, or `offset` itself if no batch does.

        A truncation to `offset` ends the log at the returned offset.

        Raises: CorruptStoreError, DiskError.
        """
        return self._segments.batch_start(offset) if self.start_offset <= offset < self.end_offset else offset

    def truncate_to(self, offset: int) -> None:
        """Truncate the log at `offset`.  A batch that holds `offset` is removed as a whole.

        `LogManager.prepare_truncation` comes first.  `offset` is not below `truncation_floor`.
        """
        assert offset >= self.truncation_floor, f"{self.folder}: {offset} is below {self.truncation_floor}"
        assert offset >= self.start_offset, f"{self.folder}: {offset} is below the start {self.start_offset}"
        if offset >= self.end_offset:
            self.epochs.truncate_to(self.end_offset)
            return
        end_offset = self._segments.truncate_to(offset)
        self.marks.truncate_to(end_offset)
        self.durability.begin_generation()
        self._producers.truncated(end_offset)
        self.durability.folder_changed()
        self.durability.note_change()

    def restart_at(self, offset: int, epoch: int = -1) -> None:
        """Drop all records; the next offset is `offset`.  The manager has already written this change to the facts.

        epoch: epoch of the record before `offset`; -1 if it is unknown.
        """
        self._segments.remove_all()
        self._producers.restarted()
        self.marks.restart_at(offset, epoch)
        self.durability.begin_generation()
        self.durability.note_change()

    # -- moves, opening and closing

    def move_to(self, disk: Disk, state: LogState, watermark: int, folder_fact: bytes, files: list[DiskFile]) -> None:
        """Continue on another disk, which holds a copy of all files under the same paths.

        state, watermark, folder_fact: the values in the facts of the disk.  The copy is durable up to the state's end.
        files: the files with data that is not durable yet.
        """
        self.directory_id = disk.directory_id
        self._segments.move_to(disk)
        self._producers.move_to(disk)
        self.compaction.move_to(disk)
        self.marks.moved(state, watermark)
        self.durability.moved(state.end_offset, folder_fact, files)

    def move_known(self) -> None:
        """Note that the controller's metadata names the directory of this log."""
        self.marks.move_known()

    def recovered(self, segments: Sequence[Segment], durable_offset: int) -> None:
        """Use the segments that recovery found.  Data above `durable_offset` may be only in the page cache."""
        self._segments.adopt(segments)
        self.marks.recovered(durable_offset)
        self._producers.recovered()
        self.durability.recovered([one.file for one in segments if one.end_offset >= durable_offset])

    def close(self) -> None:
        """Close the files; nothing is flushed."""
        self.durability.close()
        self._segments.close()
