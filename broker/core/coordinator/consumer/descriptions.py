"""Consumer groups as administrators see them: ConsumerGroupDescribe."""

from __future__ import annotations

from broker.core.coordinator.consumer.changes import preferred_assignor
from broker.core.coordinator.consumer.group import ConsumerGroup, ConsumerMember
from broker.core.coordinator.consumer.partitions import Partitions, union
from broker.core.coordinator.consumer.requests import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    NamedPartitions,
    SubscribedTopics,
)
from broker.core.coordinator.group_requests import GroupLimits, GroupState
from quorumlog.wire.errors import KafkaCode


def describe(name: str, group: object, limits: GroupLimits, topics: SubscribedTopics) -> ConsumerGroupDescription:
    """Return the description of a consumer group.  Other and Dead groups get GROUP_ID_NOT_FOUND."""
    if not isinstance(group, ConsumerGroup) or group.state is GroupState.DEAD:
        message = f"There is no consumer group {name}." if group is None else f"Group {name} is not a consumer group."
        return ConsumerGroupDescription(name, KafkaCode.GROUP_ID_NOT_FOUND, message, GroupState.DEAD)
    members = tuple(_member(member, topics) for _, member in sorted(group.members.items()))
    return ConsumerGroupDescription(
        name,
        KafkaCode.NONE,
        None,
        group.state,
        group.epoch,
        group.assignment_epoch,
        preferred_assignor(group, limits),
        members,
    )


def _member(member: ConsumerMember, topics: SubscribedTopics) -> ConsumerMemberDescription:
    value, current = member.known, member.current
    return ConsumerMemberDescription(
        member.member_id,
        value.instance_id,
        value.rack_id,
        current.epoch,
        value.client_id,
        value.client_host,
        value.topics,
        value.regex,
        _named(union(current.assigned, current.revoking), topics),
        _named(member.target, topics),
        member.is_classic,
    )


def _named(partitions: Partitions, topics: SubscribedTopics) -> tuple[NamedPartitions, ...]:
    named = ((topics.topic_name(topic), topic, indexes) for topic, indexes in partitions.items())
    found = [NamedPartitions(topic, name, tuple(sorted(indexes))) for name, topic, indexes in named if name is not None]
    return tuple(sorted(found, key=lambda each: each.topic))
