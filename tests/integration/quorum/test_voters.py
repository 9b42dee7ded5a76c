"""Voters come, go and are replaced while a cluster of real processes runs: through kctl, as an operator does it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quorumlog.client.controller import ControllerClient
from quorumlog.kctl import dev_cluster, processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 60.0
PORT_BASE = 43_000


def kctl(cluster: DevCluster, *arguments: str) -> tuple[int, Any]:
    """Run kctl; its exit code, and the JSON of its output or of its error."""
    finished = subprocess.run(
        [sys.executable, "-m", "quorumlog.kctl.main", "-o", "json", *arguments],
        cwd=ROOT,
        env={**os.environ, "KCTL_CONTROLLERS": cluster.controllers},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S + 30,
        check=False,
    )
    text = finished.stdout or finished.stderr
    return finished.returncode, json.loads(text.splitlines()[-1] if not finished.stdout else text)


@asynccontextmanager
async def running(tmp_path: Path, voters: int, joining: int) -> AsyncIterator[DevCluster]:
    """`voters` founders, ids from 1, and `joining` more nodes that were started with --join."""
    cluster = dev_cluster.plan(tmp_path / "cluster", voters + joining, 0, PORT_BASE, made_dir=True)
    founders = ",".join(f"{node.id}@{node.control}" for node in cluster.nodes[:voters])
    for node in cluster.nodes:
        place = node.command.index("--initial-voters")
        node.command[place + 1] = founders
        if node.id > voters:
            node.command[place : place + 2] = ["--join", cluster.nodes[0].control]
    try:
        await dev_cluster.start(cluster, TIMEOUT_S, lambda line: None)
        yield cluster
    finally:
        await dev_cluster.stop_nodes(cluster.nodes, lambda line: None)


async def quorum_is(cluster: DevCluster, what: str, condition: Callable[[Any], bool]) -> Any:
    """Wait until the leader's description of the quorum fulfils the condition."""
    seen: list[Any] = []

    async with ControllerClient(cluster.controllers.split(",")) as client:

        async def fulfilled() -> bool:
            seen.append(await client.describe_quorum(5.0))
            return seen[-1].known.HasField("leader_id") and condition(seen[-1])

        await wait_until(fulfilled, TIMEOUT_S, what)
    return seen[-1]


def voter_ids(described: Any) -> list[int]:
    return sorted(voter.replica.key.node_id for voter in described.voters)


def node_of(cluster: DevCluster, node_id: int) -> Node:
    return next(node for node in cluster.nodes if node.id == node_id)


async def test_a_quorum_grows_and_shrinks_by_kctl(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, joining=2) as cluster:
        for node_id in (2, 3):
            code, planned = kctl(cluster, "add-voter", f"{node_id}@{node_of(cluster, node_id).control}", "--dry-run")
            assert (code, planned["changed"]) == (0, False), planned
            code, added = kctl(cluster, "add-voter", f"{node_id}@{node_of(cluster, node_id).control}")
            assert (code, added["changed"]) == (0, True), added
            assert node_id in [voter["id"] for voter in added["voters"]]
        code, again = kctl(cluster, "add-voter", f"3@{node_of(cluster, 3).control}")
        assert (code, again["changed"]) == (0, False), "already a voter is a success that says so"
        status = kctl(cluster, "quorum", "status")[1]
        assert [voter["id"] for voter in status["voters"]] == [1, 2, 3]
        code, refused = kctl(cluster, "add-voter", "2@127.0.0.1:1")
        assert (code, refused["error"]) == (5, "UNREACHABLE"), refused
        code, removed = kctl(cluster, "remove-voter", str(status["leader_id"]))
        assert (code, removed["changed"]) == (0, True), removed
        await quorum_is(
            cluster, "the removed leader has handed over", lambda it: it.known.leader_id != status["leader_id"]
        )
        code, missing = kctl(cluster, "remove-voter", "99")
        assert (code, missing.get("error"), missing.get("changed")) in [(3, "VOTER_NOT_FOUND", None), (0, None, False)]


async def test_a_target_is_worked_towards_and_leadership_handed_over(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, joining=1) as cluster:
        target = ",".join(f"{node_id}@{node_of(cluster, node_id).control}" for node_id in (2, 3, 4))
        code, altered = kctl(cluster, "alter-quorum", "--target", target, "--wait", "--timeout", "60")
        assert (code, altered["changed"]) == (0, True), altered
        described = await quorum_is(cluster, "the target", lambda it: voter_ids(it) == [2, 3, 4])
        to = next(node_id for node_id in (2, 3, 4) if node_id != described.known.leader_id)
        code, handed = kctl(cluster, "transfer-leader", "--to", str(to))
        assert (code, handed["leader_id"]) == (0, to), handed
        await quorum_is(cluster, f"node {to} leads", lambda it: it.known.leader_id == to)
        code, unknown = kctl(cluster, "transfer-leader", "--to", "77")
        assert (code, unknown["error"]) == (3, "VOTER_NOT_FOUND"), unknown


async def test_a_lost_disk_is_replaced_by_one_command(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, joining=0) as cluster:
        described = await quorum_is(cluster, "a leader", lambda it: True)
        lost = node_of(cluster, next(one for one in (1, 2, 3) if one != described.known.leader_id))
        processes.send(lost.pid, signal.SIGKILL)
        assert await processes.gone(lost.pid, lost.mark, TIMEOUT_S)
        shutil.rmtree(lost.data_dir)
        await dev_cluster.start(cluster, TIMEOUT_S, lambda line: None)
        assert any("--replace" in line for line in processes.last_lines(Path(lost.log), 50)), "the node says what to do"
        code, refused = kctl(cluster, "add-voter", f"{lost.id}@{lost.control}")
        assert (code, refused["error"]) == (5, "DUPLICATE_VOTER"), refused
        code, replaced = kctl(cluster, "add-voter", f"{lost.id}@{lost.control}", "--replace")
        assert (code, replaced["changed"]) == (0, True), replaced
        before = {voter.replica.key.directory_id for voter in described.voters}
        after = await quorum_is(cluster, "three voters", lambda it: voter_ids(it) == [1, 2, 3])
        assert len({voter.replica.key.directory_id for voter in after.voters} - before) == 1


async def test_the_preferred_voter_leads(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, joining=0) as cluster:
        described = await quorum_is(cluster, "a leader", lambda it: True)
        wanted = next(one for one in (1, 2, 3) if one != described.known.leader_id)
        code, preferred = kctl(cluster, "preferred-controllers", "set", str(wanted))
        assert (code, preferred["changed"], preferred["preferred"]) == (0, True, [wanted])
        await quorum_is(cluster, f"node {wanted} leads", lambda it: it.known.leader_id == wanted)
        assert kctl(cluster, "preferred-controllers", "show")[1]["preferred"] == [wanted]
        code, refused = kctl(cluster, "preferred-controllers", "set", "9")
        assert (code, refused["error"]) == (3, "VOTER_NOT_FOUND")
        assert kctl(cluster, "preferred-controllers", "clear")[1]["preferred"] == []
