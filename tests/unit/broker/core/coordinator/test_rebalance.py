"""Members join, get assignments, and leave: the classic protocol of groups."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client
from tests.unit.broker.core.coordinator.driver import (
    DELAY_MS,
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


@pytest.fixture
def two(coordinator: Coordinator) -> tuple[Member, Member]:
    """The leader and a follower of a stable group."""
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    coordinator.stable(leader, follower)
    assert leader.leads
    return leader, follower


# -- joining


def test_a_first_rebalance_waits_for_the_initial_delay(coordinator: Coordinator) -> None:
    call = Member(coordinator, "a").send_join()
    assert coordinator.state() == "PreparingRebalance"
    coordinator.pass_time(DELAY_MS - 1)
    assert coordinator.waits(call)
    coordinator.pass_time(1)
    assert not coordinator.waits(call)
    assert coordinator.state() == "CompletingRebalance"


def test_new_members_prolong_the_initial_delay_up_to_the_rebalance_timeout(coordinator: Coordinator) -> None:
    first = Member(coordinator, "a").send_join()
    for index in range(REBALANCE_MS // DELAY_MS):
        assert coordinator.waits(first)
        Member(coordinator, f"b{index}").send_join()
        coordinator.pass_time(DELAY_MS)
    assert not coordinator.waits(first)
    assert len(coordinator.describe().members) == 11


def test_the_first_member_is_answered_at_once_without_an_initial_delay() -> None:
    coordinator = Coordinator(replace(LIMITS, initial_rebalance_delay_ms=0))
    assert Member(coordinator, "a").join_error() == "NONE"


def test_a_member_without_an_id_gets_a_member_id_and_joins_again_with_it(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    request = g.JoinGroup(GROUP, "", None, Client("a", "/h"), "consumer", member.protocols, SESSION_MS, REBALANCE_MS)
    answer = coordinator.ask(request)
    assert answer.error.name == "MEMBER_ID_REQUIRED"
    assert answer.member_id.startswith("a-")
    assert coordinator.state() == "Empty"
    assert coordinator.waits(coordinator.send(replace(request, member_id=answer.member_id)))


def test_a_client_with_the_longest_permitted_client_id_can_join(coordinator: Coordinator) -> None:
    assert coordinator.waits(Member(coordinator, "c" * LIMITS.name_max_bytes).send_join())


def test_an_old_client_joins_without_a_member_id(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    call = member.send_join(needs_member_id=False)
    coordinator.pass_time(DELAY_MS)
    assert member.take_join(call).member_id.startswith("a-")


def test_a_member_id_that_nobody_uses_expires_and_its_group_with_it(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    request = g.JoinGroup(GROUP, "", None, Client("a", "/h"), "consumer", member.protocols, SESSION_MS, REBALANCE_MS)
    member.member_id = coordinator.ask(request).member_id
    coordinator.pass_time(SESSION_MS - 1)
    assert coordinator.state() == "Empty"
    coordinator.pass_time(1)
    assert coordinator.state() == "Dead"
    assert member.join_error() == "UNKNOWN_MEMBER_ID"
    assert coordinator.log == []


def test_a_rebalance_waits_for_a_member_id_that_was_just_given_out(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    request = g.JoinGroup(GROUP, "", None, Client("c", "/h"), "consumer", leader.protocols, SESSION_MS, REBALANCE_MS)
    given = coordinator.ask(request).member_id
    calls = [leader.send_join(), follower.send_join()]
    # The leader's JoinGroup begins a rebalance.  Nobody else is missing, but the new member is about to join.
    assert [coordinator.waits(call) for call in calls] == [True, True]
    coordinator.send(replace(request, member_id=given))
    assert [coordinator.waits(call) for call in calls] == [False, False]
    assert len(coordinator.describe().members) == 3


def test_only_the_leader_learns_the_members(two: tuple[Member, Member]) -> None:
    leader, follower = two
    assert [each.member_id for each in leader.joined.members] == sorted([leader.member_id, follower.member_id])
    assert {each.metadata for each in leader.joined.members} == {subscription("sales")}
    assert follower.joined.members == ()
    assert follower.joined.leader == leader.member_id


def test_the_commonly_supported_protocol_with_the_most_votes_is_used(coordinator: Coordinator) -> None:
    wanted = {"a": ["x", "sticky", "range"], "b": ["range", "sticky"], "c": ["y", "range", "sticky"]}
    members = []
    for name, protocols in wanted.items():
        member = Member(coordinator, name)
        member.protocols = tuple(g.MemberProtocol(each, each.encode()) for each in protocols)
        members.append(member)
    coordinator.stable(*members)
    assert {member.joined.protocol for member in members} == {"range"}
    assert [each.metadata for each in members[0].joined.members] == [b"range"] * 3


def test_a_tie_between_protocols_is_decided_by_the_preference_of_the_oldest_member(coordinator: Coordinator) -> None:
    first, second = Member(coordinator, "a"), Member(coordinator, "b")
    first.protocols = (g.MemberProtocol("sticky", b""), g.MemberProtocol("range", b""))
    second.protocols = (g.MemberProtocol("range", b""), g.MemberProtocol("sticky", b""))
    coordinator.stable(first, second)
    assert first.joined.protocol == "sticky"


def test_a_member_that_shares_no_protocol_is_refused(two: tuple[Member, Member]) -> None:
    stranger = Member(two[0].coordinator, "c")
    stranger.protocols = (g.MemberProtocol("sticky", b""),)
    assert stranger.join_error() == "INCONSISTENT_GROUP_PROTOCOL"
    stranger.protocols = ()
    assert stranger.join_error() == "INCONSISTENT_GROUP_PROTOCOL"
    assert two[0].heartbeat() == "NONE"


def test_a_member_of_another_protocol_type_is_refused(two: tuple[Member, Member]) -> None:
    stranger = Member(two[0].coordinator, "c")
    stranger.protocol_type = "connect"
    assert stranger.join_error() == "INCONSISTENT_GROUP_PROTOCOL"


def test_a_sole_member_may_change_its_protocol(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    coordinator.stable(member)
    member.protocols = (g.MemberProtocol("sticky", b""),)
    assert member.join().protocol == "sticky"


def test_an_emptied_group_accepts_another_protocol_type(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    coordinator.stable(member)
    member.leave()
    worker = Member(coordinator, "w")
    worker.protocol_type, worker.protocols = "connect", (g.MemberProtocol("compatible", b""),)
    coordinator.stable(worker)
    assert coordinator.describe().protocol_type == "connect"


@pytest.mark.parametrize("timeout_ms", [LIMITS.session_timeout_min_ms - 1, LIMITS.session_timeout_max_ms + 1])
def test_a_session_timeout_outside_the_limits_is_refused(coordinator: Coordinator, timeout_ms: int) -> None:
    member = Member(coordinator, "a")
    member.session_timeout_ms = timeout_ms
    assert member.join_error() == "INVALID_SESSION_TIMEOUT"
    assert coordinator.state() == "Dead"


@pytest.mark.parametrize("timeout_ms", [LIMITS.session_timeout_min_ms, LIMITS.session_timeout_max_ms])
def test_a_session_timeout_at_a_limit_is_accepted(coordinator: Coordinator, timeout_ms: int) -> None:
    member = Member(coordinator, "a")
    member.session_timeout_ms = timeout_ms
    assert coordinator.waits(member.send_join())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client_id", "c" * (LIMITS.name_max_bytes + 1)),
        ("instance_id", "ä" * LIMITS.name_max_bytes),
        ("protocol_type", "t" * (LIMITS.name_max_bytes + 1)),
        ("protocols", tuple(g.MemberProtocol(f"p{index}", b"") for index in range(LIMITS.protocols_max + 1))),
        ("protocols", (g.MemberProtocol("range", bytes(LIMITS.member_max_bytes + 1)),)),
        ("rebalance_timeout_ms", 0),
    ],
)
def test_a_join_beyond_a_bound_is_refused_and_leaves_no_group(coordinator: Coordinator, field: str, value: Any) -> None:
    member = Member(coordinator, "a")
    setattr(member, field, value)
    assert member.join_error() == "INVALID_REQUEST"
    assert coordinator.state() == "Dead"


@pytest.mark.parametrize("name", ["", "g" * (LIMITS.name_max_bytes + 1)])
def test_a_group_id_that_is_empty_or_too_long_is_refused(coordinator: Coordinator, name: str) -> None:
    member = Member(coordinator, "a", group=name)
    assert member.join_error() == "INVALID_GROUP_ID"
    assert member.heartbeat() == "INVALID_GROUP_ID"


def test_a_full_group_refuses_new_members() -> None:
    coordinator = Coordinator(replace(LIMITS, members_max=2))
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    coordinator.stable(leader, follower)
    assert Member(coordinator, "c").join_error() == "GROUP_MAX_SIZE_REACHED"
    assert leader.heartbeat() == "NONE"


def test_member_ids_that_nobody_used_yet_are_limited() -> None:
    coordinator = Coordinator(replace(LIMITS, members_max=2))
    errors = []
    for name in ("a", "b", "c"):
        client = Client(name, "/h")
        protocols = (g.MemberProtocol("range", b""),)
        request = g.JoinGroup(GROUP, "", None, client, "consumer", protocols, SESSION_MS, REBALANCE_MS)
        errors.append(coordinator.ask(request).error.name)
    assert errors == ["MEMBER_ID_REQUIRED", "MEMBER_ID_REQUIRED", "GROUP_MAX_SIZE_REACHED"]


def test_a_loaded_group_above_a_lowered_limit_keeps_the_members_that_join_first(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator.reload(replace(LIMITS, members_max=1))
    leader.coordinator = follower.coordinator = coordinator
    assert coordinator.state() == "PreparingRebalance"
    call = follower.send_join()
    assert leader.join_error() == "GROUP_MAX_SIZE_REACHED"
    assert follower.take_join(call).error.name == "NONE"
    assert follower.leads


def test_subscriptions_that_do_not_fit_into_the_record_of_the_group_are_refused() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    big = Member(coordinator, "a")
    big.protocols = (g.MemberProtocol("range", bytes(4_000)),)
    coordinator.stable(big)
    other = Member(coordinator, "b")
    other.protocols = (g.MemberProtocol("range", bytes(2_000)),)
    assert other.join_error() == "GROUP_MAX_SIZE_REACHED"
    other.protocols = (g.MemberProtocol("range", b""),)
    assert coordinator.waits(other.send_join())


def test_the_record_of_a_group_that_is_accepted_fits_into_a_batch() -> None:
    limits = replace(LIMITS, batch_max_bytes=10_000, initial_rebalance_delay_ms=0)
    longest = "n" * limits.name_max_bytes
    sizes = []
    for metadata_bytes in range(0, 6_000, 100):
        coordinator = Coordinator(limits)
        member = Member(coordinator, longest, instance_id=longest, group=longest)
        member.protocol_type, member.protocols = longest, (g.MemberProtocol(longest, bytes(metadata_bytes)),)
        if member.join_error() == "NONE" and member.sync().error.name == "NONE":
            sizes += [len(each.key) + len(each.value or b"") for each in coordinator.log]
    assert 0 < len(sizes) < 60
    assert 8_000 < max(sizes) <= limits.batch_max_bytes


def test_the_number_of_groups_is_limited() -> None:
    coordinator = Coordinator(replace(LIMITS, groups_max=1))
    Member(coordinator, "a").send_join()
    assert Member(coordinator, "b", group="other").join_error() == "POLICY_VIOLATION"


# -- rebalances


def test_a_new_member_begins_a_rebalance_and_heartbeats_announce_it(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    third = Member(coordinator, "c")
    call = third.send_join()
    assert leader.heartbeat() == "REBALANCE_IN_PROGRESS"
    first = leader.send_join()
    assert coordinator.waits(call)
    follower.join()
    assert leader.take_join(first).generation == 2
    assert third.take_join(call).generation == 2
    assert leader.joined.leader == leader.member_id


def test_a_member_that_does_not_join_in_time_is_removed(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    call = leader.send_join()
    for _ in range(REBALANCE_MS // 5_000):
        assert coordinator.waits(call)
        assert follower.heartbeat() == "REBALANCE_IN_PROGRESS"
        coordinator.pass_time(5_000)
    assert [each.member_id for each in coordinator.describe().members] == [leader.member_id]
    assert follower.heartbeat() == "UNKNOWN_MEMBER_ID"


def test_a_leader_that_does_not_join_in_time_is_replaced(two: tuple[Member, Member]) -> None:
    leader, follower = two
    follower.protocols = (g.MemberProtocol("range", subscription("other")),)
    call = follower.send_join()
    leader.coordinator.pass_time(SESSION_MS)
    assert follower.take_join(call).leader == follower.member_id


def test_an_unchanged_follower_that_joins_again_causes_no_rebalance(two: tuple[Member, Member]) -> None:
    leader, follower = two
    assert follower.join().generation == 1
    assert follower.sync().assignment == b"b"
    assert leader.heartbeat() == "NONE"


def test_a_leader_that_joins_again_causes_a_rebalance(two: tuple[Member, Member]) -> None:
    leader, follower = two
    call = leader.send_join()
    assert follower.heartbeat() == "REBALANCE_IN_PROGRESS"
    follower.join()
    assert leader.take_join(call).generation == 2


def test_a_follower_with_another_subscription_causes_a_rebalance(two: tuple[Member, Member]) -> None:
    leader, follower = two
    follower.protocols = (g.MemberProtocol("range", subscription("other")),)
    follower.send_join()
    assert leader.heartbeat() == "REBALANCE_IN_PROGRESS"
    leader.join()
    assert sorted(each.metadata for each in leader.joined.members) == [subscription("other"), subscription("sales")]


def test_a_member_that_repeats_its_join_before_the_assignments_gets_the_same_answer(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    calls = [leader.send_join(), follower.send_join()]
    coordinator.pass_time(2 * DELAY_MS)
    first = leader.take_join(calls[0])
    assert leader.join() == first
    assert follower.take_join(calls[1]) == follower.join()


def test_a_member_that_joins_before_the_assignments_makes_the_others_rejoin(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    calls = [leader.send_join(), follower.send_join()]
    coordinator.pass_time(2 * DELAY_MS)
    leader.take_join(calls[0])
    follower.take_join(calls[1])
    waiting = follower.send_sync()
    Member(coordinator, "c").send_join()
    assert coordinator.answers[waiting].error.name == "REBALANCE_IN_PROGRESS"
    assert leader.sync().error.name == "REBALANCE_IN_PROGRESS"
    assert coordinator.log == []
    assert [each.interrupted for each in coordinator.machine.explain(GROUP)] == [True, False]


# -- assignments


def test_each_member_gets_the_assignment_that_the_leader_sent_for_it(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    calls = [leader.send_join(), follower.send_join()]
    coordinator.pass_time(2 * DELAY_MS)
    leader.take_join(calls[0])
    follower.take_join(calls[1])
    waiting = follower.send_sync()
    assert coordinator.waits(waiting)
    assert leader.sync() == g.SyncGroupResponse(leader.joined.error, "consumer", "range", b"a")
    assert coordinator.answers[waiting].assignment == b"b"
    assert len(coordinator.log) == 1


def test_a_member_without_an_assignment_gets_an_empty_one(coordinator: Coordinator) -> None:
    leader = Member(coordinator, "a")
    call = leader.send_join()
    coordinator.pass_time(DELAY_MS)
    leader.take_join(call)
    leader.joined = replace(leader.joined, members=())
    assert leader.sync().assignment == b""
    assert coordinator.state() == "Stable"


def test_heartbeats_before_the_assignments_renew_the_session(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    calls = [leader.send_join(), follower.send_join()]
    coordinator.pass_time(2 * DELAY_MS)
    leader.take_join(calls[0])
    follower.take_join(calls[1])
    for _ in range(3):
        coordinator.pass_time(SESSION_MS - 1)
        assert coordinator.state() == "CompletingRebalance"
        assert {leader.heartbeat(), follower.heartbeat()} == {"NONE"}


def test_members_that_never_send_sync_are_removed(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    calls = [leader.send_join(), follower.send_join()]
    coordinator.pass_time(2 * DELAY_MS)
    leader.take_join(calls[0])
    follower.take_join(calls[1])
    waiting = follower.send_sync()
    for _ in range(REBALANCE_MS // 5_000):
        assert leader.heartbeat() == "NONE"
        coordinator.pass_time(5_000)
    assert leader.heartbeat() == "UNKNOWN_MEMBER_ID"
    assert coordinator.answers[waiting].error.name == "REBALANCE_IN_PROGRESS"
    assert follower.join().leader == follower.member_id


def test_a_follower_that_never_sends_sync_is_removed_from_a_stable_group(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    calls = [leader.send_join(), follower.send_join()]
    coordinator.pass_time(2 * DELAY_MS)
    leader.take_join(calls[0])
    follower.take_join(calls[1])
    leader.sync()
    for _ in range(2 * REBALANCE_MS // SESSION_MS):
        coordinator.pass_time(SESSION_MS // 2)
        leader.heartbeat()
        follower.heartbeat()
    assert leader.heartbeat() == "REBALANCE_IN_PROGRESS"
    assert follower.heartbeat() == "UNKNOWN_MEMBER_ID"


def test_assignments_that_do_not_fit_into_a_record_are_refused() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    leader = Member(coordinator, "a")
    call = leader.send_join()
    coordinator.pass_time(DELAY_MS)
    leader.take_join(call)
    too_large = (g.MemberAssignment(leader.member_id, bytes(6_000)),)
    answer = coordinator.ask(g.SyncGroup(GROUP, leader.member_id, None, 1, assignments=too_large))
    assert answer.error.name == "GROUP_MAX_SIZE_REACHED"
    assert coordinator.log == []
    assert "do not fit" in coordinator.machine.explain(GROUP)[-1].cause


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"generation": 0}, "ILLEGAL_GENERATION"),
        ({"generation": 2}, "ILLEGAL_GENERATION"),
        ({"member_id": "a-stranger"}, "UNKNOWN_MEMBER_ID"),
        ({"instance_id": "nobody"}, "UNKNOWN_MEMBER_ID"),
        ({"group": "nobody"}, "UNKNOWN_MEMBER_ID"),
    ],
)
def test_requests_with_a_wrong_generation_member_or_group_are_refused(
    two: tuple[Member, Member], change: dict[str, Any], error: str
) -> None:
    leader, _ = two
    ids = (GROUP, leader.member_id, None, leader.generation)
    requests: list[Any] = [
        g.SyncGroup(*ids),
        g.Heartbeat(*ids),
        g.OffsetCommit(*ids, (g.OffsetToCommit("sales", 0, 5),)),
    ]
    errors = []
    for request in requests:
        answer = leader.coordinator.ask(replace(request, **change))
        errors.append((answer.results[0] if isinstance(answer, g.OffsetCommitResponse) else answer).error.name)
    if change == {"group": "nobody"}:
        assert errors == [error, error, "ILLEGAL_GENERATION"]
    else:
        assert errors == [error] * 3
    assert leader.heartbeat() == "NONE"


def test_a_sync_that_names_another_protocol_is_refused(two: tuple[Member, Member]) -> None:
    leader, _ = two
    request = g.SyncGroup(GROUP, leader.member_id, None, 1, "consumer", "range")
    assert leader.coordinator.ask(request).assignment == b"a"
    for other in (replace(request, protocol_type="connect"), replace(request, protocol="sticky")):
        answer = leader.coordinator.ask(other)
        assert answer.error.name == "INCONSISTENT_GROUP_PROTOCOL"


# -- members that leave, and sessions


def test_a_member_whose_session_ends_is_removed(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    coordinator.pass_time(SESSION_MS - 1)
    assert leader.heartbeat() == "NONE"
    coordinator.pass_time(1)
    assert leader.heartbeat() == "REBALANCE_IN_PROGRESS"
    assert follower.heartbeat() == "UNKNOWN_MEMBER_ID"
    assert leader.join().generation == 2


def test_a_member_that_waits_in_join_does_not_expire(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    call = leader.send_join()
    for _ in range(3):
        coordinator.pass_time(SESSION_MS - 1)
        follower.heartbeat()
    follower.join()
    assert leader.take_join(call).error.name == "NONE"


def test_a_group_whose_last_member_left_is_logged_as_empty(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    assert follower.leave("done") == "NONE"
    assert leader.leave() == "NONE"
    assert coordinator.state() == "Empty"
    assert coordinator.reload().state() == "Empty"
    assert leader.heartbeat() == "UNKNOWN_MEMBER_ID"


def test_several_members_leave_with_one_rebalance(coordinator: Coordinator) -> None:
    members = [Member(coordinator, name) for name in "abc"]
    coordinator.stable(*members)
    leaving = (
        g.LeavingMember(members[1].member_id, None, "scaled down"),
        g.LeavingMember("stranger"),
        g.LeavingMember(members[2].member_id),
        g.LeavingMember(members[2].member_id),
        g.LeavingMember(""),
    )
    answer = coordinator.ask(g.LeaveGroup(GROUP, leaving))
    unknown = "UNKNOWN_MEMBER_ID"
    assert [each.error.name for each in answer.members] == ["NONE", unknown, "NONE", unknown, unknown]
    assert members[0].join().generation == 2
    assert [each.cause for each in coordinator.machine.explain(GROUP)][1:] == [
        f"member {members[1].member_id!r} and 1 other left: 'scaled down'"
    ]


def test_an_unused_member_id_that_leaves_no_longer_delays_the_rebalance(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    request = g.JoinGroup(GROUP, "", None, Client("c", "/h"), "consumer", leader.protocols, SESSION_MS, REBALANCE_MS)
    given = coordinator.ask(request).member_id
    calls = [leader.send_join(), follower.send_join()]
    left = coordinator.ask(g.LeaveGroup(GROUP, (g.LeavingMember(given),)))
    assert left.members[0].error.name == "NONE"
    assert [coordinator.waits(call) for call in calls] == [False, False]


def test_a_member_that_leaves_while_its_join_waits_is_answered(two: tuple[Member, Member]) -> None:
    leader, _ = two
    call = leader.send_join()
    assert leader.leave() == "NONE"
    assert leader.coordinator.answers[call].error.name == "UNKNOWN_MEMBER_ID"


def test_leaving_a_missing_group_is_refused_for_each_member(coordinator: Coordinator) -> None:
    answer = coordinator.ask(g.LeaveGroup("nobody", (g.LeavingMember("m"),)))
    assert answer.error.name == "NONE"
    assert answer.members[0].error.name == "UNKNOWN_MEMBER_ID"


# -- clients that disconnect


def test_a_client_that_disconnected_in_join_counts_as_not_joined(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    call = follower.send_join()
    leader.protocols = (g.MemberProtocol("range", subscription("other")),)
    waiting = leader.send_join()
    coordinator.hang_up(waiting)
    third = Member(coordinator, "c").send_join()
    follower.send_join()
    assert coordinator.waits(third)
    coordinator.pass_time(SESSION_MS)
    assert coordinator.waits(waiting)
    assert not coordinator.waits(third)
    assert leader.heartbeat() == "UNKNOWN_MEMBER_ID"
    assert coordinator.answers[call].generation == 1


def test_a_new_member_whose_client_disconnected_before_it_got_its_member_id_is_removed(
    two: tuple[Member, Member],
) -> None:
    leader, _ = two
    coordinator = leader.coordinator
    call = Member(coordinator, "c").send_join(needs_member_id=False)
    assert len(coordinator.describe().members) == 3
    coordinator.hang_up(call)
    coordinator.pass_time(1)
    assert len(coordinator.describe().members) == 2
    coordinator.hang_up(call)


def test_a_disconnection_writes_no_record_even_if_it_empties_the_group(coordinator: Coordinator) -> None:
    first = Member(coordinator, "a")
    coordinator.stable(first)
    call = Member(coordinator, "b").send_join(needs_member_id=False)
    first.leave()
    again = Member(coordinator, "c").send_join(needs_member_id=False)
    written = len(coordinator.log)
    coordinator.hang_up(call)
    coordinator.hang_up(again)
    assert len(coordinator.log) == written
    coordinator.pass_time(REBALANCE_MS)
    assert coordinator.state() == "Empty"
    assert len(coordinator.log) == written + 1


def test_a_client_that_disconnected_in_sync_keeps_its_session(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    calls = [leader.send_join(), follower.send_join()]
    coordinator.pass_time(2 * DELAY_MS)
    leader.take_join(calls[0])
    follower.take_join(calls[1])
    waiting = follower.send_sync()
    coordinator.hang_up(waiting)
    leader.sync()
    assert coordinator.waits(waiting)
    assert follower.sync().assignment == b"b"


def test_a_repeated_join_answers_the_earlier_join_with_rebalance_in_progress(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    first = leader.send_join()
    second = leader.send_join()
    assert coordinator.answers[first].error.name == "REBALANCE_IN_PROGRESS"
    assert coordinator.waits(second)
    follower.join()
    assert not coordinator.waits(second)


def test_a_join_of_a_new_member_that_waits_too_long_is_refused() -> None:
    coordinator = Coordinator(replace(LIMITS, session_timeout_max_ms=1_000_000))
    slow = Member(coordinator, "a")
    slow.rebalance_timeout_ms = slow.session_timeout_ms = 1_000_000
    coordinator.stable(slow)
    call = Member(coordinator, "b").send_join(needs_member_id=False)
    coordinator.pass_time(300_000)
    assert coordinator.answers[call].error.name == "UNKNOWN_MEMBER_ID"


# -- the history


def test_the_history_names_the_cause_and_the_client_of_each_rebalance(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    follower.protocols = (g.MemberProtocol("range", subscription("other")),)
    follower.send_join(reason="topic 'other' appeared")
    coordinator.pass_time(500)
    leader.join()
    assert [each.member_id for each in leader.joined.members] == sorted([leader.member_id, follower.member_id])
    leader.sync()
    first, second = coordinator.machine.explain(GROUP)
    assert first.cause == f"member {leader.member_id!r} joined"
    assert (first.generation, first.members, first.interrupted) == (1, 2, False)
    assert second == g.Rebalance(
        started_ms=second.started_ms,
        duration_ms=500,
        generation=2,
        cause=f"member {follower.member_id!r} joined with another subscription: \"topic 'other' appeared\"",
        client=Client("b", "/127.0.0.1"),
        members=2,
        reason=g.RebalanceReason.SUBSCRIPTION_CHANGED,
        member=g.MemberName(follower.member_id, None, Client("b", "/127.0.0.1")),
    )
    assert second.started_ms == coordinator.wall_ms - 500


def test_the_history_of_a_group_and_the_length_of_its_reasons_are_bounded(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    coordinator.stable(member)
    for _ in range(30):
        member.join("x" * 1_000)
        member.sync()
    history = coordinator.machine.explain(GROUP)
    assert [each.generation for each in history] == list(range(12, 32))
    assert not any(each.interrupted for each in history)
    assert len(history[-1].cause) < 400
    assert coordinator.machine.explain("nobody") == ()
