"""Committed offsets of a consumer, and offsets for a transaction, against the real state machines of coordinators."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.core.coordinator import group_requests as g
from broker.core.transactions import Marker, ProducerKey
from quorumlog.client import ClusterError, Consumer, FetchLimits, TopicPartition, consumer_topics
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer_group import ConsumerGroup
from quorumlog.client.group_member import GroupMember
from quorumlog.client.group_protocol import NO_GENERATION
from quorumlog.client.membership import Membership, Phase
from quorumlog.client.records import NewRecord, build_batch
from tests.unit.broker.kafka.wellness import until
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers
from tests.unit.quorumlog.client.fake_groups import GroupsOfCluster, commit_offsets, coordinator_of, group_brokers

GROUP = "b"
PRODUCER = ProducerKey(7, 0)
PLACES = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_S = 20.0


@asynccontextmanager
async def reading(**options: Any) -> AsyncIterator[tuple[Consumer, FakeBrokers, GroupsOfCluster]]:
    """A consumer that uses the offsets of a group, and reads two partitions with four records each."""
    async with group_brokers() as (brokers, groups):
        await brokers.create("t", [1, 2])
        for index in (0, 1):
            await brokers.fill("t", index, build_batch([NewRecord(None, b"%d" % value, 1_000) for value in range(4)]))
        chosen = {"group": GROUP, "auto_commit": False, "auto_offset_reset": "earliest", **options}
        async with Consumer(brokers.bootstrap, **chosen) as consumer:
            consumer.assign(PLACES)
            yield consumer, brokers, groups


async def read(consumer: Consumer, count: int) -> set[TopicPartition]:
    """Take records, and return their partitions."""
    found = set()
    for _ in range(count):
        record = await consumer.get(timeout_s=TIMEOUT_S)
        assert record is not None
        found.add(TopicPartition(record.topic, record.partition))
    return found


# -- committed offsets


def begin_transaction(groups: GroupsOfCluster, offset: int) -> None:
    """Let a producer commit an offset in a transaction that stays open."""
    wanted = g.OffsetCommit(GROUP, "", None, g.NO_GENERATION, (g.OffsetToCommit("t", 0, offset),))
    (result,) = coordinator_of(groups, GROUP).ask(g.TxnOffsetCommit(wanted, PRODUCER)).results
    assert result.error.name == "NONE"


def fetches(groups: GroupsOfCluster) -> int:
    return sum(isinstance(request, g.OffsetFetch) for _, request in groups.asked)


async def test_committed_waits_for_an_open_transaction_with_offsets_of_the_group() -> None:
    """Kafka's clients wait as well: the transaction may replace the offset, so its records may be processed already."""
    async with reading() as (consumer, _, groups):
        await read(consumer, 8)
        commit_offsets(groups, GROUP, 1, topic="t")
        begin_transaction(groups, 3)
        before = fetches(groups)
        asking = asyncio.ensure_future(consumer.committed(PLACES, TIMEOUT_S))
        await until(lambda: fetches(groups) >= before + 2)
        assert not asking.done()
        coordinator_of(groups, GROUP).ask(g.EndOffsetTransaction(Marker(PRODUCER, True, 0)))
        assert await asking == {PLACES[0]: 3}


async def test_committed_times_out_if_a_transaction_with_offsets_stays_open() -> None:
    async with reading() as (consumer, _, groups):
        await read(consumer, 8)
        begin_transaction(groups, 3)
        with pytest.raises(ClusterError, match="UNSTABLE_OFFSET_COMMIT") as failure:
            await consumer.committed(PLACES, 0.3)
        assert failure.value.code == "TIMED_OUT"


async def test_committed_with_read_uncommitted_returns_the_offset_before_the_transaction() -> None:
    async with reading(isolation_level="read_uncommitted") as (consumer, _, groups):
        await read(consumer, 8)
        commit_offsets(groups, GROUP, 1, topic="t")
        begin_transaction(groups, 3)
        assert await consumer.committed(PLACES, TIMEOUT_S) == {PLACES[0]: 1}


# -- offsets for a transaction


def group_of(consumer: Consumer) -> ConsumerGroup:
    """Return the consumer's part in its group, which the membership calls."""
    assert consumer._group is not None
    return consumer._group


async def test_offsets_to_send_refuses_offsets_of_a_lost_partition_once() -> None:
    async with reading() as (consumer, _, _):
        assert await read(consumer, 8) == set(PLACES)
        group_of(consumer).lose(frozenset(PLACES[:1]))
        with pytest.raises(ClusterError, match="t-0 were taken from the consumer") as refused:
            consumer.offsets_to_send()
        assert refused.value.code == "ILLEGAL_GENERATION"
        assert consumer.offsets_to_send()[1] == {PLACES[1]: 4}


async def test_offsets_to_send_refuses_offsets_of_a_revoked_partition() -> None:
    async with reading() as (consumer, _, _):
        await read(consumer, 8)
        assert await consumer.get(timeout_s=0.01) is None  # nothing is in progress, so nothing delays the revocation
        await group_of(consumer).revoke(frozenset(PLACES[1:]))
        with pytest.raises(ClusterError, match="t-1 were taken from the consumer"):
            consumer.offsets_to_send()


async def test_offsets_to_send_ignores_a_lost_partition_without_records_in_the_transaction() -> None:
    async with reading() as (consumer, _, _):
        (read_from,) = await read(consumer, 1)
        group_of(consumer).lose(frozenset(PLACES) - {read_from})
        assert consumer.offsets_to_send()[1] == {read_from: 1}


async def test_a_partition_may_be_lost_after_its_offsets_were_sent() -> None:
    async with reading() as (consumer, _, _):
        await read(consumer, 8)
        assert consumer.offsets_to_send()[1] == dict.fromkeys(PLACES, 4)
        group_of(consumer).lose(frozenset(PLACES[:1]))
        assert consumer.offsets_to_send()[1] == {PLACES[1]: 4}


async def test_records_before_a_seek_do_not_belong_to_the_next_transaction() -> None:
    async with reading() as (consumer, _, _):
        await read(consumer, 8)
        consumer.seek(PLACES[0], 0)
        group_of(consumer).lose(frozenset(PLACES[:1]))
        assert consumer.offsets_to_send()[1] == {PLACES[1]: 4}


async def test_processed_records_of_a_partition_that_is_no_longer_assigned_are_committed() -> None:
    async with reading(auto_commit=True, auto_commit_interval_s=3600.0) as (consumer, brokers, _):
        (done,) = await read(consumer, 4)  # all records of a partition
        await read(consumer, 1)  # so that they are processed
        consumer.assign([])
        await consumer.close()
        async with Consumer(brokers.bootstrap, group=GROUP, auto_commit=False) as other:
            assert (await other.committed(PLACES))[done] == 4


async def test_a_repeated_assignment_does_not_auto_commit_the_position_of_the_earlier_one() -> None:
    """The user may have chosen another offset meanwhile."""
    async with reading(auto_commit=True, auto_commit_interval_s=3600.0) as (consumer, brokers, _):
        (done,) = await read(consumer, 4)
        await read(consumer, 1)
        consumer.assign([])
        consumer.assign([done])
        consumer.seek(done, 1)
        await consumer.commit({done: 1})
        await consumer.close()
        async with Consumer(brokers.bootstrap, group=GROUP, auto_commit=False) as other:
            assert (await other.committed([done]))[done] == 1


async def test_an_offset_of_a_dropped_partition_is_not_committed_again_after_others_were_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise each automatic commit would move the offset back that another process has committed meanwhile."""
    asked: list[dict[Any, Any]] = []

    async def commit(_group: str, values: dict[Any, Any], _left_s: float) -> dict[Any, ClusterError]:
        asked.append(values)
        return {key: ClusterError("UNKNOWN_TOPIC_OR_PARTITION", "deleted", retriable=True) for key in PLACES[:1]}

    async with reading(auto_commit=True, auto_commit_interval_s=3600.0) as (consumer, _, _):
        await read(consumer, 8)
        assert await consumer.get(timeout_s=0.01) is None  # so that all records are processed
        consumer.assign([])
        monkeypatch.setattr(group_of(consumer).commits._groups, "commit", commit)
        for _ in range(2):
            await group_of(consumer)._commit_processed(None, TIMEOUT_S)
        assert [set(values) for values in asked] == [set(PLACES)]


# -- the membership, which the tests simulate


class Member:
    """A group member whose core has the state that a test sets."""

    instance_id = failing_since = None

    def __init__(self, consumer: Consumer) -> None:
        self.core = Membership(("cooperative-sticky",), heartbeat_s=3.0, session_s=10.0)
        self.core.member_id, self.core.generation, self.core.phase = "m", 1, Phase.STABLE
        self.refused: list[tuple[int, str]] = []
        group = group_of(consumer)
        group.member = group.commits.member = self  # type: ignore[assignment]
        self.is_closed = False

    def active(self) -> None: ...

    def commit_refused(self, generation: int, code: str) -> None:
        self.refused.append((generation, code))

    async def close(self) -> None:
        self.is_closed = True


async def test_a_waiting_commit_uses_the_generation_at_the_time_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rebalance, other members may have committed later offsets of the partitions."""
    async with reading() as (consumer, _, _):
        member, commits = Member(consumer), group_of(consumer).commits
        asked: list[Any] = []

        async def commit(*_: Any, **options: Any) -> dict[Any, Any]:
            asked.append((options["member_id"], options["generation"]))
            return {}

        monkeypatch.setattr(commits._groups, "commit", commit)
        async with commits._lock:  # an earlier commit, without an answer
            waiting = asyncio.ensure_future(consumer.commit({PLACES[0]: 1}))
            await asyncio.sleep(0)
            member.core.generation = 2
        await waiting
        assert asked == [("m", 1)]


@pytest.mark.parametrize(
    ("phase", "generation", "lost", "code"),
    [
        (Phase.JOINING, 1, PLACES[1:], "REBALANCE_IN_PROGRESS"),
        (Phase.STABLE, 2, PLACES[1:], "REBALANCE_IN_PROGRESS"),
        (Phase.STABLE, 2, PLACES[:1], "ILLEGAL_GENERATION"),
        (Phase.STABLE, 1, (), "ILLEGAL_GENERATION"),
        (Phase.JOINING, NO_GENERATION, (), "ILLEGAL_GENERATION"),
    ],
)
async def test_a_commit_during_a_cooperative_rebalance_may_be_repeated_for_partitions_that_stay(
    monkeypatch: pytest.MonkeyPatch, phase: Phase, generation: int, lost: tuple[TopicPartition, ...], code: str
) -> None:
    """The coordinator may begin the next generation before the member learns of it."""
    async with reading() as (consumer, _, _):
        member, commits = Member(consumer), group_of(consumer).commits

        async def refuse(*_: Any, **__: Any) -> dict[Any, ClusterError]:
            member.core.phase, member.core.generation = phase, generation
            consumer._reading.remove(set(lost))
            consumer._reading.add(PLACES)  # another member may have had them meanwhile
            return {PLACES[0]: ClusterError("ILLEGAL_GENERATION", "refused")}

        monkeypatch.setattr(commits._groups, "commit", refuse)
        with pytest.raises(ClusterError) as refused:
            await consumer.commit({PLACES[0]: 1})
        assert refused.value.code == code
        assert member.refused == ([(1, code)] if code == "ILLEGAL_GENERATION" else [])


async def test_the_former_offset_is_committed_again_after_a_commit_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The later offset may have been committed.  Then the records between the two offsets would be lost."""
    async with reading() as (consumer, _, _):

        async def lost(*_: Any, **__: Any) -> dict[Any, Any]:
            raise ClusterError("TIMED_OUT", "no answer", retriable=True)

        consumer.assign(PLACES[:1])
        await consumer.commit({PLACES[0]: 1})
        with monkeypatch.context() as patch:
            patch.setattr(group_of(consumer).commits._groups, "commit", lost)
            with pytest.raises(ClusterError, match="no answer"):
                await consumer.commit({PLACES[0]: 3})
        consumer.seek(PLACES[0], 1)
        assert await consumer.commit() == {PLACES[0]: 1}
        assert await consumer.commit() == {}


async def test_a_commit_of_an_unchanged_offset_is_sent_after_offsets_went_to_a_transaction() -> None:
    """The transaction may have moved the committed offset."""
    async with reading() as (consumer, _, _):
        consumer.assign(PLACES[:1])
        await consumer.commit({PLACES[0]: 1})
        consumer.seek(PLACES[0], 3)
        assert consumer.offsets_to_send()[1] == {PLACES[0]: 3}
        consumer.seek(PLACES[0], 1)
        assert await consumer.commit() == {PLACES[0]: 1}


async def test_a_commit_that_waits_for_an_earlier_commit_times_out() -> None:
    async with reading() as (consumer, _, _), group_of(consumer).commits._lock:  # an earlier commit, without an answer
        async with asyncio.timeout(TIMEOUT_S):
            with pytest.raises(ClusterError, match="an earlier commit") as refused:
                await consumer.commit({PLACES[0]: 1}, timeout_s=0.05)
        assert (refused.value.code, refused.value.retriable) == ("TIMED_OUT", True)


async def test_a_listener_that_awaits_a_cancelled_task_does_not_stop_the_group() -> None:
    async def on_revoked(_: list[TopicPartition]) -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    async with reading(on_revoked=on_revoked) as (consumer, _, _):
        Member(consumer)
        await asyncio.create_task(group_of(consumer).revoke(frozenset(PLACES[1:])))
        assert consumer.assignment() == {PLACES[0]}
        with pytest.raises(ClusterError, match="on_revoked failed: CancelledError"):
            await consumer.get(timeout_s=TIMEOUT_S)
        await read(consumer, 4)


async def test_an_error_of_a_cancelled_listener_does_not_stop_the_group() -> None:
    async def on_revoked(_: list[TopicPartition]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("cannot roll back")

    async with reading(on_revoked=on_revoked) as (consumer, _, _):
        Member(consumer)
        async with asyncio.timeout(0.05):  # as the limit of a revocation
            await group_of(consumer).revoke(frozenset(PLACES[1:]))
        assert consumer.assignment() == {PLACES[0]}
        with pytest.raises(ClusterError, match="on_revoked failed: ValueError"):
            await consumer.get(timeout_s=TIMEOUT_S)
        group_of(consumer).member = None


async def test_the_traceback_of_a_membership_error_does_not_grow_with_each_call() -> None:
    async with reading() as (consumer, _, _):
        group_of(consumer).out_of_group(ClusterError("GROUP_AUTHORIZATION_FAILED", "not permitted"))
        frames = []
        for _ in range(2):
            with pytest.raises(ClusterError, match="not permitted") as failure:
                await consumer.get(timeout_s=TIMEOUT_S)
            frames.append(len(list(traceback.walk_tb(failure.value.__traceback__))))
        assert frames[0] == frames[1]


async def test_listeners_run_one_after_the_other() -> None:
    calls: list[str] = []
    going_on = asyncio.Event()

    async def on_lost(_: list[TopicPartition]) -> None:
        calls.append("lost")
        await going_on.wait()
        calls.append("cleaned up")

    async with reading(on_lost=on_lost, on_assigned=lambda _: calls.append("assigned")) as (consumer, _, _):
        Member(consumer)
        group_of(consumer).lose(frozenset(PLACES[1:]))
        assigned = asyncio.ensure_future(group_of(consumer).assigned(frozenset(PLACES[1:])))
        await until(lambda: calls == ["lost"])
        await asyncio.sleep(0)
        going_on.set()
        await assigned
        assert calls == ["lost", "cleaned up", "assigned"]


async def test_on_assigned_names_a_partition_once_if_it_is_assigned_twice_before_it_is_handed_over() -> None:
    calls: list[list[TopicPartition]] = []
    async with reading(on_assigned=calls.append) as (consumer, _, _):
        consumer.assign([])
        for _ in range(2):  # the member lost the partition meanwhile, before the consumer began to read it
            await group_of(consumer).assigned(frozenset(PLACES[:1]))
        assert calls == [[PLACES[0]], []]


async def test_partitions_that_are_being_revoked_are_not_revoked_again_by_close() -> None:
    calls: list[list[TopicPartition]] = []
    going_on = asyncio.Event()

    async def on_revoked(partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        await going_on.wait()

    async with reading(on_revoked=on_revoked) as (consumer, _, _):
        Member(consumer)
        revoking = asyncio.ensure_future(group_of(consumer).revoke(frozenset(PLACES[1:])))
        await until(lambda: len(calls) == 1)
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0.01)
        going_on.set()
        await asyncio.gather(revoking, closing)
        assert calls == [[PLACES[1]], [PLACES[0]]]


async def test_a_close_that_is_cancelled_leaves_the_group_and_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading() as (consumer, _, _):
        member = Member(consumer)
        await read(consumer, 1)
        stop = consumer._tasks.stop
        stopped = asyncio.Event()

        async def stop_slowly() -> None:
            await stop()
            stopped.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(consumer._tasks, "stop", stop_slowly)
            closing = asyncio.ensure_future(consumer.close())
            await stopped.wait()
            closing.cancel()
            await asyncio.wait({closing})
        assert closing.cancelled()
        assert member.is_closed
        assert not consumer._cluster._connections


@asynccontextmanager
async def member_of_group(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Consumer, FakeBrokers, GroupMember]]:
    """A member that owns both partitions of its topic and has read them.  It sends no requests to the group."""
    monkeypatch.setattr(ConsumerGroup, "start", lambda _: None)
    chosen: dict[str, Any] = {"auto_commit": False, "auto_offset_reset": "earliest", "fetch": FetchLimits(wait_ms=50)}
    async with group_brokers() as (brokers, _):
        await brokers.create("t", [1, 2])
        for index in (0, 1):
            await brokers.fill("t", index, build_batch([NewRecord(None, b"%d" % value, 1_000) for value in range(4)]))
        async with Consumer(brokers.bootstrap, topics=["t"], group=GROUP, **chosen) as consumer:
            member = group_of(consumer).member
            assert member is not None
            await member._topics()
            await group_of(consumer).assigned(frozenset(PLACES))
            await member._topics()
            await read(consumer, 8)
            yield consumer, brokers, member


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_member_reads_a_topic_that_was_created_again_from_its_start(
    monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    """noticed: the consumer looks at the topic while it is missing."""
    async with member_of_group(monkeypatch) as (consumer, brokers, member):
        consumer.pause(*PLACES)  # so that no fetch finds that the position is out of range
        await brokers.delete("t")
        if noticed:
            assert await member._topics() == (frozenset("t"), {})
        await brokers.create("t", [1, 2])
        for value in range(10):
            await brokers.fill("t", 1, build_batch([NewRecord(None, b"%d" % value, 1_000)]))
        assert await member._topics() == (frozenset("t"), {"t": 2})
        consumer.resume(*PLACES)
        record = await consumer.get(timeout_s=TIMEOUT_S)
        assert record is not None
        assert (record.partition, record.offset) == (1, 0)


@pytest.mark.parametrize("is_paused", [True, False])
async def test_an_offset_is_committed_again_if_its_topic_was_created_again(
    monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    """The brokers delete the offsets of a deleted topic, so the same offset of the new topic is not committed yet.

    is_paused: the consumer notices the new topic when it looks at its topics.  Otherwise a fetch is out of range first.
    """
    async with member_of_group(monkeypatch) as (consumer, brokers, member):
        commits = group_of(consumer).commits
        commits.member = None  # it sends no requests, so the coordinator does not know it
        assert await consumer.commit() == dict.fromkeys(PLACES, 4)
        if is_paused:
            consumer.pause(*PLACES)
        await brokers.delete("t")
        await commits._groups.delete_offsets(GROUP, PLACES, TIMEOUT_S)
        await brokers.create("t", [1, 2])
        if is_paused:
            await member._topics()
        await until(lambda: [consumer.position(place) for place in PLACES] == [0, 0])
        for index in (0, 1):
            await brokers.fill("t", index, build_batch([NewRecord(None, b"%d" % value, 1_000) for value in range(4)]))
        consumer.resume(*PLACES)
        await read(consumer, 8)
        assert await consumer.commit() == dict.fromkeys(PLACES, 4)


async def test_a_partition_that_was_assigned_in_a_new_topic_does_not_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with member_of_group(monkeypatch) as (consumer, brokers, member):
        assert await consumer.get(timeout_s=0.01) is None  # nothing is in progress
        await group_of(consumer).revoke(frozenset(PLACES))
        await brokers.delete("t")
        await brokers.create("t", [1, 2])
        await brokers.fill("t", 1, build_batch([NewRecord(None, b"%d" % value, 1_000) for value in range(4)]))
        await group_of(consumer).assigned(frozenset(PLACES))
        assert await read(consumer, 3) == {PLACES[1]}
        await member._topics()
        record = await consumer.get(timeout_s=TIMEOUT_S)
        assert record is not None
        assert record.offset == 3


async def test_a_leader_that_does_not_answer_hides_no_removed_partition_from_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader would know whether the partition that remains has another log."""
    asked: list[None] = []

    async def epoch_ends(_cluster: Cluster, wanted: Any, _timeout_s: float) -> dict[Any, ClusterError]:
        asked.append(None)
        return {key: ClusterError("TIMED_OUT", "no answer", retriable=True) for key in wanted}

    async with member_of_group(monkeypatch) as (consumer, brokers, member):
        await brokers.move("t", 0, 2)
        await brokers.remove_last_partition("t")
        with monkeypatch.context() as patch:
            patch.setattr(consumer_topics, "epoch_ends", epoch_ends)
            assert await member._topics() == (frozenset("t"), {"t": 1})
            assert asked
        await member._topics()
        assert consumer.position(PLACES[0]) == 4
