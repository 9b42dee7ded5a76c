"""The records that a leader serves, and the moments at which it replies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.kafka.api import ProduceResult
from quorumlog.wire.errors import KafkaCode
from tests.hanging_syncs import hanging_syncs
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig

LATEST = -1


async def test_a_consumer_reads_up_to_the_high_watermark_and_a_follower_to_the_log_end(rig: Rig) -> None:
    await rig.create((1, 2))
    await rig.write(b"a")
    await rig.write(b"b")
    await rig.fetch(2, 1, 0)
    assert rig.leader.high_watermark == 1
    first, both = rig.log.read(0, 1, 1), rig.log.read(0, 1 << 20, 2)
    assert bytes((await rig.fetch(-1, 0, -1)).records) == first
    assert bytes((await rig.fetch(-1, 1, -1)).records) == b""
    assert bytes((await rig.fetch(2, 0, -1)).records) == both


async def test_a_parked_produce_is_answered_once_the_condition_of_its_acks_is_met(rig: Rig) -> None:
    """acks=1 waits for the disk of the leader, regardless of earlier writes; acks=all waits for every in-sync disk."""
    await rig.create((1, 2))
    everyone, one = rig.produce(b"a", acks=-1), rig.produce(b"b", acks=1)
    assert not one.done()
    await rig.role.logs.flush_all([rig.log])
    assert one.result().error_code == KafkaCode.NONE
    assert not everyone.done()
    await rig.fetch(2, 2, 0)
    assert everyone.result().error_code == KafkaCode.NONE
    assert rig.context.parked_produces == 0


@pytest.mark.parametrize("ends", [True, False])
async def test_each_parked_produce_is_counted_until_it_is_answered(
    rig: Rig, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.create((1, 2, 3))
    with hanging_syncs(tmp_path, monkeypatch):  # a flush may be faster than the shortest timeout
        waiting = await _park_five(rig)
        assert rig.context.parked_produces == 3, "answered produces do not count"
        if ends:
            await rig.change(leader=2)
            assert {each.result().error_code for each in waiting} == {KafkaCode.NOT_LEADER_OR_FOLLOWER}
    if not ends:
        await rig.change(isr=(1,))
        await rig.role.logs.flush_all([rig.log])
        assert {each.result().error_code for each in waiting} == {KafkaCode.NONE}
    assert rig.context.parked_produces == 0


async def _park_five(rig: Rig) -> list[asyncio.Future[ProduceResult]]:
    """Cancel one of five writes, and wait until another has timed out; return the other three."""
    cancelled, late, *waiting = (
        rig.produce(value, acks=acks, timeout_ms=timeout_ms)
        for value, acks, timeout_ms in (
            (b"cancelled", -1, 1),
            (b"late", -1, 1),
            (b"waits", 1, 60_000),
            (b"waits", -1, 60_000),
            (b"waits", -1, 60_000),
        )
    )
    cancelled.cancel()
    assert (await late).error_code == KafkaCode.REQUEST_TIMED_OUT
    return waiting


async def test_a_write_is_refused_before_it_is_appended_while_too_few_replicas_are_in_sync(rig: Rig) -> None:
    await rig.create((1, 2, 3), min_isr=2)
    await rig.change(isr=(1,))
    assert rig.produce(b"a").result().error_code == KafkaCode.NOT_ENOUGH_REPLICAS
    assert rig.log.end_offset == 0


async def test_a_new_leader_keeps_the_high_watermark_that_it_had_as_a_follower(rig: Rig) -> None:
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a", b"b"), leader_epoch=0), high_watermark=2)
    await rig.reply(2, make_batch((b"c",), base_offset=2, leader_epoch=0), high_watermark=2)
    await rig.change(leader=1)
    assert (rig.leader.high_watermark, rig.log.end_offset) == (2, 3)


async def test_the_latest_offset_is_unavailable_until_a_new_leader_has_committed_its_log(rig: Rig) -> None:
    """An earlier leader may have reported an offset above the watermark of this leader."""
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a", b"b"), leader_epoch=0), high_watermark=1)
    await rig.change(leader=1)
    assert (await rig.replicas.list_offset(TOPIC, 0, LATEST)).error_code == KafkaCode.OFFSET_NOT_AVAILABLE
    await rig.fetch(2, 2, 0)
    latest = await rig.replicas.list_offset(TOPIC, 0, LATEST)
    assert (latest.error_code, latest.offset) == (KafkaCode.NONE, 2)


async def test_a_leader_epoch_begins_before_its_first_record(rig: Rig) -> None:
    """A request for the end of the previous epoch must not get an end that still grows."""
    await rig.create((1, 2))
    await rig.write(b"a")
    await rig.change(leader=2)
    await rig.change(leader=1)
    ends = [rig.replicas.epoch_end(TOPIC, 0, epoch) for epoch in (0, 1, 2)]
    assert [(each.leader_epoch, each.end_offset) for each in ends] == [(0, 1), (0, 1), (2, 1)]
