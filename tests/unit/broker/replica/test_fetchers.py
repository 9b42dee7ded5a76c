"""How a follower carries out what its leader answers."""

from __future__ import annotations

from broker.replica.replica import Replica
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import Rig


async def test_a_follower_asks_for_nothing_past_what_is_not_durable(rig: Rig) -> None:
    """A fetch offset is an acknowledgement."""
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a",), leader_epoch=0))
    assert rig.log.append_as_follower(make_batch((b"b",), base_offset=1, leader_epoch=0), 0, 0)[:2] == (1, 2)
    assert rig.log.flushed_offset == 1
    rig.fetcher(2).add(rig.hosted())
    assert rig.target(2) is None
    await rig.role.logs.flush_all([rig.log])
    target = rig.target(2)
    assert target is not None
    assert target.offset == 2


async def test_a_truncation_takes_the_watermark_along(rig: Rig) -> None:
    """Else it would be above the end, and cover whatever comes there instead."""
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0), high_watermark=3)
    await rig.change(leader=3, isr=(3,))
    await rig.reply(3, diverging_epoch=0, diverging_end=1, high_watermark=9)
    follower = rig.hosted().follower
    assert follower is not None
    assert (rig.log.end_offset, rig.log.high_watermark, follower.high_watermark) == (1, 1, 1)
    await rig.reply(3, make_batch((b"x",), base_offset=1, leader_epoch=1), high_watermark=1)
    assert (follower.high_watermark, rig.log.high_watermark) == (1, 1), "the new record is not committed yet"


async def test_a_followers_log_starts_where_its_leaders_does(rig: Rig) -> None:
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a",), leader_epoch=0), high_watermark=1)
    await rig.reply(2, make_batch((b"b",), base_offset=1, leader_epoch=0), high_watermark=2)
    await rig.reply(2, high_watermark=2, log_start_offset=1)
    assert rig.log.start_offset == 1
    await rig.reply(2, make_batch((b"c",), base_offset=2, leader_epoch=0), high_watermark=2, log_start_offset=3)
    assert rig.log.start_offset == 2, "what is not known to be committed is kept"


async def test_batches_that_do_not_continue_the_log_are_skipped(rig: Rig) -> None:
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a",), base_offset=5, leader_epoch=0), high_watermark=6)
    assert (rig.log.end_offset, rig.log.high_watermark) == (0, 0)
    assert rig.target(2) is None, "asked for again after a while"


async def test_a_reply_to_a_replica_that_leads_by_now_changes_nothing(rig: Rig) -> None:
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a",), leader_epoch=0), high_watermark=1)
    fetcher = rig.fetcher(2)
    hosted: Replica = rig.hosted()
    await rig.change(leader=1)
    assert hosted.partition not in fetcher._replicas
    assert (rig.log.end_offset, rig.leader.leader_epoch) == (1, 1)
    assert (await rig.fetch(2, 1, 0)).error_code == KafkaCode.NONE
