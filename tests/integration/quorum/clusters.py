"""Clusters of real processes that are operated through kctl, signals and restarts."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from quorumlog.client.controller import ControllerClient
from quorumlog.kctl import dev_cluster, processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2
from tests.integration import warm_kctl, warm_nodes

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0
PORT_BASE = 20_000 + os.getpid() % 90 * 100
"""Below the ports that the system chooses and those of the demo and the benches.

Each worker, and each run of the tests, has its own base.
"""

_LEADER_CHANGE = re.compile(r"LeaderChange: (\d+) leads epoch (\d+)")


def plan(folder: Path, voters: int = 3, joining: int = 0, brokers: int = 0, **settings: int) -> DevCluster:
    """Plan `voters` founders with ids from 1, `joining` more nodes with --join, and brokers with ids from 11."""
    cluster = dev_cluster.plan(folder / "cluster", voters + joining, brokers, PORT_BASE, made_dir=True)
    founders = ",".join(f"{node.id}@{node.control}" for node in cluster.nodes[:voters])
    for node in cluster.nodes:
        for name, value in settings.items():
            node.command += ["--set", f"{name.replace('_', '.')}={value}"]
        if node.role == dev_cluster.BROKER:
            continue
        place = node.command.index("--initial-voters")
        node.command[place + 1] = founders
        if node.id > voters:
            node.command[place : place + 2] = ["--join", cluster.nodes[0].control]
    return cluster


@asynccontextmanager
async def running(
    folder: Path, voters: int = 3, joining: int = 0, brokers: int = 0, **settings: int
) -> AsyncIterator[DevCluster]:
    """A ready cluster according to the plan; processes that still run at the end are killed."""
    async with started(plan(folder, voters, joining, brokers, **settings)) as cluster:
        yield cluster


@asynccontextmanager
async def started(cluster: DevCluster) -> AsyncIterator[DevCluster]:
    """Start a planned cluster; processes that still run at the end are killed."""
    try:
        await start(cluster)
        yield cluster
    finally:
        for node in cluster.nodes:
            if node.is_running:
                await kill(node)


async def start(cluster: DevCluster) -> None:
    """Start the nodes that do not run, and return when all are ready."""
    with warm_nodes.replacing_spawn():
        await dev_cluster.start(cluster, TIMEOUT_S, lambda line: None)


async def spawn(cluster: DevCluster, node: Node) -> None:
    """Start one node without waiting until it is ready."""
    process = warm_nodes.spawn(node.command, Path(node.log), dev_cluster.environment())
    node.pid, node.mark = process.pid, processes.start_mark(process.pid) or ""
    process.returncode = 0  # as in dev_cluster, which finds the process by its pid
    cluster.save()


async def ready(node: Node) -> None:
    async def is_ready() -> bool:
        assert node.is_running, last_lines(node)
        return (await dev_cluster.readiness(node))[0]

    await wait_until(is_ready, TIMEOUT_S, f"{node.name} is ready", 0.05)


async def kill(node: Node) -> None:
    """Send SIGKILL, also to a suspended node, and wait for its end."""
    processes.send(node.pid, signal.SIGKILL)
    assert await processes.gone(node.pid, node.mark, TIMEOUT_S)


async def stop(node: Node) -> None:
    """Send SIGTERM, as a service manager does, and wait for the end."""
    processes.send(node.pid, signal.SIGTERM)
    assert await processes.gone(node.pid, node.mark, TIMEOUT_S), last_lines(node)


async def ended(node: Node) -> list[str]:
    """Wait until the node has ended without a request; return the last lines of its log."""
    assert await processes.gone(node.pid, node.mark, TIMEOUT_S), last_lines(node)
    return processes.last_lines(Path(node.log), 20)


def last_lines(node: Node) -> str:
    return "\n".join(processes.last_lines(Path(node.log), 20))


def node_of(cluster: DevCluster, node_id: int) -> Node:
    return next(node for node in cluster.nodes if node.id == node_id)


def named(cluster: DevCluster, *node_ids: int) -> str:
    """Return these nodes as ID@HOST:PORT,…, as kctl expects them."""
    return ",".join(f"{node_id}@{node_of(cluster, node_id).control}" for node_id in node_ids)


def everybody(cluster: DevCluster) -> list[str]:
    """Return every node's control address; kctl accepts any of them."""
    return [node.control for node in cluster.nodes]


def another_node(cluster: DevCluster, node_id: int, *options: str) -> Node:
    """A quorum node beside the cluster, with a disk and addresses of its own, not started yet.

    options: how it finds a cluster, `--join` and the like.
    """
    home = Path(cluster.dir) / f"another-{node_id}-{len(cluster.nodes)}"
    home.mkdir()
    control, http = (f"{dev_cluster.HOST}:{port}" for port in islice(dev_cluster.free_ports(PORT_BASE + 50), 2))
    command = [sys.executable, "-P", "-m", "quorumlog_server.quorum_node", "run", "--data-dir", str(home / "data")]
    command += ["--node-id", str(node_id), "--listen", control, "--http", http, *options]
    node = Node("voter", node_id, control, http, str(home / "data"), str(home / "log"), command)
    cluster.nodes.append(node)
    return node


async def refuses_to_run(node: Node) -> str:
    """Start a node that must end with status 2 (wrong configuration), and return its last line."""
    process = await asyncio.create_subprocess_exec(
        *node.command,
        env=dev_cluster.environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, said = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 2, said.decode()
    return said.decode().splitlines()[-1]


class Said(NamedTuple):
    """The result of kctl: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON of its output, or of its error."""
        return json.loads(self.out or self.err.splitlines()[-1])


async def say(cluster: DevCluster, *arguments: str) -> Said:
    """Run kctl as an operator would, in a process that has loaded it already."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUORUMLOG_")}
    environment |= {"KCTL_CONTROLLERS": ",".join(everybody(cluster)), "NO_COLOR": "1", "COLUMNS": "200"}
    done = await asyncio.to_thread(warm_kctl.run, arguments, environment, round(2 * TIMEOUT_S))
    return Said(done.returncode, done.stdout, done.stderr)


async def kctl(cluster: DevCluster, *arguments: str) -> tuple[int, Any]:
    """Run kctl as a script would; return its exit code, and the JSON of its output or of its error."""
    said = await say(cluster, "-o", "json", *arguments)
    return said.code, said.document


async def done(cluster: DevCluster, *arguments: str) -> Any:
    """Run kctl, which must succeed; return the JSON of its output."""
    said = await say(cluster, "-o", "json", *arguments)
    assert said.code == 0, (arguments, said)
    return said.document


async def quorum_is(cluster: DevCluster, what: str, condition: Callable[[Any], bool]) -> Any:
    """Wait until the leader's own description of the quorum fulfils the condition."""
    seen: list[Any] = []

    async with ControllerClient(everybody(cluster)) as client:

        async def fulfilled() -> bool:
            found = await client.describe_quorum(5.0)
            seen[:] = [found]
            leads = found.known.HasField("leader_id") and found.answered_by.node_id == found.known.leader_id
            return leads and condition(found)

        await wait_until(fulfilled, TIMEOUT_S, what, 0.05)
    return seen[-1]


async def describe(node: Node) -> Any:
    """Return the status of the quorum according to this node alone."""
    async with ControllerClient([node.control]) as client:
        return await client._describe(client._channel(node.control), asyncio.get_running_loop().time() + 5.0)


def voter_ids(described: Any) -> list[int]:
    return sorted(voter.replica.key.node_id for voter in described.voters)


def are(node_ids: list[int]) -> Callable[[Any], bool]:
    """Return whether these are the voters, for `quorum_is`."""
    return lambda described: voter_ids(described) == node_ids


def lag_of(described: Any, node_id: int) -> int | None:
    """Return the lag of a voter in records, according to the leader that answered."""
    return next((voter.lag for voter in described.voters if voter.replica.key.node_id == node_id), None)


async def leader_of(cluster: DevCluster) -> Node:
    """Return the node that reports that it leads."""
    described = await quorum_is(cluster, "a leader", lambda it: not it.paused)
    return node_of(cluster, described.known.leader_id)


async def leads_among(nodes: Sequence[Node]) -> Node:
    """Return the node among these that reports that it leads; do not ask the others."""
    found: list[Node] = []

    async def is_led() -> bool:
        for node in nodes:
            said = await describe(node)
            if said.known.HasField("leader_id") and said.known.leader_id == node.id and not said.paused:
                found.append(node)
        return bool(found)

    await wait_until(is_led, TIMEOUT_S, "one of them leads", 0.05)
    return found[-1]


async def reigns(node: Node) -> list[tuple[int, int]]:
    """Return (epoch, leader id) of each LeaderChange in the log of this node."""
    found: list[tuple[int, int]] = []
    request = node_pb2.ReadMetadataRequest(from_offset=0)
    async with ControllerClient([node.control]) as client:
        while True:
            reply = await client.ask_any(rpcs.READ_METADATA, request, TIMEOUT_S)
            for batch in reply.batches:
                if match := _LEADER_CHANGE.match(batch.control):
                    found.append((int(match[2]), int(match[1])))
            if reply.next_offset >= reply.high_watermark:
                return found
            request.from_offset = reply.next_offset
