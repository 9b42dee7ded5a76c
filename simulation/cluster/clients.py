"""The clients of a simulated cluster: the product's own producer and consumer, each on a host of its own.

Every answer is passed to the watch immediately.  On a topic that keeps all records, a client must never fail
permanently.  On other topics a failed client starts again as another writer, and the failure is counted.
"""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST, Consumer, OffsetOutOfRangeError
from quorumlog.client.producer import ACKS_ALL, ACKS_LEADER, Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from simulation.cluster.groups import Group
from simulation.cluster.history import Mark, batches_in
from simulation.cluster.members import Members
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import TopicPlan
from simulation.cluster.scopes import Scopes
from simulation.cluster.transactions import Transactions
from simulation.cluster.workers import Workers
from simulation.cluster.world import ClusterWorld

FOREVER_S = 10_000.0
BRIEF_S = 2.0
REQUEST_S = 1.0
CONNECT_S = 0.5
FETCH_WAIT_MS = 200
BATCH_RECORDS = 3
TOMBSTONES = 0.15
"""The share of tombstones among the records of a compacted topic."""
IN_FLIGHT = 4
PAUSE_S = 0.2
OUT_OF_ORDER = (ApiError.OUT_OF_ORDER_SEQUENCE_NUMBER, ApiError.UNKNOWN_PRODUCER_ID, ApiError.INVALID_PRODUCER_EPOCH)


class Clients:
    """Starts and stops the clients.  Each new producer gets the next number from `_writers`."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.stop_writing = asyncio.Event()
        self.stop_reading = asyncio.Event()
        self._writers = count(1)
        self._pauses = Random(world.plan.seed)  # its own, so that a retry does not change what a client does next
        self.writing: list[asyncio.Task[None]] = []
        self.reading: list[asyncio.Task[None]] = []
        self.group = Group(world, self.cluster)
        self.members = Members(world, self.cluster)
        self.transactions = Transactions(world, self.cluster)
        self.scopes = Scopes(world, self.cluster)
        self.workers = Workers(world, self.cluster)

    def start(self) -> None:
        """Start producers of each topic and with acks=1, two consumers, groups, transactions, scopes, and a queue."""
        world = self.world
        *producers, by_leader = world.plan.producer_hosts
        for name, topic in zip(producers, world.plan.topics, strict=True):
            self.writing.append(world.start_client(name, self._write_on(topic, ACKS_ALL, world.fresh_random())))
        first = world.plan.topics[0]
        self.writing.append(world.start_client(by_leader, self._write_on(first, ACKS_LEADER, world.fresh_random())))
        for name in world.plan.consumer_hosts:
            self.reading.append(world.start_client(name, self._read_on(name, world.fresh_random())))
        self.group.start()
        self.members.start()
        self.transactions.start()
        self.scopes.start()
        for name in world.plan.queue_hosts:
            writes = self._write_on(world.plan.queue, ACKS_ALL, world.fresh_random())
            self.writing.append(world.start_client(name, writes))
        self.workers.start()

    # Writing

    async def _write_on(self, topic: TopicPlan, acks: int, random: Random) -> None:
        """Write until the run stops writing, with a single producer if that producer must never fail."""
        plan = self.world.plan
        is_durable = plan.forgets_producers_s >= FOREVER_S and not plan.rebuilds
        promised = topic.keeps_all and acks == ACKS_ALL and is_durable
        async with self.cluster() as cluster:
            while not self.stop_writing.is_set():
                try:
                    await self._write(cluster, topic, acks, random, FOREVER_S if promised else BRIEF_S)
                except ClusterError as error:
                    self._failed(topic, error, promised)
                    await asyncio.sleep(PAUSE_S)

    def _failed(self, topic: TopicPlan, error: ClusterError, promised: bool) -> None:
        watch = self.world.watch
        promised = promised and not watch.answers.has_lost(topic.name)
        watch.check(not promised, lambda: f"I22: a producer of {topic.name} is refused: {error.message}")
        watch.seen["loss reported to a producer" if error.code in OUT_OF_ORDER else "producer failed"] += 1

    async def _write(self, cluster: Cluster, topic: TopicPlan, acks: int, random: Random, timeout_s: float) -> None:
        writer, numbers = next(self._writers), count()
        waiting: set[asyncio.Future[int]] = set()
        async with Producer(cluster, acks=acks, delivery_timeout_s=timeout_s, request_timeout_s=REQUEST_S) as producer:
            while not self.stop_writing.is_set():
                spot = Spot(topic.name, random.randrange(topic.partitions))
                marks = tuple([Mark(writer, next(numbers)) for _ in range(random.randint(1, BATCH_RECORDS))])
                batch = build_batch([self._record(topic, mark, random) for mark in marks], topic.codec)
                sent = await producer.send(spot.topic, spot.index, batch)
                self.world.written += 1
                waiting.add(sent)
                sent.add_done_callback(lambda done, spot=spot, marks=marks: self._on_sent(done, spot, marks, acks))  # type: ignore[misc]
                if len(waiting) >= IN_FLIGHT:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(random.uniform(0, 2 * self.world.plan.gap_s))

    def _record(self, topic: TopicPlan, mark: Mark, random: Random) -> NewRecord:
        """Return a new record.  A tombstone has its mark in a header."""
        now_ms, compaction = self.world.wall_ms(), topic.compaction
        if compaction is None:
            return NewRecord(None, mark.value, now_ms, ())
        key = b"key %d" % random.randrange(compaction.keys)
        if random.random() < TOMBSTONES:
            return NewRecord(key, None, now_ms, (("mark", mark.value),))
        return NewRecord(key, mark.value, now_ms, ())

    def _on_sent(self, sent: asyncio.Future[int], spot: Spot, marks: tuple[Mark, ...], acks: int) -> None:
        if sent.cancelled() or sent.exception() is not None:
            return
        self.world.acknowledged += 1
        offset = sent.result()
        if acks == ACKS_ALL and offset >= 0:
            self.world.watch.answers.acknowledged(spot, offset, marks)
        elif acks == ACKS_LEADER:
            self.world.by_leader_only.append((spot, offset, marks))

    # Reading

    async def _read_on(self, name: str, random: Random) -> None:
        async with self.cluster() as cluster:
            consumer = Consumer(cluster, timeout_s=BRIEF_S, request_timeout_s=REQUEST_S)
            places: dict[Spot, int] = {}
            while not self.stop_reading.is_set():
                topic = random.choice(self.world.plan.topics)
                spot = Spot(topic.name, random.randrange(topic.partitions))
                try:
                    await self._ask(name, consumer, spot, places, random)
                except OffsetOutOfRangeError as error:
                    self.world.watch.answers.refused(name, spot, error.offset)
                    places[spot] = error.start
                except ClusterError:
                    self.world.watch.seen["read failed"] += 1
                await asyncio.sleep(random.uniform(0, 0.2))

    async def _ask(self, name: str, consumer: Consumer, spot: Spot, places: dict[Spot, int], random: Random) -> None:
        kind = random.random()
        if kind < 0.15:
            latest = await consumer.list_offset(spot.topic, spot.index, LATEST)
            self.world.watch.answers.listed_latest(name, spot, latest.offset)
            return
        if kind < 0.2:
            places[spot] = (await consumer.list_offset(spot.topic, spot.index, EARLIEST)).offset
            self.world.watch.answers.listed_earliest(name, spot, places[spot])
            return
        offset = places.get(spot, 0)
        places[spot] = await self.read(name, consumer, spot, offset)

    async def read(self, name: str, consumer: Consumer, spot: Spot, offset: int) -> int:
        """Fetch once from `offset`, check the records, and return the offset of the next fetch."""
        fetched = await consumer.fetch(spot.topic, spot.index, offset, wait_ms=FETCH_WAIT_MS)
        answers, world = self.world.watch.answers, self.world
        for batch in batches_in(bytes(fetched.records), answers.is_keyed(spot)):
            world.consumed += len(batch.marks)
            answers.consumed(name, spot, batch.base_offset, batch.marks)
            answers.skipped(name, spot, batch, world.loop.true_time(), world.wall_ms())
            self.world.watch.check(
                batch.base_offset <= offset < batch.end_offset,
                lambda offset=offset, batch=batch: f"I21: {name} fetches {spot} from {offset}, and receives {batch}",  # type: ignore[misc]
            )
            offset = batch.end_offset
        return offset

    def cluster(self) -> Cluster:
        """Return a new client."""
        bootstrap = self.world.bootstrap
        return Cluster(bootstrap, request_timeout_s=REQUEST_S, connect_timeout_s=CONNECT_S, random=self._pauses)
