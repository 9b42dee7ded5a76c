"""A leader that is disconnected from all other nodes, in namespaces of its own: see `test_zombie`, which starts this.

`python -m tests.integration.quorum.cut_off FOLDER` must run as `lan.alone` runs it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl.context import wait_until
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.integration.quorum.lan import CONTROL_PORT, ROOT, Lan
from tests.integration.quorum.load import outcome, register, registered

TIMEOUT_S = 60.0
VOTERS = (1, 2, 3)
REFUSED = {"NOT_CONTROLLER", "TIMED_OUT", "REQUEST_TIMED_OUT", "OUTCOME_UNKNOWN", "UNAVAILABLE"}


class Nodes:
    """Voters on hosts of a network whose cables can be pulled; each can be asked through its side door."""

    def __init__(self, lan: Lan, folder: Path) -> None:
        self._lan = lan
        self._folder = folder
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._clients: dict[int, ControllerClient] = {}

    async def start(self, node_id: int) -> None:
        """Start a voter and wait for its ready line."""
        voters = ",".join(f"{number}@{self._lan.address(number)}:{CONTROL_PORT}" for number in VOTERS)
        with (self._folder / f"{node_id}.log").open("ab") as log:
            self._processes[node_id] = await asyncio.create_subprocess_exec(
                *self._lan.inside(node_id),
                *(sys.executable, "-P", "-m", "quorumlog_server.quorum_node", "run"),
                *("--node-id", str(node_id), "--http", "off"),
                *("--data-dir", str(self._folder / str(node_id))),
                *("--listen", f"0.0.0.0:{CONTROL_PORT}", "--advertise", f"{self._lan.address(node_id)}:{CONTROL_PORT}"),
                *("--initial-voters", voters),
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self._clients.setdefault(node_id, ControllerClient([f"{self._lan.side_door(node_id)}:{CONTROL_PORT}"]))

    async def ready(self, *node_ids: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            for node_id in node_ids:
                output = self._processes[node_id].stdout
                assert output is not None
                assert (await output.readline()).startswith(b"ready "), f"node {node_id} did not start"

    async def kill(self, node_id: int) -> None:
        process = self._processes.pop(node_id)
        process.kill()
        await process.wait()

    def log(self, node_id: int) -> list[str]:
        return (self._folder / f"{node_id}.log").read_text().splitlines()

    async def close(self) -> None:
        for node_id in list(self._processes):
            await self.kill(node_id)
        for client in self._clients.values():
            await client.close()

    def client(self, node_id: int) -> ControllerClient:
        """Return a client of this node alone, through its side door."""
        return self._clients[node_id]

    async def describe(self, node_id: int) -> Any:
        """Return the state that this node itself reports."""
        client = self._clients[node_id]
        channel = client._channel(f"{self._lan.side_door(node_id)}:{CONTROL_PORT}")
        return await client._describe(channel, asyncio.get_running_loop().time() + TIMEOUT_S)

    async def says(self, node_id: int, what: str, condition: Callable[[Any], bool]) -> Any:
        """Wait until this node's own description fulfils the condition."""
        seen: list[Any] = []

        async def fulfilled() -> bool:
            seen[:] = [await self.describe(node_id)]
            return condition(seen[0])

        await wait_until(fulfilled, TIMEOUT_S, f"node {node_id}: {what}", 0.02)
        return seen[0]

    async def leader(self, *among: int) -> int:
        """Return the node that reports that it leads and is not paused."""
        found: list[int] = []

        async def is_led() -> bool:
            for node_id in among:
                said = await self.describe(node_id)
                if said.known.HasField("leader_id") and said.known.leader_id == node_id and not said.paused:
                    found.append(node_id)
            return bool(found)

        await wait_until(is_led, TIMEOUT_S, "a leader", 0.02)
        return found[-1]


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[Lan, Nodes]]:
    async with Lan(len(VOTERS)) as lan:
        nodes = Nodes(lan, folder)
        try:
            for node_id in VOTERS:
                await nodes.start(node_id)
            await nodes.ready(*VOTERS)
            yield lan, nodes
        finally:
            await nodes.close()


@dataclass(slots=True)
class Watch:
    """Requests a current read and a change from a node repeatedly, and checks each answer."""

    client: ControllerClient
    acknowledged: set[int]
    reads_answered: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    changes: set[int] = field(default_factory=set)
    """Brokers whose registration this node acknowledged."""

    async def run(self, ending: asyncio.Event) -> None:
        number = 5000
        while not ending.is_set():
            known = set(self.acknowledged)
            try:
                reply = await self.client.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), 0.3)
                found = {broker.broker_id for broker in reply.brokers}
                assert known <= found, f"a read that claims to be current lacks {known - found}"
                self.reads_answered += 1
            except ClusterError as error:
                self._refusal(error)
            number += 1
            registered_late = await outcome(register(self.client, number, 0.3))
            if isinstance(registered_late, ClusterError):
                self._refusal(registered_late)
            else:
                self.changes.add(number)

    def _refusal(self, error: ClusterError) -> None:
        assert error.code in REFUSED, error
        self.refused[error.code] = self.refused.get(error.code, 0) + 1


async def a_healed_link_ends_a_pause_with_no_election(lan: Lan, nodes: Nodes) -> None:
    leader = await nodes.leader(*VOTERS)
    down, other = (node_id for node_id in VOTERS if node_id != leader)
    before = await nodes.describe(leader)
    await nodes.kill(down)  # so that no voter can be elected
    await lan.cut(leader)
    await nodes.says(leader, "is paused", lambda it: it.paused)
    client = nodes.client(leader)
    for call in (
        client.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), 0.5),
        client.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=["nothing"]), 0.5),
    ):
        refused = await outcome(call)
        assert isinstance(refused, ClusterError), f"a paused leader answered: {refused}"
        assert refused.code in REFUSED, refused
        assert refused.code != "NOT_CONTROLLER" or "no majority of the voters" in refused.message
    await lan.heal(leader)
    after = await nodes.says(leader, "the pause is over", lambda it: not it.paused)
    assert (after.known.leader_id, after.known.epoch) == (leader, before.known.epoch), "no election"
    await register(nodes.client(other), 1000)
    assert (await nodes.describe(leader)).known.epoch == before.known.epoch
    told = [line for line in nodes.log(leader) if "pause" in line]
    assert ["WARNING" in line for line in told] == [True, False], "when the pause begins, and when it is over"
    await nodes.start(down)
    await nodes.ready(down)
    print("a healed link ended a pause in epoch", before.known.epoch)


async def a_leader_removed_while_cut_off_becomes_an_observer(lan: Lan, nodes: Nodes) -> None:
    zombie = await nodes.leader(*VOTERS)
    others = [node_id for node_id in VOTERS if node_id != zombie]
    watch = Watch(nodes.client(zombie), acknowledged={1000})
    ending = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(watch.run(ending))
        await lan.cut(zombie)
        leader = await nodes.leader(*others)
        await register(nodes.client(leader), 2000)
        watch.acknowledged.add(2000)
        removal = pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=zombie))
        assert (await nodes.client(leader).call(rpcs.CHANGE_VOTERS, removal, TIMEOUT_S)).changed
        await register(nodes.client(leader), 2001)
        watch.acknowledged.add(2001)
        await nodes.says(zombie, "is paused", lambda it: it.paused)
        epoch = (await nodes.describe(leader)).known.epoch
        await lan.heal(zombie)
        knows = await nodes.says(zombie, "knows the new leader", lambda it: it.known.leader_id == leader)
        assert knows.known.epoch == epoch
        watched = await nodes.says(leader, "has an observer", lambda it: bool(it.observers))
        assert [one.replica.key.node_id for one in watched.observers] == [zombie]
        assert zombie not in {one.replica.key.node_id for one in watched.voters}
        served = watch.reads_answered
        await wait_until(lambda: _more(watch, served), TIMEOUT_S, "the removed node forwards requests")
        ending.set()
    await register(nodes.client(zombie), 2002)
    assert set(await registered(nodes.client(zombie))) >= {1000, 2000, 2001, 2002} | watch.changes
    assert (await nodes.describe(leader)).known.epoch == epoch, "no election since"
    print(f"removed while cut off: epoch {epoch} before and after; answers meanwhile: refused {watch.refused}")


async def _more(watch: Watch, served: int) -> bool:
    return watch.reads_answered > served


async def main(folder: Path) -> None:
    async with asyncio.timeout(100), running(folder) as (lan, nodes):
        await a_healed_link_ends_a_pause_with_no_election(lan, nodes)
        await a_leader_removed_while_cut_off_becomes_an_observer(lan, nodes)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
