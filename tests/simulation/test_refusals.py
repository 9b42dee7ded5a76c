"""A broker whose process has ended is fenced at once; one that only does not answer keeps its full session."""

from __future__ import annotations

import asyncio

import pytest

from simulation import smoke
from simulation.cluster.nodes import Host, World
from tests.simulation.test_background import image_of
from tests.simulation.test_known_failures import active
from tests.simulation.test_snapshots import up

SESSION_S = 6.0
SOON_S = 2.0


@pytest.fixture(autouse=True)
def quiet() -> None:
    smoke.quiet()


async def fenced_after(world: World, broker: Host) -> float:
    """Return the seconds until the active controller has fenced the broker."""
    broker_id = broker.config.node_id
    return await world.until(
        lambda: (leader := world.active()) is not None and image_of(leader).brokers[broker_id].fenced,
        "the broker is fenced",
        timeout_s=3 * SESSION_S,
    )


async def steady(world: World) -> Host:
    """Wait until all nodes run and all brokers have sent heartbeats; return a broker."""
    await up(world)
    await asyncio.sleep(3)
    return world.brokers[1]


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_broker_is_fenced_within_two_seconds(seed: int) -> None:
    world = World(seed)

    async def scenario() -> None:
        broker = await steady(world)
        await asyncio.sleep(seed * 0.125)  # vary the time between two heartbeats
        world.kill(broker.config.node_id)
        assert await fenced_after(world, broker) < SOON_S
        assert not any(image_of(active(world)).brokers[other.config.node_id].fenced for other in world.brokers[2:])

    world.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a_suspended_broker_is_fenced_only_after_its_full_session(seed: int) -> None:
    """Its connections are not refused, because the kernel accepts them."""
    world = World(seed)

    async def scenario() -> None:
        broker = await steady(world)
        assert broker.process is not None
        broker.process.pause()
        assert await fenced_after(world, broker) > SESSION_S - 1.2
        broker.process.resume()
        await world.until(smoke.all_ready(world), "it is unfenced")

    world.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a_disconnected_broker_is_fenced_only_after_its_full_session(seed: int) -> None:
    world = World(seed)

    async def scenario() -> None:
        broker = await steady(world)
        for voter in world.voters:
            world.network.cut(voter.name, broker.name)
            world.network.cut(broker.name, voter.name)
        assert await fenced_after(world, broker) > SESSION_S - 1.2

    world.run(scenario())


def test_a_broker_killed_while_disconnected_is_fenced_only_after_its_full_session() -> None:
    world = World(1)

    async def scenario() -> None:
        broker = await steady(world)
        for voter in world.voters:
            world.network.cut(voter.name, broker.name)
        world.kill(broker.config.node_id)
        assert await fenced_after(world, broker) > SESSION_S - 1.2

    world.run(scenario())


def test_a_new_controller_also_fences_a_killed_broker_early() -> None:
    world = World(2)

    async def scenario() -> None:
        broker = await steady(world)
        world.kill(active(world).config.node_id)
        await world.until(lambda: world.active() is not None, "another controller is active")
        await asyncio.sleep(3)
        world.kill(broker.config.node_id)
        assert await fenced_after(world, broker) < SOON_S

    world.run(scenario())


def test_early_fencing_can_be_switched_off() -> None:
    world = World(3, settings={"broker_fence_on_refusal": False})

    async def scenario() -> None:
        broker = await steady(world)
        world.kill(broker.config.node_id)
        assert await fenced_after(world, broker) > SESSION_S - 1.2

    world.run(scenario())


def test_brokers_that_are_killed_together_are_all_fenced_soon() -> None:
    world = World(4, brokers=4)

    async def scenario() -> None:
        await steady(world)
        for broker in world.brokers[:3]:
            world.kill(broker.config.node_id)
        for broker in world.brokers[:3]:
            assert await fenced_after(world, broker) < SOON_S

    world.run(scenario())
