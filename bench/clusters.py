"""The two clusters that `comparison` measures: 3 controllers and 3 brokers each, every node in a process of its own.

Each cluster can be suspended (SIGSTOP) while the other one is measured, so that only one takes processor time.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.processes import family_processor_s, family_resident_mib, send_all
from quorumlog.kctl import dev_cluster
from tests.clients.catalog import JARS
from tests.clients.outcomes import Skipped

TIMEOUT_S = 120.0
OURS, KAFKA = "quorumlog", "kafka"
CACHED, SYNCED = "page cache", "fsync"
MODES: Mapping[tuple[str, str], Mapping[str, str]] = {
    (OURS, CACHED): {"write.caching": "true"},
    (OURS, SYNCED): {},
    (KAFKA, CACHED): {},
    (KAFKA, SYNCED): {"flush.messages": "1"},
}
"""Topic configs that give both clusters the same durability."""
JVM = ("-Xmx512m", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""The JVM options of Kafka's start script, with half of its heap, because six processes share a small machine."""
_CONTROLLER_IS_MISSING = (KafkaError.NOT_CONTROLLER, KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT)
CONTROLLERS, BROKERS = (1, 2, 3), (11, 12, 13)
_NO_SETTINGS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    pids: its processes, by node id.  start_s: the time from the first process until all brokers serve.
    logs: the log files of all nodes.
    """

    name: str
    bootstrap: str
    pids: Mapping[int, int]
    start_s: float
    logs: tuple[Path, ...] = ()

    def pause(self) -> None:
        send_all(self.pids.values(), signal.SIGSTOP)

    def resume(self) -> None:
        """Continue, and return once every partition has all replicas in sync again."""
        send_all(self.pids.values(), signal.SIGCONT)
        wait_until_whole(self.bootstrap)

    @contextmanager
    def stopped(self, node: int) -> Iterator[None]:
        """Suspend one node (SIGSTOP) inside the context."""
        os.kill(self.pids[node], signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pids[node], signal.SIGCONT)

    def processor_s(self) -> float:
        """Return the processor seconds of all nodes.  The cleaners of quorumlog, which are processes, are included."""
        return sum(family_processor_s(pid) for pid in self.pids.values())

    def resident_mib(self) -> float:
        return sum(family_resident_mib(pid) for pid in self.pids.values())

    def create(self, topic: str, partitions: int, mode: str, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic with three replicas, and wait for them."""
        every = {**MODES[self.name, mode], "min.insync.replicas": "2", **(configs or {})}
        new = NewTopic(topic, partitions, 3, config=every)
        admin = self._admin()  # keep the client until its answer arrives
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                admin.create_topics([new], request_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
                break
            except KafkaException as error:  # after `resume`, the controllers elect a leader first
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    break
                if code not in _CONTROLLER_IS_MISSING or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)  # polls, because no event reports an election to an admin client
        wait_until_whole(self.bootstrap)

    def delete(self, topic: str) -> None:
        admin = self._admin()
        admin.delete_topics([topic], request_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)

    def configure(self, topic: str, configs: Mapping[str, str]) -> None:
        """Set configs of a topic; nothing happens if the topic does not exist yet."""
        try:
            self._alter(topic, configs)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise

    def _alter(self, topic: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET) for config, value in configs.items()
        ]
        admin = self._admin()
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        admin.incremental_alter_configs([resource], request_timeout=TIMEOUT_S)[resource].result(TIMEOUT_S)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})


def wait_until_whole(bootstrap: str, brokers: int = 3) -> None:
    """Return when all brokers serve, and every partition has a leader and a replica in sync on each of them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        with suppress(KafkaException):
            metadata = admin.list_topics(timeout=5)
            partitions = [each for topic in metadata.topics.values() for each in topic.partitions.values()]
            if len(metadata.brokers) == brokers and all(
                each.leader >= 0 and len(each.isrs) == brokers for each in partitions
            ):
                return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{bootstrap} is not whole after {TIMEOUT_S:g} s")
        time.sleep(0.05)  # polls, because the other processes send no event


@contextmanager
def quorumlog_cluster(port_base: int, settings: Mapping[str, str] = _NO_SETTINGS) -> Iterator[Cluster]:
    """Run quorumlog.  settings: configs of every node."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
        plan = dev_cluster.plan(Path(folder) / "cluster", len(CONTROLLERS), len(BROKERS), port_base, made_dir=True)
        for node in plan.nodes:
            node.command += [f"--set={name}={value}" for name, value in settings.items()]
        bootstrap = ",".join(node.listen for node in plan.nodes if node.role == "broker" and node.listen is not None)
        began = time.monotonic()
        try:
            asyncio.run(dev_cluster.start(plan, TIMEOUT_S, lambda line: None))
            wait_until_whole(bootstrap)
            pids = {node.id: node.pid for node in plan.nodes}
            logs = tuple(Path(node.log) for node in plan.nodes)
            yield Cluster(OURS, bootstrap, pids, time.monotonic() - began, logs)
        finally:
            send_all([node.pid for node in plan.nodes], signal.SIGCONT)
            asyncio.run(dev_cluster.stop_nodes(plan.nodes, lambda line: None))


@contextmanager
def kafka_cluster(settings: Mapping[str, str] = _NO_SETTINGS) -> Iterator[Cluster]:
    """Run Apache Kafka from the jars of Maven, with the same roles, timeouts and topic defaults as quorumlog.

    settings: further properties of every node.

    Raises:
        Skipped: Java or the jars are missing.
    """
    command = _kafka_command()
    ports = dict(zip(CONTROLLERS + BROKERS, free_ports(len(CONTROLLERS + BROKERS)), strict=True))
    bootstrap = ",".join(f"127.0.0.1:{ports[node]}" for node in BROKERS)
    cluster_id = _new_id()
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-bench-", ignore_cleanup_errors=True))
        )
        files = [_settings(folder, node, ports, settings) for node in ports]
        for file in files:
            _format(command, cluster_id, file)
        began = time.monotonic()
        pids = {}
        for node, file in zip(ports, files, strict=True):
            log = stack.enter_context(file.with_name("log").open("w"))
            process = subprocess.Popen([*command, "kafka.Kafka", str(file)], cwd=folder, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.kill)
            pids[node] = process.pid
        wait_until_whole(bootstrap)
        logs = tuple(file.with_name("log") for file in files)
        yield Cluster(KAFKA, bootstrap, pids, time.monotonic() - began, logs)


@contextmanager
def kafka_broker() -> Iterator[str]:
    """Run Apache Kafka from the jars of Maven in one process, controller and broker; yield its bootstrap servers.

    Raises:
        Skipped: Java or the jars are missing.
    """
    command = _kafka_command()
    control, port = free_ports(2)
    bootstrap = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="kafka-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{control}",
            "listeners": f"PLAINTEXT://{bootstrap},CONTROLLER://127.0.0.1:{control}",
            "log.dirs": folder / "data",
        }
        file = folder / "server.properties"
        _write(file, settings)
        _format(command, _new_id(), file)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen([*command, "kafka.Kafka", str(file)], cwd=folder, stdout=log, stderr=log)
        try:
            wait_until_whole(bootstrap, brokers=1)
            yield bootstrap
        finally:
            process.kill()
            process.wait()


def _settings(folder: Path, node: int, ports: Mapping[int, int], more: Mapping[str, str]) -> Path:
    """Write the properties of one node; return their file."""
    is_controller = node in CONTROLLERS
    voters = ",".join(f"{voter}@127.0.0.1:{ports[voter]}" for voter in CONTROLLERS)
    settings = {
        "process.roles": "controller" if is_controller else "broker",
        "node.id": node,
        "controller.quorum.voters": voters,
        "listeners": f"{'CONTROLLER' if is_controller else 'PLAINTEXT'}://127.0.0.1:{ports[node]}",
        "log.dirs": folder / str(node) / "data",
        "broker.session.timeout.ms": 6000,
        "broker.heartbeat.interval.ms": 1000,
        "auto.create.topics.enable": "false",
        "log.segment.delete.delay.ms": 5000,
    }
    file = folder / str(node) / "server.properties"
    file.parent.mkdir()
    _write(file, {**settings, **more})
    return file


def _kafka_command() -> tuple[str, ...]:
    """Return the beginning of a command that runs a class of Kafka.

    Raises:
        Skipped: Java or the jars are missing.
    """
    if shutil.which("java") is None:
        raise Skipped("java is not installed")
    return ("java", *JVM, "-cp", f"{JARS.folder()}/*")


def _new_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _write(file: Path, settings: Mapping[str, object]) -> None:
    """Write the properties of a node, with the names of its listeners."""
    names = {
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    }
    file.write_text("".join(f"{name}={value}\n" for name, value in {**names, **settings}.items()))


def _format(command: Sequence[str], cluster_id: str, file: Path) -> None:
    tool = [*command, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", str(file)]
    subprocess.run(tool, check=True, capture_output=True, timeout=TIMEOUT_S)


def free_ports(wanted: int) -> Sequence[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(wanted)]
        return [each.getsockname()[1] for each in sockets]
