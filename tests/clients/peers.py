"""The clusters that the programs run against: quorumlog, or Apache Kafka from its jars."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quorumlog.kctl import dev_cluster
from quorumlog.kctl.dev import PORT_BASE
from quorumlog.testing import standalone
from tests.clients.catalog import JARS, java
from tests.clients.outcomes import RowFailed

START_TIMEOUT_S = 120.0
VOTERS = 3
BROKERS = 3
GROUP_SETTINGS = ("group.initial.rebalance.delay.ms=100", "auto.create.topics.enable=false")
KCTL = (sys.executable, "-m", "quorumlog.kctl.main")
KAFKA_SETTINGS = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 8,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.num.partitions": 8,
    "share.coordinator.state.topic.replication.factor": 3,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "log.segment.delete.delay.ms": 5000,
}
"""Not Kafka's defaults: replicas on all brokers, and short times of groups, as in quorumlog's cluster."""


NEWCOMER_ID = 77


@dataclass(frozen=True)
class Peer:
    """A cluster that serves.

    controllers: bootstrap controllers for Kafka's tools; None if it has no such listener.
    newcomer: starts a controller with an empty disk and the id NEWCOMER_ID, which observes the quorum until the block
    ends.  Its value is the address for other controllers.  None if the cluster has a single process.
    """

    name: str
    bootstrap: str
    brokers: tuple[int, ...]
    controllers: str | None = None
    newcomer: Callable[[], AbstractContextManager[str]] | None = None


@contextmanager
def quorumlog_cluster() -> Iterator[Peer]:
    """3 voters and 3 brokers, each a process of its own.  A broker has two data directories."""
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        home = Path(folder) / "cluster"
        home.mkdir()
        _plan(home)
        try:
            subprocess.run(
                [*KCTL, "dev", "up", "--dir", str(home), "--timeout", str(START_TIMEOUT_S)],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            cluster = json.loads((home / "cluster.json").read_text())
            _set({"KCTL_CONTROLLERS": cluster["controllers"]})
            brokers = tuple(node["id"] for node in cluster["nodes"] if node["role"] == "broker")
            newcomer = partial(_quorumlog_newcomer, Path(folder) / "newcomer", cluster["controllers"])
            yield Peer("quorumlog", cluster["bootstrap"], brokers, newcomer=newcomer)
        finally:
            subprocess.run([*KCTL, "dev", "down", "--dir", str(home)], check=True, capture_output=True)


def _plan(home: Path) -> None:
    """Describe the cluster that `kctl dev up` starts."""
    cluster = dev_cluster.plan(home, VOTERS, BROKERS, PORT_BASE, made_dir=True)
    for node in cluster.nodes:
        if node.role == dev_cluster.BROKER:
            place = node.command.index("--data-dir") + 1
            node.data_dir = node.command[place] = f"{node.data_dir},{node.data_dir}-2"
    cluster.save()


@contextmanager
def _quorumlog_newcomer(home: Path, controllers: str) -> Iterator[str]:
    home.mkdir()
    (port,) = _free_ports(1)
    address = f"127.0.0.1:{port}"
    places = ("--data-dir", str(home / "data"), "--listen", address, "--http", "off")
    identity = ("--node-id", str(NEWCOMER_ID), "--join", controllers)
    command = [sys.executable, "-m", "quorumlog_server.quorum_node", "run", *identity, *places]
    with _running(command, home):
        yield address


@contextmanager
def _running(command: list[str], home: Path) -> Iterator[None]:
    """Run a server until the block ends.  Its output goes to `home`/log."""
    with (home / "log").open("a") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _set(environment: dict[str, str]) -> None:
    """Make the cluster quick, and let it use all features of this release."""
    for arguments in (("configs", "set", "--cluster", *GROUP_SETTINGS), ("features", "upgrade", "--wait")):
        command = [*KCTL, *arguments]
        subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)


@contextmanager
def quorumlog_standalone() -> Iterator[Peer]:
    """One process."""
    with standalone() as broker:
        _set({"KCTL_CONTROLLERS": broker.control})
        yield Peer("quorumlog", broker.bootstrap, (1,))


@contextmanager
def kafka_cluster() -> Iterator[Peer]:
    """3 processes, each controller and broker, with two data directories.

    Raises:
        Skipped: its jars are missing.
    """
    ports = _free_ports(2 * BROKERS)
    controllers, clients = ([f"127.0.0.1:{port}" for port in half] for half in (ports[:BROKERS], ports[BROKERS:]))
    voters = ",".join(f"{number}@{address}:{_random_id()}" for number, address in enumerate(controllers, 1))
    cluster_id, quorum = _random_id(), {"controller.quorum.bootstrap.servers": ",".join(controllers)}
    with ExitStack() as stack:
        parent = tempfile.TemporaryDirectory(prefix="clients-kafka-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(parent))
        for number, (controller, address) in enumerate(zip(controllers, clients, strict=True), 1):
            home = folder / str(number)
            settings = {
                "process.roles": "broker,controller",
                "node.id": number,
                "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
                "log.dirs": f"{home / 'data'},{home / 'data-2'}",
                **quorum,
                **KAFKA_SETTINGS,
            }
            stack.enter_context(_kafka_node(home, settings, cluster_id, "--initial-controllers", voters))
        bootstrap = ",".join(clients)
        _wait_until_served(bootstrap, BROKERS)
        newcomer = partial(_kafka_newcomer, folder / "newcomer", quorum, cluster_id)
        yield Peer(f"kafka {JARS.version}", bootstrap, tuple(range(1, BROKERS + 1)), controllers[0], newcomer)


@contextmanager
def _kafka_newcomer(home: Path, quorum: Mapping[str, object], cluster_id: str) -> Iterator[str]:
    (port,) = _free_ports(1)
    address = f"127.0.0.1:{port}"
    settings = {
        "process.roles": "controller",
        "node.id": NEWCOMER_ID,
        "listeners": f"CONTROLLER://{address}",
        "log.dirs": home / "data",
        **quorum,
        **KAFKA_SETTINGS,
    }
    with _kafka_node(home, settings, cluster_id, "--no-initial-controllers"):
        yield address


@contextmanager
def _kafka_node(home: Path, settings: Mapping[str, object], cluster_id: str, *voters: str) -> Iterator[None]:
    """Format an empty disk and run a server until the block ends.  voters: options that name the first voters."""
    home.mkdir()
    file = home / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    tool = [*java(), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(file), *voters]
    with (home / "log").open("w") as log:
        subprocess.run(tool, check=True, stdout=log, stderr=log, timeout=START_TIMEOUT_S)
    with _running([*java(), "-Xmx384m", "kafka.Kafka", str(file)], home):
        yield


def _random_id() -> str:
    """Return the id of a cluster or a directory in Kafka's form.  A leading hyphen would begin an option."""
    return base64.urlsafe_b64encode(bytes([uuid.uuid4().bytes[0] & 0x7F]) + uuid.uuid4().bytes[1:]).decode().rstrip("=")


def _wait_until_served(bootstrap: str, brokers: int) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from tests.clients.records import SILENT

    deadline = time.monotonic() + START_TIMEOUT_S
    admin = AdminClient({"bootstrap.servers": bootstrap}, logger=SILENT)
    while True:
        try:
            if len(admin.list_topics(timeout=5).brokers) == brokers:
                return
        except KafkaException:
            pass
        if time.monotonic() > deadline:
            raise RowFailed(f"the cluster did not start within {START_TIMEOUT_S:g} s")
        time.sleep(0.2)  # another process, which sends no event: poll


def _free_ports(wanted: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(wanted)]
        return [each.getsockname()[1] for each in sockets]


def served_apis(bootstrap: str) -> dict[int, tuple[int, int]]:
    """Return the API keys that the first broker advertises, with their versions, by an ApiVersions of version 0."""
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    request = (18).to_bytes(2) + bytes(2) + bytes(4) + b"\xff\xff"  # the client id is null
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.settimeout(10)
        connection.sendall(len(request).to_bytes(4) + request)
        with connection.makefile("rb") as stream:
            body = stream.read(int.from_bytes(stream.read(4)))[4:]  # without the correlation id
    if error := int.from_bytes(body[:2]):
        raise RowFailed(f"ApiVersions was answered with error {error}")
    found = {}
    for index in range(int.from_bytes(body[2:6])):
        at = 6 + 6 * index
        key, low, high = (int.from_bytes(body[at + step : at + step + 2]) for step in (0, 2, 4))
        found[key] = (low, high)
    return found
