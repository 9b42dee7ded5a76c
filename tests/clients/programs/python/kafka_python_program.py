"""kafka-python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kafka
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import CommitFailedError, RebalanceInProgressError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from tests.clients.programs.python.common import (
    HEARTBEAT_MS,
    POLL_S,
    SESSION_MS,
    TIMEOUT_S,
    Action,
    Contents,
    Input,
    Partitions,
    report,
    run,
    settled,
    unsupported,
)


def produce(action: Action) -> None:
    producer = KafkaProducer(
        bootstrap_servers=action["bootstrap"],
        compression_type=None if action["compression"] == "none" else action["compression"],
        enable_idempotence=action["idempotent"],
        linger_ms=50,
    )
    futures = []
    for number in range(action["count"]):
        one = Contents(number, action["base_ms"])
        futures.append(
            producer.send(
                action["topic"],
                one.value.encode(),
                one.key.encode(),
                partition=0,
                timestamp_ms=one.timestamp,
                headers=[(name, value.encode()) for name, value in one.headers.items()],
            )
        )
    producer.flush(TIMEOUT_S)
    offsets = [future.get(TIMEOUT_S).offset for future in futures]
    producer.close(TIMEOUT_S)
    report("produced", offsets=offsets, fields=["key", "value", "timestamp", "headers"])


def consume(action: Action) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=action["bootstrap"], group_id=None, consumer_timeout_ms=int(TIMEOUT_S * 1000)
    )
    where = TopicPartition(action["topic"], 0)
    consumer.assign([where])
    if action["from"] == "beginning":
        consumer.seek_to_beginning(where)
    elif action["from"] == "end":
        consumer.seek_to_end(where)
    else:
        consumer.seek(where, consumer.offsets_for_times({where: action["timestamp"]})[where].offset)
    consumer.position(where)
    report("positioned")
    for _ in range(action["count"]):
        message = next(consumer)
        report(
            "record",
            offset=message.offset,
            timestamp=message.timestamp,
            key=message.key.decode(),
            value=message.value.decode(),
            headers={name: value.decode() for name, value in message.headers},
        )
    consumer.close()


def member(action: Action) -> None:
    if action["strategy"] == "consumer":
        unsupported("kafka-python has only the classic protocol of groups")
    is_cooperative = action["strategy"] == "cooperative"
    consumer = KafkaConsumer(
        action["topic"],
        bootstrap_servers=action["bootstrap"],
        group_id=action["group"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
        group_instance_id=action["instance"],
        partition_assignment_strategy=[
            CooperativeStickyAssignor if is_cooperative else RangePartitionAssignor,
        ],
    )
    standard_input, partitions = Input(), Partitions()
    while not standard_input.has_ended:
        batches = consumer.poll(timeout_ms=int(POLL_S * 1000))
        for batch in batches.values():
            for message in batch:
                report("record", partition=message.partition, offset=message.offset, value=message.value.decode())
        if batches:
            try:
                consumer.commit()
            except (CommitFailedError, RebalanceInProgressError) as error:
                report("note", text=f"commit: {error!r}")
        partitions.now([each.partition for each in consumer.assignment()])
    consumer.close()
    report("closed")


def admin(action: Action) -> None:
    client = KafkaAdminClient(bootstrap_servers=action["bootstrap"])
    topic, group = action["topic"], action["group"]

    def saw(aspect: str, value: Any) -> None:
        report("saw", aspect=aspect, value=value)

    def partition_count() -> int:
        return len(client.describe_topics([topic])[0]["partitions"])

    def retention_ms() -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = client.describe_configs([resource], config_filter="all")["topic"][topic]["retention.ms"]
        return str(found["value"])

    saw("brokers", len(client.describe_cluster()["brokers"]))
    new = NewTopic(topic, 3, 1, topic_configs={"retention.ms": "60000000"})
    client.create_topics([new])
    try:
        client.create_topics([new])
    except TopicAlreadyExistsError:
        saw("duplicate", "TOPIC_ALREADY_EXISTS")
    saw("partitions", settled(partition_count, 3))
    saw("config", settled(retention_ms, "60000000"))
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "70000000"})])
    saw("altered config", settled(retention_ms, "70000000"))
    client.create_partitions({topic: 5})
    saw("more partitions", settled(partition_count, 5))
    where = TopicPartition(action["data"], 0)
    specs = (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    saw("offsets", [client.list_partition_offsets({where: spec})[where].offset for spec in specs])
    (deleted,) = client.delete_records({where: 4}).values()
    saw("deleted records", deleted["low_watermark"])
    saw("group listed", any(each["group_id"] == group for each in client.list_groups()))
    saw("group state", client.describe_groups([group])[group]["group_state"])
    saw("group offset", client.list_group_offsets(group)[group][where].offset)
    client.alter_group_offsets(group, {where: OffsetAndMetadata(5, "", -1)})
    saw("altered group offset", client.list_group_offsets(group)[group][where].offset)
    client.delete_groups([group])
    saw("group deleted", all(each["group_id"] != group for each in client.list_groups()))
    client.delete_topics([topic])
    saw("topic deleted", True)
    client.close()


def transact(action: Action) -> None:
    producer = KafkaProducer(bootstrap_servers=action["bootstrap"], transactional_id=action["id"])
    producer.init_transactions()
    for word in ("committed", "aborted", "last"):
        producer.begin_transaction()
        for number in range(action["count"]):
            producer.send(action["topic"], f"{word}-{number}".encode(), partition=0)
        if word == "aborted":
            producer.flush(TIMEOUT_S)  # so that the log has records to abort
            producer.abort_transaction()
            continue
        if word == "last":
            position = {TopicPartition(action["topic"], 0): OffsetAndMetadata(action["count"], "", -1)}
            consumer = KafkaConsumer(bootstrap_servers=action["bootstrap"], group_id=action["group"])
            producer.send_offsets_to_transaction(position, consumer.group_metadata())
            consumer.close()
        producer.commit_transaction()
    producer.close(TIMEOUT_S)
    report("done")


if __name__ == "__main__":
    actions: dict[str, Callable[[Action], None]] = {
        "produce": produce,
        "consume": consume,
        "member": member,
        "admin": admin,
        "transact": transact,
    }
    run(kafka.__version__, actions)
