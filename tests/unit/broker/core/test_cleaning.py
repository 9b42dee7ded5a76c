"""The choice of segments to compact: the dirty part of a log, when it is due, and groups of segments."""

from __future__ import annotations

from broker.core.cleaning import GROUP_SEGMENTS_MAX, CleaningPolicy, SegmentSpan, dirty_range, group_segments, is_due


def span(base: int, end: int, size: int = 100, newest: int = -1) -> SegmentSpan:
    return SegmentSpan(base, end, size, newest)


def test_the_dirty_part_ends_where_records_are_not_yet_stable() -> None:
    sealed = [span(0, 10), span(10, 20), span(20, 30)]
    dirty = dirty_range(sealed, 10, 29, CleaningPolicy(), 0)
    assert dirty == (10, 20, 100, 200)
    assert dirty_range(sealed, 10, 30, CleaningPolicy(), 0).limit == 30
    assert dirty_range([], 10, 30, CleaningPolicy(), 0).dirty_size == 0


def test_young_records_are_not_cleaned_yet() -> None:
    sealed = [span(0, 10, newest=5_000), span(10, 20, newest=7_000), span(20, 30, newest=1_000)]
    policy = CleaningPolicy(min_lag_ms=2_000)
    assert dirty_range(sealed, 0, 30, policy, 8_999).limit == 10
    assert dirty_range(sealed, 0, 30, policy, 9_000).limit == 30
    assert dirty_range(sealed, 20, 30, policy, 3_000).limit == 30  # clean segments may be young


def test_a_log_is_due_for_compaction_by_its_dirty_ratio_or_by_its_age() -> None:
    policy = CleaningPolicy(max_lag_ms=1_000, min_dirty_ratio=0.5)
    dirty = dirty_range([span(0, 10, 300), span(10, 20, 100)], 10, 20, policy, 0)
    assert dirty.ratio == 0.25
    assert not is_due(dirty, policy, 5_000, 6_000)
    assert is_due(dirty, policy, 5_000, 6_001)
    assert is_due(dirty, policy._replace(min_dirty_ratio=0.25), 5_000, 0)
    assert not is_due(dirty_range([span(0, 10)], 10, 10, policy, 0), policy, -1, 10**6)


def test_adjacent_segments_are_compacted_into_one_within_limits_of_size_offsets_and_number() -> None:
    spans = [span(0, 10, 60), span(10, 20, 30), span(20, 30, 20), span(30, 40, 500), span(40, 50, 1)]
    assert [[one.base_offset for one in group] for group in group_segments(spans, 100)] == [[0, 10], [20], [30], [40]]
    far = [span(0, 10), span(10, 2**31), span(2**31, 2**31 + 5)]
    assert [len(group) for group in group_segments(far, 10**6)] == [2, 1]
    many = [span(at, at + 1, 1) for at in range(GROUP_SEGMENTS_MAX + 1)]
    assert [len(group) for group in group_segments(many, 10**6)] == [GROUP_SEGMENTS_MAX, 1]
