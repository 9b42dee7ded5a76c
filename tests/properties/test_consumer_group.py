"""A group of the newer protocol through lost answers, restarts, changes of topics, and changes of the coordinator.

A model of the shell commits every step, or loses the last ones with the coordinator.  Clients obey the protocol: they
use only partitions that they were assigned, and report them.  A slow twin looks at the clients themselves, not at the
coordinator: a client owns a partition from the answer that gives it until it stops, or until a request without it was
answered.  No partition ever has two owners, epochs never go back, and the log gives the same group.  A group with
members gets at most one target per interval.  At the end, everything works again, and each partition is owned once.  No
partition could move to a member that has two fewer.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client as Origin
from broker.core.coordinator.consumer.partitions import Partitions, each
from broker.core.coordinator.consumer.records import Kind, read_key
from broker.core.coordinator.consumer.requests import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    ConsumerLimits,
    DescribeConsumerGroups,
)
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.machine import Record, Step
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.driver import GROUP, Cluster, topic_id
from tests.unit.broker.core.coordinator.replays import replay_log

TOPICS = ("sales", "other")
REFUSED = ("UNRELEASED_INSTANCE_ID", "FENCED_INSTANCE_ID", "COORDINATOR_NOT_AVAILABLE", "GROUP_MAX_SIZE_REACHED")
"""Errors after which a process does not use its partitions any more, and tries again later."""

SESSION_MS = 10_000
REBALANCE_MS = 20_000


class Client:
    """A process.  owned: the partitions that it uses; last_ms: its last answer; must_tell: an answer was lost."""

    def __init__(self, name: str, number: int, instance_id: str | None, topics: tuple[str, ...]) -> None:
        self.name = name
        self.member_id = f"{name}-{number}"
        self.instance_id = instance_id
        self.topics = topics
        self.epoch = 0
        self.owned: Partitions = {}
        self.last_ms = 0
        self.is_in = False
        self.must_tell = False


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.number = 0
        self.log: list[Record] = []
        self.ends: list[int] = []
        """Where the batches since the last change of the coordinator end."""
        self.cluster = Cluster(sales=4, other=3)
        self.clients = [self.client(index) for index in range(5)]
        self.epochs: Counter[str] = Counter()
        self.target_ms: int | None = None
        """When the last target was computed; None if the group was empty, or the coordinator changed, since then."""
        self.set_limits(1_000)

    @initialize(interval_ms=st.sampled_from([0, 300, 1_000, 4_000]))
    def set_limits(self, interval_ms: int) -> None:
        consumer = ConsumerLimits(session_timeout_ms=SESSION_MS, assignment_interval_ms=interval_ms, members_max=6)
        self.limits = replace(g.GroupLimits(), consumer=consumer)
        self.machine = self.loaded(self.log)

    def client(self, index: int) -> Client:
        self.number += 1
        name = "abcde"[index]
        instance_id = name if index < 2 else None
        return Client(name, self.number, instance_id, ("sales",) if index % 2 else TOPICS)

    def loaded(self, records: list[Record]) -> GroupMachine:
        machine = GroupMachine(self.limits, self.cluster, Random(self.number), lambda: self.now_ms)
        replay_log(machine, records)
        self.log = list(records)
        self.ends.clear()
        self.target_ms = None
        self.take(machine.loaded(self.now_ms), machine)
        return machine

    def take(self, step: Step, machine: GroupMachine) -> Any:
        self.log += step.records
        self.ends.append(len(self.log))
        machine.check()
        self.check_interval(step, machine)
        return step.answers[0].response if step.answers else None

    def check_interval(self, step: Step, machine: GroupMachine) -> None:
        keys = [(read_key(record.key), record.value) for record in step.records]
        written = sum(key is not None and key.kind is Kind.TARGET and value is not None for key, value in keys)
        assert written <= 1, "two targets in one step"
        if written:
            has_members = bool(self.described(machine).members)
            if has_members and self.target_ms is not None:
                assert self.now_ms - self.target_ms >= self.limits.consumer.assignment_interval_ms, self.target_ms
            self.target_ms = self.now_ms if has_members else None  # a group that becomes empty gets its target at once

    def send(self, client: Client, is_lost: bool = False, **fields: Any) -> ConsumerHeartbeatResponse:
        self.number += 1
        request = ConsumerHeartbeat(
            **{
                "group": GROUP,
                "member_id": client.member_id,
                "epoch": client.epoch,
                "client": Origin(client.name, "/h"),
                "instance_id": client.instance_id,
                "owned": client.owned,
                **fields,
            }
        )
        answer = self.take(self.machine.request(self.number, request, self.now_ms), self.machine)
        assert isinstance(answer, ConsumerHeartbeatResponse)
        if is_lost:
            client.must_tell = True  # a client without an answer repeats all that it knows
        else:
            self.deliver(client, answer)
        return answer

    def deliver(self, client: Client, answer: ConsumerHeartbeatResponse) -> None:
        if answer.error is KafkaCode.NONE:
            client.must_tell = False
            client.last_ms = self.now_ms
            client.is_in = answer.epoch > 0
            assert answer.epoch <= 0 or answer.epoch >= client.epoch, "an epoch went back"
            client.epoch = answer.epoch
            if answer.assignment is not None:
                client.owned = answer.assignment
        elif answer.error.name in ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID", "GROUP_ID_NOT_FOUND"):
            client.is_in, client.owned, client.epoch = False, {}, 0
        elif answer.error.name in REFUSED:
            client.owned, client.is_in = {}, False
        else:
            raise AssertionError(answer)

    # -- clients

    @rule(index=st.integers(0, 4), is_lost=st.booleans())
    def a_client_goes_on(self, index: int, is_lost: bool) -> None:
        client = self.clients[index]
        if client.is_in and self.now_ms - client.last_ms > SESSION_MS:
            client.is_in, client.owned, client.epoch = False, {}, 0  # it knows that it was fenced
        if not client.is_in:
            client.epoch, client.owned = 0, {}
        full = {"topics": client.topics, "rebalance_timeout_ms": REBALANCE_MS}
        self.send(client, is_lost, **(full if client.must_tell or not client.is_in else {}))

    @rule(rounds=st.integers(1, 6), without=st.sets(st.integers(0, 4), max_size=3))
    def most_clients_go_on(self, rounds: int, without: set[int]) -> None:
        for _ in range(rounds):
            for index in sorted(set(range(5)) - without):
                self.a_client_goes_on(index, False)
            self.time_passes(1_000)

    @rule(index=st.integers(0, 4), both=st.booleans())
    def a_client_subscribes(self, index: int, both: bool) -> None:
        client = self.clients[index]
        client.topics = TOPICS if both else ("sales",)
        if client.is_in and self.now_ms - client.last_ms <= SESSION_MS:
            self.send(client, topics=client.topics, rebalance_timeout_ms=REBALANCE_MS)

    @rule(index=st.integers(0, 4), is_lost=st.booleans())
    def a_client_leaves(self, index: int, is_lost: bool) -> None:
        client = self.clients[index]
        client.owned = {}
        if client.is_in:
            self.send(client, is_lost, epoch=-1 if client.instance_id is None else -2, owned=None)
        self.clients[index] = self.client(index)

    @rule(index=st.integers(0, 4))
    def a_client_is_killed(self, index: int) -> None:
        self.clients[index] = self.client(index)

    # -- the rest of the world

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(0, 6))
    def a_topic_changes(self, topic: str, count: int) -> None:
        self.cluster.partitions[topic] = count
        if not count:
            del self.cluster.partitions[topic]
        self.take(self.machine.topics_changed([topic], self.now_ms), self.machine)

    @rule()
    def an_administrator_deletes_the_group(self) -> None:
        self.number += 1
        self.take(self.machine.request(self.number, g.DeleteGroups((GROUP,)), self.now_ms), self.machine)

    @rule(elapsed_ms=st.sampled_from([1, 1_000, 5_000, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, elapsed_ms: int) -> None:
        end_ms = self.now_ms + elapsed_ms
        while (deadline_ms := self.machine.deadline_ms) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.machine.tick(self.now_ms), self.machine)
        self.now_ms = end_ms

    @rule()
    def the_coordinator_changes(self) -> None:
        before = self.described(self.machine)
        self.machine = self.loaded(self.log)
        assert self.described(self.machine) == before

    @rule(places=st.tuples(*[st.floats(0, 1)] * 3))
    def a_replica_that_was_behind_takes_over(self, places: tuple[float, float, float]) -> None:
        """It lacks what was compacted meanwhile, and the tombstones up to the second place.

        So it may show members that have left, but not in place of others.
        """
        before = self.described(self.machine)
        batches = sorted({0, len(self.log), *(end for end in self.ends if end <= len(self.log))})
        begin, horizon, end = (batches[round(place * (len(batches) - 1))] for place in sorted(places))
        last = {record.key: position for position, record in enumerate(self.log)}
        kept = [
            record
            for position, record in enumerate(self.log)
            if not begin <= position < end
            or (last[record.key] == position and (record.value is not None or position >= horizon))
        ]
        self.machine = self.loaded(kept)
        after = self.described(self.machine)
        if horizon == begin:
            assert after == before
        if before.error is not KafkaCode.NONE:
            return
        assert (after.epoch, after.assignment_epoch) == (before.epoch, before.assignment_epoch)
        assert {member.member_id: member for member in before.members}.items() <= {
            member.member_id: member for member in after.members
        }.items()

    # -- what must hold

    def described(self, machine: GroupMachine) -> Any:
        return machine.request(0, DescribeConsumerGroups((GROUP,)), self.now_ms).answers[0].response.groups[0]

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        """A client whose session is over has stopped on its own, because it knows its session timeout."""
        owners: dict[Any, str] = {}
        for client in self.clients:
            if client.is_in and self.now_ms - client.last_ms < SESSION_MS:
                for place in each(client.owned):
                    assert place not in owners, f"{place} is owned by {owners[place]} and {client.name}"
                    owners[place] = client.name

    @rule()
    def the_log_gives_the_same_group(self) -> None:
        twin = GroupMachine(self.limits, self.cluster, Random(0), lambda: self.now_ms)
        replay_log(twin, self.log)
        twin.loaded(self.now_ms)
        assert self.described(twin) == self.described(self.machine)
        last = {record.key: position for position, record in enumerate(self.log)}
        compacted = GroupMachine(self.limits, self.cluster, Random(0), lambda: self.now_ms)
        replay_log(compacted, [record for position, record in enumerate(self.log) if last[record.key] == position])
        compacted.loaded(self.now_ms)
        assert self.described(compacted) == self.described(self.machine)

    def teardown(self) -> None:
        """Let everything work again; then each partition is owned once, by balanced members."""
        self.clients = [self.client(index) for index in range(5)]
        for topic in TOPICS:
            self.a_topic_changes(topic, 5)
        self.time_passes(2 * SESSION_MS)
        self.most_clients_go_on(16, set())
        self.the_log_gives_the_same_group()
        group = self.described(self.machine)
        assert group.state == "Stable", group
        assert {client.epoch for client in self.clients} == {group.assignment_epoch}
        owned = [place for client in self.clients for place in each(client.owned)]
        wanted = {(topic_id(topic), index) for topic in TOPICS for index in range(5)}
        assert len(owned) == len(set(owned)) == len(wanted)
        assert set(owned) == wanted
        for more in self.clients:
            for less in self.clients:
                if len(list(each(more.owned))) - len(list(each(less.owned))) >= 2:
                    could_move = {topic_id(topic) for topic in less.topics} & more.owned.keys()
                    assert not could_move, (more.name, more.owned, less.name, less.owned)


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine must not fail it
)


def test_a_replica_that_lacks_the_tombstone_of_a_target_keeps_a_member_that_has_rejoined() -> None:
    """The member was removed, and joined again under its id, with an empty target."""
    groups = Groups()
    groups.set_limits(0)
    groups.a_client_goes_on(index=0, is_lost=True)
    groups.time_passes(5_000)
    groups.a_client_subscribes(both=False, index=0)
    groups.a_topic_changes("sales", 0)
    groups.most_clients_go_on(rounds=5, without={0})
    groups.most_clients_go_on(rounds=1, without=set())
    member_id = groups.clients[0].member_id
    groups.a_replica_that_was_behind_takes_over((1.0, 1.0, 0.25))
    (kept,) = [each for each in groups.described(groups.machine).members if each.member_id == member_id]
    assert kept.target == ()
    groups.teardown()
