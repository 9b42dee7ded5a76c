"""How a member comes from the partitions that it has to those of its target (KIP-848).

A partition has one owner: the member in whose current assignment it is, assigned or to be given up.  A member first
gives up what is not in its target; until its heartbeat shows that it has done so, it keeps its epoch, and others wait.
Then it takes the epoch of the target, and those partitions of it that nobody owns.  The others follow as their owners
give them up.  So no partition ever has two owners, whatever happens to the messages in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from broker.core.coordinator.consumer.partitions import NO_PARTITIONS, Partitions, common, each, minus, of, union
from broker.core.coordinator.consumer.records import CurrentValue, MemberState


def reconcile(
    current: CurrentValue,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[UUID, int], bool],
) -> CurrentValue:
    """Return the next assignment of a member; the same one if it cannot go on.

    owned: the partitions that the member reports; None if it reports none, so that they are as before.
    is_free: whether no other member owns a partition.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED and _still_owns(owned, current.revoking):
        return current
    kept = common(current.assigned, target)
    lost = minus(current.assigned, target)
    if lost and _still_owns(owned, lost):
        return replace(current, state=MemberState.UNREVOKED, assigned=kept, revoking=lost)
    missing = minus(target, kept)
    free = of((topic, index) for topic, index in each(missing) if is_free(topic, index))
    is_complete = free == missing
    previous_epoch = current.previous_epoch if current.epoch == target_epoch else current.epoch
    state = MemberState.STABLE if is_complete else MemberState.UNRELEASED
    return CurrentValue(target_epoch, previous_epoch, state, union(kept, free), NO_PARTITIONS)


def _still_owns(owned: Partitions | None, partitions: Partitions) -> bool:
    return owned is None or any(owned[topic] & partitions[topic] for topic in owned.keys() & partitions.keys())
