"""Idempotent producers with several batches of each partition in flight, like the producers of other clients.

Theory of operation.  The first partitions of each topic have two lanes each, and a lane runs one producer after
another.  A producer numbers its batches, and sends them over the connection to the leader without waiting for answers,
until `ClusterPlan.in_flight` batches are unanswered.  The leader answers in order.  After a retriable error, the
producer sends nothing more until the later batches are answered as well.  Then it looks up the leader, and resends all
batches that are not acknowledged, in their order and with their sequences.

All lanes share the connection to a broker.  So the refusal of a producer's first batch waits for the answers to batches
of other lanes, and meanwhile the producer sends its next batches.  If a producer breaks the connection because an
answer is late, all producers continue over a new one.

An error that is not retriable ends the producer.  This is a violation (I22) if the producer must never fail
(`must_never_fail`).  On a topic that keeps all records, it is also a violation if an answer reports a loss after the
leader has temporarily refused an earlier batch (I47); `SequenceWatch` explains this.  The connection keeps the order,
so all earlier batches were answered before such an answer.  If all these batches were acknowledged, the loss is real.
If one was refused, the leader itself has caused the gap.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from random import Random

from quorumlog.client.cluster import Cluster
from quorumlog.client.delivery import ACKS_ALL
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import refusal
from quorumlog.client.records import stamp
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import produce
from quorumlog.wire.kafka.codec import Api
from simulation.cluster.history import Mark
from simulation.cluster.metadata import Spot
from simulation.cluster.plan import TopicPlan
from simulation.cluster.sequence_watch import SequenceWatch
from simulation.cluster.world import ClusterWorld
from simulation.cluster.writers import BRIEF_S, FOREVER_S, LOST, draw_batch, must_never_fail, report_failure

PARTITIONS_MAX = 2
"""Maximum number of partitions of a topic that have lanes.  More would slow the run down, and find nothing else."""
REQUEST_S = 1.0
TIMEOUTS_MS = (100, 300, 1000)
"""How long leaders wait for replicas.  A batch that is answered with a timeout is in the log."""
TOGETHER = 0.6
"""The share of batches that are sent immediately after the previous batch."""
BATCHES = (3, 10, 10_000)
"""The numbers of batches after which a lane replaces its producer by one with a new producer id."""
RETRY_S = (0.01, 0.1)
PAUSE_S = 0.2
_PRODUCE_VERSION = 9


@dataclass(eq=False, slots=True)
class _Batch:
    """A batch that is not acknowledged.  deadline: when its producer gives up.  error: the last error answered."""

    sequence: int
    marks: tuple[Mark, ...]
    data: bytearray
    deadline: float
    error: str = ""


class Pipelines:
    """The lanes of one run.

    writers: gives each new producer of a lane its number.
    stop: after it is set, lanes send no new batch, and end once all batches are acknowledged.
    """

    def __init__(
        self, world: ClusterWorld, new_client: Callable[[], Cluster], writers: count[int], stop: asyncio.Event
    ) -> None:
        self.world = world
        self.watch = SequenceWatch(world.watch.evidence)
        self.writers = writers
        self.stop = stop
        self._new_client = new_client

    async def run(self, name: str) -> None:
        """Write to the first partitions of each topic.

        In each partition, one lane begins with a producer id that all partitions share.
        """
        plan = self.world.plan
        async with self._new_client() as cluster, asyncio.TaskGroup() as lanes:
            producer = await cluster.new_producer_id(FOREVER_S)
            for topic in plan.topics:
                for index in range(min(topic.partitions, PARTITIONS_MAX)):
                    spot = Spot(topic.name, index)
                    for first in (producer, None):
                        lane = Lane(self, cluster, topic, spot, Random(f"{plan.seed} {name} {spot} {first is None}"))
                        lanes.create_task(lane.run(first))


class Lane:
    """One lane: the producers that write to one partition, one after another."""

    def __init__(self, pipelines: Pipelines, cluster: Cluster, topic: TopicPlan, spot: Spot, random: Random) -> None:
        self.pipelines = pipelines
        self.world = pipelines.world
        self.cluster = cluster
        self.topic = topic
        self.spot = spot
        self.random = random
        self.is_promised = must_never_fail(self.world, topic)
        self.keeps_order = topic.keeps_all and not self.world.plan.rebuilds
        self.delivery_timeout_s = FOREVER_S if self.is_promised else BRIEF_S

    async def run(self, identity: tuple[int, int] | None) -> None:
        """Write until the run stops writing.  identity: producer id and epoch of the first producer; None: new ones."""
        while not self.pipelines.stop.is_set():
            try:
                if identity is None:
                    identity = await self.cluster.new_producer_id(self.delivery_timeout_s)
                await Producer(self, identity, self.random.choice(BATCHES)).write()
            except ClusterError as error:
                report_failure(self.world, self.topic, error, self.is_promised)
                await asyncio.sleep(PAUSE_S)
            identity = None


class Producer:
    """One producer epoch in one partition.

    batches: the batches that are not acknowledged, in the order of their sequences.
    batches_max: the number of batches that it sends.
    """

    def __init__(self, lane: Lane, identity: tuple[int, int], batches_max: int) -> None:
        self.batches: deque[_Batch] = deque()
        self.lane = lane
        self._identity = identity
        self._writer = next(lane.pipelines.writers)
        self._numbers = count()
        self._next_sequence = 0
        self._next_at = 0.0
        self._left = batches_max
        self._timeout_ms = lane.random.choice(TIMEOUTS_MS)
        if lane.keeps_order:
            lane.pipelines.watch.begins(self._writer)

    async def write(self) -> None:
        """Send batches until all are acknowledged.  Raises: ClusterError; this producer then sends nothing more."""
        lane, loop = self.lane, asyncio.get_running_loop()
        while self.batches or not self._is_last:
            try:
                connection = await lane.cluster.leader(*lane.spot, REQUEST_S)
                await self._fly(connection)
                continue
            except ClusterError as error:
                if not error.retriable or (self.batches and self.batches[0].deadline < loop.time()):
                    raise
                lane.cluster.forget_leader(*lane.spot)
            await asyncio.sleep(lane.random.uniform(*RETRY_S))

    @property
    def _is_last(self) -> bool:
        """Whether no further batch follows."""
        return self._left == 0 or self.lane.pipelines.stop.is_set()

    async def _fly(self, connection: KafkaConnection) -> None:
        """Keep batches in flight until one is answered with an error, and await the answers to the others.

        Raises: ClusterError, the first error.
        """
        again = deque(self.batches)
        flying: deque[tuple[_Batch, asyncio.Task[produce.ProducedPartition]]] = deque()
        failure: ClusterError | None = None
        try:
            while flying or failure is None:
                has_room = failure is None and len(flying) < self.lane.world.plan.in_flight
                if has_room and (batch := again.popleft() if again else self._new_batch()) is not None:
                    flying.append((batch, asyncio.create_task(self._send(connection, batch))))
                elif flying:
                    wait_s = self._until_next_s() if has_room and not self._is_last else None
                    await asyncio.wait({flying[0][1]}, timeout=wait_s)
                    if flying[0][1].done():
                        error = await self._answered(connection, *flying.popleft())
                        failure = failure or error
                elif self._is_last:
                    return
                else:
                    await asyncio.sleep(self._until_next_s())
        finally:
            for _, sent in flying:
                if not sent.cancel() and not sent.cancelled():
                    sent.exception()  # its answer arrived when this method was cancelled
        raise failure

    def _until_next_s(self) -> float:
        return max(self._next_at - asyncio.get_running_loop().time(), 0.0)

    def _new_batch(self) -> _Batch | None:
        """Return None if it is not yet time for the next batch, or if none follows."""
        lane, now = self.lane, asyncio.get_running_loop().time()
        if now < self._next_at or self._is_last:
            return None
        if lane.random.random() >= TOGETHER:
            self._next_at = now + lane.random.uniform(0, 8 * lane.world.plan.gap_s)
        marks, data = draw_batch(lane.world, lane.topic, self._writer, self._numbers, lane.random)
        stamp(data, *self._identity, self._next_sequence)
        batch = _Batch(self._next_sequence, marks, data, now + lane.delivery_timeout_s)
        self._next_sequence += len(marks)
        self._left -= 1
        self.batches.append(batch)
        lane.world.written += 1
        return batch

    async def _send(self, connection: KafkaConnection, batch: _Batch) -> produce.ProducedPartition:
        """Return the leader's answer.  Raises: ClusterError, if no answer comes in time."""
        partitions = [(*self.lane.spot, batch.data)]
        body = produce.encode_request(_PRODUCE_VERSION, ACKS_ALL, self._timeout_ms, partitions, None)
        reply = await connection.call(Api.PRODUCE, _PRODUCE_VERSION, body, REQUEST_S)
        with connection.judged():
            (result,) = produce.decode_response(reply, _PRODUCE_VERSION)
        return result

    async def _answered(
        self, connection: KafkaConnection, batch: _Batch, sent: asyncio.Task[produce.ProducedPartition]
    ) -> ClusterError | None:
        """Check the answer to a batch.  Return the error if the batch is not acknowledged."""
        lane = self.lane
        try:
            result = sent.result()
        except ClusterError as error:
            await lane.cluster.leader_lost(*lane.spot, connection)  # breaks the connection if an answer is late
            return error
        if result.error_code in (KafkaCode.NONE, KafkaCode.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledged(batch, None if result.error_code else result.base_offset)
            return None
        refused = refusal(result.error_code, *lane.spot, f"{batch.marks} with sequence {batch.sequence}")
        batch.error = refused.code
        if refused.code in LOST and self.batches[0] is not batch:
            lane.world.watch.seen["gap reported to a producer"] += 1
            if lane.keeps_order:
                earlier = [one.error for one in self.batches if one.sequence < batch.sequence]
                lane.pipelines.watch.refused(lane.spot, batch.marks, refused.code, earlier)
        return refused

    def _acknowledged(self, batch: _Batch, offset: int | None) -> None:
        """Note, and check, that a batch was acknowledged.  offset: None if the leader no longer knows it."""
        world, spot = self.lane.world, self.lane.spot
        world.watch.seen["acknowledged before an earlier batch"] += self.batches[0] is not batch
        self.batches.remove(batch)
        world.acknowledged += 1
        if offset is None:
            world.watch.seen["acknowledged without an offset"] += 1
            world.watch.answers.acknowledged_somewhere(spot, batch.marks)
        else:
            world.watch.answers.acknowledged(spot, offset, batch.marks)
