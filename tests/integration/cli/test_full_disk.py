"""A disk that fills up under a broker: exit status 7, no acknowledged record lost, a clean start with more space."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.small_disk import SIZE_MIB, mount
from tests.integration.small_disk import small_disk as small_disk

from .conftest import END_TIMEOUT_S, Server, StartServer

ANYWHERE = ("--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off")
VALUE_BYTES = 4000
RECORDS = 2 * SIZE_MIB * (1 << 20) // VALUE_BYTES


def offset_and_value(message: Message[bytes, bytes]) -> tuple[int, bytes]:
    offset, value = message.offset(), message.value()
    assert offset is not None
    assert value is not None
    return offset, value


def fill(server: Server) -> dict[int, bytes]:
    """Produce twice the capacity of the disk, and return the acknowledged records by offset."""
    admin = AdminClient({"bootstrap.servers": server.fields["kafka"]})
    admin.create_topics([NewTopic("t", 1, 1)], request_timeout=20)["t"].result()
    acknowledged: dict[int, bytes] = {}
    producer = Producer(
        {"bootstrap.servers": server.fields["kafka"], "message.timeout.ms": 1000, "log_level": 0, "linger.ms": 5}
    )

    def on_delivery(error: KafkaError | None, sent: Message[bytes, bytes]) -> None:
        if error is None:
            acknowledged.update([offset_and_value(sent)])

    for number in range(RECORDS):
        value = b"%d" % number + b"x" * VALUE_BYTES
        producer.produce("t", value, on_delivery=on_delivery)
        if number % 100 == 0 and (producer.flush(5) or server.process.poll() is not None):
            break
    producer.flush(20)
    return acknowledged


def read(server: Server, count: int) -> dict[int, bytes]:
    consumer = Consumer(
        {"bootstrap.servers": server.fields["kafka"], "group.id": "g", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: dict[int, bytes] = {}
    while messages := consumer.consume(min(500, max(1, count - len(found))), timeout=5 if len(found) < count else 0.1):
        found.update(offset_and_value(one) for one in messages if one.error() is None)
    consumer.close()
    return found


def test_a_broker_with_a_full_disk_exits_with_7_and_loses_no_acknowledged_record(
    start_server: StartServer, small_disk: Path
) -> None:
    server = start_server("broker", "--standalone", "--data-dir", small_disk / "data", *ANYWHERE)
    acknowledged = fill(server)
    assert 0 < len(acknowledged) < RECORDS
    assert server.process.wait(END_TIMEOUT_S) == 7
    last = server.errors().rstrip().splitlines()[-1]
    assert "full" in last or "No space left" in last, last
    assert mount("-o", f"remount,size={4 * SIZE_MIB}m", str(small_disk))
    server = start_server("broker", "--standalone", "--data-dir", small_disk / "data", *ANYWHERE)
    found = read(server, len(acknowledged))
    assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
    assert server.stop() == 0
