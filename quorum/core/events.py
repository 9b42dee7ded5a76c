"""The input of the core (events) and its output (effects).

The shell executes effects in the given order; it may merge adjacent `Write`s into one transaction, but never reorder
effects.  A message with `after=id` leaves only once `Write` number `id` is durable.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple
from uuid import UUID

import msgspec

from quorum.core.messages import Reply, Request
from quorum.core.types import (
    Batch,
    ControlRecord,
    LogBase,
    LogEnd,
    QuorumState,
    ReplicaKey,
    Role,
    VoterSet,
)

# Changes of the voter set


class AddVoter(msgspec.Struct, frozen=True):
    """Make the observer `node_id` at `address` a voter."""

    node_id: int
    address: str
    directory_id: UUID | None = None  # None: accept the id of the node that answers at `address`
    replace: bool = False  # first remove the voter of the same id that has another directory id


class RemoveVoter(msgspec.Struct, frozen=True):
    """Remove a voter."""

    node_id: int
    directory_id: UUID | None = None  # remove the voter only if it has this directory id


class UpdateVoter(msgspec.Struct, frozen=True):
    """Change the address of a voter."""

    key: ReplicaKey
    address: str


class SetTarget(msgspec.Struct, frozen=True):
    """Work towards these voters, one step at a time, instead of towards an earlier target.

    The result is reported once the target itself is committed.  The work continues after that, under any leader.
    """

    voters: tuple[tuple[int, str], ...]  # (id, address)


class CancelTarget(msgspec.Struct, frozen=True):
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


class VoterChangeResult(msgspec.Struct, frozen=True):
    """The outcome of a `ChangeVoters`."""

    error: VoterChangeError
    message: str  # the outcome, or the obstacle
    next_step: str  # the next step for the operator; may be empty
    changed: bool  # false for a change that was refused or already satisfied, and for a dry run
    offset: int  # end offset of the record that was appended for the change; 0 if none was appended
    voters: VoterSet  # the voters in force at this decision; for a dry run, the voters that the change would lead to
    target: VoterSet | None  # the target in force; for a dry run, the target that the change would set


# Events


class Tick(msgspec.Struct, frozen=True):
    """Time has passed.  The shell sends this once `RaftCore.deadline_ms` has passed, after all waiting messages."""


class RequestReceived(msgspec.Struct, frozen=True):
    """A peer's request has arrived.  Exactly one `SendReply` follows; if the node stops, none follows."""

    call: int  # this node's number for the request
    request: Request


class ReplyReceived(msgspec.Struct, frozen=True):
    """The reply to `SendRequest` number `call`."""

    call: int
    reply: Reply


class RequestFailed(msgspec.Struct, frozen=True):
    """`SendRequest` number `call` failed: unreachable, deadline passed, or an invalid reply."""

    call: int
    reason: str


class Written(msgspec.Struct, frozen=True):
    """`Write` number `write_id`, and all before it, are durable."""

    write_id: int


class LogRead(msgspec.Struct, frozen=True):
    """The batches for a `ReadLog`: contiguous from its start offset, possibly fewer than requested, all complete."""

    read_id: int
    batches: tuple[Batch, ...]


class Propose(msgspec.Struct, frozen=True):
    """Append data to the log, if this node still leads `epoch`.

    `ProposalAppended` or `ProposalRefused` follows in the same step.
    """

    epoch: int
    payload: bytes
    count: int
    timestamp_ms: int


class Resign(msgspec.Struct, frozen=True):
    """Give up leadership on purpose (shutdown, handover)."""

    reason: str


class ChangeVoters(msgspec.Struct, frozen=True):
    """Change the voters.

    Exactly one `VotersChanged(call)` follows within about `timeout_ms`.  If the node stops, none follows.
    """

    call: int
    change: VoterChange
    dry_run: bool = False
    timeout_ms: int = 30_000


class Transfer(msgspec.Struct, frozen=True):
    """Hand leadership over to voter `to`, or to the best candidate.  Exactly one `Transferred(call)` follows."""

    call: int
    to: int | None
    timeout_ms: int = 10_000


class Prefer(msgspec.Struct, frozen=True):
    """The ids of the preferred leaders (the PreferredControllers record), most preferred first."""

    node_ids: tuple[int, ...]


class ConfirmRead(msgspec.Struct, frozen=True):
    """Find the offset up to which records must be applied so that a read is linearizable.

    Exactly one `ReadConfirmed` or `ReadRefused` with this `call` follows: normally within one or two round trips, as
    long as the leader is connected to a majority.
    """

    call: int


class SnapshotTaken(msgspec.Struct, frozen=True):
    """A snapshot of everything below `snapshot.offset` is durable.  A later `TrimLog` moves the log's start."""

    snapshot: LogEnd


class TrimLog(msgspec.Struct, frozen=True):
    """The log may start at the end of this snapshot; the shell no longer needs earlier records."""

    snapshot: LogEnd


class SnapshotRead(msgspec.Struct, frozen=True):
    """The bytes for a `ReadSnapshot`."""

    read_id: int
    size: int  # of the whole snapshot
    data: bytes | None  # empty at or past the end; None when there is no such snapshot


class SnapshotPart(msgspec.Struct, frozen=True):
    """The bytes below `position` of the snapshot that is being received are stored."""

    snapshot: LogEnd
    position: int


class SnapshotLoaded(msgspec.Struct, frozen=True):
    """The snapshot of a `LoadSnapshot` is complete, valid and durable."""

    base: LogBase


class SnapshotFailed(msgspec.Struct, frozen=True):
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


class SendRequest(msgspec.Struct, frozen=True):
    """Send a request; `ReplyReceived(call)` or `RequestFailed(call)` follows within `timeout_ms` after it was sent."""

    call: int
    to: Peer
    request: Request
    timeout_ms: int
    after: int | None = None


class SendReply(msgspec.Struct, frozen=True):
    """Send the reply to `RequestReceived(call)`."""

    call: int
    reply: Reply
    after: int | None = None


class Write(msgspec.Struct, frozen=True):
    """Make this durable as one unit; `Written(id)` answers.  Adjacent writes may be merged, but never reordered.

    The order is: truncate, then drop everything below the base's end, then append, then store the resulting quorum
    state.  If the log ends before the base's end, it becomes empty and starts at the base's end.
    """

    id: int
    state: QuorumState
    truncate_to: int | None = None  # end offset, exclusive
    batches: tuple[Batch, ...] = ()
    base: LogBase | None = None


class ReadLog(msgspec.Struct, frozen=True):
    """Read batches from `start` (a batch boundary) up to `end` (exclusive) or `max_bytes`, at least one batch."""

    read_id: int
    start: int
    end: int
    max_bytes: int


class ProposalAppended(msgspec.Struct, frozen=True):
    """A proposal is in the leader's log, not yet durable or committed."""

    base_offset: int
    end_offset: int


class ProposalRefused(msgspec.Struct, frozen=True):
    """A proposal was refused; nothing was changed."""

    reason: str
    leads: bool  # this node leads the proposal's epoch, so it may accept the same proposal later in that epoch


class AdvanceHighWatermark(msgspec.Struct, frozen=True):
    """Everything below `offset` is committed: the shell applies it and answers the callers that wait for it."""

    offset: int


class RoleChanged(msgspec.Struct, frozen=True):
    """This node has another role now, or has entered the same role again; for logs, metrics and the state machine."""

    role: Role
    epoch: int
    leader_id: int | None
    reason: str


class ControlApplied(msgspec.Struct, frozen=True):
    """A control record is in force now; after a truncation it may be an earlier record."""

    record: ControlRecord


class Joined(msgspec.Struct, frozen=True):
    """The node has joined its cluster, whose id is durable on its disk."""

    cluster_id: str
    replaced: ReplicaKey | None = None  # the listed voter whose disk this disk replaces


class NodeRefused(msgspec.Struct, frozen=True):
    """This node cannot take part, for a lasting reason such as another cluster's id or another voter list.

    The shell ends the process with this message.
    """

    message: str
    newer_generation: int | None = None  # the quorum's generation, if the reason is that the quorum was rebuilt


class VotersChanged(msgspec.Struct, frozen=True):
    """The end of `ChangeVoters(call)`."""

    call: int
    result: VoterChangeResult


class Transferred(msgspec.Struct, frozen=True):
    """The end of `Transfer(call)`.  error: NONE if the intended node leads, otherwise why the transfer failed."""

    call: int
    error: VoterChangeError
    message: str


class ReadConfirmed(msgspec.Struct, frozen=True):
    """`ConfirmRead(call)`: a state that includes everything below `offset` was current when the read was requested."""

    call: int
    offset: int


class ReadRefused(msgspec.Struct, frozen=True):
    """`ConfirmRead(call)`: this node cannot confirm the read now."""

    call: int
    reason: str


class ReadSnapshot(msgspec.Struct, frozen=True):
    """Read at most `max_bytes` of a snapshot on this disk, from byte `position` on; `SnapshotRead` answers."""

    read_id: int
    snapshot: LogEnd
    position: int
    max_bytes: int


class ReceiveSnapshot(msgspec.Struct, frozen=True):
    """The leader offers this snapshot.  `SnapshotPart` reports how much of it is on this disk already."""

    snapshot: LogEnd


class StoreSnapshotPart(msgspec.Struct, frozen=True):
    """Store these bytes of the snapshot that is being received; `SnapshotPart` answers."""

    snapshot: LogEnd
    position: int
    data: bytes


class LoadSnapshot(msgspec.Struct, frozen=True):
    """All bytes are stored: check them, read the state from them, make the snapshot durable.

    `SnapshotLoaded` or `SnapshotFailed` answers.  The state takes effect with the `AdvanceHighWatermark` to its end.
    """

    snapshot: LogEnd


class ResetConnections(msgspec.Struct, frozen=True):
    """No voter can be reached: drop all outgoing connections and resolve the addresses again (`Transport.reset`)."""


class Anomaly(msgspec.Struct, frozen=True):
    """This node has handled an event that correct peers and disks rarely cause, and that a person should examine."""

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
