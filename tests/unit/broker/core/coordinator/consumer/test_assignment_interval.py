"""At most one target assignment per interval: changes that wait for it, changes that do not, and the cost of a join."""

from __future__ import annotations

import sys
from random import Random
from types import FrameType

import pytest

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.records import Kind, read_key
from broker.core.coordinator.consumer.requests import ConsumerHeartbeat
from broker.core.coordinator.group_machine import GroupMachine
from tests.unit.broker.core.coordinator.consumer.driver import (
    SESSION_MS,
    ConsumerClient,
    coordinator,
    described,
    go_on,
    group_of,
    joined,
    limits,
)
from tests.unit.broker.core.coordinator.consumer.test_migration import ClassicClient
from tests.unit.broker.core.coordinator.driver import GROUP, Cluster, Coordinator

INTERVAL_MS = 1_000


def paced(**partitions: int) -> Coordinator:
    return coordinator(limits(assignment_interval_ms=INTERVAL_MS), **partitions)


def assigned(**partitions: int) -> tuple[Coordinator, ConsumerClient]:
    """Return a group of one member whose interval has just begun."""
    home = paced(**partitions)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    return home, client


def targets(home: Coordinator) -> int:
    """Return the number of target assignments that were computed."""
    keys = [read for record in home.log if (read := read_key(record.key)) is not None]
    return sum(key.kind is Kind.TARGET for key in keys)


def sales(*partitions: int) -> set[tuple[str, int]]:
    return {("sales", partition) for partition in partitions}


# -- changes that apply at once


def test_the_first_member_of_an_empty_group_gets_its_partitions_at_once() -> None:
    home, client = assigned(sales=2)
    assert client.has == sales(0, 1)
    assert client.leave() == "NONE"
    assert described(home).state == "Empty"
    again = ConsumerClient(home, "m2")
    assert again.join() == "NONE"
    assert again.has == sales(0, 1)


def test_a_change_after_the_interval_computes_a_target_at_once() -> None:
    home, first = assigned(sales=2)
    home.pass_time(INTERVAL_MS)
    second = ConsumerClient(home, "m2")
    second.join()
    assert second.epoch == 2
    assert described(home).assignment_epoch == 2
    first.silent_beat()
    assert len(first.has) == 1


def test_a_static_member_that_returns_gets_its_partitions_at_once() -> None:
    home = paced(sales=2)
    old = ConsumerClient(home, "m1", instance_id="i1")
    joined(home, old)
    ConsumerClient(home, "m2").join()
    assert old.go_away() == "NONE"
    new = ConsumerClient(home, "m3", instance_id="i1")
    assert new.join() == "NONE"
    assert new.has == sales(0, 1)


def test_a_member_gives_up_a_topic_at_once_when_it_no_longer_subscribes_to_it() -> None:
    home = paced(sales=2, other=1)
    client = ConsumerClient(home, "m1", ("sales", "other"))
    joined(home, client)
    client.subscribe("sales")
    assert client.has == sales(0, 1)
    assert client.beat() == "NONE"
    assert client.epoch == 1, "the target is the last one"
    assert described(home).members[0].assignment[0].topic == "sales"
    assert len(described(home).members[0].assignment) == 1, "it owns nothing of the other topic"
    client.subscribe("sales", "other")
    home.pass_time(INTERVAL_MS)
    go_on(client)
    assert client.has == {*sales(0, 1), ("other", 0)}


# -- changes that wait for the interval


def test_changes_within_an_interval_share_one_target() -> None:
    home, first = assigned(sales=12)
    others = [ConsumerClient(home, f"m{index}") for index in range(2, 7)]
    for client in others:
        home.pass_time(100)
        assert client.join() == "NONE"
        assert client.has == set()
        assert client.epoch == 1, "the epoch of the last target"
    assert others[0].leave() == "NONE"
    assert described(home).epoch == 7
    assert described(home).state == "Assigning"
    assert targets(home) == 1
    home.pass_time(INTERVAL_MS)
    assert targets(home) == 2
    go_on(first, *others[1:])
    assert described(home).state == "Stable"
    assert [len(client.has) for client in (first, *others[1:])] == [3, 3, 2, 2, 2]


def test_the_timer_computes_a_target_without_any_heartbeat() -> None:
    home, _ = assigned(sales=2)
    ConsumerClient(home, "m2").join()
    home.pass_time(INTERVAL_MS - 1)
    assert described(home).assignment_epoch == 1
    home.pass_time(1)
    assert described(home).assignment_epoch == 2


def test_a_heartbeat_computes_a_target_only_once_it_is_due() -> None:
    home, first = assigned(sales=2)
    ConsumerClient(home, "m2").join()
    home.now_ms += INTERVAL_MS - 1
    first.silent_beat()
    assert described(home).assignment_epoch == 1
    home.now_ms += 1  # without a tick
    first.silent_beat()
    assert described(home).assignment_epoch == 2
    assert len(first.has) == 1


def test_the_partitions_of_a_member_that_left_wait_for_the_next_target() -> None:
    home, first = assigned(sales=2)
    home.pass_time(INTERVAL_MS)
    second = ConsumerClient(home, "m2")
    second.join()
    go_on(first, second)
    assert len(second.has) == 1
    assert first.leave() == "NONE"
    second.beat()
    assert len(second.has) == 1
    home.pass_time(INTERVAL_MS)
    second.beat()
    assert second.has == sales(0, 1)


def test_changes_of_topics_wait_for_the_next_target() -> None:
    home, client = assigned(sales=2)
    home.change_topics(sales=3)
    home.pass_time(INTERVAL_MS - 1)
    client.beat()
    assert client.has == sales(0, 1)
    assert (described(home).epoch, described(home).assignment_epoch) == (2, 1)
    home.pass_time(1)
    assert described(home).assignment_epoch == 2, "the tick for the topics has not removed the deadline"
    client.beat()
    assert client.has == sales(0, 1, 2)


def test_a_group_that_becomes_empty_drops_its_pending_target() -> None:
    home, first = assigned(sales=2)
    second = ConsumerClient(home, "m2")
    second.join()
    first.leave()
    second.leave()
    group = described(home)
    assert (group.state, group.epoch) == ("Empty", group.assignment_epoch)
    before = targets(home)
    home.pass_time(10 * INTERVAL_MS)
    assert targets(home) == before


def test_expired_members_and_new_members_share_one_target() -> None:
    home = paced(sales=2)
    old = ConsumerClient(home, "m1")
    joined(home, old)
    home.pass_time(SESSION_MS - INTERVAL_MS)
    new = ConsumerClient(home, "m2")
    new.join()
    third = ConsumerClient(home, "m3")
    third.join()
    before = targets(home)
    home.pass_time(INTERVAL_MS)
    assert targets(home) == before + 1
    assert [member.member_id for member in described(home).members] == ["m2", "m3"]
    go_on(new, third)
    assert new.has | third.has == sales(0, 1)


def test_a_new_coordinator_computes_the_pending_target_of_its_predecessor() -> None:
    home, first = assigned(sales=2)
    second = ConsumerClient(home, "m2")
    second.join()
    after = home.reload(limits(assignment_interval_ms=INTERVAL_MS))
    assert described(after) == described(home)
    after.pass_time(1)
    assert described(after).assignment_epoch == 2
    first.coordinator = second.coordinator = after
    go_on(first, second)
    assert first.has | second.has == sales(0, 1)


# -- members of the classic protocol


def test_a_classic_member_is_asked_to_rejoin_only_once_a_new_target_exists() -> None:
    home, first = assigned(sales=2)
    home.pass_time(INTERVAL_MS)
    classic = ClassicClient(home, "old")
    assert classic.join() == "NONE"
    assert classic.sync() == "NONE"
    ConsumerClient(home, "m2").join()
    assert described(home).state == "Assigning"
    assert classic.beat() == "NONE"
    assert classic.join() == "NONE"
    assert classic.sync() == "NONE"
    home.pass_time(INTERVAL_MS)
    assert classic.beat() == "REBALANCE_IN_PROGRESS"
    assert classic.join() == "NONE"
    assert classic.sync() == "NONE"
    assert first.beat() == "NONE"


def test_a_group_with_a_pending_target_can_become_classic() -> None:
    home, first = assigned(sales=2)
    classic = ClassicClient(home, "old")
    assert classic.join() == "NONE"
    assert described(home).state == "Assigning"
    assert first.leave() == "NONE"
    assert home.describe().state == "PreparingRebalance"
    call = classic.send_join()
    home.pass_time(10 * INTERVAL_MS)
    assert classic.take_join(call) == "NONE"


# -- heartbeats


def test_a_joining_members_heartbeat_interval_ends_when_the_pending_target_is_due() -> None:
    home, first = assigned(sales=2)
    home.pass_time(400)
    second = ConsumerClient(home, "m2")
    second.join()
    assert second.answer.heartbeat_interval_ms == INTERVAL_MS - 400
    first.silent_beat()
    assert first.answer.heartbeat_interval_ms == 5_000
    home.pass_time(second.answer.heartbeat_interval_ms)
    second.beat()
    assert second.answer.heartbeat_interval_ms == 5_000
    assert second.epoch == 2


@pytest.mark.parametrize("heartbeat_ms", [200, 5_000])
def test_a_joining_members_heartbeat_interval_never_exceeds_the_configured_interval(heartbeat_ms: int) -> None:
    home = coordinator(limits(assignment_interval_ms=INTERVAL_MS, heartbeat_interval_ms=heartbeat_ms), sales=2)
    joined(home, ConsumerClient(home, "m1"))
    second = ConsumerClient(home, "m2")
    second.join()
    assert second.answer.heartbeat_interval_ms == min(heartbeat_ms, INTERVAL_MS)


# -- cost


def test_a_join_costs_the_same_in_a_large_group_as_in_a_small_one() -> None:
    """Count calls of functions, because times depend on the machine."""
    machine = GroupMachine(limits(assignment_interval_ms=INTERVAL_MS), Cluster(sales=100), Random(1), lambda: 0)
    machine.loaded(0)
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    costs = []
    for index in range(400):
        request = ConsumerHeartbeat(
            GROUP,
            f"member-{index:04}",
            0,
            Client("c", "/h"),
            rebalance_timeout_ms=1_000,
            topics=("sales",),
            owned={},
        )
        calls = 0
        sys.setprofile(count)
        step = machine.request(index, request, 1)
        sys.setprofile(None)
        assert step.answers[0].response.error.name == "NONE"
        costs.append(calls)
    assert max(costs[-10:]) <= 1.2 * max(costs[1:11]), (costs[1:11], costs[-10:])


def test_the_counts_of_topics_expressions_and_assignors_follow_each_change_of_members() -> None:
    home = paced(sales=2, other=2)
    client = ConsumerClient(home, "m1", ("sales", "other"), assignor="range")
    joined(home, client)
    ConsumerClient(home, "m2", (), regex="s.*").join()
    census = group_of(home).census
    assert dict(census.topics) == {"sales": 1, "other": 1}
    assert dict(census.regexes) == {"s.*": 1}
    assert dict(census.assignors) == {"range": 1, None: 1}
    client.subscribe("other")
    assert dict(census.topics) == {"other": 1}
    client.leave()
    assert dict(census.topics) == {}
    assert dict(census.assignors) == {None: 1}
