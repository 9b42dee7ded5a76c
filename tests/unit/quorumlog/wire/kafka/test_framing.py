"""Frames on a connection."""

from __future__ import annotations

import asyncio
import socket

import pytest

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka.framing import FrameProtocol, write_parts


class Refusing(FrameProtocol):
    """Records why the stream was refused."""

    def __init__(self) -> None:
        super().__init__(1000)
        self.refusals: list[str] = []

    def frame_received(self, frame: memoryview) -> None: ...

    def frame_refused(self, error: RemoteProtocolError) -> None:
        self.refusals.append(str(error))


@pytest.mark.parametrize(
    ("begin", "hint"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "; the peer seems to speak TLS, which is not supported"),
        (b"GET / HTTP/1.1\r\n", "; the peer seems to speak HTTP: "),
        (b"HTTP/1.1 400 \r\n", "; the peer seems to speak HTTP: this is the address of an HTTP server"),
        (b"PRI * HTTP/2.0\r\n", "; the peer seems to speak HTTP/2, as gRPC does: use a control address"),
        (b"\xff\xff\xff\xff", ""),
    ],
)
def test_the_error_of_a_frame_of_another_protocol_names_the_protocol(begin: bytes, hint: str) -> None:
    """Otherwise the error would contain only the size of the frame, which explains nothing."""
    protocol = Refusing()
    protocol.data_received(begin)
    (text,) = protocol.refusals
    assert text.startswith(f"frame of {int.from_bytes(begin[:4], signed=True)} bytes; the limit is 1000{hint}")
    assert bool(hint) == ("seems to speak" in text)


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


async def test_write_parts_sends_all_parts_in_order() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    write_parts(transport, (b"a", bytearray(b"bc"), memoryview(b"def")))
    assert theirs.recv(100) == b"abcdef"
    transport.close()
    theirs.close()
