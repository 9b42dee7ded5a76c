"""Reassignments in whole clusters: the controller is killed at every step while a producer writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from metadata.image import PartitionImage
from metadata.records import ConfigScope
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import LATEST, Consumer
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch, decode_batches
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from simulation.cluster.nodes import Host, World
from simulation.cluster.random_faults import Faults
from simulation.kernel.loop import EPOCH_MS
from simulation.smoke import all_ready, image_digest, quiet

TOPIC = "t"
OLD = (11, 12, 13)
BACKLOG = 60
SIZE = 2_000
THROTTLE = 100_000
"""Bytes per second: copying the backlog takes about a second, so that states between the steps can be observed."""

Condition = Callable[["Run"], bool]


class Run:
    """A cluster of three voters and six brokers, one partition with a backlog, and a producer."""

    def __init__(self, seed: int) -> None:
        quiet()
        self.world = World(seed, brokers=6)
        self.acknowledged: dict[int, bytes] = {}
        self._stop = asyncio.Event()

    # Expected observations

    def seen_by(self, host: Host | None) -> PartitionImage | None:
        """Return the partition in a node's committed image."""
        if host is None or host.plane is None:
            return None
        topic = host.plane.replay.image.topic(TOPIC)
        return None if topic is None else topic.partition(0)

    @property
    def committed(self) -> PartitionImage | None:
        """The partition in the committed image of the active controller."""
        return self.seen_by(self.world.active())

    @property
    def pending(self) -> PartitionImage | None:
        active = self.world.active()
        image = None if active is None or active.plane is None else active.plane.controller.pending
        topic = None if image is None else image.topic(TOPIC)
        return None if topic is None else topic.partition(0)

    def end_on(self, broker_id: int) -> int | None:
        """Return the end of the replica's log; None without one."""
        broker = self.world.hosts[broker_id].broker
        hosted = None if broker is None else broker.role.table.find(TOPIC, 0)
        return None if hosted is None or hosted.log is None else hosted.log.end_offset

    async def when(self, condition: Condition, what: str, timeout_s: float = 60.0) -> None:
        """Do the same as `World.until`, but check often enough to see states that last for one message delay."""
        began = self.world.loop.time()
        while not condition(self):
            assert self.world.loop.time() - began < timeout_s, f"not within {timeout_s} s: {what}; {self.committed}"
            await asyncio.sleep(0.0001)

    # Actions

    async def ask(self, *replicas: int, throttle: int | None = None, replace: bool = False) -> None:
        """Reassign or cancel, repeatedly until the outcome is known."""
        while True:
            request = pb.AlterReassignmentsRequest(throttle=throttle, replace=replace)
            request.partitions.add(topic=TOPIC, index=0, replicas=replicas)
            plane = next(host.plane for host in self.world.brokers if host.plane is not None)
            reply: Any = await plane.service.call(rpcs.ALTER_REASSIGNMENTS, request, 5_000)
            word = reply.result.error
            if word == "NONE" or (word == "NO_REASSIGNMENT_IN_PROGRESS" and not replicas):
                return
            assert reply.result.retriable, reply
            await asyncio.sleep(0.1)

    async def kill_controller(self) -> None:
        active = self.world.active()
        assert active is not None
        self.world.kill(active.config.node_id)
        await self.world.until(lambda: self.world.active() is not None, "another controller is active")
        self.world.start(active.config.node_id)

    async def prepare(self, producer: Producer) -> None:
        request = pb.CreateTopicsRequest(
            topics=[
                pb.NewTopic(
                    name=TOPIC, partitions=-1, replication_factor=-1, assignment=[metadata_pb2.IntList(values=OLD)]
                )
            ]
        )
        plane = self.world.brokers[0].plane
        assert plane is not None
        reply: Any = await plane.service.call(rpcs.CREATE_TOPICS, request, 10_000)
        assert reply.topics[0].result.error == "NONE", reply
        for number in range(BACKLOG):
            await self.write(producer, number)

    async def write(self, producer: Producer, number: int) -> None:
        value = str(number).encode().ljust(SIZE, b".")
        base_offset = await (await producer.send(TOPIC, 0, build_batch([NewRecord(None, value, EPOCH_MS, ())])))
        self.acknowledged[base_offset] = value

    async def write_on(self, producer: Producer) -> None:
        number = BACKLOG
        while not self._stop.is_set():
            await self.write(producer, number)
            number += 1
            await asyncio.sleep(0.02)

    async def check(self, cluster: Cluster, replicas: tuple[int, ...] | None) -> None:
        """Check that the reassignment has ended with these replicas (None: any), and that no record is lost."""
        world = self.world
        for host in world.hosts.values():
            if host.process is None:
                world.start(host.config.node_id)
        await world.until(all_ready(world), "all brokers are ready", 120)
        await world.until(lambda: self.committed is not None and not self.committed.reassigning, "it has ended", 120)
        partition = self.committed
        assert partition is not None
        if replicas is not None:
            assert set(partition.replica_ids) == set(replicas)
        everyone = set(partition.replica_ids)
        await world.until(
            lambda: self.committed is not None and set(self.committed.isr) == everyone, "all in sync", 120
        )
        await world.until(
            lambda: all((self.end_on(each) is not None) == (each in everyone) for each in range(11, 17)),
            "exactly the replicas have a log",
        )
        await world.until(lambda: len({image_digest(host) for host in world.hosts.values()}) == 1, "images are equal")
        plane = world.brokers[0].plane
        assert plane is not None
        assert not plane.replay.image.config(ConfigScope.CLUSTER, "")
        assert plane.replay.image.reassigning_count == 0
        read = await _read(cluster)
        assert {offset: read.get(offset) for offset in self.acknowledged} == self.acknowledged
        assert len(read) == len(set(read.values())) == len(self.acknowledged)

    def play_and_check(self, story: Callable[[Run], Any], replicas: tuple[int, ...] | None) -> None:
        """Run `story` while a producer writes, and then `check`, whose conditions must hold after every story."""

        async def whole() -> None:
            self.world.start_all()
            await self.world.until(all_ready(self.world), "all brokers are ready")
            async with Cluster(self.world.bootstrap, random=self.world.random) as cluster:
                async with Producer(cluster, delivery_timeout_s=300) as producer, asyncio.TaskGroup() as group:
                    await self.prepare(producer)
                    writing = group.create_task(self.write_on(producer))
                    await story(self)
                    self._stop.set()
                    await writing
                await self.check(cluster, replicas)

        self.world.run(whole(), 1_200)


async def _read(cluster: Cluster) -> dict[int, bytes]:
    consumer = Consumer(cluster)
    found: dict[int, bytes] = {}
    end = (await consumer.list_offset(TOPIC, 0, LATEST)).offset
    offset = 0
    while offset < end:
        fetched = await consumer.fetch(TOPIC, 0, offset)
        for record in decode_batches(fetched.records, first_offset=offset):
            found[record.offset] = record.value or b""
            offset = record.offset + 1
    return found


# The steps


def _new(run: Run, partition: PartitionImage | None) -> list[int]:
    return [] if partition is None else [each for each in partition.adding if each not in partition.isr]


STEPS: dict[str, Condition] = {
    "written but not announced": lambda run: (
        bool(_new(run, run.pending)) and run.committed is not None and not run.committed.reassigning
    ),
    "before the new replicas start": lambda run: (
        run.committed is not None
        and run.committed.reassigning
        and all(run.end_on(each) is None for each in run.committed.adding)
    ),
    "while they catch up": lambda run: any(0 < (run.end_on(each) or 0) < BACKLOG for each in _new(run, run.committed)),
    "in sync but not switched": lambda run: (
        run.committed is not None
        and run.committed.reassigning
        and bool(set(run.committed.adding).intersection(run.committed.isr))
    ),
    "switched but not committed": lambda run: (
        run.pending is not None
        and not run.pending.reassigning
        and run.committed is not None
        and run.committed.reassigning
    ),
    "leader moved": lambda run: (
        run.committed is not None
        and not run.committed.reassigning
        and set(run.committed.replica_ids) != set(OLD)
        and any((seen := run.seen_by(host)) is not None and seen.reassigning for host in run.world.brokers)
    ),
    "the old ones not yet stopped": lambda run: (
        run.committed is not None
        and not run.committed.reassigning
        and set(run.committed.replica_ids) != set(OLD)
        and any(run.end_on(each) is not None for each in OLD if each not in run.committed.replica_ids)
    ),
}

TARGETS = {"leader leaves, no overlap": (14, 15, 16), "leader stays": (14, 15, 11), "leader leaves": (12, 14, 15)}


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_reassignment_ends_although_the_controller_is_killed_at_one_of_its_steps(step: str, target: str) -> None:
    async def story(run: Run) -> None:
        asked = asyncio.ensure_future(run.ask(*TARGETS[target], throttle=THROTTLE))
        await run.when(STEPS[step], step)
        await run.kill_controller()
        await asked

    Run(sorted(STEPS).index(step)).play_and_check(story, TARGETS[target])


def test_a_reassignment_ends_although_the_controller_is_killed_at_several_of_its_steps() -> None:
    async def story(run: Run) -> None:
        asked = asyncio.ensure_future(run.ask(14, 15, 16, throttle=THROTTLE // 10))
        await run.when(STEPS["before the new replicas start"], "it has begun")
        run.world.kill(16)  # so that the reassignment cannot end between two steps
        await run.kill_controller()
        await run.when(STEPS["while they catch up"], "they catch up")
        await run.kill_controller()
        await run.ask(14, 15, 16, throttle=-1)
        await run.when(STEPS["in sync but not switched"], "in sync")
        await run.kill_controller()
        run.world.start(16)
        await run.when(lambda run: run.committed is not None and not run.committed.reassigning, "it has ended")
        await run.kill_controller()
        await asked

    Run(20).play_and_check(story, (14, 15, 16))


@pytest.mark.parametrize("step", ["while they catch up", "in sync but not switched"])
def test_a_reassignment_ends_although_a_target_broker_is_killed(step: str) -> None:
    async def story(run: Run) -> None:
        run.world.kill(16)  # so that the reassignment cannot end before 14 has left the ISR
        await run.ask(14, 15, 16, throttle=THROTTLE)
        await run.when(STEPS[step], step)
        run.world.kill(14)
        await run.world.until(
            lambda: run.committed is not None and 14 not in run.committed.isr and len(run.committed.isr) >= 3,
            "14 is out of the isr",
        )
        assert run.committed is not None
        assert run.committed.reassigning
        run.world.start(14)
        run.world.start(16)

    Run(31).play_and_check(story, (14, 15, 16))


@pytest.mark.parametrize("step", ["before the new replicas start", "while they catch up", "in sync but not switched"])
def test_a_cancelled_reassignment_restores_the_replicas_although_the_controller_is_killed(step: str) -> None:
    async def story(run: Run) -> None:
        await run.ask(14, 15, 16, throttle=THROTTLE)
        run.world.kill(16)  # so that the reassignment cannot end before it is cancelled
        await run.when(STEPS[step], step)
        cancelling = asyncio.ensure_future(run.ask())
        await run.when(lambda run: run.pending is not None and not run.pending.reassigning, "cancelled, perhaps")
        await run.kill_controller()
        await cancelling
        await run.ask()  # again

    Run(41).play_and_check(story, OLD)


def test_a_reassignment_ends_although_the_leader_is_killed_while_it_is_replaced() -> None:
    async def story(run: Run) -> None:
        await run.ask(14, 15, 16, throttle=THROTTLE)
        await run.when(STEPS["in sync but not switched"], "one is in sync")
        assert run.committed is not None
        run.world.kill(run.committed.leader)
        await run.world.until(lambda: run.committed is not None and run.committed.leader != 11, "another leads")
        await run.ask(13, 14, 15, throttle=-1, replace=True)

    Run(51).play_and_check(story, (13, 14, 15))


@pytest.mark.parametrize("seed", range(4))
def test_reassignments_end_under_all_faults(seed: int) -> None:
    """Targets, replacements and cancellations during kills, pauses and cut links: the last request decides."""
    random = Random(seed)
    target = (14, 15, 16) if seed % 2 else (11, 12)

    async def administrate(run: Run) -> None:
        while True:
            wanted = tuple(random.sample(range(11, 17), random.randint(2, 4)))
            request = pb.AlterReassignmentsRequest(replace=random.random() < 0.7)
            request.partitions.add(topic=TOPIC, index=0, replicas=wanted if random.random() < 0.8 else ())
            planes = [host.plane for host in run.world.hosts.values() if host.plane is not None]
            if planes:
                await random.choice(planes).service.call(rpcs.ALTER_REASSIGNMENTS, request, 3_000)
            await asyncio.sleep(random.uniform(0.1, 3.0))

    async def story(run: Run) -> None:
        faults = Faults(run.world, random)
        administrating = asyncio.ensure_future(administrate(run))
        await faults.run(30.0)
        administrating.cancel()
        await faults.heal()
        await run.world.until(all_ready(run.world), "all brokers are ready", 120)
        await run.ask(*target, replace=True)

    Run(seed + 100).play_and_check(story, target)
