"""A coordinator of groups with a log, clocks and clients, so that tests read as sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from random import Random
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.requests import ConsumerLimits, Topic
from broker.core.coordinator.fields import int16, int32, string
from broker.core.coordinator.group_machine import NO_CONFIGS, GroupMachine
from broker.core.coordinator.group_requests import GroupRequest
from broker.core.coordinator.machine import Machine, Record, Step
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.replays import replay_log

GROUP = "orders"
WALL_MS = 1_700_000_000_000
LIMITS = g.GroupLimits(
    session_timeout_min_ms=1_000,
    session_timeout_max_ms=60_000,
    members_max=100,
    offsets_retention_ms=86_400_000,
    consumer=ConsumerLimits(assignment_interval_ms=0),
)
DELAY_MS = LIMITS.initial_rebalance_delay_ms
SESSION_MS = 10_000
REBALANCE_MS = 30_000


def subscription(*topics: str) -> bytes:
    """The metadata of a consumer that subscribes to topics."""
    return int16(0) + int32(len(topics)) + b"".join(map(string, topics)) + int32(-1)


class Cluster:
    """Every partition below 10 of a topic exists, unless the topic is missing.

    partitions: the topics that consumer groups see, each with its number of partitions.
    ids: the ids of topics that were created again or renewed; the others have `topic_id`.
    """

    def __init__(self, **partitions: int) -> None:
        self.missing: set[str] = set()
        self.partitions = partitions
        self.version = 0
        self.ids: dict[str, UUID] = {}
        self.origins: dict[str, UUID] = {}

    def id_of(self, name: str) -> UUID:
        return self.ids.get(name, topic_id(name))

    def renew(self, name: str) -> UUID:
        """Give a topic another id, and return it."""
        self.version += 1
        self.ids[name] = topic_id(f"{name} {self.version}")
        return self.ids[name]

    def recreate(self, name: str) -> UUID:
        """Delete a topic and create it again, and return its id.  The groups do not learn of it."""
        self.origins[name] = self.renew(name)
        return self.ids[name]

    def origin(self, topic: str) -> UUID | None:
        return None if topic in self.missing else self.origins.get(topic, topic_id(topic))

    def has_partition(self, topic: str, partition: int) -> bool:
        return topic not in self.missing and 0 <= partition < 10

    def may_commit(self, topic: str, partition: int) -> bool:
        return self.has_partition(topic, partition)

    def topic(self, name: str) -> Topic | None:
        return Topic(self.id_of(name), self.partitions[name]) if name in self.partitions else None

    def topic_name(self, topic: UUID) -> str | None:
        return next((name for name in self.partitions if self.id_of(name) == topic), None)

    def matching(self, regex: str) -> list[str] | None:
        try:
            return sorted(name for name in self.partitions if re.fullmatch(regex, name))
        except re.error:
            return None


def topic_id(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)


class Coordinator:
    """A machine whose records are all committed at once.  Each call is answered at most once."""

    def __init__(
        self,
        limits: g.GroupLimits = LIMITS,
        records: Iterable[Record] = (),
        seed: int = 7,
        cluster: Cluster | None = None,
        configs: g.GroupConfigs = NO_CONFIGS,
        wall_ms: int = WALL_MS,
    ) -> None:
        self.now_ms = 5_000
        self.wall_ms = wall_ms
        self.jump_ms = 0
        """The error of the wall clock, which expiry does not follow."""
        self.log: list[Record] = list(records)
        self.answers: dict[int, Any] = {}
        self.notes: list[str] = []
        self.cluster = cluster or Cluster()
        wall = lambda: self.wall_ms + self.jump_ms  # noqa: E731
        self.machine = GroupMachine(limits, self.cluster, Random(seed), wall, configs, lambda: self.wall_ms)
        self._as_machine: Machine[GroupRequest, g.GroupLimits] = self.machine
        self._calls = 0
        replay_log(self._as_machine, self.log)
        self.take(self._as_machine.loaded(self.now_ms))

    def take(self, step: Step) -> Step:
        self.log += step.records
        for answer in step.answers:
            assert answer.call not in self.answers, "answered twice"
            self.answers[answer.call] = answer.response
        self.notes += step.notes
        self.machine.check()
        return step

    def send(self, request: GroupRequest) -> int:
        """Return the number of the call."""
        self._calls += 1
        self.take(self._as_machine.request(self._calls, request, self.now_ms))
        return self._calls

    def ask(self, request: GroupRequest) -> Any:
        """Return the answer, which must be available immediately."""
        return self.answers[self.send(request)]

    def waits(self, call: int) -> bool:
        return call not in self.answers

    def hang_up(self, call: int) -> None:
        self.take(self._as_machine.forget(call, self.now_ms))

    def delete_topics(self, topics: Collection[str]) -> Step:
        return self.take(self.machine.topics_deleted(topics, self.now_ms))

    def change_topics(self, **partitions: int) -> None:
        """Change the numbers of partitions of topics; 0 deletes a topic.  The groups learn of it."""
        for name, count in partitions.items():
            self.cluster.partitions[name] = count
            if not count:
                del self.cluster.partitions[name]
        self.cluster.version += 1
        self.take(self.machine.topics_changed(sorted(partitions), self.now_ms))

    def pass_time(self, elapsed_ms: int) -> None:
        """Let time pass, with a tick at each deadline."""
        end_ms = self.now_ms + elapsed_ms
        while (deadline_ms := self._as_machine.deadline_ms) is not None and deadline_ms <= end_ms:
            self.wall_ms += max(deadline_ms - self.now_ms, 0)
            self.now_ms = max(deadline_ms, self.now_ms)
            self.take(self._as_machine.tick(self.now_ms))
            after_ms = self._as_machine.deadline_ms
            assert after_ms is not None
            assert after_ms > self.now_ms
        self.wall_ms += end_ms - self.now_ms
        self.now_ms = end_ms

    def reload(self, limits: g.GroupLimits = LIMITS) -> Coordinator:
        """Return the coordinator that takes over after a failure of this one."""
        return Coordinator(limits, self.log, seed=8, cluster=self.cluster, wall_ms=self.wall_ms)

    # -- requests of administrators

    def describe(self, group: str = GROUP) -> g.GroupDescription:
        (description,) = self.ask(g.DescribeGroups((group,))).groups
        assert isinstance(description, g.GroupDescription)
        return description

    def state(self, group: str = GROUP) -> str:
        return self.describe(group).state

    def commit(self, *offsets: g.OffsetToCommit, group: str = GROUP, retention_ms: int = g.NO_RETENTION) -> list[str]:
        """Commit as a simple consumer; return the names of the errors."""
        response = self.ask(g.OffsetCommit(group, "", None, g.NO_GENERATION, offsets, retention_ms))
        return [result.error.name for result in response.results]

    def offsets(self, group: str = GROUP) -> dict[tuple[str, int], int]:
        (fetched,) = self.ask(g.OffsetFetch((g.GroupToFetch(group, None),))).groups
        return {(each.topic, each.partition): each.offset for each in fetched.offsets}

    def delete(self, *groups: str) -> list[str]:
        return [each.error.name for each in self.ask(g.DeleteGroups(groups)).groups]

    # -- members

    def stable(self, *members: Member) -> None:
        """Let members join one after the other, until all have their assignments."""
        calls = [member.send_join() for member in members]
        self.pass_time(DELAY_MS * (len(members) + 1))
        for member, call in zip(members, calls, strict=True):
            member.take_join(call)
            assert member.joined.error.name == "NONE", member.joined
        for member in members:
            if not member.leads:
                member.send_sync()
        for member in members:
            if member.leads:
                assert member.sync().error.name == "NONE"
        assert self.state(members[0].group) == "Stable"


class Member:
    """A client of a group.  It remembers the answer to its last JoinGroup."""

    def __init__(
        self,
        coordinator: Coordinator,
        client_id: str,
        topics: tuple[str, ...] = ("sales",),
        instance_id: str | None = None,
        group: str = GROUP,
    ) -> None:
        self.coordinator = coordinator
        self.client_id = client_id
        self.instance_id = instance_id
        self.group = group
        self.protocol_type = "consumer"
        self.protocols: tuple[g.MemberProtocol, ...] = (g.MemberProtocol("range", subscription(*topics)),)
        self.session_timeout_ms = SESSION_MS
        self.rebalance_timeout_ms = REBALANCE_MS
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.joined = g.JoinGroupResponse(KafkaCode.NONE, "")

    def send_join(self, reason: str = "", needs_member_id: bool = True, can_skip_assignment: bool = True) -> int:
        """Send JoinGroup, a second time if a member id is required; return the number of the last call."""
        call = self.coordinator.send(
            g.JoinGroup(
                self.group,
                self.member_id,
                self.instance_id,
                Client(self.client_id, "/127.0.0.1"),
                self.protocol_type,
                self.protocols,
                self.session_timeout_ms,
                self.rebalance_timeout_ms,
                needs_member_id,
                can_skip_assignment,
                reason,
            )
        )
        answer = self.coordinator.answers.get(call)
        if answer is not None and answer.error.name == "MEMBER_ID_REQUIRED":
            self.member_id = answer.member_id
            return self.send_join(reason)
        return call

    def take_join(self, call: int) -> g.JoinGroupResponse:
        """Return the answer to a JoinGroup, which must have arrived."""
        joined = self.coordinator.answers[call]
        assert isinstance(joined, g.JoinGroupResponse)
        self.joined = joined
        self.leads = joined.leader == joined.member_id
        if joined.error.name == "NONE":
            self.member_id, self.generation = joined.member_id, joined.generation
        return joined

    def join(self, reason: str = "") -> g.JoinGroupResponse:
        """Join; the answer must be available immediately."""
        return self.take_join(self.send_join(reason))

    def join_error(self) -> str:
        return self.join().error.name

    def send_sync(self) -> int:
        """Send SyncGroup.  As its assignment, each member gets the part of its member id before the first hyphen."""
        names = [each.member_id for each in self.joined.members] if self.leads else []
        assignments = tuple(g.MemberAssignment(name, name.partition("-")[0].encode()) for name in names)
        return self.coordinator.send(
            g.SyncGroup(self.group, self.member_id, self.instance_id, self.generation, assignments=assignments)
        )

    def sync(self) -> g.SyncGroupResponse:
        response = self.coordinator.answers[self.send_sync()]
        assert isinstance(response, g.SyncGroupResponse)
        return response

    def heartbeat(self) -> str:
        request = g.Heartbeat(self.group, self.member_id, self.instance_id, self.generation)
        error: KafkaCode = self.coordinator.ask(request).error
        return error.name

    def leave(self, reason: str = "") -> str:
        left = g.LeavingMember(self.member_id, self.instance_id, reason)
        (result,) = self.coordinator.ask(g.LeaveGroup(self.group, (left,))).members
        assert isinstance(result, g.LeftMember)
        return result.error.name

    def commit(self, offset: int, topic: str = "sales", partition: int = 0) -> str:
        offsets = (g.OffsetToCommit(topic, partition, offset),)
        request = g.OffsetCommit(self.group, self.member_id, self.instance_id, self.generation, offsets)
        (result,) = self.coordinator.ask(request).results
        assert isinstance(result, g.PartitionResult)
        return result.error.name
