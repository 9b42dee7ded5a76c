"""Parked fetches at a leader, and their sessions."""

from __future__ import annotations

import asyncio

import pytest

from broker.core.fetch_session import FULL_FETCH_NEW_SESSION
from broker.kafka.api import FetchPartition, FetchPlan, FetchReply
from metadata.records import BrokerChange, UnregisterBroker
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.replica.rig import Rig
from tests.unit.metadata.fake_node import settle


def plan(rig: Rig, offset: int, last_epoch: int, session: tuple[int, int] = (0, FULL_FETCH_NEW_SESSION)) -> FetchPlan:
    """Broker 2's fetch.  A full fetch names partition 0 and does not wait; a later fetch names nothing and waits."""
    partition = FetchPartition(rig.hosted().topic_id, None, 0, offset, 1 << 20, 0, last_epoch)
    is_full = session[1] == FULL_FETCH_NEW_SESSION
    return FetchPlan(
        (partition,) if is_full else (), 0 if is_full else 30_000, 1, 1 << 20, 2, rig.cluster.epoch(2), *session
    )


async def parked(rig: Rig) -> tuple[int, asyncio.Task[FetchReply]]:
    """A session of broker 2, which has all records, and its next fetch, which waits."""
    await rig.create((1, 2))
    await rig.write(b"a")
    first = await rig.replicas.fetch(plan(rig, 0, -1))
    assert len(first.results[0].records)
    opened = await rig.replicas.fetch(plan(rig, 1, 0))
    assert opened.session_id > 0
    waiting = asyncio.create_task(rig.replicas.fetch(plan(rig, 1, 0, (opened.session_id, 1))))
    await settle()
    assert not waiting.done()
    assert rig.replicas.fetches.parked == 1
    return opened.session_id, waiting


async def test_a_parked_fetch_of_a_follower_is_answered_by_an_append(rig: Rig) -> None:
    _, waiting = await parked(rig)
    rig.produce(b"b")
    await settle()
    assert waiting.done()
    assert len(waiting.result().results[0].records)


async def test_a_parked_fetch_is_answered_when_the_leadership_ends(rig: Rig) -> None:
    _, waiting = await parked(rig)
    await rig.change(leader=2)
    await settle()
    assert waiting.done()
    assert waiting.result().results[0].error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_the_next_fetch_of_a_session_replaces_the_parked_fetch(rig: Rig) -> None:
    session_id, waiting = await parked(rig)
    newer = asyncio.create_task(rig.replicas.fetch(plan(rig, 1, 0, (session_id, 2))))
    await settle()
    assert waiting.done()
    assert waiting.result().results == ()
    assert not newer.done()
    rig.replicas.fetches.close()
    await newer


@pytest.mark.parametrize("what", ["fenced", "unregistered"])
async def test_the_sessions_of_a_fenced_or_unregistered_broker_end(rig: Rig, what: str) -> None:
    """A later fetch in the session must not count as contact, because it could keep the broker in an ISR."""
    session_id, waiting = await parked(rig)
    follower = rig.leader.followers[2]
    assert follower.contact is not None
    if what == "fenced":
        rig.cluster.apply([BrokerChange(2, rig.cluster.epoch(2), fenced=True)])
    else:
        rig.cluster.apply([UnregisterBroker(2, rig.cluster.epoch(2))])
    await rig.learn()
    assert follower.contact is None
    later = await rig.replicas.fetch(FetchPlan((), 0, 1, 1 << 20, 2, -1, session_id, 2))
    assert later.error_code == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    rig.replicas.fetches.close()
    await waiting


def following(rig: Rig, offset: int, session: tuple[int, int], *, names: bool = True, wait_ms: int = 0) -> FetchPlan:
    """Broker 2's fetch from its position under the current leader epoch."""
    image = rig.hosted().image
    partition = FetchPartition(rig.hosted().topic_id, None, 0, offset, 1 << 20, image.leader_epoch, 0)
    return FetchPlan((partition,) if names else (), wait_ms, 1, 1 << 20, 2, rig.cluster.epoch(2), *session)


async def test_a_follower_whose_log_diverged_gets_the_high_watermark_and_the_log_start(rig: Rig) -> None:
    """The follower takes neither from a reply that only requests a truncation.

    Without the log start it could not join the ISR after a deletion, until a client writes.  No client can write while
    too few replicas are in sync.
    """
    await rig.create((1, 2))
    await rig.write(b"a")
    await rig.write(b"b")
    await rig.replicas.fetch(plan(rig, 2, 0))
    rig.hosted().advance_start(1)
    await rig.change(isr=(1,), leader=1)
    diverged = await rig.replicas.fetch(following(rig, 3, (0, FULL_FETCH_NEW_SESSION)))
    session_id, (told,) = diverged.session_id, diverged.results
    assert (told.diverging_epoch, told.diverging_end) == (0, 2)
    again = await rig.replicas.fetch(following(rig, 2, (session_id, 1)))
    assert [(each.high_watermark, each.log_start_offset) for each in again.results] == [(2, 1)]
    idle = await rig.replicas.fetch(following(rig, 2, (session_id, 2), names=False))
    assert idle.results == (), "unchanged values are sent only once"


async def test_a_fetch_that_repeats_its_position_is_answered_at_the_end_of_its_wait(rig: Rig) -> None:
    """The follower may have dropped the last reply.  But it must not fetch again without a pause."""
    await rig.create((1, 2))
    await rig.write(b"a")
    await rig.replicas.fetch(plan(rig, 1, 0))
    opened = await rig.replicas.fetch(plan(rig, 1, 0))
    waiting = asyncio.create_task(rig.replicas.fetch(following(rig, 1, (opened.session_id, 1), wait_ms=30_000)))
    await settle()
    assert not waiting.done()
    rig.replicas.fetches.close()
    (told,) = (await waiting).results
    assert told.high_watermark == 1
