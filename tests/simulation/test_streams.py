"""The streams of the simulated network: both protocols learn of the end of a connection, for every cause."""

from __future__ import annotations

import asyncio
from random import Random

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
