"""The coordinators of groups on a broker: their limits, deleted topics, and the state that survives a failover."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.coordinator.groups import GroupCoordinators, group_limits
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.partition import State
from broker.core.coordinator.client import Client
from broker.core.coordinator.group_requests import (
    GroupLimits,
    GroupToFetch,
    JoinGroup,
    MemberProtocol,
    OffsetCommit,
    OffsetFetch,
    OffsetToCommit,
    TxnOffsetCommit,
)
from broker.core.coordinator.transaction_requests import TransactionSupport
from broker.core.transactions import ProducerKey
from broker.log.producers import LogProducers
from metadata.control.partitions_count import remove_partitions
from metadata.control.topics import delete_topics
from metadata.image import ClusterImage
from metadata.image.internal_topics import CONSUMER_OFFSETS
from metadata.records import Config, ConfigScope
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.coordinator.counting import WAIT_S, until
from tests.unit.broker.replica.rig import Rig


class Bench:
    """The coordinators of broker 1, which leads the one partition of the internal topic."""

    def __init__(self, rig: Rig, groups: GroupCoordinators) -> None:
        self.rig = rig
        self.groups = groups

    async def apply(self, records: Any) -> None:
        """Commit metadata; the coordinators also see it."""
        old = self.rig.cluster.image
        self.rig.cluster.apply(records)
        new = self.rig.cluster.image
        self.groups.on_batch(old, new, records)
        await self.rig.learn()

    async def create(self, topic: str, partitions: int = 1) -> None:
        self.rig.cluster.create(topic, *[(1,)] * partitions)
        await self.rig.learn()

    async def serving(self) -> None:
        await until(lambda: self.groups.shell.count(State.SERVING) == 1)

    async def ask(self, request: Any) -> Any:
        async with asyncio.timeout(WAIT_S):
            return await self.groups.call(self.groups.partition("g"), request, 10)

    async def commit(self, *offsets: OffsetToCommit) -> list[KafkaCode]:
        response = await self.ask(OffsetCommit("g", "", None, -1, offsets))
        return [each.error for each in response.results]

    async def committed(self) -> dict[tuple[str, int], int]:
        response = await self.ask(OffsetFetch((GroupToFetch("g", None),)))
        return {(each.topic, each.partition): each.offset for each in response.groups[0].offsets}


async def _no_controller(*_: object) -> Any:
    raise AssertionError("the controller is not asked")


@asynccontextmanager
async def coordinating(rig: Rig) -> AsyncIterator[Bench]:
    limits = CoordinatorLimits(retry_ms=10)
    groups = GroupCoordinators(rig.role.table, _no_controller, _no_controller, Sources.real(), limits)
    async with asyncio.TaskGroup() as tasks:
        groups.start(tasks, rig.cluster.image)
        try:
            yield Bench(rig, groups)
        finally:
            await groups.close()


@pytest.fixture
async def bench(rig: Rig) -> AsyncIterator[Bench]:
    async with coordinating(rig) as bench:
        await bench.create(CONSUMER_OFFSETS)
        await bench.create("t", 2)
        await bench.create("u")
        await bench.serving()
        yield bench


ALL = (OffsetToCommit("t", 0, 5), OffsetToCommit("t", 1, 6), OffsetToCommit("u", 0, 7))


async def test_committed_offsets_survive_a_change_of_leadership(bench: Bench) -> None:
    assert await bench.commit(*ALL) == [KafkaCode.NONE] * 3
    replica = bench.rig.role.table.find(CONSUMER_OFFSETS, 0)
    assert replica is not None
    assert replica.log is not None
    first = next(iter(bench.groups.shell))
    bench.groups.shell._on_resigned(replica.partition, 0)
    assert await bench.ask(OffsetFetch(())) is KafkaCode.NOT_COORDINATOR
    bench.groups.shell._on_elected(replica.partition, 0)
    await bench.serving()
    assert next(iter(bench.groups.shell)) is not first
    assert await bench.committed() == {("t", 0): 5, ("t", 1): 6, ("u", 0): 7}
    assert bench.groups.commits == 1


async def test_offsets_of_unknown_partitions_are_not_committed(bench: Bench) -> None:
    wanted = (OffsetToCommit("t", 2, 5), OffsetToCommit("nope", 0, 5), OffsetToCommit("t", 1, 5))
    unknown = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await bench.commit(*wanted) == [unknown, unknown, KafkaCode.NONE]


async def test_the_offsets_of_a_deleted_topic_are_deleted(bench: Bench) -> None:
    await bench.commit(*ALL)
    await bench.apply(delete_topics(bench.rig.cluster.image, ["t"], []).records)
    assert await bench.committed() == {("u", 0): 7}


async def test_the_offsets_of_a_topic_that_is_missing_from_a_snapshot_are_deleted(bench: Bench) -> None:
    await bench.commit(*ALL)
    old = bench.rig.cluster.image
    bench.rig.cluster.apply(delete_topics(old, ["u"], []).records)
    bench.groups.on_batch(old, bench.rig.cluster.image, None)
    assert await bench.committed() == {("t", 0): 5, ("t", 1): 6}


async def test_a_new_coordinator_deletes_the_offsets_of_a_topic_that_was_deleted_before_its_load(bench: Bench) -> None:
    await bench.commit(*ALL)
    replica = bench.rig.role.table.find(CONSUMER_OFFSETS, 0)
    assert replica is not None
    bench.groups.shell._on_resigned(replica.partition, 0)
    await bench.apply(delete_topics(bench.rig.cluster.image, ["t"], []).records)
    bench.groups.shell._on_elected(replica.partition, 0)
    await bench.serving()
    machine = next(iter(bench.groups.shell)).machine
    assert machine is not None
    await until(lambda: machine.deadline_ms is not None and not machine._sweeper.is_busy)
    assert await bench.committed() == {("u", 0): 7}


async def test_a_commit_is_refused_until_this_broker_has_applied_the_creation_of_its_topic(bench: Bench) -> None:
    view = bench.rig.role.table.context.cluster
    newest, before = view.newest, view.applied
    await bench.create("new")
    after, view.applied = view.applied, before
    assert newest is not view.newest
    commit = OffsetToCommit("new", 0, 5)
    assert await bench.commit(commit) == [KafkaCode.UNKNOWN_TOPIC_OR_PARTITION], "the next leader may not know it yet"
    view.applied = after
    assert await bench.commit(commit) == [KafkaCode.NONE]


async def test_removing_a_partition_keeps_the_offsets_of_the_remaining_partition(bench: Bench) -> None:
    await bench.commit(*ALL)
    old = bench.rig.cluster.image
    decision = remove_partitions(old, "t", 1, bench.rig.cluster.new_id)
    await bench.apply(decision.records)
    bench.groups.on_batch(old, bench.rig.cluster.image, None)
    assert (await bench.committed())["t", 0] == 5


@pytest.mark.parametrize("is_snapshot", [False, True])
async def test_the_offsets_of_a_removed_partition_are_deleted(bench: Bench, is_snapshot: bool) -> None:
    """Otherwise the offsets would belong to the next partition with this number."""
    await bench.commit(*ALL)
    old = bench.rig.cluster.image
    records = remove_partitions(old, "t", 1, bench.rig.cluster.new_id).records
    if is_snapshot:
        bench.rig.cluster.apply(records)
        await bench.rig.learn()
        bench.groups.on_batch(old, bench.rig.cluster.image, None)
    else:
        await bench.apply(records)
    machine = next(iter(bench.groups.shell)).machine
    assert machine is not None
    await until(lambda: machine._offsets.count == 2)
    assert await bench.committed() == {("t", 0): 5, ("u", 0): 7}


async def test_a_changed_cluster_config_applies_to_the_next_commit(bench: Bench) -> None:
    metadata = OffsetToCommit("t", 0, 5, -1, "x" * 11)
    assert await bench.commit(metadata) == [KafkaCode.NONE]
    await bench.apply([Config(ConfigScope.CLUSTER, "", "offset.metadata.max.bytes", "10")])
    assert await bench.commit(metadata) == [KafkaCode.OFFSET_METADATA_TOO_LARGE]


async def test_groups_are_counted_by_their_state(bench: Bench) -> None:
    await bench.commit(*ALL)
    protocols = (MemberProtocol("range", b""),)
    join = JoinGroup("h", "", None, Client("c", "/h"), "consumer", protocols, 10_000, 10_000, needs_member_id=False)
    call = bench.groups.call(0, join, 10)
    await until(lambda: bench.groups.count_by_state()["PreparingRebalance"] == 1)
    counts = bench.groups.count_by_state()
    assert (counts["Empty"], counts["Stable"]) == (1, 0)
    call.cancel()


def test_the_limits_of_a_cluster_without_configs_are_the_defaults() -> None:
    assert group_limits(ClusterImage()) == GroupLimits()


def test_a_minimum_session_timeout_above_the_maximum_raises_the_maximum() -> None:
    image = ClusterImage().apply(0, [Config(ConfigScope.CLUSTER, "", "group.min.session.timeout.ms", "2000000")])
    limits = group_limits(image)
    assert (limits.session_timeout_min_ms, limits.session_timeout_max_ms) == (2_000_000, 2_000_000)


async def test_an_offset_commit_that_is_cancelled_while_it_is_verified_leaves_no_verification(bench: Bench) -> None:
    never: asyncio.Future[KafkaCode] = asyncio.get_running_loop().create_future()

    async def verify(*_: Any) -> KafkaCode:
        return await never

    request = TxnOffsetCommit(OffsetCommit("g", "", None, -1, ALL), ProducerKey(7, 0))
    commit = bench.groups.commit_in_transaction("x", request, verify, TransactionSupport.ADDS, 10)
    waiting = asyncio.create_task(commit)
    producers = bench.groups.shell.producers(0)
    assert producers is not None
    await until(lambda: 7 in producers._verifying)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert producers._verifying == {}


async def test_an_offset_commit_that_finds_a_damaged_producer_state_takes_the_log_offline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit may be the first request that reads the producer state; its client then finds the next coordinator."""

    def fail(_: Any) -> Any:
        raise CorruptStoreError("a checksum does not match")

    async def verify(*_: Any) -> KafkaCode:
        return KafkaCode.NONE

    await bench.serving()
    monkeypatch.setattr(LogProducers, "state", property(fail))
    request = TxnOffsetCommit(OffsetCommit("g", "", None, -1, ALL), ProducerKey(7, 0))
    found = await bench.groups.commit_in_transaction("x", request, verify, TransactionSupport.ADDS, 10)
    assert found is KafkaCode.NOT_COORDINATOR
    assert bench.groups.shell.led() == []


async def commits(
    bench: Bench, answers: list[asyncio.Future[KafkaCode]]
) -> tuple[asyncio.Task[Any], asyncio.Task[Any]]:
    """Send an offset commit twice; each copy waits for its own answer from the transaction coordinator."""

    async def verify(*_: Any) -> KafkaCode:
        answers.append(asyncio.get_running_loop().create_future())
        return await answers[-1]

    def commit() -> asyncio.Task[Any]:
        request = TxnOffsetCommit(OffsetCommit("g", "", None, -1, ALL), ProducerKey(7, 0))
        return asyncio.create_task(
            bench.groups.commit_in_transaction("x", request, verify, TransactionSupport.ADDS, 10)
        )

    first, repeated = commit(), commit()
    await until(lambda: len(answers) == 2)
    return first, repeated


async def test_a_repeated_offset_commit_succeeds_once_the_first_one_is_confirmed(bench: Bench) -> None:
    answers: list[asyncio.Future[KafkaCode]] = []
    sent = await commits(bench, answers)
    for task, answer, code in zip(sent, answers, (KafkaCode.NONE, KafkaCode.NOT_ENOUGH_REPLICAS), strict=True):
        answer.set_result(code)
        found = await task
        assert not isinstance(found, KafkaCode), found


async def test_a_repeated_offset_commit_succeeds_although_the_first_one_is_cancelled(bench: Bench) -> None:
    """The first commit is cancelled with its connection; the second one, on another connection, still waits."""
    answers: list[asyncio.Future[KafkaCode]] = []
    first, repeated = await commits(bench, answers)
    first.cancel()
    await asyncio.wait([first])
    answers[1].set_result(KafkaCode.NONE)
    found = await repeated
    assert not isinstance(found, KafkaCode), "INVALID_TXN_STATE would end the producer"
    assert [each.error for each in found.results] == [KafkaCode.NONE] * 3
