"""Incremental fetch sessions of consumers (KIP-227): they return the same as full fetches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest

from broker.core.fetch_session import CONSUMER, NO_SESSION
from broker.kafka.api import FetchPartition, FetchPlan, FetchReply, FetchResult, ForgottenPartition
from metadata.records import BrokerChange, Partition
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig
from tests.unit.metadata.fake_node import settle

COUNT = 4
SIZE_MAX = 1 << 20


class Known(NamedTuple):
    """A consumer's knowledge of a partition, without the records."""

    error_code: int
    high_watermark: int
    log_start: int


def known(result: FetchResult) -> Known:
    return Known(result.error_code, result.high_watermark, result.log_start_offset)


class SessionConsumer:
    """A consumer that keeps a session as clients do; `positions` are the offsets that it wants next.

    records: the records of the last reply.  state: the newest known state of each partition of the session.
    """

    def __init__(self, rig: Rig, *, by_id: bool) -> None:
        self._rig = rig
        self._by_id = by_id
        self.positions: dict[int, int] = {}
        self.committed = False
        self.partition_size_max = SIZE_MAX
        self.records: dict[int, bytes] = {}
        self.state: dict[int, Known] = {}
        self._sent: dict[int, int] = {}
        self._session, self._epoch = 0, 0

    def plan(self, offsets: dict[int, int], forgotten: list[int], session: tuple[int, int], **more: int) -> FetchPlan:
        topic_id, name = (self._rig.hosted().topic_id, None) if self._by_id else (None, TOPIC)
        return FetchPlan(
            tuple(
                FetchPartition(topic_id, name, index, offset, self.partition_size_max)
                for index, offset in offsets.items()
            ),
            max_wait_ms=more.get("max_wait_ms", 0),
            min_bytes=more.get("min_bytes", 0),
            max_bytes=SIZE_MAX,
            session_id=session[0],
            session_epoch=session[1],
            forgotten=tuple(ForgottenPartition(topic_id, name, index) for index in forgotten),
            by_id=self._by_id,
            read_committed=self.committed,
        )

    def next_plan(self, **more: int) -> FetchPlan:
        changed = {index: offset for index, offset in self.positions.items() if self._sent.get(index) != offset}
        gone = [index for index in self._sent if index not in self.positions]
        return self.plan(changed, gone, (self._session, self._epoch), **more)

    async def fetch(self, **more: int) -> FetchReply:
        return self.take(await self._rig.replicas.fetch(self.next_plan(**more)))

    def take(self, reply: FetchReply) -> FetchReply:
        assert reply.error_code == KafkaCode.NONE
        if self._epoch == 0:
            self.state.clear()
        self._sent = dict(self.positions)
        self._session = reply.session_id
        self._epoch = self._epoch + 1 if reply.session_id else 0
        if not reply.session_id:
            self._sent = {}
        self.state = {index: state for index, state in self.state.items() if index in self.positions}
        self.records = {each.index: bytes(each.records) for each in reply.results if len(each.records)}
        self.state.update({each.index: known(each) for each in reply.results})
        return reply


async def check(rig: Rig, consumer: SessionConsumer) -> None:
    """Fetch in the session; check that a full fetch from the same positions returns the same state and records."""
    await consumer.fetch()
    full = await rig.replicas.fetch(consumer.plan(consumer.positions, [], (0, -1)))
    assert consumer.state == {each.index: known(each) for each in full.results}
    assert consumer.records == {each.index: bytes(each.records) for each in full.results if len(each.records)}


async def write(rig: Rig, index: int, *values: bytes) -> None:
    rig.replicas.start_produce(TOPIC, index, memoryview(make_batch(values)), -1, 60_000)
    log = rig.hosted(index).log
    assert log is not None
    await rig.role.logs.flush_all([log])


class Story:
    """Random events at a broker that leads all partitions, between the fetches of one consumer."""

    def __init__(self, rig: Rig, random: Random, consumer: SessionConsumer) -> None:
        self._rig = rig
        self._random = random
        self._consumer = consumer

    async def event(self) -> None:
        index = self._random.randrange(COUNT)
        positions = self._consumer.positions
        match self._random.randrange(10):
            case 0 | 1 | 2:
                if self._rig.hosted(index).leader is not None:
                    await write(self._rig, index, b"x" * self._random.randint(1, 50))
            case 3 | 4 | 5:
                positions[index] = self._end(index)  # it has consumed everything
            case 6:
                positions[index] = self._random.randint(0, self._end(index) + 2)
            case 7:
                positions.pop(index, None)
            case 8:
                await self._unusual(index)
            case _:
                self._consumer.committed = not self._consumer.committed

    async def _unusual(self, index: int) -> None:
        if self._random.random() < 0.5:
            self._rig.replicas.start_delete(TOPIC, index, self._random.randint(0, self._end(index)), 0)
        elif self._random.random() < 0.5:
            await self._rig.change(leader=2 if self._rig.hosted(0).leader is not None else 1)
        else:
            own = self._rig.cluster.image.brokers[1]
            self._rig.cluster.apply([BrokerChange(1, own.epoch, fenced=not own.fenced)])
            await self._rig.learn()

    def _end(self, index: int) -> int:
        log = self._rig.hosted(index).log
        assert log is not None
        return log.end_offset


@pytest.mark.parametrize("seed", range(12))
async def test_incremental_fetches_return_the_same_records_and_states_as_full_fetches(rig: Rig, seed: int) -> None:
    await rig.create(*[(1,)] * COUNT)
    consumer = SessionConsumer(rig, by_id=seed % 2 == 0)
    story = Story(rig, Random(seed), consumer)
    consumer.positions[0] = 0
    for _ in range(60):
        await story.event()
        if not consumer.positions:
            consumer.positions[0] = 0
        await check(rig, consumer)


async def opened(rig: Rig, count: int = COUNT) -> SessionConsumer:
    """A consumer at the end of all partitions, each of which has one record."""
    await rig.create(*[(1,)] * count)
    consumer = SessionConsumer(rig, by_id=True)
    for index in range(count):
        await write(rig, index, b"a")
        consumer.positions[index] = 1
    await consumer.fetch()
    return consumer


async def test_a_reply_contains_only_partitions_that_changed(rig: Rig) -> None:
    consumer = await opened(rig)
    await write(rig, 2, b"b")
    reply = await consumer.fetch()
    assert [each.index for each in reply.results] == [2]
    consumer.positions[2] = 2
    assert (await consumer.fetch()).results == ()


async def test_a_fetch_evaluates_only_partitions_that_changed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = await opened(rig, 50)
    await consumer.fetch()
    fetches = rig.replicas.fetches
    visited = 0
    evaluate: Callable[..., object] = fetches._evaluate

    def counting(*arguments: object, **more: object) -> object:
        nonlocal visited
        visited += 1
        return evaluate(*arguments, **more)

    monkeypatch.setattr(fetches, "_evaluate", counting)
    await write(rig, 2, b"b")
    for _ in range(10):
        await consumer.fetch()
        consumer.positions[2] = 2
    assert visited == 2, "partition 2 once with its record, and once at its new position"


async def test_a_consumer_that_permits_no_bytes_reads_one_batch_at_a_time_from_all_partitions(rig: Rig) -> None:
    """Java clients permit `max.partition.fetch.bytes` 0.  A reply then has the first batch of one partition."""
    await rig.create(*[(1,)] * COUNT)
    consumer = SessionConsumer(rig, by_id=True)
    consumer.partition_size_max = 0
    for index in range(COUNT):
        await write(rig, index, b"a")
        consumer.positions[index] = 0
    read = []
    for _ in range(COUNT):
        await consumer.fetch()
        for index in consumer.records:
            read.append(index)
            consumer.positions[index] = 1
    assert sorted(read) == list(range(COUNT))


async def test_a_consumer_that_permits_no_bytes_learns_that_records_were_deleted(rig: Rig) -> None:
    await rig.create((1,))
    consumer = SessionConsumer(rig, by_id=True)
    consumer.partition_size_max = 0
    await write(rig, 0, b"a")
    consumer.positions[0] = 1
    await consumer.fetch()
    assert consumer.state[0] == Known(KafkaCode.NONE, high_watermark=1, log_start=0)
    await rig.replicas.start_delete(TOPIC, 0, 1, 1_000)
    await consumer.fetch()
    assert consumer.state[0] == Known(KafkaCode.NONE, high_watermark=1, log_start=1)


async def test_a_small_append_does_not_end_the_wait_for_many_bytes(rig: Rig) -> None:
    consumer = await opened(rig)
    waiting = asyncio.create_task(rig.replicas.fetch(consumer.next_plan(max_wait_ms=30_000, min_bytes=300)))
    await settle()
    await write(rig, 0, b"b" * 50)
    await settle()
    assert not waiting.done()
    await write(rig, 1, b"b" * 250)
    reply = consumer.take(await waiting)
    assert sorted(each.index for each in reply.results if len(each.records)) == [0, 1]


@pytest.mark.parametrize("other", [{}, {COUNT: 0}])
async def test_a_fetch_is_answered_once_its_partitions_have_enough_bytes(rig: Rig, other: dict[int, int]) -> None:
    """A reply holds whole batches, so it may be smaller than the size that the consumer accepts for the partition."""
    await rig.create((1,))
    consumer = SessionConsumer(rig, by_id=True)
    consumer.partition_size_max = 400
    consumer.positions = {0: 0, **other}
    await consumer.fetch()  # its reply also reports the partition that does not exist
    waiting = asyncio.create_task(rig.replicas.fetch(consumer.next_plan(max_wait_ms=30_000, min_bytes=400)))
    size = len(make_batch([b"b" * 100]))
    for count in range(3):
        await settle()
        assert not waiting.done(), count
        await write(rig, 0, b"b" * 100)
    await settle()
    assert waiting.done(), f"{min(3 * size, 400)} bytes are available"
    reply = consumer.take(waiting.result())
    assert [len(each.records) for each in reply.results if len(each.records)] == [2 * size]


async def test_a_new_error_answers_a_parked_fetch_beside_an_error_that_was_sent(rig: Rig) -> None:
    """The session looks at partition 0 first, because it has records that the consumer has not consumed."""
    await rig.create((1,), (1,))
    await write(rig, 0, b"a")
    consumer = SessionConsumer(rig, by_id=True)
    consumer.positions = {0: 0, 1: 99}
    await consumer.fetch()
    assert consumer.state[1].error_code == KafkaCode.OFFSET_OUT_OF_RANGE
    waiting = asyncio.create_task(rig.replicas.fetch(consumer.next_plan(max_wait_ms=30_000, min_bytes=300)))
    await settle()
    assert not waiting.done(), "the error of partition 1 was sent before"
    await rig.change(leader=2)
    await settle()
    assert waiting.done()
    consumer.take(waiting.result())
    assert consumer.state[0].error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_min_bytes_counts_only_the_bytes_that_the_consumer_accepts_from_a_partition(rig: Rig) -> None:
    await rig.create((1,))
    consumer = SessionConsumer(rig, by_id=True)
    consumer.partition_size_max = 400
    consumer.positions = {0: 0}
    await consumer.fetch()
    await write(rig, 0, b"b" * 800)
    waiting = asyncio.create_task(rig.replicas.fetch(consumer.next_plan(max_wait_ms=30_000, min_bytes=600)))
    await settle()
    assert not waiting.done()
    waiting.cancel()


async def test_a_session_learns_of_a_partition_that_is_created_later(rig: Rig) -> None:
    consumer = await opened(rig, 1)
    consumer.positions[1] = 0
    assert [each.error_code for each in (await consumer.fetch()).results] == [KafkaCode.UNKNOWN_TOPIC_ID]
    image = rig.hosted().image
    rig.cluster.apply([Partition(rig.hosted().topic_id, 1, image.replicas, (1,), 1)])
    await rig.learn()
    assert [each.error_code for each in (await consumer.fetch()).results] == [KafkaCode.NONE]
    assert (await consumer.fetch()).results == ()
    await write(rig, 1, b"a")
    assert [len(each.records) > 0 for each in (await consumer.fetch()).results] == [True]


async def test_a_session_that_forgets_its_last_partition_ends(rig: Rig) -> None:
    consumer = await opened(rig)
    consumer.positions.clear()
    reply = await consumer.fetch(max_wait_ms=30_000)
    assert (reply.session_id, reply.results) == (0, ())
    assert len(rig.replicas.fetches.sessions) == 0
    assert not rig.hosted().sessions


async def test_a_client_that_disconnects_before_the_reply_of_its_first_fetch_leaves_no_session(rig: Rig) -> None:
    await rig.create((1,))
    consumer = SessionConsumer(rig, by_id=True)
    consumer.positions[0] = 0
    waiting = asyncio.create_task(rig.replicas.fetch(consumer.next_plan(max_wait_ms=30_000, min_bytes=1)))
    await settle()
    assert len(rig.replicas.fetches.sessions) == 1
    waiting.cancel()
    await asyncio.wait({waiting})
    assert len(rig.replicas.fetches.sessions) == 0
    assert not rig.hosted().sessions


async def test_a_consumer_cannot_continue_a_followers_session(rig: Rig) -> None:
    await rig.create((1, 2))
    partition = FetchPartition(rig.hosted().topic_id, None, 0, 0, SIZE_MAX, 0, -1)
    follower = FetchPlan((partition,), 0, 0, SIZE_MAX, 2, rig.cluster.epoch(2), 0, 0)
    session_id = (await rig.replicas.fetch(follower)).session_id
    assert session_id
    reply = await rig.replicas.fetch(FetchPlan((), 0, 0, SIZE_MAX, CONSUMER, -1, session_id, 1))
    assert reply.error_code == KafkaCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_session_that_ends_while_its_fetch_waits_is_removed_from_its_replicas(rig: Rig, by_id: bool) -> None:
    """The fetch waits for more bytes, and looks at the partitions again when the session ends."""
    await rig.create((1,))
    await write(rig, 0, b"a")
    consumer = SessionConsumer(rig, by_id=by_id)
    consumer.positions = {0: 0}
    session_id = (await consumer.fetch(min_bytes=1)).session_id
    waiting = asyncio.create_task(rig.replicas.fetch(consumer.next_plan(max_wait_ms=30_000, min_bytes=200)))
    await settle()
    assert rig.replicas.fetches.parked == 1
    await rig.replicas.fetch(consumer.plan({}, [], (session_id, -1)))  # ends the session
    await settle()
    assert not waiting.done()
    await write(rig, 0, b"b" * 200)
    assert (await waiting).session_id == NO_SESSION, "the consumer must open another session"
    assert not rig.hosted().sessions


async def test_a_fetch_whose_session_has_just_ended_does_not_miss_records(rig: Rig) -> None:
    """Records may be committed before the fetch continues."""
    rig.cluster.create(TOPIC, (1,), configs=(("write.caching", "true"),))
    await rig.learn()
    await write(rig, 0, b"a")  # once this is flushed, the log acknowledges records early
    consumer = SessionConsumer(rig, by_id=True)
    consumer.positions = {0: 1}
    session_id = (await consumer.fetch()).session_id
    waiting = asyncio.create_task(rig.replicas.fetch(consumer.next_plan(max_wait_ms=30_000, min_bytes=1)))
    await settle()
    assert rig.replicas.fetches.parked == 1
    await rig.replicas.fetch(consumer.plan({}, [], (session_id, -1)))  # ends the session
    assert rig.produce(b"b", acks=1).done()
    (result,) = (await waiting).results
    assert len(result.records)
