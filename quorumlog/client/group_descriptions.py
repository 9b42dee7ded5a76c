"""Groups as their coordinators describe them: values for administrators, from answers of the Kafka protocol."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from quorumlog.client.group_protocol import CONSUMER, assigned_partitions, subscribed_topics
from quorumlog.runtime.addresses import Address

CLASSIC: Final = "classic"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"

Partition = tuple[str, int]
"""Topic and index."""


class Coordinator(NamedTuple):
    """The broker that coordinates a group."""

    broker_id: int
    address: Address


class ListedGroup(NamedTuple):
    """A group in a list.

    group_type: "classic" or "consumer" (KIP-848), or a later type; None if the broker does not report types.
    protocol_type: "consumer" for consumers; empty for groups that only have offsets.
    """

    group: str
    group_type: str | None
    state: str
    protocol_type: str
    coordinator: int


class GroupMember(NamedTuple):
    """A member of a group.

    instance_id: the name of a static member; None of a dynamic one.
    subscription: topics, ascending; None if the member's client does not use Kafka's format.
    assignment: topics with partitions, ascending; None likewise.  Empty until a rebalance has ended.
    epoch: of a member of a KIP-848 group.  None of a classic member, which has the generation of its group.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    subscription: tuple[str, ...] | None
    assignment: tuple[tuple[str, tuple[int, ...]], ...] | None
    epoch: int | None = None

    def partitions(self) -> list[Partition]:
        """Return the assigned partitions."""
        return [(topic, index) for topic, indexes in self.assignment or () for index in indexes]


class GroupDescription(NamedTuple):
    """A group.  assignor: empty while the members have not agreed.  epoch: of a KIP-848 group, else None."""

    group: str
    group_type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Coordinator
    members: tuple[GroupMember, ...]
    epoch: int | None = None


class CommittedOffset(NamedTuple):
    """An offset to commit, or a committed one: the next record that the group reads.

    leader_epoch: of the record before it; -1 if unknown.  metadata: a text of the client.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


def classic_group(described: Any, coordinator: Coordinator) -> GroupDescription:
    """Return a group in an answer to DescribeGroups."""
    is_consumer = described.protocol_type == CONSUMER
    members = tuple(
        GroupMember(
            each.member_id,
            getattr(each, "group_instance_id", None),
            each.client_id,
            each.client_host,
            subscribed_topics(each.member_metadata) if is_consumer and each.member_metadata else None,
            assigned_partitions(each.member_assignment) if is_consumer else None,
        )
        for each in sorted(described.members, key=lambda member: member.member_id)
    )
    return GroupDescription(
        described.group_id,
        CLASSIC,
        described.group_state,
        described.protocol_type,
        described.protocol_data,
        coordinator,
        members,
    )


def new_group(described: Any, coordinator: Coordinator) -> GroupDescription:
    """Return a group in an answer to ConsumerGroupDescribe."""
    members = tuple(
        GroupMember(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            tuple(sorted(each.subscribed_topic_names)),
            tuple(
                sorted(
                    (topic.topic_name, tuple(sorted(topic.partitions))) for topic in each.assignment.topic_partitions
                )
            ),
            each.member_epoch,
        )
        for each in sorted(described.members, key=lambda member: member.member_id)
    )
    return GroupDescription(
        described.group_id,
        CONSUMER,
        described.group_state,
        CONSUMER,
        described.assignor_name,
        coordinator,
        members,
        described.group_epoch,
    )
