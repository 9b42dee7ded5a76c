"""Requests of the newer consumer protocol (KIP-848), their responses, and its limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.partitions import Partitions
from quorumlog.wire.errors import KafkaCode

JOINING: Final = 0
"""The epoch with which a member joins, or joins again without partitions."""
LEAVING: Final = -1
"""The epoch with which a member leaves permanently."""
AWAY: Final = -2
"""The epoch with which a static member leaves and keeps its partitions until its session ends."""

NO_TIMEOUT: Final = -1
"""The rebalance timeout of a heartbeat that does not change it."""

ASSIGNORS: Final = ("uniform", "range")
"""The assignors of this release.  The first one that the config names is the default."""


class ConsumerLimits(msgspec.Struct, frozen=True):
    """The limits of groups of the newer protocol.  Times in ms.

    session_timeout_ms: a member that sends no heartbeat for this long is removed.
    heartbeat_interval_ms: the interval that the coordinator sends to members.
    assignment_interval_ms: the least time between two targets of a group (KIP-1263); 0: each change makes a target at
        once.
    members_max: `group.consumer.max.size`; further members get GROUP_MAX_SIZE_REACHED.
    assignors: the assignors that members may choose; the first is used if they choose none.
    may_upgrade, may_downgrade: whether a classic group with members may become a consumer group, and the reverse.
    topics_max: names in the subscription of a member; a longer subscription gets INVALID_REQUEST.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    members_max: int = 10_000
    assignors: tuple[str, ...] = ASSIGNORS
    may_upgrade: bool = True
    may_downgrade: bool = True
    topics_max: int = 10_000

    def __post_init__(self) -> None:
        assert self.session_timeout_ms >= 1, self
        assert self.heartbeat_interval_ms >= 1, self
        assert self.assignment_interval_ms >= 0, self
        assert self.members_max >= 1, self
        assert self.assignors, self
        assert set(self.assignors) <= set(ASSIGNORS), self


class Topic(NamedTuple):
    """A topic that exists.  partitions: how many it has."""

    topic_id: UUID
    partitions: int


class SubscribedTopics(Protocol):
    """Answers questions of consumer groups about topics from the newest image.

    version: grows whenever an answer may have changed.
    """

    @property
    def version(self) -> int: ...

    def topic(self, name: str) -> Topic | None:
        """Return a topic; None if it does not exist."""
        ...

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return the name of a topic; None if it does not exist."""
        ...

    def matching(self, regex: str) -> Sequence[str] | None:
        """Return the topics whose whole name matches, sorted, without internal topics; None if the regex is not valid.

        For every regex, the time is linear in the total length of the names.
        """
        ...


class ConsumerHeartbeat(msgspec.Struct, frozen=True):
    """A member joins, stays, changes its subscription, gives up partitions, or leaves.

    epoch: the member's epoch, or JOINING, LEAVING or AWAY.
    A field that is None (rebalance_timeout_ms: NO_TIMEOUT) is unchanged since the last request.
    owned: the partitions that the member owns.
    """

    group: str
    member_id: str
    epoch: int
    client: Client
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = NO_TIMEOUT
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    may_lack_id: bool = False
    """The coordinator makes the member id if it is empty (version 0)."""

    @property
    def is_full(self) -> bool:
        """Return whether the request has every field, because the member may have missed an answer."""
        is_subscribed = self.topics is not None or self.regex is not None
        return self.rebalance_timeout_ms != NO_TIMEOUT and is_subscribed and self.owned is not None


class ConsumerHeartbeatResponse(msgspec.Struct, frozen=True):
    """The answer to a heartbeat.  assignment: the partitions that the member may use now; None if unchanged."""

    error: KafkaCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class DescribeConsumerGroups(msgspec.Struct, frozen=True):
    """Describe groups of the newer protocol.  Other groups get GROUP_ID_NOT_FOUND."""

    groups: tuple[str, ...]


class NamedPartitions(NamedTuple):
    """Partitions of a topic, ascending."""

    topic_id: UUID
    topic: str
    partitions: tuple[int, ...]


class ConsumerMemberDescription(NamedTuple):
    """One member of a consumer group.

    assignment: the partitions that it owns, including those that it must still give up.
    target: the partitions that it will own.  Topics that no longer exist are left out of both.
    """

    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    assignment: tuple[NamedPartitions, ...]
    target: tuple[NamedPartitions, ...]
    is_classic: bool


class ConsumerGroupDescription(NamedTuple):
    """members: sorted by member id."""

    group: str
    error: KafkaCode = KafkaCode.NONE
    error_message: str | None = None
    state: str = ""
    epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ConsumerMemberDescription, ...] = ()


class DescribeConsumerGroupsResponse(msgspec.Struct, frozen=True):
    """groups: one for each group of the request, in that order."""

    groups: tuple[ConsumerGroupDescription, ...]
