"""The simulator of the quorum finds known mistakes, and every mutant fits the function that it replaces."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from simulation.cluster.mutants import MUTANTS as CLUSTER_MUTANTS
from simulation.kernel.mutation import Mutant, hunt
from simulation.quorum.mutants import MUTANTS, attack_quorum
from simulation.quorum.plan import draw
from simulation.quorum.run import play

SEEDS = 100
SLOW = {
    "votes for a shorter log",
    "votes twice in an epoch",
    "a truncation keeps the voters that it removed",
    "a stale read is served",
    "any fetch confirms a read",
    "changes the voters before it has committed in its epoch",
    "a leader ignores a node that is ahead of it",
    "a moved voter is not found without a leader",
    "a fetch of an older epoch counts",
    "a disk of an older generation is accepted",
    "leadership circulates among slow disks",
    "leadership returns to a preferred voter with a slow disk",
    "a truncation leaves its last batch in the database",
}
"""These need more seeds than a test has time for: `python -m simulation --mutants`."""


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.name not in SLOW], ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant: object) -> None:
    found = next(one for one in MUTANTS if one is mutant)
    assert hunt(found, attack_quorum, SEEDS).caught_by is not None


def test_a_mutant_is_removed_after_its_run() -> None:
    for mutant in MUTANTS:
        with mutant.alive():
            pass
    assert play(draw(0)).violation is None


def function_of(found: Any) -> Callable[..., object] | None:
    """Return the function behind an attribute of a class or module; None if it is a value."""
    found = getattr(found, "__func__", None) or getattr(found, "fget", None) or found
    return found if callable(found) else None


def cannot_be_called_as(planted: Callable[..., object], original: Callable[..., object]) -> str:
    """Return why `planted` refuses the arguments of `original`; empty if it accepts all of them."""
    parameters = inspect.signature(original).parameters.values()
    positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    named = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
    try:
        inspect.signature(planted).bind(*positional, **named)
    except TypeError as error:
        return str(error)
    return "" if inspect.iscoroutinefunction(planted) == inspect.iscoroutinefunction(original) else "only one is async"


@pytest.mark.parametrize("mutant", [*MUTANTS, *CLUSTER_MUTANTS], ids=lambda mutant: mutant.name)
def test_a_mutant_accepts_the_arguments_of_the_functions_that_it_replaces(mutant: Mutant) -> None:
    """Otherwise every run fails with a TypeError, which says nothing about the mistake."""
    for patch in mutant.patches():
        original = function_of(inspect.getattr_static(patch.getter(), patch.attribute))
        planted = function_of(patch.new)
        if original is not None and planted is not None:
            assert cannot_be_called_as(planted, original) == "", patch.attribute
