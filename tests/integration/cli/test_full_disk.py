"""A disk that fills up: the last one ends its broker by name, one of several takes its own replicas only; nothing
acknowledged is lost, and a start is clean once there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from .conftest import END_TIMEOUT_S, Server, StartServer
from .test_elections import Brokers

ANYWHERE = ("--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off")
SIZE_MIB = 12
VALUE_BYTES = 4000
RECORDS = 2 * SIZE_MIB * (1 << 20) // VALUE_BYTES


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of `SIZE_MIB`."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0 or not mount("-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)):
        pytest.skip("only root may mount the small file system that this test fills")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


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


def test_one_full_directory_of_several_takes_its_own_replicas_and_others_lead_them(
    start_server: StartServer, small_disk: Path, tmp_path: Path
) -> None:
    """The first directory has the quorum's store, too, so the second is the one that fills up."""
    brokers = Brokers(start_server, tmp_path, {2: (tmp_path / "large", small_disk / "data")})
    brokers.ok("topics", "create", "t", "--assignment", "2:3,2:3,2:3,2:3", "--wait")
    acknowledged: dict[tuple[int, int], bytes] = {}
    bootstrap = ",".join(server.fields["kafka"] for server in brokers.servers.values())
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 5, "enable.idempotence": True})
    for number in range(2 * RECORDS):
        value = b"%d" % number + b"x" * VALUE_BYTES
        producer.produce(
            "t",
            value,
            partition=number % 4,
            on_delivery=lambda error, sent: (
                error or acknowledged.update({(sent.partition(), sent.offset()): sent.value()})
            ),
        )
        if number % 100 == 0:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0
    assert len(acknowledged) == 2 * RECORDS, "every write found a leader in the end"

    brokers.until(lambda: {brokers.partition("t", index)[0] for index in range(4)} == {2, 3}, "3 has taken over")
    gone = [index for index in range(4) if brokers.partition("t", index)[0] == 3]
    for index in range(4):
        assert brokers.partition("t", index)[:2] == ((3, [3]) if index in gone else (2, [2, 3]))
    assert brokers.state(2) == "unfenced"
    change = brokers.ok("explain", f"t-{gone[0]}")["chain"][-1]
    assert change["reason"] == "directory_offline"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0})
    consumer.assign([TopicPartition("t", index, 0) for index in range(4)])
    found: dict[tuple[int, int], bytes] = {}
    while len(found) < len(acknowledged) and (messages := consumer.consume(500, timeout=20)):
        found.update({(one.partition(), one.offset()): one.value() for one in messages if one.error() is None})
    consumer.close()
    assert found == acknowledged
    assert brokers.servers[2].stop() == 0
