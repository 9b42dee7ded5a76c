"""Requests to the coordinator of consumer groups, their responses, and its limits.

The machine of groups has these methods in addition to `machine.Machine[GroupRequest, GroupLimits]`:

    GroupMachine(limits: GroupLimits, topics: Topics, random: Random, wall_ms: Callable[[], int], configs: GroupConfigs,
        cautious_ms: Callable[[], int])
    topics_deleted(topics: Collection[str], now_ms: int) -> Step     offsets of deleted topics are deleted
    topics_changed(topics: Collection[str] | None, now_ms: int) -> Step   consumer groups follow changes of topics
    partitions_removed(now_ms: int) -> Step                          offsets of missing partitions are deleted
    share_initialized(group: str, partitions: Sequence[NamedPartitions], now_ms: int) -> Step   reports for share groups
    share_deleted(group: str, partitions: Sequence[NamedPartitions], now_ms: int) -> Step
    states() -> Iterator[GroupState]                                 the state of each group
    explain(group: str) -> tuple[Rebalance, ...]                     the last rebalances, the oldest first
    unknown_records: int                                             number of records of unknown types

`wall_ms` gives the wall clock in ms since the epoch, for the times that records store; `cautious_ms` follows a jump of
that clock only after a day, for expiry.  `random` makes member ids.

Each request concerns the groups of one partition of `__consumer_offsets`: a request that names groups of several
partitions is split before it reaches a machine.  A request of one kind has exactly one kind of response.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol
from uuid import UUID

import msgspec

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.requests import (
    ConsumerHeartbeat,
    ConsumerLimits,
    DescribeConsumerGroups,
    SubscribedTopics,
)
from broker.core.coordinator.share.requests import ShareGroupLimits, ShareRequest
from broker.core.transactions import Marker, ProducerKey
from quorumlog.wire.errors import KafkaCode

NO_GENERATION = -1
"""The generation of a simple consumer, which commits offsets without being a member."""

NO_OFFSET = -1
"""The offset of a partition for which nothing is committed."""

NO_RETENTION = -1
"""A commit without a retention of its own."""


class GroupState(StrEnum):
    """The state of a group, by Kafka's name.  Only consumer groups are Assigning or Reconciling."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupType(StrEnum):
    """The protocol of a group, by Kafka's name.  A consumer group uses the newer one (KIP-848)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class Topics(SubscribedTopics, Protocol):
    """Answers questions of a coordinator about topics from the image."""

    def has_partition(self, topic: str, partition: int) -> bool:
        """Return whether the partition exists in the newest image."""
        ...

    def may_commit(self, topic: str, partition: int) -> bool:
        """Return whether this and every later coordinator knows the partition, unless it is deleted in between."""
        ...

    def origin(self, topic: str) -> UUID | None:
        """Return the id with which the topic was created; None if the topic does not exist.

        No other topic of this name has the same id.  The answer is from the newest image.  If `may_commit` returns
        true, every later coordinator has the same answer.
        """
        ...


class GroupConfigs(Protocol):
    """Looks up the limits of single groups in the image.  A changed config applies at the next look-up."""

    def consumer(self, group: str, limits: ConsumerLimits) -> ConsumerLimits:
        """Return the limits of a group of the newer protocol.  limits: the result for a group without configs."""
        ...

    def share(self, group: str, limits: ShareGroupLimits) -> ShareGroupLimits:
        """Return the limits of a share group; see `consumer`."""
        ...


class NoGroupConfigs:
    """The `GroupConfigs` of a cluster in which no group has configs of its own."""

    def consumer(self, group: str, limits: ConsumerLimits) -> ConsumerLimits:
        return limits

    def share(self, group: str, limits: ShareGroupLimits) -> ShareGroupLimits:
        return limits


class GroupLimits(msgspec.Struct, frozen=True):
    """The limits of a coordinator of groups.  Times in ms.

    session_timeout_min_ms, session_timeout_max_ms: a join outside this closed range gets INVALID_SESSION_TIMEOUT.
    members_max: `group.max.size`; further joins get GROUP_MAX_SIZE_REACHED.
    initial_rebalance_delay_ms: how long the first rebalance of an empty group waits for more members.
    offset_metadata_max_bytes: a longer text of a committed offset gets OFFSET_METADATA_TOO_LARGE.
    offsets_retention_ms: how long offsets stay after the group became empty; for simple consumers, after the commit.
    expiry_interval_ms: time between two searches for expired offsets.
    name_max_bytes: a longer group id gets INVALID_GROUP_ID.  A JoinGroup, ConsumerGroupHeartbeat or
        ShareGroupHeartbeat with any other longer name gets INVALID_REQUEST.
    protocols_max: assignors per member; a join with more gets INVALID_REQUEST.
    member_max_bytes: metadata of all protocols of a member; a join with more gets INVALID_REQUEST.
    batch_max_bytes: bytes of the records of one step.  A commit with larger records gets INVALID_COMMIT_OFFSET_SIZE.  A
        join or an assignment gets GROUP_MAX_SIZE_REACHED if it makes the record of its group larger than
        `group_max_bytes`.
    groups_max: a join or commit that would create another group gets POLICY_VIOLATION.
    offsets_max: offsets of all groups; a commit that would add more gets POLICY_VIOLATION.
    consumer, share: the limits of groups of the newer protocol, and of share groups, that have no configs of their own.
    """

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    members_max: int = 10_000
    initial_rebalance_delay_ms: int = 3_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    expiry_interval_ms: int = 600_000
    name_max_bytes: int = 1_024
    protocols_max: int = 100
    member_max_bytes: int = 500_000
    batch_max_bytes: int = 1_000_000
    groups_max: int = 100_000
    offsets_max: int = 10_000_000
    consumer: ConsumerLimits = msgspec.field(default_factory=ConsumerLimits)
    share: ShareGroupLimits = msgspec.field(default_factory=ShareGroupLimits)

    def __post_init__(self) -> None:
        assert 1 <= self.session_timeout_min_ms <= self.session_timeout_max_ms, self
        assert self.members_max >= 1, self
        assert self.initial_rebalance_delay_ms >= 0, self
        assert self.expiry_interval_ms >= 1, self
        assert self.offset_metadata_max_bytes <= 32_767, "a record has no room for more"
        assert self.name_max_bytes <= 10_000, "a record has room for names of 32,767 bytes"
        assert self.batch_max_bytes >= max(10_000, 8 * self.name_max_bytes), self

    @property
    def group_max_bytes(self) -> int:
        """Return the largest permitted `Group.record_bytes`.  The rest of a batch has room for names of the group."""
        return self.batch_max_bytes - 4 * self.name_max_bytes


class MemberProtocol(NamedTuple):
    """An assignor that a member supports, with the member's metadata for it (for consumers, the subscription)."""

    name: str
    metadata: bytes


# -- members


class JoinGroup(msgspec.Struct, frozen=True):
    """Join a group, or join it again.

    If the group rebalances, the answer waits until the members of the next generation are known.

    member_id: empty for a client that has none yet.
    needs_member_id: a client without a member id gets one with MEMBER_ID_REQUIRED, and joins again (from version 4 on).
    can_skip_assignment: the client understands `skip_assignment` (from version 9 on).
    rebalance_timeout_ms: for version 0, which has no such field, the session timeout.
    """

    group: str
    member_id: str
    instance_id: str | None
    client: Client
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    needs_member_id: bool = True
    can_skip_assignment: bool = True
    reason: str = ""


class JoinedMember(NamedTuple):
    """A member as the leader of its group sees it: with its metadata for the chosen protocol."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinGroupResponse(msgspec.Struct, frozen=True):
    """members: only the leader gets them, sorted by member id; empty for all others."""

    error: KafkaCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class MemberAssignment(NamedTuple):
    """The assignment that the leader computed for a member."""

    member_id: str
    assignment: bytes


class SyncGroup(msgspec.Struct, frozen=True):
    """Ask for the member's assignment.  The leader's request contains all assignments; other answers wait for it.

    protocol_type, protocol: None from a client that does not send them.
    """

    group: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[MemberAssignment, ...] = ()


class SyncGroupResponse(msgspec.Struct, frozen=True):
    error: KafkaCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Heartbeat(msgspec.Struct, frozen=True):
    """Renew the session of a member."""

    group: str
    member_id: str
    instance_id: str | None
    generation: int


class HeartbeatResponse(msgspec.Struct, frozen=True):
    error: KafkaCode


class LeavingMember(NamedTuple):
    """member_id may be empty if instance_id names the member.  Administrators remove static members in this way."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


class LeaveGroup(msgspec.Struct, frozen=True):
    """Remove members from a group."""

    group: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    """The outcome for one member that was to leave."""

    member_id: str
    instance_id: str | None
    error: KafkaCode


class LeaveGroupResponse(msgspec.Struct, frozen=True):
    """members: one for each member of the request, in that order."""

    error: KafkaCode
    members: tuple[LeftMember, ...] = ()


# -- offsets


class OffsetToCommit(NamedTuple):
    """An offset to commit.  leader_epoch: -1 if unknown.  topic_id: None if the client named the topic by its name."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: UUID | None = None


class OffsetCommit(msgspec.Struct, frozen=True):
    """Commit offsets, as a member, or as a simple consumer (empty member id, NO_GENERATION).

    generation: for a member of the newer protocol, its epoch.
    retention_ms: may be set by requests of versions 2 to 4; otherwise NO_RETENTION.
    knows_epochs: the client understands the errors of the newer protocol (from version 9 on).  False in a transaction.
    """

    group: str
    member_id: str
    instance_id: str | None
    generation: int
    offsets: tuple[OffsetToCommit, ...]
    retention_ms: int = NO_RETENTION
    knows_epochs: bool = False


class TxnOffsetCommit(msgspec.Struct, frozen=True):
    """Commit offsets within the transaction of a producer (id and epoch).  The response is an OffsetCommitResponse."""

    commit: OffsetCommit
    producer: ProducerKey

    @property
    def group(self) -> str:
        return self.commit.group


class EndOffsetTransaction(msgspec.Struct, frozen=True):
    """Append a marker, and apply or drop the offsets of its transaction.  The response is None."""

    marker: Marker


class PartitionResult(NamedTuple):
    """The outcome for one partition."""

    topic: str
    partition: int
    error: KafkaCode


class OffsetCommitResponse(msgspec.Struct, frozen=True):
    """results: one for each offset of the request, in its order."""

    results: tuple[PartitionResult, ...]


class TopicPartitions(NamedTuple):
    """Partitions of one topic.  topic_id: None if the client named the topic by its name."""

    topic: str
    partitions: tuple[int, ...]
    topic_id: UUID | None = None


class GroupToFetch(NamedTuple):
    """topics: None for all offsets of the group.

    member_id, member_epoch: set by a member of a group with the newer protocol; otherwise None and -1.
    """

    group: str
    topics: tuple[TopicPartitions, ...] | None
    member_id: str | None = None
    member_epoch: int = -1


class OffsetFetch(msgspec.Struct, frozen=True):
    """Fetch committed offsets.

    require_stable: refuse partitions with offsets of an open transaction.
    """

    groups: tuple[GroupToFetch, ...]
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """The committed offset of a partition; NO_OFFSET if there is none."""

    topic: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    error: KafkaCode = KafkaCode.NONE


class FetchedGroup(NamedTuple):
    """offsets: in the order of the request; sorted by topic and partition if it asked for all offsets."""

    group: str
    error: KafkaCode
    offsets: tuple[FetchedOffset, ...] = ()


class OffsetFetchResponse(msgspec.Struct, frozen=True):
    groups: tuple[FetchedGroup, ...]


class OffsetDelete(msgspec.Struct, frozen=True):
    """Delete committed offsets of topics to which no member is subscribed."""

    group: str
    topics: tuple[TopicPartitions, ...]


class OffsetDeleteResponse(msgspec.Struct, frozen=True):
    """results: one for each partition of the request, in its order; empty if `error` is not NONE."""

    error: KafkaCode
    results: tuple[PartitionResult, ...] = ()


# -- groups


class DescribeGroups(msgspec.Struct, frozen=True):
    """Describe groups.

    report_missing: a missing group gets GROUP_ID_NOT_FOUND (from version 6 on).  Otherwise it is Dead without an error.
    """

    groups: tuple[str, ...]
    report_missing: bool = True


class MemberDescription(NamedTuple):
    """metadata and assignment: empty unless the group is Stable."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    """protocol: empty unless the group is Stable.  members: sorted by member id."""

    group: str
    error: KafkaCode = KafkaCode.NONE
    error_message: str | None = None
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[MemberDescription, ...] = ()


class DescribeGroupsResponse(msgspec.Struct, frozen=True):
    """groups: one for each group of the request, in that order."""

    groups: tuple[GroupDescription, ...]


class ListGroups(msgspec.Struct, frozen=True):
    """List groups.  states, types: names of states and types in any case; empty for all."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class ListedGroup(NamedTuple):
    """One group of a list."""

    group: str
    protocol_type: str
    state: str
    group_type: str


class ListGroupsResponse(msgspec.Struct, frozen=True):
    """groups: sorted by name."""

    groups: tuple[ListedGroup, ...]


class ExplainGroups(msgspec.Struct, frozen=True):
    """Explain the last rebalances of groups."""

    groups: tuple[str, ...]


class DeleteGroups(msgspec.Struct, frozen=True):
    """Delete groups without members, with their offsets."""

    groups: tuple[str, ...]


class DeletedGroup(NamedTuple):
    """The outcome for one group that was to be deleted."""

    group: str
    error: KafkaCode


class DeleteGroupsResponse(msgspec.Struct, frozen=True):
    """groups: one for each group of the request, in that order."""

    groups: tuple[DeletedGroup, ...]


GroupRequest = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | OffsetCommit
    | TxnOffsetCommit
    | EndOffsetTransaction
    | OffsetFetch
    | OffsetDelete
    | DescribeGroups
    | ListGroups
    | ExplainGroups
    | DeleteGroups
    | ConsumerHeartbeat
    | DescribeConsumerGroups
    | ShareRequest
)


class RebalanceReason(StrEnum):
    """The reason for a rebalance, as a word for scripts."""

    JOINED = "joined"
    LEFT = "left"
    SESSION_EXPIRED = "session_expired"
    HUNG_UP = "hung_up"
    JOIN_TIMED_OUT = "join_timed_out"
    SYNC_TIMED_OUT = "sync_timed_out"
    SUBSCRIPTION_CHANGED = "subscription_changed"
    ASSIGNOR_CHANGED = "assignor_changed"
    PARTITIONS_CHANGED = "partitions_changed"
    PROTOCOL_CHANGED = "protocol_changed"
    LEADER_REJOINED = "leader_rejoined"
    REJOINED = "rejoined"
    STATIC_MEMBER_REPLACED = "static_member_replaced"
    ASSIGNMENT_TOO_LARGE = "assignment_too_large"
    GROUP_TOO_LARGE = "group_too_large"
    OTHER = "other"


class MemberName(NamedTuple):
    """All names of a member."""

    member_id: str
    instance_id: str | None
    client: Client


class LastJoin(NamedTuple):
    """The member that joined last.  at_ms: wall clock."""

    member: MemberName
    at_ms: int


class Rebalance(msgspec.Struct, frozen=True):
    """One rebalance of a group, for people.  It is soft state: a change of the coordinator loses it.

    started_ms: wall clock.  duration_ms: None while it is in progress.
    generation: the generation that the rebalance has made or will make.
    cause: the first cause, in words.  client: the client that caused the rebalance; None if no client did.
    reason: the cause in one word.  member: the member that caused the rebalance; None if no member did.
    members: how many members the new generation has; 0 while they join.
    interrupted: another rebalance began before the members had their assignments.
    """

    started_ms: int
    duration_ms: int | None
    generation: int
    cause: str
    client: Client | None
    members: int
    interrupted: bool = False
    reason: RebalanceReason = RebalanceReason.OTHER
    member: MemberName | None = None


class GroupExplanation(msgspec.Struct, frozen=True):
    """A group's rebalances since its coordinator was loaded.  Times: ms since the epoch (wall clock).

    generation: the last generation; NO_GENERATION if there was none.
    loaded_ms: when this coordinator was loaded.  It does not know earlier rebalances and joins.
    now_ms: when this answer was made, so that clients can compute ages.
    empty_since_ms: the time since which the group counts as empty: the loss of its last member, or a later commit;
        None if it has members, or if this is unknown.  A consumer group counts as empty since `loaded_ms` at the
        earliest.
    last_joined: None if no member has joined since the coordinator was loaded.
    awaited: the members for which the rebalance in progress waits, sorted by member id.
    rebalances: the last rebalances, the oldest first.
    """

    group: str
    error: KafkaCode = KafkaCode.NONE
    error_message: str | None = None
    group_type: str = GroupType.CLASSIC
    state: str = GroupState.DEAD
    generation: int = NO_GENERATION
    members: int = 0
    loaded_ms: int = 0
    now_ms: int = 0
    empty_since_ms: int | None = None
    last_joined: LastJoin | None = None
    awaited: tuple[MemberName, ...] = ()
    rebalances: tuple[Rebalance, ...] = ()


class ExplainGroupsResponse(msgspec.Struct, frozen=True):
    """groups: one for each group of the request, in that order."""

    groups: tuple[GroupExplanation, ...]
