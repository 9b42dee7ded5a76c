"""Faults drawn from the seed: kills with power loss, pauses, links cut one way or both.

Each fault has an end.  Faults may overlap, so a majority may be unavailable for a time.  `heal` ends all faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from simulation.cluster.nodes import World

GAP_S = (0.2, 4.0)
LENGTH_S = (0.1, 9.0)


class Faults:
    """Injects faults into `world` until `heal`.  `counts` is the number of faults of each kind."""

    def __init__(self, world: World, random: Random) -> None:
        self.world = world
        self.random = random
        self.counts: Counter[str] = Counter()
        self._open: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()

    async def run(self, duration_s: float) -> None:
        """Begin faults for `duration_s`.  Faults that have not ended then continue until `heal`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + duration_s
        while loop.time() < end:
            await asyncio.sleep(self.random.uniform(*GAP_S))
            fault = self.random.choice((self._kill, self._kill, self._pause, self._cut, self._cut_one_way))
            self._open.append(loop.create_task(fault(self.random.uniform(*LENGTH_S))))

    async def heal(self) -> None:
        """End all faults; every host runs and every link is whole when this returns."""
        self._stop.set()
        await asyncio.gather(*self._open)

    async def _for(self, length_s: float) -> None:
        try:
            async with asyncio.timeout(length_s):
                await self._stop.wait()
        except TimeoutError:
            pass

    def _pick(self) -> int | None:
        """Return a node that runs and is not paused."""
        nodes = [
            node_id
            for node_id, host in sorted(self.world.hosts.items())
            if host.process is not None and not host.process.paused
        ]
        return self.random.choice(nodes) if nodes else None

    async def _kill(self, length_s: float) -> None:
        if (node_id := self._pick()) is None:
            return
        self.counts["kill"] += 1
        self.world.kill(node_id)
        await self._for(length_s)
        self.world.start(node_id)

    async def _pause(self, length_s: float) -> None:
        if (node_id := self._pick()) is None:
            return
        self.counts["pause"] += 1
        process = self.world.hosts[node_id].process
        assert process is not None
        self.world.note(f"pause {process.host}")
        process.pause()
        await self._for(length_s)
        self.world.note(f"resume {process.host}")
        process.resume()

    def _pair(self) -> tuple[str, str]:
        names = [host.name for _, host in sorted(self.world.hosts.items())] + ["client"]
        first, second = self.random.sample(names, 2)
        return first, second

    async def _cut(self, length_s: float) -> None:
        self.counts["cut"] += 1
        first, second = self._pair()
        await self._without(length_s, (first, second), (second, first))

    async def _cut_one_way(self, length_s: float) -> None:
        self.counts["one-way cut"] += 1
        await self._without(length_s, self._pair())

    async def _without(self, length_s: float, *links: tuple[str, str]) -> None:
        self.world.note(f"cut {links}")
        for link in links:
            self.world.network.cut(*link)
        await self._for(length_s)
        self.world.note(f"heal {links}")
        for link in links:
            self.world.network.heal(*link)
