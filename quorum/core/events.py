"""The input of the core (events) and its output (effects).

The shell executes effects in the given order; it may merge adjacent `Write`s into one transaction, but never reorder
effects.  A message with `after=id` leaves only once `Write` number `id` is durable.
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

# Changes of the voter set


@dataclass(frozen=True, slots=True)
class AddVoter:
    """Make the observer `node_id` at `address` a voter."""

    node_id: int
    address: str
    directory_id: UUID | None = None  # None: accept the one of the node that answers at `address`
    replace: bool = False  # first remove the voter of the same id that has another directory id


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    """Remove a voter."""

    node_id: int
    directory_id: UUID | None = None  # remove the voter only if it has this directory id


@dataclass(frozen=True, slots=True)
class UpdateVoter:
    """Change the address of a voter."""

    key: ReplicaKey
    address: str


@dataclass(frozen=True, slots=True)
class SetTarget:
    """Work towards these voters, one step at a time, instead of towards an earlier target.

    The result is reported once the target itself is committed.  The work continues after that, under any leader.
    """

    voters: tuple[tuple[int, str], ...]  # (id, address)


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """Stop working towards a target.  Completed steps are not reverted."""


VoterChange = AddVoter | RemoveVoter | UpdateVoter | SetTarget | CancelTarget


class VoterChangeError(Enum):
    """The reason why a change of the voters, or a transfer of leadership, was refused or failed."""

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
    """The outcome of a `ChangeVoters`."""

    error: VoterChangeError
    message: str  # the outcome, or the obstacle
    next_step: str  # the next step for the operator; may be empty
    changed: bool  # false for a change that was refused or already satisfied, and for a dry run
    offset: int  # end offset of the record that was appended for it; 0 if no record was appended
    voters: VoterSet  # the voters in force at this decision; for a dry run, the voters that the change would lead to
    target: VoterSet | None  # likewise


# Events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed.  The shell sends this no later than `RaftCore.deadline_ms`, after all waiting messages."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A peer's request has arrived.  Exactly one `SendReply` follows; if the node stops, none follows."""

    call: int  # this node's number for the request
    request: Request


@dataclass(frozen=True, slots=True)
class ReplyReceived:
    """The reply to `SendRequest` number `call`."""

    call: int
    reply: Reply


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """`SendRequest` number `call` failed: unreachable, deadline passed, or an invalid reply."""

    call: int
    reason: str


@dataclass(frozen=True, slots=True)
class Written:
    """`Write` number `write_id`, and all before it, are durable."""

    write_id: int


@dataclass(frozen=True, slots=True)
class LogRead:
    """The batches for a `ReadLog`: contiguous from its start offset, possibly fewer than it asked for, all complete."""

    read_id: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Propose:
    """Append data to the log, if still leader of `epoch`.

    `ProposalAppended` or `ProposalRefused` follows in the same step.
    """

    epoch: int
    payload: bytes
    count: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Resign:
    """Give up leadership on purpose (shutdown, handover)."""

    reason: str


@dataclass(frozen=True, slots=True)
class ChangeVoters:
    """Change the voters.

    Exactly one `VotersChanged(call)` follows within about `timeout_ms`.  If the node stops, none follows.
    """

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
    """The ids of the preferred leaders (the PreferredControllers record), most wanted first."""

    node_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConfirmRead:
    """Find the offset that a current read must have applied.

    Exactly one `ReadConfirmed` or `ReadRefused` with this `call` follows; as long as the leader is connected, within a
    round trip.
    """

    call: int


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot on this disk, of everything below `snapshot.offset`, is durable: the log may start there."""

    snapshot: LogEnd


@dataclass(frozen=True, slots=True)
class TrimLog:
    """The log may start at the end of this snapshot; the shell needs nothing below any more."""

    snapshot: LogEnd


@dataclass(frozen=True, slots=True)
class SnapshotRead:
    """The bytes for a `ReadSnapshot`."""

    read_id: int
    size: int  # of the whole snapshot
    data: bytes | None  # empty at or past the end; None when there is no such snapshot


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """The bytes below `position` of the snapshot that is being received are stored."""

    snapshot: LogEnd
    position: int


@dataclass(frozen=True, slots=True)
class SnapshotLoaded:
    """The snapshot of a `LoadSnapshot` is complete, valid and durable."""

    base: LogBase


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The snapshot of a `LoadSnapshot` is damaged; its stored bytes are deleted."""

    snapshot: LogEnd
    reason: str


Event = (
    Tick
    | RequestReceived
    | ReplyReceived
    | RequestFailed
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
    """A node at its control address."""

    node_id: int | None  # None for a bootstrap address whose node is not known yet
    address: str


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request; `ReplyReceived(call)` or `RequestFailed(call)` follows within `timeout_ms`."""

    call: int
    to: Peer
    request: Request
    timeout_ms: int
    after: int | None = None


@dataclass(frozen=True, slots=True)
class SendReply:
    """Send the reply to `RequestReceived(call)`."""

    call: int
    reply: Reply
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Make this durable as one unit; `Written(id)` answers.  Adjacent writes may be merged, but never reordered.

    The order is: truncate, then drop everything below the base's end, then append, then store the resulting quorum
    state.  A log that ends before the base's end is empty from there on.
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
class ProposalAppended:
    """A proposal is in the leader's log, not yet durable or committed."""

    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ProposalRefused:
    """A proposal was refused; nothing was changed."""

    reason: str
    leads: bool  # this node leads the proposal's epoch, so it may accept the same proposal later in that epoch


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything below `offset` is committed: the shell applies it and answers those who wait for it."""

    offset: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """This node has another role now, or has entered the same role again; for logs, metrics and the state machine."""

    role: Role
    epoch: int
    leader_id: int | None
    leader_address: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class ControlApplied:
    """A control record is in force now; after a truncation this may be an earlier one again."""

    record: ControlRecord


@dataclass(frozen=True, slots=True)
class Joined:
    """The node has joined its cluster, whose id is durable here."""

    cluster_id: str
    replaced: ReplicaKey | None = None  # the listed voter whose disk this one replaces


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """This node cannot take part, for a lasting reason: another cluster's id, an older generation, another voter list.

    The shell ends the process with this message.
    """

    message: str
    newer_generation: int | None = None  # the quorum's, when the reason is that the quorum was rebuilt


@dataclass(frozen=True, slots=True)
class VotersChanged:
    """The end of `ChangeVoters(call)`."""

    call: int
    result: VoterChangeResult


@dataclass(frozen=True, slots=True)
class Transferred:
    """The end of `Transfer(call)`: another node leads (NONE), or the reason why none does."""

    call: int
    error: VoterChangeError
    message: str


@dataclass(frozen=True, slots=True)
class ReadConfirmed:
    """`ConfirmRead(call)`: a state that includes everything below `offset` was current when the read was requested."""

    call: int
    offset: int


@dataclass(frozen=True, slots=True)
class ReadRefused:
    """`ConfirmRead(call)`: this node does not know which state is current."""

    call: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Read at most `max_bytes` of a snapshot on this disk, from byte `position` on; `SnapshotRead` answers."""

    read_id: int
    snapshot: LogEnd
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReceiveSnapshot:
    """The leader offers this snapshot.  `SnapshotPart` answers how much of it is on this disk already."""

    snapshot: LogEnd


@dataclass(frozen=True, slots=True)
class StoreSnapshotPart:
    """Store these bytes of the snapshot that is being received; `SnapshotPart` answers."""

    snapshot: LogEnd
    position: int
    data: bytes


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """All bytes are stored: check them, read the state from them, make the snapshot durable.

    `SnapshotLoaded` or `SnapshotFailed` answers.  The state takes effect with the `AdvanceHighWatermark` to its end.
    """

    snapshot: LogEnd


@dataclass(frozen=True, slots=True)
class ResetConnections:
    """No voter can be reached: drop all outgoing connections and resolve the addresses again (`Transport.reset`)."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """This node has handled an event that no correct peer or disk causes, and that a person should examine."""

    message: str


Effect = (
    SendRequest
    | SendReply
    | Write
    | ReadLog
    | ProposalAppended
    | ProposalRefused
    | AdvanceHighWatermark
    | RoleChanged
    | ControlApplied
    | Joined
    | NodeRefused
    | VotersChanged
    | Transferred
    | ReadConfirmed
    | ReadRefused
    | ReadSnapshot
    | ReceiveSnapshot
    | StoreSnapshotPart
    | LoadSnapshot
    | ResetConnections
    | Anomaly
)

__all__ = [
    "AddVoter",
    "AdvanceHighWatermark",
    "Anomaly",
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
    "NodeRefused",
    "Peer",
    "Prefer",
    "ProposalAppended",
    "ProposalRefused",
    "Propose",
    "ReadConfirmed",
    "ReadLog",
    "ReadRefused",
    "ReadSnapshot",
    "ReceiveSnapshot",
    "RemoveVoter",
    "ReplyReceived",
    "RequestFailed",
    "RequestReceived",
    "ResetConnections",
    "Resign",
    "RoleChanged",
    "SendReply",
    "SendRequest",
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
    "UpdateVoter",
    "VoterChange",
    "VoterChangeError",
    "VoterChangeResult",
    "VotersChanged",
    "Write",
    "Written",
]
