"""Produce and consume through one standalone broker with an unmodified librdkafka client (confluent-kafka).

The producer is idempotent and uses acks=all, and each acknowledged record is fsynced.  The checksum covers every value
read, so that a faster but wrong result is detected.  Client and broker share the machine.
"""

from __future__ import annotations

import time
import zlib
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from quorumlog.testing import standalone

SIZES = (100, 1024)
DEADLINE_S = 300


def run(tiny: bool) -> dict[str, Any]:
    rounds = 1 if tiny else 3
    results = []
    with standalone() as broker:
        for size in SIZES:
            count = 2_000 if tiny else 50_000_000 // size
            produced, consumed = [], []
            for round_number in range(rounds):
                topic = f"rates-{size}-{round_number}"
                create_topic(broker.bootstrap, topic)
                rate, sent = _produce(broker.bootstrap, topic, size, count)
                produced.append(rate)
                rate, received = _consume(broker.bootstrap, topic, count)
                consumed.append(rate)
                assert sent == received, f"checksum of {topic}: sent {sent:08x}, received {received:08x}"
            results.append(
                {
                    "record_bytes": size,
                    "records": count,
                    "produce_records_s_median": round(median(produced)),
                    "produce_mb_s_median": round(median(produced) * size / 1e6, 1),
                    "consume_records_s_median": round(median(consumed)),
                    "consume_mb_s_median": round(median(consumed) * size / 1e6, 1),
                    "checksum": f"{received:08x}",
                }
            )
    return {"client": "confluent-kafka", "acks": "all", "partitions": 1, "rounds": rounds, "results": results}


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=30).values():
        future.result()


def _produce(bootstrap: str, topic: str, size: int, count: int) -> tuple[float, int]:
    """Return records/s from the first produce call to the last acknowledgement, and the checksum of all values."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    values = [bytes([65 + n]) * size for n in range(26)]
    checksum = 0
    started = time.monotonic()
    for number in range(count):
        value = values[number % 26]
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(DEADLINE_S)
    rate = count / (time.monotonic() - started)
    assert left == 0, f"{left} records were not acknowledged within {DEADLINE_S} s"
    for number in range(count):
        checksum = zlib.crc32(values[number % 26], checksum)
    return rate, checksum


def _consume(bootstrap: str, topic: str, count: int) -> tuple[float, int]:
    """Return records/s from the assignment to the last record, and the checksum of all values."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 1,  # by default the client sleeps for 1 s whenever its own queue is full
        }
    )
    values: list[bytes] = []
    started = time.monotonic()
    consumer.assign([TopicPartition(topic, 0, 0)])
    while len(values) < count:
        assert time.monotonic() - started < DEADLINE_S, f"{len(values)} of {count} records in {DEADLINE_S} s"
        for message in consumer.consume(min(10_000, count - len(values)), timeout=1.0):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    rate = count / (time.monotonic() - started)
    consumer.close()
    checksum = 0
    for value in values:
        checksum = zlib.crc32(value, checksum)
    return rate, checksum
