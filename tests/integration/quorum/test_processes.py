"""Three real `quorum-node` processes: SIGKILL, SIGSTOP and a restart of all, under acknowledged changes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorum.core.events import Peer
from quorum.core.messages import TOOL, DescribeQuorum, DescribeQuorumReply
from quorum.ports import UnreachableError
from quorum.transport.grpc import GrpcTransport
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb

ROOT = Path(__file__).resolve().parents[3]


class Voters:
    """Voters 1, 2, 3 as processes, and a client of theirs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        self.addresses = {number: f"127.0.0.1:{one.getsockname()[1]}" for number, one in enumerate(probes, 1)}
        for probe in probes:
            probe.close()
        self.processes: dict[int, asyncio.subprocess.Process] = {}
        self.client = GrpcTransport("127.0.0.1:0")

    async def start(self, node_id: int) -> None:
        """Start a voter; it is ready some time later."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("QUORUMLOG_")}
        voters = ",".join(f"{number}@{address}" for number, address in self.addresses.items())
        self.processes[node_id] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "quorumlog_server.quorum_node", "run", "--http", "off"),
            *("--data-dir", str(self._folder / str(node_id)), "--node-id", str(node_id)),
            *("--listen", self.addresses[node_id], "--initial-voters", voters),
            stdout=asyncio.subprocess.PIPE,
            env={**environment, "PYTHONPATH": str(ROOT)},
        )

    async def ready(self, *node_ids: int) -> None:
        """Wait until each has reported on standard output that it serves."""
        async with asyncio.timeout(60):
            for node_id in node_ids:
                output = self.processes[node_id].stdout
                assert output is not None
                assert (await output.readline()).startswith(b"ready node_id=%d " % node_id)

    async def kill(self, node_id: int) -> None:
        process = self.processes.pop(node_id)
        process.kill()
        await process.wait()

    async def describe(self, node_id: int) -> DescribeQuorumReply | None:
        """Return the status of one node; None if it does not answer."""
        try:
            reply = await self.client.ask(Peer(node_id, self.addresses[node_id]), DescribeQuorum(TOOL), 2000)
        except UnreachableError:
            return None
        assert isinstance(reply, DescribeQuorumReply)
        return reply

    async def register(self, broker_id: int, besides: int | None = None) -> int:
        """Register a broker through any node that answers, repeatedly until it is acknowledged; return its epoch."""
        request = pb.RegisterBrokerRequest(header=pb.RequestHeader(timeout_ms=5000))
        registration = request.registration
        registration.broker_id, registration.previous_broker_epoch = broker_id, -1
        registration.incarnation_id, registration.feature_min, registration.feature_max = bytes([broker_id]) * 16, 1, 1
        registration.directory_ids.append(bytes([broker_id]) * 16)
        registration.endpoints.add(name="default", host="127.0.0.1", port=9092, security="PLAINTEXT")
        async with asyncio.timeout(60):
            while True:
                for node_id in [number for number in sorted(self.processes) if number != besides]:
                    try:
                        reply = await self.client.call(self.addresses[node_id], rpcs.REGISTER_BROKER, request, 6000)
                    except UnreachableError:
                        continue
                    assert isinstance(reply, pb.RegisterBrokerReply)
                    if reply.result.error == "NONE":
                        return reply.broker_epoch
                await asyncio.sleep(0.05)  # every node has refused: an election is in progress elsewhere

    async def registered(self) -> dict[int, int]:
        """Return broker ids and epochs, by a current read."""
        request = pb.DescribeBrokersRequest(header=pb.RequestHeader(timeout_ms=20_000))
        address = self.addresses[min(self.processes)]
        reply = await self.client.call(address, rpcs.DESCRIBE_BROKERS, request, 21_000)
        assert isinstance(reply, pb.DescribeBrokersReply)
        assert reply.result.error == "NONE", reply
        return {broker.broker_id: broker.broker_epoch for broker in reply.brokers}

    async def leader(self) -> int:
        """Return the node that reports that it leads."""
        async with asyncio.timeout(60):
            while True:
                for node_id in sorted(self.processes):
                    found = await self.describe(node_id)
                    if found is not None and found.known.leader_id == node_id and not found.paused:
                        return node_id
                await asyncio.sleep(0.05)  # no event of another process arrives: ask again


@pytest.fixture
async def voters(tmp_path: Path) -> AsyncIterator[Voters]:
    voters = Voters(tmp_path)
    for node_id in voters.addresses:
        await voters.start(node_id)
    try:
        await voters.ready(1, 2, 3)
        yield voters
    finally:
        for node_id in list(voters.processes):
            await voters.kill(node_id)
        await voters.client.close()


async def test_acknowledged_changes_survive_kill_9_of_leader_follower_and_all(voters: Voters) -> None:
    acknowledged = {11: await voters.register(11)}

    leader = await voters.leader()
    await voters.kill(leader)
    acknowledged[12] = await voters.register(12)
    assert await voters.leader() != leader
    await voters.start(leader)
    await voters.ready(leader)

    leader = await voters.leader()
    follower = next(node_id for node_id in voters.processes if node_id != leader)
    await voters.kill(follower)
    acknowledged[13] = await voters.register(13)
    await voters.start(follower)
    await voters.ready(follower)
    assert await voters.registered() == acknowledged

    for node_id in list(voters.processes):
        await voters.kill(node_id)
    for node_id in voters.addresses:
        await voters.start(node_id)
    await voters.ready(1, 2, 3)
    assert await voters.registered() == acknowledged
    acknowledged[14] = await voters.register(14)
    assert await voters.registered() == acknowledged


async def test_a_resumed_leader_learns_of_its_successor(voters: Voters) -> None:
    acknowledged = {11: await voters.register(11)}
    old = await voters.leader()
    voters.processes[old].send_signal(signal.SIGSTOP)
    try:
        acknowledged[12] = await voters.register(12, besides=old)
    finally:
        voters.processes[old].send_signal(signal.SIGCONT)
    new = await voters.leader()
    async with asyncio.timeout(60):
        while (found := await voters.describe(old)) is None or found.known.leader_id != new:
            new = await voters.leader()
            await asyncio.sleep(0.05)  # no event of another process arrives: ask again
    assert await voters.registered() == acknowledged


async def test_sigterm_hands_over_and_ends_with_0(voters: Voters) -> None:
    await voters.register(11)
    old = await voters.leader()
    process = voters.processes.pop(old)
    process.terminate()
    async with asyncio.timeout(60):
        assert await process.wait() == 0
    assert await voters.leader() != old
