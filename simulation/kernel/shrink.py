"""Shrinks a failing plan to as few faults as possible that still cause a violation.

Leaving a fault out changes everything after it, so any violation counts, not only the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

RUNS_MAX = 150


class Played(Protocol):
    """The result of a run, with its plan, which has `faults` and `only`."""

    @property
    def plan(self) -> Any: ...
    @property
    def violation(self) -> str | None: ...


R = TypeVar("R", bound=Played)


def shrink(found: R, play: Callable[[Any], R]) -> tuple[R, int]:
    """Return the result of the shortest plan found, and the number of runs that it took (at most `RUNS_MAX`)."""
    best, runs = found, 0
    size = max(1, len(best.plan.faults) // 2)
    while runs < RUNS_MAX:
        smaller = None
        numbers = [fault.number for fault in best.plan.faults]
        for start in range(0, len(numbers), size):
            without = set(numbers) - set(numbers[start : start + size])
            runs += 1
            tried = play(best.plan.only(without))
            if tried.violation is not None:
                smaller = tried
                break
            if runs >= RUNS_MAX:
                break
        if smaller is not None:
            best = smaller
            size = min(size, max(1, len(best.plan.faults) // 2))
        elif size == 1:
            break
        else:
            size //= 2
    return best, runs
