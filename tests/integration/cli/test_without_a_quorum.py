"""Two of three voters are killed: operations without a controller.  Real processes, the real kctl, librdkafka."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from .conftest import Server, run_kctl, starter

VOTERS = (1, 2, 3)
BROKERS = (11, 12)


class Headless:
    """Three voters, of which two are dead, and two brokers with the topic `t`."""

    def __init__(self, voters: dict[int, Server], brokers: dict[int, Server]) -> None:
        self.controllers = ",".join(voter.fields["control"] for voter in voters.values())
        self.alive = voters[3].fields["control"]
        self.bootstrap = ",".join(broker.fields["kafka"] for broker in brokers.values())
        self.any_broker = brokers[11].fields["control"]

    def kctl(self, *arguments: str, stdin: str = "", controllers: str = "") -> Any:
        return run_kctl("--controllers", controllers or self.controllers, *arguments, stdin=stdin)


@pytest.fixture(scope="module")
def headless(
    tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory: Callable[[], int]
) -> Iterator[Headless]:
    root = tmp_path_factory.mktemp("headless")
    addresses = {voter: f"127.0.0.1:{unused_tcp_port_factory()}" for voter in VOTERS}
    founding = ",".join(f"{voter}@{address}" for voter, address in addresses.items())
    with starter() as start, ThreadPoolExecutor() as pool:

        def voter(node_id: int) -> Server:
            where = ("--data-dir", root / str(node_id), "--node-id", str(node_id), "--listen", addresses[node_id])
            return start("quorum-node", *where, "--initial-voters", founding, "--http", "off")

        def broker(node_id: int) -> Server:
            where = ("--data-dir", root / str(node_id), "--node-id", str(node_id), "--listen", "127.0.0.1:0")
            joining = ("--controllers", ",".join(addresses.values()))
            return start("broker", *where, "--control-listen", "127.0.0.1:0", *joining, "--http", "off")

        voters = dict(zip(VOTERS, pool.map(voter, VOTERS), strict=True))
        brokers = dict(zip(BROKERS, pool.map(broker, BROKERS), strict=True))
        for server in (*voters.values(), *brokers.values()):
            assert server.ready_line.startswith("ready "), server.errors()
        cluster = Headless(voters, brokers)
        made = cluster.kctl("topics", "create", "t", "--partitions", "2", "--replication-factor", "2", "--wait")
        assert made.returncode == 0, made.stderr
        first = cluster.kctl("produce", "t", stdin="before\n")
        assert first.returncode == 0, first.stderr
        for dead in (1, 2):
            voters[dead].process.kill()
            voters[dead].process.wait()
        yield cluster


def test_a_new_idempotent_producer_begins_without_a_controller(headless: Headless) -> None:
    told: list[Any] = []
    settings = {"bootstrap.servers": headless.bootstrap, "enable.idempotence": True}
    for number in range(3):  # an id of its own each
        producer = Producer(settings)
        producer.produce("t", f"new {number}", partition=0, on_delivery=lambda error, _: told.append(error))
        assert producer.flush(60) == 0
    assert told == [None, None, None]
    consumer = Consumer({"bootstrap.servers": headless.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, 0)])
    values: list[bytes | None] = []
    while values[-3:] != [b"new 0", b"new 1", b"new 2"]:
        message = consumer.poll(30)
        assert message is not None
        values.append(message.value())
    consumer.close()


@pytest.mark.parametrize("through", ["controllers", "alive", "any_broker"])
def test_kctl_produces_and_consumes_without_a_controller(headless: Headless, through: str) -> None:
    controllers = getattr(headless, through)
    written = headless.kctl("produce", "t", "--partition", "1", stdin=f"by {through}\n", controllers=controllers)
    assert (written.returncode, written.stderr) == (0, "1 record written to t\n")
    read = headless.kctl("consume", "t", "--from", "beginning", "--exit-at-end", controllers=controllers)
    assert read.returncode == 0, read.stderr
    assert f"by {through}" in read.stdout.splitlines()


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "list"),
        ("topics", "describe", "t"),
        ("configs", "get", "--topic", "t"),
        ("features", "describe"),
        ("preferred-controllers", "show"),
        ("reassign", "status"),
        ("reassign", "generate", "--topic", "t"),
        ("reassign", "verify", "--topic", "t", "--brokers", "11,12"),
        ("brokers", "list"),
        ("brokers", "describe", "11"),
        ("brokers", "moves"),
    ],
    ids=" ".join,
)
def test_reads_are_answered_without_a_controller(headless: Headless, arguments: tuple[str, ...]) -> None:
    done = headless.kctl(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr
    assert "no active controller confirmed it" in done.stderr
    document = json.loads(done.stdout)
    rows = document if isinstance(document, list) else [document]
    assert all(row["offset"] > 0 and row["unconfirmed"] is True for row in rows)


def test_an_error_about_a_missing_name_is_marked_as_unconfirmed(headless: Headless) -> None:
    for arguments in (("topics", "describe", "nope"), ("produce", "nope"), ("consume", "t", "--partition", "7")):
        done = headless.kctl(*arguments, "-o", "json")
        assert done.returncode == 3, done.stderr
        error = json.loads(done.stderr)
        assert error["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
        assert "no active controller confirmed it" in error["message"]


def test_a_change_without_a_controller_fails_as_retriable(headless: Headless) -> None:
    done = headless.kctl("topics", "create", "u", "--timeout", "2", "-o", "json")
    assert done.returncode == 4, done.stdout
    assert json.loads(done.stderr)["retriable"] is True
