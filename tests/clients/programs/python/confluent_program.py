"""confluent-kafka, the Python client on librdkafka."""

from __future__ import annotations

from typing import Any

import confluent_kafka
from confluent_kafka import (
    OFFSET_BEGINNING,
    AcknowledgeType,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

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
)


def produce(action: Action) -> None:
    producer = Producer(
        {
            "bootstrap.servers": action["bootstrap"],
            "compression.type": action["compression"],
            "enable.idempotence": action["idempotent"],
            "linger.ms": 50,
        }
    )
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        offsets.append(message.offset())

    for number in range(action["count"]):
        one = Contents(number, action["base_ms"])
        producer.produce(
            action["topic"],
            one.value,
            one.key,
            partition=0,
            timestamp=one.timestamp,
            headers=list(one.headers.items()),
            on_delivery=delivered,
        )
    assert producer.flush(TIMEOUT_S) == 0
    report("produced", offsets=offsets, fields=["key", "value", "timestamp", "headers"])


def _text(value: bytes | str | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _headers(headers: Any) -> dict[str, str | None]:
    return {name: _text(value) for name, value in headers or ()}


def consume(action: Action) -> None:
    consumer = Consumer({"bootstrap.servers": action["bootstrap"], "group.id": "unused", "enable.auto.commit": False})
    where = TopicPartition(action["topic"], 0, OFFSET_BEGINNING)
    if action["from"] == "end":
        where.offset = consumer.get_watermark_offsets(TopicPartition(action["topic"], 0), timeout=TIMEOUT_S)[1]
    elif action["from"] == "timestamp":
        asked = TopicPartition(action["topic"], 0, action["timestamp"])
        where.offset = consumer.offsets_for_times([asked], timeout=TIMEOUT_S)[0].offset
    consumer.assign([where])
    report("positioned")
    for message in consumer.consume(action["count"], TIMEOUT_S):
        if (error := message.error()) is not None:
            raise KafkaException(error)
        report(
            "record",
            offset=message.offset(),
            timestamp=message.timestamp()[1],
            key=_text(message.key()),
            value=_text(message.value()),
            headers=_headers(message.headers()),
        )
    consumer.close()


def member(action: Action) -> None:
    config: dict[str, Any] = {
        "bootstrap.servers": action["bootstrap"],
        "group.id": action["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    if action["strategy"] == "consumer":
        config["group.protocol"] = "consumer"
    else:
        config |= {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
        is_cooperative = action["strategy"] == "cooperative"
        config["partition.assignment.strategy"] = "cooperative-sticky" if is_cooperative else "range"
    if action["instance"]:
        config["group.instance.id"] = action["instance"]
    consumer = Consumer(config)
    consumer.subscribe([action["topic"]])
    standard_input, partitions = Input(), Partitions()
    while not standard_input.has_ended:
        messages = consumer.consume(100, POLL_S)
        for message in messages:
            if (error := message.error()) is not None:
                if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue  # not every broker has learnt of the topic
                raise KafkaException(error)
            report("record", partition=message.partition(), offset=message.offset(), value=_text(message.value()))
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as failure:
                if failure.args[0].code() not in (KafkaError._NO_OFFSET, KafkaError.REBALANCE_IN_PROGRESS):
                    raise
        partitions.now([each.partition for each in consumer.assignment()])
    consumer.close()
    report("closed")


def admin(action: Action) -> None:
    client = AdminClient({"bootstrap.servers": action["bootstrap"]})
    topic = action["topic"]

    def first(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(TIMEOUT_S)

    def saw(aspect: str, value: Any) -> None:
        report("saw", aspect=aspect, value=value)

    def partition_count() -> int:
        return len(client.list_topics(topic, TIMEOUT_S).topics[topic].partitions)

    def retention_ms() -> str:
        described = first(client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
        return str(described["retention.ms"].value)

    saw("brokers", len(client.describe_cluster().result(TIMEOUT_S).nodes))
    new = NewTopic(topic, 3, 1, config={"retention.ms": "60000000"})
    first(client.create_topics([new]))
    try:
        first(client.create_topics([new]))
    except KafkaException as error:
        saw("duplicate", error.args[0].name())
    saw("partitions", settled(partition_count, 3))
    saw("config", settled(retention_ms, "60000000"))
    entry = ConfigEntry("retention.ms", "70000000", incremental_operation=AlterConfigOpType.SET)
    first(client.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])]))
    saw("altered config", settled(retention_ms, "70000000"))
    first(client.create_partitions([NewPartitions(topic, 5)]))
    saw("more partitions", settled(partition_count, 5))
    where = TopicPartition(action["data"], 0)
    specs: Any = (OffsetSpec.earliest(), OffsetSpec.latest())  # type: ignore[no-untyped-call]  # they have no types
    ends = [first(client.list_offsets({where: spec})) for spec in specs]
    saw("offsets", [end.offset for end in ends])
    saw("deleted records", first(client.delete_records([TopicPartition(action["data"], 0, 4)])).low_watermark)
    group = action["group"]
    groups = client.list_consumer_groups().result(TIMEOUT_S)
    saw("group listed", any(each.group_id == group for each in groups.valid))
    described = first(client.describe_consumer_groups([group]))
    saw("group state", "Empty" if described.state is ConsumerGroupState.EMPTY else str(described.state))
    (committed,) = first(
        client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [where])])
    ).topic_partitions
    saw("group offset", committed.offset)
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(action["data"], 0, 5)])
    first(client.alter_consumer_group_offsets([moved]))
    (committed,) = first(
        client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [where])])
    ).topic_partitions
    saw("altered group offset", committed.offset)
    first(client.delete_consumer_groups([group]))
    groups = client.list_consumer_groups().result(TIMEOUT_S)
    saw("group deleted", all(each.group_id != group for each in groups.valid))
    first(client.delete_topics([topic]))
    saw("topic deleted", True)


def transact(action: Action) -> None:
    producer = Producer({"bootstrap.servers": action["bootstrap"], "transactional.id": action["id"]})
    producer.init_transactions(TIMEOUT_S)
    for word in ("committed", "aborted", "last"):
        producer.begin_transaction()
        for number in range(action["count"]):
            producer.produce(action["topic"], f"{word}-{number}", partition=0)
        if word == "aborted":
            assert producer.flush(TIMEOUT_S) == 0  # so that the log has records to abort
            producer.abort_transaction(TIMEOUT_S)
            continue
        if word == "last":
            consumer = Consumer({"bootstrap.servers": action["bootstrap"], "group.id": action["group"]})
            position = TopicPartition(action["topic"], 0, action["count"])
            producer.send_offsets_to_transaction([position], consumer.consumer_group_metadata(), TIMEOUT_S)
            consumer.close()
        producer.commit_transaction(TIMEOUT_S)
    report("done")


def share(action: Action) -> None:
    """Release each record whose value begins with "retry" at its first delivery, and reject those with "bad"."""
    if "letters" in action:
        _prepare_letters(action)
    config = {
        "bootstrap.servers": action["bootstrap"],
        "group.id": action["group"],
        "share.acknowledgement.mode": "explicit",
    }
    standard_input = Input()
    consumer = ShareConsumer(config)
    consumer.subscribe([action["topic"]])
    while not standard_input.has_ended:
        messages = consumer.poll(POLL_S)
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            value, deliveries = str(_text(message.value())), message.delivery_count() or 0
            report("record", offset=message.offset(), value=value, deliveries=deliveries)
            if action["mode"] == "work":
                consumer.acknowledge(message, _verdict(value, deliveries))
        if messages and action["mode"] == "hold":
            standard_input.wait()
        elif messages:
            for partition, failure in consumer.commit_sync(TIMEOUT_S).items():
                report("committed", partition=partition.partition, error=str(failure or ""))
    consumer.close()
    report("closed")


def _verdict(value: str, deliveries: int) -> AcknowledgeType:
    if value.startswith("retry") and deliveries == 1:
        return AcknowledgeType.RELEASE
    return AcknowledgeType.REJECT if value.startswith("bad") else AcknowledgeType.ACCEPT


def _prepare_letters(action: Action) -> None:
    """Give a share group a dead-letter topic, and let it begin with the oldest records."""
    admin = AdminClient({"bootstrap.servers": action["bootstrap"]})
    letters = NewTopic(action["letters"], 1, config={"errors.deadletterqueue.group.enable": "true"})
    for created in admin.create_topics([letters]).values():
        created.result(TIMEOUT_S)
    wanted = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": action["letters"],
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in wanted.items()]
    group = ConfigResource(ResourceType.GROUP, action["group"], incremental_configs=changes)
    for altered in admin.incremental_alter_configs([group]).values():
        altered.result(TIMEOUT_S)


def hold(action: Action) -> None:
    """Keep a transaction with one record open until the end of the input."""
    producer = Producer(
        {
            "bootstrap.servers": action["bootstrap"],
            "transactional.id": action["id"],
            "transaction.timeout.ms": action["timeout_ms"],
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(action["topic"], action["value"], partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    report("open")
    Input().wait()


if __name__ == "__main__":
    name = f"{confluent_kafka.__version__} (librdkafka {confluent_kafka.libversion()[0]})"
    run(
        name,
        {
            "produce": produce,
            "consume": consume,
            "member": member,
            "admin": admin,
            "transact": transact,
            "hold": hold,
            "share": share,
        },
    )
