"""What nodes say to each other: requests and replies of the `Quorum` service, as plain values.

Every request carries the cluster id and generation of its sender, and every reply what its sender knows of the quorum
(`epoch`, `leader_id`, `leader_address`): any reply may teach the asker about a newer epoch.  Requests are tied to
replies by the `call` number of `events.py`, so a late or repeated reply is recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quorum.core.types import Batch, LogEnd, ReplicaKey, Voter, VoterSet


class ErrorCode(Enum):
    """Why a quorum request was refused.  Values are the protobuf enum's names."""

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


@dataclass(frozen=True, slots=True)
class Sender:
    """Who asks, from which cluster."""

    cluster_id: str | None
    generation: int
    key: ReplicaKey


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What the answering node knows of the quorum; in every reply."""

    cluster_id: str | None
    generation: int
    epoch: int
    leader_id: int | None
    leader_address: str | None


@dataclass(frozen=True, slots=True)
class Vote:
    """A vote or pre-vote (KIP-996) for `sender.key` in `epoch`, which for a pre-vote is the epoch it has now.

    address: where the sender is, which the log may not know yet; empty if it does not say.
    """

    sender: Sender
    target: ReplicaKey
    epoch: int
    log_end: LogEnd
    pre_vote: bool
    address: str = ""


@dataclass(frozen=True, slots=True)
class VoteReply:
    error: ErrorCode
    known: Knowledge
    granted: bool = False


@dataclass(frozen=True, slots=True)
class BeginQuorumEpoch:
    """A new leader announces itself; repeated to voters that do not fetch."""

    sender: Sender
    target: ReplicaKey
    epoch: int
    leader_address: str


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochReply:
    error: ErrorCode
    known: Knowledge


@dataclass(frozen=True, slots=True)
class EndQuorumEpoch:
    """A leader gives its epoch up.

    `successors`: voters with fast disks before slow ones, then by descending log end; `reason` is for people.
    """

    sender: Sender
    target: ReplicaKey
    epoch: int
    successors: tuple[ReplicaKey, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EndQuorumEpochReply:
    error: ErrorCode
    known: Knowledge


@dataclass(frozen=True, slots=True)
class Fetch:
    """Pull of the log from `offset`.  By asking from `offset` the sender says that all below it is durable there.

    `epoch` is the leader epoch that the sender knows, `last_fetched_epoch` that of its last batch,
    `high_watermark` its own, `round` the last round seen in a reply (design §4.7), `address` its control address.
    `write_ms` is how long its disk's writes took lately (`latency.py`); 0 if it does not say.
    """

    sender: Sender
    target_id: int | None  # node id that the sender takes for the leader; None when asking a bootstrap address
    epoch: int
    offset: int
    last_fetched_epoch: int
    high_watermark: int
    round: int
    max_wait_ms: int
    max_bytes: int
    address: str
    write_ms: int = 0


@dataclass(frozen=True, slots=True)
class FetchReply:
    """At most one of `diverging` and `snapshot` is set, and then `batches` is empty.

    diverging: the leader's end of the largest epoch not above the fetcher's; truncate to it and ask again.
    snapshot: (end offset, epoch) of a snapshot to load, when the offset is below the log start.
    """

    error: ErrorCode
    known: Knowledge
    high_watermark: int = 0
    log_start_offset: int = 0
    round: int = 0
    diverging: LogEnd | None = None
    snapshot: LogEnd | None = None
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """Bytes of the leader's snapshot `snapshot` from `position` (a byte) on; `round` as in `Fetch`."""

    sender: Sender
    target_id: int
    epoch: int
    snapshot: LogEnd
    position: int
    max_bytes: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class FetchSnapshotReply:
    """`data` are the bytes at `position` of a snapshot of `size` bytes; at most what was asked for, at least one."""

    error: ErrorCode
    known: Knowledge
    snapshot: LogEnd
    size: int = 0
    position: int = 0
    data: bytes = b""
    round: int = 0


@dataclass(frozen=True, slots=True)
class Introduce:
    """Who are you, and which cluster do you know?  Asked while founding, and by a node that knows no cluster yet.

    `initial_voters` is the list (id, address) that the asker was started with; empty for an observer.
    """

    sender: Sender
    initial_voters: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class IntroduceReply:
    """`newborn` is true while the answering node has no founding record.

    `founding` is the batch at offset 0, in the answer of a node that has it: it lets a listed voter that is still
    newborn take its place, if it holds that voter's own key (design §4.2).
    """

    error: ErrorCode
    known: Knowledge
    key: ReplicaKey
    newborn: bool
    initial_voters: tuple[tuple[int, str], ...]
    founding: Batch | None
    voters: VoterSet


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One line of DescribeQuorum.  Ages in ms before the answer; None when never."""

    replica: Voter
    log_end_offset: int
    lag: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None


@dataclass(frozen=True, slots=True)
class DescribeQuorum:
    """address: where the sender is, if it is a node in search of its leader; else empty.

    epoch: the sender's, if it follows nobody; else 0.
    """

    sender: Sender
    address: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class LeadershipEnd:
    """How the leadership before the present one ended, as the answering node saw it."""

    leader_id: int
    epoch: int
    reason: str
    age_ms: int


@dataclass(frozen=True, slots=True)
class DescribeQuorumReply:
    """What the answering node knows; complete (lags, observers, progress towards a target) only from the leader.

    target_step: what is being done towards the target just now.  target_problem: why the last step was not possible.
    """

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
    target_step: str | None = None
    target_problem: str | None = None
    last_leadership_end: LeadershipEnd | None = None


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
