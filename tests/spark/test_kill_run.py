"""A short kill run with three faults, and the checker of its results; `python -m tests.spark.kill_run` runs longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.kill_check import Repeated, Row, duplicates, problems, unfinished
from tests.spark.kill_run import Pauses, prepared

FORGETFUL = "kill Spark, which forgets its last commit"
SHORT = Pauses(settle=(0.5, 1.0), down=(0.0, 1.0), suspended=(7.0, 7.0))
"""A suspension is longer than a broker's session, so other brokers are elected."""

ROWS: dict[Row, str] = {(0, 0): "a", (0, 1): "b", (1, 0): "c"}


@pytest.mark.quiet
async def test_no_row_is_lost_when_leaders_the_controller_and_spark_are_killed() -> None:
    said: list[str] = []
    async with prepared(7, said.append, pauses=SHORT) as run:
        report = await run.run(0, ["kill a leader and the active controller", FORGETFUL, "suspend a leader"])
    assert report.problems == [], "\n".join(said)
    assert report.rows > 1000
    assert report.faults.total() == 3


def test_the_checker_accepts_duplicates_of_repeated_batches_only() -> None:
    rows = list(ROWS.items())
    assert problems("abc", ROWS, {"copy": rows}, {}) == []
    twice = [*rows, rows[1]]
    assert duplicates(twice) == 1
    assert problems("abc", ROWS, {"copy": twice}, {"copy": [Repeated(4, {0: 1}, {0: 2})]}) == []
    for batch in (Repeated(4, {0: 0}, {0: 1}), Repeated(4, {1: 0}, {1: 9})):
        assert problems("abc", ROWS, {"copy": twice}, {"copy": [batch]}) == [
            "copy has 1 rows more often than documented, like [(0, 1)]"
        ]
    assert problems("abc", ROWS, {"copy": [*twice, rows[1]]}, {"copy": [Repeated(4, {0: 0}, {0: 2})]}) == [
        "copy has 1 rows more often than documented, like [(0, 1)]"
    ]


def test_the_checker_finds_lost_and_changed_rows() -> None:
    rows = list(ROWS.items())
    assert problems("abcd", ROWS, {}, {}) == ["the input lost 1 acknowledged records, like ['d']"]
    assert problems("ab", {**ROWS, (1, 1): "c"}, {}, {}) == ["the input has 1 records more than once, like ['c']"]
    assert problems("abc", ROWS, {"table": rows[1:]}, {}) == ["table lost 1 rows, like [(0, 0)]"]
    assert problems("abc", ROWS, {"table": [((0, 0), "x"), *rows[1:]]}, {}) == [
        "table has 1 rows that differ from the input, like [(0, 0)]"
    ]


def test_the_checkpoint_shows_which_batch_spark_will_repeat(tmp_path: Path) -> None:
    assert unfinished(tmp_path) is None
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    for batch in (8, 9, 10):
        (tmp_path / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"in":{{"0":{batch},"1":5}}}}')
    for batch in (8, 9):
        (tmp_path / "commits" / str(batch)).write_text("v1\n{}")
    assert unfinished(tmp_path) == Repeated(10, {0: 9, 1: 5}, {0: 10, 1: 5})
    (tmp_path / "commits" / "10").write_text("v1\n{}")
    assert unfinished(tmp_path) is None
