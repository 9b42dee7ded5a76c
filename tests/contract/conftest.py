"""Kinds of store and transport that the contract tests run against.

A contract test is a function that takes a *kind* and gives it a coroutine to run; a simulated kind runs it on its own
loop.  To add a kind, add a factory to `STORE_KINDS` or `TRANSPORT_KINDS`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest

from quorum.ports import ControllerHandler, Handler, QuorumStore, Transport
from quorum.store import SqliteQuorumStore
from quorum.transport.grpc import GrpcTransport
from quorumlog.runtime.clock import Sources
from simulation.kernel.loop import Process, SimulatedLoop
from simulation.kernel.network import Network, SimulatedTransport, current_process
from simulation.kernel.store import QuorumDisk, SimulatedStore


class StoreKind(Protocol):
    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario to its end on this kind's loop."""

    def store(self, name: str = "a") -> QuorumStore:
        """Return a store that is not open yet, on the disk called `name`.  The same name is the same disk."""

    async def crash(self, store: QuorumStore) -> None:
        """End the process without closing the store; its lock ends with it."""


class TransportKind(Protocol):
    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario to its end on this kind's loop."""

    async def serve(self, handler: Handler, controller: ControllerHandler | None = None) -> tuple[Transport, str]:
        """Return a transport that serves, and its HOST:PORT."""

    def nobody(self) -> str:
        """Return an address without a listener."""

    async def close(self) -> None:
        """Close everything that `serve` returned."""


class RealStores:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        asyncio.run(_await(scenario))

    def store(self, name: str = "a") -> QuorumStore:
        return SqliteQuorumStore(self._folder / name, Sources.real())

    async def crash(self, store: QuorumStore) -> None:
        """Simulate a kill: copy the files, close the store, and put the copies in the place of its files."""
        assert isinstance(store, SqliteQuorumStore)
        kept = store.directory + ".crashed"
        shutil.copytree(store.directory, kept)
        await store.close()
        shutil.rmtree(store.directory)
        os.rename(kept, store.directory)


class RealTransports:
    def __init__(self) -> None:
        self._open: list[Transport] = []

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            try:
                await scenario()
            finally:
                await self.close()

        asyncio.run(whole())

    async def serve(self, handler: Handler, controller: ControllerHandler | None = None) -> tuple[Transport, str]:
        transport = GrpcTransport("127.0.0.1:0")
        transport.serve(handler)
        if controller is not None:
            transport.serve_controller(controller)
        await transport.start()
        self._open.append(transport)
        return transport, transport.address

    def nobody(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"127.0.0.1:{probe.getsockname()[1]}"

    async def close(self) -> None:
        for transport in self._open:
            await transport.close()


class SimulatedStores:
    """On the simulator's loop; a disk is a `QuorumDisk`, and a crash releases its lock."""

    def __init__(self, folder: Path) -> None:
        self._disks: dict[str, QuorumDisk] = {}
        self._random = Random(1)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        run_simulated(scenario)

    def store(self, name: str = "a") -> QuorumStore:
        return SimulatedStore(self._disks.setdefault(name, QuorumDisk(self._random)))

    async def crash(self, store: QuorumStore) -> None:
        await store.close()


class SimulatedTransports:
    """One simulated process with any number of transports."""

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        run_simulated(scenario)

    async def serve(self, handler: Handler, controller: ControllerHandler | None = None) -> tuple[Transport, str]:
        network = current_process().loop.network
        assert isinstance(network, Network)
        transport = SimulatedTransport(network, f"node:{network.free_port()}")
        transport.serve(handler)
        if controller is not None:
            transport.serve_controller(controller)
        await transport.start()
        return transport, transport.bind()

    def nobody(self) -> str:
        return "nobody:9093"

    async def close(self) -> None:
        """Do nothing, because the network ends with the loop."""


def run_simulated(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario as a process of its own on a simulated loop."""
    loop = SimulatedLoop()
    Network(loop, Random(1), lambda line: None)
    try:
        loop.run_until_complete(Process(loop, "node").start(_await(scenario)))
    finally:
        loop.bury()
        loop.close()


async def _await(scenario: Callable[[], Awaitable[None]]) -> None:
    await scenario()


STORE_KINDS: dict[str, Callable[[Path], Any]] = {"real": RealStores, "simulated": SimulatedStores}
TRANSPORT_KINDS: dict[str, Callable[[], Any]] = {"real": RealTransports, "simulated": SimulatedTransports}


@pytest.fixture(params=sorted(STORE_KINDS))
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> StoreKind:
    kind: StoreKind = STORE_KINDS[request.param](tmp_path)
    return kind


@pytest.fixture(params=sorted(TRANSPORT_KINDS))
def transports(request: pytest.FixtureRequest) -> TransportKind:
    kind: TransportKind = TRANSPORT_KINDS[request.param]()
    return kind
