"""Replicas that move between brokers with real logs: copies, leaders, leftovers and the throttle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from broker.replica.limits import ReplicaLimits
from metadata.control.decision import Decision
from metadata.control.reassign import Reassigned, alter_reassignments
from metadata.image import ClusterImage
from metadata.records import Config, ConfigScope
from quorumlog.wire.errors import KafkaCode
from tests.integration.broker.harness import Broker, Cluster, values_of
from tests.integration.broker.test_replication import leading, write, written

THROTTLE = "reassignment.throttle.bytes.per.second"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, 5, limits=ReplicaLimits(fetcher_backoff_max_ms=100)) as running:
        yield running


def replicas_are(topic: str, *replicas: int) -> Callable[[ClusterImage], bool]:
    """Return whether the reassignment has ended with these replicas."""

    def condition(image: ClusterImage) -> bool:
        found = image.topic(topic)
        partition = None if found is None else found.partition(0)
        return partition is not None and not partition.reassigning and partition.replica_ids == replicas

    return condition


def is_in_sync(broker_id: int, topic: str) -> Callable[[ClusterImage], bool]:
    def condition(image: ClusterImage) -> bool:
        found = image.topic(topic)
        partition = None if found is None else found.partition(0)
        return partition is not None and broker_id in partition.isr

    return condition


def is_removed(broker: Broker, topic: str) -> bool:
    return broker.table.find(topic, 0) is None


async def test_all_replicas_move_and_no_record_is_lost(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2))
    leader = await leading(cluster, 1, "t")
    values = [b"%d" % number for number in range(50)]
    for value in values:
        await written(leader, "t", value)
    cluster.controller.reassign("t", 3, 4)
    await cluster.controller.until(replicas_are("t", 3, 4))
    leader = await leading(cluster, 3, "t")
    await written(leader, "t", b"more")
    for broker_id in (3, 4):
        assert values_of(cluster[broker_id].hosted("t")) == [*values, b"more"]
    for broker_id in (1, 2):
        await cluster.until(partial(is_removed, cluster[broker_id], "t"), f"{broker_id} has removed its replica")
        assert not cluster[broker_id].context.logs.logs
        assert len(cluster[broker_id].context.logs.strays()) == 1


async def test_writes_continue_until_the_new_replicas_are_in_sync(cluster: Cluster) -> None:
    """A replica that is being added counts for nothing before it is a member: neither for acks nor for the minimum."""
    topic = cluster.controller.create("t", (1,))
    cluster.controller.commit(
        (
            Config(ConfigScope.TOPIC, topic.hex, "min.insync.replicas", None),
            Config(ConfigScope.CLUSTER, "", "min.insync.replicas", "2"),
        )
    )
    leader = await leading(cluster, 1, "t")
    await cluster[4].stop(clean=False)  # it will copy nothing, but the controller has not noticed yet
    cluster.controller.reassign("t", 3, 4)
    await cluster.controller.until(is_in_sync(3, "t"))
    await written(leader, "t", b"a")
    assert leader.led("t").min_isr == 1
    await cluster[4].start()
    await cluster.controller.until(replicas_are("t", 3, 4))
    leader = await leading(cluster, 3, "t")
    await written(leader, "t", b"b")
    assert leader.led("t").min_isr == 2


async def test_a_cancelled_reassignment_leaves_no_replica_behind(cluster: Cluster) -> None:
    topic = cluster.controller.create("t", (1, 2))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await cluster[5].stop(clean=False)
    cluster.controller.reassign("t", 4, 5)
    await cluster.controller.until(is_in_sync(4, "t"))
    cluster.controller.reassign("t")
    assert set(cluster.controller.partition(topic).replica_ids) == {1, 2}
    await cluster.until(lambda: cluster[4].table.find("t", 0) is None, "4 has removed its replica")
    epoch = cluster.controller.partition(topic).leader_epoch
    leader = await leading(cluster, 1, "t", epoch)
    await written(leader, "t", b"b")
    assert values_of(cluster[2].hosted("t")) == [b"a", b"b"]


async def test_a_replica_that_was_removed_and_added_again_unnoticed_starts_over(cluster: Cluster) -> None:
    """The broker learns of neither move.  Its replica must not be treated as one that never left."""
    cluster.controller.create("t", (1, 2))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    cluster.controller.held.add(2)
    cluster.controller.reassign("t", 1, 3)
    await cluster.controller.until(replicas_are("t", 1, 3))
    await written(leader, "t", b"b")
    cluster.controller.reassign("t", 1, 2)
    cluster.controller.release(2)
    await cluster.controller.until(replicas_are("t", 1, 2))
    await written(leader, "t", b"c")
    assert values_of(cluster[2].hosted("t")) == [b"a", b"b", b"c"]


async def test_a_throttle_slows_copying_and_can_be_changed_while_it_runs(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2))
    leader = await leading(cluster, 1, "t")
    for _ in range(40):
        await written(leader, "t", bytes(10_000))
    size = leader.log("t").size
    cluster.controller.reassign("t", 3, 2, throttle=20_000)
    counters = cluster[3].context.counters
    await cluster.until(lambda: counters.reassignment_in_bytes > 0, "it has begun")
    began = asyncio.get_running_loop().time()
    await cluster.until(lambda: counters.reassignment_in_bytes >= 60_000, "three batches more")
    took = asyncio.get_running_loop().time() - began
    assert took >= 1.0, "faster than the throttle"
    assert not replicas_are("t", 3, 2)(cluster.controller.image)
    await written(leader, "t", b"goes on")  # those in the ISR are not slowed
    cluster.controller.decide(lambda image: _throttled(image, 1 << 30))
    await cluster.controller.until(replicas_are("t", 3, 2))
    assert THROTTLE not in cluster.controller.image.config(ConfigScope.CLUSTER, "")
    assert counters.reassignment_in_bytes >= size
    assert cluster[1].context.counters.reassignment_out_bytes >= size


def _throttled(image: ClusterImage, rate: int) -> Decision[Reassigned]:
    return alter_reassignments(image, [], throttle=rate)


async def test_a_throttle_does_not_slow_an_added_replica_that_is_in_sync(cluster: Cluster) -> None:
    """It is in the ISR while another added replica is not yet, and each write waits for it."""
    cluster.controller.create("t", (1,))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await cluster[4].stop(clean=False)
    cluster.controller.reassign("t", 3, 4, throttle=100)
    await cluster.controller.until(is_in_sync(3, "t"))
    for _ in range(5):
        result = await write(leader, "t", bytes(100_000), timeout_ms=15_000)
        assert result.error_code == KafkaCode.NONE, result
    assert cluster[3].log("t").end_offset == 6


async def test_a_reassignment_ends_although_a_target_broker_is_killed_and_restarts(cluster: Cluster) -> None:
    topic = cluster.controller.create("t", (1, 2))
    leader = await leading(cluster, 1, "t")
    for _ in range(20):
        await written(leader, "t", bytes(10_000))
    cluster.controller.reassign("t", 3, 4, throttle=50_000)
    await cluster.until(lambda: cluster[3].context.counters.reassignment_in_bytes > 0, "it has begun")
    await cluster[3].stop(clean=False)
    cluster.controller.fence(3)
    assert cluster.controller.partition(topic).reassigning
    await cluster[3].start()
    cluster.controller.decide(lambda image: _throttled(image, -1))
    await cluster.controller.until(replicas_are("t", 3, 4))
    leader = await leading(cluster, 3, "t")
    await written(leader, "t", b"end")
    assert cluster[4].log("t").end_offset == 21
