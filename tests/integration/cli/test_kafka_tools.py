"""What Kafka's tools ask: voters of a real quorum, configs of a broker, security that is off, time of the append."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.raw import RawClient

from .conftest import Server, StartServer

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


async def test_a_voter_is_added_and_removed(standalone: Server, start_server: StartServer, tmp_path: Path) -> None:
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


def test_librdkafka_learns_that_security_is_off(admin: AdminClient) -> None:
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
