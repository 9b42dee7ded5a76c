"""Requests of Kafka's tools: voters of a real quorum, configs of a broker, disabled security, changed batches."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from quorumlog.client.cluster import Cluster
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import fetch
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import Codec, iter_headers
from tests.unit.broker.kafka.raw import RawClient

from .conftest import Server, StartServer

Kctl = Callable[..., subprocess.CompletedProcess[str]]
WAIT_S = 60


def port_of(server: Server) -> int:
    return int(server.fields["kafka"].rpartition(":")[2])


@pytest.fixture
def admin(standalone: Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": standalone.fields["kafka"]})


async def quorum(client: RawClient) -> Any:
    asked = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    response = await client.ask(Api.DESCRIBE_QUORUM, 2, {"topics": asked})
    return response.topics[0].partitions[0]


async def disk_of(client: RawClient, node_id: int) -> UUID:
    """Return the directory id of an observer, once the leader knows it."""
    async with asyncio.timeout(WAIT_S):
        while True:
            for each in (await quorum(client)).observers:
                if each.replica_id == node_id:
                    found: UUID = each.replica_directory_id
                    return found
            await asyncio.sleep(0.1)


async def test_a_voter_is_added_and_removed_through_the_kafka_protocol(
    standalone: Server, start_server: StartServer, tmp_path: Path
) -> None:
    newcomer = start_server(
        "quorum-node", "--node-id", "77", "--data-dir", tmp_path / "data", "--join", standalone.fields["control"],
        "--listen", "127.0.0.1:0", "--http", "off",
    )  # fmt: skip
    assert newcomer.ready_line.startswith("ready "), newcomer.errors()
    host, _, port = newcomer.fields["control"].rpartition(":")
    listener = {"name": "CONTROLLER", "host": host, "port": int(port)}
    async with RawClient(port_of(standalone)) as client:
        disk = await disk_of(client, 77)
        voter = {"cluster_id": None, "timeout": 5000, "voter_id": 77, "voter_directory_id": disk}
        other = {**voter, "voter_directory_id": UUID(int=5), "listeners": [listener]}
        refused = await client.ask(Api.ADD_RAFT_VOTER, 1, other)
        assert int(refused.error_code) == KafkaCode.INVALID_REQUEST, refused
        assert "has directory id" in refused.error_message

        added = await client.ask(Api.ADD_RAFT_VOTER, 1, {**voter, "listeners": [listener]})
        assert (int(added.error_code), added.error_message) == (0, None)
        assert 77 in {each.replica_id for each in (await quorum(client)).current_voters}

        refused = await client.ask(Api.REMOVE_RAFT_VOTER, 0, {**voter, "voter_directory_id": UUID(int=5)})
        assert int(refused.error_code) == KafkaCode.VOTER_NOT_FOUND
        removed = await client.ask(Api.REMOVE_RAFT_VOTER, 0, voter)
        assert (int(removed.error_code), removed.error_message) == (0, None)
        assert 77 not in {each.replica_id for each in (await quorum(client)).current_voters}
    assert newcomer.stop() == 0


def test_librdkafka_reads_the_settings_of_a_broker(standalone: Server, admin: AdminClient) -> None:
    node_id = next(iter(admin.list_topics(timeout=WAIT_S).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(node_id))
    [future] = admin.describe_configs([resource], request_timeout=WAIT_S).values()
    found = future.result(WAIT_S)
    assert (found["broker.id"].value, found["broker.id"].is_read_only) == (str(node_id), True)
    assert found["quorum.standalone"].value == "true"
    assert not found["cordoned"].is_read_only
    assert found["retention.ms"].value == "604800000"


def test_librdkafka_gets_the_error_that_security_is_disabled(admin: AdminClient) -> None:
    everything = ("User:*", "*", AclOperation.ALL, AclPermissionType.ALLOW)
    binding = AclBinding(ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, *everything)
    [future] = admin.create_acls([binding], request_timeout=WAIT_S).values()
    with pytest.raises(KafkaException) as caught:
        future.result(WAIT_S)
    assert caught.value.args[0].code() == KafkaError.SECURITY_DISABLED


def test_librdkafka_gets_the_time_of_the_append(standalone: Server, admin: AdminClient) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    [created] = admin.create_topics([NewTopic("stamped", 1, 1, config=config)], request_timeout=WAIT_S).values()
    created.result(WAIT_S)
    producer = Producer({"bootstrap.servers": standalone.fields["kafka"], "compression.type": "zstd"})
    told: list[tuple[int, int]] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        told.append(message.timestamp())

    for _ in range(3):
        producer.produce("stamped", b"v" * 100, timestamp=1_000, on_delivery=delivered)
    assert producer.flush(WAIT_S) == 0
    assert [kind for kind, _ in told] == [TIMESTAMP_LOG_APPEND_TIME] * 3
    assert all(time > 1_600_000_000_000 for _, time in told)


async def codecs_of(server: Server, topic: str) -> list[Codec]:
    """Return the codec of each stored batch."""
    async with Cluster(server.fields["kafka"]) as cluster:
        connection = await cluster.leader(topic, 0, WAIT_S)
        wanted = [fetch.PartitionToFetch(topic, 0, 0, 10 << 20)]
        body = fetch.encode_request(fetch.CLIENT_VERSION, wanted, max_wait_ms=0, min_bytes=0, max_bytes=10 << 20)
        reply = await connection.call(Api.FETCH, fetch.CLIENT_VERSION, body, WAIT_S)
        (partition,) = fetch.decode_response(reply, fetch.CLIENT_VERSION).partitions
        assert partition.error_code == 0
        return [header.codec for _, header in iter_headers(partition.records)]


def test_librdkafka_reads_batches_that_the_broker_recompressed(
    standalone: Server, admin: AdminClient, kctl: Kctl
) -> None:
    """Idempotent producers of all codecs write to a topic that demands one codec after the other."""
    topic = "recompressed"
    assert kctl("topics", "create", topic, "--partitions", "1", "--replication-factor", "1").returncode == 0
    common = {"bootstrap.servers": standalone.fields["kafka"], "enable.idempotence": True}
    producers = [Producer(common | {"compression.type": name}) for name in ("none", "gzip", "snappy", "lz4", "zstd")]
    sent: list[tuple[int, bytes]] = []
    assert kctl("configs", "set", "compression.zstd.level=7", "--topic", topic, "--wait").returncode == 0
    for target in ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        change = ConfigEntry("compression.type", target, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(change)
        [altered] = admin.incremental_alter_configs([resource], request_timeout=WAIT_S).values()
        altered.result(WAIT_S)
        [described] = admin.describe_configs([resource], request_timeout=WAIT_S).values()
        found = described.result(WAIT_S)
        assert (found["compression.type"].value, found["compression.zstd.level"].value) == (target, "7")
        for producer in producers:
            for _ in range(20):
                sent.append((1_000 + len(sent), b"%d " % len(sent) * 30))
                producer.produce(topic, sent[-1][1], timestamp=sent[-1][0])
            assert producer.flush(WAIT_S) == 0
    consumer = Consumer({"bootstrap.servers": standalone.fields["kafka"], "group.id": topic, "check.crcs": True})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        records = consumer.consume(len(sent), WAIT_S)
    finally:
        consumer.close()
    assert [record.offset() for record in records] == list(range(len(sent)))
    assert [(record.timestamp()[1], record.value()) for record in records] == sent
    [shown] = json.loads(kctl("configs", "get", "compression.type", "--topic", topic, "-o", "json").stdout)
    assert (shown["value"], shown["source"]) == ("zstd", "topic")
    of_producers = of_topic = list(Codec)
    stored = asyncio.run(codecs_of(standalone, topic))
    assert [codec for codec, _ in groupby(stored)] == [*of_producers, *of_topic]
