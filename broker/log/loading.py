"""Builds a `PartitionLog` from the files and facts of its directory."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from broker.core.epochs import EpochCache
from broker.log.cleaning.swap import remove_leftovers
from broker.log.directory_facts import DirectoryFacts
from broker.log.index import SegmentIndex
from broker.log.partition_log import PartitionLog
from broker.log.recent import RecentAppends
from broker.log.recovery import Floor, Start, TornTail, recover_segment, walk_file
from broker.log.segment import Segment, segment_path
from broker.log.segments import known_segment
from broker.log.state import OFFSET_MAX, LogState, RecoveryPoint, empty_state
from broker.log.types import LOGS, LogConfig, LogKey
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import Disk, DiskFile
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn

INDEX_GAP_MAX = 1 << 20  # bytes before the recovery point without an entry; with more, the whole index is rebuilt

logger = get_logger("log")


class Recovered(NamedTuple):
    log: PartitionLog
    torn: TornTail | None


async def load_log(
    disk: Disk,
    key: LogKey,
    topic: str,
    folder: str,
    state: LogState | None,
    facts: DirectoryFacts,
    recent: RecentAppends,
    turn: Turn,
    *,
    is_exact: bool,
) -> PartitionLog:
    """Return the log in this folder, with recovery unless `state` is exact.

    Raises: as `recover_log`.
    """
    config = facts.config(folder)
    if is_exact and state is not None:
        log = PartitionLog(disk, key, topic, folder, config, state, recent)
        await turn.passed()
    else:
        log, torn = await turn.through(
            recover_log(
                disk,
                key,
                topic,
                folder,
                config,
                state,
                facts.flushed_segment(folder),
                facts.committed(key),
                facts.floor(key, folder, state),
                recent,
            )
        )
        if torn is not None:
            logger.warning(
                "torn tail truncated",
                file=torn.path,
                position=torn.position,
                bytes=torn.size,
                end_offset=torn.end_offset,
                reason=torn.reason,
            )
    log.durability.folder_fact = facts.folder_fact(folder)
    return log


def recover_log(
    disk: Disk,
    key: LogKey,
    topic: str,
    folder: str,
    config: LogConfig,
    state: LogState | None,
    flushed_segment: int,
    committed: int,
    floor: Floor,
    recent: RecentAppends,
) -> Generator[None, None, Recovered]:
    """Read the log from the recovery point in `state`, or the whole log without a state; yield between chunks.

    flushed_segment: as `state.flushed_segment` returns it.
    committed: everything below this offset was durable and committed in this directory.
    floor: a log that ends below this offset has lost records.

    Raises:
        CorruptStoreError: something durable is missing or damaged.
    """
    path = f"{LOGS}/{folder}"
    remove_leftovers(disk, path)
    bases = _segment_bases(disk, path)
    if state is None:
        if bases and bases[0] > 0 and flushed_segment < 0:  # this log begins above 0, and its facts are missing
            raise CorruptStoreError(f"{segment_path(path, 0, 'log')} is missing, and the log has no checkpoint")
        state = empty_state()
    log = PartitionLog(disk, key, topic, folder, config, state, recent)
    point = state.recovery
    sealed = {one.base_offset: one for one in state.segments if one.base_offset < point.segment}
    segments: list[Segment] = []
    for base_offset in [one for one in bases if one < point.segment]:
        if base_offset in sealed:
            continue
        logger.info("leftover segment removed", file=segment_path(path, base_offset, "log"))
        disk.remove(segment_path(path, base_offset, "log"))
        disk.remove(segment_path(path, base_offset, "index"))
    for base_offset, one in sealed.items():
        if base_offset not in bases:
            raise CorruptStoreError(f"{segment_path(path, base_offset, 'log')} is missing")
        segments.append(known_segment(disk, path, one))
    log.epochs.truncate_to(point.offset)
    bases = [one for one in bases if one >= point.segment]
    tail = _Tail(disk, path, config, point, flushed_segment, floor, log.epochs, segments)
    torn = yield from tail.recover(bases)
    log.recovered(segments, durable_offset=point.offset)
    if committed:
        log.marks.restore_watermark(committed)
    return Recovered(log, torn)


def check_whole(disk: Disk, path: str, state: LogState | None, durable: int | None) -> Generator[None, None, None]:
    """Check that the segments in the folder at `path` are whole and contiguous, and that all those in `state` exist.

    durable: end of the records that were durable when damage was found.  Above this end and the recovery point, the
        first problem is left to recovery, because it may be a torn tail.  None: unknown, so everything must be whole.

    Raises:
        CorruptStoreError: a segment is missing, damaged, or does not follow the one before.
    """
    bases = _segment_bases(disk, path)
    end = OFFSET_MAX if durable is None else max(durable, 0 if state is None else state.recovery.offset)
    for known in () if state is None else state.segments:
        if known.base_offset not in bases and known.base_offset < end:
            raise CorruptStoreError(f"{segment_path(path, known.base_offset, 'log')} is missing")
    epoch, offset = 0, bases[0] if bases and state is not None else 0
    for base_offset in bases:
        file = disk.open(segment_path(path, base_offset, "log"))
        walked = yield from walk_file(file, 0, base_offset, epoch)
        problem = walked.problem if base_offset == offset else f"does not continue at offset {offset}"
        if problem is not None and (walked.end_offset if base_offset == offset else offset) >= end:
            file.close()
            return
        if problem is not None:
            raise CorruptStoreError(f"{file.path} at position {walked.end}, offset {walked.end_offset}: {problem}")
        epoch, offset = walked.epoch, walked.end_offset
        file.close()


class _Tail(NamedTuple):
    """The part of a log from the recovery point on.

    floor: a log that ends below this offset has lost records.
    epochs, segments: the contents of the log so far; `recover` adds to them.
    """

    disk: Disk
    path: str
    config: LogConfig
    point: RecoveryPoint
    flushed_segment: int
    floor: Floor
    epochs: EpochCache
    segments: list[Segment]

    def recover(self, bases: list[int]) -> Generator[None, None, TornTail | None]:
        """Recover the segments with these base offsets and add them to `segments`; return the torn tail, if any.

        Files without useful data are deleted only at the end.  So a damaged log keeps all its files, which are useful
        if an operator restores a missing one.
        """
        point = self.point
        if point.position > 0 and (not bases or bases[0] != point.segment):
            raise CorruptStoreError(f"{segment_path(self.path, point.segment, 'log')} is missing")
        files = [self.disk.open(segment_path(self.path, base_offset, "log")) for base_offset in bases]
        useless: list[DiskFile] = []
        torn = None
        for number, (base_offset, file) in enumerate(zip(bases, files, strict=True)):
            is_first = base_offset == point.segment and point.position > 0
            if not is_first and file.size == 0:
                useless.append(file)
                continue
            if not is_first and (torn := self._gap_before(base_offset, file)) is not None:
                useless += files[number:]
                break
            later = files[number + 1 :]
            flushed = [
                one for one, base in zip(later, bases[number + 1 :], strict=True) if base <= self.flushed_segment
            ]
            is_useful, torn = yield from self._recover_segment(base_offset, file, flushed, is_first=is_first)
            if not is_useful:
                useless.append(file)
            if torn is not None:
                useless += later
                break
        if self.epochs.end_offset < self.floor.offset:
            missing = segment_path(self.path, self.epochs.end_offset, "log")
            raise CorruptStoreError(
                f"{missing} is missing, although all records below offset {self.floor.offset} were {self.floor.proof}"
            )
        for file in reversed(useless):  # a power failure may interrupt this, and must leave no gap
            _discard(self.disk, file)
        return torn

    def _gap_before(self, base_offset: int, file: DiskFile) -> TornTail | None:
        """Return the torn tail that begins with this segment, if it does not follow the log so far.

        If a segment was never flushed, all or part of the segments before it may never have become durable.
        """
        epochs = self.epochs
        if base_offset == epochs.end_offset:
            return None
        if base_offset <= self.flushed_segment or epochs.end_offset < self.floor.offset:
            raise CorruptStoreError(f"{file.path} does not continue at offset {epochs.end_offset}")
        return TornTail(file.path, 0, file.size, epochs.end_offset, f"follows a gap at {epochs.end_offset}")

    def _recover_segment(
        self, base_offset: int, file: DiskFile, flushed: list[DiskFile], *, is_first: bool
    ) -> Generator[None, None, tuple[bool, TornTail | None]]:
        """Recover the next segment; return whether it holds useful data, and its torn tail, if any.

        flushed: the files of later segments that are known to have been flushed.
        is_first: the segment holds the recovery point.
        """
        epochs, point = self.epochs, self.point
        start = Start(
            position=point.position if is_first else 0,
            offset=epochs.end_offset,
            epoch=epochs.latest,
            index_interval=self.config.index_interval,
            floor=self.floor,
            unsynced=self.flushed_segment < 0,
        )
        segment = Segment(
            self.disk,
            self.path,
            base_offset,
            end_offset=start.offset,
            size=start.position,
            newest_timestamp=point.newest_timestamp if is_first else -1,
        )
        if is_first and file.size == start.position:  # an idle log: nothing to read
            file.close()
            self.segments.append(segment)
            return True, None
        index = _load_index(self.disk, segment, start.position)
        recovered = yield from recover_segment(segment, file, index, start, flushed)
        segment.discard_stale_index()  # a power failure may have undone an earlier deletion, but not later appends
        if start.position - index.last_position() > INDEX_GAP_MAX:
            self.disk.remove(segment.index_path)
            segment.forget_index()
        for epoch, first_offset in recovered.epochs:
            epochs.assign(epoch, first_offset)
        epochs.end_offset = segment.end_offset
        if segment.size:
            self.segments.append(segment)
        return bool(segment.size), recovered.torn


def _discard(disk: Disk, file: DiskFile) -> None:
    """Delete a segment file without useful data."""
    logger.info("segment file without useful data removed", file=file.path)
    disk.remove(file.path)
    disk.remove(file.path.removesuffix("log") + "index")


def _load_index(disk: Disk, segment: Segment, position: int) -> SegmentIndex:
    """Return the index of the part of the segment below `position`, from the index file."""
    data = b""
    if position and disk.exists(segment.index_path):
        file = disk.open(segment.index_path)
        data = file.pread(0, file.size)
        file.close()
    index = SegmentIndex.load(segment.base_offset, data, position)
    if not position:
        index.persisted = -1
    return index


def _segment_bases(disk: Disk, path: str) -> list[int]:
    stems = (name.removesuffix(".log") for name in disk.list(path) if name.endswith(".log"))
    return sorted(int(stem) for stem in stems if stem.isdigit())
