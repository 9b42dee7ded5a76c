"""Groups as clients and administrators see them: DescribeGroups and ListGroups."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.coordinator.consumer.group import ConsumerGroup
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import (
    GroupDescription,
    GroupState,
    GroupType,
    ListedGroup,
    ListGroups,
    MemberDescription,
)
from broker.core.coordinator.share.groups import SHARE, ShareGroup
from quorumlog.wire.errors import KafkaCode


def describe(
    name: str, group: Group | ConsumerGroup | None, has_offsets: bool, report_missing: bool
) -> GroupDescription:
    """Return the description of a classic group, or of a group of simple consumers, which has only offsets.

    A consumer group counts as missing in DescribeGroups: `consumer.descriptions` describes it.
    report_missing: whether a missing group gets GROUP_ID_NOT_FOUND.  Otherwise it is described as Dead.
    """
    if group is None and has_offsets:
        return GroupDescription(name, state=GroupState.EMPTY)
    if group is None or isinstance(group, ConsumerGroup) or group.state is GroupState.DEAD:
        if not report_missing:
            return GroupDescription(name, state=GroupState.DEAD)
        message = f"There is no group {name}."
        if isinstance(group, ConsumerGroup) and group.state is not GroupState.DEAD:
            message = f"Group {name} is not a classic group."
        return GroupDescription(name, KafkaCode.GROUP_ID_NOT_FOUND, message, GroupState.DEAD)
    is_stable = group.state is GroupState.STABLE
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client.client_id,
            member.client.host,
            member.metadata(group.protocol) if is_stable else b"",
            member.assignment if is_stable else b"",
        )
        for _, member in sorted(group.members.items())
    )
    protocol = (group.protocol or "") if is_stable else ""
    return GroupDescription(name, KafkaCode.NONE, None, group.state, group.protocol_type, protocol, members)


def listed(
    request: ListGroups,
    groups: dict[str, Group | ConsumerGroup],
    with_offsets: Iterable[str],
    shares: dict[str, ShareGroup],
) -> tuple[ListedGroup, ...]:
    """Return the groups that a request asks for.  with_offsets: the names of the groups that have committed offsets."""
    every = [
        ListedGroup(
            each.name,
            each.protocol_type,
            each.state,
            GroupType.CONSUMER if isinstance(each, ConsumerGroup) else GroupType.CLASSIC,
        )
        for each in groups.values()
    ]
    every += [ListedGroup(name, "", GroupState.EMPTY, GroupType.CLASSIC) for name in with_offsets if name not in groups]
    every += [ListedGroup(each.name, SHARE, each.state, GroupType.SHARE) for each in shares.values()]
    states = {state.lower() for state in request.states}
    types = {group_type.lower() for group_type in request.types}
    return tuple(
        sorted(
            each
            for each in every
            if (not states or each.state.lower() in states) and (not types or each.group_type.lower() in types)
        )
    )
