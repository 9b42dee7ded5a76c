"""A follower whose log was emptied by retention, under an uncleanly elected leader."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.log import PartitionLog
from broker.replica.replica import Replica
from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from simulation.cluster.nodes import World
from simulation.cluster.world import LIMITS, QUICK
from simulation.kernel.loop import EPOCH_MS
from simulation.smoke import all_ready, quiet

TOPIC = "t"
LEADER, EMPTIED, BEHIND = 11, 12, 13


class Story:
    """One partition of three replicas; BEHIND has the first two records and is not in sync."""

    def __init__(self) -> None:
        quiet()
        self.world = World(5, voters=1, brokers=3, settings=QUICK, limits=LIMITS)

    def log(self, node_id: int) -> PartitionLog:
        hosted = self.hosted(node_id)
        assert hosted is not None
        assert hosted.log is not None, hosted.offline
        return hosted.log

    def hosted(self, node_id: int) -> Replica | None:
        broker = self.world.hosts[node_id].broker
        return None if broker is None else broker.role.table.find(TOPIC, 0)

    def leads(self, node_id: int) -> bool:
        hosted = self.hosted(node_id)
        return hosted is not None and hosted.leader is not None

    def follows(self, node_id: int) -> Replica | None:
        """Return its state once it follows a leader."""
        hosted = self.hosted(node_id)
        return hosted if hosted is not None and hosted.follower is not None else None

    def image(self) -> Any:
        plane = self.world.hosts[1].plane
        assert plane is not None
        topic = plane.replay.image.topic(TOPIC)
        assert topic is not None
        return topic.partitions[0]

    async def create(self) -> None:
        self.world.start_all()
        await self.world.until(all_ready(self.world), "the brokers are ready")
        plane = self.world.hosts[1].plane
        assert plane is not None
        new = pb.NewTopic(name=TOPIC, partitions=-1, replication_factor=-1)
        new.assignment.add(values=[LEADER, EMPTIED, BEHIND])
        new.configs.add(key="unclean.leader.election.enable", value="true")
        new.configs.add(key="min.insync.replicas", value="1")
        await plane.service.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[new]), 10_000)

    async def write(self, *batches: str) -> None:
        """Write each string as a batch with one record a letter, with acks=all."""
        async with Cluster(self.world.bootstrap, random=self.world.random) as cluster, Producer(cluster) as producer:
            for batch in batches:
                records = [NewRecord(None, letter.encode(), EPOCH_MS, ()) for letter in batch]
                await (await producer.send(TOPIC, 0, build_batch(records)))

    async def leave_one_behind(self) -> None:
        await self.write("a", "b")
        await self.world.until(lambda: self.log(BEHIND).end_offset == 2, "all have the first two records")
        self.world.kill(BEHIND)
        await self.world.until(lambda: BEHIND not in self.image().isr, "the third replica is out of sync")
        await self.write("c", "d", "e")
        await self.world.until(
            lambda: self.log(EMPTIED).high_watermark == 5, "the follower knows that they are committed"
        )

    async def empty(self, node_id: int) -> None:
        """Delete all committed records, as retention does when all of them are too old."""
        log, broker = self.log(node_id), self.world.hosts[node_id].broker
        assert broker is not None
        log.advance_start_offset(log.high_watermark)
        await broker.role.context.logs.checkpoint([log])
        assert (log.start_offset, log.end_offset) == (5, 5)

    async def elect_the_one_behind(self) -> None:
        self.world.kill(EMPTIED)
        self.world.kill(LEADER)
        self.world.start(BEHIND)
        await self.world.until(lambda: self.leads(BEHIND), "the third replica is elected uncleanly")


@pytest.mark.parametrize("batches", [("C", "D", "E", "F"), ("CDEF",)], ids=["at a batch", "inside a batch"])
def test_an_emptied_follower_of_an_unclean_leader_joins_the_isr_with_all_records_of_the_leader(
    batches: tuple[str, ...],
) -> None:
    """The new leader has other records at the offset at which the follower's empty log ends."""
    story = Story()

    async def told() -> None:
        await story.create()
        await story.leave_one_behind()
        await story.empty(EMPTIED)
        await story.elect_the_one_behind()
        await story.write(*batches)
        story.world.start(EMPTIED)
        await story.world.until(lambda: EMPTIED in story.image().isr, "the emptied follower is in sync")
        copied, source = story.log(EMPTIED), story.log(BEHIND)
        assert (copied.start_offset, copied.end_offset) == (0, 6)
        assert copied.read(0, 1 << 20, 6) == source.read(0, 1 << 20, 6)
        await story.write("g")
        story.world.kill(BEHIND)
        await story.world.until(lambda: story.leads(EMPTIED), "it is elected cleanly")
        assert story.log(EMPTIED).end_offset == 7

    story.world.run(told())


def test_the_high_watermark_of_an_emptied_follower_decreases_only_together_with_its_log() -> None:
    """The unclean leader's log ends below that watermark.

    So the follower gives up committed records, as the election permits.
    """
    story = Story()
    seen: list[tuple[int, int, int]] = []

    def note(hosted: Replica) -> None:
        assert hosted.follower is not None
        assert hosted.log is not None
        seen.append((hosted.log.start_offset, hosted.log.end_offset, hosted.follower.high_watermark))

    async def told() -> None:
        await story.create()
        await story.leave_one_behind()
        await story.empty(EMPTIED)
        await story.elect_the_one_behind()
        story.world.start(EMPTIED)
        hosted = None
        while hosted is None:  # more often than `until`, which may miss the first position
            await asyncio.sleep(0.0001)
            hosted = story.follows(EMPTIED)
        note(hosted)
        while EMPTIED not in story.image().isr:
            await asyncio.sleep(0.001)
            note(hosted)
        await story.world.until(
            lambda: story.log(EMPTIED).high_watermark == 2, "it has the committed records of the leader"
        )
        note(hosted)
        assert all(watermark <= end for _, end, watermark in seen)
        starts_and_watermarks = list(dict.fromkeys((start, watermark) for start, _, watermark in seen))
        assert starts_and_watermarks[0] == (5, 5)
        assert starts_and_watermarks[1:] == [(0, 0), (0, 2)], (
            "it moves back once, together with the log, and then never again"
        )

    story.world.run(told())
