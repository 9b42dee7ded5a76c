"""The reachability of a peer, according to a channel that was used before."""

from __future__ import annotations

import asyncio
import subprocess

import grpc.aio
import pytest

from quorumlog.runtime.addresses import Address
from quorumlog.runtime.grpc import bind, connect, make_channel, make_server

HOUR_S = 3600.0


async def test_a_dead_peer_is_not_waited_for_and_is_found_after_its_restart() -> None:
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


async def test_an_address_without_a_listener_is_not_reached() -> None:
    server = make_server()
    port = bind(server, Address("127.0.0.1", 0))
    await server.stop(None)
    async with make_channel(f"127.0.0.1:{port}") as channel:
        assert not await connect(channel, HOUR_S)
        assert not await connect(channel, 0)


async def test_programs_can_be_started_during_calls() -> None:
    """Start a program as PySpark starts Java: with work between fork and exec."""
    server = make_server()
    port = bind(server, Address("127.0.0.1", 0))
    await server.start()
    ended = asyncio.Event()

    async def ask_on() -> None:
        async with make_channel(f"127.0.0.1:{port}") as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/quorumlog.v1.Quorum/Nothing")
            while not ended.is_set():
                with pytest.raises(grpc.aio.AioRpcError, match="UNIMPLEMENTED"):
                    await call(b"")

    def start_programs() -> list[int]:
        return [subprocess.run(["true"], preexec_fn=lambda: None).returncode for _ in range(60)]

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(ask_on())
        codes = await asyncio.get_running_loop().run_in_executor(None, start_programs)
        ended.set()
    assert codes == [0] * 60
    await server.stop(None)
