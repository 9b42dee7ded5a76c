"""Connections to the control port: idle ones, and more than the limit."""

from __future__ import annotations

import asyncio
import resource

import grpc
import pytest

from quorumlog.runtime import grpc as runtime_grpc
from quorumlog.runtime.addresses import Address


async def test_connections_above_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (160, 160))
    server = runtime_grpc.make_server()
    port = runtime_grpc.bind(server, Address("127.0.0.1", 0))
    await server.start()
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
    try:

        async def is_closed(reader: asyncio.StreamReader) -> bool:
            """Return whether the server closes the connection.

            A server that continues with HTTP/2 sends its settings and keeps the connection.
            """
            try:
                async with asyncio.timeout(2):
                    while await reader.read(1_000):
                        pass
            except TimeoutError:
                return False
            except OSError:
                pass
            return True

        for _, writer in connections:
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        closed = await asyncio.gather(*(is_closed(reader) for reader, _ in connections))
        assert 1 <= closed.count(False) <= 20, closed.count(False)
    finally:
        for _, writer in connections:
            writer.close()
        await server.stop(None)


async def test_idle_connections_do_not_block_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (160, 160))
    server = runtime_grpc.make_server()
    port = runtime_grpc.bind(server, Address("127.0.0.1", 0))
    await server.start()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
    channel = runtime_grpc.make_channel(f"127.0.0.1:{port}")
    try:
        async with asyncio.timeout(8):  # less than a command of kctl waits by default
            while not await runtime_grpc.connect(channel, 1):
                pass  # refused; `connect` waits before the next attempt
        assert channel.get_state() is grpc.ChannelConnectivity.READY
    finally:
        await channel.close()
        for _, writer in silent:
            writer.close()
        await server.stop(None)
