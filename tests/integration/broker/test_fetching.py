"""A leader and fetches: sessions, long polls, positions, limits and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.kafka.api import FetchPartition, FetchPlan, FetchReply, ForgottenPartition
from broker.replica.limits import ReplicaLimits
from quorumlog.wire.errors import KafkaCode
from tests.integration.broker.harness import Broker, Cluster, batch

ALL = -1
COUNT = 4


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, count=1) as running:
        yield running


@pytest.fixture
async def leader(cluster: Cluster) -> Broker:
    """The leader of all four partitions of `t`, with three batches of one record in partition 0."""
    topic_id = cluster.controller.create("t", *[(1,)] * COUNT)
    broker = cluster[1]
    await cluster.until(lambda: all(broker.table.find(topic_id, index) for index in range(COUNT)), "hosted")
    for value in (b"a", b"b", b"c"):
        await write(broker, 0, value)
    return broker


async def write(broker: Broker, index: int, *values: bytes) -> int:
    result = await broker.replicas.produce("t", index, memoryview(batch(*values)), ALL, 10_000)
    assert result.error_code == KafkaCode.NONE, result
    return result.base_offset


def ask(*offsets: tuple[int, int], **changes: Any) -> FetchPlan:
    """A fetch of (index, offset) pairs that does not wait."""
    partitions = tuple(FetchPartition(None, "t", index, offset, 1 << 20) for index, offset in offsets)
    return replace(FetchPlan(partitions, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20), **changes)


def shown(reply: FetchReply) -> dict[int, tuple[int, bool]]:
    """Return, by index, the error code and whether the answer has records."""
    return {result.index: (result.error_code, len(result.records) > 0) for result in reply.results}


async def test_a_full_fetch_names_every_partition(leader: Broker) -> None:
    reply = await leader.replicas.fetch(ask((0, 0), (1, 0), (2, 7), (9, 0)))
    assert shown(reply) == {
        0: (0, True),
        1: (0, False),
        2: (KafkaCode.OFFSET_OUT_OF_RANGE, False),
        9: (KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, False),
    }
    assert reply.results[2].high_watermark == 0, "so that the fetcher can find its place"


async def test_an_unknown_topic_id_has_its_own_error(leader: Broker) -> None:
    plan = FetchPlan((FetchPartition(UUID(int=9), None, 0, 0, 1 << 20),), max_wait_ms=0, min_bytes=1, max_bytes=1 << 20)
    assert (await leader.replicas.fetch(plan)).results[0].error_code == KafkaCode.UNKNOWN_TOPIC_ID


async def test_a_session_sends_only_changes(leader: Broker) -> None:
    opened = await leader.replicas.fetch(ask((0, 3), (1, 0), (2, 0), session_epoch=0))
    assert opened.session_id > 0
    assert len(opened.results) == 3
    session = {"session_id": opened.session_id}
    assert (await leader.replicas.fetch(ask(session_epoch=1, **session))).results == ()
    await write(leader, 1, b"x")
    assert shown(await leader.replicas.fetch(ask(session_epoch=2, **session))) == {1: (0, True)}
    # The consumer has not acknowledged the record, so it gets the record again.
    assert shown(await leader.replicas.fetch(ask(session_epoch=3, **session))) == {1: (0, True)}
    assert (await leader.replicas.fetch(ask((1, 1), session_epoch=4, **session))).results == ()
    await write(leader, 2, b"y")
    gone = (ForgottenPartition(None, "t", 2),)
    assert (await leader.replicas.fetch(ask(session_epoch=5, forgotten=gone, **session))).results == ()


async def test_a_fetch_with_a_wrong_session_epoch_or_session_id_is_refused(leader: Broker) -> None:
    opened = await leader.replicas.fetch(ask((0, 3), session_epoch=0))
    wrong = await leader.replicas.fetch(ask(session_epoch=5, session_id=opened.session_id))
    assert (wrong.error_code, wrong.results) == (KafkaCode.INVALID_FETCH_SESSION_EPOCH, ())
    unknown = await leader.replicas.fetch(ask(session_epoch=1, session_id=opened.session_id % 1_000 + 1))
    assert unknown.error_code == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    await leader.replicas.fetch(ask(session_epoch=-1, session_id=opened.session_id))
    closed = await leader.replicas.fetch(ask(session_epoch=1, session_id=opened.session_id))
    assert closed.error_code == KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(leader.replicas.fetches.sessions) == 0
    assert leader.hosted("t").sessions == {}


async def test_the_next_request_of_a_session_replaces_a_parked_one(cluster: Cluster, leader: Broker) -> None:
    opened = await leader.replicas.fetch(ask((0, 3), session_epoch=0))
    plan = ask(session_epoch=1, session_id=opened.session_id, max_wait_ms=30_000)
    parked = asyncio.create_task(leader.replicas.fetch(plan))
    await cluster.until(lambda: leader.replicas.fetches.parked == 1, "parked")
    second = await leader.replicas.fetch(ask((0, 2), session_epoch=2, session_id=opened.session_id))
    assert shown(second) == {0: (0, True)}
    async with asyncio.timeout(10):
        assert (await parked).results == ()


async def test_a_long_poll_ends_with_data_or_at_its_timeout(cluster: Cluster, leader: Broker) -> None:
    waiting = asyncio.create_task(leader.replicas.fetch(ask((0, 3), (1, 0), max_wait_ms=30_000)))
    await cluster.until(lambda: leader.replicas.fetches.parked == 1, "parked")
    await write(leader, 1, b"x")
    assert shown(await waiting) == {0: (0, False), 1: (0, True)}
    assert shown(await leader.replicas.fetch(ask((0, 3), max_wait_ms=30))) == {0: (0, False)}
    assert leader.hosted("t").sessions == {}, "no fetch waits any more"


async def test_a_long_poll_waits_for_its_minimum_of_bytes(cluster: Cluster, leader: Broker) -> None:
    one = len(batch(b"x"))
    plan = ask((1, 0), max_wait_ms=30_000, min_bytes=3 * one)
    waiting = asyncio.create_task(leader.replicas.fetch(plan))
    await cluster.until(lambda: leader.replicas.fetches.parked == 1, "parked")
    for _ in range(3):
        assert not waiting.done()
        await write(leader, 1, b"x")
    reply = await waiting
    assert len(reply.results[0].records) == 3 * one


async def test_a_long_poll_for_many_bytes_reads_once(
    cluster: Cluster, leader: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write wakes the fetch; the bytes are counted, not read repeatedly."""
    log = leader.hosted("t", 1).log
    assert log is not None
    read, sizes = log.read, list[int]()

    def counted(offset: int, max_bytes: int, up_to_offset: int) -> bytes | memoryview:
        data = read(offset, max_bytes, up_to_offset)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(log, "read", counted)
    waiting = asyncio.create_task(leader.replicas.fetch(ask((0, 3), (1, 0), max_wait_ms=30_000, min_bytes=5_000)))
    await cluster.until(lambda: leader.replicas.fetches.parked == 1, "parked")
    while not waiting.done():
        await write(leader, 1, b"x" * 50)
    reply = await waiting
    assert shown(reply) == {0: (0, False), 1: (0, True)}
    assert sizes == [len(reply.results[1].records)]
    assert sizes[0] >= 5_000
    assert log.size_between(2, log.end_offset) == log.size - log.size_between(0, 2)


async def test_the_number_of_concurrent_searches_by_time_is_limited(
    cluster: Cluster, leader: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = leader.hosted("t").log
    assert log is not None
    running: list[asyncio.Event] = []

    async def slow(timestamp: int, up_to: int) -> None:
        running.append(asyncio.Event())
        await running[-1].wait()

    monkeypatch.setattr(log, "offset_for_timestamp", slow)
    most = leader.context.limits.time_lookups
    asked = [asyncio.create_task(leader.replicas.list_offset("t", 0, 1_000)) for _ in range(most + 2)]
    await cluster.until(lambda: len(running) == most, "as many searches as permitted run")
    asked[0].cancel()  # this search is running, and continues after the cancel
    asked[-1].cancel()  # this search is waiting
    await asyncio.wait({asked[0], asked[-1]})
    await asyncio.sleep(0)
    assert len(running) == most
    running[0].set()
    await cluster.until(lambda: len(running) == most + 1, "the next search runs")
    for event in running:
        event.set()
    for one in asked[1:-1]:
        assert (await one).error_code == KafkaCode.NONE


async def test_a_minimum_of_bytes_above_the_maximum_is_reduced_to_the_maximum(leader: Broker) -> None:
    one = len(batch(b"x"))
    await write(leader, 1, b"x")
    reply = await leader.replicas.fetch(ask((1, 0), max_wait_ms=30_000, min_bytes=1 << 30, max_bytes=one))
    assert shown(reply) == {1: (0, True)}


async def test_a_cancelled_long_poll_leaves_no_parked_fetch_and_no_session(cluster: Cluster, leader: Broker) -> None:
    waiting = asyncio.create_task(leader.replicas.fetch(ask((0, 3), max_wait_ms=30_000)))
    await cluster.until(lambda: leader.replicas.fetches.parked == 1, "parked")
    waiting.cancel()
    await asyncio.wait({waiting})
    assert leader.replicas.fetches.parked == 0
    assert leader.hosted("t").sessions == {}


async def test_the_size_of_a_reply_is_bounded_but_never_below_one_batch(leader: Broker) -> None:
    one = len(batch(b"a"))
    reply = await leader.replicas.fetch(ask((0, 0), max_bytes=2 * one))
    assert len(reply.results[0].records) == 2 * one
    reply = await leader.replicas.fetch(ask((0, 0), max_bytes=1))
    assert len(reply.results[0].records) == one
    await write(leader, 1, b"x")
    reply = await leader.replicas.fetch(ask((0, 0), (1, 0), max_bytes=1))
    assert shown(reply) == {0: (0, True), 1: (0, False)}


async def test_omitted_records_come_with_the_next_fetch_of_the_session(leader: Broker) -> None:
    await write(leader, 1, b"x")
    opened = await leader.replicas.fetch(ask((0, 0), (1, 0), max_bytes=1, session_epoch=0))
    assert shown(opened) == {0: (0, True), 1: (0, False)}
    plan = ask((0, 1), max_bytes=1, session_epoch=1, session_id=opened.session_id)
    assert shown(await leader.replicas.fetch(plan)) == {1: (0, True)}, "a served partition moves to the end"


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        (-5, KafkaCode.OFFSET_OUT_OF_RANGE),
        (3, KafkaCode.NONE),
        (4, KafkaCode.OFFSET_OUT_OF_RANGE),
        (2**63 - 1, KafkaCode.OFFSET_OUT_OF_RANGE),
    ],
)
async def test_offsets_outside_the_log_are_refused(leader: Broker, offset: int, code: KafkaCode) -> None:
    assert shown(await leader.replicas.fetch(ask((0, offset)))) == {0: (code, False)}


async def test_the_leader_epoch_of_a_fetch_is_checked(leader: Broker) -> None:
    def plan(epoch: int) -> FetchPlan:
        partition = FetchPartition(None, "t", 0, 0, 1 << 20, current_leader_epoch=epoch)
        return FetchPlan((partition,), max_wait_ms=0, min_bytes=1, max_bytes=1 << 20)

    assert shown(await leader.replicas.fetch(plan(0))) == {0: (0, True)}
    assert shown(await leader.replicas.fetch(plan(1))) == {0: (KafkaCode.UNKNOWN_LEADER_EPOCH, False)}


async def test_a_fetch_of_a_broker_without_a_replica_is_refused(leader: Broker) -> None:
    reply = await leader.replicas.fetch(ask((0, 0), replica_id=8, broker_epoch=1))
    assert shown(reply) == {0: (KafkaCode.UNKNOWN_LEADER_EPOCH, False)}


async def test_a_fetch_from_a_diverging_position_is_answered_with_the_diverging_epoch(leader: Broker) -> None:
    partition = FetchPartition(None, "t", 0, 9, 1 << 20, last_fetched_epoch=0)
    plan = FetchPlan((partition,), max_wait_ms=30_000, min_bytes=1, max_bytes=1 << 20)
    result = (await leader.replicas.fetch(plan)).results[0]
    assert (result.error_code, result.diverging_epoch, result.diverging_end) == (0, 0, 3)
    assert result.records == b""


async def test_followers_copy_without_a_free_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetch is a full one, and still waits for news: a follower without news sends no fetch before its time."""
    limits = ReplicaLimits(sessions=0, fetcher_wait_ms=200)
    async with Cluster(tmp_path, count=2, limits=limits) as cluster:
        topic_id = cluster.controller.create("t", (1, 2), min_insync_replicas="2")
        await cluster.until(lambda: cluster[1].table.find(topic_id, 0) is not None, "hosted")
        for number in range(5):
            assert await write(cluster[1], 0, b"x") == number
        assert len(cluster[1].replicas.fetches.sessions) == 0
        loop = asyncio.get_running_loop()
        fetches = cluster[1].replicas.fetches
        served = fetches.fetch
        times: list[float] = []

        async def counted(plan: FetchPlan) -> FetchReply:
            times.append(loop.time())
            return await served(plan)

        monkeypatch.setattr(fetches, "fetch", counted)
        await cluster.until(lambda: len(times) >= 4, "the follower fetches")
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert min(gaps) >= limits.fetcher_wait_ms / 1000, gaps


async def test_writes_that_cannot_be_parked_are_refused_before_they_are_appended(tmp_path: Path) -> None:
    async with Cluster(tmp_path, count=2, limits=ReplicaLimits(parked_produces=1)) as cluster:
        topic_id = cluster.controller.create("t", (1, 2), min_insync_replicas="2")
        await cluster.until(lambda: cluster[1].table.find(topic_id, 0) is not None, "hosted")
        await cluster[2].role.fetchers.stop()
        replicas = cluster[1].replicas
        first = replicas.start_produce("t", 0, memoryview(batch(b"a")), ALL, 60)
        second = await replicas.start_produce("t", 0, memoryview(batch(b"b")), ALL, 60_000)
        assert (second.error_code, second.base_offset) == (KafkaCode.REQUEST_TIMED_OUT, -1)
        assert (await first).error_code == KafkaCode.REQUEST_TIMED_OUT
        assert replicas.context.parked_produces == 0
        partition_log = cluster[1].hosted("t").log
        assert partition_log is not None
        assert partition_log.end_offset == 1
