"""The clusters that the programs run against: quorumlog, or Apache Kafka from its jars."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from quorumlog.kctl import dev_cluster
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


class Server:
    """A server process.  Its output goes to `home`/log.  `home` is created by `start`."""

    def __init__(self, command: list[str], home: Path) -> None:
        self._command = command
        self._home = home
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it unless it runs."""
        if self._process is None:
            self._home.mkdir(exist_ok=True)
            with (self._home / "log").open("a") as log:
                environment = dev_cluster.environment()
                self._process = subprocess.Popen(self._command, cwd=self._home, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """End it at once, as kill -9 does, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@dataclass(frozen=True)
class Peer:
    """A cluster that serves.

    controllers: bootstrap controllers for Kafka's tools; None if it has no such listener.
    newcomer: starts a controller with an empty disk and the id NEWCOMER_ID, which observes the quorum until the block
    ends.  Its value is the address for other controllers.  None if the cluster has a single process.
    servers: the processes of its nodes, by id.  A row may kill a broker and start it again.  Empty if the cluster has a
    single process.
    spare: the id of a broker with empty disks that runs only if a row starts it; None if there is no such broker.
    kctl: runs quorumlog's own tool and returns its output.  None if the cluster is not quorumlog's.
    """

    name: str
    bootstrap: str
    brokers: tuple[int, ...]
    controllers: str | None = None
    newcomer: Callable[[], AbstractContextManager[str]] | None = None
    servers: Mapping[int, Server] = field(default_factory=dict)
    spare: int | None = None
    kctl: Callable[..., str] | None = None


@contextmanager
def quorumlog_cluster() -> Iterator[Peer]:
    """3 voters, 3 brokers and the spare broker, each a process of its own.  A broker has two data directories."""
    with tempfile.TemporaryDirectory(prefix="clients-") as folder, ExitStack() as stack:
        home = Path(folder)
        cluster = dev_cluster.plan(home, VOTERS, BROKERS + 1, _first_port(), made_dir=False)
        for node in cluster.nodes:
            if node.role == dev_cluster.BROKER:
                _adapt(node)
        servers = {node.id: Server(node.command, home / node.name) for node in cluster.nodes}
        spare = cluster.nodes.pop()
        for node in cluster.nodes:
            stack.enter_context(_running(servers[node.id]))
        stack.callback(servers[spare.id].kill)
        asyncio.run(_wait_until_ready(cluster.nodes))
        kctl = partial(_kctl, cluster.controllers)
        _configure(kctl)
        brokers = tuple(node.id for node in cluster.nodes if node.role == dev_cluster.BROKER)
        newcomer = partial(_quorumlog_newcomer, home / "newcomer", cluster.controllers)
        yield Peer("quorumlog", cluster.bootstrap, brokers, None, newcomer, servers, spare.id, kctl)


def _adapt(broker: dev_cluster.Node) -> None:
    """Give a broker that was not started a second data directory, and let it leave hanging transactions to the rows."""
    place = broker.command.index("--data-dir") + 1
    broker.command[place] = f"{broker.data_dir},{broker.data_dir}-2"
    broker.command[broker.command.index("broker.cli")] = "tests.patient_broker"


async def _wait_until_ready(nodes: Iterable[dev_cluster.Node]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    for node in nodes:
        while True:
            is_ready, why = await dev_cluster.readiness(node)
            if is_ready:
                break
            if time.monotonic() > deadline:
                raise RowFailed(f"{node.name} was not ready within {START_TIMEOUT_S:g} s: {why}")
            await asyncio.sleep(0.2)  # another process, which sends no event: poll


@contextmanager
def _quorumlog_newcomer(home: Path, controllers: str) -> Iterator[str]:
    (port,) = _free_ports(1)
    address = f"127.0.0.1:{port}"
    places = ("--data-dir", str(home / "data"), "--listen", address, "--http", "off")
    identity = ("--node-id", str(NEWCOMER_ID), "--join", controllers)
    command = [sys.executable, "-P", "-m", "quorumlog_server.quorum_node", "run", *identity, *places]
    with _running(Server(command, home)):
        yield address


@contextmanager
def _running(server: Server) -> Iterator[None]:
    """Run a server until the block ends.  The block may kill and start it."""
    server.start()
    try:
        yield
    finally:
        server.kill()


def _kctl(controllers: str, *arguments: str) -> str:
    """
    Raises:
        RowFailed: the command failed.
    """
    environment = {**os.environ, "KCTL_CONTROLLERS": controllers}
    done = subprocess.run([*KCTL, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RowFailed(f"kctl {arguments[0]}: exit status {done.returncode}: {done.stderr}")
    return done.stdout


def _configure(kctl: Callable[..., str]) -> None:
    """Make the cluster quick, and let it use all features of this release."""
    kctl("configs", "set", "--cluster", *GROUP_SETTINGS)
    kctl("features", "upgrade", "--wait")


@contextmanager
def quorumlog_standalone() -> Iterator[Peer]:
    """One process."""
    with standalone() as broker:
        kctl = partial(_kctl, broker.control)
        _configure(kctl)
        yield Peer("quorumlog", broker.bootstrap, (1,), kctl=kctl)


@contextmanager
def kafka_cluster() -> Iterator[Peer]:
    """3 processes, each controller and broker, and the spare broker, with two data directories each.

    Raises:
        Skipped: its jars are missing.
    """
    ports = iter(_free_ports(2 * BROKERS + 1))
    controllers, clients = ([f"127.0.0.1:{next(ports)}" for _ in range(BROKERS)] for _ in range(2))
    voters = ",".join(f"{number}@{address}:{_random_id()}" for number, address in enumerate(controllers, 1))
    cluster_id, quorum = _random_id(), {"controller.quorum.bootstrap.servers": ",".join(controllers)}
    brokers, spare = tuple(range(1, BROKERS + 1)), BROKERS + 1
    parent = tempfile.TemporaryDirectory(prefix="clients-kafka-", ignore_cleanup_errors=True)
    with parent as folder, ExitStack() as stack:
        servers = {}
        for number, controller, address in zip(brokers, controllers, clients, strict=True):
            home = Path(folder) / str(number)
            settings: dict[str, object] = {
                "process.roles": "broker,controller",
                "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
                **_of_broker(number, home),
                **quorum,
            }
            servers[number] = _kafka_server(home, settings, cluster_id, "--initial-controllers", voters)
            stack.enter_context(_running(servers[number]))
        home = Path(folder) / str(spare)
        settings = {
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://127.0.0.1:{next(ports)}",
            **_of_broker(spare, home),
            **quorum,
        }
        servers[spare] = _kafka_server(home, settings, cluster_id)
        stack.callback(servers[spare].kill)
        bootstrap = ",".join(clients)
        _wait_until_served(bootstrap, BROKERS)
        newcomer = partial(_kafka_newcomer, Path(folder) / "newcomer", quorum, cluster_id)
        yield Peer(f"kafka {JARS.version}", bootstrap, brokers, controllers[0], newcomer, servers, spare)


def _of_broker(number: int, home: Path) -> dict[str, object]:
    return {"node.id": number, "log.dirs": f"{home / 'data'},{home / 'data-2'}"}


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
    }
    with _running(_kafka_server(home, settings, cluster_id, "--no-initial-controllers")):
        yield address


def _kafka_server(home: Path, settings: Mapping[str, object], cluster_id: str, *voters: str) -> Server:
    """Format empty disks, and return their server, which does not run.  voters: options that name the first voters."""
    home.mkdir()
    file = home / "server.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in {**settings, **KAFKA_SETTINGS}.items()))
    tool = [*java(), "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(file), *voters]
    with (home / "log").open("w") as log:
        subprocess.run(tool, check=True, stdout=log, stderr=log, timeout=START_TIMEOUT_S)
    return Server([*java(), "-Xmx384m", "kafka.Kafka", str(file)], home)


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


def _first_port() -> int:
    """Return a port from which a cluster may search for free ones.

    The system gives no port below 32768 to outgoing connections.  One of them could otherwise take the port of a server
    while that is killed.
    """
    return random.randrange(10_000, 30_000)


def _free_ports(wanted: int) -> list[int]:
    ports = dev_cluster.free_ports(_first_port())
    return [next(ports) for _ in range(wanted)]


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
