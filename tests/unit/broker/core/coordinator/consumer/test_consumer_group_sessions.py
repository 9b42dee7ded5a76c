"""Members of the newer protocol: sessions, timeouts and static members."""

from __future__ import annotations

import pytest

from broker.core.coordinator import group_requests as g
from tests.unit.broker.core.coordinator.consumer.driver import (
    REBALANCE_MS,
    SESSION_MS,
    ConsumerClient,
    coordinator,
    described,
    go_on,
    group_of,
    joined,
    sales,
)
from tests.unit.broker.core.coordinator.driver import GROUP

# -- time


def test_a_member_without_heartbeats_is_removed_at_its_session_timeout() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first, second)
    home.pass_time(SESSION_MS - 1)
    first.beat()
    home.pass_time(1)
    assert [member.member_id for member in described(home).members] == ["m1"]
    first.beat()
    assert first.has == sales(0, 1, 2, 3)
    assert second.beat() == "UNKNOWN_MEMBER_ID"


def test_a_member_that_does_not_give_up_partitions_within_the_rebalance_timeout_is_removed() -> None:
    home = coordinator(sales=4)
    slow, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, slow)
    second.join()
    slow.silent_beat()
    for _ in range(REBALANCE_MS // 1_000):
        assert slow.silent_beat() == "NONE"
        second.beat()
        home.pass_time(1_000)
    assert slow.silent_beat() == "UNKNOWN_MEMBER_ID"
    second.beat()
    assert second.has == sales(0, 1, 2, 3)


def test_a_member_that_gives_up_partitions_within_the_rebalance_timeout_stays() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    second.join()
    go_on(first, second)
    home.pass_time(SESSION_MS - 1)
    assert first.beat() == "NONE"


def test_a_new_coordinator_restarts_the_session_timeout_of_each_member() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first, second)
    before = described(home)
    home.pass_time(SESSION_MS - 1)
    after = home.reload()
    assert described(after) == before
    first.coordinator = after
    after.pass_time(SESSION_MS - 1)
    assert first.beat() == "NONE"
    after.pass_time(1)
    assert [member.member_id for member in described(after).members] == ["m1"]


def test_a_new_coordinator_also_removes_a_member_that_does_not_give_up_its_partitions() -> None:
    home = coordinator(sales=4)
    slow, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, slow)
    second.join()
    slow.silent_beat()
    after = home.reload()
    slow.coordinator = second.coordinator = after
    for _ in range(REBALANCE_MS // 1_000):
        assert slow.silent_beat() == "NONE"
        second.beat()
        after.pass_time(1_000)
    assert slow.silent_beat() == "UNKNOWN_MEMBER_ID"


# -- static members


def test_a_static_member_that_restarts_gets_its_partitions_back_without_a_new_epoch() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1", instance_id="i1"), ConsumerClient(home, "m2")
    joined(home, first, second)
    had = first.has
    assert first.go_away() == "NONE"
    assert first.answer.epoch == -2
    again = ConsumerClient(home, "m3", instance_id="i1")
    assert again.join() == "NONE"
    assert again.has == had
    assert described(home).epoch == 2
    assert first.beat() != "NONE"


def test_a_static_member_that_does_not_return_loses_its_partitions_at_its_session_timeout() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1", instance_id="i1"), ConsumerClient(home, "m2")
    joined(home, first, second)
    first.go_away()
    home.pass_time(SESSION_MS - 1)
    second.beat()
    assert second.has == sales(2, 3)
    home.pass_time(1)
    second.beat()
    assert second.has == sales(0, 1, 2, 3)


def test_a_join_with_an_instance_id_that_is_in_use_is_refused() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "m1", instance_id="i1"))
    records = len(home.log)
    assert ConsumerClient(home, "m2", instance_id="i1").join() == "UNRELEASED_INSTANCE_ID"
    assert len(home.log) == records


def test_a_replaced_static_member_is_fenced() -> None:
    home = coordinator(sales=4)
    first = ConsumerClient(home, "m1", instance_id="i1")
    joined(home, first)
    epoch = first.epoch
    first.go_away()
    ConsumerClient(home, "m2", instance_id="i1").join()
    first.epoch = epoch
    assert first.beat() == "FENCED_INSTANCE_ID"
    assert first.leave() == "FENCED_INSTANCE_ID"


def test_a_late_heartbeat_does_not_restore_a_static_member_that_left_temporarily() -> None:
    home = coordinator(sales=4)
    first = ConsumerClient(home, "m1", instance_id="i1")
    joined(home, first)
    epoch, had = first.epoch, first.owned
    first.go_away()
    first.epoch, first.owned = epoch, had
    assert first.beat() == "FENCED_MEMBER_EPOCH"
    assert ConsumerClient(home, "m2", instance_id="i1").join() == "NONE", "the instance id is still released"


def test_a_static_member_that_returns_with_other_topics_raises_the_group_epoch() -> None:
    home = coordinator(sales=4, other=1)
    first = ConsumerClient(home, "m1", instance_id="i1")
    joined(home, first)
    first.go_away()
    again = ConsumerClient(home, "m2", ("other",), instance_id="i1")
    again.join()
    go_on(again)
    assert again.has == {("other", 0)}
    assert again.epoch == 2


def test_a_static_member_that_leaves_during_a_revocation_no_longer_owns_the_revoked_partitions() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1", instance_id="i1"), ConsumerClient(home, "m2")
    joined(home, first)
    second.join()
    first.silent_beat()
    first.go_away()
    again = ConsumerClient(home, "m3", instance_id="i1")
    again.join()
    go_on(second, again)
    assert (again.has, second.has) == (sales(0, 1), sales(2, 3))


def test_a_dynamic_member_cannot_leave_temporarily() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    assert client.go_away() == "INVALID_REQUEST"


def test_an_administrator_removes_a_static_member_by_its_instance_id() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", instance_id="i1")
    joined(home, client)
    leave = g.LeaveGroup(GROUP, (g.LeavingMember("", "i1"), g.LeavingMember("", "i1"), g.LeavingMember("m1")))
    results = [member.error.name for member in home.ask(leave).members]
    assert results == ["NONE", "UNKNOWN_MEMBER_ID", "UNKNOWN_MEMBER_ID"]
    assert described(home).state == "Empty"


def test_the_cause_of_a_removal_is_the_reason_given_for_the_first_member_that_left() -> None:
    home = coordinator(sales=4)
    clients = [ConsumerClient(home, f"m{number}", instance_id=f"i{number}") for number in (1, 2)]
    for client in clients:
        client.join()
    leaving = (
        g.LeavingMember("", "i0", "not in this group"),
        g.LeavingMember("", "i1", "scaled down"),
        g.LeavingMember("", "i2", "not the first"),
    )
    home.ask(g.LeaveGroup(GROUP, leaving))
    assert home.machine.explain(GROUP)[-1].cause.endswith(" and 1 other left: 'scaled down'")


@pytest.mark.parametrize(("count", "end"), [(1, "expired"), (2, "expired, and 1 other"), (3, "expired, and 2 others")])
def test_the_cause_of_an_expiry_counts_the_members(count: int, end: str) -> None:
    home = coordinator(sales=4)
    for number in range(count):
        ConsumerClient(home, f"m{number}").join()
    home.pass_time(SESSION_MS)
    assert home.machine.explain(GROUP)[-1].cause.endswith(end)


def test_each_revocation_has_a_rebalance_timeout_of_its_own() -> None:
    """A member that has given partitions up in time may immediately have to give up others."""
    home = coordinator(sales=6)
    first, second, third = (ConsumerClient(home, name) for name in ("m1", "m2", "m3"))
    joined(home, first)
    second.join()
    first.silent_beat()
    assert first.has == sales(0, 1, 2)
    home.pass_time(REBALANCE_MS - 1_000)
    second.beat()
    third.join()
    first.beat()
    assert first.has == sales(0, 1)
    assert group_of(home).members["m1"].current.revoking
    home.pass_time(2_000)
    assert first.beat() == "NONE"
    assert first.has == sales(0, 1)
