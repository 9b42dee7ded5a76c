"""Cores under a failing network and failing disks: promises hold, and work continues once the faults end.

A failure names its seed; `RAFT_SEEDS=7` runs seed 7 alone, `RAFT_SEEDS=1000:3000` a range.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import pytest
from msgspec.structs import replace

from quorum.core import RaftConfig
from quorum.core.events import (
    AddVoter,
    CancelTarget,
    ChangeVoters,
    ConfirmRead,
    Event,
    Prefer,
    Propose,
    ReadLog,
    ReadSnapshot,
    RemoveVoter,
    RequestFailed,
    Resign,
    SetTarget,
    Transfer,
    UpdateVoter,
    VoterChange,
)
from quorum.core.roles import Leader
from quorum.core.types import ReplicaKey, VoterSet
from tests.scenarios.checker import Checker
from tests.scenarios.lab import Lab, Message, Node, founded_disks

CHAOS_MS = 8_000
HEALED_MS = 30_000
QUIET_MS = 12_000  # longer than any change or transfer may take
BLOCK = 25


@dataclass
class Faults:
    """Drawn once for each run; all zero after the faults have ended."""

    delay_ms: int
    loss: float
    duplicates: float
    disk_ms: int
    stall: float  # chance that a write takes seconds


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.checker = Checker()
        self.lab = self.checker.lab = Lab(self.checker.effect)
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.order = 0
        self.faults = Faults(
            delay_ms=self.random.choice([2, 20, 200]),
            loss=self.random.choice([0, 0.02, 0.2]),
            duplicates=self.random.choice([0, 0.05, 0.3]),
            disk_ms=self.random.choice([0, 5, 50]),
            stall=self.random.choice([0, 0, 0.02]),
        )
        self.cut: set[tuple[int, int]] = set()
        self.proposals = 0
        self.calls = 0
        self.wiped = False
        self.changing = self.random.random() < 0.6
        self.quiet = False  # no more requests are sent
        self.ticks: Counter[int] = Counter()
        self.disk_free_ms: Counter[int] = Counter()
        voters = self.random.choice([1, 2, 3, 3, 3, 4, 5])
        self.ids = list(range(1, voters + 1))
        founded = self.random.random() < 0.7
        addresses = {node_id: f"n{node_id}:1" for node_id in self.ids}
        disks = founded_disks(addresses) if founded else {}
        listed = tuple(addresses.items())
        fetch_max_bytes = self.random.choice([1 << 20, 200])
        recent_max_bytes = self.random.choice([1 << 20, 0])
        for node_id in self.ids:
            config = RaftConfig(
                node_id,
                addresses[node_id],
                initial_voters=listed,
                new_cluster_id="lab",
                fetch_max_bytes=fetch_max_bytes,
                recent_max_bytes=recent_max_bytes,
            )
            self.lab.add(config, disks.get(node_id))
        for node_id in (8, 9):
            if self.random.random() < 0.4:
                self.ids.append(node_id)
                self.lab.add(RaftConfig(node_id, f"n{node_id}:1", bootstrap=tuple(addresses.values())))
        for node_id in self.ids:
            self.at(self.random.randrange(200), partial(self.start, node_id))

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.order += 1
        heapq.heappush(self.queue, (self.lab.now_ms + delay_ms, self.order, action))

    # What happens

    def run(self, until_ms: int, done: Callable[[], bool] = lambda: False) -> None:
        while self.queue and self.lab.now_ms < until_ms and not done():
            at_ms, _, action = heapq.heappop(self.queue)
            self.lab.now_ms = max(self.lab.now_ms, at_ms)
            action()
            self.checker.stepped()
            self.collect()

    def collect(self) -> None:
        """Wait for everything that the last event caused."""
        wire, self.lab.wire = self.lab.wire, []
        for message in wire:
            self.checker.left(message)
            self.post(message)
        for node in self.lab.nodes.values():
            if node.core is None:
                continue
            for effect in node.reads:
                self.checker.seen["read"] += 1
                self.at(self.random.randrange(self.faults.disk_ms + 1), self.reading(node, effect))
            node.reads.clear()
            if node.receiving and self.receiving.get(node.id) != node.incarnation:
                self.receiving[node.id] = node.incarnation
                self.at(self.random.randrange(self.faults.disk_ms + 1), self.receive(node))
            self.arm(node.id)

    receiving: dict[int, int]

    def receive(self, node: Node) -> Callable[[], None]:
        """Let the node take the next step of receiving a snapshot."""
        incarnation = node.incarnation

        def work() -> None:
            if self.receiving.get(node.id) == incarnation:
                del self.receiving[node.id]
            if node.core is not None and node.incarnation == incarnation and node.receiving:
                self.lab.receive(node.id)
                self.wrote(node.id)

        return work

    def snapshot(self) -> None:
        """Let a node take a snapshot, and start its log after it or an older one; delete some snapshots."""
        running = [node for node in self.lab.nodes.values() if node.core is not None and node.applied > node.disk.start]
        if running:
            node = self.random.choice(running)
            disk = node.disk
            if all(end.offset < node.applied for end in disk.snapshots) and self.random.random() < 0.7:
                self.lab.take_snapshot(node.id)
                self.checker.seen["snapshot taken"] += 1
            if disk.usable and self.random.random() < 0.7:
                self.lab.trim(node.id, self.random.choice(disk.usable))
            for end in disk.usable[:-1]:
                if self.random.random() < 0.5:
                    del disk.snapshots[end]
            self.wrote(node.id)
        self.at(self.random.randrange(10, 1500), self.snapshot)

    def reading(self, node: Node, effect: ReadLog | ReadSnapshot) -> Callable[[], None]:
        """Let the disk answer a little later, when the node may have another role."""
        incarnation = node.incarnation

        def answer() -> None:
            if node.core is not None and node.incarnation == incarnation:
                self.lab.step(node.id, node.disk.read(effect))
                self.wrote(node.id)

        return answer

    def arm(self, node_id: int) -> None:
        """One tick at a time is on its way for each node, at its deadline or a little late."""
        node = self.lab.nodes[node_id]
        assert node.core is not None
        deadline, incarnation = node.core.deadline_ms, node.incarnation
        if self.armed.get(node_id) == (incarnation, deadline):
            return
        self.armed[node_id] = (incarnation, deadline)

        def fire() -> None:
            if node.core is not None and self.armed.get(node_id) == (incarnation, deadline):
                del self.armed[node_id]
                self.ticks[node_id] += 1
                self.lab.tick(node_id)
                self.wrote(node_id)

        self.at(max(0, deadline - self.lab.now_ms) + self.random.randrange(3), fire)

    armed: dict[int, tuple[int, int]]

    def post(self, message: Message) -> None:
        faults, random = self.faults, self.random
        if message.reply is None:
            self.at(message.timeout_ms, lambda: self.time_out(message))
        copies = 2 if random.random() < faults.duplicates else 1
        for _ in range(copies):
            if random.random() >= faults.loss and (message.sender, message.receiver) not in self.cut:
                self.at(1 + random.randrange(faults.delay_ms), lambda: self.deliver(message))

    def deliver(self, message: Message) -> None:
        if (message.sender, message.receiver) not in self.cut:
            self.lab.deliver(message)
            self.wrote(message.receiver)
            self.wrote(message.source)

    def time_out(self, message: Message) -> None:
        node = self.lab.nodes[message.source]
        if node.core is not None and node.incarnation == message.incarnation:
            self.lab.step(node.id, RequestFailed(message.call, "timeout"))
            self.wrote(node.id)

    def wrote(self, node_id: int) -> None:
        """Each new write of the node becomes durable in its turn."""
        node = self.lab.nodes[node_id]
        for write in node.disk.pending:
            if (node_id, node.incarnation, write.id) in self.on_disk:
                continue
            self.on_disk.add((node_id, node.incarnation, write.id))
            takes = self.random.randrange(self.faults.disk_ms + 1)
            if self.random.random() < self.faults.stall:
                takes += self.random.randrange(500, 5000)
            done = max(self.disk_free_ms[node_id], self.lab.now_ms) + takes
            self.disk_free_ms[node_id] = done
            self.at(done - self.lab.now_ms, partial(self.settle, node_id, node.incarnation))

    on_disk: set[tuple[int, int, int]]

    def settle(self, node_id: int, incarnation: int) -> None:
        node = self.lab.nodes[node_id]
        if node.core is not None and node.incarnation == incarnation:
            write = node.disk.pending[0]
            self.lab.settle(node_id)
            self.checker.settled(node_id, write)
            self.wrote(node_id)

    # Faults

    def start(self, node_id: int) -> None:
        node = self.lab.nodes[node_id]
        if node.core is None:
            self.lab.start(node_id, self.random)
            self.checker.started(node_id)

    def crash(self, node_id: int) -> None:
        node = self.lab.nodes[node_id]
        if node.core is not None:
            for _ in range(self.random.randint(0, len(node.disk.pending))):
                self.checker.settled(node_id, node.disk.settle())
            self.lab.crash(node_id)
            self.checker.crashed(node_id)
            self.disk_free_ms[node_id] = 0
            self.checker.seen["crash"] += 1

    def chaos(self) -> None:
        """Cause one fault, and the next one later."""
        if self.lab.now_ms >= CHAOS_MS:
            return
        random = self.random
        match random.randrange(14):
            case 0 | 1:
                node_id = random.choice(self.ids)
                self.crash(node_id)
                self.at(random.choice([1, 300, 3000]), lambda: self.start(node_id))
            case 2:
                lonely = random.choice(self.ids)
                self.cut = {pair for other in self.ids for pair in ((lonely, other), (other, lonely))}
            case 3:
                side = set(random.sample(self.ids, len(self.ids) // 2))
                self.cut = {(a, b) for a in self.ids for b in self.ids if (a in side) != (b in side)}
            case 4:
                self.cut = {(a, b) for a in self.ids for b in self.ids if random.random() < 0.2}
            case 5:
                self.cut = set()
            case 6:
                for node_id in self.ids:
                    self.crash(node_id)
                    self.at(random.randrange(1000), partial(self.start, node_id))
            case 7:
                node = self.lab.nodes[random.choice(self.ids)]
                if node.core is not None:
                    self.lab.step(node.id, Resign("told to"))
                    self.wrote(node.id)
            case 8:
                self.prefer(tuple(random.sample(self.ids, min(len(self.ids), random.randint(0, 2)))))
            case 9 | 12 | 13:
                self.transfer()
            case 10:
                self.lose_a_disk()
            case 11:
                self.cut = {(a, b) for a, b in self.cut if random.random() < 0.5}
        self.at(random.randrange(100, 3000), self.chaos)

    def propose(self) -> None:
        if self.quiet:
            return
        for node in self.lab.nodes.values():
            if node.core is not None and isinstance(node.core.role, Leader):
                self.proposals += 1
                payload = f"{node.id}.{self.proposals}".encode()
                self.lab.step(node.id, Propose(node.core.epoch, payload, self.random.randint(1, 3), self.lab.now_ms))
                self.wrote(node.id)
        self.at(self.random.randrange(1, 200), self.propose)

    def ask(self, node_id: int, event: Event) -> None:
        self.lab.step(node_id, event)
        self.wrote(node_id)

    def someone(self) -> Node | None:
        """Return a leader in most cases, else any node."""
        running = [node for node in self.lab.nodes.values() if node.core is not None]
        leaders = [node for node in running if node.core is not None and isinstance(node.core.role, Leader)]
        wanted = leaders if leaders and self.random.random() < 0.9 else running
        return self.random.choice(wanted) if wanted else None

    def change(self) -> None:
        """Ask a node to change the voters, and repeat this later."""
        if self.quiet:
            return
        node = self.someone()
        if node is not None:
            self.calls += 1
            self.checker.changes(node.id, self.calls)
            dry_run = self.random.random() < 0.1
            self.ask(node.id, ChangeVoters(self.calls, self.draw_change(), dry_run, self.random.choice([100, 5000])))
        self.at(self.random.randrange(50, 1500), self.change)

    def draw_change(self) -> VoterChange:
        random = self.random
        node_id = random.choice(self.ids)
        disk = self.lab.nodes[node_id].disk
        match random.randrange(8):
            case 0 | 1 | 2:
                address = f"n{random.choice([node_id] * 9 + self.ids)}:1"
                return AddVoter(node_id, address, None, random.random() < 0.7)
            case 3 | 4:
                return RemoveVoter(node_id, random.choice([None, disk.directory_id]))
            case 5:
                return UpdateVoter(ReplicaKey(node_id, disk.directory_id), f"n{random.choice(self.ids)}:1")
            case 6:
                chosen = random.sample(self.ids, random.randint(1, len(self.ids)))
                return SetTarget(tuple((chosen_id, f"n{chosen_id}:1") for chosen_id in chosen))
        return CancelTarget()

    def transfer(self) -> None:
        node = self.someone()
        if node is not None:
            self.calls += 1
            self.checker.changes(node.id, self.calls)
            to = self.random.choice([None, None, None, *self.ids])
            self.ask(node.id, Transfer(self.calls, to, self.random.choice([100, 5000])))

    def prefer(self, wanted: tuple[int, ...]) -> None:
        for node in list(self.lab.nodes.values()):
            if node.core is not None:
                self.ask(node.id, Prefer(wanted))

    def lose_a_disk(self) -> None:
        """Lose one disk once and replace it, in a run without other changes, which might still rely on that disk."""
        node_id = self.random.choice(self.ids)
        node = self.lab.nodes[node_id]
        voters = self.checker.voters[0] if self.checker.voters else VoterSet()
        if self.wiped or self.changing or len(voters) < 3:
            return
        self.wiped = True
        self.at(2000, lambda: self.replace_disk(node_id))
        self.crash(node_id)
        lost = node.disk
        self.lab.wipe(node_id, 100 + node_id)
        self.checker.wiped(node_id, lost)
        node.config = replace(node.config, initial_voters=(), bootstrap=tuple(f"n{i}:1" for i in self.ids if i < 8))
        self.at(self.random.choice([1, 1000]), lambda: self.start(node_id))

    def replace_disk(self, node_id: int) -> None:
        """Ask for the lost disk's replacement until it is one of the voters."""
        key = ReplicaKey(node_id, self.lab.nodes[node_id].disk.directory_id)
        if any(key in voters for voters in self.checker.voters) or self.quiet or node_id >= 8:
            return
        node = self.someone()
        if node is not None:
            self.calls += 1
            self.checker.changes(node.id, self.calls)
            self.ask(node.id, ChangeVoters(self.calls, AddVoter(node_id, f"n{node_id}:1", None, True), False, 5000))
        self.at(1000, lambda: self.replace_disk(node_id))

    def read(self) -> None:
        if self.quiet:
            return
        node = self.someone()
        if node is not None:
            self.calls += 1
            self.checker.reads(node.id, self.calls)
            self.ask(node.id, ConfirmRead(self.calls))
        self.at(self.random.randrange(1, 300), self.read)

    def heal(self) -> None:
        self.faults = Faults(5, 0, 0, 2, 0)
        self.cut = set()
        for node_id in self.ids:
            self.start(node_id)


def run(seed: int) -> Counter[str]:
    """Run one seed; return how often the rare events happened."""
    world = World(seed)
    world.armed, world.on_disk, world.receiving = {}, set(), {}
    world.at(world.random.randrange(3000), world.chaos)
    world.at(500, world.propose)
    world.at(500, world.read)
    if world.random.random() < 0.5:
        world.at(500, world.snapshot)
    if world.changing:
        world.at(1000, world.change)
    world.run(CHAOS_MS)
    world.heal()
    nodes = world.lab.nodes
    goal = world.checker.end + 5

    def caught_up() -> bool:
        return all(node.core is not None and node.core.high_watermark >= goal for node in nodes.values())

    world.run(CHAOS_MS + HEALED_MS, caught_up)
    ends = {i: node.core and (node.core.role, node.core.known, node.core.log.last) for i, node in nodes.items()}
    assert caught_up(), f"no progress to {goal} after healing: {ends}"
    busiest = max(world.ticks.values())
    assert busiest < world.lab.now_ms // 5, f"{busiest} ticks in {world.lab.now_ms} ms: a node spins"
    world.quiet = True
    world.run(world.lab.now_ms + QUIET_MS)
    world.checker.all_answered()
    world.checker.seen["committed"] += len(world.checker.committed)
    return world.checker.seen


def blocks() -> list[range]:
    asked = os.environ.get("RAFT_SEEDS", "0:200")
    first, _, last = asked.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    return [range(start, min(start + BLOCK, seeds.stop)) for start in range(seeds.start, seeds.stop, BLOCK)]


@pytest.mark.parametrize("seeds", blocks(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_cores_keep_all_invariants_under_faults_and_make_progress_afterwards(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += run(seed)
        except AssertionError as failure:
            raise AssertionError(f"RAFT_SEEDS={seed}: {failure}") from failure
    if len(seeds) == BLOCK:
        rare = ("leader", "truncation", "crash", "paused", "resigned", "read", "committed")
        for what in (
            *rare,
            "snapshot taken",
            "trimmed",
            "snapshot loaded",
            "reconfiguration",
            "changed",
            "transfer NONE",
            "confirmed read",
            "refused read",
        ):
            assert seen[what] > 0, f"{what} never happened in seeds {seeds}: the faults are too mild"
