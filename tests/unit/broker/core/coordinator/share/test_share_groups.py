"""Share groups in the coordinator of groups: members, assignments, and states of share partitions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.requests import ConsumerHeartbeat, NamedPartitions, Topic
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.group_requests import (
    DeleteGroups,
    GroupLimits,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    ListGroups,
    MemberProtocol,
    OffsetCommit,
    OffsetToCommit,
)
from broker.core.coordinator.machine import Record, Step
from broker.core.coordinator.share.groups import assign, read_state_partitions, write_state_partitions
from broker.core.coordinator.share.requests import (
    DeleteShareStates,
    DescribeShareGroups,
    ForgetShareStates,
    InitializeShareStates,
    ListShareStates,
    NoteShareStates,
    ResetShareStates,
    ShareGroupLimits,
    ShareHeartbeat,
    ShareHeartbeatResponse,
)
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.replays import replay_log

CLIENT = Client("app", "/127.0.0.1")
ORDERS, EVENTS = UUID(int=1), UUID(int=2)
LIMITS = GroupLimits(share=ShareGroupLimits(members_max=3))
NONE = KafkaCode.NONE


class Image:
    """The topics of the image, which a test may change."""

    def __init__(self) -> None:
        self.topics = {"orders": Topic(ORDERS, 4), "events": Topic(EVENTS, 1)}
        self.version = 0

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def topic_name(self, topic_id: UUID) -> str | None:
        return next((name for name, topic in self.topics.items() if topic.topic_id == topic_id), None)

    def matching(self, regex: str) -> Sequence[str] | None:
        return None

    def has_partition(self, topic: str, partition: int) -> bool:
        return topic in self.topics

    may_commit = has_partition

    def origin(self, topic: str) -> UUID | None:
        return self.topics[topic].topic_id if topic in self.topics else None


class Driver:
    """A machine with its log.  effects: those that were ordered; `initialize` performs the last one."""

    def __init__(self) -> None:
        self.image = Image()
        self.now_ms = 0
        self.log: list[Record] = []
        self.effects: list[Any] = []
        self.machine = self._make()

    def _make(self) -> GroupMachine:
        machine = GroupMachine(LIMITS, self.image, Random(1), lambda: 1_000)
        replay_log(machine, {record.key: record for record in self.log}.values())
        self._take(machine.loaded(self.now_ms))
        return machine

    def fail_over(self) -> None:
        """Continue with a new machine that has replayed what compaction keeps."""
        self.machine = self._make()

    def _take(self, step: Step) -> list[Any]:
        self.log += step.records
        self.effects += step.effects
        return [answer.response for answer in step.answers]

    def ask(self, request: GroupRequest) -> Any:
        found = self._take(self.machine.request(1, request, self.now_ms))
        self.machine.check()
        assert len(found) == 1, found
        return found[0]

    def beat(self, member: str, epoch: int = 0, topics: tuple[str, ...] | None = None) -> ShareHeartbeatResponse:
        if epoch == 0 and topics is None:
            topics = ("orders",)
        found = self.ask(ShareHeartbeat("work", member, epoch, CLIENT, None, topics))
        assert isinstance(found, ShareHeartbeatResponse)
        return found

    def initialize(self) -> None:
        effect = self.effects.pop()
        assert isinstance(effect, InitializeShareStates)
        self._take(self.machine.share_initialized(effect.group, effect.partitions, self.now_ms))
        self.machine.check()

    def delete(self, *indexes: int) -> None:
        """Report that states of a deleted topic are deleted."""
        partitions = (NamedPartitions(ORDERS, "orders", indexes),)
        self._take(self.machine.share_deleted("work", partitions, self.now_ms))
        self.machine.check()

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        while self.machine.deadline_ms is not None and self.machine.deadline_ms <= self.now_ms:
            self._take(self.machine.tick(self.now_ms))
        self.machine.check()


@pytest.fixture
def driver() -> Driver:
    return Driver()


def joined(driver: Driver, *members: str) -> dict[str, int]:
    """Let members join, initialize the states, and return the epoch of each."""
    for member in members:
        assert driver.beat(member).error is NONE
    driver.initialize()
    return {member: driver.beat(member).epoch for member in members}


def test_partitions_are_assigned_only_after_their_states_are_initialized(driver: Driver) -> None:
    first = driver.beat("a")
    assert (first.error, first.epoch, first.assignment) == (NONE, 1, {})
    effect = driver.effects[-1]
    assert effect == InitializeShareStates("work", 1, (NamedPartitions(ORDERS, "orders", (0, 1, 2, 3)),))
    driver.initialize()
    second = driver.beat("a", 1)
    assert (second.epoch, second.assignment) == (2, {ORDERS: frozenset({0, 1, 2, 3})})
    third = driver.beat("a", 2)
    assert (third.error, third.epoch, third.assignment) == (NONE, 2, None)


def test_a_failed_initialization_is_repeated(driver: Driver) -> None:
    driver.beat("a")
    driver.beat("a", 1)
    assert len(driver.effects) == 1, "the first one is in progress"
    driver.wait(LIMITS.share.initialization_retry_ms)
    driver.beat("a", 1)
    assert len(driver.effects) == 2


def test_a_new_coordinator_initializes_states_that_its_predecessor_did_not_initialize(driver: Driver) -> None:
    driver.beat("a")
    driver.effects.clear()
    driver.fail_over()
    driver.beat("a", 1)
    driver.initialize()
    assert driver.beat("a", 1).assignment == {ORDERS: frozenset({0, 1, 2, 3})}


def test_a_member_that_missed_an_answer_gets_its_assignment_again(driver: Driver) -> None:
    epochs = joined(driver, "a")
    assert driver.beat("a", epochs["a"] - 1).assignment == {ORDERS: frozenset({0, 1, 2, 3})}
    assert driver.beat("a").assignment == {ORDERS: frozenset({0, 1, 2, 3})}


def test_members_survive_a_failover(driver: Driver) -> None:
    epochs = joined(driver, "a", "b")
    driver.fail_over()
    assert driver.beat("a", epochs["a"]).error is NONE
    described = driver.ask(DescribeShareGroups(("work",))).groups[0]
    assert [member.member_id for member in described.members] == ["a", "b"]
    assert [member.assignment[0].partitions for member in described.members] == [(0, 2), (1, 3)]


def test_members_without_heartbeats_are_removed(driver: Driver) -> None:
    epochs = joined(driver, "a", "b")
    driver.wait(30_000)
    driver.beat("a", epochs["a"])
    driver.wait(20_000)
    found = driver.beat("a", epochs["a"])
    assert found.assignment == {ORDERS: frozenset({0, 1, 2, 3})}
    assert driver.beat("b", epochs["b"]).error is KafkaCode.UNKNOWN_MEMBER_ID


def test_the_note_of_an_expiry_counts_the_members(driver: Driver) -> None:
    joined(driver, "a", "b")
    assert "the session of member 'a' and 1 other expired" in "".join(driver.machine.tick(45_000).notes)


def test_a_member_that_leaves_gives_its_partitions_to_the_others(driver: Driver) -> None:
    epochs = joined(driver, "a", "b")
    assert driver.beat("b", -1).epoch == -1
    assert driver.beat("a", epochs["a"]).assignment == {ORDERS: frozenset({0, 1, 2, 3})}


def test_a_changed_subscription_changes_the_assignment(driver: Driver) -> None:
    epochs = joined(driver, "a")
    driver.beat("a", epochs["a"], ("events",))
    driver.initialize()
    assert driver.beat("a", epochs["a"] + 1).assignment == {EVENTS: frozenset({0})}


def test_new_partitions_of_a_topic_are_initialized_and_assigned(driver: Driver) -> None:
    epochs = joined(driver, "a")
    driver.image.topics["orders"] = Topic(ORDERS, 5)
    driver.machine.topics_changed(["orders"], driver.now_ms)
    driver.beat("a", epochs["a"])
    assert driver.effects[-1].partitions == (NamedPartitions(ORDERS, "orders", (4,)),)
    driver.initialize()
    assert driver.beat("a", epochs["a"] + 1).assignment == {ORDERS: frozenset(range(5))}


@pytest.mark.parametrize("fails_over", [False, True])
def test_the_states_of_a_deleted_topic_are_deleted(driver: Driver, fails_over: bool) -> None:
    epoch = joined(driver, "a")["a"]
    del driver.image.topics["orders"]
    driver.machine.topics_changed(["orders"], driver.now_ms)
    deletion = DeleteShareStates("work", (NamedPartitions(ORDERS, "orders", (0, 1, 2, 3)),))
    found = driver.beat("a", epoch)
    assert (found.assignment, driver.effects) == ({}, [deletion])
    if fails_over:  # before the states were deleted
        driver.effects.clear()
        driver.fail_over()
    else:
        driver.beat("a", found.epoch)
        assert driver.effects == [deletion], "it is in progress"
        driver.wait(LIMITS.share.initialization_retry_ms)
        driver.effects.clear()
    driver.beat("a", found.epoch)
    assert driver.effects == [deletion]
    driver.delete(0, 1, 2)
    driver.wait(LIMITS.share.initialization_retry_ms)
    driver.beat("a", found.epoch)
    assert driver.effects.pop().partitions == (NamedPartitions(ORDERS, "orders", (3,)),)
    driver.delete(3)
    assert driver.ask(ListShareStates("work")).partitions == ()
    assert driver.machine._shares.groups["work"].verified == {}, "deleted topics do not accumulate"
    driver.wait(LIMITS.share.initialization_retry_ms)
    driver.beat("a", found.epoch)
    assert driver.effects == [deletion]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (ShareHeartbeat("", "m", 0, CLIENT, None, ("orders",)), KafkaCode.INVALID_REQUEST),
        (ShareHeartbeat("work", "", 0, CLIENT, None, ("orders",)), KafkaCode.INVALID_REQUEST),
        (ShareHeartbeat("work", "m", -2, CLIENT, None, ("orders",)), KafkaCode.INVALID_REQUEST),
        (ShareHeartbeat("work", "m", 0, CLIENT, None, ()), KafkaCode.INVALID_REQUEST),
        (ShareHeartbeat("work", "m", 0, CLIENT, "", ("orders",)), KafkaCode.INVALID_REQUEST),
        (ShareHeartbeat("work", "m", 0, CLIENT, None, ("x" * 2_000,)), KafkaCode.INVALID_REQUEST),
        (ShareHeartbeat("work", "m", 3, CLIENT, None, ("orders",)), KafkaCode.UNKNOWN_MEMBER_ID),
        (ShareHeartbeat("work", "m", -1, CLIENT), KafkaCode.UNKNOWN_MEMBER_ID),
        (ShareHeartbeat("other", "m", 3, CLIENT), KafkaCode.UNKNOWN_MEMBER_ID),
        (ShareHeartbeat("work", "a", 99, CLIENT), KafkaCode.FENCED_MEMBER_EPOCH),
        (ShareHeartbeat("work", "d", 0, CLIENT, None, ("orders",)), KafkaCode.GROUP_MAX_SIZE_REACHED),
    ],
)
def test_bad_heartbeats_change_nothing(driver: Driver, request_: ShareHeartbeat, error: KafkaCode) -> None:
    joined(driver, "a", "b", "c")
    before = len(driver.log)
    assert driver.ask(request_).error is error
    assert len(driver.log) == before


def test_a_name_belongs_to_one_kind_of_group(driver: Driver) -> None:
    joined(driver, "a")
    protocols = (MemberProtocol("range", b""),)
    join = JoinGroup("work", "", None, CLIENT, "consumer", protocols, 10_000, 10_000)
    assert driver.ask(join).error is KafkaCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.ask(Heartbeat("work", "a", None, 1)).error is KafkaCode.UNKNOWN_MEMBER_ID
    consumer = ConsumerHeartbeat("work", "m", 0, CLIENT, None, None, 1_000, ("orders",), owned={})
    assert driver.ask(consumer).error is KafkaCode.GROUP_ID_NOT_FOUND
    commit = OffsetCommit("work", "", None, -1, (OffsetToCommit("orders", 0, 5, -1, ""),))
    assert driver.ask(commit).results[0].error is KafkaCode.GROUP_ID_NOT_FOUND
    other = OffsetCommit("plain", "", None, -1, (OffsetToCommit("orders", 0, 5, -1, ""),))
    assert driver.ask(other).results[0].error is NONE
    taken = ShareHeartbeat("plain", "a", 0, CLIENT, None, ("orders",))
    assert driver.ask(taken).error is KafkaCode.GROUP_ID_NOT_FOUND


def test_share_groups_are_listed_with_their_type(driver: Driver) -> None:
    joined(driver, "a")
    listed = driver.ask(ListGroups(frozenset(), frozenset({"Share"}))).groups
    assert [(each.group, each.group_type, each.protocol_type, each.state) for each in listed] == [
        ("work", "share", "share", "Stable")
    ]
    assert driver.ask(ListGroups(frozenset(), frozenset({"classic"}))).groups == ()


def test_a_group_is_deleted_only_when_it_has_neither_members_nor_states(driver: Driver) -> None:
    joined(driver, "a")
    delete = DeleteGroups(("work",))
    assert driver.ask(delete).groups[0].error is KafkaCode.NON_EMPTY_GROUP
    assert driver.ask(ListShareStates("work", must_be_empty=True)).error is KafkaCode.NON_EMPTY_GROUP
    driver.beat("a", -1)
    assert driver.ask(delete).groups[0].error is KafkaCode.COORDINATOR_NOT_AVAILABLE
    states = driver.ask(ListShareStates("work", must_be_empty=True)).partitions
    assert driver.ask(ForgetShareStates("work", states)).error is NONE
    assert driver.ask(delete).groups[0].error is NONE
    driver.fail_over()
    assert driver.ask(DescribeShareGroups(("work",))).groups[0].error is KafkaCode.GROUP_ID_NOT_FOUND


def test_a_deleted_group_is_not_restored_from_a_log_without_most_of_its_tombstones(driver: Driver) -> None:
    """The replica was behind while others removed tombstones, so its log has only the last tombstone."""
    joined(driver, "a")
    left = list(driver.log)
    driver.beat("a", -1)
    driver.ask(ForgetShareStates("work", driver.ask(ListShareStates("work")).partitions))
    assert driver.ask(DeleteGroups(("work",))).groups[0].error is NONE
    driver.log = [*left, driver.log[-1]]
    driver.fail_over()
    assert driver.ask(ListGroups()).groups == ()
    assert set({record.key: record.value for record in driver.log}.values()) == {None}


def test_a_member_of_a_deleted_group_is_not_a_member_of_a_new_group_of_the_same_name(driver: Driver) -> None:
    """The log lacks the tombstones between the two groups."""
    joined(driver, "a", "b")
    successor = Driver()
    successor.beat("c")
    driver.log += successor.log
    driver.fail_over()
    described = driver.ask(DescribeShareGroups(("work",))).groups[0]
    assert [member.member_id for member in described.members] == ["c"]


def test_a_new_group_removes_apparent_members_of_a_deleted_group_at_their_session_timeout(driver: Driver) -> None:
    """The log lacks the tombstones, and the epoch of the successor is no longer below that of the deleted member."""
    joined(driver, "a", "b")
    left = list(driver.log)
    successor = Driver()
    joined(successor, "c")
    successor.beat("d")
    successor.beat("d", -1)
    driver.log = left + successor.log
    driver.fail_over()

    def members() -> list[str]:
        described = driver.ask(DescribeShareGroups(("work",))).groups[0]
        return [member.member_id for member in described.members]

    assert members() == ["a", "b", "c"]
    epoch = driver.ask(DescribeShareGroups(("work",))).groups[0].epoch
    for _ in range(2):
        driver.wait(LIMITS.share.session_timeout_ms // 2 + 1)
        epoch = driver.beat("c", epoch).epoch
    assert members() == ["c"]
    driver.fail_over()
    assert members() == ["c"], "their records are deleted"
    described = driver.ask(DescribeShareGroups(("work",))).groups[0]
    assert [index for topic in described.members[0].assignment for index in topic.partitions] == [0, 1, 2, 3]


def test_a_reset_begins_a_new_state_epoch(driver: Driver) -> None:
    epochs = joined(driver, "a")
    reset = ResetShareStates("work", (NamedPartitions(ORDERS, "orders", (0,)),))
    assert driver.ask(reset).error is KafkaCode.NON_EMPTY_GROUP
    driver.beat("a", -1)
    assert driver.ask(reset).epoch > epochs["a"]


def test_a_reset_creates_a_missing_group_whose_first_member_finds_its_states(driver: Driver) -> None:
    partitions = (NamedPartitions(ORDERS, "orders", (0, 1, 2, 3)),)
    found = driver.ask(ResetShareStates("work", partitions))
    assert (found.error, found.epoch, found.partitions) == (NONE, 1, partitions)
    assert driver.ask(NoteShareStates("work", partitions)).partitions == partitions
    driver.fail_over()
    assert driver.ask(DescribeShareGroups(("work",))).groups[0].state == "Empty"
    assert driver.ask(ListShareStates("work")).partitions == partitions
    assert driver.beat("a").assignment == {ORDERS: frozenset({0, 1, 2, 3})}


@pytest.mark.parametrize("fails_over", [False, True])
def test_the_first_member_initializes_states_again_after_an_interrupted_deletion(
    driver: Driver, fails_over: bool
) -> None:
    """The states were deleted, and the group has no record of that.  An initialization changes no existing state."""
    everything = (NamedPartitions(ORDERS, "orders", (0, 1, 2, 3)),)
    joined(driver, "a")
    driver.beat("a", -1)
    if fails_over:
        driver.fail_over()
    assert driver.ask(ListShareStates("work")).partitions == everything
    first = driver.beat("b")
    assert first.assignment == {ORDERS: frozenset({0, 1, 2, 3})}
    (effect,) = driver.effects
    assert isinstance(effect, InitializeShareStates)
    assert effect.partitions == everything
    driver.wait(LIMITS.share.initialization_retry_ms)
    driver.beat("b", first.epoch)
    assert len(driver.effects) == 2, "the first one may have failed"
    driver.initialize()
    epoch = driver.beat("b", first.epoch).epoch
    driver.wait(LIMITS.share.initialization_retry_ms)
    assert driver.beat("b", epoch).error is NONE
    driver.beat("c")
    assert len(driver.effects) == 1, "each state exists"


def test_a_deletion_of_states_does_not_delay_the_initialization_of_new_partitions(driver: Driver) -> None:
    joined(driver, "a")
    driver.beat("a", -1)
    epoch = driver.beat("b", 0, ("events", "orders")).epoch
    driver.initialize()
    del driver.image.topics["events"]
    driver.machine.topics_changed(["events"], driver.now_ms)
    epoch = driver.beat("b", epoch).epoch
    deletion = driver.effects.pop()
    assert isinstance(deletion, DeleteShareStates)
    driver.image.topics["orders"] = Topic(ORDERS, 5)
    driver.machine.topics_changed(["orders"], driver.now_ms)
    driver.beat("b", epoch)
    (effect,) = driver.effects
    assert effect.partitions == (NamedPartitions(ORDERS, "orders", (4,)),)


def test_a_late_report_of_an_initialization_does_not_hide_the_deletion_of_the_states(driver: Driver) -> None:
    """The states were initialized, then deleted, and the report of the initialization arrives last."""
    joined(driver, "a")
    driver.beat("a", -1)
    driver.beat("b")
    driver.beat("b", -1)
    driver.ask(ForgetShareStates("work", driver.ask(ListShareStates("work")).partitions))
    driver.initialize()
    driver.beat("c")
    assert driver.effects[-1].partitions == (NamedPartitions(ORDERS, "orders", (0, 1, 2, 3)),)


def test_new_partitions_are_initialized_at_once_after_existing_states_were_verified(driver: Driver) -> None:
    joined(driver, "a")
    driver.beat("a", -1)
    epoch = driver.beat("b").epoch
    driver.initialize()
    driver.image.topics["orders"] = Topic(ORDERS, 5)
    driver.machine.topics_changed(["orders"], driver.now_ms)
    driver.beat("b", epoch)
    (effect,) = driver.effects
    assert effect.partitions == (NamedPartitions(ORDERS, "orders", (4,)),)


def test_a_failover_with_members_initializes_no_state_again(driver: Driver) -> None:
    epochs = joined(driver, "a")
    driver.fail_over()
    driver.beat("a", epochs["a"])
    driver.beat("b")
    assert driver.effects == []


def test_a_share_partition_is_not_listed_before_it_has_a_state(driver: Driver) -> None:
    """Otherwise it would never get one if the share coordinator is not available."""
    driver.ask(ResetShareStates("work", (NamedPartitions(ORDERS, "orders", (0,)),)))
    assert driver.ask(ListShareStates("work")).partitions == ()
    driver.beat("a")
    assert driver.effects[-1].partitions == (NamedPartitions(ORDERS, "orders", (0, 1, 2, 3)),)


def test_a_reset_without_partitions_creates_no_group(driver: Driver) -> None:
    assert driver.ask(ResetShareStates("work", ())).error is NONE
    assert driver.log == []
    assert driver.ask(ListShareStates("work")).error is KafkaCode.GROUP_ID_NOT_FOUND
    assert driver.ask(NoteShareStates("work", ())).error is KafkaCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("group", "error"),
    [
        ("", KafkaCode.INVALID_GROUP_ID),
        ("x" * 5_000, KafkaCode.INVALID_GROUP_ID),
        ("taken", KafkaCode.GROUP_ID_NOT_FOUND),
    ],
)
def test_a_reset_creates_no_group_of_a_bad_or_taken_name(driver: Driver, group: str, error: KafkaCode) -> None:
    offset = OffsetToCommit("orders", 0, 1)
    assert driver.ask(OffsetCommit("taken", "", None, -1, (offset,))).results[0].error is NONE
    before = len(driver.log)
    assert driver.ask(ResetShareStates(group, (NamedPartitions(ORDERS, "orders", (0,)),))).error is error
    assert len(driver.log) == before


def test_a_reset_creates_no_group_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.LIMITS", GroupLimits(groups_max=1))
    driver = Driver()
    partitions = (NamedPartitions(ORDERS, "orders", (0,)),)
    assert driver.ask(ResetShareStates("work", partitions)).error is NONE
    assert driver.ask(ResetShareStates("play", partitions)).error is KafkaCode.POLICY_VIOLATION
    assert driver.ask(ResetShareStates("work", partitions)).error is NONE, "it exists"


def test_the_assignor_gives_each_member_a_partition_even_if_members_outnumber_partitions() -> None:
    alone = assign({"a": [ORDERS, EVENTS]}, {ORDERS: frozenset({0, 1}), EVENTS: frozenset({0})})
    assert alone == {"a": {ORDERS: frozenset({0, 1}), EVENTS: frozenset({0})}}
    shared = assign({"a": [EVENTS], "b": [EVENTS]}, {EVENTS: frozenset({0})})
    assert shared == {"a": {EVENTS: frozenset({0})}, "b": {EVENTS: frozenset({0})}}
    assert assign({"a": [EVENTS]}, {}) == {"a": {}}


def test_the_record_of_states_is_read_as_it_was_written(driver: Driver) -> None:
    joined(driver, "a")
    value = next(record.value for record in reversed(driver.log) if record.key.startswith(b"\0\x0f"))
    assert value is not None
    initialized, deleting = read_state_partitions(value)
    assert initialized[ORDERS].partitions == frozenset({0, 1, 2, 3})
    assert write_state_partitions(initialized, deleting, 1_000) == value
