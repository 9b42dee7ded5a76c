"""gRPC channels: the reachability of a peer, and programs that are started during calls."""

from __future__ import annotations

import subprocess
import sys

from quorumlog.runtime.addresses import Address
from quorumlog.runtime.grpc import bind, connect, make_channel, make_server

HOUR_S = 3600.0


async def test_connect_fails_at_once_for_a_stopped_peer_and_succeeds_after_its_restart() -> None:
    """gRPC reports a failed channel as failed until it is connected again, even while it retries."""
    server = make_server()
    port = bind(server, Address("127.0.0.1", 0))
    await server.start()
    async with make_channel(f"127.0.0.1:{port}") as channel:
        assert await connect(channel, HOUR_S)
        await server.stop(None)
        while await connect(channel, HOUR_S):
            pass  # the end of the connection has not arrived yet
        for _ in range(3):
            assert not await connect(channel, HOUR_S)
        again = make_server()
        assert bind(again, Address("127.0.0.1", port)) == port
        await again.start()
        while not await connect(channel, HOUR_S):
            pass
        await again.stop(None)


async def test_connect_fails_for_an_address_without_a_listener() -> None:
    server = make_server()
    port = bind(server, Address("127.0.0.1", 0))
    await server.stop(None)
    async with make_channel(f"127.0.0.1:{port}") as channel:
        assert not await connect(channel, HOUR_S)
        assert not await connect(channel, 0)


def test_programs_can_be_started_during_grpc_calls() -> None:
    """The test uses a process of its own, because a fork of the large process of the tests is slow."""
    subprocess.run([sys.executable, "-m", "tests.unit.quorumlog.runtime.programs_during_calls"], check=True)
