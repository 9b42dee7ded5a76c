"""The fetches that a leader counts as acknowledgements, and the positions that a follower reports."""

from __future__ import annotations

import pytest

from broker.core.partition import UNKNOWN_END
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import parse_header
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import Rig


@pytest.fixture
async def leading(rig: Rig) -> Rig:
    """Broker 1 leads epoch 2 with three records of epoch 0 and three of epoch 2; 2 and 3 are in sync."""
    await rig.create((1, 2, 3))
    await rig.write(b"a", b"b", b"c")
    await rig.fetch(2, 3, 0)
    await rig.fetch(3, 3, 0)
    await rig.change(leader=2)
    await rig.change(leader=1)
    await rig.write(b"d", b"e", b"f")
    assert (rig.leader.leader_epoch, rig.leader.high_watermark, rig.log.end_offset) == (2, 3, 6)
    await rig.fetch(3, 6, 2)
    return rig


async def test_a_fetch_position_in_the_leaders_history_acknowledges_the_records_before_it(leading: Rig) -> None:
    await leading.fetch(2, 6, 2)
    assert (leading.leader.followers[2].end, leading.leader.high_watermark) == (6, 6)


@pytest.mark.parametrize(
    ("offset", "last_epoch"),
    [(5, 0), (4, 1), (3, 1), (7, 2), (6, -1), (3, -1), (0, 0), (5, 3)],
)
async def test_a_fetch_position_in_another_history_acknowledges_nothing(
    leading: Rig, offset: int, last_epoch: int
) -> None:
    """Most of these positions are within the bounds of the leader's log."""
    if (offset, last_epoch) == (0, 0):
        leading.log.advance_start_offset(3)  # records below the leader's start also cannot be compared
    result = await leading.fetch(2, offset, last_epoch)
    assert leading.leader.followers[2].end == UNKNOWN_END
    assert leading.leader.high_watermark == 3
    assert result.error_code == KafkaCode.OFFSET_OUT_OF_RANGE or result.diverging_epoch >= 0
    assert not len(result.records)


@pytest.mark.parametrize("leader_epoch", [-1, 1, 3])
async def test_a_fetch_under_another_leader_epoch_acknowledges_nothing(leading: Rig, leader_epoch: int) -> None:
    result = await leading.fetch(2, 6, 2, leader_epoch=leader_epoch)
    assert result.error_code in (KafkaCode.FENCED_LEADER_EPOCH, KafkaCode.UNKNOWN_LEADER_EPOCH)
    assert (leading.leader.followers[2].end, leading.leader.high_watermark) == (UNKNOWN_END, 3)


async def test_a_fetch_of_an_older_incarnation_acknowledges_nothing(leading: Rig) -> None:
    await leading.fetch(2, 6, 2, broker_epoch=leading.cluster.epoch(2) - 1)
    assert leading.leader.high_watermark == 3


async def test_a_replica_that_starts_over_learns_the_epoch_before_the_leaders_start(leading: Rig) -> None:
    await leading.fetch(2, 6, 2)
    leading.log.advance_start_offset(6)
    result = await leading.fetch(2, 0, -1)
    assert (result.error_code, result.log_start_offset) == (KafkaCode.OFFSET_OUT_OF_RANGE, 6)
    assert (result.diverging_epoch, result.diverging_end) == (2, 6)
    assert (await leading.fetch(2, 6, 2)).error_code == KafkaCode.NONE


@pytest.fixture
async def within(leading: Rig) -> Rig:
    """The leader's log begins within its last batch, because a client has deleted the records before offset 8."""
    await leading.write(b"f", b"g", b"h")
    await leading.fetch(2, 9, 2)
    await leading.fetch(3, 9, 2)
    leading.hosted().advance_start(8)
    assert (leading.log.start_offset, leading.log.end_offset) == (8, 9)
    return leading


async def test_a_replica_starts_over_at_the_batch_that_holds_the_leaders_start(within: Rig) -> None:
    result = await within.fetch(3, 0, -1)
    assert (result.error_code, result.log_start_offset) == (KafkaCode.OFFSET_OUT_OF_RANGE, 6)
    assert (result.diverging_epoch, result.diverging_end) == (2, 6)
    result = await within.fetch(3, 6, 2)
    assert (result.error_code, result.log_start_offset, result.high_watermark) == (KafkaCode.NONE, 8, 9)
    assert parse_header(result.records).base_offset == 6
    assert within.leader.followers[3].end == 6


async def test_a_replica_whose_leader_knows_no_epoch_before_its_first_batch_starts_over(within: Rig) -> None:
    """The first batch begins an epoch, and the leader has deleted all earlier records."""
    within.log.epochs._epochs, within.log.epochs._starts = [2], [6]
    result = await within.fetch(3, 0, -1)
    assert (result.error_code, result.log_start_offset) == (KafkaCode.OFFSET_OUT_OF_RANGE, 6)
    assert result.diverging_epoch == -1
    result = await within.fetch(3, 6, -1)
    assert result.error_code == KafkaCode.NONE
    assert parse_header(result.records).base_offset == 6


async def test_only_a_replica_may_fetch_below_the_leaders_start(within: Rig) -> None:
    assert (await within.fetch(-1, 6, -1)).error_code == KafkaCode.OFFSET_OUT_OF_RANGE
    result = await within.fetch(-1, 8, -1)
    assert parse_header(result.records).base_offset == 6


async def test_a_consumer_below_the_leaders_start_gets_no_diverging_epoch(leading: Rig) -> None:
    await leading.fetch(2, 6, 2)
    leading.log.advance_start_offset(6)
    result = await leading.fetch(-1, 0, -1)
    assert (result.error_code, result.diverging_epoch) == (KafkaCode.OFFSET_OUT_OF_RANGE, -1)


# -- the follower


@pytest.fixture
async def following(rig: Rig) -> Rig:
    """Broker 1 follows leader 2 in epoch 0, with three committed records of that epoch."""
    await rig.create((2, 1, 3))
    await rig.reply(2, make_batch((b"a", b"b", b"c"), leader_epoch=0), high_watermark=3)
    assert (rig.log.end_offset, rig.log.high_watermark) == (3, 3)
    return rig


async def test_a_follower_names_the_epoch_of_its_last_record_even_after_retention_deleted_it(following: Rig) -> None:
    following.log.advance_start_offset(3)
    await following.role.logs.checkpoint([following.log])
    await following.change(leader=3)
    target = following.target(3)
    assert target is not None
    assert (target.leader_epoch, target.offset, target.last_fetched_epoch, target.log_start) == (1, 3, 0, 3)


async def test_a_follower_that_diverges_below_its_start_starts_over(following: Rig) -> None:
    following.log.advance_start_offset(3)
    await following.change(leader=3, isr=(3,))
    await following.reply(3, diverging_epoch=0, diverging_end=2, high_watermark=8, log_start_offset=1)
    assert (following.log.start_offset, following.log.end_offset, following.log.high_watermark) == (1, 1, 1)
    target = following.target(3)
    assert target is not None
    assert (target.offset, target.last_fetched_epoch) == (1, -1)
    code = KafkaCode.OFFSET_OUT_OF_RANGE
    await following.reply(3, error_code=code, log_start_offset=1, diverging_epoch=0, diverging_end=1)
    target = following.target(3)
    assert target is not None
    assert (target.offset, target.last_fetched_epoch) == (1, 0), "the leader can compare this position"


async def test_a_follower_ignores_the_high_watermark_of_a_reply_with_a_diverging_epoch(following: Rig) -> None:
    await following.change(leader=3, isr=(3,))
    await following.reply(3, diverging_epoch=0, diverging_end=1, high_watermark=3)
    assert (following.log.end_offset, following.log.high_watermark) == (0, 0), (
        "the batch that holds offset 1 is removed"
    )
