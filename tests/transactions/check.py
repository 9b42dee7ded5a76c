"""Compares the reports of writers and loops of transactions with the records that readers saw.  Pure.

A writer's record names its transaction and its place in it, so that each view can be compared with the history: a
committed transaction is visible as a whole, once, and in order; an aborted one is not visible at all; one whose end is
unknown (its writer was killed or fenced) is visible as a whole or not at all.  A loop's record names the record that it
was made from, so that each committed record of the input must be in the output exactly once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

SHOWN_MAX = 10
"""Problems of one kind that are shown."""


class Fate(StrEnum):
    """How a transaction ended, as its writer knows it."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Seen(NamedTuple):
    """A record as a reader saw it."""

    partition: int
    offset: int
    value: str


class Written(NamedTuple):
    """The value of a writer's record: record `place` of the `size` records of a transaction."""

    writer: str
    number: int
    size: int
    place: int

    @property
    def transaction(self) -> tuple[str, int]:
        return self.writer, self.number

    def __str__(self) -> str:
        return ":".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Written:
        writer, *numbers = text.split(":")
        return cls(writer, *map(int, numbers))


class Transaction(NamedTuple):
    """A transaction that a writer began."""

    size: int
    fate: Fate


History = Mapping[tuple[str, int], Transaction]


def writer_problems(history: History, committed: Sequence[Seen], everything: Sequence[Seen]) -> list[str]:
    """Return what is wrong with the input topic.

    committed, everything: what readers of committed and of all records saw, in the order of each partition.
    """
    views = defaultdict[tuple[str, int], list[int]](list)
    for each in committed:
        written = Written.parse(each.value)
        views[written.transaction].append(written.place)
    wrong: list[str] = []
    for key in sorted(history.keys() | views.keys()):
        problem = _transaction_problem(history.get(key), sorted(views.get(key, [])))
        if problem:
            wrong.append(f"transaction {key[1]} of {key[0]}: {problem}")
    hidden = Counter(each.value for each in everything)
    repeated = sum(count - 1 for count in hidden.values())
    if repeated:
        wrong.append(f"the log has {repeated} records twice")
    missing = set(committed) - set(everything)
    if missing:
        wrong.append(f"readers of all records did not see {len(missing)} committed ones, for example {min(missing)}")
    return shown([*wrong, *_disorder(committed)])


def _transaction_problem(known: Transaction | None, indexes: list[int]) -> str:
    if known is None:
        return f"{len(indexes)} records are visible, but it never began"
    whole = list(range(known.size))
    match known.fate:
        case Fate.ABORTED if indexes:
            return f"it was aborted, but {len(indexes)} of its {known.size} records are visible"
        case Fate.COMMITTED if indexes != whole:
            return f"it was committed with {known.size} records, but {indexes} are visible"
        case Fate.UNKNOWN if indexes not in ([], whole):
            return f"its end is unknown, but {indexes} of its {known.size} records are visible"
    return ""


def _disorder(committed: Iterable[Seen]) -> list[str]:
    last: dict[tuple[int, str], Written] = {}
    wrong = []
    for each in committed:
        written = Written.parse(each.value)
        before = last.get((each.partition, written.writer))
        if before is not None and (before.number, before.place) >= (written.number, written.place):
            wrong.append(f"partition {each.partition} has {written} at offset {each.offset}, after {before}")
        last[each.partition, written.writer] = written
    return wrong


def loop_value(source: Seen) -> str:
    """Return the value that a loop writes for a record of its input."""
    return f"{source.partition}:{source.offset}:{source.value}"


def loop_problems(name: str, source: Iterable[Seen], output: Sequence[Seen]) -> list[str]:
    """Return what is wrong with the output of a loop: each committed record of its input belongs there once, in order.

    A loop writes each record to the partition with the number of its input.
    """
    wanted = {loop_value(each): (each.partition, each.offset) for each in source}
    found = Counter(each.value for each in output)
    wrong = [f"{name} has {value} {count} times" for value, count in found.items() if count > 1]
    wrong += [f"{name} lacks {value}" for value in wanted if value not in found]
    wrong += [f"{name} has {value}, which no committed record has" for value in found if value not in wanted]
    last: dict[int, int] = {}
    for each in output:
        _, offset = wanted.get(each.value, (0, -1))
        if 0 <= offset < last.get(each.partition, -1):
            wrong.append(f"{name}-{each.partition} has {each.value} after offset {last[each.partition]} of its input")
        last[each.partition] = max(last.get(each.partition, -1), offset)
    return shown(wrong)


def shown(problems: Sequence[str]) -> list[str]:
    """Return the first problems, and how many others there are."""
    rest = len(problems) - SHOWN_MAX
    return [*problems[:SHOWN_MAX], *([f"and {rest} more"] if rest > 0 else [])]
