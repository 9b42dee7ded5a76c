"""Transactional produces, which the coordinator confirms, and fetches of committed records."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.core.coordinator.transaction_requests import TransactionSupport
from broker.core.transactions import Marker, ProducerKey
from broker.kafka.api import FetchPartition, FetchPlan, FetchReply, ProduceResult
from broker.log.producers import LogProducers
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG
from tests.unit.broker.core.test_transactions import confirmed
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig
from tests.unit.broker.replica.test_awaited_reads import SlowReads
from tests.unit.metadata.fake_node import settle


class Coordinator:
    """The transaction coordinator, which answers the leader when the test allows it."""

    def __init__(self, rig: Rig) -> None:
        self.asked: list[tuple[int, TransactionSupport]] = []
        self.answers: dict[int, asyncio.Future[KafkaCode]] = {}
        rig.replicas.produces.verify = self._verify

    async def _verify(
        self, transactional_id: str, producer: ProducerKey, partition: tuple[str, int], support: TransactionSupport
    ) -> KafkaCode:
        self.asked.append((producer.producer_id, support))
        return await self.answers.setdefault(producer.producer_id, asyncio.get_running_loop().create_future())

    def answer(self, producer_id: int, code: KafkaCode = KafkaCode.NONE) -> None:
        loop = asyncio.get_running_loop()
        self.answers.setdefault(producer_id, loop.create_future()).set_result(code)


def produce(rig: Rig, producer_id: int, sequence: int = 0, epoch: int = 0) -> asyncio.Future[ProduceResult]:
    batch = make_batch([b"v"], producer=(producer_id, epoch, sequence), attributes=TRANSACTIONAL_FLAG)
    support = TransactionSupport.ADDS
    return rig.replicas.start_produce(TOPIC, 0, memoryview(batch), 1, 60_000, "x", support)


async def committed(rig: Rig, offset: int, *, max_bytes: int = 1 << 20, partitions: int = 1) -> FetchReply:
    plan = FetchPlan(
        tuple(FetchPartition(rig.hosted().topic_id, None, index, offset, max_bytes) for index in range(partitions)),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        by_id=True,
        read_committed=True,
    )
    return await rig.replicas.fetch(plan)


@pytest.fixture
async def coordinator(rig: Rig) -> Coordinator:
    await rig.create((1,), (1,))
    return Coordinator(rig)


async def test_a_batch_waits_until_the_coordinator_has_confirmed_it(rig: Rig, coordinator: Coordinator) -> None:
    first, second = produce(rig, 7), produce(rig, 7, 1)
    await settle()
    assert (rig.log.end_offset, coordinator.asked[0]) == (0, (7, TransactionSupport.ADDS))
    coordinator.answer(7)
    await settle()
    await rig.role.logs.flush_all([rig.log])
    assert [(await each).base_offset for each in (first, second)] == [0, 1]


async def test_a_confirmation_that_fails_because_of_a_bug_is_answered_and_reported(
    rig: Rig, coordinator: Coordinator
) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    waiting = produce(rig, 7)
    await settle()
    coordinator.answers[7].set_exception(bug := AssertionError("the epoch goes back"))
    assert (await waiting).error_code == KafkaCode.UNKNOWN_SERVER_ERROR
    await settle()
    assert reported == [bug]


async def test_a_producer_that_waits_does_not_delay_another_producer(rig: Rig, coordinator: Coordinator) -> None:
    waiting, other = produce(rig, 7), produce(rig, 8)
    coordinator.answer(8)
    await settle()
    await rig.role.logs.flush_all([rig.log])
    assert (await other).base_offset == 0
    assert not waiting.done()
    coordinator.answer(7, KafkaCode.NOT_ENOUGH_REPLICAS)
    assert (await waiting).error_code == KafkaCode.NOT_ENOUGH_REPLICAS
    assert rig.log.end_offset == 1


@pytest.mark.parametrize("error", [DiskError("I/O error"), CorruptStoreError("a bad snapshot")])
async def test_producers_that_cannot_be_read_take_the_replica_offline(
    rig: Rig, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(_: Any) -> Any:
        raise error

    monkeypatch.setattr(LogProducers, "state", property(fail))
    result = await produce(rig, 7)
    assert result.error_code == KafkaCode.KAFKA_STORAGE_ERROR
    assert rig.hosted().log is None


@pytest.mark.parametrize("error", [DiskError("I/O error"), CorruptStoreError("a checksum does not match")])
async def test_a_replica_whose_producers_cannot_be_described_goes_offline(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The first request that reads the producers may be a request that only describes them."""

    def fail(_: Any) -> Any:
        raise error

    await rig.create()
    monkeypatch.setattr(LogProducers, "state", property(fail))
    assert rig.replicas.active_producers(TOPIC, 0) == KafkaCode.KAFKA_STORAGE_ERROR
    assert rig.hosted().log is None


async def test_the_next_transaction_waits_for_the_marker_of_the_previous_transaction(
    rig: Rig, coordinator: Coordinator
) -> None:
    coordinator.answer(7)
    await produce_and_flush(rig, 7)
    del coordinator.answers[7]
    following = produce(rig, 7, epoch=1)
    await settle()
    assert (rig.log.end_offset, len(coordinator.asked)) == (1, 2)
    marked = rig.hosted().append_marker(Marker(ProducerKey(7, 1), True, 0, raises_epoch=True), 0, 60_000)
    assert rig.log.end_offset == 2
    assert following.done() is False
    await rig.role.logs.flush_all([rig.log])
    assert (await marked).error_code == KafkaCode.NONE
    again = await rig.hosted().append_marker(Marker(ProducerKey(7, 1), True, 0, raises_epoch=True), 0, 60_000)
    assert (again.error_code, rig.log.end_offset) == (KafkaCode.NONE, 2)


@pytest.mark.parametrize("raises_epoch", [False, True])
async def test_a_confirmed_batch_is_verified_again_after_a_marker_that_did_not_raise_its_epoch(
    rig: Rig, coordinator: Coordinator, raises_epoch: bool
) -> None:
    """Seed 720100648: the batch had been refused temporarily, and arrived again after the abort of its transaction.

    The log has no batch of its epoch, so the marker looks like one whose decision has raised the epoch.
    """
    coordinator.answer(7)
    await produce_and_flush(rig, 7)
    rig.hosted().append_marker(Marker(ProducerKey(7, 0), True, 0), 0, 60_000)
    del coordinator.answers[7]
    confirmed(rig.log.producers, 7, epoch=1)
    rig.hosted().append_marker(Marker(ProducerKey(7, 1), False, 0, raises_epoch), 0, 60_000)
    asked, end = len(coordinator.asked), rig.log.end_offset
    late = produce(rig, 7, epoch=1)
    await settle()
    assert (len(coordinator.asked) - asked, rig.log.end_offset - end) == ((0, 1) if raises_epoch else (1, 0))
    late.cancel()


async def test_a_repeated_marker_is_answered_once_the_first_marker_is_committed(
    rig: Rig, coordinator: Coordinator
) -> None:
    coordinator.answer(7)
    await produce_and_flush(rig, 7)
    marker = Marker(ProducerKey(7, 1), True, 0, raises_epoch=True)
    first, copy = (rig.hosted().append_marker(marker, 0, 60_000) for _ in range(2))
    assert (rig.log.end_offset, first.done(), copy.done()) == (2, False, False)
    await rig.role.logs.flush_all([rig.log])
    assert [(await each).error_code for each in (first, copy)] == [KafkaCode.NONE] * 2


async def produce_and_flush(rig: Rig, producer_id: int) -> None:
    waiting = produce(rig, producer_id)
    await settle()
    await rig.role.logs.flush_all([rig.log])
    assert (await waiting).error_code == KafkaCode.NONE


async def test_a_partition_without_room_in_the_reply_reports_its_last_stable_offset(
    rig: Rig, coordinator: Coordinator
) -> None:
    """The records of the first partition take all the room of the reply."""
    for _ in range(3):
        await rig.write(b"plain")
    coordinator.answer(7)
    await produce_and_flush(rig, 7)
    topic_id = rig.hosted().topic_id
    other = rig.hosted(1)
    rig.replicas.start_produce(TOPIC, 1, memoryview(make_batch([b"large"])), -1, 60_000)
    assert other.log is not None
    await rig.role.logs.flush_all([other.log])
    partitions = tuple(FetchPartition(topic_id, None, index, 0, 1 << 20) for index in (1, 0))
    plan = FetchPlan(partitions, max_wait_ms=0, min_bytes=0, max_bytes=1, by_id=True, read_committed=True)
    full, empty = (await rig.replicas.fetch(plan)).results
    assert len(full.records) > 0
    assert (len(empty.records), empty.high_watermark, empty.last_stable_offset) == (0, 4, 3)


async def test_a_position_that_retention_deletes_during_a_read_of_committed_records_is_out_of_range(
    rig: Rig, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of aborted transactions is deleted with the records."""
    for value in (b"a", b"b"):
        await rig.write(value)
    reads = SlowReads(monkeypatch)
    fetch = asyncio.create_task(committed(rig, 0))
    await settle()
    assert reads.begun == 1
    rig.log.advance_start_offset(1)
    reads.go_on.set()
    result = (await fetch).results[0]
    assert (result.error_code, len(result.records)) == (KafkaCode.OFFSET_OUT_OF_RANGE, 0)


async def test_a_follower_in_the_isr_describes_producers_once_its_leader_agrees(rig: Rig) -> None:
    await rig.create((2, 1))
    assert rig.replicas.active_producers(TOPIC, 0) == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await rig.reply(2, make_batch([b"v"], producer=(7, 1, 0), attributes=TRANSACTIONAL_FLAG, leader_epoch=0))
    described = rig.replicas.active_producers(TOPIC, 0)
    assert isinstance(described, list), described
    assert [(each.producer_id, each.epoch, each.transaction_start) for each in described] == [(7, 1, 0)]
    rig.log.durability.is_truncating = True  # the disk may still hold records that the leader does not have
    assert rig.replicas.active_producers(TOPIC, 0) == KafkaCode.NOT_LEADER_OR_FOLLOWER
    rig.log.durability.is_truncating = False
    await rig.change(isr=(2,))
    assert rig.replicas.active_producers(TOPIC, 0) == KafkaCode.NOT_LEADER_OR_FOLLOWER
