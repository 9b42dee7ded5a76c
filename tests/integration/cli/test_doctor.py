"""kctl doctor on real clusters: each problem is caused, reported, and solved by doctor's instructions."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from quorumlog.kctl import processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import TIMEOUT_S, done, kctl, leader_of, node_of, running, say

BUSY = frozenset({"SLOW_DISK"})
"""Findings that a busy machine adds: one slow write is enough, and counts for 10 minutes."""
FAST = {"broker_session_timeout_ms": 1500, "broker_heartbeat_interval_ms": 200}


async def examined(cluster: DevCluster, *arguments: str) -> tuple[int, dict[str, list[Any]], Any]:
    """Exit code, findings by their word except those of `BUSY`, and the whole document."""
    code, document = await kctl(cluster, *arguments, "doctor")
    findings: dict[str, list[Any]] = {}
    for finding in document["findings"]:
        if finding["finding"] not in BUSY:
            findings.setdefault(finding["finding"], []).append(finding)
    return code, findings, document


async def until(
    cluster: DevCluster, wanted: set[str], *, besides: frozenset[str] = frozenset()
) -> dict[str, list[Any]]:
    """Repeat until exactly these are found; findings in `besides` are ignored."""
    seen: list[dict[str, list[Any]]] = []

    async def is_so() -> bool:
        _, findings, _ = await examined(cluster)
        seen[:] = [findings]
        return findings.keys() - set(besides) == wanted

    try:
        await wait_until(is_so, TIMEOUT_S, f"found: {wanted}")
    except Exception as error:
        raise AssertionError(f"instead of {wanted}: {seen}") from error
    return seen[-1]


async def start(cluster: DevCluster, node: Node) -> None:
    await clusters.spawn(cluster, node)
    await clusters.ready(node)


async def test_doctor_reports_single_replicas_killed_brokers_and_hanging_brokers(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=3, **FAST) as cluster:
        await done(cluster, "topics", "create", "orders", "--partitions", "3", "--replication-factor", "3", "--wait")
        await until(cluster, set())
        code, findings, document = await examined(cluster, "--controllers", node_of(cluster, 12).control)
        assert not findings
        assert (code, document["healthy"]) == ((1, False) if document["findings"] else (0, True))
        seen = document["looked_at"]
        assert [seen[name] for name in ("nodes", "nodes_answering", "voters_answering", "brokers_unfenced")] == [
            6,
            6,
            3,
            3,
        ]
        assert (seen["partitions"], seen["partitions_in_sync"]) == (3, 3)
        healthy = await say(cluster, "doctor")
        if "SLOW_DISK" not in healthy.out:
            assert healthy.out.startswith("all is well\ncluster "), healthy
            assert len(healthy.out.splitlines()) == 2

        # A single replica is advice; if its broker is killed, it is the first finding.
        await done(cluster, "topics", "create", "alone", "--assignment", "12", "--wait")
        await until(cluster, {"REPLICATION_FACTOR_1"})
        broker = node_of(cluster, 12)
        await clusters.kill(broker)
        found = await until(cluster, {"OFFLINE", "FENCED", "UNDER_REPLICATED", "REPLICATION_FACTOR_1"})
        assert (found["OFFLINE"][0]["partitions"], found["OFFLINE"][0]["nodes"]) == (["alone-0"], [12])
        assert found["UNDER_REPLICATED"][0]["partitions"] == ["orders-0", "orders-1", "orders-2"]
        assert found["FENCED"][0]["next"].startswith("start broker 12")
        assert f"{broker.control}: connection refused" in found["FENCED"][0]["cause"]
        ill = await say(cluster, "doctor")
        assert (ill.code, ill.out.splitlines()[0]) == (1, "CRITICAL  OFFLINE")
        await start(cluster, broker)
        await until(cluster, {"REPLICATION_FACTOR_1"})

        # A broker that hangs is distinguished from one that is down.
        processes.send(broker.pid, signal.SIGSTOP)
        found = await until(cluster, {"OFFLINE", "FENCED", "UNDER_REPLICATED", "REPLICATION_FACTOR_1"})
        assert found["FENCED"][0]["next"].startswith("restart broker 12, which hangs")
        processes.send(broker.pid, signal.SIGCONT)
        await until(cluster, {"REPLICATION_FACTOR_1"})


async def test_doctor_reports_voters_that_fail_one_after_the_other(tmp_path: Path) -> None:
    async with running(tmp_path, brokers=1) as cluster:
        await until(cluster, set())
        leader = await leader_of(cluster)
        first, second = (node for node in cluster.nodes if node.role == "voter" and node is not leader)
        await clusters.kill(first)
        found = await until(cluster, {"VOTER_DOWN"}, besides=frozenset({"VOTER_UNREACHABLE"}))
        assert found["VOTER_DOWN"][0]["what"] == f"voter {first.id} is missing: no further voter may fail"
        assert f"{first.control}: connection refused" in found["VOTER_DOWN"][0]["cause"]

        # The second one hangs: the leader answers, but decides nothing.
        processes.send(second.pid, signal.SIGSTOP)
        found = await until(cluster, {"PAUSED"}, besides=frozenset({"LAGGING", "NOT_READY"}))
        assert f"start node {first.id}, or restart node {second.id}, which hangs" in found["PAUSED"][0]["next"]
        processes.send(second.pid, signal.SIGCONT)
        await until(cluster, {"VOTER_DOWN"})

        # Without the leader there is no quorum, and the broker that still runs also knows that.
        await clusters.kill(await leader_of(cluster))
        await until(cluster, {"NO_QUORUM"})
        code, findings, _ = await examined(cluster, "--controllers", node_of(cluster, 11).control)
        assert (code, set(findings)) == (1, {"NO_QUORUM"})
        assert "2 of 3 voters do not answer, 2 must be up" in findings["NO_QUORUM"][0]["cause"]
        for node in cluster.nodes:
            if node.is_running:
                await clusters.kill(node)
        code, findings, document = await examined(cluster)
        assert (code, set(findings)) == (4, {"UNREACHABLE"})
        assert document["looked_at"]["nodes_answering"] == 0
        for node in cluster.nodes:
            assert f"{node.control}: connection refused" in findings["UNREACHABLE"][0]["cause"]
        await clusters.start(cluster)
        await until(cluster, set())


async def test_doctor_reports_the_cause_of_a_blocked_reassignment(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await until(cluster, {"ONE_VOTER"})
        await done(cluster, "topics", "create", "t", "--assignment", "11:12", "--wait")
        records = tmp_path / "records"
        records.write_text("\n".join("x" * 5000 for _ in range(200)))
        assert (await say(cluster, "produce", "t", str(records))).code == 0
        await done(cluster, "reassign", "start", "--topic", "t", "--brokers", "11,13", "--throttle", "1")
        found = await until(cluster, {"ONE_VOTER", "REASSIGNMENT_STUCK"})
        stuck = found["REASSIGNMENT_STUCK"][0]
        assert stuck["cause"] == "broker 13 copied nothing in the last seconds; the throttle is 1 bytes/s"
        await clusters.kill(node_of(cluster, 13))
        found = await until(cluster, {"ONE_VOTER", "REASSIGNMENT_STUCK", "FENCED"})
        assert found["REASSIGNMENT_STUCK"][0]["cause"].startswith("the target: broker 13 is fenced")
        shown = await say(cluster, "reassign", "status")
        assert "broker_down" in shown.out
        assert "t-0 waits for broker 13, which is down (next: start broker 13, or kctl reassign cancel" in shown.err
        await done(cluster, "reassign", "cancel", "--topic", "t")
        found = await until(cluster, {"ONE_VOTER", "FENCED"})
        assert found["FENCED"][0]["what"] == "broker 13 is fenced: it has no replicas"
        assert found["FENCED"][0]["next"].endswith("if it is lost permanently: kctl brokers unregister 13")
        await done(cluster, "brokers", "unregister", "13")
        await until(cluster, {"ONE_VOTER"})
