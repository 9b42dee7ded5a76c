"""A cluster of real processes in one folder, for experiments.

`DIR/cluster.json` describes the whole cluster.  `up` writes it before it starts the first process, and again after the
start of each process, so that `down` can remove an interrupted `up`.  `DIR/lock` prevents two commands `up` or `down`
from running at the same time.  A process is signalled only if it is recorded, and its start time and command line match
the record.  Only files that `up` created are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import quorumlog
from quorumlog.errors import ClusterError, ConfigError, QuorumlogError
from quorumlog.kctl import processes
from quorumlog.runtime import http
from quorumlog.runtime.addresses import PORT_MAX, parse_address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.cluster_id import new_cluster_id
from quorumlog.wire.errors import ApiError

HOST = "127.0.0.1"
FIRST_VOTER_ID = 1
FIRST_BROKER_ID = 11
LOG_LINES_SHOWN = 20
STOP_TIMEOUT_S = 40.0
KILL_TIMEOUT_S = 10.0
READY_POLL_S = 0.05

VOTER = "voter"
BROKER = "broker"
_MODULES = {VOTER: "quorumlog_server.quorum_node", BROKER: "broker.cli"}

Say = Callable[[str], None]


@dataclass(slots=True)
class Node:
    """One process.  pid: 0 before the process is started.  mark: its start time, since pids are reused."""

    role: str
    id: int
    control: str
    http: str
    data_dir: str
    log: str
    command: list[str]
    listen: str | None = None
    pid: int = 0
    mark: str = ""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.id}"

    @property
    def is_running(self) -> bool:
        return self.pid > 0 and processes.is_ours(self.pid, self.mark, self.data_dir)


@dataclass(slots=True)
class DevCluster:
    """The contents of cluster.json."""

    dir: str
    cluster_id: str
    made_dir: bool = False
    nodes: list[Node] = field(default_factory=list)
    port_base: int | None = None
    """The lowest port that `up` tried; None if an earlier version wrote the file."""

    @property
    def controllers(self) -> str:
        """The value of KCTL_CONTROLLERS for this cluster."""
        return ",".join(node.control for node in self.nodes if node.role == VOTER)

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers for Kafka clients."""
        return ",".join(node.listen for node in self.nodes if node.listen)

    @property
    def first_port(self) -> int:
        return parse_address(self.nodes[0].control).port

    def save(self) -> None:
        """Replace cluster.json atomically."""
        path = Path(self.dir) / "cluster.json"
        document = {
            "dir": self.dir,
            "cluster_id": self.cluster_id,
            "made_dir": self.made_dir,
            "port_base": self.port_base,
            "controllers": self.controllers,
            "bootstrap": self.bootstrap,
            "nodes": [asdict(node) for node in self.nodes],
        }
        temporary = path.with_suffix(".json.new")
        temporary.write_text(json.dumps(document, indent=2) + "\n")
        temporary.replace(path)


def load(directory: Path) -> DevCluster | None:
    """Return the cluster whose files are in `directory`, or None.

    Raises:
        ConfigError: cluster.json cannot be read or is not ours.
    """
    path = directory / "cluster.json"
    try:
        document: Any = json.loads(path.read_text())
        nodes = [Node(**node) for node in document["nodes"]]
        for node in nodes:
            node.command[3:4] = [_MODULES[node.role]]  # an older release may have written another module name
        base = document.get("port_base")
        return DevCluster(
            str(directory),
            document["cluster_id"],
            bool(document["made_dir"]),
            nodes,
            None if base is None else int(base),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error!r}", next_step="give another --dir, or check this folder"
        ) from error


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other commands `kctl dev up` and `down` out of `directory`, which must exist.

    Raises:
        ClusterError: another command is running.
    """
    path = directory / "lock"
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ClusterError(
                ApiError.BUSY, f"another kctl dev command uses {directory}", "wait for it to finish", retriable=True
            ) from error
        yield


def plan(directory: Path, voters: int, brokers: int, port_base: int, made_dir: bool) -> DevCluster:
    """Assign ids, ports and command lines to all nodes.

    Raises:
        ConfigError: no free ports.
    """
    ports = free_ports(port_base)
    cluster = DevCluster(str(directory), new_cluster_id(Sources.real()), made_dir, port_base=port_base)
    for role, first_id, count in ((VOTER, FIRST_VOTER_ID, voters), (BROKER, FIRST_BROKER_ID, brokers)):
        for node_id in range(first_id, first_id + count):
            home = directory / f"{role}-{node_id}"
            node = Node(
                role=role,
                id=node_id,
                control=f"{HOST}:{next(ports)}",
                http=f"{HOST}:{next(ports)}",
                data_dir=str(home / "data"),
                log=str(home / "log"),
                command=[],
                listen=f"{HOST}:{next(ports)}" if role == BROKER else None,
            )
            cluster.nodes.append(node)
    initial_voters = ",".join(f"{node.id}@{node.control}" for node in cluster.nodes if node.role == VOTER)
    for node in cluster.nodes:
        node.command = _command(node, cluster, initial_voters)
    return cluster


def _command(node: Node, cluster: DevCluster, initial_voters: str) -> list[str]:
    common = ["--data-dir", node.data_dir, "--node-id", str(node.id), "--http", node.http]
    common += ["--cluster-id", cluster.cluster_id]
    if node.role == VOTER:
        own = ["--listen", node.control, "--initial-voters", initial_voters]
    else:
        assert node.listen is not None
        own = ["--listen", node.listen, "--control-listen", node.control, "--controllers", cluster.controllers]
    return [sys.executable, "-P", "-m", _MODULES[node.role], "run", *common, *own]


def free_ports(base: int) -> Iterator[int]:
    """Yield ports without a listener, from `base` upwards.

    Raises:
        ConfigError: no further port is free.
    """
    for port in range(base, PORT_MAX + 1):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        yield port
    raise ConfigError(f"no free port at or above {base}", next_step="give a lower --port-base")


def environment() -> dict[str, str]:
    """Return the environment for servers.  They import this installation, and do not inherit QUORUMLOG_ variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUORUMLOG_")}
    root = str(Path(quorumlog.__file__).resolve().parent.parent)
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = root + (os.pathsep + others if others else "")
    return environment


async def start(cluster: DevCluster, timeout_s: float, say: Say) -> None:
    """Start the nodes that do not run, and wait until every node is ready.

    Raises:
        QuorumlogError: a port of a node is in use, or a node ended or was not ready in time.  The nodes that this call
            started have been stopped.
    """
    started: list[Node] = []
    try:
        stopped = [node for node in cluster.nodes if not node.is_running]
        _refuse_used_ports(stopped)
        for node in stopped:
            Path(node.data_dir).parent.mkdir(parents=True, exist_ok=True)
            process = processes.spawn(node.command, Path(node.log), environment())
            node.pid, node.mark = process.pid, processes.start_mark(process.pid) or ""
            process.returncode = 0  # the process outlives kctl on purpose; this silences a warning of Popen
            started.append(node)
            cluster.save()
            say(f"started {node.name} (pid {node.pid})")
        await _all_ready(cluster, timeout_s, say)
    except BaseException:
        try:
            await stop_nodes(started, say)
        finally:
            for node in started:  # a second Ctrl-C does not wait; `up` then deletes the record of these processes
                if node.is_running:
                    processes.send(node.pid, signal.SIGKILL)
        raise


def _refuse_used_ports(nodes: Sequence[Node]) -> None:
    """Raise QuorumlogError if other programs have ports of the nodes.

    Such a program may be a node of another cluster, and its /readyz would be treated as the answer of this node.
    """
    used: list[str] = []
    for node in nodes:
        taken = [address for address in (node.control, node.http, node.listen) if address and _is_used(address)]
        if len(taken) == 1:
            used.append(f"{node.name} cannot start: another program uses its address {taken[0]}")
        elif taken:
            used.append(f"{node.name} cannot start: other programs use its addresses {', '.join(taken)}")
    if used:
        raise QuorumlogError("; ".join(used), "stop those programs, or create the cluster anew")


def _is_used(address: str) -> bool:
    where = parse_address(address)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where.host, where.port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


async def _all_ready(cluster: DevCluster, timeout_s: float, say: Say) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    waiting = list(cluster.nodes)
    why: dict[str, str] = {}
    while waiting:
        for node in list(waiting):
            is_ready, why[node.name] = await readiness(node)
            if is_ready:
                waiting.remove(node)
                say(f"{node.name} is ready ({len(cluster.nodes) - len(waiting)} of {len(cluster.nodes)})")
            elif not node.is_running:
                raise _failure(node, f"{node.name} ended before it was ready", say)
        if waiting and loop.time() >= deadline:
            node = waiting[0]
            raise _failure(node, f"{node.name} was not ready within {timeout_s:g} s ({why[node.name]})", say)
        if waiting:
            await asyncio.sleep(READY_POLL_S)  # a process that another command started cannot notify us


async def readiness(node: Node) -> tuple[bool, str]:
    """Return whether a node is ready, and the text of its answer to /readyz, or the reason why it did not answer."""
    try:
        status, body = await http.get(parse_address(node.http), "/readyz?verbose", timeout_s=2)
    except OSError as error:
        return False, str(error) or "no answer"
    return status == 200, "; ".join(body.decode(errors="replace").split("\n")).strip("; ")


def _failure(node: Node, message: str, say: Say) -> QuorumlogError:
    say(f"last lines of {node.log}:")
    for line in processes.last_lines(Path(node.log), LOG_LINES_SHOWN):
        say(f"  {line}")
    return QuorumlogError(f"{message}; the nodes were stopped", "the log lines above show the cause")


async def stop_nodes(nodes: list[Node], say: Say) -> None:
    """Stop nodes, brokers before voters so that leaderships can move; kill those that do not stop in time."""
    for role in (BROKER, VOTER):
        running = [node for node in nodes if node.role == role and node.is_running]
        for node in running:
            processes.send(node.pid, signal.SIGTERM)
        for node in running:
            if await processes.gone(node.pid, node.mark, STOP_TIMEOUT_S):
                say(f"{node.name} has stopped")
                continue
            say(f"{node.name} did not stop within {STOP_TIMEOUT_S:g} s: killed")
            processes.send(node.pid, signal.SIGKILL)
            await processes.gone(node.pid, node.mark, KILL_TIMEOUT_S)


def remove(cluster: DevCluster) -> None:
    """Delete everything that `up` created: the nodes' folders and files, and DIR itself if `up` created it."""
    directory = Path(cluster.dir)
    for node in cluster.nodes:
        home = Path(node.data_dir).parent
        if home.parent == directory:  # never outside DIR, even if the file was edited
            shutil.rmtree(home, ignore_errors=True)
    remove_record(directory, cluster.made_dir)


def remove_record(directory: Path, made_dir: bool) -> None:
    """Delete the files that `up` creates before the nodes, and DIR itself if `up` created it."""
    for name in ("cluster.json", "cluster.json.new", "lock"):
        (directory / name).unlink(missing_ok=True)
    if made_dir:
        with contextlib.suppress(OSError):  # keep the folder if it contains other files
            directory.rmdir()
