"""Checks a replacement before it is swapped in, and finishes a swap that a crash interrupted.

A swap has these steps; a crash between any two of them loses nothing:

1. The worker writes `<base>.cleaned`.  A start deletes this file.
2. The broker checks it, makes it durable, renames it to `<base>.swap` and makes the new name durable.  A start deletes
   this file, because the facts do not name it.
3. The log's state among the facts names the new segment, with `swapping`.  From here on, the swap is decided: a start
   renames `<base>.swap` to `<base>.log` if it still exists, deletes the other segments of the range, and does step 5.
4. The broker renames and deletes the same files, and makes the names durable.
5. The log's state is written without `swapping`.

So a replacement that the facts name always exists, under its final name or as `.swap`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import NamedTuple

from broker.core.epochs import EpochCache
from broker.log.index import SegmentIndex
from broker.log.recovery import walk_file
from broker.log.segment import Segment, segment_path
from broker.log.state import LogState
from broker.log.types import LOGS
from quorumlog.runtime.disk import Disk
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.record_batch import BatchHeader

logger = get_logger("log")


class BadReplacementError(Exception):
    """A replacement does not have the offsets, epochs or producers of the segments that it would replace."""


class CheckedReplacement(NamedTuple):
    """A replacement as a segment under its final name.  markers: the offsets of the control batches in it."""

    segment: Segment
    markers: frozenset[int]


def swap_path(folder: str, base_offset: int) -> str:
    """Return the path of a replacement that was checked."""
    return segment_path(folder, base_offset, "swap")


def checked_replacement(
    disk: Disk,
    folder: str,
    path: str,
    base_offset: int,
    end_offset: int,
    epochs: EpochCache,
    producers: Mapping[int, tuple[int, int, int, int]],
    last_markers: Mapping[int, int],
    index_interval: int,
) -> Generator[None, None, CheckedReplacement]:
    """Read the whole replacement at `path`; return it as a segment, with its index.

    producers: by base offset, the batches of producers that must survive: id, epoch, first and last sequence.
    last_markers: by offset, the producer id of each marker that must survive.

    Raises:
        BadReplacementError: the replacement must not be used.
    """
    file = disk.open(path)
    segment = Segment(disk, folder, base_offset, end_offset=base_offset, size=0, newest_timestamp=-1)
    index = SegmentIndex(base_offset)
    missing = dict(producers)
    missing_markers = dict(last_markers)
    markers = set()

    def visit(position: int, header: BatchHeader) -> None:
        for offset in (header.base_offset, header.last_offset):
            if (wanted := epochs.epoch_of(offset)) not in (-1, header.leader_epoch):
                epoch = header.leader_epoch
                raise BadReplacementError(f"{path}: offset {offset} has epoch {epoch} instead of {wanted}")
        expected = missing.pop(header.base_offset, None)
        found = (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence)
        if expected is not None and found != expected:
            raise BadReplacementError(f"{path}: offset {header.base_offset} has producer {found} instead of {expected}")
        if header.is_control:
            markers.add(header.base_offset)
            producer_id = missing_markers.pop(header.base_offset, header.producer_id)
            if header.producer_id != producer_id:
                found_marker = f"a marker of producer {header.producer_id} instead of {producer_id}"
                raise BadReplacementError(f"{path}: offset {header.base_offset} has {found_marker}")
        segment.note(position, header, index, index_interval)

    try:
        walked = yield from walk_file(file, 0, base_offset, 0, visit)
        if walked.problem is not None:
            raise BadReplacementError(f"{path} at position {walked.end}, offset {walked.end_offset}: {walked.problem}")
        if walked.end_offset != end_offset:
            raise BadReplacementError(f"{path} ends at offset {walked.end_offset} instead of {end_offset}")
        if missing:
            raise BadReplacementError(f"{path} lacks the last batch of a producer at offset {min(missing)}")
        if missing_markers:
            raise BadReplacementError(f"{path} lacks the last marker of a producer at offset {min(missing_markers)}")
    except BaseException:
        file.close()
        raise
    segment.adopt(file, index)
    segment.trust_from(0)
    return CheckedReplacement(segment, frozenset(markers))


def finish_swaps(disk: Disk, folder: str, state: LogState) -> None:
    """Finish the swaps that `state` names; the caller makes the folder durable.  folder: only its name."""
    path = f"{LOGS}/{folder}"
    ends = {one.base_offset: one.end_offset for one in state.segments}
    for base_offset in state.swapping:
        swap_files(disk, path, base_offset, ends[base_offset])
        logger.info("swap of a compacted segment finished", file=segment_path(path, base_offset, "log"))


def swap_files(disk: Disk, path: str, base_offset: int, end_offset: int) -> None:
    """Give a replacement its final name; delete the other segments from `base_offset` to `end_offset`.  Idempotent."""
    disk.remove(segment_path(path, base_offset, "index"))
    if disk.exists(swap := swap_path(path, base_offset)):
        disk.rename(swap, segment_path(path, base_offset, "log"))
    for name in disk.list(path):
        stem, _, kind = name.partition(".")
        if kind in ("log", "index") and stem.isdigit() and base_offset < int(stem) < end_offset:
            disk.remove(f"{path}/{name}")


def remove_leftovers(disk: Disk, path: str, kinds: tuple[str, ...] = (".cleaned", ".swap")) -> None:
    """Delete replacements that no state names.  Call `finish_swaps` first."""
    for name in disk.list(path):
        if name.endswith(kinds):
            logger.info("leftover replacement removed", file=f"{path}/{name}")
            disk.remove(f"{path}/{name}")
