"""kctl commands that wait for voters: their output, and an interrupt; real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from quorumlog.kctl.dev_cluster import DevCluster
from quorumlog.wire.v1 import quorum_pb2
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import ROOT, TIMEOUT_S, are, done, everybody, named, node_of, quorum_is


async def kctl(cluster: DevCluster, *arguments: str) -> asyncio.subprocess.Process:
    """A running kctl; its standard error can be read line by line."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "quorumlog.kctl.main", "-o", "json", "--timeout", str(TIMEOUT_S), *arguments),
        env={**os.environ, "PYTHONPATH": str(ROOT), "KCTL_CONTROLLERS": ",".join(everybody(cluster)[:3])},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def told(process: asyncio.subprocess.Process, what: str) -> None:
    """Wait for a line with `what` on standard error."""
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT_S):
        while line := (await process.stderr.readline()).decode():
            if what in line:
                return
    raise AssertionError(f"kctl ended without {what!r}")


async def test_an_addition_waits_for_a_node_that_is_not_running_yet(tmp_path: Path) -> None:
    async with clusters.running(tmp_path, voters=3, joining=1) as cluster:
        newcomer = node_of(cluster, 4)
        await clusters.kill(newcomer)
        given_up = await kctl(cluster, "add-voter", named(cluster, 4), "--wait")
        await told(given_up, f"no node answers at {newcomer.control}")
        given_up.send_signal(signal.SIGINT)
        _, err = await given_up.communicate()
        assert (given_up.returncode, "nothing was cancelled" in err.decode()) == (130, True), err
        waiting = await kctl(cluster, "add-voter", named(cluster, 4), "--wait")
        await told(waiting, f"no node answers at {newcomer.control}")
        await clusters.spawn(cluster, newcomer)
        async with asyncio.timeout(TIMEOUT_S):
            out, _ = await waiting.communicate()
        assert (waiting.returncode, json.loads(out)["changed"]) == (0, True)
        await quorum_is(cluster, "it is a voter", are([1, 2, 3, 4]))


async def test_a_wait_follows_a_target_and_status_shows_the_last_leaderships_end(tmp_path: Path) -> None:
    async with clusters.running(tmp_path, voters=3, joining=1) as cluster:
        leader = await clusters.leader_of(cluster)
        others = [node for node in cluster.nodes if node.id != 4 and node is not leader]
        down, newcomer = others[0], node_of(cluster, 4)
        await clusters.kill(down)
        await quorum_is(
            cluster,
            "it counts as down",
            lambda it: clusters.lag_of(it, down.id) is not None and _age(it, down.id) > 2500,
        )
        # The leader and a voter that is down could not commit.  Known voters may be down as long as a majority runs.
        target = named(cluster, leader.id, down.id)
        refused = await clusters.say(cluster, "alter-quorum", "--target", target, "--wait")
        assert (refused.code, "NO_MAJORITY" in refused.err) == (5, True), refused
        waiting = await kctl(cluster, "alter-quorum", "--target", named(cluster, 1, 2, 3, newcomer.id), "--wait")
        async with asyncio.timeout(TIMEOUT_S):
            out, err = await waiting.communicate()
        assert (waiting.returncode, json.loads(out)["changed"]) == (0, True), err
        assert "voters 1,2,3,4" in err.decode()
        status = await done(cluster, "quorum", "status")
        assert (status["target_voters"], status["target_problem"]) == (None, None)
        assert [voter["id"] for voter in status["voters"]] == [1, 2, 3, 4]
        await clusters.start(cluster)
        await clusters.kill(leader)
        successor = await quorum_is(cluster, "another leads", lambda it: it.known.leader_id != leader.id)
        ended = (await done(cluster, "quorum", "status"))["last_leadership_end"]
        assert ended["leader_id"] == leader.id, (ended, successor)
        assert "does not answer" in ended["reason"]


def _age(described: quorum_pb2.DescribeQuorumReply, node_id: int) -> int:
    """Return the milliseconds since the voter fetched."""
    return next(voter.last_fetch_ms for voter in described.voters if voter.replica.key.node_id == node_id)
