"""Unmodified confluent-kafka, kafka-python and aiokafka: produce, consume assigned partitions, administer topics.

Each against the listener over a data plane in memory, and against a standalone broker process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest
import uvloop
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import KafkaAdminClient

from quorumlog.client.cluster import Cluster
from quorumlog.wire import record_batch
from quorumlog.wire.kafka import fetch
from quorumlog.wire.kafka.codec import Api
from tests.integration.kafka.clients import TIMEOUT_S, AioKafka, Client, Confluent, KafkaPython, Sent
from tests.integration.kafka.conftest import Standalone
from tests.unit.broker.kafka.conftest import serving

pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy"')

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
EACH_CLIENT = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: type(client).__name__)


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture(params=["fake", "standalone"])
async def bootstrap(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Addresses of a broker."""
    if request.param == "standalone":
        yield request.getfixturevalue("standalone").bootstrap
    else:
        async with serving() as served:
            yield served.bootstrap


_numbers = count()


@pytest.fixture
def new_name() -> str:
    """A topic name that no other test has."""
    return f"events-{next(_numbers)}"


@pytest.fixture
async def topic(bootstrap: str, new_name: str) -> str:
    await asyncio.to_thread(Confluent().create_topic, bootstrap, new_name, 1)
    return new_name


async def stored(bootstrap: str, topic: str) -> list[record_batch.BatchHeader]:
    """The batches of partition 0 as the broker keeps them; their checksums cover all that the client made."""
    async with Cluster(bootstrap) as cluster:
        connection = await cluster.leader(topic, 0, 10)
        body = fetch.encode_request(
            fetch.CLIENT_VERSION,
            [fetch.PartitionToFetch(topic, 0, 0, 10 << 20)],
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=10 << 20,
        )
        reply = await connection.call(Api.FETCH, fetch.CLIENT_VERSION, body, 10)
        (partition,) = fetch.decode_response(reply, fetch.CLIENT_VERSION).partitions
    assert partition.error_code == 0
    headers = record_batch.check_batches(partition.records)
    assert isinstance(headers, list), headers
    return headers


RECORDS = [Sent(f"value {number} ".encode() * 20, f"key {number % 7}".encode()) for number in range(100)]
COMPRESSIONS = [
    pytest.param(client, compression, id=f"{type(client).__name__}-{compression}")
    for client in CLIENTS
    for compression in client.compressions
]


@pytest.mark.parametrize(("client", "compression"), COMPRESSIONS)
async def test_batches_of_every_compression_are_stored_unchanged_and_read_by_all_clients(
    bootstrap: str, topic: str, client: Client, compression: str
) -> None:
    offsets = await asyncio.to_thread(client.produce, bootstrap, topic, RECORDS, compression=compression)
    assert offsets == list(range(100))
    headers = await stored(bootstrap, topic)
    assert {header.codec.name.lower() for header in headers} == {compression}
    assert sum(header.record_count for header in headers) == 100
    for reader in CLIENTS:
        got = await asyncio.to_thread(reader.consume, bootstrap, topic, "beginning", 100)
        assert [(one.offset, one.key, one.value) for one in got] == [
            (offset, sent.key, sent.value) for offset, sent in enumerate(RECORDS)
        ]


@EACH_CLIENT
@pytest.mark.parametrize("acks", ["0", "1", "all"])
async def test_each_client_produces_with_each_acks(bootstrap: str, topic: str, client: Client, acks: str) -> None:
    offsets = await asyncio.to_thread(client.produce, bootstrap, topic, RECORDS, acks=acks)
    assert offsets == ([] if acks == "0" else list(range(100)))
    got = await asyncio.to_thread(client.consume, bootstrap, topic, "beginning", 100)
    assert [one.value for one in got] == [sent.value for sent in RECORDS]


@EACH_CLIENT
async def test_idempotent_producers_number_their_batches(bootstrap: str, topic: str, client: Client) -> None:
    for _ in range(2):
        await asyncio.to_thread(client.produce, bootstrap, topic, RECORDS[:20], idempotent=True, one_by_one=True)
    headers = await stored(bootstrap, topic)
    assert len({header.producer_id for header in headers}) == 2, "each producer has an id of its own"
    assert all(header.has_producer_id for header in headers)
    assert [header.base_sequence for header in headers] == [*range(20), *range(20)]
    got = await asyncio.to_thread(client.consume, bootstrap, topic, "beginning", 40)
    assert [one.value for one in got] == [sent.value for sent in RECORDS[:20]] * 2


@EACH_CLIENT
async def test_each_client_consumes_from_an_offset_and_from_a_timestamp(
    bootstrap: str, topic: str, client: Client
) -> None:
    begin = 1_700_000_000_000
    records = [Sent(b"%d" % number, timestamp=begin + 1000 * number) for number in range(10)]
    await asyncio.to_thread(client.produce, bootstrap, topic, records, one_by_one=True)
    got = await asyncio.to_thread(client.consume, bootstrap, topic, 6, 4)
    assert [(one.offset, one.timestamp, one.value) for one in got] == [
        (number, begin + 1000 * number, b"%d" % number) for number in range(6, 10)
    ]
    got = await asyncio.to_thread(client.consume, bootstrap, topic, ("timestamp", begin + 3500), 6)
    assert [one.offset for one in got] == [4, 5, 6, 7, 8, 9]


@EACH_CLIENT
async def test_consuming_from_the_end_sees_only_later_records(bootstrap: str, topic: str, client: Client) -> None:
    await asyncio.to_thread(client.produce, bootstrap, topic, RECORDS[:5])

    def later() -> None:
        client.produce(bootstrap, topic, [Sent(b"later")])

    got = await asyncio.to_thread(client.consume, bootstrap, topic, "end", 1, later)
    assert [(one.offset, one.value) for one in got] == [(5, b"later")]


@EACH_CLIENT
async def test_null_keys_and_values_and_large_records_are_read_as_they_were_sent(
    bootstrap: str, topic: str, client: Client
) -> None:
    records = [Sent(None, b"gone"), Sent(b"", None), Sent(bytes(900_000), b"large")]
    await asyncio.to_thread(client.produce, bootstrap, topic, records, one_by_one=True)
    got = await asyncio.to_thread(client.consume, bootstrap, topic, "beginning", 3)
    assert [(one.key, one.value) for one in got] == [(sent.key, sent.value) for sent in records]


@EACH_CLIENT
async def test_a_standalone_broker_creates_a_topic_for_its_producer(
    standalone: Standalone, new_name: str, client: Client
) -> None:
    name = f"{new_name}-{type(client).__name__}"
    offsets = await asyncio.to_thread(client.produce, standalone.bootstrap, name, RECORDS[:3], one_by_one=True)
    assert offsets == [0, 1, 2]


@EACH_CLIENT
async def test_each_client_creates_and_deletes_a_topic(bootstrap: str, new_name: str, client: Client) -> None:
    await asyncio.to_thread(client.create_topic, bootstrap, new_name, 3)
    assert (await asyncio.to_thread(client.topics, bootstrap))[new_name] == 3
    await asyncio.to_thread(client.delete_topic, bootstrap, new_name)
    assert new_name not in await asyncio.to_thread(client.topics, bootstrap)
    with pytest.raises(Exception, match=r"(?i)unknown|not exist"):
        await asyncio.to_thread(client.delete_topic, bootstrap, new_name)


@EACH_CLIENT
async def test_creating_a_topic_twice_is_refused_by_name(bootstrap: str, topic: str, client: Client) -> None:
    with pytest.raises(Exception, match=r"(?i)already.?exists|36"):
        await asyncio.to_thread(client.create_topic, bootstrap, topic, 1)


async def test_an_admin_client_may_set_configs_without_effect_and_remove_throttles(
    request: pytest.FixtureRequest, new_name: str
) -> None:
    bootstrap = request.getfixturevalue("standalone").bootstrap

    def ask() -> tuple[str, list[str]]:
        from confluent_kafka import admin as confluent

        admin = confluent.AdminClient({"bootstrap.servers": bootstrap})
        key = "flush.messages"
        made = admin.create_topics([confluent.NewTopic(new_name, 1, 1, config={key: "1"})])
        made[new_name].result(TIMEOUT_S)
        asked = confluent.ConfigResource(confluent.ConfigResource.Type.TOPIC, new_name)
        config = admin.describe_configs([asked])[asked].result(TIMEOUT_S)[key]
        delete = confluent.AlterConfigOpType.DELETE
        entry = confluent.ConfigEntry("leader.replication.throttled.rate", "", incremental_operation=delete)
        broker = confluent.ConfigResource(confluent.ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
        admin.incremental_alter_configs([broker])[broker].result(TIMEOUT_S)
        return config.value, list(config.synonyms)

    assert await asyncio.to_thread(ask) == ("1", ["flush.messages"])


async def test_admin_clients_delete_records_up_to_an_offset_and_up_to_the_end(
    standalone: Standalone, new_name: str
) -> None:
    Confluent().create_topic(standalone.bootstrap, new_name, 1)
    Confluent().produce(standalone.bootstrap, new_name, RECORDS[:10])
    admin = AdminClient({"bootstrap.servers": standalone.bootstrap})

    def delete(offset: int) -> int:
        at = TopicPartition(new_name, 0, offset)
        (future,) = admin.delete_records([at], request_timeout=TIMEOUT_S).values()
        return int(future.result().low_watermark)

    assert await asyncio.to_thread(delete, 4) == 4
    got = await asyncio.to_thread(KafkaPython().consume, standalone.bootstrap, new_name, "beginning", 6)
    assert [one.offset for one in got] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        await asyncio.to_thread(delete, 11)
    client = KafkaAdminClient(bootstrap_servers=standalone.bootstrap)
    partition = KafkaPartition(new_name, 0)
    try:
        deleted = await asyncio.to_thread(client.delete_records, {partition: -1})
    finally:
        client.close()
    assert deleted[partition]["low_watermark"] == 10


async def test_an_admin_client_describes_the_broker(standalone: Standalone, new_name: str) -> None:
    Confluent().create_topic(standalone.bootstrap, new_name, 2)
    KafkaPython().produce(standalone.bootstrap, new_name, RECORDS[:3], idempotent=True)
    client = KafkaAdminClient(bootstrap_servers=standalone.bootstrap)

    def describe() -> None:
        (directory,) = client.describe_log_dirs()[0]["log_dirs"]
        sizes = {
            (topic["name"], each["partition_index"]): each["partition_size"]
            for topic in directory["topics"]
            for each in topic["partitions"]
        }
        assert directory["log_dir"].endswith("/data")
        assert sizes[new_name, 0] + sizes[new_name, 1] > 0
        assert directory["total_bytes"] >= directory["usable_bytes"] > 0
        described = client.describe_topic_partitions([new_name])
        assert [each["partition_index"] for each in described["topics"][0]["partitions"]] == [0, 1]
        (quorum,) = client.describe_metadata_quorum()["topics"][0]["partitions"]
        assert [voter["replica_id"] for voter in quorum["current_voters"]] == [quorum["leader_id"]] == [1]
        assert quorum["current_voters"][0]["log_end_offset"] >= quorum["high_watermark"] > 0
        assert client.describe_features()["metadata.version"]["finalized"] == (1, 1)
        partitions = [KafkaPartition(new_name, 0), KafkaPartition(new_name, 1)]
        producers = client.describe_producers(partitions)
        assert sum(len(each.active_producers) for each in producers.values()) >= 1
        assert new_name in client.list_config_resources()["topic"]

    try:
        await asyncio.to_thread(describe)
    finally:
        client.close()
