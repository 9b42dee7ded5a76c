"""Known mistakes with groups of the newer protocol, planted one at a time; `mutants.py` has the others."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from broker.core.coordinator.consumer import changes, offset_errors
from broker.core.coordinator.consumer.reconcile import reconcile
from quorumlog.wire.errors import KafkaCode
from simulation.kernel.mutation import Mutant, mutant_of

MUTANTS: list[Mutant] = []

_mutant = mutant_of(MUTANTS)


@_mutant("a partition is given to a member before its owner has given it up")
def _gives_early() -> list[Any]:
    def always_free(current: Any, target: Any, target_epoch: int, owned: Any, is_free: Any) -> Any:
        return reconcile(current, target, target_epoch, owned, lambda topic, index: True)

    return [patch.object(changes, "reconcile", always_free)]


@_mutant("a member that is no longer in the group may commit")
def _former_members_commit() -> list[Any]:
    return [patch.object(offset_errors, "commit_error", lambda *_, **__: KafkaCode.NONE)]
