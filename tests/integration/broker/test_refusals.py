"""A broker whose process was killed is fenced long before its session ends; a stopped one is not."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any
from urllib.request import urlopen

from quorumlog.kctl import processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import VOTER, DevCluster, Node
from tests.integration.quorum.clusters import TIMEOUT_S, done, node_of, ready, running, start

KILLED = "broker fenced: its process has ended: connections are refused"
SILENT = "broker fenced: no heartbeat"
LONG = {"broker_session_timeout_ms": 600_000, "broker_heartbeat_interval_ms": 300}
SHORT = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}


async def state_is(cluster: DevCluster, node: Node, state: str) -> None:
    async def is_so() -> bool:
        brokers: list[dict[str, Any]] = await done(cluster, "brokers", "list")
        return [each["state"] for each in brokers if each["id"] == node.id] == [state]

    await wait_until(is_so, TIMEOUT_S, f"broker {node.id} is {state}")


async def all_have_accepted(cluster: DevCluster) -> None:
    """Wait until both brokers accepted connections at both addresses; before that, a refusal is not evidence."""
    (voter,) = (node for node in cluster.nodes if node.role == VOTER)

    def read() -> str:
        with urlopen(f"http://{voter.http}/metrics", timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())

    async def have() -> bool:
        found = re.search(r'controller_probes\w*{[^}]*"accepted"[^}]*} (\S+)', await asyncio.to_thread(read))
        return found is not None and float(found[1]) >= 4

    await wait_until(have, TIMEOUT_S, "the controller has connected to both brokers")


def said(cluster: DevCluster) -> str:
    """By the controller."""
    (voter,) = (node for node in cluster.nodes if node.role == VOTER)
    return Path(voter.log).read_text()


async def test_a_killed_broker_is_fenced_although_its_session_lasts(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=2, **LONG) as cluster:
        node = node_of(cluster, 11)
        await state_is(cluster, node, "unfenced")
        await all_have_accepted(cluster)
        processes.send(node.pid, SIGKILL)
        await state_is(cluster, node, "fenced")
        (line,) = [line for line in said(cluster).splitlines() if KILLED in line]
        assert f"refused_by={node.control},{node.listen}" in line.replace('"', "")
        await start(cluster)
        await state_is(cluster, node, "unfenced")
        assert SILENT not in said(cluster)


async def test_a_stopped_broker_is_fenced_when_its_session_ends(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=2, **SHORT) as cluster:
        node = node_of(cluster, 11)
        await state_is(cluster, node, "unfenced")
        processes.send(node.pid, SIGSTOP)
        await state_is(cluster, node, "fenced")
        assert SILENT in said(cluster)
        assert KILLED not in said(cluster)
        processes.send(node.pid, SIGCONT)
        await ready(node)
        await state_is(cluster, node, "unfenced")
