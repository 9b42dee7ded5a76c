"""The contents of a topic as confluent-kafka reads them."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.transactions.check import Seen

TIMEOUT_S = 60.0
"""The longest wait for the next record."""


def contents(bootstrap: str, topic: str, partitions: int, *, committed: bool = True) -> list[Seen]:
    """Return the records of a topic, in the order of each partition.

    committed: omit the records of aborted transactions, and all records from the first open transaction on.
    """
    level = "read_committed" if committed else "read_uncommitted"
    settings = {"bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": level}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.partition.eof": True})
    found, ended = [], set[int]()
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        deadline = time.monotonic() + TIMEOUT_S
        while len(ended) < partitions:
            for message in consumer.consume(10_000, timeout=1.0):
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(partition)
                    continue
                assert offset is not None
                assert value is not None
                found.append(Seen(partition, offset, value.decode()))
                deadline = time.monotonic() + TIMEOUT_S
            assert time.monotonic() < deadline, f"{topic}: only partitions {ended} were received to their ends"
    finally:
        consumer.close()
    return found
