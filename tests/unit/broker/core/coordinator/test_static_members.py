"""Static members: a restarted process takes over the instance id and the assignment of its predecessor."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from quorumlog.wire.errors import KafkaCode
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
    """The static leader and a static follower of a stable group."""
    leader, follower = Member(coordinator, "a", instance_id="one"), Member(coordinator, "b", instance_id="two")
    coordinator.stable(leader, follower)
    assert leader.leads
    return leader, follower


def restarted(member: Member) -> Member:
    """Return the process that replaces this one under the same instance id."""
    return Member(member.coordinator, member.client_id, instance_id=member.instance_id)


def test_a_static_member_needs_no_member_id_to_join(two: tuple[Member, Member]) -> None:
    assert [each.member_id.rpartition("-")[0][:3] for each in two] == ["one", "two"]


def test_a_restarted_follower_takes_over_without_a_rebalance(two: tuple[Member, Member]) -> None:
    leader, follower = two
    after = restarted(follower)
    joined = after.join()
    assert (joined.generation, joined.leader, joined.members) == (1, leader.member_id, ())
    assert not joined.skip_assignment
    assert after.member_id != follower.member_id
    assert after.sync().assignment == b"two"
    assert leader.heartbeat() == "NONE"


def test_a_member_without_an_instance_id_never_replaces_one_with_an_empty_instance_id(coordinator: Coordinator) -> None:
    unnamed = Member(coordinator, "a", instance_id="")
    coordinator.stable(unnamed)
    leave = g.LeaveGroup(GROUP, (g.LeavingMember("", None),))
    (left,) = coordinator.ask(leave).members
    assert left.error is KafkaCode.UNKNOWN_MEMBER_ID
    other = Member(coordinator, "b")
    other.send_join()
    assert unnamed.heartbeat() == "REBALANCE_IN_PROGRESS"
    after = restarted(unnamed)
    after.send_join()
    assert unnamed.heartbeat() == "FENCED_INSTANCE_ID"


def test_the_process_that_was_replaced_is_fenced(two: tuple[Member, Member]) -> None:
    _, follower = two
    restarted(follower).join()
    assert follower.heartbeat() == "FENCED_INSTANCE_ID"
    assert follower.sync().error.name == "FENCED_INSTANCE_ID"
    assert follower.commit(5) == "FENCED_INSTANCE_ID"
    assert follower.leave() == "FENCED_INSTANCE_ID"
    assert follower.join_error() == "FENCED_INSTANCE_ID"


def test_a_replacement_survives_a_change_of_the_coordinator(two: tuple[Member, Member]) -> None:
    leader, follower = two
    after = restarted(follower)
    after.join()
    after.coordinator = follower.coordinator = leader.coordinator.reload()
    assert after.heartbeat() == "NONE"
    assert follower.heartbeat() == "FENCED_INSTANCE_ID"


def test_a_restarted_leader_skips_the_assignment(two: tuple[Member, Member]) -> None:
    leader, follower = two
    after = restarted(leader)
    joined = after.join()
    assert joined.skip_assignment
    assert joined.leader == after.member_id
    assert {each.member_id for each in joined.members} == {after.member_id, follower.member_id}
    assert after.sync().assignment == b"one"
    assert follower.heartbeat() == "NONE"


def test_a_restarted_leader_with_an_old_client_gets_no_members_to_assign(two: tuple[Member, Member]) -> None:
    leader, _ = two
    after = restarted(leader)
    joined = after.take_join(after.send_join(can_skip_assignment=False))
    assert (joined.leader, joined.members, joined.skip_assignment) == (leader.member_id, (), False)


def test_a_replacement_that_changes_the_chosen_protocol_begins_a_rebalance(two: tuple[Member, Member]) -> None:
    leader, follower = two
    both = (g.MemberProtocol("sticky", b""), g.MemberProtocol("range", b""))
    for member in two:
        member.protocols = both[::-1]
    calls = [member.send_join() for member in two]
    for member, call in zip(two, calls, strict=True):
        member.take_join(call)
    follower.send_sync()
    leader.sync()
    one, after = restarted(leader), restarted(follower)
    after.protocols = both
    assert after.join().generation == 2
    one.protocols = both
    call = one.send_join()
    assert leader.coordinator.state() == "PreparingRebalance"
    after.join()
    assert one.take_join(call).protocol == "sticky"


def test_another_subscription_of_a_restarted_member_is_stored_without_a_rebalance(
    two: tuple[Member, Member],
) -> None:
    leader, follower = two
    after = Member(leader.coordinator, "b", topics=("other",), instance_id="two")
    assert after.join().generation == 1
    assert leader.heartbeat() == "NONE"
    assert follower.heartbeat() == "FENCED_INSTANCE_ID"
    described = {each.instance_id: each.metadata for each in leader.coordinator.reload().describe().members}
    assert described == {"one": subscription("sales"), "two": subscription("other")}


def test_a_replacement_whose_metadata_exceeds_the_group_record_begins_a_rebalance() -> None:
    limits = replace(LIMITS, batch_max_bytes=20_000, initial_rebalance_delay_ms=0)
    coordinator = Coordinator(limits)

    def assign(member: Member, size: int) -> str:
        assignments = (g.MemberAssignment(member.member_id, bytes(size)),)
        request = g.SyncGroup(GROUP, member.member_id, "one", member.generation, assignments=assignments)
        error: KafkaCode = coordinator.ask(request).error
        return error.name

    member = Member(coordinator, "a", instance_id="one")
    member.join()
    assert assign(member, 12_000) == "NONE"
    after = restarted(member)
    after.protocols = (g.MemberProtocol("range", bytes(12_000)),)
    assert after.join().generation == 2
    assert coordinator.state() == "CompletingRebalance"
    assert member.heartbeat() == "FENCED_INSTANCE_ID"
    assert assign(after, 1_000) == "NONE"
    assert coordinator.reload(limits).describe().members[0].assignment == bytes(1_000)
    assert max(len(each.key) + len(each.value or b"") for each in coordinator.log) <= limits.batch_max_bytes

    again = restarted(after)
    again.protocols = after.protocols
    assert again.join().generation == 2, "this one fits"


def test_the_waiting_join_of_a_replaced_process_is_answered_as_fenced(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a", instance_id="one")
    first = member.send_join()
    after = restarted(member)
    second = after.send_join()
    assert coordinator.answers[first].error.name == "FENCED_INSTANCE_ID"
    coordinator.pass_time(2 * DELAY_MS)
    assert after.take_join(second).error.name == "NONE"
    assert len(coordinator.describe().members) == 1


def test_a_replacement_before_the_assignments_begins_a_new_rebalance(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a", instance_id="one"), Member(coordinator, "b", instance_id="two")
    calls = [leader.send_join(), follower.send_join()]
    coordinator.pass_time(2 * DELAY_MS)
    leader.take_join(calls[0])
    follower.take_join(calls[1])
    waiting = follower.send_sync()
    after = restarted(follower)
    call = after.send_join()
    assert coordinator.answers[waiting].error.name == "FENCED_INSTANCE_ID"
    assert leader.sync().error.name == "REBALANCE_IN_PROGRESS"
    leader.join()
    assert after.take_join(call).generation == 2


def test_a_static_member_stays_through_a_rebalance_that_it_misses(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    follower.session_timeout_ms = 60_000
    leader.rebalance_timeout_ms = follower.rebalance_timeout_ms = 15_000
    follower.protocols = (g.MemberProtocol("range", subscription("sales", "other")),)
    call = follower.send_join()
    leader.join()
    follower.take_join(call)
    waiting = follower.send_sync()
    leader.sync()
    assert not coordinator.waits(waiting)
    # The follower's process restarts now.  Meanwhile the leader begins a rebalance.
    calls = [leader.send_join()]
    while coordinator.waits(calls[-1]):
        coordinator.pass_time(SESSION_MS // 2)
    leader.take_join(calls[-1])
    assert leader.sync().error.name == "NONE"
    assert len(coordinator.describe().members) == 2
    for _ in range(4):
        coordinator.pass_time(SESSION_MS // 2)
        assert leader.heartbeat() == "NONE"
    after = restarted(follower)
    assert after.join().generation == leader.generation
    assert after.sync().assignment == b"two"


def test_a_static_member_whose_session_ends_is_removed(two: tuple[Member, Member]) -> None:
    leader, follower = two
    coordinator = leader.coordinator
    coordinator.pass_time(SESSION_MS // 2)
    leader.heartbeat()
    coordinator.pass_time(SESSION_MS // 2)
    assert leader.heartbeat() == "REBALANCE_IN_PROGRESS"
    assert follower.heartbeat() == "UNKNOWN_MEMBER_ID"


def test_a_rebalance_that_nobody_joins_waits_for_the_static_members(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a", instance_id="one"), Member(coordinator, "b", instance_id="two")
    leader.session_timeout_ms = follower.session_timeout_ms = 60_000
    coordinator.stable(leader, follower)
    leader.protocols = (g.MemberProtocol("range", subscription("other")),)
    coordinator.hang_up(leader.send_join())
    coordinator.pass_time(REBALANCE_MS + 1)
    assert coordinator.state() == "PreparingRebalance"
    call = leader.send_join()
    assert coordinator.waits(call)
    assert follower.join().generation == 2
    assert leader.take_join(call).generation == 2


def test_an_administrator_removes_a_static_member_by_its_instance_id(two: tuple[Member, Member]) -> None:
    leader, follower = two
    answer = leader.coordinator.ask(g.LeaveGroup(GROUP, (g.LeavingMember("", "two", "moved"),)))
    assert answer.members == (g.LeftMember("", "two", answer.error),)
    assert follower.heartbeat() == "UNKNOWN_MEMBER_ID"
    assert leader.heartbeat() == "REBALANCE_IN_PROGRESS"


@pytest.mark.parametrize("leaves_first", [False, True])
def test_a_change_of_the_coordinator_during_a_rebalance_does_not_fence_the_latest_process(
    two: tuple[Member, Member], leaves_first: bool
) -> None:
    """The record of the last stable generation also names the latest process."""
    leader, follower = two
    leader.protocols = (g.MemberProtocol("range", subscription("other")),)
    leader.send_join()
    if leaves_first:
        follower.leave()
    after = restarted(follower)
    call = after.send_join()
    if leaves_first:
        leader.send_join()
    after.take_join(call)
    reloaded = leader.coordinator.reload()
    after.coordinator = follower.coordinator = leader.coordinator = reloaded
    assert reloaded.state() == "Stable"
    assert after.heartbeat() == "ILLEGAL_GENERATION"
    assert follower.heartbeat() == "FENCED_INSTANCE_ID"
