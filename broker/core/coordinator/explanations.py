"""Explains the last rebalances of a group to administrators: the answer to ExplainGroups."""

from __future__ import annotations

from typing import NamedTuple

from broker.core.coordinator.consumer.group import ConsumerGroup
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import GroupExplanation, GroupState, GroupType, MemberName
from quorumlog.wire.errors import KafkaCode


class Times(NamedTuple):
    """Wall-clock times: the load of the coordinator, and the current time."""

    loaded_ms: int
    now_ms: int


def explain(
    name: str, group: Group | ConsumerGroup | None, last_commit_ms: int | None, times: Times
) -> GroupExplanation:
    """Return the explanation of a group's last rebalances.

    last_commit_ms: time of the group's newest committed offset; None if it has no offsets.  A group of simple consumers
    has only offsets, so it counts as empty since its newest commit.
    """
    if group is None and last_commit_ms is not None:
        return GroupExplanation(
            name,
            state=GroupState.EMPTY,
            loaded_ms=times.loaded_ms,
            now_ms=times.now_ms,
            empty_since_ms=last_commit_ms,
        )
    if group is None or group.state is GroupState.DEAD:
        return GroupExplanation(name, KafkaCode.GROUP_ID_NOT_FOUND, f"There is no group {name}.")
    return GroupExplanation(
        name,
        group_type=GroupType.CONSUMER if isinstance(group, ConsumerGroup) else GroupType.CLASSIC,
        state=group.state,
        generation=group.generation,
        members=len(group.members),
        loaded_ms=times.loaded_ms,
        now_ms=times.now_ms,
        empty_since_ms=_empty_since(group, last_commit_ms),
        last_joined=group.history.last_join,
        awaited=_awaited(group),
        rebalances=group.history.rebalances(),
    )


def _empty_since(group: Group | ConsumerGroup, last_commit_ms: int | None) -> int | None:
    if group.state is not GroupState.EMPTY:
        return None
    known = [at_ms for at_ms in (group.state_ms, last_commit_ms) if at_ms is not None and at_ms > 0]
    return max(known, default=None)


def _awaited(group: Group | ConsumerGroup) -> tuple[MemberName, ...]:
    """Return the members whose JoinGroup or SyncGroup is missing, or that have not reached the target yet."""
    if isinstance(group, ConsumerGroup):
        target = group.assignment_epoch
        return tuple(each.names for _, each in sorted(group.members.items()) if not each.is_reconciled(target))
    match group.state:
        case GroupState.PREPARING_REBALANCE:
            late = [member_id for member_id, member in group.members.items() if member.join_call is None]
        case GroupState.COMPLETING_REBALANCE:
            late = list(group.unsynced)
        case _:
            late = []
    return tuple(group.members[member_id].names for member_id in sorted(late))
