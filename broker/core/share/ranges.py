"""A map from offsets to values that stores runs of equal values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")


class Run(NamedTuple, Generic[V]):
    """Adjacent offsets with one value.  end: exclusive."""

    first: int
    end: int
    value: V


class RangeMap(Generic[V]):
    """Values by offset.  Adjacent offsets with equal values are one run, so only runs take memory."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[Run[V]] = []

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    def __iter__(self) -> Iterator[Run[V]]:
        """Yield the runs, ascending."""
        return iter(self._runs)

    @property
    def end(self) -> int | None:
        """Return the offset after the last one that has a value; None if no offset has a value."""
        return self._runs[-1].end if self._runs else None

    def within(self, first: int, end: int) -> list[Run[V]]:
        """Return the runs in [first, end), clipped to this range."""
        runs = self._runs
        found: list[Run[V]] = []
        at = self._index(first)
        while at < len(runs) and runs[at].first < end:
            run = runs[at]
            found.append(Run(max(run.first, first), min(run.end, end), run.value))
            at += 1
        return found

    def assign(self, first: int, end: int, value: V) -> None:
        """Give all offsets in [first, end) this value."""
        if first >= end:
            return
        runs = self._runs
        low = high = self._index(first)
        while high < len(runs) and runs[high].first < end:
            high += 1
        parts: list[Run[V]] = []
        if low < high and runs[low].first < first:
            parts.append(Run(runs[low].first, first, runs[low].value))
        parts.append(Run(first, end, value))
        if low < high and runs[high - 1].end > end:
            parts.append(Run(end, runs[high - 1].end, runs[high - 1].value))
        low, high = max(low - 1, 0), min(high + 1, len(runs))
        before = [each for each in runs[low:high] if each.end <= first and each.first < parts[0].first]
        after = [each for each in runs[low:high] if each.first >= end and each.end > parts[-1].end]
        runs[low:high] = _merged([*before, *parts, *after])

    def cut_below(self, offset: int) -> None:
        """Remove the values of all offsets below this one."""
        at = self._index(offset)
        del self._runs[:at]
        if self._runs and self._runs[0].first < offset:
            self._runs[0] = self._runs[0]._replace(first=offset)

    def _index(self, offset: int) -> int:
        """Return the index of the first run that ends after this offset."""
        at = bisect_right(self._runs, offset, key=lambda run: run.first)
        return at - 1 if at and self._runs[at - 1].end > offset else at


def _merged(runs: list[Run[V]]) -> list[Run[V]]:
    merged: list[Run[V]] = []
    for run in runs:
        if merged and merged[-1].end == run.first and merged[-1].value == run.value:
            merged[-1] = merged[-1]._replace(end=run.end)
        else:
            merged.append(run)
    return merged
