"""The log's side of compaction: finds the dirty part, plans the job, and puts the new segment into the list."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import msgspec

from broker.core.cleaning import DirtyRange, SegmentSpan, dirty_range, is_due
from broker.log.cleaning.job import CleanJob, Replacement
from broker.log.cleaning.swap import CheckedReplacement, checked_replacement, swap_files
from broker.log.durability import Durability
from broker.log.marks import LogMarks
from broker.log.produced import INFLATED_FLOOR
from broker.log.producers import LogProducers
from broker.log.records import INFLATED_MAX
from broker.log.segment import Segment
from broker.log.segments import LogSegments
from broker.log.state import LogState, SegmentState
from broker.log.types import LogConfig
from quorumlog.runtime.disk import Disk


class PlannedJob(NamedTuple):
    """A job, and the conditions that must still hold when its replacements are swapped in.

    generation: the log still has this generation, so it was not truncated.
    producers: the last batches of producers, by base offset: producer id, epoch, first and last sequence.
    markers: the last markers of producers, by offset: producer id.  A marker may have an older epoch than its producer,
        because a producer begins an epoch with a batch.
    """

    job: CleanJob
    generation: int
    segments: tuple[Segment, ...]
    producers: dict[int, tuple[int, int, int, int]]
    markers: dict[int, int]


class LogCompaction:
    """The compaction of one log.  Methods that read segments may raise CorruptStoreError or DiskError."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        marks: LogMarks,
        segments: LogSegments,
        producers: LogProducers,
        durability: Durability,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._marks = marks
        self._segments = segments
        self._producers = producers
        self._durability = durability

    def move_to(self, disk: Disk) -> None:
        """Clean the log on another disk from now on; jobs that were planned before have no effect."""
        self._disk = disk

    def dirty(self, config: LogConfig, wall_ms: int) -> DirtyRange:
        """Return the part that may be cleaned now."""
        sealed = [_span(segment) for segment in self._segments.sealed]
        cleaned_offset, end = self._marks.cleaned_offset, self._marks.recovery_offset()
        dirty = dirty_range(sealed, cleaned_offset, end, config.compaction, wall_ms)
        if not dirty.dirty_size or (stable := self._producers.stable_offset) >= end:
            return dirty  # the producers of a log without a dirty part need not be loaded
        return dirty_range(sealed, cleaned_offset, stable, config.compaction, wall_ms)

    def is_due(self, config: LogConfig, dirty: DirtyRange, wall_ms: int) -> bool:
        """Return whether the log should be cleaned now."""
        oldest_ms = -1
        if dirty.start < dirty.limit and config.compaction.max_lag_ms < wall_ms:
            segment = self._segments.at(dirty.start)
            oldest_ms = segment.header_at(segment.position_of(dirty.start)).max_timestamp
            if oldest_ms < 0:  # an earlier cleaning has left an empty batch
                oldest_ms = segment.newest_timestamp
        return is_due(dirty, config.compaction, oldest_ms, wall_ms)

    def plan(self, config: LogConfig, dirty: DirtyRange, wall_ms: int, map_memory: int) -> PlannedJob:
        """Return the job that cleans the part `dirty`."""
        segments = tuple(one for one in self._segments.sealed if one.end_offset <= dirty.limit)
        producers = {
            recent.first_offset: (producer_id, producer.epoch, recent.base_sequence, recent.last_sequence)
            for producer_id, producer in self._producers.state
            for recent in producer.recent
            if recent.first_offset < dirty.limit
        }
        markers = {
            producer.last_marker: producer_id
            for producer_id, producer in self._producers.state
            if 0 <= producer.last_marker < dirty.limit
        }
        open_producers = [
            producer_id for producer_id, producer in self._producers.state if producer.end_offset > dirty.limit
        ]
        first = segments[0].base_offset
        aborted = self._producers.state.transactions.aborted_between(first, dirty.limit)
        job = CleanJob(
            folder=self._folder,
            segments=[(one.base_offset, one.end_offset, one.size) for one in segments],
            dirty_start=dirty.start,
            limit=dirty.limit,
            protected=sorted(offset for offset in (*producers, *markers) if offset >= first),
            open_producers=open_producers,
            aborted=[(one.producer_id, one.first_offset, one.last_offset) for one in aborted],
            wall_ms=wall_ms,
            delete_retention_ms=config.delete_retention_ms,
            segment_size_max=config.segment_size_max,
            batch_size_max=max(INFLATED_MAX, config.message_size_max),
            inflated_max=max(INFLATED_MAX, INFLATED_FLOOR, config.message_size_max),
            map_memory=map_memory,
        )
        return PlannedJob(job, self._durability.generation, segments, producers, markers)

    def replaced(self, planned: PlannedJob, replacement: Replacement) -> tuple[Segment, ...] | None:
        """Return the segments that the replacement would replace; None if the log has changed."""
        wanted = set(replacement.base_offsets)
        segments = tuple(one for one in planned.segments if one.base_offset in wanted)
        present = set(map(id, self._segments.sealed))
        is_current = (
            planned.generation == self._durability.generation
            and not self._durability.is_closed
            and len(segments) == len(wanted)
            and segments[-1].end_offset == replacement.end_offset <= self._marks.recovery_offset()
            and segments[-1].end_offset > self._marks.start_offset  # otherwise they are about to be deleted
            and all(id(one) in present for one in segments)
        )
        return segments if is_current else None

    def check(
        self, planned: PlannedJob, replacement: Replacement, replaced: Sequence[Segment], index_interval: int
    ) -> Generator[None, None, CheckedReplacement]:
        """Read the whole replacement and return it as a segment, with the markers in it.

        Raises:
            BadReplacementError: the replacement must not be used.
        """
        first, end = replaced[0].base_offset, replacement.end_offset
        producers = {offset: one for offset, one in planned.producers.items() if first <= offset < end}
        markers = {offset: one for offset, one in planned.markers.items() if first <= offset < end}
        return checked_replacement(
            self._disk,
            self._folder,
            replacement.path,
            first,
            end,
            self._marks.epochs,
            producers,
            markers,
            index_interval,
        )

    def state_with(self, state: LogState, replaced: Sequence[Segment], segment: Segment) -> LogState:
        """Return `state` with the replacement instead of the segments that it replaces."""
        gone = {one.base_offset for one in replaced}
        kept = [one for one in state.segments if one.base_offset not in gone]
        new = SegmentState(segment.base_offset, segment.end_offset, segment.size, segment.newest_timestamp)
        recovery = state.recovery
        if recovery.segment in gone:  # the recovery point is the end of the last replaced segment
            assert recovery.offset == segment.end_offset, f"{segment.path} ends after the recovery point {recovery}"
            recovery = msgspec.structs.replace(
                recovery,
                segment=segment.base_offset,
                position=segment.size,
                newest_timestamp=segment.newest_timestamp,
            )
        segments = sorted([*kept, new], key=lambda one: one.base_offset)
        self._marks.compacted_end = max(self._marks.compacted_end, segment.end_offset)
        return msgspec.structs.replace(
            state,
            segments=segments,
            recovery=recovery,
            swapping=[segment.base_offset],
            compacted_end=self._marks.compacted_end,
        )

    def freeze(self, replaced: Sequence[Segment]) -> None:
        """Allow no more appends to these segments, even if a truncation removes all segments after them."""
        for one in replaced:
            one.is_frozen = True

    def swap(self, replaced: Sequence[Segment], checked: CheckedReplacement) -> None:
        """Swap the files, and the segments in the list.  The facts name the new segment already."""
        segment = checked.segment
        for one in replaced:
            self._durability.remove(one.path, one.index_path)
            one.close()
        segment.close()
        swap_files(self._disk, self._folder, segment.base_offset, segment.end_offset)
        self._segments.replace(replaced, segment)
        self._producers.compacted(segment.base_offset, segment.end_offset, checked.markers)
        self._durability.folder_changed()
        self._marks.is_changed = True

    def swap_done(self, segment: Segment) -> None:
        """Write the index of a segment whose new name is durable."""
        self._segments.persist_index(segment)
        segment.unload_index()

    def cleaned(self, planned: PlannedJob, offset: int) -> None:
        """Note that the log is clean up to `offset`, unless it was truncated since the job was planned."""
        if planned.generation == self._durability.generation and offset <= self._marks.recovery_offset():
            self._marks.cleaned_offset = max(self._marks.cleaned_offset, offset)
            self._marks.is_changed = True


def _span(segment: Segment) -> SegmentSpan:
    return SegmentSpan(segment.base_offset, segment.end_offset, segment.size, segment.newest_timestamp)
