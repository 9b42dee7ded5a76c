"""Known failures of other systems in brokers.  The numbers are those of docs/known_failures.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from broker.core.fetch_session import SessionRequest
from broker.replica.fetcher import Fetcher
from broker.replica.limits import ReplicaLimits
from broker.replica.replica import Replica
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.fetch import FetchedPartition, FetchedReply
from tests.integration.broker.harness import Broker, Cluster, values_of
from tests.integration.broker.test_replication import fetch, leading, write, written


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, limits=ReplicaLimits(fetcher_backoff_max_ms=100)) as running:
        yield running


async def test_k30_a_write_that_waits_for_a_stopping_follower_is_acknowledged(cluster: Cluster) -> None:
    """KAFKA-15021, 13091: the follower leaves the ISR in its controlled shutdown, under the same leader epoch."""
    topic_id = cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await cluster[3].role.fetchers.stop()
    waiting = asyncio.create_task(write(leader, "t", b"b", timeout_ms=60_000))
    await cluster.until(lambda: values_of(cluster[2].hosted("t")) == [b"a", b"b"], "2 has the record, 3 does not")
    assert not waiting.done()
    before = cluster.controller.partition(topic_id)
    await cluster[3].stop()
    assert (await waiting).error_code == KafkaCode.NONE
    now = cluster.controller.partition(topic_id)
    assert (now.isr, now.leader, now.leader_epoch) == ((1, 2), 1, before.leader_epoch)
    assert (await fetch(leader, "t", 0)).high_watermark == 2

    # The next removal leaves too few members in the ISR, so it commits no record.
    await cluster[2].role.fetchers.stop()
    waiting = asyncio.create_task(write(leader, "t", b"c", timeout_ms=60_000))
    await cluster.until(lambda: leader.context.parked_produces == 1, "appended")
    await cluster[2].stop()
    assert (await waiting).error_code == KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert cluster.controller.partition(topic_id).isr == (1,)
    assert (await fetch(leader, "t", 0)).high_watermark == 2


def fetcher_of(broker: Broker, leader_id: int) -> Fetcher:
    return broker.role.fetchers._fetchers[leader_id]


async def deliver_divergence(fetcher: Fetcher, hosted: Replica, end: int) -> None:
    """Deliver a reply that was under way: the histories diverge at `end`."""
    part = FetchedPartition(
        topic_id=hosted.topic_id,
        topic=None,
        index=hosted.key.index,
        error_code=0,
        high_watermark=end,
        last_stable_offset=end,
        log_start_offset=0,
        records=memoryview(b""),
        diverging_epoch=0,
        diverging_end=end,
        leader_id=-1,
        leader_epoch=-1,
    )
    session_id = fetcher._session._session_id
    await fetcher._on_reply(SessionRequest(session_id, 5, (), (), {}), FetchedReply(0, session_id, [part]))


async def test_k13207_a_reply_for_a_partition_no_longer_copied_changes_nothing(cluster: Cluster) -> None:
    """The broker has become the leader of the partition while the reply was under way."""
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    broker = cluster[2]
    hosted, fetcher = broker.hosted("t"), fetcher_of(broker, 1)
    assert fetcher._session.sent_target(hosted.partition) is not None
    cluster.controller.cut.add(1)
    cluster.controller.fence(1)
    await leading(cluster, 2, "t", epoch=1)
    await written(broker, "t", b"b")
    await deliver_divergence(fetcher, hosted, 0)
    assert values_of(hosted) == [b"a", b"b"]
    assert broker.context.counters.truncations == 0
    cluster.controller.cut.discard(1)


async def test_k18991_a_reply_of_an_older_leader_epoch_truncates_nothing(cluster: Cluster) -> None:
    """The fetch has the previous leader epoch; the reply arrives after the same leader began another epoch."""
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a", b"b")
    for broker_id in (2, 3):
        broker = cluster[broker_id]
        hosted = broker.hosted("t")
        fetcher = fetcher_of(broker, 1)
        await cluster.until(partial(_asks_from, fetcher, hosted, 0, 2), "copied, and more is requested")
        if broker_id == 3:
            hosted.image = msgspec.structs.replace(hosted.image, leader_epoch=1)
            hosted.follow()
        assert _asks_from(fetcher, hosted, 0, 2)
        await deliver_divergence(fetcher, hosted, 0)
    assert [cluster[each].context.counters.truncations for each in (2, 3)] == [1, 0]
    assert values_of(cluster[3].hosted("t")) == [b"a", b"b"]


def _asks_from(fetcher: Fetcher, hosted: Replica, leader_epoch: int, offset: int) -> bool:
    """Return whether the fetcher awaits the reply to a fetch with this leader epoch and offset."""
    target = fetcher._target_of_reply(hosted.partition)
    return target is not None and (target.leader_epoch, target.offset) == (leader_epoch, offset)


async def test_k15510_a_reply_without_records_keeps_the_last_fetched_epoch(cluster: Cluster) -> None:
    """Otherwise the next fetch could not be compared with the leader's history."""
    topic_id = cluster.controller.create("t", (1, 2, 3))
    await written(await leading(cluster, 1, "t"), "t", b"a")
    cluster.controller.cut.add(1)
    cluster.controller.fence(1)
    new = await leading(cluster, 2, "t", epoch=1)
    cluster.controller.cut.discard(1)
    await cluster.controller.until(lambda image: set(cluster.controller.partition(topic_id).isr) == {1, 2, 3})
    follower = cluster[3].hosted("t")
    fetcher = fetcher_of(cluster[3], 2)
    target = fetcher._session.target(follower.partition)
    assert target is not None
    assert (target.leader_epoch, target.offset, target.last_fetched_epoch) == (1, 1, 0)
    await written(new, "t", b"b")
    await cluster.until(lambda: values_of(follower) == [b"a", b"b"], "copied")
    target = fetcher._session.target(follower.partition)
    assert target is not None
    assert (target.offset, target.last_fetched_epoch) == (2, 1)


async def test_k9491_a_log_that_starts_over_resets_its_watermark(cluster: Cluster) -> None:
    """A follower whose end is below the leader's start drops all records.

    If it is then elected, it reports its log start.
    """
    topic_id = cluster.controller.create("t", (1, 2, 3), min_insync_replicas="1")
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await cluster[3].stop()
    await written(leader, "t", b"b", b"c")
    source = leader.hosted("t").log
    assert source is not None
    source.advance_start_offset(3)
    await cluster[3].start()
    await cluster.controller.until(lambda image: 3 in cluster.controller.partition(topic_id).isr)
    copied = cluster[3].hosted("t").log
    assert copied is not None
    assert (copied.start_offset, copied.end_offset, copied.high_watermark) == (3, 3, 3)
    for broker_id in (1, 2):
        await cluster[broker_id].stop(clean=False)
        cluster.controller.fence(broker_id)
    last = await leading(cluster, 3, "t", epoch=1)
    assert (await last.replicas.list_offset("t", 0, -1)).offset == 3
    assert (await last.replicas.list_offset("t", 0, -2)).offset == 3
    assert await written(last, "t", b"d") == 3


async def test_k13254_writes_continue_while_the_isr_changes(tmp_path: Path) -> None:
    """Watermarks, ISR changes and answers wait for each other, and no deadlock occurs."""
    limits = ReplicaLimits(fetcher_backoff_max_ms=100)
    async with Cluster(tmp_path, lag_max_ms=150, limits=limits) as cluster:
        topic_id = cluster.controller.create("t", (1, 2, 3), min_insync_replicas="1")
        leader = await leading(cluster, 1, "t")
        stop = asyncio.Event()

        async def writer(number: int) -> list[bytes]:
            values: list[bytes] = []
            while not stop.is_set():
                values.append(b"%d/%d" % (number, len(values)))
                await written(leader, "t", values[-1])
            return values

        writers = [asyncio.create_task(writer(number)) for number in range(3)]
        for _ in range(4):
            for follower in (2, 3):
                await cluster[follower].role.fetchers.stop()
            await cluster.controller.until(lambda image: cluster.controller.partition(topic_id).isr == (1,))
            for follower in (2, 3):
                cluster[follower].role.fetchers.assign(cluster[follower].hosted("t"))
            await cluster.controller.until(lambda image: len(cluster.controller.partition(topic_id).isr) == 3)
        stop.set()
        acknowledged = [value for values in await asyncio.gather(*writers) for value in values]
        assert sorted(values_of(leader.hosted("t"))) == sorted(acknowledged)


async def test_k13790_applying_the_metadata_again_changes_nothing(cluster: Cluster) -> None:
    """A snapshot repeats all metadata.  Roles and waiting writes stay the same."""
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    for follower in (2, 3):
        await cluster[follower].role.fetchers.stop()
    waiting = asyncio.create_task(write(leader, "t", b"b", timeout_ms=60_000))
    await cluster.until(lambda: leader.context.parked_produces == 1, "appended")
    hosted = leader.hosted("t")
    role, followers = hosted.leader, [cluster[follower].hosted("t").follower for follower in (2, 3)]
    image = cluster.controller.image
    for broker in cluster.brokers.values():
        for _ in range(3):
            broker.role.follower.on_batch(image, image, None)
            await broker.role.wait_applied(image.end_offset)
    await cluster.until(lambda: not any(b.role.progress.pending_changes for b in cluster.brokers.values()), "done")
    assert hosted.leader is role
    assert [cluster[follower].hosted("t").follower for follower in (2, 3)] == followers
    assert not waiting.done()
    for follower in (2, 3):
        cluster[follower].role.fetchers.assign(cluster[follower].hosted("t"))
    assert (await waiting).error_code == KafkaCode.NONE
