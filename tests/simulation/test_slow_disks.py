"""Leadership does not move among slow disks, but moves from a slow disk to a fast one."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from simulation.kernel.store import Latency
from simulation.quorum.aftermath import Aftermath
from simulation.quorum.slow_disks import PREFERRED, START_S, measure, quiet_plan
from simulation.quorum.world import QuorumWorld

P99_MS = 2000


@pytest.mark.parametrize("p50_ms", [100, 500])
def test_leadership_does_not_circulate_among_slow_disks(p50_ms: int) -> None:
    found = measure("all", Latency(p50_ms, P99_MS), 90, runs=1, op_gap_s=0.3)
    assert found.violation is None
    assert found.epochs <= 1
    assert found.acknowledged > 100


def test_a_voter_with_a_fast_disk_replaces_a_slow_leader() -> None:
    found = measure("all but one", Latency(500, P99_MS), 90, runs=1, op_gap_s=0.3)
    assert found.violation is None
    assert found.epochs == 1
    assert found.slow_leader_s < found.seconds / 2


def test_a_slow_follower_does_not_move_the_leadership() -> None:
    found = measure("one follower", Latency(500, P99_MS), 30, runs=1, op_gap_s=0.3)
    assert found.violation is None
    assert found.epochs == 0


def test_a_preference_does_not_return_leadership_to_a_slow_disk() -> None:
    found = measure(PREFERRED, Latency(500, P99_MS), 90, runs=1, op_gap_s=0.3)
    assert found.violation is None
    assert found.epochs == 1


@pytest.mark.parametrize("slow", [False, True])
def test_the_judge_expects_a_preferred_voter_to_lead_unless_its_disk_was_slow(slow: bool) -> None:
    verdicts: list[bool] = []

    async def course(world: QuorumWorld) -> None:
        for node_id in sorted(world.hosts):
            world.start(node_id)
        stop = world.start_clients()
        await world.until(lambda: world.leader() is not None, "a leader is elected", START_S)
        leader = world.leader()
        assert leader is not None
        assert leader.replay is not None
        preferred = next(host for host in world.hosts.values() if host is not leader)
        if slow:
            preferred.disk.usual = Latency(500, P99_MS)
        await asyncio.sleep(5)
        stop.set()
        for node_id in (leader.node_id, preferred.node_id):  # the nodes do not learn of it, so leadership stays
            leader.replay.image = replace(leader.replay.image, preferred_controllers=(node_id,))
            verdicts.append(Aftermath(world).preference_is_kept())

    assert QuorumWorld(quiet_plan(0)).play(course).violation is None
    assert verdicts == [True, slow]
