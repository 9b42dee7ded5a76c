"""The clients of a simulated cluster: the product's own producer and consumer, each on a host of its own.

Every answer is passed to the watch immediately.  Some producers must never fail (`must_never_fail`).  Any other client
that fails starts again, a producer as another writer, and the failure is counted.
"""

from __future__ import annotations

import asyncio
from itertools import count
from random import Random

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST, Consumer, OffsetOutOfRangeError
from quorumlog.client.producer import ACKS_ALL, ACKS_LEADER, Producer
from quorumlog.errors import ClusterError
from simulation.cluster.groups import Group
from simulation.cluster.history import Mark, batches_in
from simulation.cluster.members import Members
from simulation.cluster.metadata import Spot
from simulation.cluster.pipelines import Pipelines
from simulation.cluster.plan import TopicPlan
from simulation.cluster.scopes import Scopes
from simulation.cluster.transactions import Transactions
from simulation.cluster.workers import Workers
from simulation.cluster.world import ClusterWorld
from simulation.cluster.writers import BRIEF_S, FOREVER_S, draw_batch, must_never_fail, report_failure

REQUEST_S = 1.0
CONNECT_S = 0.5
FETCH_WAIT_MS = 200
WAITING = 4
"""Maximum number of unacknowledged batches of a producer.  It sends one batch per partition at a time."""
PAUSE_S = 0.2


class Clients:
    """Starts and stops the clients.  Each new producer gets the next number from `_writers`."""

    def __init__(self, world: ClusterWorld) -> None:
        self.world = world
        self.stop_writing = asyncio.Event()
        self.stop_reading = asyncio.Event()
        self._writers = count(1)
        self._pauses = Random(world.plan.seed)  # separate: a retry must not change a client's next actions
        self.writing: list[asyncio.Task[None]] = []
        self.reading: list[asyncio.Task[None]] = []
        self.group = Group(world, self.cluster)
        self.members = Members(world, self.cluster)
        self.transactions = Transactions(world, self.cluster)
        self.scopes = Scopes(world, self.cluster)
        self.workers = Workers(world, self.cluster)
        self.pipelines = Pipelines(world, self.cluster, self._writers, self.stop_writing)

    def start(self) -> None:
        """Start the clients of the plan."""
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
        for name in world.plan.pipeline_hosts:
            self.writing.append(world.start_client(name, self.pipelines.run(name)))

    # Writing

    async def _write_on(self, topic: TopicPlan, acks: int, random: Random) -> None:
        """Write until the run stops writing, with a single producer if that producer must never fail."""
        promised = acks == ACKS_ALL and must_never_fail(self.world, topic)
        async with self.cluster() as cluster:
            while not self.stop_writing.is_set():
                try:
                    await self._write(cluster, topic, acks, random, FOREVER_S if promised else BRIEF_S)
                except ClusterError as error:
                    report_failure(self.world, topic, error, promised)
                    await asyncio.sleep(PAUSE_S)

    async def _write(self, cluster: Cluster, topic: TopicPlan, acks: int, random: Random, timeout_s: float) -> None:
        writer, numbers = next(self._writers), count()
        waiting: set[asyncio.Future[int]] = set()
        async with Producer(cluster, acks=acks, delivery_timeout_s=timeout_s, request_timeout_s=REQUEST_S) as producer:
            while not self.stop_writing.is_set():
                spot = Spot(topic.name, random.randrange(topic.partitions))
                marks, batch = draw_batch(self.world, topic, writer, numbers, random)
                sent = await producer.send(spot.topic, spot.index, batch)
                self.world.written += 1
                waiting.add(sent)
                sent.add_done_callback(lambda done, spot=spot, marks=marks: self._on_sent(done, spot, marks, acks))  # type: ignore[misc]
                if len(waiting) >= WAITING:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(random.uniform(0, 2 * self.world.plan.gap_s))

    def _on_sent(self, sent: asyncio.Future[int], spot: Spot, marks: tuple[Mark, ...], acks: int) -> None:
        if sent.cancelled() or sent.exception() is not None:
            return
        self.world.acknowledged += 1
        offset = sent.result()
        if acks == ACKS_LEADER:
            self.world.by_leader_only.append((spot, offset, marks))
        elif offset >= 0:
            self.world.watch.answers.acknowledged(spot, offset, marks)
        else:  # the leader had this batch before, and no longer knows its offset
            self.world.watch.answers.acknowledged_somewhere(spot, marks)

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
            answers.consumed_batch(name, spot, batch)
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
