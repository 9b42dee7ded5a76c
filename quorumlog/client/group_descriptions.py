"""Descriptions of groups by their coordinators: values for administrators, from answers of the Kafka protocol."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from quorumlog.client.coordinators import Coordinator
from quorumlog.client.group_protocol import CONSUMER, assigned_partitions, subscribed_topics

CLASSIC: Final = "classic"
SHARE: Final = "share"
EMPTY: Final = "Empty"
DEAD: Final = "Dead"

Partition = tuple[str, int]
"""Topic and index."""


class ListedGroup(NamedTuple):
    """A group in a list.

    group_type: "classic", "consumer" (KIP-848) or "share" (KIP-932), or a later type; None if the
        broker does not report types.
    protocol_type: "consumer" for consumers; empty for groups that only have offsets.
    """

    group: str
    group_type: str | None
    state: str
    protocol_type: str
    coordinator: int

    @property
    def is_share(self) -> bool:
        """Return whether the members share partitions; such a group commits no offsets (KIP-932)."""
        return self.group_type == SHARE


class GroupMember(NamedTuple):
    """A member of a group.

    instance_id: the name of a static member; None for a dynamic one.
    subscription: topics, ascending; None if the member's client does not use Kafka's format.
    assignment: topics with partitions, ascending; empty until a rebalance has ended; None for the same reason as
        `subscription`.
    epoch: the epoch of a member of a KIP-848 or share group; None for a classic member, which has a generation instead.
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
    """A group.

    assignor: empty until the members have agreed on one.
    epoch: the epoch of a KIP-848 or share group; None for a classic group.
    """

    group: str
    group_type: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: Coordinator
    members: tuple[GroupMember, ...]
    epoch: int | None = None

    @property
    def is_share(self) -> bool:
        """Return whether the members share partitions; such a group commits no offsets (KIP-932)."""
        return self.group_type == SHARE


class CommittedOffset(NamedTuple):
    """The offset of the next record that the group reads: committed, or to be committed.

    leader_epoch: the leader epoch of the previous record; -1 if unknown.  metadata: a text that the client has stored.
    """

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Rebalance(NamedTuple):
    """One rebalance of a group.

    started_ms: ms since 1970, by the clock of the coordinator.  duration_ms: None while it is in progress.
    generation: the generation that the rebalance created, or will create.
    members: the number of members of that generation; 0 while they join.
    interrupted: another rebalance began before this one ended.
    reason: one word, such as "joined", "left" or "session_expired".  cause: the reason as a clause for people.
    caused_by: None if no member caused it.
    """

    started_ms: int
    duration_ms: int | None
    generation: int
    members: int
    interrupted: bool
    reason: str
    cause: str
    caused_by: GroupMember | None


class GroupExplanation(NamedTuple):
    """A group's rebalances since its coordinator was loaded.  Times are in ms since 1970, by the coordinator's clock.

    loaded_ms: the time since which this coordinator has had the group; it does not know earlier rebalances and joins.
    now_ms: the time of the answer.
    empty_since_ms: the time since which the group counts as empty: the loss of its last member, or a later commit;
        None if it has members, or the time is unknown.
    last_joined: the last member to join, and the time; None if none has joined since `loaded_ms`.
    awaited: members from which the rebalance in progress waits for a request.
    rebalances: the oldest first.
    """

    group: str
    group_type: str
    state: str
    generation: int
    members: int
    coordinator: Coordinator
    loaded_ms: int
    now_ms: int
    empty_since_ms: int | None
    last_joined: tuple[GroupMember, int] | None
    awaited: tuple[GroupMember, ...]
    rebalances: tuple[Rebalance, ...]


def explained_group(explained: Any, coordinator: Coordinator) -> GroupExplanation:
    """Return a group in an answer to ExplainGroups."""
    joined = [(_named(each), each.at) for each in explained.last_joined]
    return GroupExplanation(
        explained.group_id,
        explained.group_type,
        explained.group_state,
        explained.generation,
        explained.member_count,
        coordinator,
        explained.loaded,
        explained.now,
        explained.empty_since if explained.empty_since >= 0 else None,
        joined[0] if joined else None,
        tuple(map(_named, explained.awaited)),
        tuple(
            Rebalance(
                each.started,
                each.duration if each.duration >= 0 else None,
                each.generation,
                each.members,
                each.interrupted,
                each.reason,
                each.cause,
                _named(each.caused_by[0]) if each.caused_by else None,
            )
            for each in explained.rebalances
        ),
    )


def _named(member: Any) -> GroupMember:
    return GroupMember(member.member_id, member.group_instance_id, member.client_id, member.client_host, None, None)


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


def new_group(described: Any, coordinator: Coordinator, group_type: str) -> GroupDescription:
    """Return a group in an answer to ConsumerGroupDescribe or ShareGroupDescribe, which have the same fields."""
    members = tuple(
        GroupMember(
            each.member_id,
            getattr(each, "instance_id", None),  # members of a share group have none
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
        group_type,
        described.group_state,
        group_type,
        described.assignor_name,
        coordinator,
        members,
        described.group_epoch,
    )
