"""Builds a `PartitionLog` from the files and facts of its directory."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import NamedTuple

from broker.core.epochs import EpochCache
from broker.log.index import SegmentIndex
from broker.log.partition_log import LOGS, PartitionLog
from broker.log.recovery import Start, TornTail, recover_segment, walk_file
from broker.log.segment import Segment, segment_path
from broker.log.state import LogState, empty_state
from broker.log.types import LogConfig, LogKey
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import Disk, DiskFile

INDEX_GAP_MAX = 1 << 20  # before the recovery point; with a larger gap, the whole index is rebuilt

logger = logging.getLogger(__name__)


class Recovered(NamedTuple):
    log: PartitionLog
    torn: TornTail | None


def recover_log(
    disk: Disk, key: LogKey, topic: str, folder: str, config: LogConfig, state: LogState | None, committed: int = 0
) -> Generator[None, None, Recovered]:
    """Read the log from the recovery point in `state`, or all of it without a state; yields between chunks.

    committed: everything below this offset was durable here; a log that ends before it has lost records.

    Raises:
        CorruptStoreError: something durable is missing or damaged.
    """
    path = f"{LOGS}/{folder}"
    bases = _segment_bases(disk, path)
    if state is None:
        state = empty_state(bases[0] if bases else 0)
    log = PartitionLog(disk, key, topic, folder, config, state)
    point = state.recovery
    sealed = {one.base_offset: one for one in state.segments if one.base_offset < point.segment}
    segments = []
    for base_offset in [one for one in bases if one < point.segment]:
        if base_offset in sealed:
            continue
        logger.info("leftover segment removed file=%s", segment_path(path, base_offset, "log"))
        disk.remove(segment_path(path, base_offset, "log"))
        disk.remove(segment_path(path, base_offset, "index"))
    for base_offset, one in sealed.items():
        if base_offset not in bases:
            raise CorruptStoreError(f"{segment_path(path, base_offset, 'log')} is missing")
        segments.append(
            Segment(
                disk,
                path,
                base_offset,
                end_offset=one.end_offset,
                size=one.size,
                newest_timestamp=one.newest_timestamp,
            )
        )
    log.epochs.truncate_to(point.offset)
    bases = [one for one in bases if one >= point.segment]
    torn = yield from _recover_tail(disk, path, log.epochs, state, segments, bases, config, committed)
    if log.end_offset < committed:
        missing = segment_path(path, log.end_offset, "log")
        raise CorruptStoreError(f"{missing} is missing: all below offset {committed} was durable and committed")
    log.recovered(segments, flushed_offset=point.offset)
    if committed:
        log.restore_watermark(committed)
    return Recovered(log, torn)


def check_whole(disk: Disk, path: str, state: LogState | None) -> Generator[None, None, None]:
    """Check every segment in the folder at `path`: all that `state` names exist, are whole, and follow each other.

    Raises:
        CorruptStoreError: a segment is missing, damaged, or does not follow the one before.
    """
    bases = _segment_bases(disk, path)
    for known in () if state is None else state.segments:
        if known.base_offset not in bases:
            raise CorruptStoreError(f"{segment_path(path, known.base_offset, 'log')} is missing")
    epoch, offset = 0, bases[0] if bases else 0
    for base_offset in bases:
        file = disk.open(segment_path(path, base_offset, "log"))
        walked = yield from walk_file(file, 0, base_offset, epoch)
        problem = walked.problem if base_offset == offset else f"does not go on at offset {offset}"
        if problem is not None:
            raise CorruptStoreError(f"{file.path} at position {walked.end}, offset {walked.end_offset}: {problem}")
        epoch, offset = walked.batches[-1][1].leader_epoch if walked.batches else epoch, walked.end_offset
        file.close()


def _recover_tail(
    disk: Disk,
    path: str,
    epochs: EpochCache,
    state: LogState,
    segments: list[Segment],
    bases: list[int],
    config: LogConfig,
    committed: int,
) -> Generator[None, None, TornTail | None]:
    """Recover the segments from the recovery point on and add them to `segments`; return the torn tail, if any."""
    point = state.recovery
    if point.position > 0 and (not bases or bases[0] != point.segment):
        raise CorruptStoreError(f"{segment_path(path, point.segment, 'log')} is missing")
    files = [disk.open(segment_path(path, base_offset, "log")) for base_offset in bases]
    for number, (base_offset, file) in enumerate(zip(bases, files, strict=True)):
        is_first = base_offset == point.segment and point.position > 0
        if not is_first and file.size == 0:
            _discard(disk, file)
            continue
        if not is_first and base_offset != epochs.end_offset:
            # With write.caching, the end of the previous segment or a whole segment may never have been synced.  A gap
            # below `committed` is damage, and deletes nothing: the missing file may be put back.
            if config.write_caching and epochs.end_offset >= committed:
                for later in files[number:]:
                    _discard(disk, later)
                return TornTail(file.path, 0, file.size, epochs.end_offset, f"follows a gap at {epochs.end_offset}")
            raise CorruptStoreError(f"{file.path} does not go on at offset {epochs.end_offset}")
        start = Start(
            position=point.position if is_first else 0,
            offset=epochs.end_offset,
            epoch=epochs.latest,
            index_interval=config.index_interval,
            committed=committed,
            unsynced=config.write_caching,
        )
        segment = Segment(
            disk,
            path,
            base_offset,
            end_offset=start.offset,
            size=start.position,
            newest_timestamp=point.newest_timestamp if is_first else -1,
        )
        if is_first and file.size == start.position:  # an idle log: nothing to read
            file.close()
            segments.append(segment)
            continue
        index = _load_index(disk, segment, start.position)
        recovered = yield from recover_segment(segment, file, index, start, files[number + 1 :])
        if start.position - index.last_position() > INDEX_GAP_MAX:
            disk.remove(segment.index_path)
            segment.forget_index()
        for epoch, first_offset in recovered.epochs:
            epochs.assign(epoch, first_offset)
        epochs.end_offset = segment.end_offset
        if segment.size:
            segments.append(segment)
        else:
            _discard(disk, file)
        if recovered.torn is not None:
            for later in files[number + 1 :]:
                _discard(disk, later)
            return recovered.torn
    return None


def _discard(disk: Disk, file: DiskFile) -> None:
    """Delete a segment file without useful data."""
    logger.info("segment without use removed file=%s", file.path)
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
