"""After a network outage that pauses the controller, no broker is fenced because of the outage."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from simulation import smoke
from simulation.cluster.nodes import Host, World
from tests.simulation.test_background import image_of
from tests.simulation.test_known_failures import active, epoch_of
from tests.simulation.test_refusals import SESSION_S, fenced_after, steady

LONG_S = 30.0
"""With these seeds an outage of 8 s or more ends without an election; a shorter one often ends with one."""


@pytest.fixture(autouse=True)
def quiet() -> None:
    smoke.quiet()


class Outage:
    """An outage of the links between all nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leader = active(world)
        self.epoch = epoch_of(self.leader)
        self._links = list(permutations([host.name for host in world.hosts.values()], 2))

    def begin(self) -> None:
        for link in self._links:
            self.world.network.cut(*link)

    async def end(self) -> None:
        """Heal the links and wait until a controller can decide again."""
        assert self.leader.plane is not None
        assert self.leader.plane.node.paused
        for link in self._links:
            self.world.network.heal(*link)
        await self.world.until(self._is_over, "a controller decides")

    def _is_over(self) -> bool:
        now = self.world.active()
        return now is not None and now.plane is not None and not now.plane.node.paused

    def was_survived(self) -> bool:
        """Return whether there was no election."""
        return self.world.active() is self.leader and epoch_of(self.leader) == self.epoch

    def fenced(self) -> list[int]:
        now = self.world.active()
        return [] if now is None else [one for one, broker in image_of(now).brokers.items() if broker.fenced]

    async def fences_none(self, brokers: list[Host], seconds: float) -> None:
        """Check often that none of the brokers is fenced, because a live broker is soon unfenced again."""
        for _ in range(round(seconds / 0.01)):
            await asyncio.sleep(0.01)
            assert not {broker.config.node_id for broker in brokers} & set(self.fenced())


@pytest.mark.parametrize("seconds", [SESSION_S - 0.5, SESSION_S, SESSION_S + 0.5, SESSION_S + 2, LONG_S])
@pytest.mark.parametrize("seed", range(4))
def test_no_broker_is_fenced_after_an_outage(seed: int, seconds: float) -> None:
    world = World(seed)

    async def scenario() -> None:
        await steady(world)
        outage = Outage(world)
        outage.begin()
        await asyncio.sleep(seconds)
        await outage.end()
        assert outage.was_survived() or seconds < SESSION_S + 2, "long outages cover the case without an election"
        await outage.fences_none(world.brokers, 2 * SESSION_S)

    world.run(scenario())


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_only_the_broker_that_was_killed_in_an_outage_is_fenced_after_it(seed: int, early: bool) -> None:
    world = World(seed, settings={"broker_fence_on_refusal": early})

    async def scenario() -> None:
        dead = await steady(world)
        outage = Outage(world)
        outage.begin()
        await asyncio.sleep(4)
        world.kill(dead.config.node_id)
        await asyncio.sleep(LONG_S - 4)
        await outage.end()
        assert outage.was_survived()
        others = [broker for broker in world.brokers if broker is not dead]
        watch = asyncio.get_running_loop().create_task(outage.fences_none(others, 2 * SESSION_S))
        after_s = await fenced_after(world, dead)
        assert after_s < SESSION_S - 1 if early else SESSION_S - 0.1 < after_s < SESSION_S + 0.5, after_s
        await watch

    world.run(scenario())
