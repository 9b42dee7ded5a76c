"""Known mistakes of moves between directories; `mutants.py` has the others."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from broker.log.durability import Durability
from broker.log.move import LogMove
from broker.replica.directories import Directories
from simulation.kernel.mutation import Mutant, mutant_of

MUTANTS: list[Mutant] = []

_mutant = mutant_of(MUTANTS)


async def _nothing(*_: Any) -> None:
    pass


@_mutant("records are acknowledged while the move of their log is decided")
def _acknowledges_meanwhile() -> list[Any]:
    return [patch.object(Durability, "hold", lambda self: None)]


@_mutant("a moved replica stays in its former directory as well")
def _keeps_the_source() -> list[Any]:
    return [patch.object(LogMove, "clean_up", _nothing)]


@_mutant("a broker does not report the new directory of a replica")
def _reports_nothing() -> list[Any]:
    return [patch.object(Directories, "_on_moved", lambda self, key: None)]
