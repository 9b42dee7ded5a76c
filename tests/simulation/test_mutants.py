"""Known mistakes are found, and found by what was meant to find them."""

from __future__ import annotations

import pytest

from simulation.kernel.mutation import hunt
from simulation.quorum.mutants import MUTANTS, attack_quorum
from simulation.quorum.plan import draw
from simulation.quorum.run import play

SEEDS = 100
SLOW = {
    "votes for a shorter log",
    "votes twice in an epoch",
    "a truncation keeps the voters that it cut off",
    "a stale read is served",
    "a read is confirmed by a fetch's arrival",
    "changes the voters before it has committed in its epoch",
    "who is ahead of its leader is left behind",
    "a voter that moved is not found without a leader",
    "a fetch of an older epoch counts",
    "a disk of an older generation is let in",
    "leadership circulates among slow disks",
    "a truncation leaves its last batch in the database",
}
"""Takes more seeds than a test has time for: `python -m simulation --mutants`."""


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.name not in SLOW], ids=lambda mutant: mutant.name)
def test_is_caught(mutant: object) -> None:
    found = next(one for one in MUTANTS if one is mutant)
    assert hunt(found, attack_quorum, SEEDS).caught_by is not None


def test_nothing_is_left_of_a_mutant() -> None:
    for mutant in MUTANTS:
        with mutant.alive():
            pass
    assert play(draw(0)).violation is None
