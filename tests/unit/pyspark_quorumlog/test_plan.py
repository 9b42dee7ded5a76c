"""Planning of a batch read; no Spark and no broker is needed."""

from __future__ import annotations

import re

import pytest

from pyspark_quorumlog.options import (
    EARLIEST,
    LATEST,
    OptionError,
    Partition,
    Positions,
    Query,
    ReadOptions,
    parse_read,
)
from pyspark_quorumlog.plan import Bounds, OffsetRange, check_named, check_order, checked_range, resolve, split

READ = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"startingOffsets": '{"t":{"0":5},"u":{"3":1}}'},
            "option startingOffsets lacks t-1: add an offset, or -2 for earliest; option startingOffsets names u-3, "
            "which this query does not read",
        ),
        ({"endingOffsets": '{"t":{"0":5}}'}, "option endingOffsets lacks t-1: add an offset, or -1 for latest"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":5}}'}, "option startingOffsetsByTimestamp lacks t-1: add ms since"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":5}}'}, "option endingOffsetsByTimestamp lacks t-1: add ms since"),
    ],
)
def test_positions_by_partition_must_name_exactly_the_partitions_of_the_query(
    given: dict[str, str], complaint: str
) -> None:
    options = parse_read({**READ, **given}, Query.BATCH)
    with pytest.raises(OptionError, match=f"^{re.escape(complaint)}"):
        check_both(options, [("t", 0), ("t", 1)])
    fitting = {name: '{"t":{"0":5,"1":7}}' for name in given}
    check_both(parse_read({**READ, **fitting}, Query.BATCH), [("t", 0), ("t", 1)])


def check_both(options: ReadOptions, partitions: list[Partition]) -> None:
    check_named(options.starting, partitions, EARLIEST)
    check_named(options.ending, partitions, LATEST)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"startingOffsets": '{"t":{"0":3,"1":0}}', "endingOffsets": '{"t":{"0":1,"1":0}}'},
            "option endingOffsets: t-0 ends at 1, below its start 3",
        ),
        (
            {"startingOffsets": '{"t":{"0":3,"1":1}}', "endingOffsets": '{"t":{"0":3,"1":0}}'},
            "option endingOffsets: t-1 ends at 0, below its start 1",
        ),
        (
            {"startingTimestamp": "8", "endingTimestamp": "7"},
            "option endingTimestamp: t-0 ends at 7, below its start 8; option endingTimestamp: t-1 ends at 7, below",
        ),
        (
            {"startingTimestamp": "8", "endingOffsetsByTimestamp": '{"t":{"0":9,"1":6}}'},
            "option endingOffsetsByTimestamp: t-1 ends at 6, below its start 8",
        ),
    ],
)
def test_an_end_below_its_start_is_refused(given: dict[str, str], complaint: str) -> None:
    options = parse_read({**READ, **given}, Query.BATCH)
    with pytest.raises(OptionError, match=f"^{re.escape(complaint)}"):
        check_order(options.starting, options.ending, [("t", 0), ("t", 1)])


@pytest.mark.parametrize(
    "given",
    [
        {"startingOffsets": '{"t":{"0":3,"1":-2}}', "endingOffsets": '{"t":{"0":3,"1":0}}'},
        {"startingOffsets": '{"t":{"0":3,"1":9}}', "endingOffsets": '{"t":{"0":-1,"1":-1}}'},
        {"startingTimestamp": "8", "endingTimestamp": "8"},
        {"startingTimestamp": "8", "endingOffsets": '{"t":{"0":1,"1":1}}'},
    ],
)
def test_an_end_at_its_start_or_of_another_kind_is_accepted(given: dict[str, str]) -> None:
    options = parse_read({**READ, **given}, Query.BATCH)
    check_order(options.starting, options.ending, [("t", 0), ("t", 1)])


def test_a_start_time_after_the_last_record_is_refused_or_means_the_latest_offset() -> None:
    bounds = Bounds(2, 9)
    with pytest.raises(OptionError, match=r"^t-0 has no record as new as 77"):
        resolve(Positions(77, by_time=True), ("t", 0), bounds, {("t", 0): -1})
    assert resolve(Positions(77, by_time=True, or_latest=True), ("t", 0), bounds, {("t", 0): -1}) == 9
    assert resolve(Positions(77, by_time=True), ("t", 0), bounds, {("t", 0): 4}) == 4


def test_a_record_that_arrived_after_planning_is_not_a_loss() -> None:
    positions = Positions(77, by_time=True)
    losses: list[str] = []
    bounds = Bounds(2, 9)
    end = resolve(positions, ("t", 0), bounds, {("t", 0): 11})
    assert checked_range(("t", 0), 2, end, bounds, losses) == OffsetRange("t", 0, 2, 9)
    assert checked_range(("t", 0), end, 9, bounds, losses).size == 0
    assert losses == []


@pytest.mark.parametrize(
    ("first", "end", "expected", "losses"),
    [
        (2, 9, (2, 9), []),
        (0, 9, (2, 9), ["t-0: start offset 0 was deleted; the log contains offsets from 2 to 9 (exclusive)"]),
        (12, 9, (9, 9), ["t-0: start offset 12 is beyond the end; the log contains offsets from 2 to 9 (exclusive)"]),
        (3, 12, (3, 9), ["t-0: end offset 12 is beyond the end; the log contains offsets from 2 to 9 (exclusive)"]),
        (8, 4, (8, 8), []),
        (
            2,
            1,
            (2, 2),
            ["t-0: all records below the end offset 1 were deleted; the log contains offsets from 2 to 9 (exclusive)"],
        ),
        (2, 0, (2, 2), []),
    ],
)
def test_offsets_outside_the_log_are_reported_as_losses(
    first: int, end: int, expected: tuple[int, int], losses: list[str]
) -> None:
    found: list[str] = []
    cut = checked_range(("t", 0), first, end, Bounds(2, 9), found)
    assert ((cut.first, cut.end), found) == (expected, losses)


def test_tasks_cover_each_offset_once() -> None:
    ranges = [OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 50, 1050), OffsetRange("t", 2, 7, 7)]
    assert split(ranges, None, None) == ranges[:2]
    assert split(ranges, 1, None) == ranges[:2]
    assert split([], 5, 5) == []
    for least, most in ((11, None), (None, 90), (4, 90), (2000, None), (40, 90)):
        tasks = split(ranges, least, most)
        for one in ranges[:2]:
            mine = [task for task in tasks if task.partition == one.partition]
            assert [task.first for task in mine] == [one.first, *[task.end for task in mine[:-1]]]
            assert mine[-1].end == one.end
            assert all(task.size > 0 for task in mine)
        if most is not None:
            assert max(task.size for task in tasks) <= most
        if least is not None and least < 1000:
            assert len(tasks) >= least


@pytest.mark.parametrize(
    ("sizes", "least", "most", "expected"),
    [
        ([10, 1000, 500], 10, None, [10, 166, 166, *[167] * 4, 166, 167, 167]),
        ([10, 1000, 500], 3, None, [10, 1000, 500]),
        ([100, 3], 7, 30, [12, 13] * 4 + [3]),
        ([100, 3], 5, 30, [25, 25, 25, 25, 3]),
        ([100, 100, 50], 6, None, [33, 33, 34, 33, 33, 34, 50]),
        ([5], 100, None, [1, 1, 1, 1, 1]),
        ([1, 1, 1, 100], 4, None, [1, 1, 1, 100]),
        ([1, 1, 1, 100], 5, None, [1, 1, 1, 50, 50]),
        ([3, 3], 3, None, [1, 2, 1, 2]),
    ],
)
def test_ranges_are_split_into_the_same_tasks_as_by_sparks_own_source(
    sizes: list[int], least: int, most: int | None, expected: list[int]
) -> None:
    ranges = [OffsetRange("t", index, 7, 7 + size) for index, size in enumerate(sizes)]
    assert [task.size for task in split(ranges, least, most)] == expected
