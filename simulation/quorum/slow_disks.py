"""Measures how often leadership moves while disks are slow: `python -m simulation --slow-disks`.

Three voters use default timeouts, and three clients run without other faults.  Once a leader serves, some disks become
permanently slow.  The table shows the effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

from quorum.core.types import Role
from simulation.kernel.store import Latency
from simulation.quorum.plan import Plan, draw
from simulation.quorum.world import QuorumWorld

LATENCIES = (Latency(20, 500), Latency(100, 2000), Latency(500, 2000))
PREFERRED = "the preferred leader"
WHO = ("one follower", "the leader", PREFERRED, "all but one", "all")
MINUTES = 3.0
RUNS = 3
LOOK_S = 0.05
START_S = 30.0


@dataclass
class Measured:
    """The result of a run with slow disks.

    epochs: how many epochs began while disks were slow.  slow_leader_s: how long the leader's disk was slow although
    another node had a fast one.  unserved_s: the longest time without an answer to any client.
    """

    seconds: float = 0.0
    epochs: int = 0
    acknowledged: int = 0
    slow_leader_s: float = 0.0
    unserved_s: float = 0.0
    violation: str | None = None

    def add(self, other: Measured) -> None:
        """Add the sums of another run; keep the longer `unserved_s` and the first violation."""
        self.seconds += other.seconds
        self.epochs += other.epochs
        self.acknowledged += other.acknowledged
        self.slow_leader_s += other.slow_leader_s
        self.unserved_s = max(self.unserved_s, other.unserved_s)
        self.violation = self.violation or other.violation

    @property
    def epochs_a_minute(self) -> float:
        return self.epochs * 60 / self.seconds


class SlowDisks:
    """A run without faults in which the disks of `who` become permanently slow.  who: one of `WHO`."""

    def __init__(self, world: QuorumWorld, who: str, latency: Latency, seconds: float) -> None:
        self.world = world
        self.who = who
        self.latency = latency
        self.seconds = seconds
        self.measured = Measured()

    def run(self) -> Measured:
        self.measured.violation = self.world.play(self._course).violation
        return self.measured

    async def _course(self, world: QuorumWorld) -> None:
        for node_id in sorted(world.hosts):
            world.start(node_id)
        stop = world.start_clients()
        await world.until(lambda: world.leader() is not None, "a leader is elected", START_S)
        slow = self._slow_down()
        await self._measure(slow)
        stop.set()

    def _slow_down(self) -> set[int]:
        hosts, leader = self.world.hosts, self.world.leader()
        assert leader is not None
        others = [node_id for node_id in hosts if node_id != leader.node_id]
        chosen = {
            "one follower": others[:1],
            "the leader": [leader.node_id],
            PREFERRED: [leader.node_id],
            "all but one": [leader.node_id, *others[:-1]],
            "all": [leader.node_id, *others],
        }[self.who]
        for node_id in chosen:
            hosts[node_id].disk.usual = self.latency
        if self.who == PREFERRED:
            for host in hosts.values():
                if host.node is not None:
                    host.node.prefer((leader.node_id,))
        return set(chosen)

    async def _measure(self, slow: set[int]) -> None:
        world, measured = self.world, self.measured
        epoch = self._epoch()
        acknowledged, served_at = world.acknowledged, world.loop.true_time()
        before = world.acknowledged
        end = served_at + self.seconds
        while (now := world.loop.true_time()) < end:
            await asyncio.sleep(LOOK_S)
            if world.acknowledged > acknowledged:
                acknowledged, served_at = world.acknowledged, now
            measured.unserved_s = max(measured.unserved_s, now - served_at)
            leads = {host.node_id for host in world.hosts.values() if host.node and host.node.role is Role.LEADER}
            if len(slow) < len(world.hosts) and leads and leads <= slow:
                measured.slow_leader_s += LOOK_S
        measured.seconds = self.seconds
        measured.epochs = self._epoch() - epoch
        measured.acknowledged = world.acknowledged - before

    def _epoch(self) -> int:
        return max(host.node.epoch for host in self.world.hosts.values() if host.node)


def quiet_plan(seed: int, op_gap_s: float = 0.1) -> Plan:
    """Return a plan with default timeouts, no observers and no faults."""
    return replace(
        draw(seed),
        voters=3,
        observers=0,
        op_gap_s=op_gap_s,
        quick=False,
        small_fetches=False,
        watermark_wait_ms=5,
        auto_join=False,
        disaster=False,
        snapshots=False,
        slow_disks=(),
        faults=(),
    )


def measure(who: str, latency: Latency, seconds: float, runs: int = RUNS, op_gap_s: float = 0.1) -> Measured:
    """Run the seeds from 0 to `runs` - 1, and return their sums; of `unserved_s`, the maximum."""
    total = Measured()
    for seed in range(runs):
        world = QuorumWorld(quiet_plan(seed, op_gap_s))
        total.add(SlowDisks(world, who, latency, seconds).run())
    return total


def table(seconds: float = MINUTES * 60) -> Iterator[str]:
    yield "| slow disks | fsync p50, p99 (ms) | epochs/min | answers/s | slow leader | longest time unserved (s) |"
    yield "|---|---|---:|---:|---:|---:|"
    for who in WHO:
        for latency in LATENCIES:
            found = measure(who, latency, seconds)
            share = f"{found.slow_leader_s / found.seconds:.0%}" if who != "all" else ""
            yield (
                f"| {who} | {latency.p50_ms:g}, {latency.p99_ms:g} | {found.epochs_a_minute:.2f} | "
                f"{found.acknowledged / found.seconds:.1f} | {share} | {found.unserved_s:.1f} |"
                + (f" {found.violation}" if found.violation else "")
            )
