"""The clients of a simulated cluster: the product's own producer and consumer, each on a host of its own.

What they are told goes to the watch at once.  Who writes to or reads from a topic that keeps all it was given must
never be refused for good; on other topics a client begins anew, as another writer, and says so in what it counts.
"""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST, Consumer, OffsetOutOfRangeError
from quorumlog.client.producer import ACKS_ALL, ACKS_LEADER, Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from simulation.cluster.history import Mark, batches_in
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import TopicPlan

if TYPE_CHECKING:
    from simulation.cluster.world import ClusterWorld

FOREVER_S = 10_000.0
BRIEF_S = 2.0
REQUEST_S = 1.0
CONNECT_S = 0.5
FETCH_WAIT_MS = 200
BATCH_RECORDS = 3
IN_FLIGHT = 4
PAUSE_S = 0.2
OUT_OF_ORDER = (ApiError.OUT_OF_ORDER_SEQUENCE_NUMBER, ApiError.UNKNOWN_PRODUCER_ID, ApiError.INVALID_PRODUCER_EPOCH)


class Clients:
    """Starts and stops them.  `writers` gives each producer that is ever made a number."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.stop_writing = asyncio.Event()
        self.stop_reading = asyncio.Event()
        self._writers = count(1)
        self.writing: list[asyncio.Task[None]] = []
        self.reading: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """One producer for each topic, another with acks=1, and two consumers."""
        world = self.world
        for number, topic in enumerate(world.plan.topics):
            self.writing.append(world.start_client(f"p{number}", self._write_on(topic, ACKS_ALL, world.fresh_random())))
        first = world.plan.topics[0]
        self.writing.append(world.start_client("p1acks", self._write_on(first, ACKS_LEADER, world.fresh_random())))
        for number in range(2):
            self.reading.append(world.start_client(f"r{number}", self._read_on(f"r{number}", world.fresh_random())))

    @property
    def names(self) -> list[str]:
        """Their hosts."""
        return [f"p{number}" for number in range(len(self.world.plan.topics))] + ["p1acks", "r0", "r1"]

    # Writing

    async def _write_on(self, topic: TopicPlan, acks: int, random: Random) -> None:
        """Write until told to stop, by one producer if that is promised to last."""
        plan = self.world.plan
        lasts = plan.forgets_producers_s >= FOREVER_S and not plan.rebuilds
        promised = topic.keeps_all and acks == ACKS_ALL and lasts
        async with self._cluster() as cluster:
            while not self.stop_writing.is_set():
                try:
                    await self._write(cluster, topic, acks, random, FOREVER_S if promised else BRIEF_S)
                except ClusterError as error:
                    self._failed(topic, error, promised)
                    await asyncio.sleep(PAUSE_S)

    def _failed(self, topic: TopicPlan, error: ClusterError, promised: bool) -> None:
        watch = self.world.watch
        promised = promised and not watch.has_lost(topic.name)
        watch.check(not promised, lambda: f"I22: a producer of {topic.name} is refused: {error.message}")
        watch.seen["loss told to a producer" if error.code in OUT_OF_ORDER else "producer given up"] += 1

    async def _write(self, cluster: Cluster, topic: TopicPlan, acks: int, random: Random, timeout_s: float) -> None:
        writer, numbers = next(self._writers), count()
        waiting: set[asyncio.Future[int]] = set()
        async with Producer(cluster, acks=acks, delivery_timeout_s=timeout_s, request_timeout_s=REQUEST_S) as producer:
            while not self.stop_writing.is_set():
                spot = Spot(topic.name, random.randrange(topic.partitions))
                marks = tuple([Mark(writer, next(numbers)) for _ in range(random.randint(1, BATCH_RECORDS))])
                batch = build_batch(
                    [NewRecord(None, mark.value, self.world.wall_ms(), ()) for mark in marks], topic.codec
                )
                sent = await producer.send(spot.topic, spot.index, batch)
                self.world.written += 1
                waiting.add(sent)
                sent.add_done_callback(lambda done, spot=spot, marks=marks: self._told(done, spot, marks, acks))  # type: ignore[misc]
                if len(waiting) >= IN_FLIGHT:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(random.uniform(0, 2 * self.world.plan.gap_s))

    def _told(self, sent: asyncio.Future[int], spot: Spot, marks: tuple[Mark, ...], acks: int) -> None:
        if sent.cancelled() or sent.exception() is not None:
            return
        self.world.acknowledged += 1
        offset = sent.result()
        if acks == ACKS_ALL and offset >= 0:
            self.world.watch.acknowledged(spot, offset, marks)
        elif acks == ACKS_LEADER:
            self.world.by_leader_only.append((spot, offset, marks))

    # Reading

    async def _read_on(self, name: str, random: Random) -> None:
        async with self._cluster() as cluster:
            consumer = Consumer(cluster, timeout_s=BRIEF_S, request_timeout_s=REQUEST_S)
            places: dict[Spot, int] = {}
            while not self.stop_reading.is_set():
                topic = random.choice(self.world.plan.topics)
                spot = Spot(topic.name, random.randrange(topic.partitions))
                try:
                    await self._look(name, consumer, spot, places, random)
                except OffsetOutOfRangeError as error:
                    self.world.watch.refused(name, spot, error.offset)
                    places[spot] = error.start
                except ClusterError:
                    self.world.watch.seen["read given up"] += 1
                await asyncio.sleep(random.uniform(0, 0.2))

    async def _look(self, name: str, consumer: Consumer, spot: Spot, places: dict[Spot, int], random: Random) -> None:
        what = random.random()
        if what < 0.15:
            latest = await consumer.list_offset(spot.topic, spot.index, LATEST)
            self.world.watch.listed_latest(name, spot, latest.offset)
            return
        if what < 0.2:
            places[spot] = (await consumer.list_offset(spot.topic, spot.index, EARLIEST)).offset
            self.world.watch.listed_earliest(name, spot, places[spot])
            return
        offset = places.get(spot, 0)
        places[spot] = await self.read(name, consumer, spot, offset)

    async def read(self, name: str, consumer: Consumer, spot: Spot, offset: int) -> int:
        """Fetch once from `offset`, and hold what comes against the watch; where to go on."""
        fetched = await consumer.fetch(spot.topic, spot.index, offset, wait_ms=FETCH_WAIT_MS)
        for batch in batches_in(bytes(fetched.records)):
            self.world.consumed += len(batch.marks)
            self.world.watch.consumed(name, spot, batch.base_offset, batch.marks)
            self.world.watch.check(
                batch.base_offset <= offset < batch.end_offset,
                lambda offset=offset, batch=batch: f"I21: {name} asks for {spot} from {offset}, and sees {batch}",  # type: ignore[misc]
            )
            offset = batch.end_offset
        return offset

    def _cluster(self) -> Cluster:
        return Cluster(self.world.bootstrap, request_timeout_s=REQUEST_S, connect_timeout_s=CONNECT_S)
