"""Two releases in one cluster: some nodes support only the older level of `metadata.version`.

Theory of operation.  This module simulates a newer release, which supports one level more than this one.  For the code
of each simulated process, the highest supported level depends on the host of the process.  An administrator raises the
level while nodes of both releases work, and replaces the older release node by node.  A node of the older release that
meets the newer level must end with an error that names the level.  An operator then starts the newer release on the
same disks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

from broker.server import lifecycle
from metadata import codec, snapshot
from metadata.control import features
from metadata.records import METADATA_VERSION, METADATA_VERSION_MAX, METADATA_VERSION_MIN
from quorumlog.errors import QuorumlogError
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.nodes import Host
from simulation.cluster.orders import Orders
from simulation.cluster.plan import ClusterPlan
from simulation.cluster.world import ClusterWorld
from simulation.kernel.faults import Action, Fault
from simulation.kernel.loop import PROCESS

OLDER = METADATA_VERSION_MAX
NEWER = METADATA_VERSION_MAX + 1
SHARE = 0.12
KINDS = ("raise level", "newer release")
OPERATOR_S = (0.2, 1.5)
"""The delay until an operator starts the newer release on a node that ended because it lacks a level."""
ORDERLY_S = 2.0


def drawn(random: Random, plan: ClusterPlan) -> tuple[tuple[int, ...], list[Fault]]:
    """Return the nodes that begin with the older release, and the administrator's actions; none in most runs."""
    if random.random() >= SHARE:
        return (), []
    among = random.choice((plan.node_ids, plan.node_ids, plan.node_ids[: plan.voters], plan.broker_ids))
    older = tuple(node for node in among if random.random() < 0.5) or (random.choice(among),)
    replaced = random.choice((0.0, 0.6, 1.0))
    more = [_fault(random, plan, "newer release", (node,)) for node in older if random.random() < replaced]
    more += [_fault(random, plan, "raise level", ()) for _ in range(random.randint(1, 3))]
    return older, [*more, replace(more[-1], at_s=plan.chaos_s)]


def _fault(random: Random, plan: ClusterPlan, kind: str, nodes: tuple[int, ...]) -> Fault:
    return Fault(0, kind, random.uniform(0.2, plan.chaos_s), random.uniform(0.1, 2.0), nodes, random.random())


class Releases:
    """The release of each node of one run, and the administrator's `actions` that change it."""

    def __init__(self, world: ClusterWorld, older: Sequence[int]) -> None:
        self._world = world
        self._older = {world.hosts[node].name for node in older}
        self._random = world.fresh_random() if older else Random(0)
        self._level_met = METADATA_VERSION_MIN
        world.is_expected = self._explains
        world.watch.metadata.supported_by = lambda node_id: self.supported_by(world.hosts[node_id].name)

    def supported_by(self, host_name: str) -> int:
        """Return the highest level that the release on this host supports."""
        return OLDER if host_name in self._older else NEWER

    def actions(self, orders: Orders) -> dict[str, Action]:
        async def raise_level(fault: Fault) -> None:
            random = Random(f"{self._world.plan.seed} {fault.number}")
            level = random.choice((None, NEWER, NEWER, OLDER))
            request = pb.UpgradeFeatureRequest(name=METADATA_VERSION, level=level)
            await orders.ask(rpcs.UPGRADE_FEATURE, request, fault.length_s, random)

        return {"raise level": raise_level, "newer release": self._replace}

    async def _replace(self, fault: Fault) -> None:
        """Stop or kill the node, and start the newer release in its place."""
        host = self._world.hosts[fault.nodes[0]]
        process = host.process
        if fault.amount < 0.7:
            host.stop.set()
            await asyncio.sleep(ORDERLY_S)
        if host.process is process:
            self._world.bring_down(host.config.node_id)
        self._older.discard(host.name)
        self._world.bring_up(host.config.node_id)

    def _explains(self, host: Host, failure: QuorumlogError) -> bool:
        """Return whether the node ended because its release lacks a level.  If so, start the newer release soon."""
        if METADATA_VERSION not in failure.message or host.name not in self._older:
            return False
        world = self._world
        world.watch.seen["older release ended"] += 1
        self._level_met = NEWER
        self._older.discard(host.name)
        delay_s = self._random.uniform(*OPERATOR_S)
        world.loop.call_later(delay_s, world.bring_up, host.config.node_id, context=Context())
        return True

    def problem(self) -> str | None:
        """Return an error if a level that ended a node is not in force at the end of the run."""
        level = self._world.watch.metadata.image.features.get(METADATA_VERSION, METADATA_VERSION_MIN)
        if level < self._level_met:
            return f"I26: a node ended because of level {self._level_met}, but level {level} is in force"
        return None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Limit the code of each process to the levels that the release on its host supports."""
        highest = _HighestLevel(self)
        with (
            patch.object(codec, "METADATA_VERSION_MAX", highest),
            patch.object(snapshot, "METADATA_VERSION_MAX", highest),
            patch.object(lifecycle, "METADATA_VERSION_MAX", highest),
            patch.object(features, "SUPPORTED", _Supported(highest)),
        ):
            yield


class _HighestLevel:
    """A number that depends on the process that reads it."""

    def __init__(self, releases: Releases) -> None:
        self._releases = releases

    def __index__(self) -> int:
        process = PROCESS.get()
        return NEWER if process is None else self._releases.supported_by(process.host)

    def __ge__(self, other: int) -> bool:
        return self.__index__() >= other

    def __str__(self) -> str:
        return str(self.__index__())


class _Supported(Mapping[str, Any]):
    """`metadata.control.features.SUPPORTED` of the process that reads it."""

    def __init__(self, highest: _HighestLevel) -> None:
        self._highest = highest

    def __getitem__(self, name: str) -> range:
        if name != METADATA_VERSION:
            raise KeyError(name)
        return range(METADATA_VERSION_MIN, self._highest.__index__() + 1)

    def __iter__(self) -> Iterator[str]:
        return iter((METADATA_VERSION,))

    def __len__(self) -> int:
        return 1
