"""A real broker refuses all bad input by name, appends nothing, and continues."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from broker.kafka.handlers import HANDLERS
from quorumlog.wire import record_batch
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.integration.kafka.conftest import Standalone
from tests.unit.broker.kafka.raw import RawClient, batch, opaque_batch

_numbers = count()


@pytest.fixture
async def client(standalone: Standalone) -> AsyncIterator[RawClient]:
    async with RawClient(standalone.port) as one:
        yield one


@pytest.fixture
async def topic(client: RawClient) -> str:
    name = f"bad-{next(_numbers)}"
    new = {"name": name, "num_partitions": 1, "replication_factor": 1}
    response = await client.ask(Api.CREATE_TOPICS, 7, {"topics": [new], "timeout": 10_000})
    assert int(response.topics[0].error_code) == 0, response
    return name


def damaged(data: bytes, position: int, value: bytes, reseal: bool = True) -> bytes:
    """Return the batch with other bytes in its header; `reseal`: with a matching checksum."""
    out = bytearray(data)
    out[position : position + len(value)] = value
    if reseal:
        crc = record_batch.crc_of(out, 0, len(out))
        out[record_batch.CRC_POSITION : record_batch.CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return bytes(out)


GOOD = batch((b"one", b"two"))
REFUSED = [
    pytest.param(damaged(GOOD, 40, b"?", reseal=False), KafkaCode.CORRUPT_MESSAGE, id="wrong crc"),
    pytest.param(damaged(GOOD, 8, b"\x7f\xff\xff\xff"), KafkaCode.CORRUPT_MESSAGE, id="length 2^31-1"),
    pytest.param(damaged(GOOD, 8, b"\xff\xff\xff\xff"), KafkaCode.CORRUPT_MESSAGE, id="length -1"),
    pytest.param(damaged(GOOD, 8, b"\x00\x00\x00\x00"), KafkaCode.CORRUPT_MESSAGE, id="length 0"),
    pytest.param(GOOD[:-1], KafkaCode.CORRUPT_MESSAGE, id="cut"),
    pytest.param(GOOD + b"x", KafkaCode.CORRUPT_MESSAGE, id="longer"),
    pytest.param(damaged(GOOD, 16, b"\x00"), KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, id="magic 0"),
    pytest.param(damaged(GOOD, 16, b"\x03"), KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, id="magic 3"),
    pytest.param(damaged(GOOD, 21, b"\x00\x05"), KafkaCode.UNSUPPORTED_COMPRESSION_TYPE, id="codec 5"),
    pytest.param(damaged(GOOD, 21, b"\x00\x20"), KafkaCode.INVALID_RECORD, id="control batch"),
    pytest.param(damaged(GOOD, 21, b"\x10\x00"), KafkaCode.INVALID_RECORD, id="unknown attribute"),
    pytest.param(damaged(GOOD, 57, b"\x00\x00\x00\x03"), KafkaCode.INVALID_RECORD, id="more records than offsets"),
    pytest.param(damaged(GOOD, 57, b"\x7f\xff\xff\xff"), KafkaCode.INVALID_RECORD, id="2^31-1 records"),
    pytest.param(damaged(GOOD, 57, b"\x00\x00\x00\x00"), KafkaCode.INVALID_RECORD, id="no records"),
    pytest.param(opaque_batch(1_500_000), KafkaCode.MESSAGE_TOO_LARGE, id="over max.message.bytes"),
    pytest.param(None, KafkaCode.INVALID_RECORD, id="null"),
    pytest.param(b"", KafkaCode.INVALID_RECORD, id="empty"),
]


@pytest.mark.parametrize(("records", "code"), REFUSED)
async def test_a_bad_batch_is_refused_and_not_appended(
    client: RawClient, topic: str, records: bytes | None, code: KafkaCode
) -> None:
    for acks in (1, -1):
        answer = await client.produce(topic, 0, records, acks=acks)
        assert (KafkaCode(int(answer.error_code)), answer.base_offset) == (code, -1)
    assert (await client.produce(topic, 0, GOOD)).base_offset == 0, "nothing of the bad batch was appended"


async def test_a_transactional_batch_without_a_producer_is_refused(client: RawClient, topic: str) -> None:
    answer = await client.produce(topic, 0, damaged(GOOD, 21, b"\x00\x10"))
    assert ErrorCode(answer.error_code) is ErrorCode.invalid_record


async def test_sequences_are_checked_and_duplicates_recognised(client: RawClient, topic: str) -> None:
    identity = await client.ask(Api.INIT_PRODUCER_ID, 4, {"transactional_id": None, "producer_id": -1})
    producer_id = identity.producer_id
    assert (int(identity.error_code), identity.producer_epoch) == (0, 0)

    async def produce(epoch: int, sequence: int) -> tuple[KafkaCode, int]:
        answer = await client.produce(topic, 0, batch((b"a", b"b"), (producer_id, epoch, sequence)))
        return KafkaCode(int(answer.error_code)), answer.base_offset

    assert await produce(0, 0) == (KafkaCode.NONE, 0)
    assert await produce(0, 2) == (KafkaCode.NONE, 2)
    assert await produce(0, 0) == (KafkaCode.NONE, 0), "a duplicate gets the offset of the original"
    assert await produce(0, 6) == (KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await produce(1, 0) == (KafkaCode.NONE, 4)
    assert await produce(0, 4) == (KafkaCode.INVALID_PRODUCER_EPOCH, -1)
    assert (await client.produce(topic, 0, GOOD)).base_offset == 6


@pytest.mark.parametrize("acks", [2, -2, 32767])
async def test_acks_out_of_range_are_refused(client: RawClient, topic: str, acks: int) -> None:
    answer = await client.produce(topic, 0, GOOD, acks=acks)
    assert int(answer.error_code) == KafkaCode.INVALID_REQUIRED_ACKS


@pytest.mark.parametrize(("name", "index"), [("no-such-topic", 0), ("", 0), ("../../etc", 0), (None, 1), (None, -1)])
async def test_missing_topics_and_partitions_are_refused(
    client: RawClient, topic: str, name: str | None, index: int
) -> None:
    name = topic if name is None else name
    assert int((await client.produce(name, index, GOOD)).error_code) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = {"partition_index": index, "partition": index, "timestamp": -1, "partition_max_bytes": 100}
    asked = {"replica_id": -1, "topics": [{"name": name, "topic": name, "partitions": [partition]}]}
    fetched = await client.ask(Api.FETCH, 12, asked)
    assert int(fetched.responses[0].partitions[0].error_code) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    listed = await client.ask(Api.LIST_OFFSETS, 7, asked)
    assert int(listed.topics[0].partitions[0].error_code) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("offset", [-5, 3, 2**63 - 1])
async def test_an_offset_out_of_range_is_refused(client: RawClient, topic: str, offset: int) -> None:
    await client.produce(topic, 0, GOOD)
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 100}
    asked = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}
    one = (await client.ask(Api.FETCH, 12, asked)).responses[0].partitions[0]
    assert int(one.error_code) == KafkaCode.OFFSET_OUT_OF_RANGE
    assert (one.log_start_offset, one.high_watermark) == (0, 2)


@pytest.mark.parametrize("size", [0, -1, 2**31 - 1])
async def test_a_fetch_with_an_invalid_or_huge_maximum_size_returns_the_first_batch(
    client: RawClient, topic: str, size: int
) -> None:
    await client.produce(topic, 0, GOOD)
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": size}
    asked: dict[str, Any] = {"replica_id": -1, "max_bytes": size, "min_bytes": 1}
    asked["topics"] = [{"topic": topic, "partitions": [partition]}]
    one = (await client.ask(Api.FETCH, 12, asked)).responses[0].partitions[0]
    assert bytes(one.records)[16:] == GOOD[16:], "as it was sent, but for base offset and leader epoch"


BAD_TOPICS = [
    pytest.param({"name": name}, ErrorCode.invalid_topic_exception, id=f"name {name[:20]!r}")
    for name in (
        "",
        ".",
        "..",
        "x" * 250,
        "a b",
        "a/b",
        "../../etc/x",
        "a\0b",
        "a\nb",
        "\N{SNOWMAN}",
        "__cluster_metadata",
    )
] + [
    pytest.param({"num_partitions": 0}, ErrorCode.invalid_partitions, id="0 partitions"),
    pytest.param({"num_partitions": 10_000_000}, None, id="10 million partitions"),
    pytest.param({"replication_factor": 0}, ErrorCode.invalid_replication_factor, id="replication factor 0"),
    pytest.param({"replication_factor": 3}, ErrorCode.invalid_replication_factor, id="more replicas than brokers"),
    pytest.param({"replication_factor": 32767}, ErrorCode.invalid_replication_factor, id="replication factor 32767"),
    pytest.param({"configs": [{"name": "no.such", "value": "1"}]}, ErrorCode.invalid_config, id="unknown config"),
    pytest.param(
        {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [1, 1]}],
        },
        ErrorCode.invalid_replica_assignment,
        id="a broker twice",
    ),
]


@pytest.mark.parametrize(("values", "code"), BAD_TOPICS)
async def test_a_topic_with_invalid_values_is_not_created(
    client: RawClient, values: dict[str, Any], code: ErrorCode | None
) -> None:
    new = {"name": f"bad-{next(_numbers)}", "num_partitions": 1, "replication_factor": 1, **values}
    response = await client.ask(Api.CREATE_TOPICS, 7, {"topics": [new], "timeout": 10_000})
    found = ErrorCode(response.topics[0].error_code)
    if code is None:
        assert found in (ErrorCode.invalid_partitions, ErrorCode.policy_violation)
    else:
        assert found is code, response
    assert response.topics[0].error_message
    listed = await client.ask(Api.METADATA, 12, {"topics": None})
    assert new["name"] not in {topic.name for topic in listed.topics}


async def test_garbage_ends_its_connection_and_uses_little_memory(standalone: Standalone, topic: str) -> None:
    def resident_kib() -> int:
        status = Path(f"/proc/{standalone.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    before = resident_kib()
    source = random.Random(1)
    for number in range(150):
        async with RawClient(standalone.port) as client:
            garbage = source.randbytes(source.randrange(1, 2000))
            if number % 3:
                api = source.choice(list(HANDLERS))
                version = source.randrange(HANDLERS[api].low, HANDLERS[api].offered + 1)
                body = api.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\1\xff\xff" + garbage
                garbage = len(body).to_bytes(4, "big") + body
            elif number % 2:
                garbage = (90 << 20).to_bytes(4, "big") + b"\0\0\0\x09" + garbage
            client.writer.write(garbage)
            if client.writer.can_write_eof():
                client.writer.write_eof()
            await client.reader.read()
    assert resident_kib() - before < 64 << 10
    async with RawClient(standalone.port) as client:
        assert (await client.produce(topic, 0, GOOD)).base_offset == 0
