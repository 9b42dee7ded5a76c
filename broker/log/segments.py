"""Queries over the segments of a log, which are given in order.  They change nothing.

A query that reads a segment may raise CorruptStoreError or DiskError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.log.segment import Segment
from broker.log.state import RecoveryPoint
from broker.log.types import LogConfig


def segment_at(segments: Sequence[Segment], offset: int) -> int:
    """Return the position in `segments` of the one that holds `offset`."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        if segments[middle].end_offset > offset:
            high = middle
        else:
            low = middle + 1
    assert low < len(segments), f"{offset} is in no segment"
    return low


def batch_start(segments: Sequence[Segment], offset: int) -> int:
    """Return the base offset of the batch that holds `offset`."""
    segment = segments[segment_at(segments, offset)]
    return segment.header_at(segment.position_of(offset)).base_offset


def read_batches(
    segments: Sequence[Segment], offset: int, max_bytes: int, up_to_offset: int, epoch_of: Callable[[int], int]
) -> bytes:
    """Return whole batches of one segment, from the one that holds `offset`, none that ends above `up_to_offset`.

    At most `max_bytes`, but at least one batch.
    """
    segment = segments[segment_at(segments, offset)]
    start = segment.position_of(offset)
    limit = segment.position_of(up_to_offset)  # start of the first batch that must not be returned
    if limit - start > max_bytes:
        first_end = start + segment.header_at(start).size
        limit = min(limit, segment.boundary_before(start + max_bytes, first_end))
    return segment.read(start, limit, epoch_of) if limit > start else b""


def size_from(segments: Sequence[Segment], offset: int) -> int:
    """Return the size in bytes of the batches from the one that holds `offset` on."""
    if not segments or offset < segments[0].base_offset:
        return sum(segment.size for segment in segments)
    at = segment_at(segments, offset)
    first = segments[at]
    return first.size - first.position_of(offset) + sum(segment.size for segment in segments[at + 1 :])


def retained_start(
    segments: Sequence[Segment], start_offset: int, deletable_end: int, config: LogConfig, now_ms: int, wall_ms: int
) -> int:
    """Return where the log should start by its retention: at the end of some segment, or at `start_offset`.

    deletable_end: no segment that ends above it is deleted.
    wall_ms: compared with the timestamps of records.
    """
    start = start_offset
    size = sum(segment.size for segment in segments)
    excess = size - config.retention_size if config.retention_size >= 0 else -1
    for segment in segments:
        if segment.end_offset > deletable_end:
            break
        is_active = segment is segments[-1]
        too_much = not is_active and excess >= segment.size
        if not too_much and not _is_too_old(segment, config, now_ms, wall_ms):
            break
        excess -= segment.size
        start = max(start, segment.end_offset)
    return start


def _is_too_old(segment: Segment, config: LogConfig, now_ms: int, wall_ms: int) -> bool:
    if config.retention_ms < 0:
        return False
    if segment.newest_timestamp >= 0:
        return wall_ms - segment.newest_timestamp > config.retention_ms
    if segment.last_append_ms is None:  # no record has a timestamp: the age counts from now
        segment.last_append_ms = now_ms
    return now_ms - segment.last_append_ms > config.retention_ms


def recovery_point(segments: Sequence[Segment], offset: int, start_offset: int, end_offset: int) -> RecoveryPoint:
    """Return the point from which a restart checks the log; everything below it is trusted.

    offset: at least `start_offset`; everything below it is durable and committed.
    """
    if not segments or segments[-1].end_offset <= start_offset:  # the last segment is about to be deleted
        return RecoveryPoint(offset, offset, 0, -1)
    if offset >= end_offset:
        last = segments[-1]
        return RecoveryPoint(end_offset, last.base_offset, last.size, last.newest_timestamp)
    number = segment_at(segments, offset)
    segment = segments[number]
    position = segment.position_of(offset)
    if position == 0 and number > 0 and segments[number - 1].end_offset > start_offset:
        # After a truncation here, the log continues in the previous segment, which is then no longer sealed.
        before = segments[number - 1]
        return RecoveryPoint(before.end_offset, before.base_offset, before.size, before.newest_timestamp)
    newest = segment.newest_before(position) if position else -1
    return RecoveryPoint(segment.header_at(position).base_offset, segment.base_offset, position, newest)
