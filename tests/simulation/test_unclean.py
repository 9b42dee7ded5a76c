"""An uncleanly elected leader serves no record that it could lose again."""

from __future__ import annotations

import asyncio
from typing import Any

from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.nodes import World
from simulation.cluster.world import QUICK
from simulation.kernel.loop import EPOCH_MS
from simulation.smoke import all_ready, quiet

TOPIC = "t"
LEADER, FOLLOWER = 11, 12


def test_an_unclean_leader_serves_committed_records_once_it_has_flushed_them() -> None:
    """The later leader copies the last records, with the watermark above them, while its disk hangs.

    No commit waits for it, because it is not in sync.  Then all replicas that were in sync are lost.
    """
    quiet()
    world = World(5, voters=1, brokers=2, settings=QUICK)

    def replica(node_id: int) -> Any:
        broker = world.hosts[node_id].broker
        return None if broker is None else broker.role.table.find(TOPIC, 0)

    def image() -> Any:
        plane = world.hosts[1].plane
        assert plane is not None
        topic = plane.replay.image.topic(TOPIC)
        assert topic is not None
        return topic.partitions[0]

    async def write(producer: Producer, count: int) -> None:
        for _ in range(count):
            batch = build_batch([NewRecord(None, b"value", EPOCH_MS, ())])
            await (await producer.send(TOPIC, 0, batch))

    async def story() -> None:
        world.start_all()
        await world.until(all_ready(world), "the brokers are ready")
        plane = world.hosts[1].plane
        assert plane is not None
        new = pb.NewTopic(name=TOPIC, partitions=-1, replication_factor=-1)
        new.assignment.add(values=[LEADER, FOLLOWER])
        new.configs.add(key="unclean.leader.election.enable", value="true")
        await plane.service.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[new]), 10_000)
        disk = world.hosts[FOLLOWER].disks[0]
        async with Cluster(world.bootstrap, random=world.random) as cluster, Producer(cluster) as producer:
            await write(producer, 2)
            await world.until(lambda: replica(FOLLOWER).log.flushed_offset == 2, "the follower has them")
            world.network.cut("b12", "b11")
            world.network.cut("b11", "b12")
            await world.until(lambda: image().isr == (LEADER,), "the follower is out of sync")
            await write(producer, 3)
            disk.hangs = True
            world.network.heal("b12", "b11")
            world.network.heal("b11", "b12")
            await world.until(lambda: replica(FOLLOWER).log.end_offset == 5, "the follower has copied the rest")
            assert replica(FOLLOWER).log.flushed_offset == 2
        world.kill(LEADER)
        await world.until(lambda: image().leader == FOLLOWER, "the follower is elected")
        await world.until(lambda: replica(FOLLOWER).leader is not None, "the follower leads")
        assert replica(FOLLOWER).leader.high_watermark == 2
        disk.hangs = False
        await world.until(lambda: replica(FOLLOWER).log.flushed_offset == 5, "the disk has all")
        await asyncio.sleep(0)
        assert replica(FOLLOWER).leader.high_watermark == 5

    world.run(story())
