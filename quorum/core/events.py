"""What the core hears (events) and what it wants done (effects).

The shell carries out effects in the order given; it may merge neighbouring `Write`s into one transaction, never swap
them.  Anything with `after=id` leaves only once `Write` number `id` is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from quorum.core.messages import Reply, Request
from quorum.core.types import (
    Batch,
    ControlRecord,
    Election,
    LogBase,
    LogEnd,
    QuorumState,
    ReplicaKey,
    Role,
    VoterSet,
)

# What may be asked of the voter set (design §4.8)


@dataclass(frozen=True, slots=True)
class AddVoter:
    """Make the observer `node_id` at `address` a voter.  Its directory id is found by asking it; given, it must match.

    replace: take the voter of the same id with another directory id out first.
    """

    node_id: int
    address: str
    directory_id: UUID | None = None
    replace: bool = False


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    """Take a voter out; with a directory id only if it is that one."""

    node_id: int
    directory_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class UpdateVoter:
    """A voter advertises another address from now on."""

    key: ReplicaKey
    address: str


@dataclass(frozen=True, slots=True)
class SetTarget:
    """Work towards these voters (id, address), one step at a time; takes the place of an earlier target.

    Answered once the target itself is committed: the work goes on after that, under whichever leader.
    """

    voters: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """Stop working towards a target; what was done stays done."""


VoterChange = AddVoter | RemoveVoter | UpdateVoter | SetTarget | CancelTarget


class VoterChangeError(Enum):
    """Why a change of the voters, or a transfer of leadership, was refused or did not end well."""

    NONE = "NONE"
    NOT_LEADER = "NOT_LEADER"
    PAUSED = "PAUSED"
    CHANGE_PENDING = "CHANGE_PENDING"
    NOT_COMMITTED_YET = "NOT_COMMITTED_YET"
    TARGET_IN_PROGRESS = "TARGET_IN_PROGRESS"
    DUPLICATE_VOTER = "DUPLICATE_VOTER"
    VOTER_NOT_FOUND = "VOTER_NOT_FOUND"
    LAST_VOTER = "LAST_VOTER"
    NOT_CAUGHT_UP = "NOT_CAUGHT_UP"
    UNREACHABLE = "UNREACHABLE"
    WRONG_NODE = "WRONG_NODE"
    WRONG_CLUSTER = "WRONG_CLUSTER"
    NO_MAJORITY = "NO_MAJORITY"
    INVALID_REQUEST = "INVALID_REQUEST"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    TIMED_OUT = "TIMED_OUT"


@dataclass(frozen=True, slots=True)
class VoterChangeResult:
    """How a `ChangeVoters` ended.

    message: what is so, or what is in the way.  next_step: what the operator can do about it; empty when nothing.
    changed: false when it was so already, was refused, or was only tried (`dry_run`).
    offset: end offset of what was appended for it; 0 if nothing was.
    voters, target: in force when this was decided; for a dry run, those that it would lead to.
    """

    error: VoterChangeError
    message: str
    next_step: str
    changed: bool
    offset: int
    voters: VoterSet
    target: VoterSet | None


# Events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; sent no later than `RaftCore.deadline_ms`, after all waiting messages."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A peer's request has arrived.  `call` is this node's number for it; exactly one `Answer` follows, or none if the
    node stops."""

    call: int
    request: Request


@dataclass(frozen=True, slots=True)
class Answered:
    """The reply to `Ask` number `call`."""

    call: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class Unanswered:
    """`Ask` number `call` failed: unreachable, deadline passed, or a reply that made no sense."""

    call: int
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """`Write` number `write_id`, and all before it, are durable."""

    write_id: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """The batches asked for by `ReadLog`: contiguous from its start offset, possibly fewer than wanted, never torn."""

    read_id: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Append data to the log, if still leader of `epoch`.  Answered in the same step by `Appended` or `NotAppended`."""

    epoch: int
    payload: bytes
    count: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Resign:
    """Give leadership up on purpose (shutdown, handover)."""

    reason: str


@dataclass(frozen=True, slots=True)
class ChangeVoters:
    """Change the voters.  Exactly one `VotersChanged(call)` follows, within about `timeout_ms`, or none if the node
    stops."""

    call: int
    change: VoterChange
    dry_run: bool = False
    timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Transfer:
    """Hand leadership over to voter `to`, or to the best candidate.  Exactly one `Transferred(call)` follows."""

    call: int
    to: int | None
    timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class Prefer:
    """Ids of the voters that should lead if they can (the PreferredControllers record), most wanted first."""

    node_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConfirmRead:
    """Find the offset that a current read must have applied (design §4.7).  Exactly one `ReadConfirmed` or
    `ReadRefused` with this `call` follows; as long as the leader is connected, within a round trip."""

    call: int


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot of ours, of everything below `snapshot.offset`, is durable: the log may start there."""

    snapshot: LogEnd


@dataclass(frozen=True, slots=True)
class TrimLog:
    """The log may start at the end of this snapshot of ours; nothing below is wanted any more."""

    snapshot: LogEnd


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """The bytes asked for by `ReadSnapshot`; none at or past the end, and `data` is None when there is no such
    snapshot."""

    read_id: int
    size: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Of the snapshot that is being received, the bytes below `position` are stored here."""

    snapshot: LogEnd
    position: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The snapshot asked for by `LoadSnapshot` is whole, understood and durable."""

    base: LogBase


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot asked for by `LoadSnapshot` is damaged; what was stored of it is gone."""

    snapshot: LogEnd
    reason: str


Event = (
    Tick
    | Asked
    | Answered
    | Unanswered
    | Written
    | LogRead
    | Propose
    | Resign
    | ChangeVoters
    | Transfer
    | Prefer
    | ConfirmRead
    | SnapshotTaken
    | TrimLog
    | SnapshotRead
    | SnapshotPart
    | SnapshotLoaded
    | SnapshotFailed
)

# Effects


class Peer(NamedTuple):
    """Where to send: a node at its control address.  `node_id` is None for a bootstrap address not met yet."""

    node_id: int | None
    address: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request; `Answered(call)` or `Unanswered(call)` comes back within `timeout_ms`."""

    call: int
    to: Peer
    request: Request
    timeout_ms: int
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """Send the reply to `Asked(call)`."""

    call: int
    reply: Reply
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Durable as one unit; `Written(id)` answers.  Neighbours may be merged, never swapped.

    Order inside: truncate, then drop what is below the base's end, then append, then the quorum state as it is after
    all of that.  A log that ends before the base's end is empty from there on.
    """

    id: int
    state: QuorumState
    truncate_to: int | None = None  # end offset, exclusive
    batches: tuple[Batch, ...] = ()
    base: LogBase | None = None


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read batches from `start` (a batch boundary) up to `end` (exclusive) or `max_bytes`, at least one batch."""

    read_id: int
    start: int
    end: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Appended:
    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class NotAppended:
    """A proposal was refused; nothing was changed.

    leads: this node leads the epoch of the proposal, so the same proposal may be accepted later in that epoch.
    """

    reason: str
    leads: bool


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below `offset` is committed: it may be applied, and those who wait for it answered."""

    offset: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """For logs, metrics and the state machine; `reason` says in plain words why."""

    role: Role
    epoch: int
    leader_id: int | None
    leader_address: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ControlApplied:
    """A control record took effect (or, after a truncation, an earlier one again)."""

    record: ControlRecord


@dataclass(frozen=True, slots=True)
class Joined:
    """The node has its place: `cluster_id` is known and durable.  `replaced` names the listed voter whose disk this one
    replaces, when a newborn found its cluster already founded (design §4.2)."""

    cluster_id: str
    replaced: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """This node cannot take part, for a reason that waiting will not mend (another cluster's id, an older generation,
    another voter list).  The shell ends the process with this message.

    newer_generation: that of the quorum, when the reason is that it was rebuilt."""

    message: str
    newer_generation: int | None = None


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """The end of `ChangeVoters(call)`."""

    call: int
    result: VoterChangeResult


@dataclass(frozen=True, slots=True)
class Transferred:
    """The end of `Transfer(call)`: another node leads (NONE), or why not."""

    call: int
    error: VoterChangeError
    message: str


@dataclass(frozen=True, slots=True)
class ReadConfirmed:
    """`ConfirmRead(call)`: what has applied everything below `offset` is current as of the asking."""

    call: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadRefused:
    """`ConfirmRead(call)`: this node cannot say what is current."""

    call: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Read at most `max_bytes` of one of our snapshots, from byte `position` on; `SnapshotRead` answers."""

    read_id: int
    snapshot: LogEnd
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReceiveSnapshot:
    """The leader offers this snapshot.  Say how much of it is here already, by `SnapshotPart`."""

    snapshot: LogEnd


@dataclass(frozen=True, slots=True)
class StoreSnapshotPart:
    """Keep these bytes of the snapshot that is being received; `SnapshotPart` answers."""

    snapshot: LogEnd
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """All bytes are here: check them, read the state from them, make the snapshot durable.  `SnapshotLoaded` or
    `SnapshotFailed` answers; the state takes effect once this node is told that all below its end is committed."""

    snapshot: LogEnd


@dataclass(frozen=True, slots=True)
class ResetConnections:
    """No voter can be reached: drop all outgoing connections and resolve addresses anew (`Transport.reset`)."""


@dataclass(frozen=True, slots=True)
class Odd:
    """Something was handled that no correct peer and disk bring about: a person should look at it."""

    message: str


Effect = (
    Ask
    | Answer
    | Write
    | ReadLog
    | Appended
    | NotAppended
    | AdvanceHighWatermark
    | RoleChanged
    | ControlApplied
    | Joined
    | Refused
    | VotersChanged
    | Transferred
    | ReadConfirmed
    | ReadRefused
    | ReadSnapshot
    | ReceiveSnapshot
    | StoreSnapshotPart
    | LoadSnapshot
    | ResetConnections
    | Odd
)

__all__ = [
    "AddVoter",
    "AdvanceHighWatermark",
    "Answer",
    "Answered",
    "Appended",
    "Ask",
    "Asked",
    "CancelTarget",
    "ChangeVoters",
    "ConfirmRead",
    "ControlApplied",
    "Effect",
    "Election",
    "Event",
    "Joined",
    "LoadSnapshot",
    "LogRead",
    "NotAppended",
    "Odd",
    "Peer",
    "Prefer",
    "Propose",
    "ReadConfirmed",
    "ReadLog",
    "ReadRefused",
    "ReadSnapshot",
    "ReceiveSnapshot",
    "Refused",
    "RemoveVoter",
    "ResetConnections",
    "Resign",
    "RoleChanged",
    "SetTarget",
    "SnapshotFailed",
    "SnapshotLoaded",
    "SnapshotPart",
    "SnapshotRead",
    "SnapshotTaken",
    "StoreSnapshotPart",
    "Tick",
    "Transfer",
    "Transferred",
    "TrimLog",
    "Unanswered",
    "UpdateVoter",
    "VoterChange",
    "VoterChangeError",
    "VoterChangeResult",
    "VotersChanged",
    "Write",
    "Written",
]
