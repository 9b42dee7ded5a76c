"""Finds the reason why a control address does not answer, with plain connections.

A port for Kafka clients and an HTTP port also accept connections, but do not speak gRPC.  Each address is probed with
these protocols, so that the error message can name the mistake.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from quorumlog.runtime.addresses import parse_address

HANGS: Final = "it accepts connections, but does not answer"
REFUSED: Final = "connection refused: nothing listens there"
_CORRELATION_ID: Final = b"QLOG"
_KAFKA_HELLO: Final = b"\x00\x00\x00\x0a\x00\x12\x00\x00" + _CORRELATION_ID + b"\xff\xff"
"""An ApiVersions request of version 0, which every Kafka broker answers."""
_HTTP_HELLO: Final = b"GET /livez HTTP/1.1\r\nHost: kctl\r\nConnection: close\r\n\r\n"
_REPLY_BYTES: Final = 8

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@dataclass(frozen=True, slots=True)
class Silence:
    """The reason why an address does not answer.

    text: the reason in words.  is_other_port: the address speaks another protocol, so a retry does not help.
    """

    text: str
    is_other_port: bool = False

    @property
    def is_refused(self) -> bool:
        """Return whether the machine refused the connection, because nothing listens at the address."""
        return self.text == REFUSED


async def open_stream(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection so that a cancellation does not wait for the name resolver.

    A look-up of a name cannot be cancelled, and a loop that closes waits for the threads of its own executor.
    """
    pool = ThreadPoolExecutor(1, "resolver")
    try:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(pool, look_up)
    finally:
        pool.shutdown(wait=False)
    failure: OSError = OSError(f"{host} has no address")
    for resolved in dict.fromkeys(str(each[4][0]) for each in found):
        try:
            return await asyncio.open_connection(resolved, port)
        except OSError as error:
            failure = error
    raise failure


async def probe(address: str, timeout_s: float, connect: Connect = open_stream) -> str | None:
    """Return the reason, in words, why a connection to an address fails; None if it succeeds."""
    target = parse_address(address)
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await connect(target.host, target.port)
    except TimeoutError:
        return "no answer to a connection: the machine is down, or this machine cannot reach it"
    except ConnectionRefusedError:
        return REFUSED
    except socket.gaierror as error:
        return f"the host name {target.host} cannot be resolved: {error.strerror}"
    except OSError as error:
        return f"cannot be reached: {error.strerror or error}"
    await _close(writer)
    return None


async def why_silent(address: str, timeout_s: float, connect: Connect = open_stream) -> Silence:
    """Return the reason why an address did not answer a gRPC call.  Takes at most twice `timeout_s`."""
    text = await probe(address, timeout_s, connect)
    if text is not None:
        return Silence(text)
    kafka, http = await asyncio.gather(
        _reply_to(_KAFKA_HELLO, address, timeout_s, connect), _reply_to(_HTTP_HELLO, address, timeout_s, connect)
    )
    if kafka[4:8] == _CORRELATION_ID:
        return Silence("that is a port for Kafka clients, not a control address", is_other_port=True)
    if http.startswith(b"HTTP/"):
        return Silence("that is an HTTP port (metrics and health), not a control address", is_other_port=True)
    return Silence(HANGS)


async def _reply_to(hello: bytes, address: str, timeout_s: float, connect: Connect) -> bytes:
    """Return the first bytes of the reply; empty if there is no reply."""
    target = parse_address(address)
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await connect(target.host, target.port)
            writer.write(hello)
            return await reader.readexactly(_REPLY_BYTES)
    except (TimeoutError, asyncio.IncompleteReadError, OSError):
        return b""
    finally:
        if writer is not None:
            await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
