"""Finds the offset for a time: the segment by its newest timestamp, the batch by index and headers, then the record.

A header may claim a newer timestamp than its records have.  Such a batch is opened and skipped, but only `OPENED_MAX`
batches are opened, because a log may be full of them.  After that, or if a batch cannot be opened, the answer comes
from its header.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from broker.log.records import MalformedError, RecordPlace, first_at_or_after
from broker.log.segment import Segment
from broker.log.types import TimestampOffset
from quorumlog.wire.record_batch import BatchHeader

OPENED_MAX = 8

log = logging.getLogger(__name__)


async def find_timestamp(
    segments: Sequence[Segment],
    timestamp: int,
    start_offset: int,
    up_to_offset: int,
    epoch_of: Callable[[int], int],
) -> TimestampOffset | None:
    """Return the first record from `start_offset` to `up_to_offset` with at least `timestamp`.

    segments: the log's own list, which may change during a wait.  epoch_of: see `Segment.read`.
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
        start_offset = header.end_offset  # search again from here: segments may have been deleted during the wait
    return None


async def find_newest(
    segments: Sequence[Segment], start_offset: int, up_to_offset: int, epoch_of: Callable[[int], int]
) -> TimestampOffset | None:
    """Return the first of the newest records from `start_offset` to `up_to_offset`."""
    newest = -1
    for segment in segments:
        if segment.end_offset <= start_offset or segment.base_offset >= up_to_offset:
            continue
        if segment.end_offset <= up_to_offset:
            newest = max(newest, segment.newest_timestamp)
        elif position := segment.position_of(up_to_offset):
            newest = max(newest, segment.newest_before(position))
    return None if newest < 0 else await find_timestamp(segments, newest, start_offset, up_to_offset, epoch_of)


def _candidate(
    segments: Sequence[Segment], timestamp: int, start_offset: int, up_to_offset: int
) -> tuple[Segment, int, BatchHeader] | None:
    """Return the first batch whose header claims a timestamp of at least `timestamp`."""
    for segment in segments:
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
        log.debug("batch not opened file=%s position=%d reason=%s", segment.path, position, error)
        return RecordPlace(header.max_timestamp, max(header.base_offset, start_offset))
