"""Known mistakes with share groups, planted one at a time; `mutants.py` has the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from broker.coordinator import share_partitions
from broker.core.share.partition import NOTHING_TO_SAVE, Acquired, Delivery, ShareLimits, SharePartition, StateBatch
from quorumlog.wire.errors import KafkaCode
from simulation.kernel.mutation import Mutant, mutant_of

MUTANTS: list[Mutant] = []

_mutant = mutant_of(MUTANTS)


@_mutant("an acceptance is answered before it is durable")
def _answers_early() -> list[Any]:
    acknowledge = SharePartition.acknowledge

    def early(self: SharePartition, *arguments: Any) -> int | KafkaCode:
        found = acknowledge(self, *arguments)
        return found if isinstance(found, KafkaCode) else NOTHING_TO_SAVE

    return [patch.object(SharePartition, "acknowledge", early)]


@_mutant("a locked record is given to another member")
def _shares_locks() -> list[Any]:
    acquire = SharePartition.acquire

    def anyway(self: SharePartition, *arguments: Any, **options: Any) -> list[Acquired]:
        self._release(lambda status: True, given_back=1)
        return acquire(self, *arguments, **options)

    return [patch.object(SharePartition, "acquire", anyway)]


@_mutant("a new leader of a queue knows only the start")
def _knows_the_start() -> list[Any]:
    def without(limits: ShareLimits, start_offset: int, batches: Sequence[StateBatch]) -> SharePartition:
        return SharePartition(limits, start_offset)

    return [patch.object(share_partitions, "SharePartition", without)]


@_mutant("a new leader of a queue begins at its end")
def _begins_at_the_end() -> list[Any]:
    def at_the_end(limits: ShareLimits, start_offset: int, batches: Sequence[StateBatch]) -> SharePartition:
        return SharePartition(limits, max([start_offset, *(each.end for each in batches)]))

    return [patch.object(share_partitions, "SharePartition", at_the_end)]


@_mutant("a released record is done")
def _releases_for_ever() -> list[Any]:
    return [patch.object(SharePartition, "_next_state", lambda self, kind, count: Delivery.ARCHIVED)]
