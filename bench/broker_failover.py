"""The time until other brokers lead and serve the partitions of a killed broker that led all of them.

One voter and five brokers run as real processes on one machine.  Broker 11 leads all partitions.  Each partition has a
second replica on one of the other four brokers, in turn, and all are in sync when 11 is killed with kill -9.

With 100,000 partitions, five real brokers would take too long to create their replicas.  There, the leader and three of
the others are fakes, which only register and send heartbeats.  The leader fails by sending no more heartbeats.  The
remaining broker is real.  It has a quarter of the followers, and all measurements of brokers come from it.

The session timeout is not counted.  Time 0 is when the first batch of leader changes is appended (its timestamp in the
metadata log).  The decision of that batch is made before time 0, and is added to the totals.  The measurements, in ms;
all except decide and to_the_last are times after time 0:

    decide            the pure decision alone, all batches, measured in this process on an image of the same size
    last_append       the last batch of leader changes is appended
    last_received     the last broker has received it; it is committed then
    last_applied      the last broker has applied it, according to `ListAppliedBatches`
    first_produce, last_produce   the first and the last acknowledgement of batches to 200 partitions.  From the kill
                      on, one producer tries each of them every 0.1 s with acks=all.  These 200 are spread over all
                      partitions, and include the last one
    to_the_last       from the fencing until the last new leader serves: the decision of the first batch, plus the
                      later of last_applied and last_produce

Then 11 is started again, and leads as before once it is in sync.  Aim: 10,000 partitions under a second on two cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar
from uuid import UUID

from bench.nodes import (
    HEARTBEAT_S,
    LOOK_S,
    NO_ERROR,
    PARTITIONS_A_REQUEST,
    TIMEOUT_S,
    FakeBrokers,
    has_applied,
    kill,
    one_record,
    until,
)
from bench.plots import Panel, show
from metadata.control.brokers import fence
from metadata.image import ClusterImage
from metadata.records import Endpoint, Partition, RegisterBroker, Replica, Topic
from quorumlog.client.cluster import Cluster
from quorumlog.client.controller import ControllerClient
from quorumlog.client.producer import Producer
from quorumlog.kctl import dev_cluster
from quorumlog.kctl.dev_cluster import BROKER, DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2 as records_pb
from quorumlog.wire.v1 import node_pb2

T = TypeVar("T")

PARTITIONS = (1_000, 10_000)
PARTITIONS_WITH_FAKES = 100_000
KILLS = 3
FOLLOWERS = 4
PARTITIONS_A_TOPIC = 100
SAMPLE_TOPICS = 10
SAMPLE = 200
PAUSE_S = 0.1
PORT_BASE = 29_500
AIM_MS = 1_000
"""Time from the fencing until the last new leader serves, with 10,000 partitions."""
STAGES = (
    "decide_ms", "last_append_ms", "last_received_ms", "last_applied_ms", "first_produce_ms", "last_produce_ms",
    "to_the_last_ms",
)  # fmt: skip


def run(tiny: bool) -> dict[str, Any]:
    return asyncio.run(_run(tiny))


def present(result: dict[str, Any]) -> list[Panel]:
    rows = result["results"]
    show("a broker that leads every partition dies", rows, {"to_the_last_ms": f"aim: {AIM_MS:,} with 10,000"})
    names = {name.removesuffix("_ms").replace("_", " "): [row[name] for row in rows] for name in STAGES}
    sizes = [row["partitions"] for row in rows]
    aim = (AIM_MS, f"aim for 10,000: {AIM_MS:,} ms")
    return [Panel("Failover of a broker that leads every partition", "partitions", "ms", sizes, names, aim, log_x=True)]


async def _run(tiny: bool) -> dict[str, Any]:
    sizes, kills = ((200,), 1) if tiny else (PARTITIONS, KILLS)
    results = []
    async with _cluster(brokers=1 + FOLLOWERS) as stage:
        stage.leader_id, *stage.follower_ids = (node.id for node in stage.brokers)
        for size in sizes:
            await stage.grow_to(size)
            killed = []
            for number in range(kills):
                killed.append(await stage.one_kill())
                if number + 1 < kills or size != sizes[-1]:
                    await stage.restore()
            results.append(_row("real", size, killed))
    if not tiny:
        results.append(await _with_fakes(PARTITIONS_WITH_FAKES))
    return {"voters": 1, "kills": kills, "sample": SAMPLE, "aim_ms_10000_partitions": AIM_MS, "results": results}


async def _with_fakes(size: int) -> dict[str, Any]:
    async with _cluster(brokers=1) as stage, FakeBrokers(stage.client, FOLLOWERS) as fakes:
        stage.leader_id, *others = fakes.epochs
        stage.follower_ids = [*others, stage.brokers[0].id]
        stage.fakes = fakes
        await stage.grow_to(size)
        return _row("all fake except one", size, [await stage.one_kill()])


def _row(brokers: str, size: int, killed: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the medians, and the decision, which is the same for each kill."""
    first_ms, all_ms = _decide(size)
    row: dict[str, Any] = {"partitions": size, "brokers": brokers, "kills": len(killed), "decide_ms": round(all_ms)}
    for name in STAGES[1:-1]:
        row[name] = round(median(each[name] for each in killed))
    totals = [max(each["last_applied_ms"], each["last_produce_ms"]) + first_ms for each in killed]
    return {**row, "to_the_last_ms": round(median(totals)), "to_the_last_ms_max": round(max(totals))}


# The decision


def _decide(size: int) -> tuple[float, float]:
    """Return the milliseconds to decide the first batch, and all batches."""
    image = _image(size)
    times = []
    while True:
        began = time.perf_counter()
        decision = fence(image, 1)
        times.append((time.perf_counter() - began) * 1000)
        image = image.apply(image.end_offset, decision.records)
        if not decision.more:
            break
    assert not image.leaderships(1), "the broker that was fenced leads nothing"
    return times[0], sum(times)


def _image(size: int) -> ClusterImage:
    """Return an image in which broker 1 leads all partitions; 2 to 5 follow in turn."""
    image = ClusterImage()
    for broker_id in range(1, 2 + FOLLOWERS):
        endpoints = (Endpoint("default", "127.0.0.1", 9092),)
        registered = RegisterBroker(
            broker_id, UUID(int=broker_id), endpoints, (UUID(int=100 + broker_id),), fenced=False
        )
        image = image.apply(image.end_offset, (registered,))
    for number in range(size // PARTITIONS_A_TOPIC):
        topic_id = UUID(int=1000 + number)
        partitions = [
            Partition(topic_id, index, (Replica(1), Replica(2 + index % FOLLOWERS)), (1, 2 + index % FOLLOWERS), 1)
            for index in range(PARTITIONS_A_TOPIC)
        ]
        image = image.apply(image.end_offset, (Topic(topic_id, f"bench-{number}"), *partitions))
    return image


# The cluster


@contextlib.asynccontextmanager
async def _cluster(brokers: int) -> AsyncIterator[_Stage]:
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
        cluster = dev_cluster.plan(Path(folder) / "cluster", 1, brokers, PORT_BASE, made_dir=True)
        await dev_cluster.start(cluster, TIMEOUT_S, lambda line: None)
        try:
            async with ControllerClient([cluster.controllers]) as client:
                yield _Stage(cluster, client)
        finally:
            for node in cluster.nodes:  # killed at once: a controlled shutdown would only take time
                if node.is_running:
                    await kill(node)


@dataclass
class _Changes:
    """The batches of leader changes of one fencing.  end_offset: the end of the last batch, which fences the broker."""

    first_ms: int
    last_ms: int
    end_offset: int
    count: int


class _Stage:
    """A running cluster.

    fakes: the fake brokers, which include the leader; None if all brokers are real.
    topics: (id, name), in the order in which brokers apply changes.
    """

    def __init__(self, cluster: DevCluster, client: ControllerClient) -> None:
        self.cluster = cluster
        self.client = client
        self.leader_id = -1
        self.follower_ids: list[int] = []
        self.fakes: FakeBrokers | None = None
        self.topics: list[tuple[bytes, str]] = []

    @property
    def brokers(self) -> list[Node]:
        return [node for node in self.cluster.nodes if node.role == BROKER]

    async def grow_to(self, size: int) -> None:
        """Create topics until there are `size` partitions.

        Return when all replicas are in sync and the sample is written.
        """
        rows = [[self.leader_id, self.follower_ids[index % FOLLOWERS]] for index in range(PARTITIONS_A_TOPIC)]
        assignment = [records_pb.IntList(values=row) for row in rows]
        missing = range(len(self.topics), size // PARTITIONS_A_TOPIC)
        for names in _groups([f"bench-{number}" for number in missing], PARTITIONS_A_REQUEST // PARTITIONS_A_TOPIC):
            topics = [
                pb.NewTopic(
                    name=name,
                    partitions=-1,
                    replication_factor=-1,
                    assignment=assignment,
                    configs=[pb.ConfigEntry(key="min.insync.replicas", value="1")],
                )
                for name in names
            ]
            reply = await self.client.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=topics), TIMEOUT_S)
            for created in reply.topics:
                if created.result.error != NO_ERROR:
                    raise RuntimeError(f"{created.name}: {created.result.message}")
                self.topics.append((created.topic_id, created.name))
        self.topics.sort()
        await self._as_before()
        if self.fakes is None:
            async with self._producer() as producer:
                for topic, index in self._sample():
                    await producer.send(topic, index, one_record())

    async def restore(self) -> None:
        """Restart the killed broker, and let it lead as before."""
        await dev_cluster.start(self.cluster, TIMEOUT_S, lambda line: None)
        await self._as_before()

    async def _as_before(self) -> None:
        """Return when all replicas are in sync, the leader leads all partitions, and all brokers have applied this."""
        for names in _groups([name for _, name in self.topics], 20):
            await until(partial(self._is_in_sync, names))
        request = pb.ElectLeadersRequest(policy=pb.ElectLeadersRequest.POLICY_PREFERRED)
        await self.client.call(rpcs.ELECT_LEADERS, request, TIMEOUT_S)
        end_offset = (await self.client.describe_quorum(TIMEOUT_S)).high_watermark
        for node in self.brokers:
            await until(partial(has_applied, self.client, node, end_offset))

    async def _is_in_sync(self, names: list[str]) -> bool:
        reply = await self.client.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=names), TIMEOUT_S)
        return all(len(partition.isr) == 2 for topic in reply.topics for partition in topic.partitions)

    # One kill

    async def one_kill(self) -> dict[str, float]:
        """Return the stages in ms after time 0."""
        from_offset = (await self.client.describe_quorum(TIMEOUT_S)).high_watermark
        async with self._producer() as producer:
            await self._kill_leader()
            acknowledged = await self._produce(producer)
        changes = await self._changes(from_offset)
        assert changes.count == len(self.topics) * PARTITIONS_A_TOPIC, changes
        applied = [await self._applied(node, changes.end_offset) for node in self._live()]
        return {
            "last_append_ms": changes.last_ms - changes.first_ms,
            "last_received_ms": max(each.received_ms for each in applied) - changes.first_ms,
            "last_applied_ms": max(each.completed_ms for each in applied) - changes.first_ms,
            "first_produce_ms": min(acknowledged) - changes.first_ms,
            "last_produce_ms": max(acknowledged) - changes.first_ms,
        }

    def _live(self) -> list[Node]:
        return [node for node in self.brokers if node.id != self.leader_id]

    async def _kill_leader(self) -> None:
        if self.fakes is not None:
            self.fakes.epochs.pop(self.leader_id)
            return
        (leader,) = (node for node in self.brokers if node.id == self.leader_id)
        await kill(leader)

    @contextlib.asynccontextmanager
    async def _producer(self) -> AsyncIterator[Producer]:
        bootstrap = [node.listen for node in self._live() if node.listen is not None]
        async with Cluster(bootstrap) as cluster, Producer(cluster, retry_pause_max_s=PAUSE_S) as producer:
            yield producer

    async def _produce(self, producer: Producer) -> list[float]:
        """Return the time at which each partition of the sample acknowledged a batch, in ms since 1970."""
        acknowledged: list[float] = []
        for topic, index in self._sample():
            future = await producer.send(topic, index, one_record())
            future.add_done_callback(lambda _: acknowledged.append(time.time() * 1000))
            await asyncio.sleep(PAUSE_S / SAMPLE)  # otherwise all of them would send at the same moments
        await producer.flush()
        await asyncio.sleep(0)
        return acknowledged

    def _sample(self) -> list[tuple[str, int]]:
        """Return partitions of the first, the last and some other topics.

        They include the last partitions of each of these topics, so that every real follower has some.
        """
        indexes = range(PARTITIONS_A_TOPIC)
        if self.fakes is not None:
            indexes = indexes[self.follower_ids.index(self.brokers[0].id) :: FOLLOWERS]
        taken = _spread(indexes[:-FOLLOWERS], SAMPLE // SAMPLE_TOPICS - FOLLOWERS) + list(indexes[-FOLLOWERS:])
        names = _spread([name for _, name in self.topics], SAMPLE_TOPICS)
        return [(name, index) for name in names for index in taken]

    async def _changes(self, offset: int) -> _Changes:
        """Return the batches, read from the voter's log."""
        found: _Changes | None = None
        address = self.cluster.controllers
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                request = node_pb2.ReadMetadataRequest(from_offset=offset, wait_ms=int(HEARTBEAT_S * 1000))
                reply = await self.client.ask_node(address, rpcs.READ_METADATA, request, TIMEOUT_S)
                offset = reply.next_offset
                for batch in reply.batches:
                    records = [each for each in batch.records.records if _is_failover(each, self.leader_id)]
                    if not records:
                        continue
                    found = found or _Changes(batch.timestamp_ms, 0, 0, 0)
                    found.last_ms, found.end_offset = batch.timestamp_ms, batch.base_offset + batch.count
                    found.count += sum(each.HasField("partition_change") for each in records)
                    if any(each.HasField("broker_change") for each in records):
                        return found

    async def _applied(self, node: Node, end_offset: int) -> node_pb2.AppliedBatch:
        """Return the times at which this broker received and applied the batch that ends there."""
        request = node_pb2.ListAppliedBatchesRequest(from_offset=end_offset - 1)
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                reply = await self.client.ask_node(node.control, rpcs.LIST_APPLIED_BATCHES, request, TIMEOUT_S)
                for batch in reply.batches:
                    if batch.end_offset == end_offset and batch.completed_ms:
                        found: node_pb2.AppliedBatch = batch
                        return found
                await asyncio.sleep(LOOK_S)


def _is_failover(record: records_pb.Record, broker_id: int) -> bool:
    if record.HasField("broker_change"):
        return record.broker_change.broker_id == broker_id and record.broker_change.fenced
    return record.HasField("partition_change") and record.partition_change.reason == records_pb.REASON_BROKER_FENCED


def _groups(values: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _spread(values: Sequence[T], count: int) -> list[T]:
    """Return `count` values at equal distances, including the first and the last, or all if there are fewer."""
    if len(values) <= count:
        return list(values)
    return [values[position * (len(values) - 1) // (count - 1)] for position in range(count)]
