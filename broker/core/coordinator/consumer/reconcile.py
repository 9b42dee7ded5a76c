"""Moves a member from its current partitions to the partitions of its target (KIP-848).

A partition has one owner: the member whose current assignment contains it, either to use or to give up.  A member first
gives up the partitions that are not in its target.  Until its heartbeat shows that it has given them up, it keeps its
epoch, and other members wait.  Then it takes the epoch of the target, and those partitions of the target that have no
owner.  It gets the remaining partitions when their owners give them up.  So no partition ever has two owners, even if
messages are lost, repeated or reordered.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from msgspec.structs import replace

from broker.core.coordinator.consumer.partitions import NO_PARTITIONS, Partitions, common, each, minus, of, union
from broker.core.coordinator.consumer.records import CurrentValue, MemberState


def reconcile(
    current: CurrentValue,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[UUID, int], bool],
) -> CurrentValue:
    """Return the next assignment of a member; the current one if there is no next step yet.

    owned: the partitions that the member reports; None if its request has no such list, because nothing has changed.
    is_free: called with a topic id and an index; returns whether no other member owns this partition.
    """
    is_stable = current.state is MemberState.STABLE and current.epoch == target_epoch
    if is_stable and (current.assigned == target or not minus(current.assigned, target)):
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
