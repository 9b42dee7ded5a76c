"""`kctl alter-quorum` with real processes: any leader continues it, and it can be cancelled."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

from quorumlog.client.controller import ControllerClient
from quorumlog.kctl import processes
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.integration.quorum.clusters import (
    TIMEOUT_S,
    are,
    done,
    everybody,
    kill,
    named,
    node_of,
    quorum_is,
    ready,
    running,
    spawn,
    voter_ids,
)
from tests.integration.quorum.load import under_load

ATTEMPTS = 10


async def set_target(cluster: DevCluster, target: list[int]) -> None:
    """Send the request of kctl without starting a process."""
    voters = [pb.VoterAddress(node_id=node_id, address=node_of(cluster, node_id).control) for node_id in target]
    request = pb.ChangeVotersRequest(set_target=pb.SetTargetVoters(voters=voters))
    async with ControllerClient(everybody(cluster)) as client:
        assert (await client.call(rpcs.CHANGE_VOTERS, request, TIMEOUT_S)).changed


async def caught_midway(cluster: DevCluster) -> tuple[Node, list[int]]:
    """Set three others as the target, and stop the last of them before they are all voters.

    Returns the leader and the target.
    """
    current, others = [1, 2, 3], [4, 5, 6]
    for _ in range(ATTEMPTS):
        await set_target(cluster, others)
        last = node_of(cluster, others[-1])
        processes.send(last.pid, signal.SIGSTOP)
        described = await quorum_is(cluster, "a leader", lambda it: True)
        if described.HasField("target_voters") and last.id not in voter_ids(described):
            return node_of(cluster, described.known.leader_id), others
        processes.send(last.pid, signal.SIGCONT)  # the target was already reached
        await quorum_is(cluster, "the target", lambda it: not it.HasField("target_voters"))
        current, others = others, current
    raise AssertionError("the target was always reached before anything could happen")


async def test_a_target_of_three_other_voters_is_reached_after_a_kill(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, joining=3) as cluster, under_load(cluster):
        old, others = await caught_midway(cluster)
        await kill(old)
        processes.send(node_of(cluster, others[-1]).pid, signal.SIGCONT)
        # A leader that removes itself still leads until its removal is committed, so this waits for its successor.
        await quorum_is(
            cluster,
            "the target, led by one of its voters",
            lambda it: are(others)(it) and _leads_among(others, it),
        )
        gone = await quorum_is(cluster, "no target any more", lambda it: not it.HasField("target_voters"))
        await spawn(cluster, old)
        await ready(old)
        back = await quorum_is(
            cluster,
            "the killed leader is an observer",
            lambda it: old.id in {observer.replica.key.node_id for observer in it.observers},
        )
        assert back.known.epoch == gone.known.epoch, "the old leader's return costs no election"


async def test_a_target_is_cancelled_midway(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, joining=2) as cluster, under_load(cluster):
        hidden = node_of(cluster, 3)
        for _ in range(ATTEMPTS):
            await set_target(cluster, [1, 2, 3])
            processes.send(hidden.pid, signal.SIGSTOP)
            if (await done(cluster, "alter-quorum", "--cancel"))["changed"]:
                break
            processes.send(hidden.pid, signal.SIGCONT)  # the target was already reached
            await done(cluster, "alter-quorum", "--target", named(cluster, 1), "--wait")
        else:
            raise AssertionError("the target was always reached before it could be cancelled")
        left = await quorum_is(cluster, "no target", lambda it: not it.HasField("target_voters"))
        # Completed steps remain.  A fast cancellation comes before the first step.
        assert set(voter_ids(left)) in ({1}, {1, 2}, {1, 2, 3})
        processes.send(hidden.pid, signal.SIGCONT)
        assert (await done(cluster, "alter-quorum", "--cancel"))["changed"] is False, "there is none: already satisfied"
        still = await quorum_is(cluster, "the voters stay", lambda it: voter_ids(it) == voter_ids(left))
        assert not still.HasField("target_voters")


async def test_one_voter_grows_to_three_and_five_and_back_under_load(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, joining=4) as cluster, under_load(cluster):
        for target in ([1, 2, 3], [1, 2, 3, 4, 5], [3, 4, 5], [5]):
            await done(cluster, "alter-quorum", "--target", named(cluster, *target), "--wait")
            described = await quorum_is(cluster, f"voters {target}", are(target))
            assert not described.HasField("target_voters"), "the target is reached"
            await quorum_is(cluster, "one of them leads", partial(_leads_among, target))


def _leads_among(voters: list[int], described: Any) -> bool:
    return described.known.leader_id in voters
