"""Finds the offset for a time: the segment by its newest timestamp, the batch by index and headers, then the record.

A header may claim a newer timestamp than its records have.  Such a batch is opened and skipped, but only `OPENED_MAX`
batches are opened, because a log may be full of them.  After that, or if a batch cannot be opened, the answer comes
from the header of the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.log.records import MalformedError, RecordPlace, first_at_or_after
from broker.log.segment import Segment
from broker.log.segments import LogSegments
from broker.log.types import TimestampOffset
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.record_batch import BatchHeader

OPENED_MAX = 8

logger = get_logger("log")


async def find_timestamp(
    segments: LogSegments,
    timestamp: int,
    start_offset: int,
    up_to_offset: int,
    epoch_of: Callable[[int], int],
) -> TimestampOffset | None:
    """Return the first record from `start_offset` to `up_to_offset` with at least `timestamp`.

    epoch_of: see `Segment.read`.
    """
    opened = 0
    while (found := _candidate(segments, timestamp, start_offset, up_to_offset)) is not None:
        segment, position, header = found
        place: RecordPlace | None = RecordPlace(header.max_timestamp, max(header.base_offset, start_offset))
        if opened < OPENED_MAX and header.record_count:
            opened += 1
            batch = segment.read(position, position + header.size, epoch_of)
            place = await _open(segment, position, header, batch, timestamp, start_offset)
        if place is not None:
            return TimestampOffset(place.timestamp, place.offset, header.leader_epoch)
        # Search again from here: segments may have been deleted or replaced during the wait.
        start_offset = header.end_offset
    return None


async def find_newest(
    segments: LogSegments, start_offset: int, up_to_offset: int, epoch_of: Callable[[int], int]
) -> TimestampOffset | None:
    """Return the record from `start_offset` to `up_to_offset` with the newest timestamp; the first one of several."""
    newest = _newest(segments, start_offset, up_to_offset)
    found = None if newest < 0 else await find_timestamp(segments, newest, start_offset, up_to_offset, epoch_of)
    if found is not None or newest < 0:
        return found
    # The newest record of the first segment is below the log start, so it was deleted.
    newest = _newest(segments, start_offset, up_to_offset, is_exact=True)
    found = None if newest < 0 else await find_timestamp(segments, newest, start_offset, up_to_offset, epoch_of)
    if found is not None or newest < 0:
        return found
    # The newest record is below the log start, but in the same batch.  Its timestamp is close enough.
    return TimestampOffset(newest, start_offset, epoch_of(start_offset))


def _newest(segments: LogSegments, start_offset: int, up_to_offset: int, *, is_exact: bool = False) -> int:
    """Return the newest timestamp in a range, -1 if there is none.

    is_exact: leave out the batches of the first segment that end at or below the start, by reading their headers.
    """
    newest = -1
    for segment in segments.all:
        if segment.end_offset <= start_offset or segment.base_offset >= up_to_offset:
            continue
        if is_exact and segment.base_offset < start_offset:
            for _, header in segment.walk(segment.position_of(start_offset)):
                if header.end_offset <= up_to_offset:
                    newest = max(newest, header.max_timestamp)
            continue
        if segment.end_offset <= up_to_offset:
            newest = max(newest, segment.newest_timestamp)
        elif position := segment.position_of(up_to_offset):
            newest = max(newest, segment.newest_before(position))
    return newest


def _candidate(
    segments: LogSegments, timestamp: int, start_offset: int, up_to_offset: int
) -> tuple[Segment, int, BatchHeader] | None:
    """Return the first batch whose header claims a timestamp of at least `timestamp`."""
    for segment in segments.all:
        if segment.end_offset <= start_offset or segment.newest_timestamp < timestamp:
            continue
        first = segment.position_by_timestamp(timestamp)
        if start_offset > segment.base_offset:
            first = max(first, segment.position_of(start_offset))
        for position, header in segment.walk(first):
            if header.end_offset > up_to_offset:
                return None
            if header.end_offset > start_offset and header.max_timestamp >= timestamp:
                return segment, position, header
    return None


async def _open(
    segment: Segment, position: int, header: BatchHeader, batch: bytes, timestamp: int, start_offset: int
) -> RecordPlace | None:
    loop = asyncio.get_running_loop()
    try:
        return await loop.run_in_executor(None, first_at_or_after, batch, header, timestamp, start_offset)
    except MalformedError as error:
        logger.debug("batch not opened", file=segment.path, position=position, reason=str(error))
        return RecordPlace(header.max_timestamp, max(header.base_offset, start_offset))
