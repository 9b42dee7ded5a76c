"""Fewer partitions while brokers run: another topic id, remaining partitions unchanged, removed ones set aside."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from broker.core.fetch_session import PartitionKey
from broker.kafka.api import FetchPartition, FetchPlan, FetchResult, ProduceResult
from metadata.control.partitions_count import NewPartitions, add_partitions, remove_partitions
from quorumlog.wire.errors import KafkaCode
from tests.integration.broker.harness import Broker, Cluster, batch, values_of

BROKERS = (1, 2, 3)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as running:
        yield running


def resize(cluster: Cluster, name: str, count: int) -> UUID:
    """Add or remove partitions, and return the topic's id afterwards."""
    numbers = iter(range(cluster.controller.image.end_offset << 8, 1 << 60))
    topic = cluster.controller.image.topic(name)
    assert topic is not None
    if count > len(topic.partitions):
        wanted = [NewPartitions(name, count, (BROKERS,) * (count - len(topic.partitions)))]
        answer = cluster.controller.decide(lambda image: add_partitions(image, wanted))[0]
    else:
        answer = cluster.controller.decide(
            lambda image: remove_partitions(image, name, count, lambda: UUID(int=next(numbers)))
        )
    assert answer.outcome.ok, answer
    assert answer.topic_id is not None
    return answer.topic_id


async def write(broker: Broker, value: bytes, index: int = 0, timeout_ms: int = 10_000) -> ProduceResult:
    return await broker.replicas.produce("t", index, memoryview(batch(value)), -1, timeout_ms)


async def written(cluster: Cluster, value: bytes, index: int = 0) -> int:
    """Write to the current leader, retrying while the roles change, and return the offset."""
    result: list[ProduceResult] = []

    async def attempt() -> bool:
        topic = cluster.controller.image.topic("t")
        assert topic is not None
        partition = topic.partition(index)
        assert partition is not None
        result[:] = [await write(cluster[partition.leader], value, index)]
        return result[0].error_code == KafkaCode.NONE

    async with asyncio.timeout(20):
        while not await attempt():
            assert result[0].error_code in (KafkaCode.NOT_LEADER_OR_FOLLOWER, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION), (
                result
            )
            await asyncio.sleep(0.005)  # the broker has not applied the change yet
    return result[0].base_offset


async def applied(cluster: Cluster, topic_id: UUID, count: int, *broker_ids: int) -> None:
    """These brokers have these partitions of the topic under this id, in their roles, and no others."""
    wanted = {PartitionKey(topic_id, index) for index in range(count)}

    def is_so() -> bool:
        tables = [cluster[each].table for each in broker_ids or BROKERS]
        roles = [one.leader or one.follower for table in tables for one in table]
        return all({one.partition for one in table} == wanted for table in tables) and all(roles)

    await cluster.until(is_so, "all applied")


def everywhere(cluster: Cluster, values: list[bytes], index: int = 0) -> bool:
    return all(
        (found := broker.table.find("t", index)) is not None and found.log is not None and values_of(found) == values
        for broker in cluster.brokers.values()
    )


async def test_remaining_partitions_continue_and_removed_ones_are_set_aside(cluster: Cluster) -> None:
    first = cluster.controller.create("t", BROKERS, (2, 3, 1), (3, 1, 2))
    await applied(cluster, first, 3)
    for index in range(3):
        assert await written(cluster, b"a%d" % index, index) == 0
    folders = sorted(path.name for path in (cluster[1].root / "logs").iterdir())
    second = resize(cluster, "t", 1)
    assert second != first
    await applied(cluster, second, 1)
    assert await written(cluster, b"b") == 1
    assert everywhere(cluster, [b"a0", b"b"])
    assert (await write(cluster[2], b"x", 1)).error_code == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    kept = [path.name for path in (cluster[1].root / "logs").iterdir()]
    assert kept == folders[:1]
    assert len(list((cluster[1].root / "strays").iterdir())) == 2
    partition = cluster.controller.partition(second)
    await cluster.controller.until(lambda image: set(cluster.controller.partition(second).isr) == set(BROKERS))
    assert partition.leader_epoch == 0


async def test_partitions_added_again_are_empty_and_continue_their_epochs(cluster: Cluster) -> None:
    cluster.controller.create("t", BROKERS, (2, 3, 1))
    await written(cluster, b"old", 1)
    resize(cluster, "t", 1)
    third = resize(cluster, "t", 2)
    await applied(cluster, third, 2)
    assert cluster.controller.partition(third, 1).leader_epoch == 1
    assert await written(cluster, b"new", 1) == 0
    assert everywhere(cluster, [b"new"], 1)


async def test_a_broker_that_was_down_keeps_the_remaining_partitions(cluster: Cluster) -> None:
    cluster.controller.create("t", BROKERS, (2, 3, 1))
    for index in range(2):
        await written(cluster, b"a", index)
    await cluster[3].stop()
    resize(cluster, "t", 1)
    again = resize(cluster, "t", 2)
    last = resize(cluster, "t", 1)
    assert again != last
    await applied(cluster, last, 1, 1, 2)
    await written(cluster, b"b")
    await cluster[3].start()
    await applied(cluster, last, 1)
    await cluster.until(lambda: everywhere(cluster, [b"a", b"b"]), "copied, and nothing twice")
    assert len(list((cluster[3].root / "strays").iterdir())) == 1
    await cluster.controller.until(lambda image: 3 in cluster.controller.partition(last).isr)


async def test_folders_of_a_topic_whose_id_changed_are_found_after_a_restart_of_all_brokers(cluster: Cluster) -> None:
    cluster.controller.create("t", BROKERS, (2, 3, 1))
    await written(cluster, b"a")
    last = resize(cluster, "t", 1)
    await applied(cluster, last, 1)
    await written(cluster, b"b")
    for broker_id in BROKERS:
        await cluster[broker_id].stop(clean=False)
        cluster.controller.fence(broker_id)
    for broker_id in BROKERS:
        await cluster[broker_id].start()
    await cluster.controller.until(lambda image: cluster.controller.partition(last).leader >= 0)
    assert await written(cluster, b"c") == 2
    await cluster.until(lambda: everywhere(cluster, [b"a", b"b", b"c"]), "the same on every disk")


async def test_a_topic_that_was_deleted_and_created_again_serves_no_old_records(cluster: Cluster) -> None:
    """The topic was renewed, deleted and created again: nothing of the old one is served."""
    cluster.controller.create("t", BROKERS, (2, 3, 1))
    await written(cluster, b"old")
    last = resize(cluster, "t", 1)
    cluster.controller.delete(last)
    anew = cluster.controller.create("t", BROKERS)
    await applied(cluster, anew, 1)
    assert await written(cluster, b"new") == 0
    assert everywhere(cluster, [b"new"])


async def test_a_fetch_by_topic_name_continues_and_a_fetch_by_the_old_topic_id_gets_an_error(cluster: Cluster) -> None:
    first = cluster.controller.create("t", BROKERS, (2, 3, 1))
    await applied(cluster, first, 2)
    await written(cluster, b"a")
    leader = cluster[1]

    async def fetch(topic_id: UUID | None, topic: str | None, wait_ms: int) -> FetchResult:
        plan = FetchPlan(
            (FetchPartition(topic_id, topic, 0, 1, 1 << 20),), max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20
        )
        return (await leader.replicas.fetch(plan)).results[0]

    by_id = asyncio.create_task(fetch(first, None, 20_000))
    await cluster.until(lambda: leader.replicas.fetches.parked >= 3, "parked, with both followers")
    second = resize(cluster, "t", 1)
    await applied(cluster, second, 1)
    assert (await by_id).error_code == KafkaCode.UNKNOWN_TOPIC_ID
    await cluster.until(lambda: leader.hosted("t").serving() is not None, "it leads again")
    waiting = asyncio.create_task(fetch(None, "t", 20_000))
    await written(cluster, b"b")
    found = await waiting
    assert (found.error_code, found.high_watermark) == (KafkaCode.NONE, 2)
    assert len(found.records) > 0


async def test_concurrent_writes_are_acknowledged_and_kept_or_refused(cluster: Cluster) -> None:
    cluster.controller.create("t", BROKERS, (2, 3, 1), (3, 1, 2), (1, 3, 2))
    await written(cluster, b"first")
    acknowledged: list[bytes] = []
    is_over = asyncio.Event()

    async def writer(number: int) -> None:
        for count in itertools.count():
            value = b"%d/%d" % (number, count)  # another one each time: a refused record may exist nevertheless
            if (await write(cluster[1], value)).error_code == KafkaCode.NONE:
                acknowledged.append(value)
                if is_over.is_set():
                    return
            await asyncio.sleep(0.001)  # leaves time to the other writers

    async def until_more_are_written() -> None:
        enough = len(acknowledged) + 4
        await cluster.until(lambda: len(acknowledged) >= enough, "writes are under way")

    writers = [asyncio.create_task(writer(number)) for number in range(5)]
    for count in (3, 2, 1):
        await until_more_are_written()
        last = resize(cluster, "t", count)
        await applied(cluster, last, count)
    is_over.set()
    await asyncio.gather(*writers)
    await written(cluster, b"last")
    mine = values_of(cluster[1].hosted("t"))
    assert set(acknowledged) <= set(mine)
    assert len(acknowledged) > 10
    assert len(mine) == len(set(mine))
    await cluster.until(lambda: everywhere(cluster, mine), "all alike")
