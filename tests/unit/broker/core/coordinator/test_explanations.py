"""The reports of a coordinator to administrators about rebalances: reasons, members, times, and awaited members."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.consumer import driver as new
from tests.unit.broker.core.coordinator.driver import (
    GROUP,
    LIMITS,
    REBALANCE_MS,
    SESSION_MS,
    Coordinator,
    Member,
    subscription,
)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def explained(coordinator: Coordinator, group: str = GROUP) -> g.GroupExplanation:
    (found,) = coordinator.ask(g.ExplainGroups((group,))).groups
    assert isinstance(found, g.GroupExplanation)
    return found


def last(coordinator: Coordinator) -> g.Rebalance:
    return explained(coordinator).rebalances[-1]


def client_of(member: Member) -> Client:
    return Client(member.client_id, "/127.0.0.1")


def names(*members: Member) -> tuple[g.MemberName, ...]:
    return tuple(
        g.MemberName(each.member_id, each.instance_id, client_of(each))
        for each in sorted(members, key=lambda m: m.member_id)
    )


def stable(coordinator: Coordinator) -> tuple[Member, Member]:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    coordinator.stable(leader, follower)
    return leader, follower


def test_a_new_member_is_reported_as_the_reason_of_the_rebalance_and_as_the_last_to_join(
    coordinator: Coordinator,
) -> None:
    leader, follower = stable(coordinator)
    third = Member(coordinator, "c")
    third.send_join(needs_member_id=False)
    at_ms = coordinator.wall_ms
    coordinator.pass_time(700)
    found = explained(coordinator)
    assert (found.state, found.members, found.generation) == ("PreparingRebalance", 3, 1)
    assert found.rebalances[-1].reason == "joined"
    assert (found.rebalances[-1].duration_ms, found.rebalances[-1].started_ms) == (None, at_ms)
    assert found.now_ms - at_ms == 700
    assert found.awaited == names(leader, follower)
    assert found.last_joined is not None
    assert (found.last_joined.member.client, found.last_joined.at_ms) == (client_of(third), at_ms)
    assert found.rebalances[-1].member == found.last_joined.member


def test_members_that_have_not_sent_sync_group_are_reported_as_awaited(coordinator: Coordinator) -> None:
    leader, follower = stable(coordinator)
    follower.protocols = (g.MemberProtocol("range", subscription("other")),)
    call = follower.send_join()
    leader.send_join()
    assert [each.client.client_id for each in explained(coordinator).awaited] == ["a", "b"]
    assert explained(coordinator).state == "CompletingRebalance"
    follower.take_join(call)
    follower.send_sync()
    assert explained(coordinator).awaited == names(leader)


@pytest.mark.parametrize("reason", ["left", "session_expired", "subscription_changed", "leader_rejoined"])
def test_each_reason_of_a_rebalance_names_the_member_that_caused_it(coordinator: Coordinator, reason: str) -> None:
    leader, follower = stable(coordinator)
    cause = leader if reason == "leader_rejoined" else follower
    match reason:
        case "left":
            follower.leave("done")
        case "session_expired":
            for _ in range(3):
                coordinator.pass_time(SESSION_MS // 3 + 1)
                leader.heartbeat()
        case "subscription_changed":
            follower.protocols = (g.MemberProtocol("range", subscription("other")),)
            follower.send_join()
        case "leader_rejoined":
            leader.send_join()
    found = last(coordinator)
    assert found.reason == reason
    assert (found.member,) == names(cause)
    assert found.client == client_of(cause)


def test_a_member_that_never_sends_sync_group_is_reported_as_the_reason(coordinator: Coordinator) -> None:
    leader, follower = stable(coordinator)
    calls = [leader.send_join(), follower.send_join()]
    leader.take_join(calls[0])
    follower.take_join(calls[1])
    follower.send_sync()
    for _ in range(REBALANCE_MS // 5_000):
        coordinator.pass_time(5_000)
        leader.heartbeat()
    found = last(coordinator)
    assert (found.reason, found.member) == ("sync_timed_out", *names(leader))


def test_a_static_member_that_restarts_with_another_protocol_is_reported_as_the_reason(
    coordinator: Coordinator,
) -> None:
    member = Member(coordinator, "a")
    member.instance_id = "i"
    coordinator.stable(member)
    again = Member(coordinator, "a")
    again.instance_id = "i"
    again.protocols = (g.MemberProtocol("sticky", subscription("sales")),)
    again.send_join()
    found = last(coordinator)
    assert found.reason == "static_member_replaced"
    assert found.member is not None
    assert (found.member.instance_id, found.member.member_id != member.member_id) == ("i", True)


def test_a_new_coordinator_reports_the_time_of_its_load_and_no_earlier_rebalances(coordinator: Coordinator) -> None:
    stable(coordinator)
    coordinator.pass_time(60)
    after = coordinator.reload()
    loaded_ms = coordinator.wall_ms
    after.pass_time(5)
    found = explained(after)
    assert (found.loaded_ms, found.rebalances, found.last_joined, found.generation) == (loaded_ms, (), None, 1)
    assert found.now_ms == loaded_ms + 5


def test_a_group_above_a_lowered_member_limit_reports_group_too_large_as_the_reason(coordinator: Coordinator) -> None:
    stable(coordinator)
    after = coordinator.reload(replace(LIMITS, members_max=1))
    assert (last(after).reason, last(after).member) == ("group_too_large", None)


def test_an_empty_group_reports_when_its_last_member_left_or_its_last_offset_was_committed(
    coordinator: Coordinator,
) -> None:
    member = Member(coordinator, "a")
    coordinator.stable(member)
    assert explained(coordinator).empty_since_ms is None
    coordinator.pass_time(100)
    member.leave()
    left_ms = coordinator.wall_ms
    coordinator.pass_time(100)
    assert explained(coordinator).empty_since_ms == left_ms
    commit = g.OffsetCommit(GROUP, "", None, -1, (g.OffsetToCommit("sales", 0, 5, -1, ""),))
    coordinator.ask(commit)
    assert explained(coordinator).empty_since_ms == coordinator.wall_ms


def test_a_group_of_simple_consumers_is_empty_since_its_last_commit(coordinator: Coordinator) -> None:
    commit = g.OffsetCommit("simple", "", None, -1, (g.OffsetToCommit("sales", 0, 5, -1, ""),))
    coordinator.ask(commit)
    at_ms = coordinator.wall_ms
    coordinator.pass_time(50)
    found = explained(coordinator, "simple")
    assert (found.state, found.generation, found.members, found.empty_since_ms) == ("Empty", -1, 0, at_ms)


def test_missing_groups_and_bad_names_are_refused(coordinator: Coordinator) -> None:
    missing, nameless = coordinator.ask(g.ExplainGroups(("nobody", ""))).groups
    assert (missing.error, missing.error_message) == (KafkaCode.GROUP_ID_NOT_FOUND, "There is no group nobody.")
    assert nameless.error is KafkaCode.INVALID_GROUP_ID
    assert coordinator.log == []


def test_a_consumer_group_reports_its_rebalances_and_awaited_members() -> None:
    each = new.coordinator(sales=4)
    first, second = new.ConsumerClient(each, "m1"), new.ConsumerClient(each, "m2")
    first.join()
    second.join()
    found = explained(each)
    assert (found.group_type, found.state, found.members) == ("consumer", "Reconciling", 2)
    assert [rebalance.reason for rebalance in found.rebalances] == ["joined", "joined"]
    assert [rebalance.member.member_id for rebalance in found.rebalances if rebalance.member] == ["m1", "m2"]
    assert found.last_joined is not None
    assert found.last_joined.member.member_id == "m2"
    assert [member.member_id for member in found.awaited] == ["m1", "m2"]
    each.pass_time(new.SESSION_MS)
    found = explained(each)
    assert found.rebalances[-1].reason == "session_expired"
    assert (found.state, found.awaited, found.empty_since_ms) == ("Empty", (), each.wall_ms)
