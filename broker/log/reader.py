"""Reads of a log by offset, and look-ups of offsets by time."""

from __future__ import annotations

from broker.log.cleaning.records import filler, is_filler
from broker.log.marks import LogMarks
from broker.log.recent import RecentAppends
from broker.log.segments import LogSegments
from broker.log.timestamps import find_newest, find_timestamp
from broker.log.types import TimestampOffset
from quorumlog.wire.record_batch import parse_header


class LogReader:
    """Reads one log.  Every method may raise CorruptStoreError or DiskError."""

    def __init__(self, folder: str, marks: LogMarks, segments: LogSegments, recent: RecentAppends) -> None:
        self._folder = folder
        self._marks = marks
        self._segments = segments
        self._recent = recent

    def read(self, offset: int, max_bytes: int, up_to_offset: int) -> bytes | memoryview:
        """Return whole batches of one segment, beginning with the batch that holds `offset`.

        No batch ends above `up_to_offset`.  The batches have at most `max_bytes`, unless the first one is larger.  The
        caller has checked that `offset` is in the log, or in the batch with the log start.  An empty batch that
        compaction has left is shortened to begin at `offset`, because the log of a follower may end there.
        """
        marks, segments = self._marks, self._segments.all
        end_offset = marks.epochs.end_offset
        first = segments[0].base_offset if segments else marks.start_offset
        assert first <= offset <= end_offset, f"{self._folder}: {offset} is outside"
        up_to_offset = min(up_to_offset, end_offset)
        if offset >= up_to_offset:
            return b""
        segment = self._segments.at(offset)
        start = segment.position_of(offset)
        limit = segment.position_of(up_to_offset)  # start of the first batch that must not be returned
        if limit - start > max_bytes:
            first_end = start + segment.header_at(start).size
            limit = min(limit, segment.boundary_before(start + max_bytes, first_end))
        if limit == start:
            return b""
        if (kept := self._recent.find(segment, start, limit)) is not None:
            return kept  # a leader's own append, so no filler
        return _trimmed(segment.read(start, limit, marks.epochs.epoch_of), offset)

    def size_from(self, offset: int) -> int:
        """Return the size in bytes of the batches from the one that holds `offset` on."""
        if offset >= self._marks.end_offset:
            return 0
        segments = self._segments.all
        if not segments or offset < segments[0].base_offset:
            return self._segments.size
        index = self._segments.index_at(offset)
        first = segments[index]
        return first.size - first.position_of(offset) + sum(segment.size for segment in segments[index + 1 :])

    def size_between(self, offset: int, up_to_offset: int) -> int:
        """Return the size in bytes of the batches that an unbounded `read` would return for this range."""
        return 0 if offset >= up_to_offset else self.size_from(offset) - self.size_from(up_to_offset)

    async def offset_for_timestamp(self, timestamp_ms: int, up_to_offset: int) -> TimestampOffset | None:
        """Return the first record below `up_to_offset` with a timestamp of at least `timestamp_ms`."""
        marks = self._marks
        return await find_timestamp(
            self._segments, timestamp_ms, marks.start_offset, up_to_offset, marks.epochs.epoch_of
        )

    async def max_timestamp_offset(self, up_to_offset: int) -> TimestampOffset | None:
        """Return the record below `up_to_offset` with the newest timestamp; the first one if there are several."""
        marks = self._marks
        return await find_newest(self._segments, marks.start_offset, up_to_offset, marks.epochs.epoch_of)


def _trimmed(data: bytes, offset: int) -> bytes:
    """Return `data` without the part of a filler that is below `offset`."""
    header = parse_header(data)
    if header.base_offset >= offset or not is_filler(header):
        return data
    return filler(offset, header.end_offset, header.leader_epoch) + data[header.size :]
