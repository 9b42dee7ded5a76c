"""Known mistakes are found, each by its own check."""

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
