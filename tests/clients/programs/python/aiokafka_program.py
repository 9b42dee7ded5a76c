"""aiokafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import CommitFailedError, for_code

from tests.clients.programs.python.common import (
    HEARTBEAT_MS,
    POLL_S,
    SESSION_MS,
    SETTLE_S,
    TIMEOUT_S,
    Action,
    Contents,
    Input,
    Partitions,
    report,
    run,
    unsupported,
)

T = TypeVar("T")


async def produce(action: Action) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=action["bootstrap"],
        compression_type=None if action["compression"] == "none" else action["compression"],
        enable_idempotence=action["idempotent"],
        linger_ms=50,
    )
    await producer.start()
    futures = []
    for number in range(action["count"]):
        one = Contents(number, action["base_ms"])
        futures.append(
            await producer.send(
                action["topic"],
                one.value.encode(),
                one.key.encode(),
                partition=0,
                timestamp_ms=one.timestamp,
                headers=[(name, value.encode()) for name, value in one.headers.items()],
            )
        )
    offsets = [(await future).offset for future in futures]
    await producer.stop()
    report("produced", offsets=offsets, fields=["key", "value", "timestamp", "headers"])


async def consume(action: Action) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=action["bootstrap"], group_id=None)
    await consumer.start()
    where = TopicPartition(action["topic"], 0)
    consumer.assign([where])
    if action["from"] == "beginning":
        await consumer.seek_to_beginning(where)
    elif action["from"] == "end":
        await consumer.seek_to_end(where)
    else:
        consumer.seek(where, (await consumer.offsets_for_times({where: action["timestamp"]}))[where].offset)
    await consumer.position(where)
    report("positioned")
    async with asyncio.timeout(TIMEOUT_S):
        for _ in range(action["count"]):
            message = await consumer.getone()
            report(
                "record",
                offset=message.offset,
                timestamp=message.timestamp,
                key=message.key.decode(),
                value=message.value.decode(),
                headers={name: value.decode() for name, value in message.headers},
            )
    await consumer.stop()


async def member(action: Action) -> None:
    if action["strategy"] == "consumer":
        unsupported("aiokafka has only the classic protocol of groups")
    if action["strategy"] == "cooperative":
        unsupported("aiokafka has no cooperative assignor")
    consumer = AIOKafkaConsumer(
        action["topic"],
        bootstrap_servers=action["bootstrap"],
        group_id=action["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        group_instance_id=action["instance"],
        partition_assignment_strategy=[RangePartitionAssignor],
    )
    await consumer.start()
    standard_input, partitions = Input(), Partitions()
    while not standard_input.has_ended:
        batches = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
        for batch in batches.values():
            for message in batch:
                report("record", partition=message.partition, offset=message.offset, value=message.value.decode())
        if batches:
            try:
                await consumer.commit()
            except CommitFailedError as error:
                report("note", text=f"commit: {error!r}")
        partitions.now([each.partition for each in consumer.assignment()])
    await consumer.stop()
    report("closed")


async def settled(look: Callable[[], Awaitable[T]], wanted: T) -> T:
    """As in common.py."""
    deadline = time.monotonic() + SETTLE_S
    while (found := await look()) != wanted and time.monotonic() < deadline:  # noqa: ASYNC110  # it sends no event
        await asyncio.sleep(POLL_S)
    return found


async def admin(action: Action) -> None:
    client = AIOKafkaAdminClient(bootstrap_servers=action["bootstrap"])
    await client.start()
    topic, group = action["topic"], action["group"]

    def saw(aspect: str, value: Any) -> None:
        report("saw", aspect=aspect, value=value)

    def check(code: int) -> None:
        if code:
            raise for_code(code)

    async def partition_count() -> int:
        return len((await client.describe_topics([topic]))[0]["partitions"])

    async def retention_ms() -> str:
        (answer,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        (resource,) = answer.resources
        if resource[0]:  # not every broker has learnt of the topic
            return f"error {resource[0]}"
        return next(str(entry[1]) for entry in resource[4] if entry[0] == "retention.ms")

    saw("brokers", len((await client.describe_cluster())["brokers"]))
    new = NewTopic(topic, 3, 1, topic_configs={"retention.ms": "60000000"})
    check((await client.create_topics([new])).topic_errors[0][1])
    code = (await client.create_topics([new])).topic_errors[0][1]
    saw("duplicate", {36: "TOPIC_ALREADY_EXISTS"}.get(code, code))
    saw("partitions", await settled(partition_count, 3))
    saw("config", await settled(retention_ms, "60000000"))
    altered = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "70000000"})
    (answer,) = await client.alter_configs([altered])
    check(answer.resources[0][0])
    saw("altered config", await settled(retention_ms, "70000000"))
    check((await client.create_partitions({topic: NewPartitions(5)})).topic_errors[0][1])
    saw("more partitions", await settled(partition_count, 5))
    where = TopicPartition(action["data"], 0)
    (low_watermark,) = (await client.delete_records({where: RecordsToDelete(4)})).values()
    saw("deleted records", low_watermark)
    saw("group listed", any(each[0] == group for each in await client.list_consumer_groups()))
    (described,) = await client.describe_consumer_groups([group])
    saw("group state", described.groups[0][2])
    saw("group offset", (await client.list_consumer_group_offsets(group))[where].offset)
    check((await client.delete_topics([topic])).topic_error_codes[0][1])
    saw("topic deleted", True)
    await client.close()


async def transact(action: Action) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=action["bootstrap"], transactional_id=action["id"])
    await producer.start()
    for word in ("committed", "aborted", "last"):
        await producer.begin_transaction()
        for number in range(action["count"]):
            await producer.send(action["topic"], f"{word}-{number}".encode(), partition=0)
        if word == "aborted":
            await producer.flush()  # so that the log has records to abort
            await producer.abort_transaction()
            continue
        if word == "last":
            position = {TopicPartition(action["topic"], 0): action["count"]}
            await producer.send_offsets_to_transaction(position, action["group"])
        await producer.commit_transaction()
    await producer.stop()
    report("done")


def _blocking(work: Callable[[Action], Awaitable[None]]) -> Callable[[Action], None]:
    async def whole(action: Action) -> None:
        await work(action)

    return lambda action: asyncio.run(whole(action))


if __name__ == "__main__":
    actions = {"produce": produce, "consume": consume, "member": member, "admin": admin, "transact": transact}
    run(aiokafka.__version__, {name: _blocking(work) for name, work in actions.items()})
