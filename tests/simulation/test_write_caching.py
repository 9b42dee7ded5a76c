"""`write.caching` is switched off, and a broker loses power."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from simulation.cluster.nodes import World
from simulation.cluster.world import QUICK
from simulation.kernel.loop import EPOCH_MS
from simulation.smoke import all_ready, quiet

TOPIC = "t"
LAST, OTHER = 11, 12
WRITTEN = 6


@pytest.mark.parametrize("is_down", [True, False], ids=["while the broker is down", "while it runs"])
def test_the_last_replica_in_sync_leads_again_only_if_its_log_was_flushed(is_down: bool) -> None:
    """The last replica in sync loses power, before or after the change of the config."""
    quiet()
    world = World(5, voters=1, brokers=2, settings=QUICK)

    def log(node_id: int) -> Any:
        broker = world.hosts[node_id].broker
        replica = None if broker is None else broker.role.table.find(TOPIC, 0)
        return None if replica is None else replica.log

    def plane() -> Any:
        return world.hosts[1].plane

    def partition() -> Any:
        return plane().replay.image.topic(TOPIC).partitions[0]

    async def write(count: int) -> None:
        async with Cluster(world.bootstrap, random=world.random) as cluster, Producer(cluster) as producer:
            for _ in range(count):
                await (await producer.send(TOPIC, 0, build_batch([NewRecord(None, b"value", EPOCH_MS, ())])))

    async def switch_off() -> None:
        resource = pb.ConfigResource(scope=metadata_pb2.Config.SCOPE_TOPIC, name=TOPIC)
        changes = [pb.ConfigChange(key="write.caching", value="false")]
        request = pb.AlterConfigsRequest(resources=[pb.ConfigChanges(resource=resource, changes=changes)])
        reply = await plane().service.call(rpcs.ALTER_CONFIGS, request, 10_000)
        assert reply.resources[0].result.error == "NONE"
        assert (reply.result.error, reply.resources[0].changed) == ("NONE", True)

    async def story() -> None:
        world.start_all()
        await world.until(all_ready(world), "the brokers are ready")
        new = pb.NewTopic(name=TOPIC, partitions=-1, replication_factor=-1)
        new.assignment.add(values=[LAST, OTHER])
        new.configs.add(key="write.caching", value="true")
        await plane().service.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[new]), 10_000)
        await write(1)
        world.kill(OTHER)
        await world.until(lambda: partition().isr == (LAST,), "one replica is in sync")
        await write(WRITTEN - 1)
        assert log(LAST).flushed_offset == WRITTEN > log(LAST).marks.durable_offset
        if not is_down:
            await switch_off()
            await world.until(lambda: log(LAST).marks.durable_offset == WRITTEN, "the log is flushed")
            await world.until(lambda: log(LAST).durability.folder_fact == b"0", "its folder says so")
        world.kill(LAST)
        if is_down:
            await switch_off()
        world.start(LAST)
        world.start(OTHER)
        await world.until(all_ready(world), "the brokers are ready")
        if is_down:
            assert (partition().leader, partition().isr, partition().elr) == (-1, (), ())
        else:
            await world.until(lambda: partition().leader == LAST, "the last replica leads")
            assert log(LAST).end_offset == WRITTEN

    world.run(story())
