"""docs/known_failures.md: every named test exists, and its tables are complete."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]
DOCUMENT = (TESTS.parent / "docs" / "known_failures.md").read_text()

QUORUM = [*map(str, range(1, 29)), "17b", "25b", "39", "40", "42"]
"""Numbers about Raft, log, snapshots and membership."""
CONTROLLER = [*map(str, range(29, 39)), "35b", "41"]
"""Numbers about the controller and brokers."""
INPUT_NUMBERS = [*range(14, 60), 72, *range(87, 104)]


class Row(NamedTuple):
    number: str
    failure: str
    answer: str
    tests: tuple[str, ...]


def table(title: str) -> list[Row]:
    section = DOCUMENT.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]  # without the heads
    rows = []
    for line in lines:
        number, failure, answer, tests = (cell.strip() for cell in line.strip("|").split(" | "))
        names = re.findall(r"`([^`]*)`", tests)
        assert re.sub(r"`[^`]*`|[ ,]", "", tests) == "", f"row {number}: {tests}"
        rows.append(Row(number, failure, answer, tuple(names)))
    return rows


FAILURES = {title: table(title) for title in ("Raft, log, snapshots, membership", "Controller and brokers")}
INPUTS = table("Bad input")


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the tests of a file: its top-level functions, as pytest collects them."""
    return frozenset(re.findall(r"^(?:async )?def (\w+)\(", path.read_text(), re.MULTILINE))


def exists(name: str) -> bool:
    if name.startswith("scenarios/"):
        return (TESTS / f"{name}.txt").is_file()
    path, _, function = name.partition("::")
    file = TESTS / path
    collected = file.name.startswith("test_") and function.startswith("test_")
    return collected and file.is_file() and function in functions(file)


def numbers_of(row: Row) -> set[str]:
    """The row's number and those of the issues that it names, as they are in the names of tests."""
    issues = re.findall(r"K-(\d+)", row.failure)
    return {f"k{number}_" for number in (row.number, *issues)}


@pytest.mark.parametrize(
    "row", [row for rows in (*FAILURES.values(), INPUTS) for row in rows], ids=lambda row: row.number
)
def test_every_test_that_is_named_exists(row: Row) -> None:
    assert row.tests, f"{row.number} names no test"
    assert [name for name in row.tests if not exists(name)] == []


@pytest.mark.parametrize("row", [row for rows in FAILURES.values() for row in rows], ids=lambda row: row.number)
def test_each_known_failure_has_a_test_named_after_it(row: Row) -> None:
    last = [re.split(r"/|::test_", name)[-1] for name in row.tests]
    assert any(name.startswith(tuple(numbers_of(row))) for name in last), row.tests


def test_no_number_of_the_tables_is_missing_or_repeated() -> None:
    assert [row.number for row in FAILURES["Raft, log, snapshots, membership"]] == sorted(QUORUM, key=place)
    assert [row.number for row in FAILURES["Controller and brokers"]] == sorted(CONTROLLER, key=place)
    numbers = [int(row.number) for row in INPUTS]
    assert numbers == sorted(set(numbers))
    assert set(INPUT_NUMBERS) <= set(numbers)


def place(number: str) -> tuple[int, str]:
    digits = re.match(r"\d+", number)
    assert digits is not None
    return int(digits[0]), number


def test_every_test_that_carries_a_number_is_in_the_tables() -> None:
    """The name of a file or function k17_… must be listed, so that readers find it."""
    named = {name for rows in FAILURES.values() for row in rows for name in row.tests}
    scenarios = {f"scenarios/{path.stem}" for path in (TESTS / "scenarios").glob("k[0-9]*_*.txt")}
    found = scenarios | {
        f"{path.relative_to(TESTS).as_posix()}::{function}"
        for path in TESTS.rglob("test_*.py")
        for function in functions(path)
        if re.match(r"test_k\d+b?_", function)
    }
    assert found - named == set()
