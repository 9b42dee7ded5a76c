"""Faults and their execution: each begins at its time, and ends after its length or with `heal`.

Overlapping faults are counted, so a link or node works again only when the last fault on it has ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random
from typing import Any, Protocol

from simulation.kernel.network import Network

ALL_LINKS = "all links"
ALL_LINKS_SHARE = 0.1
"""Fraction of the runs in which all links are cut or slow at the same time, in addition to the other faults."""
REAL_STORE_SHARE = 0.12
"""Fraction of the runs in which quorum disks are SQLite databases on real files."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a plan.

    number: its place in the plan as drawn.  at_s, length_s: when it begins, and how long it lasts.
    nodes: the affected nodes; `LEADER` for the current leader.  amount: its strength, in a unit that depends on the
    kind.
    """

    number: int
    kind: str
    at_s: float
    length_s: float
    nodes: tuple[int, ...]
    amount: float

    def __str__(self) -> str:
        whom = ",".join(str(node) for node in self.nodes)
        return f"#{self.number} {self.at_s:.2f}s +{self.length_s:.2f}s {self.kind} {whom} {self.amount:.2f}"


Action = Callable[[Fault], Coroutine[Any, Any, None]]


class AttackPlan(Protocol):
    """The part of a plan that all attackers need.  chaos_s: the time in which faults begin."""

    @property
    def faults(self) -> tuple[Fault, ...]: ...
    @property
    def chaos_s(self) -> float: ...


class Attacked(Protocol):
    """The part of a world that all attackers need."""

    @property
    def plan(self) -> AttackPlan: ...
    @property
    def network(self) -> Network: ...
    @property
    def faults(self) -> Counter[str]:
        """Return how many faults of each kind have begun."""
        ...

    def note(self, line: str) -> None: ...


class FaultInjector:
    """Executes the faults of one run: `inject`, then `heal`.  Subclasses fill `actions`, one for each kind."""

    LATE_S = 2.0
    ALL_CUT = 0.6
    SLOW_MAX_MS = 1000

    def __init__(self, attacked: Attacked) -> None:
        self._attacked = attacked
        self._stop = asyncio.Event()
        self._open: list[asyncio.Task[None]] = []
        self._degraded: list[Fault] = []
        self.actions: dict[str, Action] = {}

    async def inject(self) -> None:
        """Begin each fault at its time, and return when the plan's `chaos_s` is over.

        Faults whose length ends later continue, at most until `heal`.
        """
        attacked = self._attacked
        loop = asyncio.get_running_loop()
        began = loop.time()
        for fault in attacked.plan.faults:
            await asyncio.sleep(max(0.0, began + fault.at_s - loop.time()))
            attacked.note(f"FAULT {fault}")
            attacked.faults[fault.kind] += 1
            self._open.append(loop.create_task(self.actions[fault.kind](fault)))
        await asyncio.sleep(max(0.0, began + attacked.plan.chaos_s - loop.time()))

    async def heal(self) -> None:
        """End all faults; every link is whole when this returns."""
        self._stop.set()
        for task in self._open:
            await task

    async def wait(self, length_s: float) -> None:
        """Return when the time is up, or when `heal` ends all faults."""
        try:
            async with asyncio.timeout(length_s):
                await self._stop.wait()
        except TimeoutError:
            pass

    async def degrade_links(self, fault: Fault) -> None:
        """Make all links slow, lossy, duplicating or late.  Of overlapping faults, the worst of each kind applies."""
        self._degraded.append(fault)
        self._set_degraded()
        await self.wait(fault.length_s)
        self._degraded.remove(fault)
        self._set_degraded()

    def _set_degraded(self) -> None:
        network = self._attacked.network

        def worst(kind: str) -> float:
            return max((fault.amount for fault in self._degraded if fault.kind == kind), default=0.0)

        network.delay_ms = (0.1, max(2.0, worst("slow")))
        network.loss, network.duplicates = worst("loss"), worst("duplicate")
        network.late = (worst("late"), self.LATE_S)

    async def cut_links(self, length_s: float, links: Sequence[tuple[str, str]]) -> None:
        """Cut these links for this time, each in one direction."""
        network = self._attacked.network
        for link in links:
            network.cut(*link)
        await self.wait(length_s)
        for link in links:
            network.heal(*link)

    async def all_links(self, fault: Fault, nodes: Sequence[str], clients: Sequence[str]) -> None:
        """Cut all links between nodes together, with or without the clients' links, or make all links very slow.

        The amount of the fault decides which.
        """
        if fault.amount >= self.ALL_CUT:
            await self.degrade_links(replace(fault, kind="slow", amount=fault.amount * self.SLOW_MAX_MS))
            return
        names = [*nodes, *clients] if fault.amount >= self.ALL_CUT / 2 else nodes
        await self.cut_links(fault.length_s, list(permutations(names, 2)))

    async def flapping(self, fault: Fault, links: Sequence[tuple[str, str]]) -> None:
        """Cut and heal the links in turns, for `amount` seconds each."""
        loop = asyncio.get_running_loop()
        end = loop.time() + fault.length_s
        while loop.time() < end and not self._stop.is_set():
            await self.cut_links(fault.amount, links)
            await self.wait(fault.amount)


def without_kinds(faults: tuple[Fault, ...], kinds: Sequence[str]) -> tuple[Fault, ...]:
    """Return the faults of all other kinds, numbered again."""
    kept = [fault for fault in faults if fault.kind not in kinds]
    return tuple(replace(fault, number=number) for number, fault in enumerate(kept))


def with_all_links(random: Random, faults: tuple[Fault, ...], chaos_s: float) -> tuple[Fault, ...]:
    """Add the fault `ALL_LINKS` in some runs."""
    if random.random() >= ALL_LINKS_SHARE:
        return faults
    length_s = random.choice((random.uniform(0.1, 1.0), random.uniform(1.0, 4.0)))
    return with_more(faults, [Fault(0, ALL_LINKS, random.uniform(0.2, chaos_s), length_s, (), random.random())])


def with_more(faults: tuple[Fault, ...], more: Sequence[Fault]) -> tuple[Fault, ...]:
    """Add faults in the order of their times, and number all of them."""
    ordered = sorted((*faults, *more), key=lambda fault: fault.at_s)
    return tuple(replace(fault, number=number) for number, fault in enumerate(ordered))
