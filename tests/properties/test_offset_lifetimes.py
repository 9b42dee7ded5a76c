"""Committed offsets through transactions, expiry, topics that are created again, and changes of the coordinator.

A slow twin keeps every commit in the order of the log.  The offset of a partition is that of the newest commit that
counts: one outside transactions, or one of a committed transaction.  It is missing if it was committed for an earlier
topic of the same name.  It may be missing once it is older than the retention, unless an open transaction has an offset
for the partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.transactions import Marker, ProducerKey
from tests.unit.broker.core.coordinator.driver import GROUP, LIMITS, Cluster, Coordinator

RETENTION_MS = 10_000
SHORT = replace(LIMITS, offsets_retention_ms=RETENTION_MS, expiry_interval_ms=1_000)
PRODUCERS = (ProducerKey(7, 0), ProducerKey(8, 0))
PARTITIONS = (0, 1)
TIMES_MS = st.sampled_from([1, 6_000, RETENTION_MS])


class State(Enum):
    PENDING = auto()
    COUNTS = auto()
    DROPPED = auto()


@dataclass
class Commit:
    partition: int
    offset: int
    topic: int
    wall_ms: int
    producer: int | None
    state: State


class Offsets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(SHORT, cluster=Cluster(sales=2))
        self.commits: list[Commit] = []
        self.topic = 0

    # -- what happens

    @rule(partition=st.sampled_from(PARTITIONS), producer=st.sampled_from([None, *PRODUCERS]))
    def a_client_commits(self, partition: int, producer: ProducerKey | None) -> None:
        offset = len(self.commits)
        wanted = g.OffsetCommit(GROUP, "", None, g.NO_GENERATION, (g.OffsetToCommit("sales", partition, offset),))
        request: g.GroupRequest = wanted if producer is None else g.TxnOffsetCommit(wanted, producer)
        (result,) = self.coordinator.ask(request).results
        assert result.error.name == "NONE", result
        of, state = (None, State.COUNTS) if producer is None else (producer.producer_id, State.PENDING)
        self.commits.append(Commit(partition, offset, self.topic, self.coordinator.wall_ms, of, state))

    @rule(producer=st.sampled_from(PRODUCERS), is_commit=st.booleans())
    def a_transaction_ends(self, producer: ProducerKey, is_commit: bool) -> None:
        self.coordinator.ask(g.EndOffsetTransaction(Marker(producer, is_commit, 0)))
        for each in self.commits:
            if each.state is State.PENDING and each.producer == producer.producer_id:
                each.state = State.COUNTS if is_commit else State.DROPPED

    @rule()
    def the_topic_is_created_again_while_nobody_coordinates(self) -> None:
        self.coordinator.cluster.recreate("sales")
        self.topic += 1
        self.the_coordinator_changes()

    @rule()
    def the_topic_continues_under_another_id(self) -> None:
        self.coordinator.cluster.renew("sales")

    @rule()
    def the_coordinator_changes(self) -> None:
        self.coordinator = self.coordinator.reload(SHORT)

    @rule(elapsed_ms=TIMES_MS)
    def time_passes(self, elapsed_ms: int) -> None:
        self.coordinator.pass_time(elapsed_ms)

    @rule(producer=st.sampled_from(PRODUCERS), waits_ms=st.tuples(TIMES_MS, TIMES_MS), is_new_topic=st.booleans())
    def a_transaction_replaces_an_offset(
        self, producer: ProducerKey, waits_ms: tuple[int, int], is_new_topic: bool
    ) -> None:
        """Single steps would rarely form this sequence."""
        self.a_client_commits(0, None)
        self.time_passes(waits_ms[0])
        if is_new_topic:
            self.the_topic_is_created_again_while_nobody_coordinates()
        self.a_client_commits(0, producer)
        self.time_passes(waits_ms[1])
        self.a_transaction_ends(producer, True)

    # -- what must hold

    @invariant()
    def the_newest_commit_that_counts_is_the_offset(self) -> None:
        found = self.coordinator.offsets()
        for partition in PARTITIONS:
            of = [each for each in self.commits if each.partition == partition]
            counting = [each for each in of if each.state is State.COUNTS]
            last = counting[-1] if counting else None
            offset = found.get(("sales", partition))
            if last is None or last.topic != self.topic:
                assert offset is None, (partition, offset, last)
            elif offset is None:
                assert self.coordinator.wall_ms - last.wall_ms >= RETENTION_MS, f"{last} is missing"
                for each in counting:
                    each.state = State.DROPPED
            else:
                assert offset == last.offset, (offset, last)

    @invariant()
    def the_log_gives_the_same_offsets(self) -> None:
        assert self.coordinator.reload(SHORT).offsets() == self.coordinator.offsets()

    def teardown(self) -> None:
        """End all transactions: nothing of earlier topics stays."""
        for producer in PRODUCERS:
            self.a_transaction_ends(producer, True)
        self.time_passes(1)
        self.the_newest_commit_that_counts_is_the_offset()
        assert self.coordinator.machine._offsets.count == len(self.coordinator.offsets())


TestOffsets = Offsets.TestCase
TestOffsets.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine must not fail it
)
