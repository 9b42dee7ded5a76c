"""Several cores, their disks and the wire between them; nothing happens without a call.

A message stays on the wire until it is delivered, a write is durable only once it is settled, and a crash loses the
rest.  The scenarios drive it step by step, the property test randomly; both use the same `Lab`.

A snapshot is taken at once and contains the payloads of all applied records, so two snapshots with the same end must be
equal.  The received part of the newest one survives a crash.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from msgspec.structs import replace

from quorum.core import RaftConfig, RaftCore
from quorum.core.events import (
    AdvanceHighWatermark,
    Effect,
    Event,
    LoadSnapshot,
    LogRead,
    ReadLog,
    ReadSnapshot,
    ReceiveSnapshot,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    SendReply,
    SendRequest,
    SnapshotFailed,
    SnapshotLoaded,
    SnapshotPart,
    SnapshotRead,
    SnapshotTaken,
    StoreSnapshotPart,
    Tick,
    TrimLog,
    Write,
    Written,
)
from quorum.core.messages import Reply, Request
from quorum.core.types import (
    Batch,
    Election,
    LogBase,
    LogEnd,
    QuorumState,
    ReplicaKey,
    StoredQuorum,
    Voter,
    Voters,
    VoterSet,
)

NOBODY = 0
"""The target of a message to an address without a node."""


def directory(number: int) -> UUID:
    """Return a directory id that shows its number in its first hexadecimal digits."""
    return UUID(int=number << 120 | 1)


@dataclass
class Disk:
    """The durable state (`state`, `batches`), and the pending writes."""

    node_id: int
    directory_id: UUID
    state: QuorumState = field(default_factory=QuorumState)
    batches: list[Batch] = field(default_factory=list)
    pending: list[Write] = field(default_factory=list)
    base: LogBase | None = None
    snapshots: dict[LogEnd, bytes] = field(default_factory=dict)
    parts: dict[LogEnd, bytes] = field(default_factory=dict)  # of snapshots that are being received

    @property
    def start(self) -> int:
        return self.base.end.offset if self.base is not None else 0

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.start

    def holds(self, batch: Batch) -> bool:
        """Return whether the batch is in the log, or in the snapshot at which the log starts."""
        if batch.end_offset <= self.start:
            return True
        index = bisect_left(self.batches, batch.base_offset, key=lambda own: own.base_offset)
        return index < len(self.batches) and self.batches[index] == batch

    def settle(self) -> Write:
        """Make the oldest pending write durable."""
        write = self.pending.pop(0)
        if write.truncate_to is not None:
            self.batches = [batch for batch in self.batches if batch.base_offset < write.truncate_to]
            assert self.end == write.truncate_to, f"truncation to {write.truncate_to} within a batch, now {self.end}"
        if write.base is not None:
            self.base = write.base
            self.batches = [batch for batch in self.batches if batch.base_offset >= self.start]
            assert self.usable, f"{self.node_id}: the log starts at {self.start}, and no snapshot exists"
        for batch in write.batches:
            assert batch.base_offset == self.end, f"append at {batch.base_offset} to a log that ends at {self.end}"
            self.batches.append(batch)
        self.state = write.state
        assert self.state.applied_offset == self.end, f"{self.state} with a log that ends at {self.end}"
        return write

    @property
    def usable(self) -> tuple[LogEnd, ...]:
        """Return the snapshots from which the log continues."""
        stored = self._stored()
        there = sorted(self.snapshots, key=lambda end: end.offset)
        return tuple(end for end in there if stored.goes_on_from(end))

    def load(self) -> StoredQuorum:
        assert self.start == 0 or self.usable, f"{self.node_id}: the log starts at {self.start}, without a snapshot"
        return replace(self._stored(), snapshots=self.usable)

    def _stored(self) -> StoredQuorum:
        """Return the stored quorum without its snapshots."""
        epochs: list[tuple[int, int]] = []
        for batch in self.batches:
            if not epochs or epochs[-1][0] != batch.epoch:
                epochs.append((batch.epoch, batch.base_offset))
        controls = tuple(batch for batch in self.batches if batch.control is not None)
        return StoredQuorum(
            node_id=self.node_id,
            directory_id=self.directory_id,
            state=self.state,
            log_start=self.start,
            log_end=self.end,
            epochs=tuple(epochs),
            controls=controls,
            base=self.base,
        )

    def content(self, end: LogEnd) -> bytes:
        """Return the state below `end`: the newest snapshot up to there, and the log after it."""
        older = [one for one in self.usable if one.offset <= end.offset]
        start = older[-1].offset if older else 0
        before = [self.snapshots[older[-1]]] if older else []
        batches = [batch for batch in self.batches if start <= batch.base_offset and batch.end_offset <= end.offset]
        assert (batches[-1].end_offset if batches else start) == end.offset, f"{end} is not the end of a batch"
        return b" ".join(before + [batch.payload or type(batch.control).__name__.encode() for batch in batches])

    def read(self, effect: ReadLog | ReadSnapshot) -> LogRead | SnapshotRead:
        if isinstance(effect, ReadSnapshot):
            data = self.snapshots.get(effect.snapshot)
            if data is None:
                return SnapshotRead(effect.read_id, 0, None)
            return SnapshotRead(effect.read_id, len(data), data[effect.position : effect.position + effect.max_bytes])
        found: list[Batch] = []
        size = 0
        for batch in self.batches:
            if batch.end_offset <= effect.start or batch.base_offset >= effect.end:
                continue
            if found and size + batch.size > effect.max_bytes:
                break
            found.append(batch)
            size += batch.size
        return LogRead(effect.read_id, tuple(found))


@dataclass
class Node:
    """A node of the lab.  core: None while the node is down.  incarnation: counts its starts."""

    config: RaftConfig
    disk: Disk
    core: RaftCore | None = None
    incarnation: int = 0
    held: list[tuple[int, Message]] = field(default_factory=list)  # messages that wait for a write
    reads: list[ReadLog | ReadSnapshot] = field(default_factory=list)
    receiving: list[ReceiveSnapshot | StoreSnapshotPart | LoadSnapshot] = field(default_factory=list)
    applied: int = 0  # the end that the core reported as committed and durable on this node
    calls: dict[int, Message] = field(default_factory=dict)  # requests being answered, by this node's number
    next_call: int = 1

    @property
    def id(self) -> int:
        return self.config.node_id


@dataclass(frozen=True)
class Message:
    """A request from `source` to `target`, or the reply to it from `target` back to `source`."""

    source: int
    incarnation: int  # of the source: a restarted node gets no replies to earlier requests
    target: int
    call: int  # the source's number
    request: Request
    timeout_ms: int
    reply: Reply | None = None

    @property
    def receiver(self) -> int:
        return self.target if self.reply is None else self.source

    @property
    def sender(self) -> int:
        return self.source if self.reply is None else self.target


class Lab:
    """`trace` is called with each effect of each node, in order, before the lab executes it."""

    def __init__(self, trace: Callable[[int, Effect], None] = lambda node, effect: None) -> None:
        self.now_ms = 0
        self.nodes: dict[int, Node] = {}
        self.wire: list[Message] = []
        self.taken: dict[LogEnd, tuple[LogBase, bytes]] = {}  # the snapshots that any node took
        self._trace = trace

    # Nodes

    def add(self, config: RaftConfig, disk: Disk | None = None) -> Node:
        node = Node(config, disk or Disk(config.node_id, directory(config.node_id)))
        self.nodes[config.node_id] = node
        return node

    def start(self, node_id: int, random: Random) -> None:
        node = self.nodes[node_id]
        assert node.core is None, f"{node_id} runs"
        node.incarnation += 1
        node.core = RaftCore(node.config, node.disk.load(), random, self.now_ms)

    def crash(self, node_id: int) -> None:
        """Stop the node; its pending writes are lost."""
        node = self.nodes[node_id]
        node.disk.pending.clear()
        node.core = None
        node.held.clear()
        node.reads.clear()
        node.calls.clear()
        node.receiving.clear()
        newest = max(node.disk.parts, key=lambda end: end.offset, default=None)
        node.disk.parts = {end: part for end, part in node.disk.parts.items() if end == newest}
        node.applied = 0

    def wipe(self, node_id: int, number: int) -> None:
        """Give a stopped node an empty disk, with another directory id."""
        node = self.nodes[node_id]
        assert node.core is None, f"{node_id} runs"
        node.disk = Disk(node_id, directory(number))

    def _absent(self, node_id: int | None) -> int:
        """Return the target of a message to an address without a listener.

        This is the node if it does not exist yet.  It is `NOBODY` if the node is unknown or has moved.
        """
        return NOBODY if node_id is None or node_id in self.nodes else node_id

    def node_at(self, address: str) -> int | None:
        return next((node.id for node in self.nodes.values() if node.config.address == address), None)

    # Events

    def step(self, node_id: int, event: Event) -> list[Effect]:
        node = self.nodes[node_id]
        assert node.core is not None, f"{node_id} is down"
        effects = node.core.step(event, self.now_ms)
        for effect in effects:
            self._trace(node_id, effect)
            self.execute(node, effect)
        return effects

    def tick(self, node_id: int) -> None:
        self.step(node_id, Tick())

    def settle(self, node_id: int) -> None:
        """Make the oldest write of the node durable: send the messages that waited for it, and inform the core."""
        node = self.nodes[node_id]
        write = node.disk.settle()
        ready = [message for after, message in node.held if after <= write.id]
        node.held = [entry for entry in node.held if entry[0] > write.id]
        self.wire += ready
        self.step(node_id, Written(write.id))

    def read(self, node_id: int) -> None:
        node = self.nodes[node_id]
        self.step(node_id, node.disk.read(node.reads.pop(0)))

    # Snapshots

    def take_snapshot(self, node_id: int) -> LogEnd:
        """Let the node take a snapshot of all that it has applied."""
        node = self.nodes[node_id]
        assert node.core is not None, f"{node_id} is down"
        epoch = node.core.log.epoch_at(node.applied - 1)
        end = LogEnd(node.core.log.base_epoch if epoch is None else epoch, node.applied)
        voters, target = node.core.history.in_force_below(end.offset)
        taken = (LogBase(end, voters, target), node.disk.content(end))
        same = self.taken.setdefault(end, taken)
        assert same == taken, f"{node_id} takes {taken}, elsewhere it is {same}"
        node.disk.snapshots[end] = taken[1]
        self.step(node_id, SnapshotTaken(end))
        return end

    def trim(self, node_id: int, end: LogEnd) -> None:
        self.step(node_id, TrimLog(end))

    def receive(self, node_id: int) -> None:
        """Execute the oldest request of the node's core for receiving a snapshot."""
        node = self.nodes[node_id]
        disk = node.disk
        match node.receiving.pop(0):
            case ReceiveSnapshot(end):
                part = disk.parts.setdefault(end, disk.snapshots.get(end, b""))
                self.step(node_id, SnapshotPart(end, len(part)))
            case StoreSnapshotPart(end, position, data):
                if len(disk.parts[end]) == position:
                    disk.parts[end] += data
                self.step(node_id, SnapshotPart(end, len(disk.parts[end])))
            case LoadSnapshot(end):
                base, content = self.taken[end]
                if disk.parts.pop(end) == content:
                    disk.snapshots[end] = content
                    self.step(node_id, SnapshotLoaded(base))
                else:
                    disk.snapshots.pop(end, None)
                    self.step(node_id, SnapshotFailed(end, "damaged"))

    # Messages

    def deliver(self, message: Message) -> None:
        """Deliver the message, which the caller has taken off the wire.  It fails if the node is down."""
        node = self.nodes.get(message.receiver)
        if node is None or node.core is None:
            if message.reply is None:
                self.fail(message)
            return
        if message.reply is None:
            call = node.next_call
            node.next_call += 1
            node.calls[call] = message
            self.step(node.id, RequestReceived(call, message.request))
        elif node.incarnation == message.incarnation:
            self.step(node.id, ReplyReceived(message.call, message.reply))

    def fail(self, message: Message) -> None:
        """Let the sender give up the request."""
        node = self.nodes[message.source]
        if node.core is not None and node.incarnation == message.incarnation:
            self.step(node.id, RequestFailed(message.call, "unreachable"))

    # Effects

    def execute(self, node: Node, effect: Effect) -> None:
        match effect:
            case Write():
                assert all(effect.id > write.id for write in node.disk.pending), f"write {effect.id} out of order"
                node.disk.pending.append(effect)
            case SendRequest():
                target = self.node_at(effect.to.address) or self._absent(effect.to.node_id)
                call, request, timeout_ms = effect.call, effect.request, effect.timeout_ms
                message = Message(node.id, node.incarnation, target, call, request, timeout_ms)
                self._send(node, message, effect.after)
            case SendReply():
                message = node.calls.pop(effect.call)
                self._send(node, dataclasses.replace(message, reply=effect.reply), effect.after)
            case ReadLog() | ReadSnapshot():
                node.reads.append(effect)
            case ReceiveSnapshot() | StoreSnapshotPart() | LoadSnapshot():
                node.receiving.append(effect)
            case AdvanceHighWatermark(offset):
                node.applied = offset
            case _:
                pass

    def _send(self, node: Node, message: Message, after: int | None) -> None:
        if after is not None and any(write.id <= after for write in node.disk.pending):
            node.held.append((after, message))
        else:
            self.wire.append(message)


def founded_disks(addresses: dict[int, str], cluster_id: str = "lab") -> dict[int, Disk]:
    """Return the disks of a freshly founded cluster with these voters."""
    voters = VoterSet(tuple(Voter(ReplicaKey(i, directory(i)), addresses[i]) for i in sorted(addresses)))
    batch = Batch(0, 0, 1, 0, control=Voters(cluster_id, 0, voters))
    state = QuorumState(cluster_id, 0, Election(0), 1, voters, None)
    return {i: Disk(i, directory(i), state, [batch]) for i in addresses}
