"""Load on a cluster while it is changed, and the outcome of every single operation.

Records go through the Kafka protocol and topics through the control plane.  Each client sends its next request as soon
as the previous one was answered.  Afterwards everything that was acknowledged must exist.  The longest pause between
two acknowledgements is printed for a person, because it depends on the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import Consumer
from quorumlog.client.controller import ControllerClient
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch, decode_batches, end_offset
from quorumlog.errors import ClusterError
from quorumlog.kctl.dev_cluster import DevCluster
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.integration.quorum.clusters import everybody

T = TypeVar("T")

TOPIC = "load"
PARTITIONS = 3
ATTEMPT_S = 20.0
TURN_S = 0.02
"""Pause between two operations of a client, which leaves processor time for the servers."""


@dataclass(slots=True)
class Load:
    """The acknowledged writes."""

    records: dict[int, dict[int, bytes]] = field(default_factory=dict)
    """By partition: offset and value."""
    topics: dict[str, bytes] = field(default_factory=dict)
    """Name and topic id."""
    unknown: list[str] = field(default_factory=list)
    """Topics whose creation has an unknown outcome."""
    refusals: set[str] = field(default_factory=set)
    pauses: dict[str, float] = field(default_factory=dict)
    """By kind of operation, the longest time between two acknowledgements."""

    def note(self, kind: str, since: float) -> float:
        now = asyncio.get_running_loop().time()
        self.pauses[kind] = max(self.pauses.get(kind, 0.0), now - since)
        return now

    @property
    def record_count(self) -> int:
        return sum(len(found) for found in self.records.values())


@asynccontextmanager
async def under_load(cluster: DevCluster) -> AsyncIterator[Load]:
    """Run clients until the block ends; then check that everything acknowledged exists."""
    load = Load()
    replication = min(3, sum(node.listen is not None for node in cluster.nodes))
    async with ControllerClient(everybody(cluster)) as admin:
        if replication:
            await create(admin, TOPIC, PARTITIONS, replication)
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_administer(admin, load, ending, replication))
            if replication:
                tasks.create_task(_produce(cluster.bootstrap, load, ending))
            try:
                yield load
            finally:
                ending.set()
        await check(cluster, admin, load, replication)
    shown = ", ".join(f"{kind} {pause:.2f} s" for kind, pause in sorted(load.pauses.items()))
    print(f"acknowledged: {load.record_count} records, {len(load.topics)} admin requests; longest pauses: {shown}")


async def create(admin: ControllerClient, name: str, partitions: int, replication: int) -> pb.CreatedTopic:
    """Create one topic.  The caller checks its own result.

    Raises:
        ClusterError: the request as a whole was refused, or its outcome is unknown.
    """
    request = pb.CreateTopicsRequest()
    request.topics.add(name=name, partitions=partitions, replication_factor=replication)
    reply = await admin.call(rpcs.CREATE_TOPICS, request, ATTEMPT_S)
    assert isinstance(reply, pb.CreateTopicsReply)
    return reply.topics[0]


async def register(admin: ControllerClient, broker_id: int, timeout_s: float = ATTEMPT_S) -> int:
    """Register a broker that does not exist, and return its epoch, which is the offset of the record.

    Raises:
        ClusterError: refused, or of unknown outcome.
    """
    request = pb.RegisterBrokerRequest()
    registration = request.registration
    registration.broker_id, registration.previous_broker_epoch = broker_id, -1
    registration.incarnation_id, registration.feature_min = broker_id.to_bytes(16, "big"), 1
    registration.feature_max = 1
    registration.directory_ids.append(broker_id.to_bytes(16, "big"))
    registration.endpoints.add(name="default", host="127.0.0.1", port=9092, security="PLAINTEXT")
    reply = await admin.call(rpcs.REGISTER_BROKER, request, timeout_s)
    return int(reply.broker_epoch)


async def registered(admin: ControllerClient) -> dict[int, int]:
    """Return broker ids and epochs, by a current read."""
    reply = await admin.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), ATTEMPT_S)
    return {broker.broker_id: broker.broker_epoch for broker in reply.brokers}


async def outcome(call: Awaitable[T]) -> T | ClusterError:
    """Return the result of a call, or its refusal."""
    try:
        return await call
    except ClusterError as error:
        return error


async def _administer(admin: ControllerClient, load: Load, ending: asyncio.Event, replication: int) -> None:
    """Create topics one after the other; in a cluster without brokers, register brokers that do not exist."""
    since, number = asyncio.get_running_loop().time(), 0
    while not ending.is_set():
        name = f"t{number}" if replication else str(1000 + number)
        number += 1
        try:
            if replication:
                topic = await create(admin, name, 1, 1)
                if topic.result.error != "NONE":
                    raise ClusterError(topic.result.error, topic.result.message)
                load.topics[name] = topic.topic_id
            else:
                load.topics[name] = str(await register(admin, int(name))).encode()
            since = load.note("admin", since)
        except ClusterError as error:
            load.refusals.add(error.code)
            load.unknown.append(name)
        await asyncio.sleep(TURN_S)


async def _produce(bootstrap: str, load: Load, ending: asyncio.Event) -> None:
    async with Cluster(bootstrap) as cluster, Producer(cluster) as producer, asyncio.TaskGroup() as lanes:
        for index in range(PARTITIONS):
            lanes.create_task(_produce_to(producer, index, load, ending))


async def _produce_to(producer: Producer, index: int, load: Load, ending: asyncio.Event) -> None:
    since, number = asyncio.get_running_loop().time(), 0
    acknowledged = load.records.setdefault(index, {})
    while not ending.is_set():
        value = b"%d-%d" % (index, number)
        number += 1
        record = NewRecord(None, value, int(time.time() * 1000))  # retention deletes old records
        acknowledged[await (await producer.send(TOPIC, index, build_batch([record])))] = value
        since = load.note("produce", since)
        await asyncio.sleep(TURN_S)


async def check(cluster: DevCluster, admin: ControllerClient, load: Load, replication: int) -> None:
    """Assert that each acknowledged record exists at its offset."""
    assert load.topics, f"nothing was acknowledged: {load}"
    assert not load.refusals - {"OUTCOME_UNKNOWN", "TIMED_OUT", "NOT_CONTROLLER", "REQUEST_TIMED_OUT"}, load.refusals
    if not replication:
        found = await registered(admin)
        for name, epoch in load.topics.items():
            assert found.get(int(name)) == int(epoch), f"broker {name} was registered, and is {found.get(int(name))}"
        return
    reply = await admin.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(), ATTEMPT_S)
    topics = {topic.name: topic.topic_id for topic in reply.topics}
    for name, topic_id in load.topics.items():
        assert topics.get(name) == topic_id, f"topic {name} was acknowledged, but does not exist"
    assert set(topics) <= {TOPIC, *load.topics, *load.unknown}, "a topic that no client requested"
    assert load.record_count, "no record was acknowledged"
    async with Cluster(cluster.bootstrap) as clients:
        for index, acknowledged in load.records.items():
            values = await _read(Consumer(clients), index, max(acknowledged) + 1)
            for offset, value in acknowledged.items():
                assert values.get(offset) == value, f"{TOPIC}-{index}@{offset}: {values.get(offset)!r}, not {value!r}"
            seen = list(values.values())
            assert len(seen) == len(set(seen)), f"{TOPIC}-{index}: a record was read twice"


async def _read(consumer: Consumer, index: int, end: int) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    offset = 0
    while offset < end:
        fetched = await consumer.fetch(TOPIC, index, offset)
        found.update((record.offset, record.value) for record in decode_batches(fetched.records, offset))
        offset = end_offset(fetched.records) or offset
    return found
