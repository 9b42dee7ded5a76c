"""Known mistakes with several batches of a producer in flight; `mutants.py` has the others."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from broker.core.refused_batches import RefusedBatches
from broker.replica.replica import Replica
from simulation.kernel.mutation import Mutant, mutant_of

MUTANTS: list[Mutant] = []

_mutant = mutant_of(MUTANTS)


@_mutant("a batch behind one that was refused for the moment is reported as a loss")
def _reports_losses() -> list[Any]:
    """As Kafka does.  librdkafka then writes a batch twice if its answer was lost."""
    return [patch.object(RefusedBatches, "cause", lambda *refusal: None)]


@_mutant("a producer begins with its second batch if the first one was refused")
def _begins_late() -> list[Any]:
    return [patch.object(Replica, "_behind_refused", lambda self, log, batch: None)]
