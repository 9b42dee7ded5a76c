"""A real broker refuses batches whose records contradict their header, down to records inside compression."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import produce
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import Codec
from tests.integration.kafka.conftest import Standalone
from tests.unit.broker.kafka.raw import RawClient
from tests.unit.broker.log.batches import varint
from tests.unit.quorumlog.wire.framing import BadBody, bad_bodies, body_of, record, sealed

_numbers = count()
GOOD = sealed(body_of(record(0), record(1)), 2)


@pytest.fixture
async def client(standalone: Standalone) -> AsyncIterator[RawClient]:
    async with RawClient(standalone.port) as one:
        yield one


async def make_topic(client: RawClient, **configs: str) -> str:
    """Return the name of a new topic."""
    return str((await create_topic(client, **configs)).name)


async def create_topic(client: RawClient, **configs: str) -> Any:
    """Return the broker's answer for a new topic."""
    name = f"bad-records-{next(_numbers)}"
    settings = [{"name": key, "value": value} for key, value in configs.items()]
    new = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": settings}
    response = await client.ask(Api.CREATE_TOPICS, 7, {"topics": [new], "timeout": 10_000})
    assert int(response.topics[0].error_code) == 0, response
    return response.topics[0]


async def producer_id(client: RawClient) -> int:
    identity = await client.ask(Api.INIT_PRODUCER_ID, 4, {"transactional_id": None, "producer_id": -1})
    return int(identity.producer_id)


async def end_of(client: RawClient, topic: str) -> int:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    asked = {"replica_id": -1, "topics": [{"name": topic, "partitions": [partition]}]}
    return int((await client.ask(Api.LIST_OFFSETS, 7, asked)).topics[0].partitions[0].offset)


@pytest.mark.parametrize("bad", bad_bodies(), ids=lambda bad: bad.name)
async def test_bad_records_are_refused_and_change_neither_the_log_nor_the_sequence(
    client: RawClient, bad: BadBody
) -> None:
    topic, producer = await make_topic(client), await producer_id(client)
    codecs = list(Codec) if bad.body else [Codec.NONE]
    for acks in (1, -1):
        for codec in codecs:
            data = sealed(bad.body, bad.record_count, codec, producer=(producer, 0, 0))
            answer = await client.produce(topic, 0, data, acks=acks)
            assert (KafkaCode(int(answer.error_code)), answer.base_offset) == (KafkaCode.INVALID_RECORD, -1), codec
            assert answer.error_message
    assert await end_of(client, topic) == 0
    good = sealed(body_of(record(0)), 1, producer=(producer, 0, 0))
    assert (await client.produce(topic, 0, good)).base_offset == 0


@pytest.mark.parametrize("version", range(produce.FIRST_VERSION, produce.LAST_VERSION + 1))
async def test_the_refusal_names_the_record_in_versions_of_produce_with_record_errors(
    client: RawClient, version: int
) -> None:
    topic = await create_topic(client)
    data = sealed(body_of(record(0), record(9)), 2)
    answer = await client.produce(topic.name if version < 13 else topic.topic_id, 0, data, version=version)
    assert KafkaCode(int(answer.error_code)) is KafkaCode.INVALID_RECORD
    if version >= 8:
        (error,) = answer.record_errors
        assert error.batch_index == 1
        assert error.batch_index_error_message == "the offset delta is not the record's position in the batch"
        assert answer.error_message.startswith("record 1 of 2")


async def test_a_bad_timestamp_and_a_size_above_the_limit_have_their_own_error_codes(client: RawClient) -> None:
    topic = await make_topic(client)
    early = await client.produce(topic, 0, sealed(body_of(record(0, timestamp_delta=-2_000)), 1))
    assert KafkaCode(int(early.error_code)) is KafkaCode.INVALID_TIMESTAMP
    value = bytes(65 << 20)
    bomb = sealed(body_of(record(0, value=varint(len(value)) + value)), 1, Codec.ZSTD)
    assert len(bomb) < 100_000
    large = await client.produce(topic, 0, bomb)
    assert KafkaCode(int(large.error_code)) is KafkaCode.MESSAGE_TOO_LARGE
    assert (await client.produce(topic, 0, GOOD)).base_offset == 0


async def test_batches_are_appended_in_order_although_some_are_checked_in_a_thread(client: RawClient) -> None:
    topic, producer = await make_topic(client), await producer_id(client)
    noise = random.Random(7).randbytes(200_000)
    sent = []
    for sequence in range(12):
        value = noise if sequence % 3 == 0 else b"small"
        codec = list(Codec)[sequence % 5]
        body = body_of(record(0, value=varint(len(value)) + value))
        data = sealed(body, 1, codec, producer=(producer, 0, sequence))
        sent.append(client.send_produce(topic, 0, data, acks=-1))
    for sequence, correlation_id in enumerate(sent):
        received, response = await client.receive(Api.PRODUCE, 9)
        assert received == correlation_id
        answer = response.responses[0].partition_responses[0]
        assert (KafkaCode(int(answer.error_code)), answer.base_offset) == (KafkaCode.NONE, sequence)


async def test_a_topic_without_validation_appends_compressed_batches_unopened(client: RawClient) -> None:
    topic = await make_topic(client, **{"compression.validation.enable": "false"})
    bad = body_of(record(5), record(9))
    assert (await client.produce(topic, 0, sealed(bad, 2, Codec.LZ4))).base_offset == 0
    answer = await client.produce(topic, 0, sealed(bad, 2))
    assert KafkaCode(int(answer.error_code)) is KafkaCode.INVALID_RECORD, (
        "records without compression are always checked"
    )


async def test_acks_0_with_bad_records_closes_the_connection(standalone: Standalone, client: RawClient) -> None:
    topic = await make_topic(client)
    async with RawClient(standalone.port) as other:
        other.send_produce(topic, 0, sealed(body_of(record(3)), 1), acks=0)
        assert await other.closed()
    assert await end_of(client, topic) == 0
