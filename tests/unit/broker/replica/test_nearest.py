"""Consumers that read from the replica in their rack (KIP-392), at leaders and at followers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.core.fetch_session import CONSUMER
from broker.kafka.api import FetchPartition, FetchPlan, FetchResult
from metadata.records import Config, ConfigScope
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import iter_headers
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import Rig, running
from tests.unit.metadata.builders import directory
from tests.unit.metadata.fake_node import settle


@pytest.fixture
async def near(tmp_path: Path) -> AsyncIterator[Rig]:
    """Broker 1 in rack a, broker 2 in rack b and broker 3 in rack c; consumers are sent to the nearest replica."""
    async with running(tmp_path) as rig:
        rig.cluster.apply([Config(ConfigScope.CLUSTER, "", "replica.selector", "rack-aware")])
        await rig.register(0, rack="a")
        for broker_id, rack in ((2, "b"), (3, "c")):
            rig.cluster.register(broker_id, 1, rack=rack, directory_ids=(directory(broker_id),))
            rig.cluster.beat(broker_id)
        await rig.learn()
        yield rig


def plan(rig: Rig, offset: int, rack: str, leader_epoch: int = -1, last_epoch: int = -1) -> FetchPlan:
    partition = FetchPartition(rig.hosted().topic_id, None, 0, offset, 1 << 20, leader_epoch, last_epoch)
    return FetchPlan((partition,), 0, 0, 1 << 20, by_id=True, rack=rack, listener="PLAINTEXT")


async def consume(rig: Rig, offset: int = 0, rack: str = "b", *epochs: int) -> FetchResult:
    (result,) = (await rig.replicas.fetch(plan(rig, offset, rack, *epochs))).results
    return result


async def leading(rig: Rig) -> None:
    """Broker 1 leads, with one committed record."""
    await rig.create((1, 2, 3))
    await rig.write(b"a")
    for broker_id in (2, 3):
        await rig.fetch(broker_id, 1, 0)
    assert rig.leader.high_watermark == 1


async def following(rig: Rig, *, isr: tuple[int, ...] = (1, 2), agreed: bool = True) -> None:
    """Broker 1 follows broker 2, with one committed and one uncommitted record."""
    await rig.create((2, 1))
    if isr != (1, 2):
        await rig.change(isr=isr)
    if agreed:
        await rig.reply(2, make_batch([b"a", b"b"]), high_watermark=1)
        await rig.role.logs.flush_all([rig.log])


async def test_a_leader_names_the_replica_in_the_consumers_rack(near: Rig) -> None:
    await leading(near)
    result = await consume(near)
    assert (result.error_code, result.preferred_replica, len(result.records)) == (KafkaCode.NONE, 2, 0)
    assert result.high_watermark == 1
    assert (await consume(near, rack="c")).preferred_replica == 3


async def test_a_leader_names_the_preferred_replica_again_in_each_reply_of_a_session(near: Rig) -> None:
    """A consumer that gives up on the replica asks the leader again, perhaps without naming the partition."""
    await leading(near)
    opening = replace(plan(near, 1, "b"), session_epoch=0, min_bytes=1, max_wait_ms=30_000)
    reply = await near.replicas.fetch(opening)
    again = replace(opening, partitions=(), session_id=reply.session_id, session_epoch=1)
    assert [each.preferred_replica for each in (await near.replicas.fetch(again)).results] == [2]


@pytest.mark.parametrize("rack", ["", "a", "d"])
async def test_a_leader_serves_consumers_in_its_own_rack_and_in_unknown_racks(near: Rig, rack: str) -> None:
    await leading(near)
    result = await consume(near, rack=rack)
    assert (result.preferred_replica, len(result.records) > 0) == (-1, True)


@pytest.mark.parametrize("obstacle", ["fenced", "not in the ISR", "behind", "other listener", "turned off"])
async def test_the_leader_serves_a_consumer_if_no_replica_in_its_rack_can(near: Rig, obstacle: str) -> None:
    await leading(near)
    offset, asked = 0, plan(near, 0, "b")
    match obstacle:
        case "fenced":
            near.cluster.fence(2)
            await near.learn()
        case "not in the ISR":
            await near.change(isr=(1, 3))
        case "behind":
            near.produce(b"b")
            offset = 2
        case "other listener":
            asked = replace(asked, listener="OTHER")
        case _:
            near.cluster.apply([Config(ConfigScope.CLUSTER, "", "replica.selector", "leader")])
            await near.learn()
    asked = replace(asked, partitions=(replace(asked.partitions[0], fetch_offset=offset),))
    (result,) = (await near.replicas.fetch(asked)).results
    assert (result.error_code, result.preferred_replica) == (KafkaCode.NONE, -1)


async def test_a_position_outside_the_log_is_refused_by_the_leader_itself(near: Rig) -> None:
    await leading(near)
    result = await consume(near, 7)
    assert (result.error_code, result.preferred_replica) == (KafkaCode.OFFSET_OUT_OF_RANGE, -1)


async def test_a_follower_serves_consumers_up_to_the_high_watermark_that_it_knows(near: Rig) -> None:
    await following(near)
    result = await consume(near)
    assert (result.error_code, result.high_watermark) == (KafkaCode.NONE, 1)
    assert len(result.records) == 0, "only a part of the batch is committed"
    await near.reply(2, high_watermark=2)
    result = await consume(near)
    assert (result.high_watermark, result.last_stable_offset, len(result.records) > 0) == (2, 2, True)


async def test_only_consumers_with_a_rack_are_served_by_a_follower(near: Rig) -> None:
    await following(near)
    result = await consume(near, rack="")
    assert (result.error_code, result.leader_id) == (KafkaCode.NOT_LEADER_OR_FOLLOWER, 2)


async def test_a_follower_serves_consumers_once_its_leader_agrees_to_its_log(near: Rig) -> None:
    """An unclean election may have discarded records of this log, even records below its watermark."""
    await following(near)
    await near.change(leader=3, isr=(1, 2))  # another leader epoch
    assert (await consume(near, 1)).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await near.reply(3, high_watermark=1)
    assert (await consume(near, 1)).error_code == KafkaCode.NONE


async def test_a_follower_that_truncates_serves_no_consumers_until_its_leader_agrees_to_its_log(near: Rig) -> None:
    await near.create((2, 1))
    for offset in range(3):
        await near.reply(2, make_batch((b"a",), base_offset=offset, leader_epoch=0), high_watermark=1)
    assert (await consume(near)).error_code == KafkaCode.NONE
    await near.reply(2, diverging_epoch=0, diverging_end=1)
    assert near.log.end_offset == 1
    assert (await consume(near)).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_outside_the_isr_serves_no_consumers(near: Rig) -> None:
    await following(near)
    waiting = asyncio.create_task(
        near.replicas.fetch(replace(plan(near, 1, "b"), session_epoch=0, min_bytes=1, max_wait_ms=30_000))
    )
    await settle()
    assert not waiting.done()
    await near.change(isr=(2,))
    await settle()
    assert waiting.done(), "a waiting consumer is answered"
    assert waiting.result().results[0].error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_checks_the_leader_epoch_and_the_offset_of_a_consumers_fetch(near: Rig) -> None:
    await following(near)
    assert (await consume(near, 0, "b", 7)).error_code == KafkaCode.UNKNOWN_LEADER_EPOCH
    await near.reply(2, high_watermark=5)
    assert (await consume(near, 5)).error_code == KafkaCode.OFFSET_NOT_AVAILABLE
    assert (await consume(near, 5, "b", -1, 0)).error_code == KafkaCode.OFFSET_NOT_AVAILABLE, (
        "the broker reports no divergence"
    )
    assert (await consume(near, 6)).error_code == KafkaCode.OFFSET_OUT_OF_RANGE


async def test_a_follower_refuses_consumers_below_its_log_start(near: Rig) -> None:
    await following(near)
    await near.reply(2, high_watermark=2, log_start_offset=2)
    assert (await consume(near, 1)).error_code == KafkaCode.OFFSET_OUT_OF_RANGE


async def test_a_waiting_consumer_is_answered_when_the_high_watermark_of_its_follower_advances(near: Rig) -> None:
    await following(near)
    waiting = asyncio.create_task(near.replicas.fetch(replace(plan(near, 0, "b"), min_bytes=1, max_wait_ms=30_000)))
    await settle()
    assert not waiting.done()
    await near.reply(2, high_watermark=2)
    await settle()
    assert waiting.done()
    assert len(waiting.result().results[0].records)


async def test_a_new_high_watermark_answers_the_parked_fetch_of_a_follower_that_serves_consumers(near: Rig) -> None:
    await near.create((1, 2, 3))
    await near.write(b"a")
    await near.fetch(3, 0, -1)
    partition = FetchPartition(near.hosted().topic_id, None, 0, 1, 1 << 20, 0, 0)
    opening = FetchPlan((partition,), 0, 1, 1 << 20, 2, near.cluster.epoch(2), 0, 0)
    session_id = (await near.replicas.fetch(opening)).session_id
    parked = replace(opening, partitions=(), max_wait_ms=30_000, session_id=session_id, session_epoch=1)
    waiting = asyncio.create_task(near.replicas.fetch(parked))
    await settle()
    assert not waiting.done()
    await near.fetch(3, 1, 0)
    await settle()
    assert waiting.done()
    assert waiting.result().results[0].high_watermark == 1


async def test_a_follower_serves_read_committed_consumers_up_to_its_last_stable_offset(near: Rig) -> None:
    """The transaction that begins at offset 2 stays open."""
    await following(near)
    open_transaction = make_batch([b"c"], base_offset=2, leader_epoch=0, attributes=0x10, producer=(7, 0, 0))
    await near.reply(2, open_transaction, high_watermark=3)
    await near.role.logs.flush_all([near.log])
    for read_committed, end, batches in ((True, 2, [0]), (False, 3, [0, 2])):
        asked = replace(plan(near, 0, "b"), read_committed=read_committed, replica_id=CONSUMER)
        (result,) = (await near.replicas.fetch(asked)).results
        assert (result.high_watermark, result.last_stable_offset) == (3, end)
        assert [header.base_offset for _, header in iter_headers(bytes(result.records))] == batches
