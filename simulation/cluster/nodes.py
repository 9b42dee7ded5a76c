"""A cluster in virtual time: voters and brokers that run the production processes on simulated ports.

A host keeps its disks when its process is killed, and its address when it restarts.  `trace` collects a line for each
message, start, kill and note, with its virtual time.  Two runs of one seed must have the same digest of the trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from broker.replica.limits import ReplicaLimits
from broker.server.process import BrokerProcess
from quorumlog.runtime.addresses import DEFAULT_LISTENER, Address, InitialVoter
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import BROKER, QUORUM_NODE, KafkaListener, NodeConfig
from quorumlog_server.control_plane import ControlPlane
from simulation.kernel.disk import SimulatedDisk
from simulation.kernel.loop import EPOCH_MS, Process, SimulatedLoop
from simulation.kernel.network import CONTROL_PORT, Network, SimulatedTransport
from simulation.kernel.store import QuorumDisk
from simulation.kernel.trace import Trace

KAFKA_PORT = 9092

T = TypeVar("T")


@dataclass
class Host:
    """A machine: its config and disks, which outlive its processes, and the current process if there is one."""

    config: NodeConfig
    quorum_disk: QuorumDisk
    disks: tuple[SimulatedDisk, ...]
    process: Process | None = None
    plane: ControlPlane | None = None
    broker: BrokerProcess | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    down: int = 0  # number of faults that prevent its start
    wall_offset_s: float = 0.0  # difference of its wall clock from those of other hosts
    failure: BaseException | None = None

    @property
    def name(self) -> str:
        return self.config.control_listen.host


class World:
    """Voters v1, v2, … with ids from 1, brokers b11, b12, … with ids from 11, and a client's host.

    `run(coroutine)` runs the test as a process of its own.  Time passes only while that process waits.
    """

    def __init__(
        self,
        seed: int,
        voters: int = 3,
        brokers: int = 3,
        *,
        spares: int = 0,
        directories: int = 1,
        settings: Mapping[str, Any] | None = None,
        limits: ReplicaLimits | None = None,
        torn: bool = False,
        traced: bool = True,
    ) -> None:
        """spares: quorum nodes that do not start as voters.

        directories: data directories of each broker.  settings: fields of every `NodeConfig`.

        torn: power failures randomly keep some data that was not durable.  traced: keep the last lines of the trace.
        """
        self.loop = SimulatedLoop()
        self.random = Random(seed)
        self.trace = Trace(1000 if traced else 0)
        self.traced = traced
        self.network = Network(self.loop, Random(self.random.getrandbits(64)), self.note)
        self.wall_offset_s = 0.0
        self._limits = limits
        self._torn = torn
        listed = tuple(InitialVoter(one, Address(f"v{one}", CONTROL_PORT)) for one in range(1, voters + 1))
        self.hosts: dict[int, Host] = {}
        for voter in listed:
            config = NodeConfig(
                role=QUORUM_NODE,
                node_id=voter.node_id,
                data_dirs=("data",),
                initial_voters=listed,
                control_listen=voter.address,
            )
            self.hosts[voter.node_id] = Host(replace(config, **(settings or {})), self.new_quorum_disk(), ())
        for broker_id in range(11, 11 + brokers):
            host = f"b{broker_id}"
            config = NodeConfig(
                role=BROKER,
                node_id=broker_id,
                data_dirs=tuple(f"data{number}" for number in range(directories)),
                bootstrap=tuple(voter.address for voter in listed),
                control_listen=Address(host, CONTROL_PORT),
                kafka_listeners=(KafkaListener(DEFAULT_LISTENER, Address(host, KAFKA_PORT)),),
            )
            disks = tuple([self.new_disk() for _ in range(directories)])
            self.hosts[broker_id] = Host(replace(config, **(settings or {})), self.new_quorum_disk(), disks)
        for node_id in range(voters + 1, voters + spares + 1):
            config = NodeConfig(
                role=QUORUM_NODE,
                node_id=node_id,
                data_dirs=("data",),
                bootstrap=tuple(voter.address for voter in listed),
                control_listen=Address(f"v{node_id}", CONTROL_PORT),
            )
            self.hosts[node_id] = Host(replace(config, **(settings or {})), self.new_quorum_disk(), ())

    def new_quorum_disk(self) -> QuorumDisk:
        return QuorumDisk(Random(self.random.getrandbits(64)))

    def new_disk(self) -> SimulatedDisk:
        return SimulatedDisk(Random(self.random.getrandbits(64)), torn=self._torn)

    def note(self, line: str) -> None:
        self.trace.add(f"{self.loop.true_time():.6f} {line}")

    def show(self, line: str) -> None:
        """See `Trace.show`."""
        self.trace.show(f"{self.loop.true_time():.6f} {line}")

    @property
    def voters(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.config.role == QUORUM_NODE]

    @property
    def brokers(self) -> list[Host]:
        return [host for host in self.hosts.values() if host.config.role == BROKER]

    @property
    def bootstrap(self) -> list[str]:
        """The brokers' Kafka addresses."""
        return [f"{host.name}:{KAFKA_PORT}" for host in self.brokers]

    # Processes

    def start(self, node_id: int) -> None:
        """Start the node's process on its host, with the current contents of its disks."""
        host = self.hosts[node_id]
        assert host.process is None, f"{host.name} is running"
        self.note(f"start {host.name}")
        host.process = Process(self.loop, host.name)
        host.stop = asyncio.Event()
        host.failure = None
        host.process.start(self._main(host))

    def start_all(self) -> None:
        for node_id in sorted(self.hosts):
            self.start(node_id)

    def kill(self, node_id: int) -> None:
        """End the process as SIGKILL and a power failure would: data that was not durable is lost."""
        host = self.hosts[node_id]
        assert host.process is not None, f"{host.name} is not running"
        self.note(f"kill {host.name}")
        host.process.kill()
        host.process = host.plane = host.broker = None
        host.quorum_disk.crash()
        for disk in host.disks:
            disk.crash()

    async def _main(self, host: Host) -> None:
        sources = Sources.seeded(self.random.getrandbits(64), lambda: self.wall_ms(host))
        transport = SimulatedTransport(self.network, str(host.config.control_listen))
        store = host.quorum_disk.store()
        try:
            if host.config.role == QUORUM_NODE:
                plane = ControlPlane(host.config, sources, store, transport)
                self.opening(host, plane, None)
                async with plane:
                    host.plane = plane
                    await host.stop.wait()
            else:
                broker = BrokerProcess(host.config, sources, host.disks, store, transport, self._limits)
                self.opening(host, broker.plane, broker)
                async with broker:
                    host.broker, host.plane = broker, broker.plane
                    await host.stop.wait()
        except Exception as failure:
            self.note(f"{host.name} ends: {failure}")
            host.failure = failure

    def opening(self, host: Host, plane: ControlPlane, broker: BrokerProcess | None) -> None:
        """Called in a process before any part of it runs, so that a subclass can attach checks."""

    def wall_ms(self, host: Host | None = None) -> int:
        """Return the time of the wall clock of a host, or of a client."""
        offset_s = self.wall_offset_s + (0.0 if host is None else host.wall_offset_s)
        return EPOCH_MS + int((self.loop.time() + offset_s) * 1000)

    # Waiting

    async def until(
        self, condition: Callable[[], bool], text: str, timeout_s: float = 60.0, look_s: float = 0.005
    ) -> float:
        """Wait until the condition holds, checking it every `look_s`.  Return the seconds that it took.

        Raises:
            AssertionError: the condition did not hold within `timeout_s`, or a process has failed.
        """
        began = self.loop.time()
        while not condition():
            failed = [host for host in self.hosts.values() if host.failure is not None]
            if failed:
                raise AssertionError(f"{failed[0].name} failed: {failed[0].failure!r}") from failed[0].failure
            assert self.loop.time() - began < timeout_s, f"not within {timeout_s} s of virtual time: {text}"
            await asyncio.sleep(look_s)
        self.note(f"reached: {text}")
        return self.loop.time() - began

    def active(self) -> Host | None:
        """Return the host of the active controller; None unless exactly one controller is active."""
        found = [host for host in self.hosts.values() if host.plane is not None and host.plane.controller.active]
        return found[0] if len(found) == 1 else None

    def run(self, main: Coroutine[Any, Any, T], timeout_s: float = 600.0) -> T:
        """Run `main` as the process `client`, for at most `timeout_s` of virtual time; then end the simulation."""
        result: list[T] = []

        async def whole() -> None:
            async with asyncio.timeout(timeout_s):
                result.append(await main)

        try:
            self.loop.run_until_complete(Process(self.loop, "client").start(whole()))
        finally:
            self.loop.bury()
            self.loop.close()
        return result[0]
