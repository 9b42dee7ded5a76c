"""CPU time per record of `quorumlog.client` and of aiokafka, each in this process, against a standalone broker.

Records of 100 bytes to one partition, acks=all, idempotent.  Only the client's CPU time counts, so the figure does not
depend on the broker or on the load of the machine.  The checksum covers every value read.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from bench.broker_rates import create_topic
from quorumlog.client import Consumer, Producer
from quorumlog.testing import standalone

SIZE = 100
CALL_TIMEOUT_S = 30
Work = Callable[[str, str, int], Awaitable[tuple[float, int]]]
"""A function that takes bootstrap address, topic and number of records, and returns CPU seconds and a checksum."""


def run(tiny: bool) -> dict[str, Any]:
    count, rounds = (2_000, 1) if tiny else (500_000, 5)
    works: dict[str, tuple[Work, Work]] = {
        "produce": (_produce, _produce_aiokafka),
        "consume_records": (_consume, _consume_aiokafka),
        "consume_batches": (_consume_batches, _consume_batches_aiokafka),
    }
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in works}
    checksums = set()
    with standalone() as broker:
        for number in range(rounds + 1):
            is_warm = number > 0
            for name, pair in works.items():
                for client, work in enumerate(pair):
                    topic = f"client-{client}-{number}"
                    if name == "produce":
                        create_topic(broker.bootstrap, topic)
                    spent, checksum = asyncio.run(_limited(work(broker.bootstrap, topic, count if is_warm else 100)))
                    if not is_warm:  # the first use imports modules
                        continue
                    seconds[name][client].append(spent)
                    checksums.add(checksum)
    assert len(checksums) == 1, checksums
    results = {}
    for name, (ours, theirs) in seconds.items():
        results[name] = {
            "quorumlog_us_per_record": round(median(ours) / count * 1e6, 3),
            "aiokafka_us_per_record": round(median(theirs) / count * 1e6, 3),
            "ratio": round(median(theirs) / median(ours), 2),
        }
    return {"record_bytes": SIZE, "records": count, "rounds": rounds, "results": results, "checksum": checksums.pop()}


async def _limited(work: Awaitable[tuple[float, int]]) -> tuple[float, int]:
    async with asyncio.timeout(300):
        return await work


def _value(number: int) -> bytes:
    return b"%0100d" % number


def _checksum(count: int) -> int:
    checksum = 0
    for number in range(count):
        checksum = zlib.crc32(_value(number), checksum)
    return checksum


def _checksum_of(values: list[bytes]) -> int:
    checksum = 0
    for value in values:
        checksum = zlib.crc32(value, checksum)
    return checksum


async def _produce(bootstrap: str, topic: str, count: int) -> tuple[float, int]:
    values = [_value(number) for number in range(count)]
    async with Producer(bootstrap) as producer:
        await producer.partitions(topic)
        begun = time.process_time()
        for value in values:
            await producer.send(topic, value)
        await producer.flush()
        return time.process_time() - begun, _checksum(count)


async def _produce_aiokafka(bootstrap: str, topic: str, count: int) -> tuple[float, int]:
    values = [_value(number) for number in range(count)]
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True, acks="all")
    await producer.start()
    try:
        await producer.partitions_for(topic)
        begun = time.process_time()
        for value in values:
            await producer.send(topic, value)
        await producer.flush()
        return time.process_time() - begun, _checksum(count)
    finally:
        await producer.stop()


async def _consume(bootstrap: str, topic: str, count: int) -> tuple[float, int]:
    values: list[bytes] = []
    async with Consumer(bootstrap, topics=[topic], auto_offset_reset="earliest") as consumer:
        begun = time.process_time()
        async for record in consumer:
            values.append(record.value or b"")
            if len(values) == count:
                break
        return time.process_time() - begun, _checksum_of(values)


async def _consume_aiokafka(bootstrap: str, topic: str, count: int) -> tuple[float, int]:
    values: list[bytes] = []
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        begun = time.process_time()
        async for record in consumer:
            values.append(record.value)
            if len(values) == count:
                break
        return time.process_time() - begun, _checksum_of(values)
    finally:
        await consumer.stop()


async def _consume_batches(bootstrap: str, topic: str, count: int) -> tuple[float, int]:
    values: list[bytes] = []
    async with Consumer(bootstrap, topics=[topic], auto_offset_reset="earliest") as consumer:
        begun = time.process_time()
        async for batch in consumer.batches():
            values += [record.value for record in batch]
            if len(values) == count:
                break
        return time.process_time() - begun, _checksum_of(values)


async def _consume_batches_aiokafka(bootstrap: str, topic: str, count: int) -> tuple[float, int]:
    values: list[bytes] = []
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        begun = time.process_time()
        while len(values) < count:
            for records in (await consumer.getmany(timeout_ms=CALL_TIMEOUT_S * 1000)).values():
                values += [record.value for record in records]
        return time.process_time() - begun, _checksum_of(values)
    finally:
        await consumer.stop()
