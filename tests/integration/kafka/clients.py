"""The three clients, unmodified, behind one interface.  All calls block: run them in a thread.

A `Start` is "beginning", "end", an offset, or ("timestamp", ms).
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

if TYPE_CHECKING:
    import confluent_kafka

T = TypeVar("T")

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


class Settings(NamedTuple):
    """The settings of a producer.  one_by_one: wait for the answer to each record before the next is sent."""

    acks: str
    compression: str
    idempotent: bool
    one_by_one: bool


class Client(ABC):
    """One client library."""

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
        """Write to partition 0; return the offsets, or [] with acks="0", which returns no offsets."""
        return self._produce(bootstrap, topic, records, Settings(acks, compression, idempotent, one_by_one))

    @abstractmethod
    def _produce(self, bootstrap: str, topic: str, records: Sequence[Sent], settings: Settings) -> list[int]: ...

    @abstractmethod
    def consume(
        self, bootstrap: str, topic: str, start: Start, count: int, positioned: Callable[[], None] = lambda: None
    ) -> list[Received]:
        """Read `count` records; call `positioned` once the consumer knows its position."""

    @abstractmethod
    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None: ...

    @abstractmethod
    def delete_topic(self, bootstrap: str, topic: str) -> None: ...

    @abstractmethod
    def topics(self, bootstrap: str) -> dict[str, int]:
        """Return the number of partitions of each topic."""


class Confluent(Client):
    compressions: ClassVar[tuple[str, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")

    def _produce(self, bootstrap: str, topic: str, records: Sequence[Sent], settings: Settings) -> list[int]:
        from confluent_kafka import Producer

        config = {"bootstrap.servers": bootstrap, "acks": settings.acks, "compression.type": settings.compression}
        producer = Producer(
            {**config, "enable.idempotence": settings.idempotent, "linger.ms": 0 if settings.one_by_one else 50}
        )
        offsets: list[int] = []
        errors: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                errors.append(error)
            elif settings.acks != "0":  # then it does not know
                offsets.append(message.offset())

        for record in records:
            timestamp = record.timestamp or 0  # 0 is the present
            producer.produce(topic, record.value, record.key, partition=0, on_delivery=delivered, timestamp=timestamp)
            if settings.one_by_one:
                assert producer.flush(TIMEOUT_S) == 0
        assert producer.flush(TIMEOUT_S) == 0, "everything is delivered"
        assert not errors, errors
        return offsets

    def consume(
        self, bootstrap: str, topic: str, start: Start, count: int, positioned: Callable[[], None] = lambda: None
    ) -> list[Received]:
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
                case int():
                    where.offset = start
                case _:
                    raise ValueError(start)
            consumer.assign([where])
            positioned()
            got = consumer.consume(count, TIMEOUT_S)
            assert all(message.error() is None for message in got), [message.error() for message in got]
            return [_received(message) for message in got]
        finally:
            consumer.close()

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            future.result(TIMEOUT_S)

    def delete_topic(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.delete_topics([topic]).values():
            future.result(TIMEOUT_S)

    def topics(self, bootstrap: str) -> dict[str, int]:
        from confluent_kafka.admin import AdminClient

        metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S)
        return {name: len(topic.partitions) for name, topic in metadata.topics.items()}


def _received(message: confluent_kafka.Message[bytes, bytes]) -> Received:
    offset = message.offset()
    assert offset is not None
    return Received(offset, message.timestamp()[1], message.key(), message.value())


class KafkaPython(Client):
    compressions: ClassVar[tuple[str, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")

    def _produce(self, bootstrap: str, topic: str, records: Sequence[Sent], settings: Settings) -> list[int]:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks={"0": 0, "1": 1, "all": "all"}[settings.acks],
            compression_type=None if settings.compression == "none" else settings.compression,
            enable_idempotence=settings.idempotent,
            linger_ms=0 if settings.one_by_one else 50,
        )
        try:
            futures = []
            for record in records:
                futures.append(
                    producer.send(topic, record.value, record.key, partition=0, timestamp_ms=record.timestamp)
                )
                if settings.one_by_one:
                    futures[-1].get(TIMEOUT_S)
            producer.flush(TIMEOUT_S)
            offsets = [future.get(TIMEOUT_S).offset for future in futures]
            return [] if settings.acks == "0" else offsets
        finally:
            producer.close(TIMEOUT_S)

    def consume(
        self, bootstrap: str, topic: str, start: Start, count: int, positioned: Callable[[], None] = lambda: None
    ) -> list[Received]:
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
                case int():
                    consumer.seek(where, start)
                case _:
                    raise ValueError(start)
            consumer.position(where)
            positioned()
            got: list[Received] = []
            for message in consumer:
                got.append(Received(message.offset, message.timestamp, message.key, message.value))
                if len(got) == count:
                    break
            return got
        finally:
            consumer.close()

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
        from kafka.admin import KafkaAdminClient, NewTopic

        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])
        finally:
            admin.close()

    def delete_topic(self, bootstrap: str, topic: str) -> None:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            admin.delete_topics([topic])
        finally:
            admin.close()

    def topics(self, bootstrap: str) -> dict[str, int]:
        from kafka.admin import KafkaAdminClient

        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            return {topic["name"]: len(topic["partitions"]) for topic in admin.describe_topics()}
        finally:
            admin.close()


class AioKafka(Client):
    compressions: ClassVar[tuple[str, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")

    def _produce(self, bootstrap: str, topic: str, records: Sequence[Sent], settings: Settings) -> list[int]:
        from aiokafka import AIOKafkaProducer

        async def run() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks={"0": 0, "1": 1, "all": "all"}[settings.acks],
                compression_type=None if settings.compression == "none" else settings.compression,
                enable_idempotence=settings.idempotent,
                linger_ms=0 if settings.one_by_one else 50,
            )
            await producer.start()
            try:
                futures = []
                for record in records:
                    futures.append(
                        await producer.send(topic, record.value, record.key, partition=0, timestamp_ms=record.timestamp)
                    )
                    if settings.one_by_one:
                        await futures[-1]
                await producer.flush()
                answers = [await future for future in futures]
                return [] if settings.acks == "0" else [answer.offset for answer in answers]
            finally:
                await producer.stop()

        return _run(run)

    def consume(
        self, bootstrap: str, topic: str, start: Start, count: int, positioned: Callable[[], None] = lambda: None
    ) -> list[Received]:
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
                    case int():
                        consumer.seek(where, start)
                    case _:
                        raise ValueError(start)
                await consumer.position(where)
                await asyncio.get_running_loop().run_in_executor(None, positioned)
                got: list[Received] = []
                while len(got) < count:
                    message = await consumer.getone()
                    got.append(Received(message.offset, message.timestamp, message.key, message.value))
                return got
            finally:
                await consumer.stop()

        return _run(run)

    def create_topic(self, bootstrap: str, topic: str, partitions: int) -> None:
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

    def delete_topic(self, bootstrap: str, topic: str) -> None:
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

    def topics(self, bootstrap: str) -> dict[str, int]:
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


def _run(work: Callable[[], Awaitable[T]]) -> T:
    assert threading.current_thread() is not threading.main_thread()

    async def bounded() -> T:
        async with asyncio.timeout(TIMEOUT_S):
            return await work()

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(bounded())
