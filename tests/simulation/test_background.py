"""Background work of the active controller survives a pause of its leadership."""

from __future__ import annotations

import asyncio

import pytest

from metadata.image import ClusterImage
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from simulation import smoke
from simulation.cluster.nodes import Host, World
from tests.simulation.test_known_failures import active, epoch_of
from tests.simulation.test_snapshots import up

INTERVAL_S = 40


@pytest.fixture(autouse=True)
def quiet() -> None:
    smoke.quiet()


def image_of(host: Host) -> ClusterImage:
    assert host.plane is not None
    return host.plane.replay.image


def in_sync(image: ClusterImage) -> bool:
    partitions = [each for topic in image.topics.values() for each in topic.partitions if each is not None]
    return all(len(each.isr) == len(each.replicas) for each in partitions)


def leads_what_it_prefers(image: ClusterImage, broker_id: int) -> bool:
    partitions = [each for topic in image.topics.values() for each in topic.partitions if each is not None]
    return all(each.leader == broker_id for each in partitions if each.replica_ids[0] == broker_id)


async def balance_every(world: World, seconds: int) -> None:
    plane = active(world).plane
    assert plane is not None
    interval = pb.ConfigChange(key="leader.rebalance.interval.ms", value=str(seconds * 1000))
    where = pb.ConfigResource(scope=metadata_pb2.Config.SCOPE_CLUSTER)
    request = pb.AlterConfigsRequest(resources=[pb.ConfigChanges(resource=where, changes=[interval])])
    reply = await plane.service.call(rpcs.ALTER_CONFIGS, request, 5_000)
    assert isinstance(reply, pb.AlterConfigsReply)
    assert reply.resources[0].result.error == "NONE", reply


@pytest.mark.parametrize("seed", range(3))
def test_a_controller_that_was_paused_when_balancing_was_due_balances_leaders_after_the_pause(seed: int) -> None:
    """The pause ends without an election: the same leadership continues, and so must its background work."""
    world = World(seed)

    async def scenario() -> None:
        await up(world)
        await smoke.create_topic(world)
        leader, broker_id = active(world), world.brokers[0].config.node_id
        epoch = epoch_of(leader)
        others = [host.config.node_id for host in world.voters if host is not leader]
        await balance_every(world, INTERVAL_S)
        world.kill(broker_id)
        await world.until(lambda: image_of(leader).brokers[broker_id].fenced, "the killed broker is fenced")
        world.start(broker_id)
        await world.until(lambda: in_sync(image_of(leader)), "it is in sync again")
        assert not leads_what_it_prefers(image_of(leader), broker_id)
        for node_id in others:
            world.kill(node_id)
        await asyncio.sleep(INTERVAL_S)
        assert not leads_what_it_prefers(image_of(leader), broker_id)
        for node_id in others:
            world.start(node_id)
        await world.until(
            lambda: leads_what_it_prefers(image_of(leader), broker_id), "leaders are balanced", timeout_s=10.0
        )
        assert epoch_of(leader) == epoch, "there was no election"

    world.run(scenario())
