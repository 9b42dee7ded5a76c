"""A disk that fills up under a broker: a named end, nothing acknowledged is lost, a clean start once there is room."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.small_disk import SIZE_MIB, mount
from tests.integration.small_disk import small_disk as small_disk

from .conftest import END_TIMEOUT_S, Server, StartServer

ANYWHERE = ("--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off")
VALUE_BYTES = 4000
RECORDS = 2 * SIZE_MIB * (1 << 20) // VALUE_BYTES


def fill(server: Server) -> dict[int, bytes]:
    """Produce twice what the disk holds; what was acknowledged, by offset."""
    admin = AdminClient({"bootstrap.servers": server.fields["kafka"]})
    admin.create_topics([NewTopic("t", 1, 1)], request_timeout=20)["t"].result()
    acknowledged: dict[int, bytes] = {}
    producer = Producer(
        {"bootstrap.servers": server.fields["kafka"], "message.timeout.ms": 1000, "log_level": 0, "linger.ms": 5}
    )
    for number in range(RECORDS):
        value = b"%d" % number + b"x" * VALUE_BYTES
        producer.produce(
            "t", value, on_delivery=lambda error, sent: error or acknowledged.update({sent.offset(): sent.value()})
        )
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
        found.update({one.offset(): one.value() for one in messages if one.error() is None})
    consumer.close()
    return found


def test_a_full_disk_is_7_and_loses_nothing(start_server: StartServer, small_disk: Path) -> None:
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
