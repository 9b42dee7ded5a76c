"""The three clients, unmodified, behind one face.  All calls block: run them in a thread.

A `Start` is "beginning", "end", an offset, or ("timestamp", ms).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

TIMEOUT_S = 30.0

Start = str | int | tuple[str, int]


class Received(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class Sent(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    timestamp: int | None = None


class Client(Protocol):
    compressions: ClassVar[tuple[str, ...]]

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Sent],
        *,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
        one_by_one: bool = False,
    ) -> list[int]:
        """Offsets; of partition 0.  With acks="0" nobody knows them: []."""

    def consume(
        self, bootstrap: str, topic: str, start: Start, count: int, positioned: Callable[[], None] = lambda: None
    ) -> list[Received]:
        """`positioned` is called once the consumer knows where it starts."""

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None: ...

    def delete_topic(self, bootstrap: str, topic: str) -> None: ...

    def topics(self, bootstrap: str) -> dict[str, int]:
        """Partition counts."""


class Confluent:
    compressions = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap, topic, records, *, acks="all", compression="none", idempotent=False, one_by_one=False
    ) -> list[int]:
        from confluent_kafka import Producer

        config = {"bootstrap.servers": bootstrap, "acks": acks, "compression.type": compression}
        producer = Producer({**config, "enable.idempotence": idempotent, "linger.ms": 0 if one_by_one else 50})
        offsets: list[int] = []
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                errors.append(error)
            elif acks != "0":  # then it does not know
                offsets.append(message.offset())

        for record in records:
            more = {} if record.timestamp is None else {"timestamp": record.timestamp}
            producer.produce(topic, record.value, record.key, partition=0, on_delivery=delivered, **more)
            if one_by_one:
                assert producer.flush(TIMEOUT_S) == 0
        assert producer.flush(TIMEOUT_S) == 0, "everything is delivered"
        assert not errors, errors
        return offsets

    def consume(self, bootstrap, topic, start, count, positioned=lambda: None) -> list[Received]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
        try:
            where = TopicPartition(topic, 0)
            match start:
                case "beginning":
                    where.offset = OFFSET_BEGINNING
                case "end":
                    where.offset = consumer.get_watermark_offsets(where, timeout=TIMEOUT_S)[1]
                case ("timestamp", timestamp):
                    asked = TopicPartition(topic, 0, timestamp)
                    where.offset = consumer.offsets_for_times([asked], timeout=TIMEOUT_S)[0].offset
                case offset:
                    where.offset = offset
            consumer.assign([where])
            positioned()
            got = consumer.consume(count, TIMEOUT_S)
            assert all(message.error() is None for message in got), [message.error() for message in got]
            return [Received(m.offset(), m.timestamp()[1], m.key(), m.value()) for m in got]
        finally:
            consumer.close()

    def create_topic(self, bootstrap, topic, partitions) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(TIMEOUT_S)

    def delete_topic(self, bootstrap, topic) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.delete_topics([topic]).values():
            future.result(TIMEOUT_S)

    def topics(self, bootstrap) -> dict[str, int]:
        from confluent_kafka.admin import AdminClient

        metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S)
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}


class KafkaPython:
    compressions = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap, topic, records, *, acks="all", compression="none", idempotent=False, one_by_one=False
    ) -> list[int]:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks={"0": 0, "1": 1, "all": "all"}[acks],
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
            linger_ms=0 if one_by_one else 50,
        )
        try:
            futures = []
            for record in records:
                futures.append(
                    producer.send(topic, record.value, record.key, partition=0, timestamp_ms=record.timestamp)
                )
                if one_by_one:
                    futures[-1].get(TIMEOUT_S)
            producer.flush(TIMEOUT_S)
            offsets = [future.get(TIMEOUT_S).offset for future in futures]
            return [] if acks == "0" else offsets
        finally:
            producer.close(TIMEOUT_S)

    def consume(self, bootstrap, topic, start, count, positioned=lambda: None) -> list[Received]:
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, consumer_timeout_ms=int(TIMEOUT_S * 1000))
        try:
            where = TopicPartition(topic, 0)
            consumer.assign([where])
            match start:
                case "beginning":
                    consumer.seek_to_beginning(where)
                case "end":
                    consumer.seek_to_end(where)
                case ("timestamp", timestamp):
                    consumer.seek(where, consumer.offsets_for_times({where: timestamp})[where].offset)
                case offset:
                    consumer.seek(where, offset)
            consumer.position(where)
            positioned()
            got = []
            for message in consumer:
                got.append(Received(message.offset, message.timestamp, message.key, message.value))
                if len(got) == count:
                    break
            return got
        finally:
            consumer.close()

    def create_topic(self, bootstrap, topic, partitions) -> None:
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])
        finally:
            admin.close()

    def delete_topic(self, bootstrap, topic) -> None:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            admin.delete_topics([topic])
        finally:
            admin.close()

    def topics(self, bootstrap) -> dict[str, int]:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            return {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}
        finally:
            admin.close()


class AioKafka:
    compressions = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self, bootstrap, topic, records, *, acks="all", compression="none", idempotent=False, one_by_one=False
    ) -> list[int]:
        from aiokafka import AIOKafkaProducer

        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks={"0": 0, "1": 1, "all": "all"}[acks],
                compression_type=None if compression == "none" else compression,
                enable_idempotence=idempotent,
                linger_ms=0 if one_by_one else 50,
            )
            await producer.start()
            try:
                futures = []
                for record in records:
                    futures.append(
                        await producer.send(topic, record.value, record.key, partition=0, timestamp_ms=record.timestamp)
                    )
                    if one_by_one:
                        await futures[-1]
                await producer.flush()
                answers = [await future for future in futures]
                return [] if acks == "0" else [answer.offset for answer in answers]
            finally:
                await producer.stop()

        return _run(run)

    def consume(self, bootstrap, topic, start, count, positioned=lambda: None) -> list[Received]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def run() -> list[Received]:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=None)
            await consumer.start()
            try:
                where = TopicPartition(topic, 0)
                consumer.assign([where])
                match start:
                    case "beginning":
                        await consumer.seek_to_beginning(where)
                    case "end":
                        await consumer.seek_to_end(where)
                    case ("timestamp", timestamp):
                        consumer.seek(where, (await consumer.offsets_for_times({where: timestamp}))[where].offset)
                    case offset:
                        consumer.seek(where, offset)
                await consumer.position(where)
                await asyncio.get_running_loop().run_in_executor(None, positioned)
                got = []
                while len(got) < count:
                    message = await consumer.getone()
                    got.append(Received(message.offset, message.timestamp, message.key, message.value))
                return got
            finally:
                await consumer.stop()

        return _run(run)

    def create_topic(self, bootstrap, topic, partitions) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        async def run() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                answer = await admin.create_topics([NewTopic(topic, partitions, 1)])
                assert [error[1] for error in answer.topic_errors] == [0], answer
            finally:
                await admin.close()

        _run(run)

    def delete_topic(self, bootstrap, topic) -> None:
        from aiokafka.admin import AIOKafkaAdminClient
        from aiokafka.errors import for_code

        async def run() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                ((_, code),) = (await admin.delete_topics([topic])).topic_error_codes
                if code:
                    raise for_code(code)
            finally:
                await admin.close()

        _run(run)

    def topics(self, bootstrap) -> dict[str, int]:
        from aiokafka.admin import AIOKafkaAdminClient

        async def run() -> dict[str, int]:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                described = await admin.describe_topics()
                return {topic["topic"]: len(topic["partitions"]) for topic in described}
            finally:
                await admin.close()

        return _run(run)


def _run(work: Callable[[], Any]) -> Any:
    assert threading.current_thread() is not threading.main_thread()

    async def bounded() -> Any:
        async with asyncio.timeout(TIMEOUT_S):
            return await work()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(bounded())
