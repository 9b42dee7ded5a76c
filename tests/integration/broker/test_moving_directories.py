"""The only replicas of a topic move to the other directory of their broker, which is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import NamedTuple

from quorumlog.client import cluster as client
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.integration.broker.test_full_directory import BROKER, Records, read, running
from tests.integration.quorum.clusters import TIMEOUT_S, done, kill, node_of, ready, spawn
from tests.unit.broker.kafka.raw import RawClient

TOPIC = "t"
PARTITIONS = 2
VALUE = b"x" * 50_000
BEFORE = 200
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


class Place(NamedTuple):
    """Where DescribeLogDirs finds a partition, or its copy."""

    partition: int
    path: str
    is_future: bool


def port(cluster: DevCluster) -> int:
    return int(cluster.bootstrap.rpartition(":")[2])


async def places(cluster: DevCluster) -> list[Place]:
    async with RawClient(port(cluster)) as raw:
        response = await raw.ask(Api.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    return [
        Place(partition.partition_index, directory.log_dir, partition.is_future_key)
        for directory in response.results
        for topic in directory.topics
        if topic.name == TOPIC
        for partition in topic.partitions
    ]


async def move(cluster: DevCluster, wanted: dict[int, str]) -> list[int]:
    dirs = [{"path": path, "topics": [{"name": TOPIC, "partitions": [index]}]} for index, path in wanted.items()]
    async with RawClient(port(cluster)) as raw:
        response = await raw.ask(Api.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": dirs})
    return [int(each.error_code) for topic in response.results for each in topic.partitions]


async def write(cluster: DevCluster, acknowledged: Records, is_over: asyncio.Event) -> None:
    """Write to all partitions until stopped; each write must be acknowledged in the end."""

    async def lane(producer: Producer, index: int) -> None:
        number = 0
        while not is_over.is_set():
            value = b"%d/%d/" % (index, number) + VALUE
            offset = await (await producer.send(TOPIC, index, build_batch([NewRecord(None, value, 1_700_000_000_000)])))
            acknowledged[index, offset] = value
            number += 1
            if number > BEFORE:
                await asyncio.sleep(0.02)

    async with (
        client.Cluster(cluster.bootstrap) as clients,
        Producer(clients) as producer,
        asyncio.TaskGroup() as lanes,
    ):
        for index in range(PARTITIONS):
            lanes.create_task(lane(producer, index))


async def test_replicas_move_to_the_other_directory_under_load_and_after_a_kill(tmp_path: Path) -> None:
    async with running(tmp_path, tmp_path / "second", brokers=1) as cluster:
        node = node_of(cluster, BROKER)
        paths = [os.path.abspath(path) for path in node.data_dir.split(",")]  # noqa: ASYNC240 -- no file is read
        assert await move(cluster, {0: paths[1], 1: "/nowhere"}) == [
            KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
            KafkaCode.LOG_DIR_NOT_FOUND,
        ]
        await done(cluster, "topics", "create", TOPIC, "--partitions", str(PARTITIONS), "--replication-factor", "1")
        await wait_until(lambda: _has_every_replica(cluster), TIMEOUT_S, "the broker had created its replicas")
        assert Place(0, paths[1], is_future=False) in await places(cluster)
        acknowledged: Records = {}
        is_over = asyncio.Event()
        writing = asyncio.create_task(write(cluster, acknowledged, is_over))
        try:
            await wait_until(lambda: _has(acknowledged, PARTITIONS * BEFORE), TIMEOUT_S, "there is much to copy")
            await done(cluster, "configs", "set", f"{RATE}=2000000", "--broker", str(BROKER))
            wanted = {}
            for index, path, is_future in await places(cluster):
                assert not is_future
                wanted[index] = paths[0] if path == paths[1] else paths[1]
            assert await move(cluster, wanted) == [0] * PARTITIONS
            copies = {Place(index, path, is_future=True) for index, path in wanted.items()}
            assert copies <= set(await places(cluster))
            seen = len(acknowledged)
            await wait_until(lambda: _has(acknowledged, seen + 20), TIMEOUT_S, "writes continue during the copy")
            assert copies & set(await places(cluster))
            moves = await done(cluster, "brokers", "moves")
            assert {(row["partition"], row["to"]) for row in moves} <= set(wanted.items())
            assert max(row["bytes_left"] for row in moves) > 0
            await kill(node)
            await spawn(cluster, node)
            await ready(node)
            await done(cluster, "configs", "unset", RATE, "--broker", str(BROKER))
            expected = sorted(Place(index, path, is_future=False) for index, path in wanted.items())
            await wait_until(lambda: _are(cluster, expected), TIMEOUT_S, "the move continues after the start")
            seen = len(acknowledged)
            await wait_until(lambda: _has(acknowledged, seen + 20), TIMEOUT_S, "writes continue after the move")
        finally:
            is_over.set()
        await writing
        await kill(node)
        await spawn(cluster, node)
        await ready(node)
        assert await _are(cluster, expected)
        ends: dict[int, int] = {}
        for index, offset in acknowledged:
            ends[index] = max(ends.get(index, 0), offset + 1)
        found = await read(cluster, ends)
        assert {place: found.get(place) for place in acknowledged} == acknowledged
        assert [os.listdir(f"{path}/futures") for path in paths] == [[], []]


async def test_a_reassignment_plan_with_directories_moves_a_replica_to_another_directory_and_back(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, tmp_path / "second", brokers=1) as cluster:
        paths = [os.path.abspath(path) for path in node_of(cluster, BROKER).data_dir.split(",")]  # noqa: ASYNC240
        await done(cluster, "topics", "create", TOPIC, "--partitions", "1", "--replication-factor", "1")
        for path in (*paths, paths[0]):
            row = {"topic": TOPIC, "partition": 0, "replicas": [BROKER], "log_dirs": [path]}
            plan = tmp_path / "plan.json"
            plan.write_text(json.dumps({"version": 1, "partitions": [row]}))
            await done(cluster, "reassign", "start", "--plan", str(plan), "--wait")
            assert await places(cluster) == [Place(0, path, is_future=False)]
            (verified,) = await done(cluster, "reassign", "verify", "--plan", str(plan))
            assert verified["state"] == "complete"
            assert await done(cluster, "brokers", "moves") == []


async def _has(acknowledged: Records, count: int) -> bool:
    return len(acknowledged) >= count


async def _has_every_replica(cluster: DevCluster) -> bool:
    return len(await places(cluster)) == PARTITIONS


async def _are(cluster: DevCluster, expected: list[Place]) -> bool:
    return sorted(await places(cluster)) == expected
