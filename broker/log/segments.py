"""The segments of a log: the sealed ones, which never grow, and the active one, which is the last.

Only `LogSegments` adds, truncates, replaces and removes segments.  During an await, compaction may replace sealed
segments by one segment with their range of offsets, and segments below the start of the log may be deleted.  So a
caller looks a segment up again after an await, or checks that the log still has the same object.

A query that reads a segment may raise CorruptStoreError or DiskError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.log.durability import Durability
from broker.log.recent import RecentAppends
from broker.log.segment import Segment
from broker.log.state import SegmentState
from quorumlog.runtime.disk import Disk


def known_segment(disk: Disk, folder: str, state: SegmentState) -> Segment:
    """Return a segment whose state is in the facts; its files are opened later."""
    return Segment(
        disk,
        folder,
        state.base_offset,
        end_offset=state.end_offset,
        size=state.size,
        newest_timestamp=state.newest_timestamp,
    )


class LogSegments:
    """The segments of one log, in order."""

    def __init__(
        self, disk: Disk, folder: str, segments: list[Segment], durability: Durability, recent: RecentAppends
    ) -> None:
        """segments: the list to own; `durability` reads it."""
        self._disk = disk
        self._folder = folder
        self._segments = segments
        self._durability = durability
        self._recent = recent

    def __bool__(self) -> bool:
        return bool(self._segments)

    @property
    def all(self) -> Sequence[Segment]:
        return self._segments

    @property
    def sealed(self) -> Sequence[Segment]:
        return self._segments[:-1]

    @property
    def active(self) -> Segment | None:
        return self._segments[-1] if self._segments else None

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    # -- queries

    def index_at(self, offset: int) -> int:
        """Return the position in `all` of the segment that holds `offset`."""
        segments = self._segments
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle].end_offset > offset:
                high = middle
            else:
                low = middle + 1
        assert low < len(segments), f"{offset} is in no segment"
        return low

    def at(self, offset: int) -> Segment:
        """Return the segment that holds `offset`."""
        return self._segments[self.index_at(offset)]

    def batch_start(self, offset: int) -> int:
        """Return the base offset of the batch that holds `offset`."""
        segment = self.at(offset)
        return segment.header_at(segment.position_of(offset)).base_offset

    # -- changes

    def add(self, base_offset: int, now_ms: int) -> Segment:
        """Create a segment, which becomes the active one; create the folder before the first."""
        if not self._durability.has_folder:
            self._disk.make_dir(self._folder)
            self._durability.folder_created()
        segment = Segment.create(self._disk, self._folder, base_offset)
        segment.first_append_ms = now_ms
        self._segments.append(segment)
        self._durability.folder_changed()
        return segment

    def persist_index(self, segment: Segment) -> None:
        """Bring the index file of `segment` up to date."""
        if (file := segment.persist_index()) is not None:
            self._durability.add_last(file)

    def truncate_to(self, offset: int) -> int:
        """Truncate the segments before the batch that holds `offset`; return the new end of the log."""
        segments = self._segments
        while segments and segments[-1].base_offset >= offset:
            self._remove(segments.pop())
        if not segments or segments[-1].end_offset <= offset:
            return offset
        last = segments[-1]
        position = last.position_of(offset)
        end_offset = last.header_at(position).base_offset
        if position == 0:
            self._remove(segments.pop())
        else:
            self._recent.forget(last, position)
            last.truncate(position, end_offset)
            self._durability.add(last.file)
        return end_offset

    def remove_below(self, offset: int) -> bool:
        """Delete the segments that end at or below `offset`; return whether there were any."""
        before = len(self._segments)
        while self._segments and self._segments[0].end_offset <= offset:
            self._remove(self._segments.pop(0))
        return len(self._segments) < before

    def replace(self, replaced: Sequence[Segment], segment: Segment) -> None:
        """Put `segment` in the place of frozen segments with the same offsets.  The caller has changed the files."""
        at = self._segments.index(replaced[0])
        assert self._segments[at : at + len(replaced)] == list(replaced), f"{segment.path}: segments have changed"
        assert all(one.is_frozen for one in replaced), f"{segment.path} would replace a segment that may grow"
        assert replaced[-1].end_offset == segment.end_offset, f"{segment.path} ends at {segment.end_offset}"
        self._segments[at : at + len(replaced)] = [segment]
        for one in replaced:
            self._recent.forget(one)

    def remove_all(self) -> None:
        while self._segments:
            self._remove(self._segments.pop())

    def adopt(self, segments: Iterable[Segment]) -> None:
        """Use the segments that recovery found instead of the segments of the last checkpoint."""
        self._segments[:] = segments

    def _remove(self, segment: Segment) -> None:
        self._recent.forget(segment)
        self._durability.remove(segment.path, segment.index_path)
        segment.remove()

    def move_to(self, disk: Disk) -> None:
        """Use the copies of all files on another disk, under the same paths."""
        self._disk = disk
        for segment in self._segments:
            segment.move_to(disk)

    def close(self) -> None:
        """Close the files; nothing is flushed."""
        for segment in self._segments:
            self._recent.forget(segment)
            segment.close()
