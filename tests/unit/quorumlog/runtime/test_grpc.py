"""Whether a peer can be reached, as told by a channel that has been used before."""

from __future__ import annotations

import asyncio
import subprocess

import grpc.aio
import pytest

from quorumlog.runtime.addresses import Address
from quorumlog.runtime.grpc import bind, connect, make_channel, make_server

HOUR_S = 3600.0


async def test_a_peer_that_has_died_is_not_waited_for_and_is_found_when_it_is_back() -> None:
    """gRPC shows a channel that failed as failed until it stands again, however often it tries meanwhile."""
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


async def test_nobody_there() -> None:
    server = make_server()
    port = bind(server, Address("127.0.0.1", 0))
    await server.stop(None)
    async with make_channel(f"127.0.0.1:{port}") as channel:
        assert not await connect(channel, HOUR_S)
        assert not await connect(channel, 0)


async def test_programs_can_be_started_while_calls_go_on() -> None:
    """As PySpark starts Java: with something to do between fork and exec."""
    server = make_server()
    port = bind(server, Address("127.0.0.1", 0))
    await server.start()
    ended = asyncio.Event()

    async def ask_on() -> None:
        async with make_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/quorumlog.v1.Quorum/Nothing")
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
