"""Former leaders that do not know that they were replaced: suspended by a signal, or disconnected."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl import processes
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.integration.quorum import lan
from tests.integration.quorum.clusters import describe, leader_of, leads_among, quorum_is, running, voter_ids
from tests.integration.quorum.load import outcome, register, registered


async def test_a_disconnected_leader_decides_nothing(tmp_path: Path) -> None:
    """With network namespaces: see `cut_off`."""
    why_not = await asyncio.to_thread(lan.refusal)
    if why_not is not None:
        pytest.skip(why_not)  # for example: only root may make network namespaces
    status, output = await lan.alone("tests.integration.quorum.cut_off", tmp_path)
    print(output)
    assert status == 0, output + "\n".join(await asyncio.to_thread(_logs, tmp_path))


def _logs(folder: Path) -> list[str]:
    return [f"{log.name}:\n{log.read_text()[-6000:]}" for log in sorted(folder.glob("*.log"))]


async def test_a_leader_removed_while_it_was_stopped_serves_no_stale_data(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, ControllerClient([node.control for node in cluster.nodes]) as admin:
        zombie = await leader_of(cluster)
        others = [node for node in cluster.nodes if node is not zombie]
        await register(admin, 1000)
        async with ControllerClient([zombie.control]) as old, ControllerClient([it.control for it in others]) as new:
            assert set(await registered(old)) == {1000}  # so the client is connected
            processes.send(zombie.pid, signal.SIGSTOP)
            waiting = asyncio.create_task(registered(old))  # waits in the socket of the suspended node
            await leads_among(others)
            await register(new, 2000)
            waiting_change = asyncio.create_task(register(old, 3000))
            await new.call(rpcs.CHANGE_VOTERS, pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=zombie.id)), 20.0)
            before = await describe(await leads_among(others))
            assert voter_ids(before) == sorted(node.id for node in others)
            processes.send(zombie.pid, signal.SIGCONT)
            assert 2000 in await waiting, (
                "a current read by the former leader, after the change was acknowledged elsewhere"
            )
            late = await outcome(waiting_change)
            assert not isinstance(late, ClusterError) or late.retriable, late
            found = set(await registered(old))
            assert {1000, 2000} <= found
            assert isinstance(late, ClusterError) or 3000 in found, "acknowledged by a node that no longer led"
        after = await quorum_is(cluster, "it observes", lambda it: len(it.observers) == 1)
        assert after.known.epoch == before.known.epoch, "its return causes no election"
        said = await describe(zombie)
        assert (said.known.leader_id, said.known.epoch) == (after.known.leader_id, after.known.epoch)
