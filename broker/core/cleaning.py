"""Decides which part of a compacted log is cleaned next, and which segments share a replacement.  Pure.

Theory of operation.  A log has a *clean* part, below `cleaned_offset`, in which each key has at most one record, and a
*dirty* part above it.  Cleaning reads the dirty part, notes the latest offset of each key, and rewrites both parts
without the records that a later record of the same key replaces.  Only sealed segments are cleaned.  They must be
durable, committed and below all open transactions.  In the dirty part, all records must also be older than
`min.compaction.lag.ms`.  Cleaning is due when the dirty part is at least `min.cleanable.dirty.ratio` of all cleanable
bytes, because a smaller part does not justify the reads.  It is also due when the oldest dirty record is older than
`max.compaction.lag.ms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

RELATIVE_OFFSET_MAX = 2**31 - 1
"""Largest offset within a segment, relative to its base offset: an index entry has 32 bits."""
GROUP_SEGMENTS_MAX = 1_000
"""Largest number of segments that share a replacement.  Further segments get another replacement, and the next cleaning
may join both."""


class SegmentSpan(NamedTuple):
    """One sealed segment.  newest_timestamp: -1 if no record in it has a timestamp."""

    base_offset: int
    end_offset: int
    size: int
    newest_timestamp: int


class CleaningPolicy(NamedTuple):
    """The settings of a topic that decide when it is cleaned."""

    min_lag_ms: int = 0
    max_lag_ms: int = 2**63 - 1
    min_dirty_ratio: float = 0.5


class DirtyRange(NamedTuple):
    """The dirty part that may be cleaned now.

    start: first dirty offset.
    limit: first offset that must not be cleaned: the end of a sealed segment.  It equals `start` if
        nothing may be cleaned.
    dirty_size, size: bytes of the dirty part, and of everything that would be read.
    """

    start: int
    limit: int
    dirty_size: int
    size: int

    @property
    def ratio(self) -> float:
        return self.dirty_size / self.size if self.size else 0.0


def dirty_range(
    sealed: Sequence[SegmentSpan],
    cleaned_offset: int,
    stable_end: int,
    policy: CleaningPolicy,
    wall_ms: int,
) -> DirtyRange:
    """Return the dirty part that may be cleaned.

    sealed: all segments except the active one, by ascending offset.
    cleaned_offset: end of the clean part.
    stable_end: end of the records that are durable and committed, and whose transactions are decided.
    """
    limit = sealed[0].base_offset if sealed else 0
    size = dirty_size = 0
    for segment in sealed:
        if segment.end_offset > stable_end:
            break
        is_dirty = segment.end_offset > cleaned_offset
        if is_dirty and policy.min_lag_ms > 0 and segment.newest_timestamp > wall_ms - policy.min_lag_ms:
            break
        limit = segment.end_offset
        size += segment.size
        if is_dirty:
            dirty_size += segment.size
    start = max(cleaned_offset, sealed[0].base_offset) if sealed else 0
    return DirtyRange(min(start, limit), limit, dirty_size, size)


def is_due(dirty: DirtyRange, policy: CleaningPolicy, oldest_dirty_ms: int, wall_ms: int) -> bool:
    """Return whether the dirty part should be cleaned now.

    oldest_dirty_ms: timestamp of the oldest dirty batch that may be cleaned; -1 if it is unknown.
    """
    if dirty.start >= dirty.limit or not dirty.dirty_size:
        return False
    if dirty.ratio >= policy.min_dirty_ratio:
        return True
    return oldest_dirty_ms >= 0 and wall_ms - oldest_dirty_ms > policy.max_lag_ms


def group_segments(
    segments: Iterable[SegmentSpan], size_max: int, offsets_max: int = RELATIVE_OFFSET_MAX
) -> list[tuple[SegmentSpan, ...]]:
    """Return the segments in groups, each of which gets one replacement.

    A group of several segments has at most `size_max` bytes, `offsets_max` offsets and `GROUP_SEGMENTS_MAX` segments.
    A larger segment is a group of its own.  A replacement is larger than its group by at most a few bytes for each
    tombstone.
    """
    groups: list[tuple[SegmentSpan, ...]] = []
    group: list[SegmentSpan] = []
    size = 0
    for segment in segments:
        far = bool(group) and segment.end_offset - 1 - group[0].base_offset > offsets_max
        if group and (size + segment.size > size_max or far or len(group) >= GROUP_SEGMENTS_MAX):
            groups.append(tuple(group))
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        groups.append(tuple(group))
    return groups
