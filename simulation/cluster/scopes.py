"""Transaction scopes under attack: drivers, their producers, and readers of committed records.

Each scope has one driver, or two that fence each other (`scope_drivers.py`).  Each driver has producers on other hosts
(`scope_tasks.py`).  Drivers are killed at any moment, and paused while another driver begins a run.  `scope_watch.py`
checks the answers and the visible producers, and `ledger.py` the records that readers get.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from quorumlog.client.cluster import Cluster
from quorumlog.errors import ClusterError
from simulation.cluster.committed_reader import CommittedReader
from simulation.cluster.ledger import Ledger
from simulation.cluster.scope_drivers import Driver
from simulation.cluster.scope_tasks import Shared
from simulation.cluster.world import ClusterWorld

KILL_SHARE, PAUSE_SHARE = 0.2, 0.15
FATE_S = 3.0
"""The longest time from the start of a driver until it is killed or paused."""
PAUSE_S = (0.3, 3.0)


class Scopes:
    """The drivers, producers and readers of a run.  new_client: returns a new `Cluster`."""

    def __init__(self, world: ClusterWorld, new_client: Callable[[], Cluster]) -> None:
        self.world = world
        self.shared = Shared(world, new_client)
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def stop(self) -> asyncio.Event:
        return self.shared.stop

    @property
    def ledger(self) -> Ledger:
        return self.shared.ledger

    def start(self) -> None:
        plan = self.world.plan
        for name in plan.driver_hosts:
            self.tasks.append(self.world.start_client(name, self._drive(name, Random(f"{plan.seed} {name}"))))
        for name in plan.scope_reader_hosts:
            self.tasks.append(self.world.start_client(name, self._read(name, Random(f"{plan.seed} {name}"))))

    async def _drive(self, name: str, random: Random) -> None:
        """Run drivers, one after the other.  For each scope, one host commits a last sequence."""
        scope = f"scope {name[1:-1]}"
        self.shared.owners.setdefault(scope, f"owner of {scope}")
        while not self.stop.is_set():
            await self._live(name, Driver(self.shared, scope, Random(random.getrandbits(64)), is_last=False), random)
        has_committed = not name.endswith("a")
        while not has_committed:
            last = Driver(self.shared, scope, Random(random.getrandbits(64)), is_last=True)
            await self._live(name, last, random)
            has_committed = last.has_committed

    async def _live(self, name: str, driver: Driver, random: Random) -> None:
        """Run a driver to its end.  Some drivers are killed or paused at any moment."""
        process, task = self.world.start_process(name, driver.run())
        fate = 1.0 if driver.is_last else random.random()
        if fate < KILL_SHARE + PAUSE_SHARE:
            await asyncio.wait({task}, timeout=random.uniform(0, FATE_S))
        if fate < KILL_SHARE and not task.done():
            self.shared.seen["driver of a scope killed"] += 1
            process.kill()
            return
        if fate < KILL_SHARE + PAUSE_SHARE and not task.done():
            self.shared.seen["driver of a scope paused"] += 1
            process.pause()
            await asyncio.sleep(random.uniform(*PAUSE_S))
            process.resume()
        await asyncio.wait({task})
        await asyncio.sleep(random.uniform(0, 0.5))

    async def _read(self, name: str, random: Random) -> None:
        async with self.shared.new_client() as cluster:
            reader = CommittedReader(cluster, self.ledger, name)
            while not self.stop.is_set():
                try:
                    await reader.read_some(random.choice(self.shared.spots), random)
                except ClusterError:
                    self.shared.seen["read failed"] += 1
                await asyncio.sleep(random.uniform(0, 0.2))

    def end_producers(self) -> None:
        """Kill all producers.  Their open transactions are aborted by timeouts."""
        for process in self.shared.processes:
            process.kill()

    async def check_all(self) -> None:
        """Read everything back, after all transactions have ended."""
        self.ledger.check_ends()
        self.shared.watch.check_all()
        async with self.shared.new_client() as cluster:
            reader = CommittedReader(cluster, self.ledger, "last")
            for spot in self.shared.spots:
                await reader.read_all(spot)
