"""The streams of the simulated network: both protocols learn of the end of a connection, for every cause.

After a loss of power, and behind a cut, they learn of it only when they send data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from simulation.kernel.loop import Process, SimulatedLoop
from simulation.kernel.network import Network


class Noted(asyncio.Protocol):
    """Notes what happens to a connection."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._calls.append("made")

    def connection_lost(self, exc: Exception | None) -> None:
        self._calls.append(f"lost: {type(exc).__name__}")


def test_connection_that_is_reset_before_it_is_accepted_is_reported_as_lost() -> None:
    loop = SimulatedLoop()
    network = Network(loop, Random(1), None)
    at_client: list[str] = []
    at_server: list[str] = []

    async def server() -> None:
        await loop.create_server(lambda: Noted(at_server), "b1", 9092)

    async def client() -> None:
        network.delay_ms = (100.0, 100.0)
        await loop.create_connection(lambda: Noted(at_client), "b1", 9092)
        network.delay_ms = (0.1, 0.1)
        network.reset_host("b1")  # the connection waits to be accepted for another 0.1 s
        await asyncio.sleep(1.0)

    async def both() -> None:
        listening = Process(loop, "b1").start(server())
        connecting = Process(loop, "c1").start(client())
        await listening
        await connecting

    loop.run_until_complete(both())
    loop.bury()
    loop.close()
    assert at_client == ["made", "lost: ConnectionResetError"]
    assert at_server == ["made", "lost: ConnectionResetError"]


def connected(story: Callable[[Network, Process, asyncio.Transport, list[str]], Coroutine[Any, Any, None]]) -> None:
    """Run a story with a connection from c1 to the process on b1.

    The story gets the calls of the client's protocol.
    """
    loop = SimulatedLoop()
    network = Network(loop, Random(1), None)
    calls: list[str] = []

    async def server() -> None:
        await loop.create_server(lambda: Noted([]), "b1", 9092)

    async def client(process: Process) -> None:
        transport, _ = await loop.create_connection(lambda: Noted(calls), "b1", 9092)
        await story(network, process, transport, calls)

    async def both() -> None:
        listening = Process(loop, "b1")
        await listening.start(server())
        await Process(loop, "c1").start(client(listening))

    loop.run_until_complete(both())
    loop.bury()
    loop.close()


def test_a_stream_keeps_the_order_of_bytes_but_not_the_boundaries_of_writes() -> None:
    """Otherwise no program in the simulation would ever receive a part of a request."""
    pieces: list[bytes] = []

    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            pieces.append(data)

    async def story(network: Network, process: Process, transport: asyncio.Transport, calls: list[str]) -> None:
        async def server() -> None:
            await network.loop.create_server(Server, "b2", 9092)

        await Process(network.loop, "b2").start(server())
        line, _ = await network.loop.create_connection(lambda: Noted([]), "b2", 9092)
        for number in range(100):
            line.write(b"<%d>" % number)
            await asyncio.sleep(0.0005)
        await asyncio.sleep(0.1)

    connected(story)
    assert b"".join(pieces) == b"".join(b"<%d>" % number for number in range(100))
    assert any(not one.startswith(b"<") for one in pieces)
    assert any(one.count(b"<") > 1 for one in pieces)


def test_the_peer_of_a_killed_process_receives_a_reset() -> None:
    async def story(network: Network, process: Process, transport: asyncio.Transport, calls: list[str]) -> None:
        process.kill()
        await asyncio.sleep(0.1)
        assert calls == ["made", "lost: ConnectionResetError"]

    connected(story)


def test_the_peer_of_a_host_that_lost_power_gets_a_reset_for_its_data_once_the_host_runs_again() -> None:
    async def story(network: Network, process: Process, transport: asyncio.Transport, calls: list[str]) -> None:
        process.kill(power=True)
        await asyncio.sleep(10.0)
        transport.write(b"x")
        await asyncio.sleep(10.0)
        assert calls == ["made"], "the host is still down"

        async def server() -> None:
            await network.loop.create_server(lambda: Noted([]), "b1", 9092)

        await Process(network.loop, "b1").start(server())
        await asyncio.sleep(1.0)
        assert calls == ["made", "lost: ConnectionResetError"]

    connected(story)


@pytest.mark.parametrize("sends", [False, True])
def test_the_peer_of_a_process_killed_behind_a_cut_gets_a_reset_after_the_cut_only_if_it_sent_data(sends: bool) -> None:
    async def story(network: Network, process: Process, transport: asyncio.Transport, calls: list[str]) -> None:
        for link in (("b1", "c1"), ("c1", "b1")):
            network.cut(*link)
        process.kill()
        if sends:
            transport.write(b"x")
        await asyncio.sleep(10.0)
        assert calls == ["made"]
        for link in (("b1", "c1"), ("c1", "b1")):
            network.heal(*link)
        await asyncio.sleep(10.0)
        assert (calls == ["made"]) is not sends

    connected(story)
