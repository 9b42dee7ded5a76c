"""Voters move from their own processes into brokers and back, under load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.quorum.clusters import (
    TIMEOUT_S,
    done,
    named,
    node_of,
    quorum_is,
    ready,
    running,
    spawn,
    stop,
    voter_ids,
)
from tests.integration.quorum.load import Load, under_load

DEDICATED, BROKERS = (1, 2, 3), (11, 12, 13)


async def test_the_voters_move_into_the_brokers_and_back_under_load(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, brokers=3) as cluster, under_load(cluster) as load:
        await _move(cluster, DEDICATED, BROKERS)
        mixed = await quorum_is(cluster, "voters inside the brokers", lambda it: voter_ids(it) == list(BROKERS))
        assert mixed.known.leader_id in BROKERS
        for node_id in DEDICATED:
            await stop(node_of(cluster, node_id))  # they are no longer needed
        before = load.record_count, len(load.topics)
        await done(cluster, "topics", "create", "decided-by-brokers")
        for node_id in DEDICATED:
            await spawn(cluster, node_of(cluster, node_id))
        for node_id in DEDICATED:
            await ready(node_of(cluster, node_id))
        await wait_until(lambda: _goes_on(load, before), TIMEOUT_S, "the load continues without the dedicated voters")
        load.unknown.append("decided-by-brokers")
        await _move(cluster, BROKERS, DEDICATED)
        await quorum_is(cluster, "voters of their own, brokers that observe", _as_before)


async def test_the_voter_that_leads_the_fewest_partitions_is_preferred(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, brokers=3) as cluster:
        await _move(cluster, DEDICATED, BROKERS)
        for node_id in DEDICATED:
            await stop(node_of(cluster, node_id))
        await done(cluster, "topics", "create", "t", "--assignment", "11:12,12:13,11:13", "--wait")
        chosen = await done(cluster, "preferred-controllers", "set", "--auto")
        assert (chosen["preferred"], chosen["changed"]) == ([13], True)
        await quorum_is(cluster, "it leads", lambda it: it.known.leader_id == 13)
        again = await done(cluster, "preferred-controllers", "set", "--auto")
        assert (again["preferred"], again["changed"]) == ([13], False)


def _as_before(described: Any) -> bool:
    observers = {observer.replica.key.node_id for observer in described.observers}
    return voter_ids(described) == list(DEDICATED) and observers == set(BROKERS)


async def _goes_on(load: Load, before: tuple[int, int]) -> bool:
    return load.record_count > before[0] and len(load.topics) > before[1]


async def _move(cluster: DevCluster, leaving: tuple[int, ...], joining: tuple[int, ...]) -> None:
    """Add one voter, then remove one, as an operator does who wants three voters at all times."""
    for comes, goes in zip(joining, leaving, strict=True):
        assert (await done(cluster, "add-voter", named(cluster, comes)))["changed"] is True
        assert (await done(cluster, "remove-voter", str(goes)))["changed"] is True
