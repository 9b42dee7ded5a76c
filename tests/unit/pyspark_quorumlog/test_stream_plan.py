"""Planning of a stream; no Spark and no broker is needed."""

from __future__ import annotations

import json

import pytest

from pyspark_quorumlog.options import OptionError, Partition, TriggerLimits
from pyspark_quorumlog.plan import Bounds, OffsetRange
from pyspark_quorumlog.stream_plan import (
    BatchEnd,
    Offsets,
    StreamPlanner,
    from_json,
    ranges_of,
    to_json,
    with_records,
)

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
PLENTY = 1 << 62


def next_end(
    start: Offsets,
    ends: Offsets,
    starts: Offsets | None = None,
    limit: int | None = PLENTY,
    pinned: Offsets | None = None,
) -> BatchEnd:
    planner = StreamPlanner(TriggerLimits())
    if pinned is not None:
        planner.pin(pinned)
    return planner.next_end(start, ends, starts or {}, 0.0, limit)


def needs_start(
    start: Offsets, ends: Offsets, limit: int | None = PLENTY, limits: TriggerLimits | None = None
) -> list[Partition]:
    return StreamPlanner(limits or TriggerLimits()).needs_start(start, ends, limit)


def test_offsets_are_written_in_the_order_of_topics_and_of_partition_numbers() -> None:
    offsets = {("b", 10): 1, ("b", 9): 2, ("a", 0): 3}
    assert json.dumps(to_json(offsets)) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'
    assert from_json(to_json(offsets)) == offsets
    assert from_json(json.loads('{"b":{"10":1,"9":2},"a":{"0":3}}')) == offsets, "any order can be read"


@pytest.mark.parametrize(
    "value",
    [7, [], {"a": 7}, {"a": {"x": 1}}, {"a": {"0": "1"}}, {"a": {"0": -1}}, {"a": {"-1": 1}}, {"a": {"0": True}}],
)
def test_a_checkpoint_of_another_source_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match="which is not a map of offsets by topic and partition"):
        from_json(value)


def test_a_batch_ends_at_the_ends_of_the_logs() -> None:
    assert next_end({A0: 3, A1: 5}, {A0: 9, A1: 5}) == ({A0: 9, A1: 5}, [])
    assert next_end({A0: 3}, {A0: 3}) == ({A0: 3}, [])


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (None, {A0: 10, A1: 1000, B0: 501}),
        (10_000, {A0: 10, A1: 1000, B0: 501}),
        (1511, {A0: 10, A1: 1000, B0: 501}),
        (151, {A0: 1, A1: 99, B0: 50}),  # in proportion to 10, 1000 and 501
        (2, {A0: 1, A1: 1, B0: 1}),
        (1, {A0: 1, A1: 1, B0: 1}),
    ],
)
def test_a_limit_is_shared_in_proportion_and_starves_no_partition(limit: int | None, expected: Offsets) -> None:
    assert next_end({A0: 0, A1: 0, B0: 0}, {A0: 10, A1: 1000, B0: 501}, limit=limit).offsets == expected


def test_a_new_partition_is_read_from_the_start_of_its_log() -> None:
    assert needs_start({A0: 3}, {A0: 3, A1: 7}) == [A1]
    assert next_end({A0: 3}, {A0: 3, A1: 7}, {A1: 0}) == ({A0: 3, A1: 7}, [])
    assert next_end({A0: 3}, {A0: 3, A1: 7}, {A1: 0}, limit=2) == ({A0: 3, A1: 2}, [])
    found = next_end({A0: 3}, {A0: 3, A1: 7}, {A1: 5}, limit=1)
    assert found == ({A0: 3, A1: 6}, ["a-1 is new to the query and begins at offset 5: older records were deleted"])


def test_a_partition_is_dropped_when_it_is_missing_in_two_consecutive_batches() -> None:
    loss = "b-0 does not exist any more; it was read up to 4"
    planner = StreamPlanner(TriggerLimits())

    def end(start: Offsets, ends: Offsets) -> BatchEnd:
        return planner.next_end(start, ends, dict.fromkeys(ends, 0), 0.0, PLENTY)

    assert end({A0: 3, B0: 4}, {A0: 9}) == ({A0: 9, B0: 4}, [loss])
    assert end({A0: 9, B0: 4}, {A0: 9, B0: 4}) == ({A0: 9, B0: 4}, []), "it was only unknown for a while"
    assert end({A0: 9, B0: 4}, {A0: 9}) == ({A0: 9, B0: 4}, [loss])
    assert end({A0: 9, B0: 4}, {A0: 9}) == ({A0: 9}, [loss])
    assert end({A0: 9}, {A0: 9, B0: 7}) == ({A0: 9, B0: 7}, []), "it was created again, and is new"


def test_a_partition_that_left_the_query_keeps_its_position() -> None:
    loss = "b-0 is not part of the query any more; it was read up to 4"
    planner = StreamPlanner(TriggerLimits())
    for _ in range(3):
        assert planner.next_end({A0: 3, B0: 4}, {A0: 3}, {}, 0.0, PLENTY, left=[B0]) == ({A0: 3, B0: 4}, [loss])


def test_a_partition_of_a_topic_that_was_created_again_is_read_from_its_start() -> None:
    planner = StreamPlanner(TriggerLimits())
    start, ends = {A0: 3, A1: 0, B0: 2}, {A0: 9, A1: 5, B0: 2}
    assert planner.needs_start(start, ends, PLENTY, [A0, A1]) == [A0, A1]
    found = planner.next_end(start, ends, {A0: 1, A1: 0}, 0.0, PLENTY, renewed=[A0, A1])
    assert found.offsets == {A0: 1, A1: 5, B0: 2}, "no record of a-1 was read before"
    (loss,) = found.losses
    assert loss.startswith("topic a was deleted and created again after a-0 was read up to 3; ")


def test_deleted_records_do_not_count_for_a_limit() -> None:
    start, ends, starts = {A0: 0, A1: 0}, {A0: 1000, A1: 10}, {A0: 990, A1: 0}
    assert needs_start(start, ends) == []
    assert needs_start(start, ends, 10) == [A0, A1]
    assert needs_start(start, ends, PLENTY, TriggerLimits(offsets_min=5)) == [A0, A1]
    assert needs_start({A0: 0}, {A0: 60, A1: 1000}, 100) == [A0, A1], "the new partition takes most of the limit"
    assert needs_start(start, ends, None, TriggerLimits(offsets_min=5)) == []
    assert next_end(start, ends, starts, limit=10) == ({A0: 995, A1: 5}, []), "`ranges_of` reports the loss"
    assert next_end({A0: 0}, {A0: 9}, {A0: 9}, limit=1).offsets == {A0: 9}, "all of them were deleted"
    assert next_end({A0: 0}, {A0: 9}, {A0: 7}, limit=1, pinned={A0: 5}).offsets == {A0: 5}
    assert next_end({A0: 8}, {A0: 9}, {A0: 7}, limit=1, pinned={A0: 5}).offsets == {A0: 8}, "an end never goes back"


def test_a_log_that_ends_below_the_position_is_read_again_from_its_start_after_an_empty_batch() -> None:
    assert needs_start({A0: 30, A1: 2}, {A0: 9, A1: 2}) == [A0]
    found = next_end({A0: 30, A1: 2}, {A0: 9, A1: 5}, {A0: 1})
    assert found == BatchEnd({A0: 1, A1: 5}, ["a-0: start offset 30 is beyond the end 9 of the log"])
    assert ranges_of({A0: 30}, found.offsets, {A0: Bounds(1, 9), A1: Bounds(0, 5)})[0] == [OffsetRange("a", 1, 0, 5)]
    assert next_end(found.offsets, {A0: 9, A1: 5}) == ({A0: 9, A1: 5}, [])


def held(may_move: bool) -> StreamPlanner:
    planner = StreamPlanner(TriggerLimits())
    planner.hold({A0: 3}, may_move=may_move)
    return planner


@pytest.mark.parametrize("may_move", [True, False])
def test_the_first_batch_of_a_query_is_empty(may_move: bool) -> None:
    planner = held(may_move)
    assert planner.next_end({A0: 3}, {A0: 9}, {}, 0.0, PLENTY).offsets == {A0: 3}
    assert planner.next_end({A0: 3}, {A0: 9}, {}, 0.0, PLENTY).offsets == {A0: 9}
    assert held(may_move).next_end({A0: 2}, {A0: 9}, {}, 0.0, PLENTY).offsets == {A0: 9}, "this is a later batch"
    planner = held(may_move)
    planner.release()
    assert planner.next_end({A0: 3}, {A0: 9}, {}, 0.0, PLENTY).offsets == {A0: 9}, "the first batch was logged"


def test_a_query_of_one_batch_reads_its_records_unless_it_begins_at_the_latest_offsets() -> None:
    assert held(False).next_end({A0: 3}, {A0: 9}, {}, 0.0, None).offsets == {A0: 9}
    assert held(True).next_end({A0: 3}, {A0: 9}, {}, 0.0, None).offsets == {A0: 3}


def test_a_pinned_query_ends_at_the_pinned_offsets() -> None:
    pinned = {A0: 5, B0: 4}
    assert next_end({A0: 3}, {A0: 9, A1: 7, B0: 9}, {A1: 0, B0: 0}, pinned=pinned).offsets == {A0: 5, B0: 4}
    assert next_end({A0: 5, B0: 4}, {A0: 9, A1: 7, B0: 9}, {A1: 0}, pinned=pinned).offsets == {A0: 5, B0: 4}
    assert next_end({A0: 7, B0: 4}, {A0: 9, B0: 9}, pinned=pinned).offsets == {A0: 7, B0: 4}, "an end never goes back"
    assert next_end({A0: 3, A1: 1}, {A0: 9, A1: 9}, pinned=pinned).offsets == {A0: 5, A1: 1}


def test_a_minimum_delays_a_batch_until_it_is_reached_or_the_delay_is_over() -> None:
    planner = StreamPlanner(TriggerLimits(offsets_min=10, delay_max_s=60.0))

    def end(start: int, log_end: int, now_s: float, limit: int | None = PLENTY) -> int:
        return planner.next_end({A0: start}, {A0: log_end}, {}, now_s, limit).offsets[A0]

    assert end(0, 1, 100.0) == 1, "the first batch does not wait"
    assert end(1, 10, 101.0) == 1
    assert end(1, 11, 102.0) == 11, "the minimum is reached"
    assert end(11, 12, 161.9) == 11
    assert end(11, 12, 162.0) == 12, "the delay is over"
    assert end(12, 13, 163.0, None) == 13, "a query of one batch does not wait"
    planner.pin({A0: 15})
    assert end(13, 15, 164.0) == 15, "a query up to pinned offsets does not wait"


def test_a_minimum_counts_new_partitions_from_their_start() -> None:
    planner = StreamPlanner(TriggerLimits(offsets_min=10))
    assert planner.next_end({A0: 0}, {A0: 1}, {}, 0.0, PLENTY).offsets == {A0: 1}
    assert planner.next_end({A0: 1}, {A0: 1, A1: 109}, {A1: 100}, 1.0, PLENTY).offsets == {A0: 1}
    assert planner.next_end({A0: 1}, {A0: 1, A1: 110}, {A1: 100}, 1.0, PLENTY).offsets == {A0: 1, A1: 110}


BOUNDS: dict[Partition, Bounds] = {A0: Bounds(2, 9), A1: Bounds(0, 9)}


@pytest.mark.parametrize(
    ("start", "end", "expected", "losses"),
    [
        ({A0: 3, A1: 4}, {A0: 5, A1: 4}, [OffsetRange("a", 0, 3, 5)], []),
        ({A0: 3}, {A0: 3, A1: 4}, [OffsetRange("a", 1, 0, 4)], []),
        ({A0: 3, A1: 9}, {A0: 3, A1: 1}, [], []),
        ({A0: 3, A1: 9}, {A0: 3}, [], []),
        (
            {},
            {A0: 5},
            [OffsetRange("a", 0, 2, 5)],
            ["a-0 is new to the query and begins at offset 2: older records were deleted"],
        ),
        (
            {A0: 0},
            {A0: 5},
            [OffsetRange("a", 0, 2, 5)],
            ["a-0: start offset 0 was deleted; the log contains offsets from 2 to 9 (exclusive)"],
        ),
        (
            {A0: 3},
            {A0: 12},
            [OffsetRange("a", 0, 3, 9)],
            ["a-0: end offset 12 is beyond the end; the log contains offsets from 2 to 9 (exclusive)"],
        ),
        ({B0: 1}, {B0: 4}, [], ["b-0 does not exist any more; the batch ends at its offset 4"]),
        ({B0: 4}, {B0: 4}, [], []),
        ({}, {B0: 0}, [], []),
    ],
)
def test_a_batch_reads_the_ranges_that_exist_and_reports_losses(
    start: Offsets, end: Offsets, expected: list[OffsetRange], losses: list[str]
) -> None:
    existing = {one: BOUNDS[one] for one in with_records(start, end) if one in BOUNDS}
    assert ranges_of(start, end, existing) == (expected, losses)
