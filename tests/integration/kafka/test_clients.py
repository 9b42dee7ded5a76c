"""Unmodified confluent-kafka, kafka-python and aiokafka: produce, consume assigned partitions, administer topics.

Each against the listener over a data plane in memory, and against a standalone broker process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
import uvloop

from quorumlog.client.cluster import Cluster
from quorumlog.wire import record_batch
from quorumlog.wire.kafka import fetch
from quorumlog.wire.kafka.codec import Api
from tests.integration.kafka.clients import AioKafka, Client, Confluent, KafkaPython, Received, Sent
from tests.unit.broker.kafka.conftest import serving

pytestmark = pytest.mark.filterwarnings('ignore:Overriding the "event_loop_policy"')

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
EACH_CLIENT = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: type(client).__name__)


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()


@pytest.fixture(params=["fake", "standalone"])
async def bootstrap(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Addresses of a broker."""
    if request.param == "standalone":
        yield request.getfixturevalue("standalone").bootstrap
    else:
        async with serving() as served:
            yield served.bootstrap


async def in_thread(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, lambda: call(*arguments, **options))


_numbers = count()


@pytest.fixture
def new_name() -> str:
    """A topic name that no other test has."""
    return f"events-{next(_numbers)}"


@pytest.fixture
async def topic(bootstrap: str, new_name: str) -> str:
    await in_thread(Confluent().create_topic, bootstrap, new_name, 1)
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
async def test_every_compression_is_stored_as_sent_and_read_by_all(
    bootstrap: str, topic: str, client: Client, compression: str
) -> None:
    offsets = await in_thread(client.produce, bootstrap, topic, RECORDS, compression=compression)
    assert offsets == list(range(100))
    headers = await stored(bootstrap, topic)
    assert {header.codec.name.lower() for header in headers} == {compression}
    assert sum(header.record_count for header in headers) == 100
    for reader in CLIENTS:
        got: list[Received] = await in_thread(reader.consume, bootstrap, topic, "beginning", 100)
        assert [(one.offset, one.key, one.value) for one in got] == [
            (offset, sent.key, sent.value) for offset, sent in enumerate(RECORDS)
        ]


@EACH_CLIENT
@pytest.mark.parametrize("acks", ["0", "1", "all"])
async def test_acks(bootstrap: str, topic: str, client: Client, acks: str) -> None:
    offsets = await in_thread(client.produce, bootstrap, topic, RECORDS, acks=acks)
    assert offsets == ([] if acks == "0" else list(range(100)))
    got = await in_thread(client.consume, bootstrap, topic, "beginning", 100)
    assert [one.value for one in got] == [sent.value for sent in RECORDS]


@EACH_CLIENT
async def test_an_idempotent_producer(bootstrap: str, topic: str, client: Client) -> None:
    for _ in range(2):
        await in_thread(client.produce, bootstrap, topic, RECORDS[:20], idempotent=True, one_by_one=True)
    headers = await stored(bootstrap, topic)
    assert len({header.producer_id for header in headers}) == 2, "each producer has an id of its own"
    assert all(header.has_producer_id for header in headers)
    assert [header.base_sequence for header in headers] == [*range(20), *range(20)]
    got = await in_thread(client.consume, bootstrap, topic, "beginning", 40)
    assert [one.value for one in got] == [sent.value for sent in RECORDS[:20]] * 2


@EACH_CLIENT
async def test_consuming_from_an_offset_and_a_timestamp(bootstrap: str, topic: str, client: Client) -> None:
    begin = 1_700_000_000_000
    records = [Sent(b"%d" % number, timestamp=begin + 1000 * number) for number in range(10)]
    await in_thread(client.produce, bootstrap, topic, records, one_by_one=True)
    got = await in_thread(client.consume, bootstrap, topic, 6, 4)
    assert [(one.offset, one.timestamp, one.value) for one in got] == [
        (number, begin + 1000 * number, b"%d" % number) for number in range(6, 10)
    ]
    got = await in_thread(client.consume, bootstrap, topic, ("timestamp", begin + 3500), 6)
    assert [one.offset for one in got] == [4, 5, 6, 7, 8, 9]


@EACH_CLIENT
async def test_consuming_from_the_end_sees_only_what_comes_later(bootstrap: str, topic: str, client: Client) -> None:
    await in_thread(client.produce, bootstrap, topic, RECORDS[:5])

    def later() -> None:
        client.produce(bootstrap, topic, [Sent(b"later")])

    got = await in_thread(client.consume, bootstrap, topic, "end", 1, later)
    assert [(one.offset, one.value) for one in got] == [(5, b"later")]


@EACH_CLIENT
async def test_null_keys_and_values_and_large_records(bootstrap: str, topic: str, client: Client) -> None:
    records = [Sent(None, b"gone"), Sent(b"", None), Sent(bytes(900_000), b"large")]
    await in_thread(client.produce, bootstrap, topic, records, one_by_one=True)
    got = await in_thread(client.consume, bootstrap, topic, "beginning", 3)
    assert [(one.key, one.value) for one in got] == [(sent.key, sent.value) for sent in records]


@EACH_CLIENT
async def test_creating_and_deleting_a_topic(bootstrap: str, new_name: str, client: Client) -> None:
    await in_thread(client.create_topic, bootstrap, new_name, 3)
    assert (await in_thread(client.topics, bootstrap))[new_name] == 3
    await in_thread(client.delete_topic, bootstrap, new_name)
    assert new_name not in await in_thread(client.topics, bootstrap)
    with pytest.raises(Exception, match=r"(?i)unknown|not exist"):
        await in_thread(client.delete_topic, bootstrap, new_name)


@EACH_CLIENT
async def test_creating_a_topic_twice_is_refused_by_name(bootstrap: str, topic: str, client: Client) -> None:
    with pytest.raises(Exception, match=r"(?i)already.?exists|36"):
        await in_thread(client.create_topic, bootstrap, topic, 1)
