"""Batches of transactions that arrive late, perhaps after their transaction has ended (KIP-890).

The fault waits until a transactional producer is about to send a batch.  Then it cuts the link from the producer to the
leader of the partition, in this direction only, while the producer still reaches its coordinator.  The producer gives
up the batch and aborts the transaction before its timeout: an abort by the coordinator would raise the epoch, and so
fence the batch.  The leader gets the marker first, and the batch once the link works again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from broker.core.coordinator.placement import partition_of
from metadata.image.internal_topics import TRANSACTION_STATE
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import LEDGER, ClusterPlan
from simulation.cluster.world import ClusterWorld
from simulation.kernel.faults import Action, Fault, FaultInjector, with_more

LATE_BATCH = "late batch"
SHARE = 0.6
"""Fraction of the runs with transactional producers."""
WAIT_S = 1.0
"""How long the fault waits for a batch."""
CUT_S = (0.15, 0.7)
PATIENCE_S = 0.1
"""How long the producer waits for the answer to the batch: much less than the timeout of its transaction."""


def drawn(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Add late batches to some runs with transactional producers."""
    if not plan.transactional or random.random() >= SHARE:
        return plan
    late = [
        Fault(0, LATE_BATCH, random.uniform(0.3, plan.chaos_s), WAIT_S, (), random.random())
        for _ in range(random.choice((3, 6, 10)))
    ]
    return replace(plan, faults=with_more(plan.faults, late))


class _Link(NamedTuple):
    source: str
    target: str


class LateBatches:
    """The `actions` that make batches late."""

    def __init__(self, world: ClusterWorld, injector: FaultInjector) -> None:
        self._world = world
        self._injector = injector
        self._waiting: deque[asyncio.Future[_Link]] = deque()
        self.actions: dict[str, Action] = {LATE_BATCH: self._make_late}
        world.late_batch = self._before_batch

    async def _make_late(self, fault: Fault) -> None:
        """Wait until `_before_batch` has cut the link for a batch, and restore the link after a while."""
        link: asyncio.Future[_Link] = asyncio.get_running_loop().create_future()
        self._waiting.append(link)
        over = asyncio.ensure_future(self._injector.wait(fault.length_s))
        first: list[asyncio.Future[Any]] = [link, over]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not link.done():
            self._waiting.remove(link)
            return
        shortest, longest = CUT_S
        await self._injector.wait(shortest + fault.amount * (longest - shortest))
        self._world.network.heal(*link.result())

    def _before_batch(self, producer: str, transactional_id: str, spot: Spot) -> float | None:
        """Cut the link for the next batch of a producer, if a fault waits for a batch.

        Return the producer's timeout for that batch in seconds, or None for any other batch.
        """
        world, image = self._world, self._world.watch.metadata.image
        topic, state = image.topic(spot.topic), image.topic(TRANSACTION_STATE)
        if not self._waiting or spot.topic != LEDGER or topic is None or state is None:
            return None
        written = topic.partitions[spot.index]
        coordinated = state.partitions[partition_of(transactional_id, len(state.partitions))]
        if written is None or written.leader not in world.hosts:
            return None
        if coordinated is None or coordinated.leader == written.leader:
            return None
        link = _Link(producer, world.hosts[written.leader].name)
        world.network.cut(*link)
        world.watch.seen["batch of a transaction delayed"] += 1
        self._waiting.popleft().set_result(link)
        return PATIENCE_S
