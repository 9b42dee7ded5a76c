"""Frames on a connection."""

from __future__ import annotations

import asyncio
import socket

import pytest

from quorumlog.wire.kafka.framing import write_parts


async def test_writes_to_a_lost_connection_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """After the fifth such write, asyncio logs a warning for each one."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    theirs.close()
    for _ in range(10):
        write_parts(transport, (b"a", b"bc"))
    transport.abort()
    write_parts(transport, (b"d",))
    assert caplog.records == []
    transport.close()


async def test_all_parts_arrive_in_order() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    write_parts(transport, (b"a", bytearray(b"bc"), memoryview(b"def")))
    assert theirs.recv(100) == b"abcdef"
    transport.close()
    theirs.close()
