"""Producer state on disk: snapshots beside the segments; the batch headers after a snapshot give the rest.

`<offset>.producers` is the state after all batches below `offset`.  A damaged snapshot loses nothing: an older snapshot
and more headers, or all headers, give the same state.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence

from crc32c import crc32c

from broker.core.producer_state import CorruptSnapshotError, ProducerState
from broker.log.segment import Segment, segment_path
from quorumlog.runtime.disk import Disk, DiskFile

KEPT = 3
_CRC = struct.Struct(">I")

log = logging.getLogger(__name__)


def snapshot_offsets(disk: Disk, folder: str) -> list[int]:
    """Return the offsets of the snapshots in `folder`, ascending."""
    names = (name.partition(".") for name in disk.list(folder))
    return sorted(int(stem) for stem, _, kind in names if kind == "producers" and stem.isdigit())


def write_snapshot(disk: Disk, folder: str, offset: int, producers: ProducerState) -> DiskFile:
    """Write `producers` as the state at `offset`; return the file, to be flushed and closed."""
    data = producers.snapshot()
    path = segment_path(folder, offset, "producers")
    disk.remove(path)
    file = disk.open(path, create=True)
    file.append(_CRC.pack(crc32c(data)) + data)
    return file


def remove_snapshots(disk: Disk, folder: str, above: int) -> None:
    """Delete the snapshots of offsets above `above`, which the log no longer reaches."""
    for offset in snapshot_offsets(disk, folder):
        if offset > above:
            disk.remove(segment_path(folder, offset, "producers"))


def remove_old_snapshots(disk: Disk, folder: str) -> None:
    """Delete all snapshots except the last `KEPT`."""
    for offset in snapshot_offsets(disk, folder)[:-KEPT]:
        disk.remove(segment_path(folder, offset, "producers"))


def load_producers(
    disk: Disk, folder: str, segments: Sequence[Segment], end_offset: int, producerless_offset: int
) -> ProducerState:
    """Return the state at `end_offset`.

    producerless_offset: an offset of the log at which the state was empty; -1 if none is known.
    """
    producers, offset = _newest_snapshot(disk, folder, end_offset, producerless_offset)
    for segment in segments:
        if segment.end_offset <= offset:
            continue
        for _, header in segment.walk(segment.position_of(max(offset, segment.base_offset))):
            producers.apply(header, header.base_offset, header.end_offset)
    return producers


def _newest_snapshot(disk: Disk, folder: str, end_offset: int, producerless_offset: int) -> tuple[ProducerState, int]:
    for offset in reversed(snapshot_offsets(disk, folder)):
        if not producerless_offset < offset <= end_offset:
            continue
        path = segment_path(folder, offset, "producers")
        file = disk.open(path)
        data = file.pread(0, file.size)
        file.close()
        try:
            if len(data) < _CRC.size or crc32c(data[_CRC.size :]) != _CRC.unpack_from(data)[0]:
                raise CorruptSnapshotError("checksum does not match")
            return ProducerState.restore(data[_CRC.size :]), offset
        except CorruptSnapshotError as error:
            log.warning("producer snapshot ignored file=%s reason=%s", path, error)
    return ProducerState(), producerless_offset if producerless_offset <= end_offset else -1
