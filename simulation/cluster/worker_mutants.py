"""Known mistakes with share groups, planted one at a time; `mutants.py` has the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from broker.coordinator import led_share
from broker.coordinator.dead_letters import DeadLetters
from broker.coordinator.share_reminders import ShareReminders
from broker.core.share.partition import (
    NOTHING_TO_SAVE,
    Acquired,
    Delivery,
    ShareLimits,
    SharePartition,
    StateBatch,
)
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

    return [patch.object(led_share, "SharePartition", without)]


@_mutant("a new leader of a queue begins at its end")
def _begins_at_the_end() -> list[Any]:
    def at_the_end(limits: ShareLimits, start_offset: int, batches: Sequence[StateBatch]) -> SharePartition:
        return SharePartition(limits, max([start_offset, *(each.end for each in batches)]))

    return [patch.object(led_share, "SharePartition", at_the_end)]


@_mutant("a released record is done")
def _releases_for_ever() -> list[Any]:
    return [patch.object(SharePartition, "_next_state", lambda self, kind, count: Delivery.ARCHIVED)]


# Dead letters


@_mutant("a record is archived although its dead letter was not written")
def _drops_letters() -> list[Any]:
    async def dropped(self: DeadLetters, *arguments: Any) -> str:
        return ""

    return [patch.object(DeadLetters, "_append", dropped)]


def _loads(state: Delivery) -> list[Any]:
    """Let a new leader find another state in place of Archiving."""

    def changed(limits: ShareLimits, start_offset: int, batches: Sequence[StateBatch]) -> SharePartition:
        found = [each._replace(state=state) if each.state is Delivery.ARCHIVING else each for each in batches]
        return SharePartition(limits, start_offset, found)

    return [patch.object(led_share, "SharePartition", changed)]


@_mutant("a new leader does not write the missing dead letters")
def _forgets_letters() -> list[Any]:
    return _loads(Delivery.ARCHIVED)


@_mutant("nobody reminds a new leader of missing dead letters")
def _reminds_nobody() -> list[Any]:
    async def look(self: ShareReminders) -> None: ...

    return [patch.object(ShareReminders, "look", look)]


@_mutant("a new leader delivers records that have dead letters")
def _delivers_the_dead() -> list[Any]:
    return _loads(Delivery.AVAILABLE)


@_mutant("accepted records get dead letters")
def _buries_the_accepted() -> list[Any]:
    after = SharePartition._next_state

    def dead(self: SharePartition, *arguments: Any) -> Delivery:
        found = after(self, *arguments)
        return Delivery.ARCHIVING if found is Delivery.ACKNOWLEDGED and self.limits.has_dead_letters else found

    return [patch.object(SharePartition, "_next_state", dead)]
