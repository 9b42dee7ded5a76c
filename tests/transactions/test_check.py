"""The checker of the torture run finds each kind of broken promise, and nothing in a correct history."""

from __future__ import annotations

import pytest

from tests.transactions.check import (
    SHOWN_MAX,
    Fate,
    Seen,
    Transaction,
    Written,
    loop_problems,
    loop_value,
    shown,
    writer_problems,
)

COMMITTED = [Seen(0, 0, "w:1:2:0"), Seen(0, 4, "w:3:1:0"), Seen(1, 0, "w:1:2:1")]
EVERYTHING = sorted([*COMMITTED, Seen(0, 2, "w:2:1:0"), Seen(1, 2, "w:4:2:0")])
HISTORY = {
    ("w", 1): Transaction(2, Fate.COMMITTED),
    ("w", 2): Transaction(1, Fate.ABORTED),
    ("w", 3): Transaction(1, Fate.UNKNOWN),
    ("w", 4): Transaction(2, Fate.UNKNOWN),
}


def test_a_correct_history_has_no_problem() -> None:
    assert Written.parse("w:1:2:0") == ("w", 1, 2, 0)
    assert writer_problems(HISTORY, COMMITTED, EVERYTHING) == []


@pytest.mark.parametrize(
    ("committed", "problem"),
    [
        ([*COMMITTED, Seen(0, 2, "w:2:1:0")], "transaction 2 of w: it was aborted, but 1 of its 1 records are visible"),
        (COMMITTED[:2], "transaction 1 of w: it was committed with 2 records, but [0] are visible"),
        (COMMITTED[1:2], "transaction 1 of w: it was committed with 2 records, but [] are visible"),
        ([*COMMITTED, COMMITTED[2]], "transaction 1 of w: it was committed with 2 records, but [0, 1, 1] are visible"),
        ([*COMMITTED, Seen(1, 2, "w:4:2:0")], "transaction 4 of w: its end is unknown, but [0] of its 2 records"),
        ([*COMMITTED, Seen(1, 5, "w:5:1:0")], "transaction 5 of w: 1 records are visible, but it never began"),
        ([COMMITTED[1], COMMITTED[0], COMMITTED[2]], "partition 0 has w:1:2:0 at offset 0, after w:3:1:0"),
        ([*COMMITTED[:2], Seen(1, 1, "w:1:2:1")], "readers of all records did not see 1 committed ones"),
    ],
    ids=["aborted", "in part", "lost", "twice", "unknown in part", "never begun", "order", "hidden"],
)
def test_each_violation_in_a_history_is_reported(committed: list[Seen], problem: str) -> None:
    assert any(each.startswith(problem) for each in writer_problems(HISTORY, committed, EVERYTHING))


def test_a_record_that_is_in_the_log_twice_is_reported() -> None:
    assert writer_problems(HISTORY, COMMITTED, [*EVERYTHING, EVERYTHING[0]]) == ["the log has 1 records twice"]


def test_lost_repeated_and_reordered_copies_of_a_loop_are_reported() -> None:
    output = [Seen(each.partition, offset, loop_value(each)) for offset, each in enumerate(COMMITTED)]
    assert loop_problems("out", COMMITTED, output) == []
    assert loop_problems("out", COMMITTED, output[1:]) == ["out lacks 0:0:w:1:2:0"]
    assert loop_problems("out", COMMITTED, [*output, output[2]]) == ["out has 1:0:w:1:2:1 2 times"]
    assert loop_problems("out", COMMITTED, [*output, Seen(0, 9, "0:2:w:2:1:0")]) == [
        "out has 0:2:w:2:1:0, which no committed record has"
    ]
    assert loop_problems("out", COMMITTED, [output[1], output[0], output[2]]) == [
        "out-0 has 0:0:w:1:2:0 after offset 4 of its input"
    ]


def test_few_problems_are_shown_and_the_others_counted() -> None:
    problems = [str(number) for number in range(SHOWN_MAX + 2)]
    assert shown(problems) == [*problems[:SHOWN_MAX], "and 2 more"]
