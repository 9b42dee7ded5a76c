"""Failures of other systems whose tests need whole nodes, and failures of this system.

The names of the tests begin with the numbers of the failures in docs/known_failures.md.  The last test has the failures
of this system: seeds of the cluster simulation, reduced to the faults that matter.  Each has a unit test as well,
because a seed means something else once the plans change.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metadata.controller.replay import MetadataReplay
from quorumlog.runtime.addresses import Address
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation import smoke
from simulation.cluster.draw import draw
from simulation.cluster.nodes import Host, World
from simulation.cluster.run import play
from simulation.kernel.network import CONTROL_PORT
from tests.simulation.test_snapshots import equal, up


@pytest.fixture(autouse=True)
def quiet() -> None:
    smoke.quiet()


def active(world: World) -> Host:
    host = world.active()
    assert host is not None
    return host


def epoch_of(host: Host) -> int:
    assert host.plane is not None
    return host.plane.node.epoch


def log_end(host: Host) -> int:
    assert host.plane is not None
    return host.plane.node.log_end_offset


async def ask_to_create(host: Host, name: str, timeout_ms: int = 8_000) -> str:
    """Return the error code of this node's own answer."""
    assert host.plane is not None
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=1, replication_factor=1)])
    reply = await host.plane.service.call(rpcs.CREATE_TOPICS, request, timeout_ms)
    assert isinstance(reply, pb.CreateTopicsReply)
    return reply.topics[0].result.error if reply.topics else reply.result.error


@pytest.mark.parametrize("seed", range(3))
def test_k2_a_controller_whose_disk_hangs_is_replaced_and_acknowledges_nothing_that_is_lost(seed: int) -> None:
    """etcd 13527: the timers run although no write ends, and no client sees acknowledgements of two leaders."""
    world = World(seed)

    async def scenario() -> None:
        await up(world)
        old = active(world)
        old.quorum_disk.hangs = True
        stuck = asyncio.ensure_future(ask_to_create(old, "stuck"))
        await world.until(
            lambda: any(
                host is not old and host.plane is not None and host.plane.controller.active for host in world.voters
            ),
            "another controller is active",
            timeout_s=10.0,
        )
        assert old.plane is not None
        assert not old.plane.controller.active
        word = await stuck
        new = active(world)
        assert await ask_to_create(new, "after") == "NONE"
        old.quorum_disk.hangs = False
        await equal(world)
        assert new.plane is not None
        exists = new.plane.replay.image.topic("stuck") is not None
        assert word in (["NONE", "OUTCOME_UNKNOWN"] if exists else ["OUTCOME_UNKNOWN", "NOT_CONTROLLER"]), (
            word,
            exists,
        )

    world.run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_k6_elections_converge_within_a_few_epochs(seed: int) -> None:
    """KAFKA-18345: with any timers, five voters that lose their leaders one after the other find a new one."""
    world = World(seed, voters=5, brokers=0)

    async def scenario() -> None:
        world.start_all()
        await world.until(lambda: world.active() is not None, "a controller is active")
        for _ in range(4):
            old = active(world)
            before = epoch_of(old)
            world.kill(old.config.node_id)
            took = await world.until(lambda: world.active() is not None, "another controller is active", timeout_s=12.0)
            assert epoch_of(active(world)) <= before + 3, f"{took} s"
            world.start(old.config.node_id)
            await equal(world)

    world.run(scenario())


def test_k10_brokers_unfence_in_an_idle_cluster() -> None:
    """KAFKA-14145, 13959: a broker that starts while nothing else happens becomes ready by its own registration alone;
    afterwards the log does not grow."""
    world = World(1)

    async def scenario() -> None:
        await up(world)
        broker = world.brokers[0]
        world.kill(broker.config.node_id)
        await asyncio.sleep(20)
        before = log_end(active(world))
        world.start(broker.config.node_id)
        await world.until(smoke.all_ready(world), "all brokers are ready", timeout_s=10.0)
        await asyncio.sleep(5)
        after = log_end(active(world))
        assert after - before <= 3, "its registration and its unfencing"
        await asyncio.sleep(60)
        assert log_end(active(world)) == after

    world.run(scenario())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[MetadataReplay, int, int | None, bool]]:
    """The reports of leadership to state machines: (machine, epoch, leader, whether it is this node)."""
    heard: list[tuple[MetadataReplay, int, int | None, bool]] = []
    plain = MetadataReplay.leadership

    def listen(machine: MetadataReplay, epoch: int, leader_id: int | None, ours: bool) -> None:
        heard.append((machine, epoch, leader_id, ours))
        plain(machine, epoch, leader_id, ours)

    monkeypatch.setattr(MetadataReplay, "leadership", listen)
    return heard


def test_k14_a_node_that_starts_as_a_follower_reports_the_leader(
    told: list[tuple[MetadataReplay, int, int | None, bool]],
) -> None:
    """KAFKA-16286: the state machine exists before the first step, so it always learns the leader."""
    world = World(2)

    async def scenario() -> None:
        await up(world)
        leader = active(world)
        follower = next(host for host in world.voters if host is not leader)
        world.kill(follower.config.node_id)
        world.start(follower.config.node_id)
        await world.until(lambda: follower.plane is not None, "the follower runs")
        plane = follower.plane
        assert plane is not None
        await world.until(lambda: plane.node.is_caught_up(), "the follower is caught up")
        heard = [entry[1:] for entry in told if entry[0] is plane.replay]
        assert heard[-1] == (epoch_of(leader), leader.config.node_id, False)
        assert await ask_to_create(follower, "forwarded") == "NONE"

    world.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_k17b_a_restarted_leader_is_not_reported_as_leader(
    seed: int, told: list[tuple[MetadataReplay, int, int | None, bool]]
) -> None:
    """KAFKA-17333: it starts as Resigned in the epoch that it led; it leads only in a later one."""
    world = World(seed)

    async def scenario() -> None:
        await up(world)
        old = active(world)
        epoch = epoch_of(old)
        world.kill(old.config.node_id)
        world.start(old.config.node_id)
        await world.until(lambda: old.plane is not None, "the former leader runs")
        await world.until(lambda: world.active() is not None, "a controller is active")
        await equal(world)
        assert old.plane is not None
        heard = [entry[1:] for entry in told if entry[0] is old.plane.replay]
        assert heard, "leaderships were reported to the former leader"
        assert all(later > epoch for later, _, ours in heard if ours), heard

    world.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_k27_a_lost_voter_is_removed_and_the_others_restart_under_load(seed: int) -> None:
    """Redpanda 1868, 7355, 9452: requests are executed, acknowledged records survive, partitions have leaders."""
    world = World(seed, voters=4)

    async def scenario() -> None:
        await up(world)
        dead = next(host for host in world.voters if host is not world.active())
        world.kill(dead.config.node_id)
        acknowledged: list[str] = []
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                name = f"t{len(acknowledged)}"
                host = world.random.choice([host for host in world.hosts.values() if host.plane is not None])
                if await ask_to_create(host, name, 1_000) in ("NONE", "TOPIC_ALREADY_EXISTS"):
                    acknowledged.append(name)
                await asyncio.sleep(0.05)

        working = asyncio.ensure_future(load())
        await remove(world, dead.config.node_id)
        for host in [host for host in world.hosts.values() if host is not dead]:
            world.kill(host.config.node_id)
            await asyncio.sleep(0.5)
            world.start(host.config.node_id)
            await world.until(lambda: world.active() is not None, "a controller is active")
            await world.until(smoke.all_ready(world), "all brokers are ready")
        stop.set()
        await working
        del world.hosts[dead.config.node_id]
        await equal(world)
        plane = active(world).plane
        assert plane is not None
        image = plane.replay.image
        assert len(acknowledged) > 10
        assert [name for name in acknowledged if image.topic(name) is None] == []
        assert [voter.key.node_id for voter in plane.node.core.history.current] == [
            host.config.node_id for host in world.voters
        ]
        await world.until(lambda: all_led(world), "every partition has a leader")

    world.run(scenario())


async def remove(world: World, node_id: int) -> None:
    for _ in range(50):
        host = world.active()
        if host is not None and host.plane is not None:
            request = pb.ChangeVotersRequest(remove=pb.RemoveVoter(node_id=node_id))
            reply = await host.plane.service.call(rpcs.CHANGE_VOTERS, request, 10_000)
            assert isinstance(reply, pb.ChangeVotersReply)
            if reply.result.error in ("NONE", "VOTER_NOT_FOUND"):
                return
        await asyncio.sleep(0.2)
    raise AssertionError("the killed voter is still a voter")


def all_led(world: World) -> bool:
    plane = active(world).plane
    assert plane is not None
    topics = plane.replay.image.topics.values()
    return all(partition is None or partition.leader >= 0 for topic in topics for partition in topic.partitions)


def test_k39_a_broker_that_cannot_resolve_its_voters_yet_waits_and_is_not_ready() -> None:
    """strimzi 12760: for a minute the configured name cannot be resolved.

    The node runs, is not ready, and joins once the name can be resolved.
    """
    world = World(4, voters=1, brokers=1)
    broker = world.brokers[0]
    voter = world.voters[0]

    async def scenario() -> None:
        world.start(broker.config.node_id)
        await asyncio.sleep(60)
        assert broker.failure is None
        assert broker.broker is not None
        ready, checks = broker.broker.is_ready()
        assert (ready, checks["cluster"] != "ok") == (False, True)
        world.start(voter.config.node_id)
        await world.until(smoke.all_ready(world), "the broker is ready", timeout_s=15.0)

    broker.config = replace(broker.config, bootstrap=(Address(voter.name, CONTROL_PORT),))
    world.run(scenario())


FAILED = {
    "an idle replica's broker registered again": (99001357, {0, 2, 3, 4}),
    "a replica without a tombstone coordinates a group": (99012793, {0}),
    "a replica without a tombstone coordinates a group after restarts": (99014576, {0, 3, 4, 5, 6}),
    "a replica that truncates must learn the log start": (99012486, {0, 1, 4, 6, 7}),
    "a replica truncates below the leader's log start, which lies within a batch": (300000167, {2, 4, 6}),
    "a process that ends before it learns its epoch makes a clean stop unclean": (300001028, {0, 1, 2, 3, 4, 7, 9}),
    "a killed process registers after its successor": (300004337, {0, 1, 2, 3}),
    "a replica is removed while its log is compacted": (300004859, {2}),
    "a deposed leader of a queue delivers what its successor has completed": (300006987, {0, 1}),
    "a deposed leader's watermark permits a retention that the judge knew too late": (300009423, {0, 1, 2, 3, 4}),
    "the last driver of a scope is fenced by an earlier one": (330000116, {0, 1, 2, 3, 4, 5, 6}),
    "a replica without a tombstone coordinates a scope": (600000031, {0, 2, 4, 6}),
    "a replica has left a directory whose failure is reported first": (710000449, {1}),
}
"""Runs that failed before producers had pipelines: the seed, and the faults that are needed."""
FAILED_WITH_PIPELINES = {
    "a changed producer id is read after a clean stop": (720000692, {0, 1, 5, 9}),
    "a batch arrives again after the abort of its transaction": (720100648, {0, 1, 2, 3}),
    "the judge forgets where an offline replica may be": (720002182, {4, 5, 6, 9}),
    "the judge forgets the watermark that a deposed leader has sent": (730004033, {0, 1, 2, 3, 4, 7, 8}),
    "a replica has left a directory that fails while its broker restarts": (730002110, {0, 1, 2, 3, 6, 10, 11, 12}),
    "a move that was undone left a copy in the directory that the metadata names": (730032835, {4, 5, 7, 9}),
    "a log start passed recovered records before a snapshot held their producers": (745006708, {0, 1, 2, 3, 4, 5}),
}


@pytest.mark.parametrize("what", [*FAILED, *FAILED_WITH_PIPELINES])
def test_a_seed_that_failed_once_keeps_every_invariant(what: str) -> None:
    seed, faults = {**FAILED, **FAILED_WITH_PIPELINES}[what]
    plan = draw(seed)
    if what in FAILED:
        plan = replace(plan, in_flight=0, parked_produces=0)
    assert play(plan.only(faults)).violation is None
