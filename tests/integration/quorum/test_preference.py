"""Preferred controllers: how often leadership moves, and the leader while the preferred one is down."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl import processes
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.integration.quorum.clusters import (
    TIMEOUT_S,
    done,
    everybody,
    kill,
    lag_of,
    leader_of,
    node_of,
    quorum_is,
    ready,
    reigns,
    running,
    spawn,
    stop,
)
from tests.integration.quorum.load import register, registered

SOON = {"quorum_preference_wait_ms": 500}


async def reigns_with_last(node: Node, count: int = 1) -> list[tuple[int, int]]:
    """Return the reigns in the log of this node, once there are `count` or more, and the last one is its own.

    A leader is known before its LeaderChange is committed.
    """
    found: list[tuple[int, int]] = []

    async def has_begun() -> bool:
        found[:] = await reigns(node)
        return len(found) >= count and found[-1][1] == node.id

    await wait_until(has_begun, TIMEOUT_S, f"node {node.id} leads")
    return found


async def restart(cluster: DevCluster, node: Node) -> None:
    await stop(node)
    await spawn(cluster, node)
    await ready(node)


async def test_a_rolling_restart_moves_leadership_no_more_than_needed(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as cluster:
        preferred = node_of(cluster, 2)
        await done(cluster, "preferred-controllers", "set", "2")
        before = await reigns_with_last(preferred)
        for node_id in (1, 3):
            await restart(cluster, node_of(cluster, node_id))
        assert await reigns(preferred) == before, "a restart of the others moves nothing"
        await restart(cluster, preferred)
        moves = (await reigns_with_last(preferred, len(before) + 2))[len(before) :]
        print(f"moves: {moves}")
        assert [leader_id for _, leader_id in moves][1:] == [2], "away, and back"
        assert [epoch for epoch, _ in moves] == [before[-1][0] + 1, before[-1][0] + 2]


async def test_another_voter_leads_when_the_preferred_node_is_killed_in_a_handover(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as cluster, ControllerClient(everybody(cluster)) as admin:
        acting = await leader_of(cluster)
        chosen = node_of(cluster, next(number for number in (1, 2, 3) if number != acting.id))
        await register(admin, 1000)
        await quorum_is(cluster, "the chosen one has everything", lambda it: lag_of(it, chosen.id) == 0)
        processes.send(chosen.pid, signal.SIGSTOP)  # it has the whole log, so it gets leadership immediately
        handing = asyncio.create_task(transfer(acting, chosen.id))
        await quorum_is(cluster, "an ordinary election", lambda it: it.known.epoch > 1)
        with pytest.raises(ClusterError, match=f"not node {chosen.id}"):
            await handing
        await kill(chosen)
        left = await leader_of(cluster)
        assert left.id != chosen.id
        await done(cluster, "preferred-controllers", "set", str(chosen.id))  # a node that is down may be preferred
        await register(admin, 1001)
        assert (await leader_of(cluster)).id == left.id, "all preferred nodes are down: another one continues to lead"
        assert set(await registered(admin)) == {1000, 1001}
        await spawn(cluster, chosen)
        await quorum_is(
            cluster, "the preferred node has restarted and leads", lambda it: it.known.leader_id == chosen.id
        )
        assert set(await registered(admin)) == {1000, 1001}


async def transfer(acting: Node, to: int) -> None:
    """Ask the leader itself to hand over immediately, so that no time is lost."""
    async with ControllerClient([acting.control]) as client:
        await client.call(rpcs.TRANSFER_LEADER, pb.TransferLeaderRequest(to=to), 20.0)
