"""librdkafka reads from the replica in its rack (KIP-392)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from tests.integration.broker.processes import WholeCluster

COUNT = 50
WAIT_S = 60.0
ATTEMPTS = 10


def produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for number in range(COUNT):
        producer.produce(topic, str(number), partition=0)
    assert producer.flush(WAIT_S) == 0


def consume(bootstrap: str, topic: str, rack: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "client.rack": rack})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = consumer.consume(COUNT, WAIT_S)
        return [message.value() or b"" for message in messages if message.error() is None]
    finally:
        consumer.close()


async def test_librdkafka_reads_from_the_replica_in_its_rack(tmp_path: Path) -> None:
    cluster = WholeCluster(tmp_path, broker_session_timeout_ms=60_000)  # a busy machine fences nobody
    for broker_id in (11, 12, 13):
        cluster.configs[broker_id] = replace(cluster.configs[broker_id], rack=f"rack-{broker_id}")
    async with cluster:
        request = pb.AlterConfigsRequest()
        changes = request.resources.add()
        changes.resource.scope = metadata_pb2.Config.SCOPE_CLUSTER
        changes.changes.add(key="replica.selector", value="rack-aware")
        reply = await cluster.brokers[0].plane.service.call(rpcs.ALTER_CONFIGS, request, 20_000)
        assert reply.resources[0].result.error == "NONE", reply
        await cluster.create("t")
        await asyncio.to_thread(produce, cluster.bootstrap, "t")
        leader = cluster.leader("t")
        near = cluster.broker(next(id_ for id_ in (11, 12, 13) if id_ != leader))
        rack, counters = f"rack-{near.role.context.broker_id}", near.role.context.counters
        for _ in range(ATTEMPTS):
            values = await asyncio.to_thread(consume, cluster.bootstrap, "t", rack)
            assert values == [str(number).encode() for number in range(COUNT)]
            if counters.fetched_bytes > 0:
                break  # otherwise it was out of the ISR for a moment
        assert counters.fetched_bytes > 0
