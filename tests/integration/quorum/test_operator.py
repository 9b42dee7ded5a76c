"""An operator's mistakes and needless commands: each answer names the next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorumlog.client.controller import ControllerClient
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.cluster_id import new_cluster_id
from tests.integration.quorum.clusters import (
    another_node,
    everybody,
    kill,
    last_lines,
    leader_of,
    named,
    node_of,
    plan,
    quorum_is,
    ready,
    refuses_to_run,
    running,
    say,
    spawn,
    voter_ids,
)
from tests.integration.quorum.load import register, registered

FETCH_TIMEOUT_MS = 2000
"""The default: a voter that has not fetched for this time does not count as live."""


def silent_ms(described: Any, node_id: int) -> int:
    """Return for how long this voter has not fetched."""
    return max(int(one.last_fetch_ms) for one in described.voters if one.replica.key.node_id == node_id)


async def test_the_active_controller_is_removed_and_added_again(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, ControllerClient(everybody(cluster)) as admin:
        await register(admin, 1000)
        old = await leader_of(cluster)
        only = await say(cluster, "remove-voter", str(old.id), "--dry-run")
        assert (only.code, "2 of 2 must be up, none may fail" in only.err) == (0, True), only
        removed = await say(cluster, "remove-voter", str(old.id))
        assert (removed.code, removed.out) == (0, f"node {old.id} is no longer a voter\n"), removed
        described = await quorum_is(cluster, "it observes", lambda it: len(it.observers) == 1)
        assert described.observers[0].replica.key.node_id == old.id
        status = await say(cluster, "quorum", "status")
        assert f"node {old.id}, epoch 1: resigned: is no longer a voter" in status.out
        assert (await say(cluster, "remove-voter", str(old.id))).code == 0, "it is removed, as requested"
        await register(admin, 1001)
        assert set(await registered(admin)) == {1000, 1001}
        back = await say(cluster, "add-voter", named(cluster, old.id))
        assert (back.code, "2 of 3 must be up, 1 may fail" in back.err) == (0, True), back


async def test_the_refusal_of_a_removal_that_leaves_no_majority_names_the_voter_to_start(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        leader = await leader_of(cluster)
        down, up = (node for node in cluster.nodes if node is not leader)
        await kill(down)
        await quorum_is(cluster, "it is missed", lambda it: silent_ms(it, down.id) >= FETCH_TIMEOUT_MS)
        refused = await say(cluster, "remove-voter", str(up.id))
        assert refused.code == 5, refused
        assert f"need 2 of 2 alive to commit anything, but only voter {leader.id} fetched lately" in refused.err
        assert f"(next: start node {down.id}, or remove it from the voters first)" in refused.err
        as_told = await say(cluster, "remove-voter", str(down.id))
        assert as_told.code == 0, as_told
        transfer = await say(cluster, "transfer-leader", "--to", str(down.id))
        assert (transfer.code, "kctl quorum status" in transfer.err) == (3, True), transfer


async def test_a_node_of_another_cluster_or_with_an_id_in_use_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        here = cluster.nodes[0].control
        strange = another_node(cluster, 7, "--cluster-id", new_cluster_id(Sources.real()), "--join", here)
        said = await refuses_to_run(strange)
        assert cluster.cluster_id in said
        assert "give it the addresses of its own cluster, or another data dir" in said
        double = another_node(cluster, 2, "--join", here)
        await spawn(cluster, double)
        await ready(double)
        assert "give this node another id" in last_lines(double)
        refused = await say(cluster, "add-voter", f"2@{double.control}")
        assert (refused.code, "two nodes run with id 2" in refused.err) == (5, True), refused
        wrong = await say(cluster, "add-voter", f"7@{double.control}")
        assert (wrong.code, "node 2 answers" in wrong.err, "(next:" in wrong.err) == (5, True, True), wrong
        assert voter_ids(await quorum_is(cluster, "nothing has changed", lambda it: True)) == [1, 2, 3]
        second = another_node(cluster, 3, "--join", here)
        place = second.command.index("--data-dir")
        second.command[place + 1] = node_of(cluster, 3).data_dir
        assert "is in use by process" in await refuses_to_run(second)


async def test_founders_with_different_lists_name_the_difference(tmp_path: Path) -> None:
    cluster = plan(tmp_path, voters=3)
    first, _, third = cluster.nodes
    for node in cluster.nodes:
        Path(node.data_dir).parent.mkdir(parents=True)
    place = third.command.index("--initial-voters")
    third.command[place + 1] = named(cluster, 2, 3)
    try:
        await spawn(cluster, third)
        said = await refuses_to_run(first)
        assert "was given another voter list" in said, said
        assert "start all of them with the same --initial-voters" in said, said
        assert "waits until every listed voter answers, with the same list" in last_lines(third)
    finally:
        await kill(third)
