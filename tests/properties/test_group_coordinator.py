"""A consumer group through restarts of clients, lost answers and changes of the coordinator.

A model of the shell appends the records of each step, delivers answers when they are committed, and replaces the
coordinator by one that has replayed any prefix of the log that holds what is committed.  Clients use a correct
assignor.  The rules of the coordinator are checked after each step; at the end, everything works again, and the group
must become stable with each partition owned once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client as Origin
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.machine import Record, Step
from broker.core.coordinator.records import GroupKey, OffsetKey, read_group, read_key, read_offset, write_key
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.driver import Cluster, subscription
from tests.unit.broker.core.coordinator.replays import replay_log

GROUP = "orders"
GROUP_KEY = write_key(GroupKey(GROUP))
TOPICS = ("sales", "other")
PARTITIONS = 4
SESSION_MS = 10_000
REBALANCE_MS = 20_000
TICK_SLACK_MS = 2
LIMITS = g.GroupLimits(
    session_timeout_min_ms=1_000,
    initial_rebalance_delay_ms=1_000,
    batch_max_bytes=10_000,
    members_max=8,
    offsets_retention_ms=60_000,
    expiry_interval_ms=15_000,
)
RANGE, STICKY = "range", "sticky"


@dataclass
class Client:
    """A consumer.  call: its JoinGroup or SyncGroup that was not answered yet."""

    name: str
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    joined: g.JoinGroupResponse | None = None
    call: int | None = None
    is_stable: bool = False
    topics: tuple[str, ...] = ("sales",)
    protocols: tuple[str, ...] = (RANGE,)

    def ids(self) -> tuple[str, str, str | None, int]:
        return GROUP, self.member_id, self.instance_id, self.generation


@dataclass
class Sent:
    client: Client | None
    request: Any
    since_ms: int


@dataclass
class Held:
    """An answer that is delivered when the log is committed up to `end`."""

    end: int
    call: int
    response: Any


@dataclass
class Facts:
    """The answers to clients, and the promises that must hold.  owners: by incarnation, generation and partition."""

    owners: dict[tuple[int, int, int], str] = field(default_factory=dict)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)


Offsets = dict[tuple[str, int], int]
"""By topic and partition."""


def stored_groups(machine: GroupMachine) -> dict[str, bytes | None]:
    return {name: group.stored for name, group in machine._groups.items() if isinstance(group, Group)}


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.log: list[Record] = []
        self.ends = [0]
        self.committed = 0
        self.is_prompt = True
        self.held: list[Held] = []
        self.sent: dict[int, Sent] = {}
        self.facts = Facts()
        self.calls = 0
        self.last_offset = 0
        self.clients = [Client(name, name if name < "c" else None) for name in "abcde"]
        self.machine = self.loaded(self.log)

    def loaded(self, records: list[Record]) -> GroupMachine:
        machine = GroupMachine(LIMITS, Cluster(), Random(self.calls), lambda: self.now_ms)
        replay_log(machine, records)
        machine.loaded(self.now_ms)
        return machine

    # -- the shell

    def take(self, step: Step) -> None:
        self.log += step.records
        self.ends.append(len(self.log))
        for answer in step.answers:
            assert answer.call not in self.facts.answered, "answered twice"
            assert answer.call in self.sent, "answered although it was forgotten"
            self.facts.answered.add(answer.call)
            self.held.append(Held(len(self.log), answer.call, answer.response))
        self.machine.check()
        if self.is_prompt:
            self.commit_up_to(len(self.log))

    def send(self, request: Any, client: Client | None) -> int:
        self.calls += 1
        call = self.calls
        self.sent[call] = Sent(client, request, self.now_ms)
        self.take(self.machine.request(call, request, self.now_ms))
        return call

    def send_waiting(self, request: Any, client: Client) -> None:
        """Send a request whose answer may take long."""
        client.call = self.calls + 1
        self.send(request, client)

    def commit_up_to(self, end: int) -> None:
        self.committed = max(self.committed, end)
        while self.held and self.held[0].end <= self.committed:
            held = self.held.pop(0)
            sent = self.sent.pop(held.call)
            if sent.client is not None:
                self.deliver(sent.client, held, sent.request)

    def incarnation(self, end: int) -> int:
        """Count how often the group was deleted before an offset, because generations then begin anew."""
        return sum(record.key == GROUP_KEY and record.value is None for record in self.log[:end])

    # -- clients

    def deliver(self, client: Client, held: Held, request: Any) -> None:
        response = held.response
        if client.call == held.call:
            client.call = None
        is_fenced = getattr(response, "error", None) is KafkaCode.FENCED_INSTANCE_ID
        assert not (is_fenced and request.member_id and request.member_id == client.member_id), "the latest process"
        match response:
            case g.JoinGroupResponse():
                if response.error.name in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
                    client.member_id = ""
                elif response.error.name == "MEMBER_ID_REQUIRED":
                    client.member_id = response.member_id
                elif response.error.name == "NONE":
                    client.member_id, client.generation = response.member_id, response.generation
                    client.joined = response
                client.is_stable = False
            case g.SyncGroupResponse():
                if response.error.name == "NONE":
                    self.own(request, response.assignment, held.end)
                    client.is_stable = True
                else:
                    client.joined = None
            case g.HeartbeatResponse():
                if response.error.name != "NONE":
                    client.is_stable, client.joined = False, None
                if response.error.name in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
                    client.member_id = ""
            case g.OffsetCommitResponse():
                (result,) = response.results
                if result.error.name == "NONE":
                    place, offset = (result.topic, result.partition), request.offsets[0].offset
                    self.facts.offsets[place] = max(offset, self.facts.offsets.get(place, 0))

    def own(self, request: g.SyncGroup, assignment: bytes, end: int) -> None:
        for partition in assignment:
            place = (self.incarnation(end), request.generation, partition)
            identity = request.instance_id or request.member_id  # a restarted static member keeps its partitions
            owner = self.facts.owners.setdefault(place, identity)
            assert owner == identity, f"{place} has two owners"

    def join(self, client: Client) -> None:
        protocols = tuple(g.MemberProtocol(each, subscription(*client.topics)) for each in client.protocols)
        origin = Origin(client.name, "/h")
        ids = (GROUP, client.member_id, client.instance_id, origin, "consumer", protocols, SESSION_MS, REBALANCE_MS)
        self.send_waiting(g.JoinGroup(*ids), client)

    def sync(self, client: Client) -> None:
        joined = client.joined
        assignments: tuple[g.MemberAssignment, ...] = ()
        if joined is not None and joined.leader == joined.member_id and not joined.skip_assignment:
            names = [each.member_id for each in joined.members]
            shares = {name: bytes(range(index, PARTITIONS, len(names))) for index, name in enumerate(names)}
            assignments = tuple(g.MemberAssignment(name, share) for name, share in shares.items())
        self.send_waiting(g.SyncGroup(*client.ids(), assignments=assignments), client)

    def forget(self, client: Client) -> None:
        """Disconnect the client.  Its outstanding request is dropped, or its answer is lost."""
        if client.call is not None:
            sent = self.sent[client.call]
            if client.call in self.facts.answered:
                sent.client = None  # the answer is lost on its way
            else:
                del self.sent[client.call]
            self.take(self.machine.forget(client.call, self.now_ms))
            client.call = None

    # -- what happens

    @rule(index=st.integers(0, 4), sticky=st.booleans(), other=st.booleans())
    def a_client_joins(self, index: int, sticky: bool, other: bool) -> None:
        client = self.clients[index]
        if client.call is None:
            client.protocols = (STICKY, RANGE) if sticky else (RANGE,)
            client.topics = ("sales", "other") if other else ("sales",)
            self.join(client)

    @rule(index=st.integers(0, 4))
    def a_client_goes_on(self, index: int) -> None:
        client = self.clients[index]
        if client.call is None:
            if client.joined is None:
                self.join(client)
            elif client.is_stable:
                self.send(g.Heartbeat(*client.ids()), client)
            else:
                self.sync(client)

    @rule(rounds=st.integers(1, 16), pace_ms=st.sampled_from([1_000, 6_000]), without=st.sets(st.integers(0, 4)))
    def most_clients_go_on(self, rounds: int, pace_ms: int, without: set[int]) -> None:
        for _ in range(rounds):
            for index in sorted(set(range(5)) - without):
                self.a_client_goes_on(index)
            self.time_passes(pace_ms)

    @rule(index=st.integers(0, 4))
    def a_client_sends_sync(self, index: int) -> None:
        if self.clients[index].call is None:
            self.sync(self.clients[index])

    @rule(index=st.integers(0, 4), topic=st.sampled_from(TOPICS), partition=st.integers(0, PARTITIONS - 1))
    def a_client_commits(self, index: int, topic: str, partition: int) -> None:
        self.last_offset += 1
        offsets = (g.OffsetToCommit(topic, partition, self.last_offset),)
        self.send(g.OffsetCommit(*self.clients[index].ids(), offsets), self.clients[index])

    @rule(topic=st.sampled_from(TOPICS), retention_ms=st.sampled_from([-1, 10_000, 2**63 - 1]))
    def a_simple_consumer_commits(self, topic: str, retention_ms: int) -> None:
        self.last_offset += 1
        offsets = (g.OffsetToCommit(topic, 0, self.last_offset),)
        observer = Client("observer", None)  # whose answer counts, too
        self.send(g.OffsetCommit(GROUP, "", None, -1, offsets, retention_ms), observer)

    @rule(topic=st.sampled_from(TOPICS), partition=st.integers(0, PARTITIONS - 1))
    def an_administrator_deletes_an_offset(self, topic: str, partition: int) -> None:
        is_subscribed = topic in self.subscribed_topics()
        before = len(self.log)
        self.send(g.OffsetDelete(GROUP, (g.TopicPartitions(topic, (partition,)),)), None)
        assert not (is_subscribed and len(self.log) > before), "an offset of a subscribed topic was deleted"

    @rule(topic=st.sampled_from(TOPICS))
    def a_topic_is_deleted(self, topic: str) -> None:
        self.take(self.machine.topics_deleted([topic], self.now_ms))

    @rule(index=st.integers(0, 4))
    def a_client_leaves(self, index: int) -> None:
        client = self.clients[index]
        self.send(g.LeaveGroup(GROUP, (g.LeavingMember(client.member_id, client.instance_id),)), None)

    @rule(index=st.integers(0, 4))
    def a_client_hangs_up(self, index: int) -> None:
        self.forget(self.clients[index])

    @rule(index=st.integers(0, 4))
    def a_client_restarts(self, index: int) -> None:
        old = self.clients[index]
        self.forget(old)
        self.clients[index] = Client(old.name, old.instance_id)

    @rule()
    def an_administrator_deletes_the_group(self) -> None:
        self.send(g.DeleteGroups((GROUP,)), None)

    @rule(elapsed_ms=st.sampled_from([1, 500, 1_000, 5_000, SESSION_MS, REBALANCE_MS, 70_000]))
    def time_passes(self, elapsed_ms: int) -> None:
        end_ms = self.now_ms + elapsed_ms
        while (deadline_ms := self.machine.deadline_ms) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            step = self.machine.tick(self.now_ms)
            self.check_expired(step)
            self.take(step)
            after_ms = self.machine.deadline_ms
            assert after_ms is not None
            assert after_ms > self.now_ms, "a tick moves the deadline"
        self.now_ms = end_ms
        for call, sent in self.sent.items():
            waited_ms = self.now_ms - sent.since_ms
            assert call in self.facts.answered or waited_ms <= REBALANCE_MS + TICK_SLACK_MS, f"{sent} waits too long"

    @rule(is_prompt=st.booleans(), where=st.floats(0, 1))
    def the_log_is_committed(self, is_prompt: bool, where: float) -> None:
        self.is_prompt = is_prompt
        behind = [end for end in self.ends if end >= self.committed]
        self.commit_up_to(len(self.log) if is_prompt else behind[int(where * (len(behind) - 1))])

    @rule(where=st.floats(0, 1))
    def the_coordinator_changes(self, where: float) -> None:
        kept = [end for end in self.ends if end >= self.committed]
        end = kept[int(where * (len(kept) - 1))]
        self.log = self.log[:end]
        self.ends = [0, end]
        self.held.clear()
        self.sent.clear()
        for client in self.clients:
            client.call = None
        self.machine = self.loaded(self.log)
        self.commit_up_to(end)

    # -- what must hold

    def fetched(self, machine: GroupMachine) -> Offsets:
        step = machine.request(0, g.OffsetFetch((g.GroupToFetch(GROUP, None),)), self.now_ms)
        (group,) = step.answers[0].response.groups
        return {(each.topic, each.partition): each.offset for each in group.offsets}

    def described(self, machine: GroupMachine) -> g.GroupDescription:
        step = machine.request(0, g.DescribeGroups((GROUP,)), self.now_ms)
        (group,) = step.answers[0].response.groups
        assert isinstance(group, g.GroupDescription)
        return group

    def subscribed_topics(self) -> set[str]:
        """Return the topics of the members of a stable group."""
        members = self.described(self.machine).members
        return {topic for topic in TOPICS if any(topic.encode() in member.metadata for member in members)}

    def check_expired(self, step: Step) -> None:
        """Judge the offsets that a tick deleted, with the rules for expiry one by one."""
        state, subscribed = self.described(self.machine).state, self.subscribed_topics()
        for record in step.records:
            key = read_key(record.key)
            if not isinstance(key, OffsetKey) or record.value is not None:
                continue
            assert state in ("Empty", "Stable", "Dead"), "offsets expire during a rebalance"
            assert not (state == "Stable" and key.topic in subscribed), "an offset of a subscribed topic expired"
            value = next(each.value for each in reversed(self.log) if each.key == record.key)
            assert value is not None
            committed = read_offset(value)
            if committed.expire_ms >= 0:
                assert self.now_ms >= committed.expire_ms
            else:
                assert self.now_ms - committed.commit_ms >= LIMITS.offsets_retention_ms
                groups = [each.value for each in self.log + list(step.records) if each.key == GROUP_KEY and each.value]
                if state != "Stable" and groups:
                    emptied_ms = read_group(groups[-1]).state_ms
                    assert self.now_ms - emptied_ms >= LIMITS.offsets_retention_ms or self.was_deleted()

    def was_deleted(self) -> bool:
        """Return whether the last record of the group is a tombstone, so that only simple consumers use it."""
        return next(each.value for each in reversed(self.log) if each.key == GROUP_KEY) is None

    @invariant()
    def a_committed_prefix_has_what_clients_were_told(self) -> None:
        """Each answered commit, or a newer one, or a deletion that came later."""
        prefix = self.log[: self.committed]
        offsets = self.fetched(self.loaded(prefix))
        for (topic, partition), offset in self.facts.offsets.items():
            key = write_key(OffsetKey(GROUP, topic, partition))
            values = [each.value for each in prefix if each.key == key]
            told = next(index for index, value in enumerate(values) if value and read_offset(value).offset == offset)
            if None not in values[told:]:
                assert offsets.get((topic, partition), -1) >= offset, f"the commit of {offset} is lost"

    @invariant()
    def offsets_are_what_the_log_says(self) -> None:
        twin: Offsets = {}
        for record in self.log:
            key = read_key(record.key)
            if isinstance(key, OffsetKey):
                twin.pop((key.topic, key.partition), None)
                if record.value is not None:
                    twin[key.topic, key.partition] = read_offset(record.value).offset
        assert self.fetched(self.machine) == twin

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        after = self.loaded(self.log)
        assert self.fetched(after) == self.fetched(self.machine)
        stored = {name: value for name, value in stored_groups(self.machine).items() if value is not None}
        assert stored_groups(after) == stored
        now = self.described(self.machine)
        if now.state == "Stable" or (now.state == "Empty" and stored):
            assert self.described(after) == now

    def teardown(self) -> None:
        """Let everything work again; then the group becomes stable."""
        self.is_prompt = True
        self.commit_up_to(len(self.log))
        for client in self.clients:
            self.forget(client)
            client.joined, client.is_stable = None, False
            client.protocols, client.topics = (RANGE,), ("sales",)
        for _ in range(100):
            self.most_clients_go_on(1, 1_000, set())
            if all(client.is_stable for client in self.clients):
                break
        described = self.described(self.machine)
        assert described.state == "Stable", described
        assert len({client.generation for client in self.clients}) == 1, self.clients
        assignments = [member.assignment for member in described.members]
        assert sorted(b"".join(assignments)) == list(range(PARTITIONS)), assignments


TestGroups = Groups.TestCase
TestGroups.settings = settings(
    max_examples=80,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine must not fail it
)
