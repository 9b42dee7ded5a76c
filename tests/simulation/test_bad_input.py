"""Bad input to whole nodes: wrong addresses, clocks that jump, records of a newer version."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metadata.codec import encode
from metadata.records import NoOp
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.addresses import Address
from simulation import smoke
from simulation.cluster.nodes import Host, World
from tests.simulation.test_known_failures import active, ask_to_create, epoch_of
from tests.simulation.test_snapshots import equal, up


@pytest.fixture(autouse=True)
def quiet() -> None:
    smoke.quiet()


@pytest.mark.parametrize("jump_h", [-2, 24 * 365])
def test_a_wall_clock_that_jumps_moves_no_leader_and_fences_no_broker(jump_h: int) -> None:
    world = World(1)

    async def scenario() -> None:
        await up(world)
        before = (active(world).name, epoch_of(active(world)))
        world.wall_offset_s += jump_h * 3_600
        for name in "abc":
            assert await ask_to_create(active(world), name) == "NONE"
            await asyncio.sleep(10)  # of virtual time: longer than a broker's session
        assert (active(world).name, epoch_of(active(world))) == before
        plane = active(world).plane
        assert plane is not None
        assert [broker.fenced for broker in plane.replay.image.brokers.values()] == [False] * 3
        await equal(world)

    world.run(scenario())


def test_a_broker_with_wrong_bootstrap_addresses_reports_them_and_forms_no_cluster() -> None:
    world = World(1, voters=1, brokers=1)
    broker = world.brokers[0]
    broker.config = replace(broker.config, bootstrap=(Address("nowhere", 9093), Address("elsewhere", 9093)))

    async def scenario() -> None:
        world.start(broker.config.node_id)
        await asyncio.sleep(120)  # of virtual time: longer than every deadline of a start
        assert broker.failure is None, "it continues to try"
        assert broker.plane is not None
        assert broker.plane.node.cluster_id is None
        assert broker.plane.node.log_end_offset == 0
        ready, checks = broker.plane.is_ready()
        assert not ready
        assert "nowhere:9093" in checks["cluster"]
        assert "elsewhere:9093" in checks["cluster"]

    world.run(scenario())


@pytest.mark.parametrize(
    ("payload", "said"),
    [(encode([NoOp()]).replace(b"\x08\x01", b"\x08\x63", 1), "version"), (b"\xff\xff\xff", "")],
)
def test_a_committed_record_that_cannot_be_decoded_stops_the_node_with_an_error_that_names_its_offset(
    payload: bytes, said: str
) -> None:
    """The record is committed, but this program does not know its meaning.

    No record is skipped, not even at the next start.
    """
    world = World(1, voters=1, brokers=0)

    async def scenario() -> None:
        world.start_all()
        await world.until(lambda: world.active() is not None, "a controller is active")
        host = active(world)
        assert host.plane is not None
        node = host.plane.node
        offset = node.append(node.epoch, payload, 1)
        for _ in range(3):
            failure = await end_of(host)
            assert isinstance(failure, CorruptStoreError)
            assert f"offset {offset}" in str(failure)
            assert said in str(failure)
            world.kill(host.config.node_id)
            world.start(host.config.node_id)

    world.run(scenario())


async def end_of(host: Host) -> BaseException:
    while host.failure is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # of virtual time: the end of a process sets no event
    failure = host.failure
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure
