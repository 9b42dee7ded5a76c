"""Nodes that join and leave the voters automatically, and voters that move: real processes, no operator."""

from __future__ import annotations

from pathlib import Path

from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import Node
from quorumlog.runtime.addresses import parse_address
from tests.integration.quorum import clusters
from tests.integration.quorum.clusters import TIMEOUT_S, are, done, kctl, leader_of, node_of, quorum_is


def log_of(node: Node) -> str:
    return Path(node.log).read_text()


async def says(node: Node, what: str, times: int = 1) -> None:
    """Wait until the node's log holds `times` lines with `what`."""

    async def said() -> bool:
        return log_of(node).count(what) >= times

    await wait_until(said, TIMEOUT_S, f"{node.name} says {what!r}", 0.05)


def given(node: Node, flag: str, value: str) -> None:
    """Start the node with this flag from now on."""
    if flag in node.command:
        node.command[node.command.index(flag) + 1] = value
    else:
        node.command += [flag, value]


def enable(node: Node, *keys: str) -> None:
    for key in keys:
        node.command += ["--set", f"{key}=true"]


async def test_a_node_joins_automatically_and_stays_out_once_removed(tmp_path: Path) -> None:
    cluster = clusters.plan(tmp_path, voters=3, joining=1, brokers=1)
    newcomer, broker = node_of(cluster, 4), node_of(cluster, 11)
    for node in (newcomer, broker):
        enable(node, "quorum.auto.join")
    try:
        await clusters.start(cluster)
        await quorum_is(cluster, "both joined, the broker among them", are([1, 2, 3, 4, 11]))
        assert (await done(cluster, "remove-voter", "4"))["changed"]
        await says(newcomer, "was removed from the voters: it does not rejoin automatically")
        await clusters.kill(newcomer)
        await clusters.start(cluster)
        await says(newcomer, "does not rejoin automatically", times=2)
        await quorum_is(cluster, "it is an observer", lambda it: any(o.replica.key.node_id == 4 for o in it.observers))
        await quorum_is(cluster, "it stayed out", are([1, 2, 3, 11]))
        assert (await done(cluster, "add-voter", f"4@{newcomer.control}", "--wait"))["changed"], "it may be added"
        await quorum_is(cluster, "it is a voter again", are([1, 2, 3, 4, 11]))
    finally:
        for node in cluster.nodes:
            if node.is_running:
                await clusters.kill(node)


async def test_stopped_voters_leave_and_rejoin(tmp_path: Path) -> None:
    cluster = clusters.plan(tmp_path, voters=3)
    for node in cluster.nodes:
        enable(node, "quorum.auto.join", "quorum.leave.on.shutdown")
    try:
        await clusters.start(cluster)
        first = await leader_of(cluster)
        await clusters.stop(first)
        rest = [node.id for node in cluster.nodes if node is not first]
        await quorum_is(cluster, "the leader has left", are(rest))
        second = await leader_of(cluster)
        await clusters.stop(second)
        last = next(node for node in cluster.nodes if node not in (first, second))
        await quorum_is(cluster, "one is left", are([last.id]))
        await clusters.stop(last)
        await says(last, "stops without having left the voters")
        assert "LAST_VOTER" in log_of(last)
        await clusters.start(cluster)
        described = await quorum_is(cluster, "all are back", are([1, 2, 3]))
        assert described.known.HasField("leader_id")
    finally:
        for node in cluster.nodes:
            if node.is_running:
                await clusters.kill(node)


async def test_a_stopped_voter_rejoins_with_a_snapshot_in_which_it_is_a_voter(tmp_path: Path) -> None:
    cluster = clusters.plan(tmp_path, voters=3)
    for node in cluster.nodes:
        enable(node, "quorum.auto.join", "quorum.leave.on.shutdown")
        node.command += ["--set", "metadata.snapshot.interval.ms=1000"]
    try:
        await clusters.start(cluster)
        leader = await leader_of(cluster)
        stopped = next(node for node in cluster.nodes if node is not leader)
        await says(stopped, "snapshot taken")
        await clusters.stop(stopped)
        await quorum_is(cluster, "it has left", are([node.id for node in cluster.nodes if node is not stopped]))
        await clusters.start(cluster)
        await quorum_is(cluster, "it is back", are([1, 2, 3]))
    finally:
        for node in cluster.nodes:
            if node.is_running:
                await clusters.kill(node)


async def test_a_voter_that_the_majority_needs_does_not_leave(tmp_path: Path) -> None:
    async with clusters.running(tmp_path, voters=3) as cluster:
        leader = await leader_of(cluster)
        gone, stopped = (node for node in cluster.nodes if node is not leader)
        enable(stopped, "quorum.leave.on.shutdown")
        await clusters.stop(stopped)
        await clusters.start(cluster)  # with the setting
        await quorum_is(cluster, "it fetches again", lambda it: clusters.lag_of(it, stopped.id) == 0)
        await clusters.kill(gone)

        async def is_seen_as_down() -> bool:
            code, refused = await kctl(cluster, "remove-voter", str(stopped.id), "--dry-run")
            return code != 0 and refused["error"] == "NO_MAJORITY"

        await wait_until(is_seen_as_down, TIMEOUT_S, "the one that was killed counts as down", 0.2)
        await clusters.stop(stopped)
        assert "NO_MAJORITY" in log_of(stopped)
        await clusters.start(cluster)
        await quorum_is(cluster, "three voters, as before", are([1, 2, 3]))


async def test_a_voter_that_moved_is_updated_once_its_address_is_proven(tmp_path: Path) -> None:
    async with clusters.running(tmp_path, voters=3) as cluster:
        leader = await leader_of(cluster)
        moved = next(node for node in cluster.nodes if node is not leader)
        before = moved.control
        free = max(parse_address(node.control).port for node in cluster.nodes) + 40
        await clusters.stop(moved)
        place = moved.command.index("--initial-voters")
        moved.command[place : place + 2] = ["--join", leader.control]
        given(moved, "--advertise", f"127.0.0.1:{free + 1}")  # no process listens at this port
        await clusters.spawn(cluster, moved)
        refused = await quorum_is(
            cluster, "the address is not proven", lambda it: f"127.0.0.1:{free + 1}" in it.target_problem
        )
        assert before in [voter.replica.address for voter in refused.voters]
        await clusters.stop(moved)
        moved.control = f"127.0.0.1:{free}"
        given(moved, "--advertise", moved.control)
        given(moved, "--listen", moved.control)
        await clusters.start(cluster)
        await quorum_is(
            cluster, "the new address is known", lambda it: moved.control in [v.replica.address for v in it.voters]
        )
        assert (await done(cluster, "transfer-leader", "--to", str(moved.id)))["leader_id"] == moved.id
        await quorum_is(cluster, "it leads from there", lambda it: it.known.leader_address == moved.control)
