"""The clusters that the programs run against: quorumlog, or Apache Kafka from its jars."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Peer:
    """A cluster that serves.  controllers: bootstrap controllers for Kafka's tools; None if it has no such listener."""

    name: str
    bootstrap: str
    brokers: tuple[int, ...]
    controllers: str | None = None


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
            yield Peer("quorumlog", cluster["bootstrap"], brokers)
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
    command = java()
    ports = _free_ports(2 * BROKERS)
    voters = ",".join(f"{number + 1}@127.0.0.1:{ports[number]}" for number in range(BROKERS))
    cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    folder = Path(tempfile.mkdtemp(prefix="clients-kafka-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        for number in range(BROKERS):
            home = folder / str(number + 1)
            home.mkdir()
            settings = {
                "process.roles": "broker,controller",
                "node.id": number + 1,
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "listeners": f"PLAINTEXT://127.0.0.1:{ports[BROKERS + number]},CONTROLLER://127.0.0.1:{ports[number]}",
                "log.dirs": f"{home / 'data'},{home / 'data-2'}",
                **KAFKA_SETTINGS,
            }
            file = home / "server.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            with (home / "log").open("w") as log:
                tool = [*command, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(file)]
                subprocess.run(tool, check=True, stdout=log, stderr=log, timeout=START_TIMEOUT_S)
                server = [*command, "-Xmx384m", "kafka.Kafka", str(file)]
                process = subprocess.Popen(server, cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[BROKERS:])
        _wait_until_served(bootstrap, BROKERS)
        yield Peer(f"kafka {JARS.version}", bootstrap, tuple(range(1, BROKERS + 1)), f"127.0.0.1:{ports[0]}")


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
