"""Brokers with several data directories, one of which fails at the worst moment."""

from __future__ import annotations

import asyncio
from typing import Any

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST, Consumer
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.nodes import World
from simulation.kernel.loop import EPOCH_MS
from simulation.smoke import all_ready, quiet

TOPIC = "t"
BROKER = 11


def test_a_replica_with_an_unreported_failed_directory_is_not_recreated() -> None:
    """Otherwise acknowledged records would be lost: an empty log would be treated as the log that held them."""
    quiet()
    world = World(3, voters=1, brokers=1, directories=2)
    host = world.hosts[BROKER]

    def log() -> Any:
        hosted = None if host.broker is None else host.broker.role.table.find(TOPIC, 0)
        return None if hosted is None else hosted.log

    async def story() -> None:
        world.start_all()
        await world.until(all_ready(world), "the broker is ready")
        plane = world.hosts[1].plane
        assert plane is not None
        request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=TOPIC, partitions=1, replication_factor=1)])
        async with Cluster(world.bootstrap, random=world.random) as cluster, Producer(cluster) as producer:
            asked = asyncio.ensure_future(plane.service.call(rpcs.CREATE_TOPICS, request, 10_000))
            await world.until(lambda: log() is not None, "the replica exists", look_s=0.0001)
            world.network.cut("b11", "v1")  # so that no node learns the directory of the replica
            await asked
            batch = build_batch([NewRecord(None, b"kept", EPOCH_MS, ())])
            assert await (await producer.send(TOPIC, 0, batch)) == 0
        failing = next(disk for disk in host.disks if disk.directory_id == log().directory_id)
        world.kill(BROKER)
        world.network.heal("b11", "v1")
        failing.full = True
        world.start(BROKER)
        await world.until(all_ready(world), "the broker is ready, with one directory")
        image = plane.replay.image
        await world.until(lambda: _is_offline(plane.replay.image.topic(TOPIC)), "the partition is offline")
        assert image.brokers[BROKER].directory_ids == tuple(disk.directory_id for disk in host.disks)
        assert log() is None
        world.kill(BROKER)
        failing.full = False
        failing.repaired()
        world.start(BROKER)
        await world.until(lambda: log() is not None and log().end_offset == 1, "the replica has recovered")
        async with Cluster(world.bootstrap, random=world.random) as cluster:
            consumer = Consumer(cluster)
            assert (await consumer.list_offset(TOPIC, 0, EARLIEST)).offset == 0
            assert (await consumer.list_offset(TOPIC, 0, LATEST)).offset == 1

    world.run(story())


def _is_offline(topic: Any) -> bool:
    return topic is not None and topic.partition(0).leader == -1
