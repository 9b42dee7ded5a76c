"""The two narrow interfaces around the core: `QuorumStore` (SQLite) and `Transport` (gRPC).

The same contract tests run against the real and the simulated implementation of each (`tests/contract/`).  The third
port of the system, `Disk`, belongs to the brokers and is in `quorumlog.runtime.disk`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
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


class StoreWrite(msgspec.Struct, frozen=True):
    """One core `Write` for the store, which truncates, moves the log's start to `base` and appends, in this order.

    base: the store drops everything below the end of the base.  If the whole log is below that offset, the log becomes
        empty, and its next offset is that offset.
    """

    state: QuorumState
    truncate_to: int | None
    batches: tuple[Batch, ...]
    base: LogBase | None = None


class NotLeaderError(Exception):
    """`QuorumNode.append`: this node does not lead that epoch, and never will again.  Nothing was appended.

    `QuorumNode.confirm_read`: this node cannot confirm a read now.
    """


class CannotAppendNowError(Exception):
    """`QuorumNode.append`: this node leads that epoch but accepts nothing now.  The message gives the reason.

    The node is paused, hands leadership over, or has a disk that lags.  Nothing was appended.  The same append may
    succeed later in the same epoch.
    """


class LeadershipLostError(Exception):
    """`QuorumNode.committed`: the epoch ended before the records were committed.

    They may still be committed later.
    """


class OutlivedError(ConfigError):
    """The quorum of this disk was rebuilt.  newer: the quorum's generation.  generation: the disk's generation.

    log_end: end of the disk's log.  was_voter: the disk is in the last voter set that its log contains.
    """

    def __init__(self, message: str, generation: int, newer: int, log_end: int, was_voter: bool) -> None:
        super().__init__(message)
        self.generation = generation
        self.newer = newer
        self.log_end = log_end
        self.was_voter = was_voter


class UnreachableError(Exception):
    """A request got no usable reply: there was no connection, the deadline passed, or the reply was malformed.

    was_sent: False if the request was certainly not sent, so that sending it elsewhere cannot execute it twice.
    """

    def __init__(self, message: str, *, was_sent: bool = True) -> None:
        super().__init__(message)
        self.was_sent = was_sent


class SnapshotMissingError(Exception):
    """`QuorumStore.read_snapshot`: no snapshot has this end."""


class BadSnapshotError(Exception):
    """`QuorumStore.finish_snapshot`: the data is not a whole, intact snapshot with this end.

    The message gives the reason and the name of the file in which the data was kept.
    """


class QuorumStore(Protocol):
    """The durable log and quorum state of one node."""

    async def open(self, node_id: int, cluster_id: str | None) -> StoredQuorum:
        """Lock the directory, format it if it is empty, and open it.

        Raises:
            StoreRefusedError: the directory belongs to another node or cluster, is in use, has a newer format, or is
                not writable.
            CorruptStoreError: the store is damaged.  The error names file, place and cause; nothing is repaired.
            FatalError: the disk failed.
        """
        ...

    async def write(self, writes: Sequence[StoreWrite]) -> None:
        """Make `writes` durable, in order, in one transaction and one fsync.

        A failure ends the process, because nothing is retried.

        Raises:
            FatalError: the disk failed; it is unknown which writes are durable.
        """
        ...

    async def read(self, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        """Return whole batches from the batch that holds `start` up to `end` (exclusive) or `max_bytes`.

        At least one batch is returned if one exists in this range.

        Raises:
            CorruptStoreError: a batch's checksum does not match.
            FatalError: the disk failed.
        """
        ...

    # Snapshots, in the format of `quorum.snapshot_file`.  Several may be written at a time, each identified by its end.

    async def begin_snapshot(self, end: LogEnd, *, resume: bool) -> int:
        """Begin to write the snapshot with this end, or resume it, and return how many bytes of it exist already.

        The newest unfinished snapshot that was begun with `resume`, and ends above the log, survives a restart, perhaps
        damaged by a crash.

        Raises:
            FatalError: the disk failed.  All snapshot methods raise this.
        """
        ...

    async def extend_snapshot(self, end: LogEnd, position: int, data: bytes) -> None:
        """Append `data` at `position`, which must be the number of bytes so far.  Not durable on return."""
        ...

    async def finish_snapshot(self, end: LogEnd) -> SnapshotInfo:
        """Check the whole snapshot and make it durable under its final name, atomically.

        Raises:
            BadSnapshotError: the data is damaged or of another snapshot.  It is set aside, and the next
                `begin_snapshot` starts from 0.
        """
        ...

    async def set_snapshot_aside(self, end: LogEnd) -> None:
        """Rename a damaged snapshot so that nothing uses it.  The latest few are kept for examination."""
        ...

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """Return the durable snapshots with an intact header, in ascending order."""
        ...

    async def read_snapshot(self, end: LogEnd, position: int, max_bytes: int) -> tuple[int, bytes]:
        """Return (size of the whole snapshot, bytes at `position`).  The bytes are empty at or past the end.

        Raises:
            SnapshotMissingError: the snapshot does not exist, or no longer exists.
        """
        ...

    async def delete_snapshot(self, end: LogEnd) -> None:
        """Delete a snapshot, durably on return.  Does nothing if it does not exist."""
        ...

    async def close(self, *, leave_files: bool = False) -> None:
        """Release the lock and keep all data.

        leave_files: write nothing more, not even the mark of a clean stop, because the disk is known to fail.
        """
        ...


Handler = Callable[[Request], Awaitable[Reply]]
"""Takes a request of the `Quorum` service and returns its reply."""

ControllerHandler = Callable[[AnyRpc, Message], Awaitable[Message]]
"""Takes an RPC of the `Controller` or `Node` service and its request, and returns its reply."""


class Transport(Protocol):
    """Outgoing and incoming requests.  The methods raise only the errors that their docstrings name."""

    def serve(self, handler: Handler) -> None:
        """Pass every incoming request to `handler`, whose result is the reply.  Called once, before `start`."""
        ...

    def serve_controller(self, handler: ControllerHandler) -> None:
        """Pass requests of the `Controller` and `Node` services to `handler`.  Called at most once, before `start`."""
        ...

    def bind(self) -> str:
        """Bind the listening address, so that it can be advertised, and return it (HOST:PORT).

        No request is answered before `start`, which binds the address if this method was not called.

        Raises:
            ConfigError: the address is in use, or not an address of this machine.
        """
        ...

    async def start(self) -> None:
        """Begin to answer requests.

        Raises:
            ConfigError: the address cannot be bound, see `bind`.
        """
        ...

    async def ask(self, to: Peer, request: Request, timeout_ms: int) -> Reply:
        """Send a request and return its reply, waiting at most `timeout_ms`.

        Raises:
            UnreachableError: no usable reply arrived.  The peer may still have executed the request.
        """
        ...

    async def call(self, address: str, rpc: Rpc[RequestT, ReplyT], request: RequestT, timeout_ms: int) -> ReplyT:
        """Call an RPC of the `Controller` or `Node` service at `address` and return its reply.

        Raises:
            UnreachableError: no usable reply arrived.  If the error has `was_sent`, the request may have been executed.
        """
        ...

    async def reset(self) -> None:
        """Drop every outgoing connection, so that the next request resolves its address again."""
        ...

    async def close(self) -> None:
        """Stop serving, and drop every connection."""
        ...
