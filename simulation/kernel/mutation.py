"""Known mistakes, planted one at a time, to show that a simulator finds them.

A mutant patches the product while its context is open, and leaves no change behind.  `hunt` runs seeds until one ends
in a violation.  The result names the check that caught the mutant, since some mistakes fail an assertion inside the
core before they violate an invariant of the simulator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

SEEDS_MAX = 1000

Attack = Callable[[int], str | None]
"""Plays a seed and returns the violation, if there was one."""


@dataclass(frozen=True)
class Mutant:
    """A known mistake.  patches: returns patches of `unittest.mock` that are not started yet."""

    name: str
    patches: Callable[[], list[Any]]

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Let the product make this mistake while the context is open."""
        patches = self.patches()
        for one in patches:
            one.start()
        try:
            yield
        finally:
            for one in reversed(patches):
                one.stop()


@dataclass(frozen=True)
class Catch:
    """The result of a hunt.  seeds: how many were run, including the last.  caught_by: None if no seed caught it."""

    mutant: Mutant
    seeds: int
    caught_by: str | None


def mutant_of(mutants: list[Mutant]) -> Callable[[str], Callable[[Callable[[], list[Any]]], Callable[[], list[Any]]]]:
    """Return a decorator for functions that return the patches of a mutant; it adds the named mutant to `mutants`."""

    def named(name: str) -> Callable[[Callable[[], list[Any]]], Callable[[], list[Any]]]:
        def add(patches: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
            mutants.append(Mutant(name, patches))
            return patches

        return add

    return named


def hunt(mutant: Mutant, attack: Attack, seeds: int = SEEDS_MAX, first: int = 0) -> Catch:
    """Run seeds until one catches the mutant."""
    with mutant.alive():
        for seed in range(first, first + seeds):
            violation = attack(seed)
            if violation is not None:
                return Catch(mutant, seed - first + 1, violation)
    return Catch(mutant, seeds, None)


def hunt_all(mutants: Sequence[Mutant], attack: Attack) -> int:
    """Hunt each mutant, and print the check that caught it and the number of seeds.

    Return the exit status: 1 if a mutant was not caught, otherwise 0.
    """
    missed = 0
    width = max(len(mutant.name) for mutant in mutants)
    for mutant in mutants:
        began = time.monotonic()
        catch = hunt(mutant, attack)
        missed += catch.caught_by is None
        check = " ".join((catch.caught_by or "NOT CAUGHT").split())[:150]
        print(f"{mutant.name:{width}}  {catch.seeds:4} seeds {time.monotonic() - began:6.1f} s  {check}", flush=True)
    print(f"{len(mutants) - missed} of {len(mutants)} mutants caught")
    return 1 if missed else 0
