"""One of several data directories fills up: only its replicas go offline, and other brokers lead them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quorumlog.client import cluster as client
from quorumlog.client.consumer import Consumer
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch, decode_batches, end_offset
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.quorum.clusters import TIMEOUT_S, done, node_of, plan, ready, spawn, started, stop
from tests.integration.small_disk import SIZE_MIB, mount
from tests.integration.small_disk import small_disk as small_disk

TOPIC = "t"
PARTITIONS = 6
BROKER = 11
VALUE = b"x" * 20_000
EPOCH_MS = 1_700_000_000_000
Records = dict[tuple[int, int], bytes]
"""Partition and offset → value."""


@asynccontextmanager
async def running(folder: Path, second: Path, brokers: int = 3) -> AsyncIterator[DevCluster]:
    """A cluster whose broker 11 has a second data directory."""
    cluster = plan(folder, voters=1, brokers=brokers, broker_session_timeout_ms=3_000)
    node = node_of(cluster, BROKER)
    place = node.command.index("--data-dir") + 1
    node.data_dir = node.command[place] = f"{node.data_dir},{second}"
    async with started(cluster):
        yield cluster


async def partitions(cluster: DevCluster) -> list[dict[str, Any]]:
    (topic,) = await done(cluster, "topics", "describe", TOPIC)
    return list(topic["partitions"])


def state_on(partition: dict[str, Any], broker_id: int) -> str:
    return next(str(each["state"]) for each in partition["replica_states"] if each["id"] == broker_id)


async def fill(cluster: DevCluster, acknowledged: Records, is_full: asyncio.Event) -> None:
    """Write to every partition until stopped; each write must be acknowledged."""

    async def lane(producer: Producer, index: int) -> None:
        number = 0
        while not is_full.is_set():
            value = b"%d/%d/" % (index, number) + VALUE
            offset = await (await producer.send(TOPIC, index, build_batch([NewRecord(None, value, EPOCH_MS)])))
            acknowledged[index, offset] = value
            number += 1

    async with (
        client.Cluster(cluster.bootstrap) as clients,
        Producer(clients) as producer,
        asyncio.TaskGroup() as lanes,
    ):
        for index in range(PARTITIONS):
            lanes.create_task(lane(producer, index))


async def read(cluster: DevCluster, ends: dict[int, int]) -> Records:
    found: Records = {}
    async with client.Cluster(cluster.bootstrap) as clients:
        consumer = Consumer(clients)
        for index, end in ends.items():
            offset = 0
            while offset < end:
                fetched = await consumer.fetch(TOPIC, index, offset)
                for record in decode_batches(fetched.records, offset):
                    assert record.value is not None
                    found[index, record.offset] = record.value
                offset = end_offset(fetched.records) or offset
    return found


async def broker(cluster: DevCluster) -> dict[str, Any]:
    described = await done(cluster, "brokers", "describe", str(BROKER))
    return dict(described[0] if isinstance(described, list) else described)


async def test_a_full_directory_takes_only_its_own_replicas_offline(tmp_path: Path, small_disk: Path) -> None:
    async with running(tmp_path, small_disk / "data") as cluster:
        await done(cluster, "topics", "create", TOPIC, "--partitions", str(PARTITIONS), "--replication-factor", "3")
        before = await partitions(cluster)
        assert BROKER in {each["leader"] for each in before}
        acknowledged: Records = {}
        is_full = asyncio.Event()
        filling = asyncio.create_task(fill(cluster, acknowledged, is_full))
        try:
            await wait_until(lambda: _some_is_offline(cluster, filling), TIMEOUT_S, "the controller knows it")
            assert len((await broker(cluster))["directories_offline"]) == 1
            lost = [each["partition"] for each in await partitions(cluster) if state_on(each, BROKER) == "offline"]
            assert 0 < len(lost) < PARTITIONS
            kept = [index for index in range(PARTITIONS) if index not in lost]
            await wait_until(lambda: _all_led(cluster, lost), TIMEOUT_S, "others lead its partitions")
            seen = len(acknowledged)
            await wait_until(lambda: _has(acknowledged, seen + 20), TIMEOUT_S, "writes continue")
        finally:
            is_full.set()
        await filling
        node = node_of(cluster, BROKER)
        assert node.is_running
        await ready(node)
        for each in await partitions(cluster):
            if each["partition"] in kept:
                assert BROKER in each["isr"]
                assert state_on(each, BROKER) != "offline"
        ends: dict[int, int] = {}
        for index, offset in acknowledged:
            ends[index] = max(ends.get(index, 0), offset + 1)
        found = await read(cluster, ends)
        assert {place: found.get(place) for place in acknowledged} == acknowledged

        # After a start with free space, the replica is copied again.
        assert mount("-o", f"remount,size={40 * SIZE_MIB}m", str(small_disk))
        await stop(node)
        await spawn(cluster, node)
        await ready(node)
        await wait_until(lambda: _all_in_sync(cluster), TIMEOUT_S, "all in sync again")
        assert (await broker(cluster))["directories_offline"] == []


async def _some_is_offline(cluster: DevCluster, filling: asyncio.Task[None]) -> bool:
    """Return whether the directory has failed according to the metadata."""
    if filling.done():
        filling.result()
    return any(state_on(each, BROKER) == "offline" for each in await partitions(cluster))


async def _all_led(cluster: DevCluster, lost: list[int]) -> bool:
    """Return whether others lead and are in sync, and broker 11 is not."""
    return all(
        each["leader"] not in (None, -1, BROKER) and BROKER not in each["isr"]
        for each in await partitions(cluster)
        if each["partition"] in lost
    )


async def _has(acknowledged: Records, count: int) -> bool:
    return len(acknowledged) >= count


async def _all_in_sync(cluster: DevCluster) -> bool:
    return all(len(each["isr"]) == 3 for each in await partitions(cluster))
