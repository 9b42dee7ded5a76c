"""What the core hears (events) and what it wants done (effects).

The shell carries out effects in the order given; it may merge neighbouring `Write`s into one transaction, never swap
them.  Anything with `after=id` leaves only once `Write` number `id` is durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quorum.core.messages import Reply, Request
from quorum.core.types import Batch, ControlRecord, Election, QuorumState, ReplicaKey, Role

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


Event = Tick | Asked | Answered | Unanswered | Written | LogRead | Propose | Resign

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

    Order inside: truncate, then append, then the quorum state as it is after both.
    """

    id: int
    state: QuorumState
    truncate_to: int | None = None  # end offset, exclusive
    batches: tuple[Batch, ...] = ()


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
    """Not leader of that epoch (any more); nothing was changed."""

    reason: str


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
    another voter list).  The shell ends the process with this message."""

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
)

__all__ = [
    "AdvanceHighWatermark",
    "Answer",
    "Answered",
    "Appended",
    "Ask",
    "Asked",
    "ControlApplied",
    "Effect",
    "Election",
    "Event",
    "Joined",
    "LogRead",
    "NotAppended",
    "Peer",
    "Propose",
    "ReadLog",
    "Refused",
    "Resign",
    "RoleChanged",
    "Tick",
    "Unanswered",
    "Write",
    "Written",
]
