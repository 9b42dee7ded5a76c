"""Requests and replies of the `Quorum` service, as plain values.

Every request carries the cluster id and generation of its sender.  Every reply carries the epoch and leader that its
sender knows, so that stale nodes learn from any reply.  The `call` number of `events.py` matches replies to requests,
so a late or repeated reply is recognised.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from quorum.core.types import UNASSIGNED, Batch, LogEnd, ReplicaKey, Voter, VoterSet


class ErrorCode(Enum):
    """Why a quorum request was refused.  Values are the protobuf enum's names without the prefix QUORUM_ERROR_."""

    NONE = "NONE"
    INCONSISTENT_CLUSTER_ID = "INCONSISTENT_CLUSTER_ID"
    OLD_GENERATION = "OLD_GENERATION"
    INVALID_VOTER_KEY = "INVALID_VOTER_KEY"
    INVALID_REQUEST = "INVALID_REQUEST"
    FENCED_LEADER_EPOCH = "FENCED_LEADER_EPOCH"
    UNKNOWN_LEADER_EPOCH = "UNKNOWN_LEADER_EPOCH"
    NOT_LEADER = "NOT_LEADER"
    NOT_VOTER = "NOT_VOTER"
    NEWBORN = "NEWBORN"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    SNAPSHOT_NOT_FOUND = "SNAPSHOT_NOT_FOUND"
    POSITION_OUT_OF_RANGE = "POSITION_OUT_OF_RANGE"


class Sender(msgspec.Struct, frozen=True):
    """The node that sends a request, and its cluster."""

    cluster_id: str | None
    generation: int
    key: ReplicaKey


TOOL = Sender(None, 0, ReplicaKey(-1, UNASSIGNED))
"""The sender in a DescribeQuorum that a tool such as kctl sends."""


class Knowledge(msgspec.Struct, frozen=True):
    """The quorum as the replying node knows it; in every reply."""

    cluster_id: str | None
    generation: int
    epoch: int
    leader_id: int | None
    leader_address: str | None


class Vote(msgspec.Struct, frozen=True):
    """A request for a vote or pre-vote (KIP-996) for `sender.key`."""

    sender: Sender
    target: ReplicaKey
    epoch: int  # in a pre-vote, the sender's current epoch
    log_end: LogEnd
    pre_vote: bool
    address: str = ""  # the sender's address, which may be newer than the log's; empty if it is not given


class VoteReply(msgspec.Struct, frozen=True):
    error: ErrorCode
    known: Knowledge
    granted: bool = False


class BeginQuorumEpoch(msgspec.Struct, frozen=True):
    """A new leader announces itself; repeated to voters that do not fetch."""

    sender: Sender
    target: ReplicaKey
    epoch: int
    leader_address: str


class BeginQuorumEpochReply(msgspec.Struct, frozen=True):
    error: ErrorCode
    known: Knowledge


class EndQuorumEpoch(msgspec.Struct, frozen=True):
    """A leader has given up its epoch."""

    sender: Sender
    target: ReplicaKey
    epoch: int
    successors: tuple[ReplicaKey, ...]  # the target of a handover, then fast disks before slow ones, best logs first
    reason: str = ""  # for people


class EndQuorumEpochReply(msgspec.Struct, frozen=True):
    error: ErrorCode
    known: Knowledge


class Fetch(msgspec.Struct, frozen=True):
    """A request for the log from `offset` on.  It acknowledges that everything below is durable at the sender."""

    sender: Sender
    target_id: int | None  # node id of the leader, as the sender knows it; None: any leader may answer
    epoch: int  # the leader epoch that the sender knows
    offset: int
    last_fetched_epoch: int  # of the sender's last batch
    high_watermark: int  # of the sender
    round: int  # the last round seen in a reply; see `reads.py`
    max_wait_ms: int
    max_bytes: int
    address: str  # the sender's control address
    write_ms: int = 0  # how long its disk's writes took lately (`latency.py`); 0 if it is not given


class FetchReply(msgspec.Struct, frozen=True):
    """Batches of the log; or, with `batches` empty, at most one of `diverging` and `snapshot`."""

    error: ErrorCode
    known: Knowledge
    high_watermark: int = 0
    log_start_offset: int = 0
    round: int = 0
    diverging: LogEnd | None = None  # the end of the leader's last epoch that is not above `last_fetched_epoch`
    snapshot: LogEnd | None = None  # download this snapshot, because the log does not reach back far enough
    batches: tuple[Batch, ...] = ()


class FetchSnapshot(msgspec.Struct, frozen=True):
    """Bytes of the leader's snapshot `snapshot` from `position` (a byte) on; `round` as in `Fetch`."""

    sender: Sender
    target_id: int
    epoch: int
    snapshot: LogEnd
    position: int
    max_bytes: int
    round: int = 0


class FetchSnapshotReply(msgspec.Struct, frozen=True):
    """Part of a snapshot: without an error, at least one byte and at most as many as requested."""

    error: ErrorCode
    known: Knowledge
    snapshot: LogEnd
    size: int = 0  # of the whole snapshot
    position: int = 0  # of the first byte of `data`
    data: bytes = b""
    round: int = 0


class Introduce(msgspec.Struct, frozen=True):
    """A request for the identity of a node and its cluster.

    Newborns send it.  A leader sends it to learn which node answers at an address.
    """

    sender: Sender
    initial_voters: tuple[tuple[int, str], ...]  # (id, address) that the sender was started with; empty for an observer


class IntroduceReply(msgspec.Struct, frozen=True):
    """The identity of the replying node, and how its cluster was founded."""

    error: ErrorCode
    known: Knowledge
    key: ReplicaKey
    newborn: bool  # true while the node belongs to no cluster
    initial_voters: tuple[tuple[int, str], ...]
    founding: Batch | None  # the batch at offset 0, if the log has it; a newborn that it lists joins as that voter
    voters: VoterSet


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica in DescribeQuorum.  The `last_…_ms` are ages in ms; None if the event never happened."""

    replica: Voter
    log_end_offset: int
    lag: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


class DescribeQuorum(msgspec.Struct, frozen=True):
    """A request for the quorum as the receiving node knows it; also sent by nodes that search for their leader."""

    sender: Sender
    address: str = ""  # of a node that searches for its leader; else empty
    epoch: int = 0  # the sender's, if it searches for its leader; 0 if it is a paused leader or a tool


class LeadershipEnd(msgspec.Struct, frozen=True):
    """How the leadership before the current one ended, as the replying node saw it."""

    leader_id: int
    epoch: int
    reason: str
    age_ms: int


class DescribeQuorumReply(msgspec.Struct, frozen=True):
    """The quorum as the replying node knows it; only the leader knows lags, observers and progress towards a target."""

    error: ErrorCode
    known: Knowledge
    answered_by: ReplicaKey
    high_watermark: int
    log_end_offset: int
    paused: bool
    voters: tuple[ReplicaStatus, ...]
    observers: tuple[ReplicaStatus, ...]
    target_voters: VoterSet | None
    last_leader_change_reason: str | None
    last_leader_change_ms: int | None
    target_step: str | None = None  # the step towards the target that is in progress
    target_problem: str | None = None  # why the last step was not possible
    last_leadership_end: LeadershipEnd | None = None
    preferred_problem: str | None = None  # why no preferred node leads


Request = Vote | BeginQuorumEpoch | EndQuorumEpoch | Fetch | FetchSnapshot | Introduce | DescribeQuorum
Reply = (
    VoteReply
    | BeginQuorumEpochReply
    | EndQuorumEpochReply
    | FetchReply
    | FetchSnapshotReply
    | IntroduceReply
    | DescribeQuorumReply
)
