"""The records of the rows, and an independent client that writes and reads them.

Record `number` has the key `key-{number % 7}`, the value `value-{number} ` twenty times, the timestamp
`BASE_MS + number` and the header `number`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import check
from quorumlog.client.groups import GroupClient
from quorumlog.client.kafka import KafkaConnection
from quorumlog.wire import record_batch
from quorumlog.wire.kafka import fetch
from quorumlog.wire.kafka.codec import Api
from tests.clients.outcomes import RowFailed

COUNT = 50
TIMEOUT_S = 30.0
BASE_MS = (int(time.time()) - 3600) * 1000
"""An hour ago, so that retention deletes nothing."""
_NO_COORDINATOR_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
"""Answers to the first groups of a cluster."""
SILENT = logging.getLogger("clients.harness")
SILENT.disabled = True


def record(number: int) -> dict[str, Any]:
    return {
        "offset": number,
        "timestamp": BASE_MS + number,
        "key": f"key-{number % 7}",
        "value": f"value-{number} " * 20,
        "headers": {"number": str(number)},
    }


class Harness:
    """The independent client."""

    def __init__(self, bootstrap: str, replication_factor: int) -> None:
        self.bootstrap = bootstrap
        self._replication_factor = replication_factor
        self._config: dict[str, Any] = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(dict(self._config), logger=SILENT)

    def create(self, topic: str, partitions: int = 1) -> None:
        new = NewTopic(topic, partitions, self._replication_factor)
        for future in self._admin.create_topics([new], request_timeout=TIMEOUT_S).values():
            future.result(TIMEOUT_S)
        deadline = time.monotonic() + TIMEOUT_S
        while not self._is_led(topic, partitions):  # brokers learn of a topic one after another
            if time.monotonic() > deadline:
                raise RowFailed(f"topic {topic} has no leaders within {TIMEOUT_S:g} s")
            time.sleep(0.05)  # another process, which sends no event: poll

    def _is_led(self, topic: str, partitions: int) -> bool:
        found = self._admin.list_topics(timeout=TIMEOUT_S).topics.get(topic)
        return (
            found is not None
            and len(found.partitions) == partitions
            and all(each.leader >= 0 for each in found.partitions.values())
        )

    def produce(self, topic: str, numbers: Iterable[int]) -> None:
        producer = Producer({**self._config, "linger.ms": 5}, logger=SILENT)
        for number in numbers:
            one = record(number)
            headers: list[tuple[str, str | bytes | None]] = list(one["headers"].items())
            producer.produce(topic, one["value"], one["key"], partition=0, timestamp=one["timestamp"], headers=headers)
        if producer.flush(TIMEOUT_S):
            raise RowFailed("the harness could not produce")

    def produce_values(self, topic: str, partitions: int, values: Iterable[str]) -> None:
        """Write the values to the partitions in turn."""
        producer = Producer({**self._config, "linger.ms": 5}, logger=SILENT)
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % partitions)
        if producer.flush(TIMEOUT_S):
            raise RowFailed("the harness could not produce")

    def read(self, topic: str, count: int, *, isolation: str = "read_committed") -> list[dict[str, Any]]:
        """Return up to `count` records of partition 0; fewer once the end is reached.

        Raises:
            RowFailed: neither was reached in time.
            KafkaException: a broker reports an error.
        """
        config = {**self._config, "group.id": "harness", "isolation.level": isolation, "enable.auto.commit": False}
        consumer = Consumer({**config, "enable.partition.eof": True}, logger=SILENT)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while len(found) < count:
                message = consumer.poll(1.0)
                if message is None:
                    if time.monotonic() > deadline:
                        raise RowFailed(f"the harness read {len(found)} records of {topic} in {TIMEOUT_S:g} s")
                    continue
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        break
                    raise KafkaException(error)
                found.append(
                    {
                        "offset": message.offset(),
                        "timestamp": message.timestamp()[1],
                        "key": _text(message.key()),
                        "value": _text(message.value()),
                        "headers": _headers(message.headers()),
                    }
                )
        finally:
            consumer.close()
        return found

    def commit(self, group: str, topic: str, offset: int) -> None:
        """Commit for partition 0, as an administrator does."""
        deadline = time.monotonic() + TIMEOUT_S
        while (error := self._commit_once(group, TopicPartition(topic, 0, offset))) is not None:
            if error.code() not in _NO_COORDINATOR_YET or time.monotonic() > deadline:
                raise RowFailed(f"the harness could not commit: {error}")
            time.sleep(0.05)  # another process, which sends no event: poll

    def _commit_once(self, group: str, offset: TopicPartition) -> KafkaError | None:
        committed = ConsumerGroupTopicPartitions(group, [offset])
        (future,) = self._admin.alter_consumer_group_offsets([committed]).values()
        try:
            (found,) = future.result(TIMEOUT_S).topic_partitions
            error: KafkaError | None = found.error
        except KafkaException as refused:
            error = refused.args[0]
        return error

    def committed(self, group: str, topic: str, partitions: int) -> list[int]:
        asked = [TopicPartition(topic, partition) for partition in range(partitions)]
        for future in self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, asked)]).values():
            return [each.offset for each in future.result(TIMEOUT_S).topic_partitions]
        raise AssertionError

    async def remove_static_member(self, group: str, instance: str) -> None:
        """Remove a static member, as an administrator does (KIP-345)."""

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            members = [{"member_id": "", "group_instance_id": instance}]
            reply = await client.calls.ask(connection, Api.LEAVE_GROUP, {"group_id": group, "members": members}, left_s)
            check(reply.error_code, f"group {group}")
            (removed,) = reply.members
            check(removed.error_code, f"member {instance} of group {group}")

        async with Cluster(self.bootstrap) as cluster:
            client = GroupClient(cluster)
            await client.calls.call(group, TIMEOUT_S, attempt)

    async def headers(self, topic: str) -> list[record_batch.BatchHeader]:
        """Return the headers of the batches of partition 0 as the brokers keep them."""
        async with Cluster(self.bootstrap) as cluster:
            connection = await cluster.leader(topic, 0, TIMEOUT_S)
            wanted = [fetch.PartitionToFetch(topic, 0, 0, 10 << 20)]
            body = fetch.encode_request(fetch.CLIENT_VERSION, wanted, max_wait_ms=0, min_bytes=0, max_bytes=10 << 20)
            reply = await connection.call(Api.FETCH, fetch.CLIENT_VERSION, body, TIMEOUT_S)
        (partition,) = fetch.decode_response(reply, fetch.CLIENT_VERSION).partitions
        found = record_batch.check_batches(partition.records)
        if not isinstance(found, list):
            raise RowFailed(f"the brokers returned batches that cannot be read: {found}")
        return found


def _headers(headers: Any) -> dict[str, str | None]:
    return {name: _text(value) for name, value in headers or ()}


def _text(value: bytes | str | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
