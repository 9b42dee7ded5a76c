"""Options and planning: every bad one has a name; no Spark and no broker is needed."""

from __future__ import annotations

import re

import pytest

from pyspark_quorumlog.options import (
    EARLIEST,
    LATEST,
    OptionError,
    Partition,
    Positions,
    ReadOptions,
    parse_read,
    parse_write,
)
from pyspark_quorumlog.plan import Bounds, OffsetRange, check_named, check_order, checked_range, resolve, split

READ = {"kafka.bootstrap.servers": "h:9092", "subscribe": "t"}
WRITE = {"bootstrap.servers": "h:9092", "topic": "t"}


def test_defaults_are_those_of_the_well_known_source() -> None:
    options = parse_read(READ)
    assert options.topics == ("t",)
    assert options.bootstrap == ("h:9092",)
    assert (options.starting.everywhere, options.ending.everywhere) == (EARLIEST, LATEST)
    assert (options.fail_on_data_loss, options.with_headers, options.partitions_min) == (True, False, None)
    written = parse_write(WRITE)
    assert (written.acks, written.compression, written.delivery_timeout_s) == (-1, "none", 120.0)


def test_names_are_case_insensitive_and_lists_are_cut() -> None:
    options = parse_read({"BOOTSTRAP.SERVERS": " a:1 , b:2", "SUBSCRIBE": "y, x,y", "includeheaders": "TRUE"})
    assert (options.bootstrap, options.topics, options.with_headers) == (("a:1", "b:2"), ("x", "y"), True)
    by_json = {"bootstrap.servers": "a:1", "assign": '{"t":[1,0]}', "startingOffsets": '{"t":{"0":5,"1":-2}}'}
    assigned = parse_read(by_json)
    assert assigned.assigned == (("t", 0), ("t", 1))
    assert assigned.starting == Positions(None, {("t", 0): 5, ("t", 1): EARLIEST})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"subscribe": "t"}, "option bootstrap.servers is required"),
        ({**READ, "bootstrap.servers": "other:1"}, "option bootstrap.servers and kafka.bootstrap.servers differ"),
        ({**READ, "kafka.bootstrap.servers": "h"}, "option bootstrap.servers contains 'h', which is not HOST:PORT"),
        ({**READ, "kafka.bootstrap.servers": "h:99999"}, "contains 'h:99999'"),
        ({"bootstrap.servers": "h:1"}, "none is given"),
        ({**READ, "assign": '{"t":[0]}'}, "assign and subscribe are given"),
        (
            {"bootstrap.servers": "h:1", "assign": '{"t":0}'},
            "topic t has no list of partitions; expected partitions by topic",
        ),
        ({"bootstrap.servers": "h:1", "assign": '{"t":[-1]}'}, "-1 is not a whole number"),
        (
            {"bootstrap.servers": "h:1", "assign": '{"t"'},
            """option assign is '{"t"': this is not JSON at character 5; exp""",
        ),
        ({"bootstrap.servers": "h:1", "subscribe": " , "}, "option subscribe names no topic"),
        ({"bootstrap.servers": "h:1", "subscribePattern": "("}, "option subscribePattern is not a regular"),
        ({**READ, "startingOffsets": "latest"}, "option startingOffsets cannot be latest"),
        (
            {**READ, "startingOffsets": "soon"},
            "option startingOffsets is 'soon': this is not JSON at character 1; expected earliest, or offsets for "
            'every partition, like {"a": {"0": 23}} (-2: earliest)',
        ),
        ({**READ, "startingOffsets": ""}, "option startingOffsets is '': it is empty; expected earliest, or"),
        ({**READ, "startingOffsets": "23"}, "option startingOffsets is '23': this names no topic; expected earliest"),
        (
            {**READ, "startingOffsets": "9" * 5000},
            "999…': this JSON is nested too deeply, or a number is too long; expected earliest",
        ),
        (
            {**READ, "endingOffsets": '{"t":{"0":"x"}}'},
            """option endingOffsets is '{"t":{"0":"x"}}': t-0: 'x' is not a whole number from -2; expected latest, """
            'or offsets for every partition, like {"a": {"0": 23}} (-1: latest)',
        ),
        (
            {**READ, "endingOffsets": "[1"},
            "option endingOffsets is '[1': this is not JSON at character 3; expected latest",
        ),
        (
            {**READ, "endingOffsetsByTimestamp": "{}x"},
            "option endingOffsetsByTimestamp is '{}x': this is not JSON at character 3; expected times in ms for every",
        ),
        ({**READ, "startingOffsets": '{"t":{"0":-1}}'}, "option startingOffsets cannot be -1 (latest) for t-0"),
        ({**READ, "startingOffsets": '{"t":{"x":1}}'}, "'x' is not a partition"),
        ({**READ, "startingOffsets": '{"t":[1]}'}, "topic t has no offsets by partition; expected"),
        (
            {**READ, "startingOffsets": "[" * 100_000},
            "[[…': this JSON is nested too deeply, or a number is too long; expected earliest",
        ),
        ({**READ, "endingOffsets": "earliest"}, "option endingOffsets cannot be earliest"),
        ({**READ, "endingOffsets": '{"t":{"0":-2}}'}, "option endingOffsets cannot be -2 (earliest) for t-0"),
        ({**READ, "startingTimestamp": "now"}, "option startingTimestamp is 'now'"),
        ({**READ, "startingOffsetsByTimestampStrategy": "guess"}, "is 'guess'; expected: error or latest"),
        ({**READ, "minPartitions": "0"}, "option minPartitions is '0'; expected: a whole number from 1"),
        ({**READ, "maxRecordsPerPartition": "many"}, "option maxRecordsPerPartition is 'many'"),
        ({**READ, "failOnDataLoss": "perhaps"}, "option failOnDataLoss is 'perhaps'; expected: true or false"),
        ({**READ, "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({**READ, "includeTimestamp": "true"}, "option includetimestamp is unknown"),
        (
            {**READ, "endingOffsetsByTimestampStrategy": "latest"},
            "option endingoffsetsbytimestampstrategy is unknown; did you mean startingOffsetsByTimestampStrategy?",
        ),
        ({**READ, "topic": "t"}, "option topic has no meaning when reading"),
        ({**READ, "kafka.auto.offset.reset": "latest"}, "is set by the data source"),
        ({**READ, "kafka.sasl.mechanism": "PLAIN"}, "requests security"),
    ],
)
def test_a_bad_read_option_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=re.escape(complaint)):
        parse_read({name.lower(): value for name, value in options.items()})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({**WRITE, "kafka.acks": "0"}, "option kafka.acks is '0'"),
        ({**WRITE, "kafka.compression.type": "rar"}, "option kafka.compression.type is 'rar'"),
        ({**WRITE, "topic": ""}, "option topic is empty"),
        ({**WRITE, "kafka.batch.size": "1"}, "option kafka.batch.size is '1'; expected: a whole number from 1024"),
        ({**WRITE, "maxRecordsPerSecond": "-5"}, "option maxRecordsPerSecond is '-5'"),
        ({**WRITE, "subscribe": "t"}, "option subscribe has no meaning when writing"),
    ],
)
def test_a_bad_write_option_is_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=re.escape(complaint)):
        parse_write({name.lower(): value for name, value in options.items()})


def test_all_problems_come_at_once() -> None:
    with pytest.raises(OptionError) as caught:
        parse_read({"subscribe": "t", "minpartitions": "x", "nonsense": "1"})
    assert len(caught.value.problems) == 3


def test_timestamps_go_before_offsets() -> None:
    options = parse_read(
        {
            **READ,
            "startingTimestamp": "5",
            "startingOffsetsByTimestamp": '{"t":{"0":6}}',
            "startingOffsets": "earliest",
            "endingOffsetsByTimestamp": '{"t":{"0":7}}',
        }
    )
    assert options.starting == Positions(5, by_time=True, or_latest=False)
    assert options.ending == Positions(None, {("t", 0): 7}, by_time=True, or_latest=True)


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
def test_positions_by_partition_must_fit(given: dict[str, str], complaint: str) -> None:
    options = parse_read({**READ, **given})
    with pytest.raises(OptionError, match=f"^{re.escape(complaint)}"):
        check_both(options, [("t", 0), ("t", 1)])
    fitting = {name: '{"t":{"0":5,"1":7}}' for name in given}
    check_both(parse_read({**READ, **fitting}), [("t", 0), ("t", 1)])


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
    options = parse_read({**READ, **given})
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
    options = parse_read({**READ, **given})
    check_order(options.starting, options.ending, [("t", 0), ("t", 1)])


def test_a_time_without_a_record() -> None:
    bounds = Bounds(2, 9)
    with pytest.raises(OptionError, match=r"^t-0 has no record as new as 77"):
        resolve(Positions(77, by_time=True), ("t", 0), bounds, {("t", 0): -1})
    assert resolve(Positions(77, by_time=True, or_latest=True), ("t", 0), bounds, {("t", 0): -1}) == 9
    assert resolve(Positions(77, by_time=True), ("t", 0), bounds, {("t", 0): 4}) == 4


def test_a_record_that_came_after_the_end_was_asked_for_is_no_loss() -> None:
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
def test_what_is_not_there_is_named(first: int, end: int, expected: tuple[int, int], losses: list[str]) -> None:
    found: list[str] = []
    cut = checked_range(("t", 0), first, end, Bounds(2, 9), found)
    assert ((cut.first, cut.end), found) == (expected, losses)


def test_tasks_cover_each_offset_once() -> None:
    ranges = [OffsetRange("t", 0, 0, 100), OffsetRange("t", 1, 50, 1050), OffsetRange("t", 2, 7, 7)]
    assert split(ranges, None, None) == ranges[:2]
    assert split(ranges, 1, None) == ranges[:2]
    assert split([], 5, 5) == []
    for least, most in ((11, None), (None, 90), (4, 90), (2000, None)):
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
