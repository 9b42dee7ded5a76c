"""The two narrow interfaces around the core: `QuorumStore` (SQLite) and `Transport` (gRPC).

Each has one contract test, run against the real kind and the simulated one (`tests/contract/`).  The third port of the
system, `Disk`, is the brokers' and lives in `quorumlog.runtime.disk`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import Message

from quorum.core.events import Peer
from quorum.core.messages import Reply, Request
from quorum.core.types import Batch, LogBase, LogEnd, QuorumState, StoredQuorum
from quorum.snapshot_file import SnapshotInfo
from quorumlog.errors import ConfigError
from quorumlog.wire.rpcs import AnyRpc, ReplyT, RequestT, Rpc

__all__ = [
    "BadSnapshotError",
    "CannotAppendNowError",
    "ControllerHandler",
    "Handler",
    "LeadershipLostError",
    "NotLeaderError",
    "OutlivedError",
    "QuorumStore",
    "SnapshotMissingError",
    "StoreWrite",
    "StoredQuorum",
    "Transport",
    "UnreachableError",
]


@dataclass(frozen=True, slots=True)
class StoreWrite:
    """One core `Write`, as the store sees it.  In this order: truncate, start anew at `base`, append.

    base: everything below its end is dropped; a log that ends before is empty from there on.
    """

    state: QuorumState
    truncate_to: int | None
    batches: tuple[Batch, ...]
    base: LogBase | None = None


class NotLeaderError(Exception):
    """`QuorumNode.append`: this node does not lead that epoch and never will again; nothing was appended."""


class CannotAppendNowError(Exception):
    """`QuorumNode.append`: this node leads that epoch but accepts nothing now, for the reason that the message gives.

    It is paused, hands leadership over, or its disk is behind.  Nothing was appended.  The same append may succeed
    later in the same epoch.
    """


class LeadershipLostError(Exception):
    """`QuorumNode.committed`: the epoch ended first; whether the records are committed some day is unknown."""


class OutlivedError(ConfigError):
    """The quorum of this disk was rebuilt: the quorum's generation is `newer`, that of the disk is `generation`.

    log_end: end of the disk's log.  was_voter: the disk is in the last voter set that it knows.
    """

    def __init__(self, message: str, generation: int, newer: int, log_end: int, was_voter: bool) -> None:
        super().__init__(message)
        self.generation = generation
        self.newer = newer
        self.log_end = log_end
        self.was_voter = was_voter


class UnreachableError(Exception):
    """A request got no usable reply: no connection, deadline passed, or a malformed answer.

    was_sent: False when it has certainly not left, so that asking elsewhere cannot carry it out twice.
    """

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class SnapshotMissingError(Exception):
    """`QuorumStore.read_snapshot`: there is none with this end."""


class BadSnapshotError(Exception):
    """`QuorumStore.finish_snapshot`: not a whole, undamaged snapshot with this end; it says why, and where it is."""


class QuorumStore(Protocol):
    """The durable log and quorum state of one node."""

    async def open(self, node_id: int, cluster_id: str | None) -> StoredQuorum:
        """Open the directory, formatting it when it is empty, and lock it.

        Raises:
            StoreRefusedError: another node's or cluster's directory, in use, a newer format, or not writable.
            CorruptStoreError: damaged; names file, place and cause.  Nothing is repaired or re-created.
        """
        ...

    async def write(self, writes: Sequence[StoreWrite]) -> None:
        """Make `writes` durable, in order, in one transaction and one fsync.

        A failure ends the process (design §4.13): nothing is retried.

        Raises:
            FatalError: the disk failed; what is durable is unknown.
        """
        ...

    async def read(self, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        """Whole batches from the one that holds `start` up to `end` (exclusive) or `max_bytes`, at least one if any.

        Raises:
            CorruptStoreError: a batch's checksum does not match.
        """
        ...

    # Snapshots.  Their bytes are those of `quorum.snapshot_file`; several may be under way, each by its end.

    async def begin_snapshot(self, end: LogEnd, *, resume: bool) -> int:
        """Begin to write the snapshot with this end, or go on with what there is of it; how many bytes there are.

        What was begun with `resume`, above the end of the log, stays over a restart, perhaps damaged by a crash.

        Raises:
            FatalError: the disk failed.  So for all of these.
        """
        ...

    async def extend_snapshot(self, end: LogEnd, position: int, data: bytes) -> None:
        """Add `data` at `position`, which is how many bytes there are.  Not durable."""
        ...

    async def finish_snapshot(self, end: LogEnd) -> SnapshotInfo:
        """Check what was written, whole, and make it durable under its name: it is there, or it is not.

        Raises:
            BadSnapshotError: it is damaged or another one; it is set aside, and the next `begin_snapshot` is from 0.
        """
        ...

    async def set_snapshot_aside(self, end: LogEnd) -> None:
        """One that turned out to be damaged is none any more; the few latest such stay to be looked at."""
        ...

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """Those that are durable and whose header is good, ascending."""
        ...

    async def read_snapshot(self, end: LogEnd, position: int, max_bytes: int) -> tuple[int, bytes]:
        """(size of the whole, bytes at `position`): none when that is at or past its end.

        Raises:
            SnapshotMissingError: there is no such snapshot (any more).
        """
        ...

    async def delete_snapshot(self, end: LogEnd) -> None:
        """Durable on return; nothing happens when there is none."""
        ...

    async def close(self, *, leave_files: bool = False) -> None:
        """Release the lock.  What was written stays.

        leave_files: the disk is known to fail, so nothing more is written to it, not even that the stop was clean.
        """
        ...


Handler = Callable[[Request], Awaitable[Reply]]
"""Takes a request of the `Quorum` service, gives its reply."""

ControllerHandler = Callable[[AnyRpc, Message], Awaitable[Message]]
"""Takes an RPC of the `Controller` or `Node` service and its request, gives its reply."""


class Transport(Protocol):
    """Requests out and in.  Neither ever raises anything but what is named here."""

    def serve(self, handler: Handler) -> None:
        """Give every incoming request to `handler`; its result is the reply.  Called once, before `start`."""
        ...

    def serve_controller(self, handler: ControllerHandler) -> None:
        """The same for the services `Controller` and `Node`.  Called at most once, before `start`."""
        ...

    def bind(self) -> str:
        """Claim the listening address, so that it can be advertised, and return it (HOST:PORT).  Nothing is answered
        before `start`, which binds if this was not called.

        Raises:
            ConfigError: taken, or not an address of this machine.
        """
        ...

    async def start(self) -> None: ...

    async def ask(self, to: Peer, request: Request, timeout_ms: int) -> Reply:
        """Send and wait for the reply, at most `timeout_ms`.

        Raises:
            UnreachableError: no usable reply.  The request may still have been carried out.
        """
        ...

    async def call(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int) -> ReplyT:
        """Send an RPC of the `Controller` or `Node` service at `address`.

        Raises:
            UnreachableError: no usable reply.  The request may have been carried out, if it `was_sent`.
        """
        ...

    async def reset(self) -> None:
        """Drop every outgoing connection, and resolve addresses anew at the next request (design §4.6 b)."""
        ...

    async def close(self) -> None: ...
