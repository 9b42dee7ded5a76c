"""Wall clocks that jump: timeouts and intervals use a clock that does not jump."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from broker.replica.limits import ReplicaLimits
from quorum.snapshots import SnapshotPolicy
from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.draw import draw
from simulation.cluster.faults import ClusterFaults
from simulation.cluster.nodes import World
from simulation.cluster.releases import Releases
from simulation.cluster.world import QUICK, ClusterWorld
from simulation.kernel.faults import Fault
from simulation.kernel.loop import EPOCH_MS
from simulation.smoke import all_ready, quiet

TOPIC = "t"
LEADER, FOLLOWER = 11, 12
DAY_S = 86_400.0
YEAR_S = 365 * DAY_S


@pytest.mark.parametrize("jump_s", [DAY_S, 10 * YEAR_S, -DAY_S])
def test_a_retry_is_recognised_after_the_wall_clock_has_jumped(jump_s: float) -> None:
    """A batch waits for its replication while the clock jumps and upkeep runs; its producer sends it again."""
    quiet()
    world = World(5, voters=1, brokers=2, settings=QUICK, limits=ReplicaLimits(maintenance_interval_ms=300))

    def replica(node_id: int) -> Any:
        broker = world.hosts[node_id].broker
        return None if broker is None else broker.role.table.find(TOPIC, 0)

    def batch() -> bytearray:
        return build_batch([NewRecord(None, b"value", EPOCH_MS, ())])

    async def story() -> None:
        world.start_all()
        await world.until(all_ready(world), "the brokers are ready")
        plane = world.hosts[1].plane
        assert plane is not None
        new = pb.NewTopic(name=TOPIC, partitions=-1, replication_factor=-1)
        new.assignment.add(values=[LEADER, FOLLOWER])
        new.configs.add(key="min.insync.replicas", value="2")
        await plane.service.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[new]), 10_000)
        async with (
            Cluster(world.bootstrap, random=world.random) as cluster,
            Producer(cluster, request_timeout_s=2.0) as producer,
        ):
            for offset in range(3):
                assert await (await producer.send(TOPIC, 0, batch())) == offset
            await asyncio.sleep(1.0)  # upkeep has run
            world.network.cut("b12", "b11")
            world.network.cut("b11", "b12")
            waiting = await producer.send(TOPIC, 0, batch())
            await world.until(lambda: replica(LEADER).log.end_offset == 4, "the leader has it")
            world.wall_offset_s += jump_s
            await asyncio.sleep(5.0)
            assert not waiting.done()
            world.network.heal("b12", "b11")
            world.network.heal("b11", "b12")
            assert await waiting == 3
            assert await (await producer.send(TOPIC, 0, batch())) == 4
        both = (LEADER, FOLLOWER)
        same = "both have the same records"
        await world.until(lambda: all(replica(node_id).log.end_offset == 5 for node_id in both), same)
        for node_id in both:
            assert replica(node_id).log.start_offset == 0

    world.run(story())


@pytest.mark.parametrize("jump_s", [8 * DAY_S, 10 * YEAR_S])
def test_a_wall_clock_that_jumps_ahead_deletes_no_metadata_history(
    jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = SnapshotPolicy(log_bytes=1500)
    monkeypatch.setattr("quorumlog_server.control_plane.SnapshotPolicy", lambda **settings: policy)
    quiet()
    world = World(5, voters=1, brokers=1, settings=QUICK)
    disk = world.hosts[1].quorum_disk

    async def create_topics(prefix: str) -> None:
        plane = world.hosts[1].plane
        assert plane is not None
        for number in range(20):
            new = pb.NewTopic(name=f"{prefix}{number}", partitions=1, replication_factor=1)
            await plane.service.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[new]), 10_000)

    async def story() -> None:
        world.start_all()
        await world.until(all_ready(world), "the broker is ready")
        await create_topics("before")
        await world.until(lambda: len(disk.snapshots) >= 2, "there are snapshots")
        before = set(disk.snapshots)
        world.wall_offset_s += jump_s
        await create_topics("after")
        await world.until(lambda: len(disk.snapshots) >= len(before) + 2, "there are more")
        assert before < set(disk.snapshots)
        assert disk.log_start == 0

    world.run(story())


def test_some_jumps_concern_the_clocks_of_all_nodes_and_some_the_clock_of_one_node() -> None:
    found = [asyncio.run(_jump(number)) for number in range(8)]
    assert {one.during for one in found} == {(30.0, (0.0,)), (0.0, (0.0, 30.0))}
    assert {one.after for one in found} == {(0.0, (0.0,))}, "each jump ends"


class _Jump(NamedTuple):
    """The offset of all wall clocks, and the different offsets of single hosts, during a jump and after it."""

    during: tuple[float, tuple[float, ...]]
    after: tuple[float, tuple[float, ...]]


async def _jump(number: int) -> _Jump:
    world = ClusterWorld(draw(0))
    faults = ClusterFaults(world, Releases(world, ()))

    def offsets() -> tuple[float, tuple[float, ...]]:
        return world.wall_offset_s, tuple(sorted({host.wall_offset_s for host in world.hosts.values()}))

    jump = asyncio.ensure_future(faults._jump(Fault(number, "jump", 0.0, 60.0, (), 30.0)))
    await asyncio.sleep(0)
    during = offsets()
    faults._stop.set()
    async with asyncio.timeout(10):
        await jump
    return _Jump(during, offsets())
