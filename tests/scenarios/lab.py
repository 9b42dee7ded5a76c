"""Several cores, their disks and the wire between them, with nothing happening by itself.

A message goes nowhere until it is delivered, a write is not durable until it is said to be, and a crash loses what was
not.  The scenarios drive it by hand, the property test by chance; both see the same `Lab`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from uuid import UUID

from quorum.core import RaftConfig, RaftCore
from quorum.core.events import (
    Answer,
    Answered,
    Ask,
    Asked,
    Effect,
    Event,
    LogRead,
    ReadLog,
    Tick,
    Unanswered,
    Write,
    Written,
)
from quorum.core.messages import Reply, Request
from quorum.core.types import (
    Batch,
    Election,
    QuorumState,
    ReplicaKey,
    StoredQuorum,
    Voter,
    Voters,
    VoterSet,
)

NOBODY = 0
"""Stands in a message's target for an address where no node is."""


def directory(number: int) -> UUID:
    """A directory id that shows its number in its first hexadecimal digits."""
    return UUID(int=number << 120 | 1)


@dataclass
class Disk:
    """What survives a crash (`state`, `batches`), and the writes on their way to it."""

    node_id: int
    directory_id: UUID
    state: QuorumState = field(default_factory=QuorumState)
    batches: list[Batch] = field(default_factory=list)
    pending: list[Write] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    def holds(self, batch: Batch) -> bool:
        index = bisect_left(self.batches, batch.base_offset, key=lambda own: own.base_offset)
        return index < len(self.batches) and self.batches[index] == batch

    def settle(self) -> Write:
        """Make the oldest pending write durable."""
        write = self.pending.pop(0)
        if write.truncate_to is not None:
            self.batches = [batch for batch in self.batches if batch.base_offset < write.truncate_to]
            assert self.end == write.truncate_to, f"truncation to {write.truncate_to} within a batch, now {self.end}"
        for batch in write.batches:
            assert batch.base_offset == self.end, f"append at {batch.base_offset} to a log that ends at {self.end}"
            self.batches.append(batch)
        self.state = write.state
        assert self.state.applied_offset == self.end, f"{self.state} with a log that ends at {self.end}"
        return write

    def load(self) -> StoredQuorum:
        epochs: list[tuple[int, int]] = []
        for batch in self.batches:
            if not epochs or epochs[-1][0] != batch.epoch:
                epochs.append((batch.epoch, batch.base_offset))
        controls = tuple(batch for batch in self.batches if batch.control is not None)
        return StoredQuorum(self.node_id, self.directory_id, self.state, 0, self.end, tuple(epochs), controls)

    def read(self, effect: ReadLog) -> LogRead:
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
    config: RaftConfig
    disk: Disk
    core: RaftCore | None = None
    incarnation: int = 0
    held: list[tuple[int, Message]] = field(default_factory=list)  # messages that wait for a write
    reads: list[ReadLog] = field(default_factory=list)
    calls: dict[int, Message] = field(default_factory=dict)  # requests being answered, by this node's number
    next_call: int = 1

    @property
    def id(self) -> int:
        return self.config.node_id


@dataclass(frozen=True)
class Message:
    """A request from `source` to `target`, or the reply to it from `target` back to `source`."""

    source: int
    incarnation: int  # of the source: a restarted node gets no replies to what it asked before
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
    """`trace` is called with each effect of each node, in order, before the lab carries it out."""

    def __init__(self, trace: Callable[[int, Effect], None] = lambda node, effect: None) -> None:
        self.now_ms = 0
        self.nodes: dict[int, Node] = {}
        self.wire: list[Message] = []
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

    def wipe(self, node_id: int, number: int) -> None:
        """Give a stopped node an empty disk, with another directory id."""
        node = self.nodes[node_id]
        assert node.core is None, f"{node_id} runs"
        node.disk = Disk(node_id, directory(number))

    def node_at(self, address: str) -> int | None:
        return next((node.id for node in self.nodes.values() if node.config.address == address), None)

    # Events

    def step(self, node_id: int, event: Event) -> list[Effect]:
        node = self.nodes[node_id]
        assert node.core is not None, f"{node_id} is down"
        effects = node.core.step(event, self.now_ms)
        for effect in effects:
            self._trace(node_id, effect)
            self.carry_out(node, effect)
        return effects

    def tick(self, node_id: int) -> None:
        self.step(node_id, Tick())

    def settle(self, node_id: int) -> None:
        """The oldest write of the node is durable: what waited for it leaves, and the core hears of it."""
        node = self.nodes[node_id]
        write = node.disk.settle()
        ready = [message for after, message in node.held if after <= write.id]
        node.held = [entry for entry in node.held if entry[0] > write.id]
        self.wire += ready
        self.step(node_id, Written(write.id))

    def read(self, node_id: int) -> None:
        node = self.nodes[node_id]
        self.step(node_id, node.disk.read(node.reads.pop(0)))

    def deliver(self, message: Message) -> None:
        """Hand the message over; the caller has taken it off the wire.  To a node that is down it fails."""
        node = self.nodes.get(message.receiver)
        if node is None or node.core is None:
            if message.reply is None:
                self.fail(message)
            return
        if message.reply is None:
            call = node.next_call
            node.next_call += 1
            node.calls[call] = message
            self.step(node.id, Asked(call, message.request))
        elif node.incarnation == message.incarnation:
            self.step(node.id, Answered(message.call, message.reply))

    def fail(self, message: Message) -> None:
        """The asker gives the request up."""
        node = self.nodes[message.source]
        if node.core is not None and node.incarnation == message.incarnation:
            self.step(node.id, Unanswered(message.call, "unreachable"))

    # Effects

    def carry_out(self, node: Node, effect: Effect) -> None:
        match effect:
            case Write():
                assert all(effect.id > write.id for write in node.disk.pending), f"write {effect.id} out of order"
                node.disk.pending.append(effect)
            case Ask():
                target = self.node_at(effect.to.address) or effect.to.node_id or NOBODY
                call, request, timeout_ms = effect.call, effect.request, effect.timeout_ms
                message = Message(node.id, node.incarnation, target, call, request, timeout_ms)
                self._send(node, message, effect.after)
            case Answer():
                message = node.calls.pop(effect.call)
                self._send(node, replace(message, reply=effect.reply), effect.after)
            case ReadLog():
                node.reads.append(effect)
            case _:
                pass

    def _send(self, node: Node, message: Message, after: int | None) -> None:
        if after is not None and any(write.id <= after for write in node.disk.pending):
            node.held.append((after, message))
        else:
            self.wire.append(message)


def founded_disks(addresses: dict[int, str], cluster_id: str = "lab") -> dict[int, Disk]:
    """The disks of a freshly founded cluster with these voters."""
    voters = VoterSet(tuple(Voter(ReplicaKey(i, directory(i)), addresses[i]) for i in sorted(addresses)))
    batch = Batch(0, 0, 1, 0, control=Voters(cluster_id, 0, voters))
    state = QuorumState(cluster_id, 0, Election(0), 1, voters, None)
    return {i: Disk(i, directory(i), state, [batch]) for i in addresses}
