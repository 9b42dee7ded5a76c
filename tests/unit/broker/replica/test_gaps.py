"""A leader that has refused a batch temporarily refuses the later batches with the same error, not as a loss."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from broker.core.producer_state import SEQUENCE_MAX
from broker.kafka.api import ProduceResult
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig
from tests.unit.broker.replica.test_checked_produces import HeldThread

NOT_LEADER = KafkaCode.NOT_LEADER_OR_FOLLOWER
PRODUCER = 9


def batch(sequence: int, attributes: int = 0) -> bytes:
    return make_batch([b"%d" % sequence], producer=(PRODUCER, 0, sequence), attributes=attributes)


def send(rig: Rig, sequence: int, timeout_ms: int = 60_000) -> asyncio.Future[ProduceResult]:
    return rig.replicas.start_produce(TOPIC, 0, memoryview(batch(sequence)), -1, timeout_ms)


def code(rig: Rig, sequence: int) -> int:
    """Return the immediate error of the batch with this sequence; it has one record."""
    return send(rig, sequence).result().error_code


def refuse(rig: Rig, sequence: int) -> None:
    """Send a batch while the leader is stalled."""
    rig.context.is_awake = lambda: False
    assert code(rig, sequence) == NOT_LEADER
    rig.context.is_awake = lambda: True


async def succeed_in_order(rig: Rig, refused: int, offset: int) -> None:
    """Send the batch after the refused batch, and check that it is refused; then send all batches again.

    offset: the offset of the producer's first batch.
    """
    behind = send(rig, refused + 1).result()
    assert (behind.error_code, behind.error_message) == (
        NOT_LEADER,
        f"sequence {refused} was refused, and must be appended first",
    )
    again = [send(rig, sequence) for sequence in range(refused + 2)]
    await rig.fetch(2, offset + len(again), 0)
    await rig.role.logs.flush_all([rig.log])
    assert [(await each).base_offset for each in again] == list(range(offset, offset + len(again)))
    assert rig.log.end_offset == offset + len(again)


async def test_a_gap_that_a_stalled_leader_made_is_not_reported_as_a_loss(rig: Rig) -> None:
    """Otherwise librdkafka would begin a new epoch, and send batch 0 again, although batch 0 is in the log."""
    await rig.create((1, 2))
    in_doubt = send(rig, 0, timeout_ms=0)
    assert (await in_doubt).error_code == KafkaCode.REQUEST_TIMED_OUT
    refuse(rig, 1)
    await succeed_in_order(rig, 1, offset=0)


async def test_a_gap_that_this_leader_did_not_make_is_reported_as_a_loss(rig: Rig) -> None:
    await rig.create((1, 2))
    send(rig, 0)
    refuse(rig, 2)
    assert code(rig, 3) == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_no_batch_of_a_producer_is_appended_before_its_first_batch_that_was_refused(rig: Rig) -> None:
    """The log has deleted records, so it cannot know with which sequence a producer must begin.

    If the log accepted the second batch first, the first batch would later count as a duplicate, and would be lost.
    """
    await rig.create((1, 2))
    await rig.write(b"older")
    await rig.fetch(2, 1, 0)
    rig.log.advance_start_offset(1)
    refuse(rig, 0)
    await succeed_in_order(rig, 0, offset=1)


async def test_no_batch_is_appended_before_a_refused_batch_with_the_last_sequence(rig: Rig) -> None:
    """After the last sequence, a producer continues with 0, which is also the first sequence."""
    await rig.create((1, 2))
    await rig.write(b"older")
    await rig.fetch(2, 1, 0)
    rig.log.advance_start_offset(1)
    refuse(rig, SEQUENCE_MAX)
    assert code(rig, 0) == NOT_LEADER
    assert not send(rig, SEQUENCE_MAX).done()
    assert not send(rig, 0).done()


async def test_an_earlier_refusal_does_not_block_a_producer_that_has_expired(rig: Rig) -> None:
    await rig.create((1, 2))
    refuse(rig, 0)
    send(rig, 0)
    for now_ms in (0, 1):
        rig.log.producers.expire(now_ms, 0, rig.log.end_offset)
    assert rig.log.producers.get(PRODUCER) is None
    assert not send(rig, 1).done()


async def test_a_producer_that_expired_continues_with_any_sequence(rig: Rig) -> None:
    await rig.create((1, 2))
    await rig.write(b"older")
    await rig.fetch(2, 1, 0)
    rig.log.advance_start_offset(1)
    assert not send(rig, 7).done()


async def test_later_batches_get_the_same_error_as_a_batch_refused_for_too_few_replicas(rig: Rig) -> None:
    await rig.create((1, 2), min_isr=2)
    send(rig, 0)
    await rig.change(isr=(1,))
    assert code(rig, 1) == KafkaCode.NOT_ENOUGH_REPLICAS
    await rig.change(isr=(1, 2))
    assert code(rig, 2) == KafkaCode.NOT_ENOUGH_REPLICAS
    send(rig, 1)
    assert not send(rig, 2).done()


async def test_later_batches_get_the_same_error_as_a_batch_refused_by_an_overloaded_leader(rig: Rig) -> None:
    await rig.create((1, 2))
    limits = rig.context.limits
    send(rig, 0)
    rig.context.limits = replace(limits, parked_produces=1)
    assert code(rig, 1) == KafkaCode.REQUEST_TIMED_OUT
    rig.context.limits = limits
    assert code(rig, 2) == KafkaCode.REQUEST_TIMED_OUT


async def test_later_batches_get_the_same_error_as_a_batch_refused_before_the_partition_existed(rig: Rig) -> None:
    assert code(rig, 0) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    await rig.create((1, 2))
    assert code(rig, 1) == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    send(rig, 0)
    assert not send(rig, 1).done()


async def test_later_batches_get_the_same_error_as_a_batch_that_was_not_checked_in_time(rig: Rig) -> None:
    await rig.create((1, 2))
    checks = rig.replicas.produces._checks
    checks._limits = replace(rig.context.limits, record_check_wait_ms=0, inline_check_bytes=0)
    late = rig.replicas.start_produce(TOPIC, 0, memoryview(batch(0, attributes=1)), -1, 60_000)
    next_one = send(rig, 1)
    checks._limits = rig.context.limits
    assert (await late).error_code == KafkaCode.REQUEST_TIMED_OUT
    assert (await next_one).error_code == KafkaCode.REQUEST_TIMED_OUT
    assert rig.log.end_offset == 0


async def test_later_batches_get_the_same_error_as_a_batch_refused_after_its_check(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.create((1, 2))
    rig.replicas.produces._checks._limits = replace(rig.context.limits, inline_check_bytes=0)
    loop = asyncio.get_running_loop()
    thread = HeldThread(loop)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "run_in_executor", thread.run)
        checked = rig.replicas.start_produce(TOPIC, 0, memoryview(batch(0, attributes=1)), -1, 60_000)
        rig.context.is_awake = lambda: False
        await thread.release()
    assert checked.result().error_code == NOT_LEADER
    rig.context.is_awake = lambda: True
    assert code(rig, 1) == NOT_LEADER


@pytest.mark.parametrize("size", [0, 60])
async def test_a_stalled_leader_refuses_data_that_is_shorter_than_a_batch_header(rig: Rig, size: int) -> None:
    await rig.create((1, 2))
    rig.context.is_awake = lambda: False
    refused = rig.replicas.start_produce(TOPIC, 0, memoryview(batch(0)[:size]), -1, 60_000).result()
    assert refused.error_code == NOT_LEADER
    assert len(rig.context.refused_batches) == 0
