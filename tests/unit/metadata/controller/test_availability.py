"""Unavailable partitions: their number, the time for which they are unavailable, and their metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any

import pytest

from broker.core.partition import ACKS_ALL, Assignment, LeaderState, Limits
from broker.replica.cluster_view import ClusterView
from metadata.control.configs import Changes, Resource, alter_configs
from metadata.control.partitions_count import NewPartitions, add_partitions, remove_partitions
from metadata.control.reassign import Wanted, alter_reassignments, progress
from metadata.control.topics import delete_topics
from metadata.controller import availability as module
from metadata.controller.availability import LEADERLESS, UNDER_MIN_ISR, Availability, register_availability, state_of
from metadata.controller.replay import Subscriber
from metadata.image import PartitionImage
from metadata.records import NO_LEADER, UNASSIGNED, ConfigScope, Record, Replica
from quorumlog.runtime.metrics import Metrics
from quorumlog.wire import rpcs
from quorumlog.wire.errors import KafkaCode
from tests.unit.metadata.builders import Cluster
from tests.unit.metadata.controller.test_controller import beat, new_topic, started
from tests.unit.metadata.fake_node import JumpingLoop, settle
from tests.unit.quorumlog.runtime.test_metrics import values

MIN_ISR = "min.insync.replicas"
CLUSTER_WIDE = Resource(ConfigScope.CLUSTER, "")


class Followed(Cluster):
    """A cluster whose batches are passed to the availability."""

    def __init__(self) -> None:
        super().__init__()
        self.subscribers: list[Subscriber] = []
        self.is_active = self.is_caught_up = True

    def apply(self, records: Sequence[Record]) -> None:
        before = self.image
        super().apply(records)
        for tell in self.subscribers:
            tell(before, self.image, tuple(records))

    def snapshot(self, records: Sequence[Record]) -> None:
        """Apply records that arrive as a snapshot."""
        before = self.image
        super().apply(records)
        for tell in self.subscribers:
            tell(before, self.image, None)

    def subscribe(self, tell: Subscriber) -> None:
        self.subscribers.append(tell)

    def follow(self) -> Availability:
        replay: Any = self
        return Availability(replay, lambda: self.is_active, lambda: self.is_caught_up)

    # Events

    def back(self, broker_id: int) -> None:
        assert self.register(broker_id, self.image.end_offset).outcome.ok
        self.beat(broker_id)

    def set_config(self, resource: Resource, value: str | None) -> None:
        self.apply(alter_configs(self.image, [Changes(resource, ((MIN_ISR, value),))]).records)


def run(test: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(test)


def slow(cluster: Cluster) -> dict[tuple[str, int], str]:
    """Return the unavailable partitions, computed in the obvious way."""
    found = {}
    for topic in cluster.image.topics.values():
        wanted = int(cluster.image.topic_config(topic.topic_id, MIN_ISR))
        for partition in topic.partitions:
            assert partition is not None
            settled = len(partition.replicas) - len(partition.adding)
            if partition.leader == NO_LEADER:
                found[topic.name, partition.index] = LEADERLESS
            elif len(partition.isr) < min(wanted, settled):
                found[topic.name, partition.index] = UNDER_MIN_ISR
    return found


@pytest.mark.parametrize("min_isr", [1, 2, 3])
@pytest.mark.parametrize("adding", [(), (4,), (3, 4)])
@pytest.mark.parametrize("isr", [(1,), (1, 2), (1, 4), (1, 3, 4), (1, 2, 3, 4)])
def test_a_partition_counts_as_under_min_isr_exactly_when_its_leader_refuses_writes(
    min_isr: int, adding: tuple[int, ...], isr: tuple[int, ...]
) -> None:
    replicas = tuple(Replica(each, UNASSIGNED) for each in (1, 2, 3, 4))
    partition = PartitionImage(0, 0, replicas, isr, adding=adding, leader=1)
    leader = LeaderState(
        1,
        Assignment(partition.replica_ids, isr, 1, 0, 0, adding),
        log_end=0,
        flushed_end=0,
        high_watermark=0,
        cluster=ClusterView(1),
        limits=Limits(lag_max_ms=1, min_isr=min_isr),
        now_ms=0,
    )
    refuses = leader.admits(ACKS_ALL) is KafkaCode.NOT_ENOUGH_REPLICAS
    assert (state_of(partition, min_isr) == UNDER_MIN_ISR) == refuses


def now(availability: Availability) -> dict[tuple[str, int], str]:
    shown = availability.unavailable()
    assert shown is not None
    return {(topic, int(index)): state for (topic, index, state), is_now in shown.items() if is_now}


def test_unavailable_partitions_are_counted_and_their_unavailable_seconds_accumulate() -> None:
    async def test() -> None:
        cluster = Followed()
        cluster.start(1, 2, 3)
        cluster.create("t", (1, 2), (2, 3), configs=((MIN_ISR, "2"),))
        followed = cluster.follow()
        assert (followed.counts(), followed.unavailable(), followed.seconds()) == (
            {LEADERLESS: 0, UNDER_MIN_ISR: 0}, {}, {},
        )  # fmt: skip
        cluster.fence(1)
        assert followed.counts() == {LEADERLESS: 0, UNDER_MIN_ISR: 1}
        await asyncio.sleep(5)
        cluster.fence(2)
        await asyncio.sleep(3)
        first, second = ("t", "0"), ("t", "1")
        assert followed.unavailable() == {
            (*first, LEADERLESS): 1, (*first, UNDER_MIN_ISR): 0, (*second, UNDER_MIN_ISR): 1,
        }  # fmt: skip
        assert followed.seconds() == {
            (*first, LEADERLESS): 3.0, (*first, UNDER_MIN_ISR): 5.0, (*second, UNDER_MIN_ISR): 3.0,
        }  # fmt: skip
        cluster.back(2)
        await asyncio.sleep(10)
        assert now(followed) == slow(cluster) == {("t", 0): UNDER_MIN_ISR, ("t", 1): UNDER_MIN_ISR}
        seconds = followed.seconds()
        assert seconds == {
            (*first, LEADERLESS): 3.0, (*first, UNDER_MIN_ISR): 15.0, (*second, UNDER_MIN_ISR): 13.0,
        }  # fmt: skip
        assert followed.counts() == {LEADERLESS: 0, UNDER_MIN_ISR: 2}

    run(test())


def test_only_an_active_and_caught_up_controller_reports_unavailable_partitions() -> None:
    async def test() -> None:
        cluster = Followed()
        cluster.is_caught_up = False
        cluster.start(1, 2)
        followed = cluster.follow()
        cluster.create("t", (1, 2), (2, 1))
        cluster.fence(1, 2)
        cluster.back(1)
        await asyncio.sleep(100)
        assert (followed.counts(), followed.unavailable(), followed.seconds()) == (None, None, None)
        cluster.is_caught_up = True
        assert now(followed) == slow(cluster)
        assert sum((followed.seconds() or {}).values()) == 0
        cluster.is_active = cluster.is_caught_up = False
        assert followed.counts() is None
        cluster.fence(1)
        await asyncio.sleep(7)
        cluster.is_active = True
        assert (followed.seconds() or {})["t", "0", LEADERLESS] == 7.0

    run(test())


def test_a_changed_min_isr_changes_the_partitions_that_count_as_under_min_isr() -> None:
    async def test() -> None:
        cluster = Followed()
        cluster.start(1, 2, 3)
        cluster.create("own", (1, 2), configs=((MIN_ISR, "1"),))
        cluster.apply(alter_configs(cluster.image, [Changes(CLUSTER_WIDE, ((MIN_ISR, "1"),))]).records)
        cluster.create("cluster", (1, 2))
        cluster.set_config(Resource(ConfigScope.TOPIC, "cluster"), None)
        followed = cluster.follow()
        cluster.fence(2)
        for resource in (Resource(ConfigScope.TOPIC, "own"), CLUSTER_WIDE):
            for value in ("2", "1", "2"):
                cluster.set_config(resource, value)
                assert now(followed) == slow(cluster)
        assert ("own", 0) in now(followed)

    run(test())


def test_a_deleted_topic_loses_its_series() -> None:
    async def test() -> None:
        cluster = Followed()
        cluster.start(1, 2)
        followed = cluster.follow()
        for name in ("gone", "fewer"):
            cluster.create(name, (1, 2), (1, 2), (1, 2), configs=((MIN_ISR, "2"),))
        cluster.fence(2)
        await asyncio.sleep(2)
        cluster.apply(remove_partitions(cluster.image, "fewer", 1, cluster.new_id).records)
        assert now(followed) == slow(cluster)
        cluster.apply(delete_topics(cluster.image, ["gone"], []).records)
        assert now(followed) == slow(cluster) == {("fewer", 0): UNDER_MIN_ISR}
        assert followed.seconds() == {("fewer", "0", UNDER_MIN_ISR): 2.0}  # the same topic, under another id
        cluster.fence(1)
        await asyncio.sleep(1)
        cluster.apply(delete_topics(cluster.image, ["fewer"], []).records)
        assert followed.seconds() == {}
        assert followed.counts() == {LEADERLESS: 0, UNDER_MIN_ISR: 0}

    run(test())


def test_a_snapshot_replaces_the_unavailable_partitions() -> None:
    async def test() -> None:
        cluster = Followed()
        cluster.start(1, 2)
        cluster.create("gone", (1, 2))
        cluster.create("kept", (1, 2))
        followed = cluster.follow()
        cluster.fence(1, 2)
        assert len(now(followed)) == 2
        cluster.snapshot(delete_topics(cluster.image, ["gone"], []).records)
        assert now(followed) == slow(cluster) == {("kept", 0): LEADERLESS}
        assert {topic for topic, _, _ in followed.seconds() or {}} == {"kept"}
        assert followed.counts() == {LEADERLESS: 1, UNDER_MIN_ISR: 0}

    run(test())


def test_the_number_of_series_is_limited_and_the_counts_include_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 4)

    async def test() -> None:
        cluster = Followed()
        cluster.start(1, 2)
        for number in range(20):
            cluster.create(f"t{number}", (1 if number % 2 else 2,))
        followed = cluster.follow()
        cluster.fence(1)
        await asyncio.sleep(5)
        cluster.fence(2)
        assert followed.counts() == {LEADERLESS: 20, UNDER_MIN_ISR: 0}
        assert len(followed.unavailable() or {}) == 4
        assert set((followed.seconds() or {}).values()) == {5.0}, (
            "the series of the longest unavailable partitions are kept"
        )
        await asyncio.sleep(1)
        cluster.back(2)
        assert len(followed.unavailable() or {}) == 4
        cluster.back(1)
        assert set((followed.seconds() or {}).values()) == {6.0}
        assert followed.counts() == {LEADERLESS: 0, UNDER_MIN_ISR: 0}

    run(test())


def test_availability_metrics_are_exported_with_state_topic_and_partition() -> None:
    async def test() -> None:
        cluster = Followed()
        cluster.start(1)
        cluster.create("t", (1,))
        metrics = Metrics()
        register_availability(metrics, cluster.follow())
        assert values(metrics) == {
            'quorumlog_controller_partitions_unavailable{state="leaderless"}': 0,
            'quorumlog_controller_partitions_unavailable{state="under_min_isr"}': 0,
        }
        cluster.fence(1)
        await asyncio.sleep(4)
        labels = '{partition="0",state="leaderless",topic="t"}'
        assert values(metrics) == {
            'quorumlog_controller_partitions_unavailable{state="leaderless"}': 1,
            'quorumlog_controller_partitions_unavailable{state="under_min_isr"}': 0,
            f"quorumlog_controller_partition_unavailable{labels}": 1,
            f"quorumlog_controller_partition_unavailable_seconds_total{labels}": 4,
        }
        cluster.is_active = False
        assert values(metrics) == {}

    run(test())


def test_no_counts_are_reported_before_all_partitions_were_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 1)

    async def test() -> None:
        cluster = Followed()
        cluster.start(1, 2)
        for name in ("a", "b", "c"):
            cluster.create(name, (1,))
        cluster.fence(1)
        followed = cluster.follow()
        assert followed.counts() is None
        cluster.back(1)  # partitions that are not examined yet are counted only if this batch is followed
        cluster.fence(1)
        assert followed.counts() is None
        await asyncio.sleep(1)
        assert followed.counts() == {LEADERLESS: 3, UNDER_MIN_ISR: 0}
        assert now(followed) == slow(cluster)

    run(test())


@pytest.mark.parametrize("piece", [module.PIECE, 1])
@pytest.mark.parametrize("seed", range(20))
def test_the_maintained_counts_equal_a_full_count(monkeypatch: pytest.MonkeyPatch, seed: int, piece: int) -> None:
    monkeypatch.setattr(module, "PIECE", piece)

    async def test() -> None:
        random, other = Random(seed), Random(seed)
        cluster = Followed()
        cluster.start(1, 2, 3, 4)
        followed = cluster.follow()
        names = ["a", "b", "c"]
        down: set[int] = set()
        kinds: set[str] = set()
        for _ in range(120):
            name = random.choice(names)
            exists = cluster.image.topic(name) is not None
            match random.randrange(9):
                case 0 if not exists and len(down) < 3:
                    rows = [tuple(random.sample((1, 2, 3, 4), 3)) for _ in range(random.randint(1, 4))]
                    cluster.create(name, *rows, configs=((MIN_ISR, str(random.randint(1, 3))),))
                case 1 if exists and random.random() < 0.3:
                    cluster.apply(delete_topics(cluster.image, [name], []).records)
                case 2 if exists:
                    topic = cluster.image.topic(name)
                    assert topic is not None
                    count = random.randint(1, len(topic.partitions))
                    cluster.apply(remove_partitions(cluster.image, name, count, cluster.new_id).records)
                case 3 if exists:
                    topic = cluster.image.topic(name)
                    assert topic is not None
                    more = NewPartitions(name, len(topic.partitions) + 1)
                    cluster.apply(add_partitions(cluster.image, [more]).records)
                case 4 if exists:
                    target = tuple(random.sample((1, 2, 3, 4), random.randint(1, 3)))
                    asked = [Wanted(name, 0, target if random.random() < 0.7 else ())]
                    cluster.apply(alter_reassignments(cluster.image, asked, replace=True).records)
                    cluster.execute(progress)
                case 5 if exists:
                    cluster.set_config(Resource(ConfigScope.TOPIC, name), random.choice(["1", "2", None]))
                case 6:
                    cluster.set_config(CLUSTER_WIDE, random.choice(["1", "2", None]))
                case 7 if len(down) < 4:
                    broker_id = random.choice(sorted({1, 2, 3, 4} - down))
                    down.add(broker_id)
                    cluster.fence(broker_id)
                case 8 if down:
                    broker_id = random.choice(sorted(down))
                    down.discard(broker_id)
                    cluster.back(broker_id)
            kinds.update(slow(cluster).values())
            if piece == 1 and other.random() < 0.5:
                await asyncio.sleep(module.PAUSE_S)  # the next change comes while pieces remain
                continue
            await asyncio.sleep(1)
            assert now(followed) == slow(cluster)
            assert sum((followed.counts() or {}).values()) == len(slow(cluster))
        assert UNDER_MIN_ISR in kinds, "the random changes bring some partition below min ISR"

    run(test())


def test_k14457_the_availability_metrics_show_only_committed_state() -> None:
    async def test() -> None:
        plane = await started(1)
        followed = Availability(plane.replay, lambda: plane.controller.active, lambda: True)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t"))
        plane.node.auto_commit = False
        fencing = plane.start(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_fence=True))
        await settle()
        assert plane.controller.pending is not None
        assert plane.controller.pending.brokers[1].fenced
        assert followed.counts() == {LEADERLESS: 0, UNDER_MIN_ISR: 0}
        plane.node.commit()
        assert followed.counts() == {LEADERLESS: 1, UNDER_MIN_ISR: 0}
        await fencing
        plane.node.lose()
        assert followed.counts() is None

    run(test())
