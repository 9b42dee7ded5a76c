"""The coordinator as a whole: loads, time, and the answers to administrators."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from broker.core.coordinator import group_requests as g
from broker.core.coordinator import records as r
from broker.core.coordinator.client import Client
from broker.core.coordinator.fields import BadRecord
from broker.core.coordinator.group import GENERATION_MAX
from broker.core.coordinator.machine import Record
from tests.unit.broker.core.coordinator.driver import (
    DELAY_MS,
    GROUP,
    LIMITS,
    SESSION_MS,
    Coordinator,
    Member,
    subscription,
)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def stored(generation: int = 5, protocol: str | None = "range") -> list[Record]:
    """Return the record of a group with one member."""
    member = r.MemberValue("m", None, "c", "/h", 30_000, SESSION_MS, subscription("sales"), b"mine")
    value = r.GroupValue("consumer", generation, protocol, "m", 77, (member,))
    return [Record(r.write_key(r.GroupKey(GROUP)), r.write_group(value))]


# -- loading


def test_a_stable_group_goes_on_after_a_load_without_a_rebalance(coordinator: Coordinator) -> None:
    leader, follower = Member(coordinator, "a"), Member(coordinator, "b")
    coordinator.stable(leader, follower)
    before = coordinator.describe()
    leader.coordinator = follower.coordinator = after = coordinator.reload()
    assert after.describe() == before
    after.pass_time(SESSION_MS - 1)
    assert leader.heartbeat() == "NONE"
    assert follower.heartbeat() == "NONE"
    assert follower.sync().assignment == b"b"
    assert len(after.log) == len(coordinator.log)


def test_loaded_members_without_heartbeats_expire(coordinator: Coordinator) -> None:
    coordinator.stable(Member(coordinator, "a"), Member(coordinator, "b"))
    after = coordinator.reload()
    after.pass_time(SESSION_MS)
    assert after.state() == "Empty"
    assert after.reload().state() == "Empty"


def test_a_rebalance_in_progress_is_lost_with_the_coordinator(coordinator: Coordinator) -> None:
    leader = Member(coordinator, "a")
    coordinator.stable(leader)
    assert leader.join().generation == 2
    leader.coordinator = coordinator.reload()
    assert leader.heartbeat() == "ILLEGAL_GENERATION"
    assert leader.sync().error.name == "ILLEGAL_GENERATION"
    assert leader.join().generation == 2
    assert leader.sync().assignment == b"a"


def test_a_group_that_was_never_stable_is_lost_with_the_coordinator(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    call = member.send_join()
    coordinator.pass_time(DELAY_MS)
    member.take_join(call)
    member.coordinator = coordinator.reload()
    assert member.heartbeat() == "UNKNOWN_MEMBER_ID"
    assert member.coordinator.state() == "Dead"


def test_a_deleted_group_stays_deleted_after_a_load(coordinator: Coordinator) -> None:
    log = [*stored(), Record(r.write_key(r.GroupKey(GROUP)), None), Record(r.write_key(r.GroupKey("x")), None)]
    assert Coordinator(records=log).state() == "Dead"


def test_a_damaged_record_is_refused(coordinator: Coordinator) -> None:
    (record,) = stored()
    assert record.value is not None
    for damaged in (replace(record, value=record.value[:-1]), replace(record, key=record.key[:-1])):
        with pytest.raises(BadRecord):
            coordinator.machine.replay(damaged)
    assert coordinator.state() == "Dead"


def test_the_generation_wraps_to_zero_after_its_maximum() -> None:
    coordinator = Coordinator(records=stored(GENERATION_MAX))
    member = Member(coordinator, "c")
    member.member_id = "m"
    assert member.join().generation == 0
    assert member.sync().error.name == "NONE"
    assert coordinator.reload().state() == "Stable"


def test_a_stored_group_without_a_protocol_is_loaded() -> None:
    coordinator = Coordinator(records=stored(protocol=None))
    assert coordinator.describe().members[0].assignment == b"mine"
    coordinator.pass_time(SESSION_MS)
    assert coordinator.state() == "Empty"


# -- time


def test_a_tick_stops_when_its_batch_is_full_and_later_ticks_continue() -> None:
    coordinator = Coordinator(replace(LIMITS, batch_max_bytes=10_000))
    names = [f"group-{index}-{'x' * 200}" for index in range(60)]
    for name in names:
        coordinator.stable(Member(coordinator, "a", group=name))
        coordinator.now_ms, coordinator.wall_ms = 5_000, coordinator.wall_ms
    after = coordinator.reload(replace(LIMITS, batch_max_bytes=10_000))
    after.now_ms += SESSION_MS
    step = after.take(after.machine.tick(after.now_ms))
    assert 0 < len(step.records) < 60
    assert sum(len(each.key) + len(each.value or b"") for each in step.records) <= 10_000
    after.pass_time(100)
    assert {after.state(name) for name in names} == {"Empty"}


def test_many_heartbeats_do_not_fill_the_queue_of_deadlines(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    coordinator.stable(member)
    for _ in range(1_000):
        member.heartbeat()
    assert len(coordinator.machine._heap) <= 4
    for _ in range(1_000):
        client = Client("b", "/h")
        coordinator.ask(g.JoinGroup(GROUP, "", None, client, "consumer", member.protocols, 1_000, 1_000))
        left = tuple(g.LeavingMember(each) for each in list(coordinator.machine._groups[GROUP].pending))
        coordinator.ask(g.LeaveGroup(GROUP, left))
        coordinator.now_ms += 1
        member.heartbeat()
    assert len(coordinator.machine._heap) <= 4 * 17


def test_a_machine_wants_no_tick_before_it_is_loaded(coordinator: Coordinator) -> None:
    fresh = type(coordinator.machine)(LIMITS, coordinator.cluster, coordinator.machine._random, lambda: 0)
    assert fresh.deadline_ms is None
    fresh.topics_deleted(["sales"], 0)
    fresh.configure(LIMITS, 0)
    fresh.loaded(0)
    assert fresh.deadline_ms is not None


# -- answers to administrators


def test_members_are_described_with_their_metadata_only_while_the_group_is_stable(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a")
    coordinator.stable(member)
    described = coordinator.describe()
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    assert described.members == (
        g.MemberDescription(member.member_id, None, "a", "/127.0.0.1", subscription("sales"), b"a"),
    )
    member.join()
    described = coordinator.describe()
    assert (described.state, described.protocol) == ("CompletingRebalance", "")
    assert described.members[0][4:] == (b"", b"")


def test_a_missing_group_is_reported_as_an_error_only_in_request_versions_that_support_it(
    coordinator: Coordinator,
) -> None:
    (new,) = coordinator.ask(g.DescribeGroups(("nobody",))).groups
    assert (new.error.name, new.error_message, new.state) == (
        "GROUP_ID_NOT_FOUND",
        "There is no group nobody.",
        "Dead",
    )
    (old,) = coordinator.ask(g.DescribeGroups(("nobody",), report_missing=False)).groups
    assert (old.error.name, old.state) == ("NONE", "Dead")


def test_groups_are_listed_by_state_and_type(coordinator: Coordinator) -> None:
    coordinator.stable(Member(coordinator, "a"))
    coordinator.commit(g.OffsetToCommit("sales", 0, 1), group="simple")
    emptied = Member(coordinator, "b", group="emptied")
    coordinator.stable(emptied)
    emptied.leave()

    def names(*states: str, types: tuple[str, ...] = ()) -> list[str]:
        request = g.ListGroups(frozenset(states), frozenset(types))
        return [each.group for each in coordinator.ask(request).groups]

    assert names() == ["emptied", GROUP, "simple"]
    assert names("sTable") == [GROUP]
    assert names("Empty", types=("Classic",)) == ["emptied", "simple"]
    assert names(types=("consumer",)) == []
    listed = {each.group: each for each in coordinator.ask(g.ListGroups()).groups}
    assert listed[GROUP] == g.ListedGroup(GROUP, "consumer", "Stable", "classic")
    assert listed["simple"].protocol_type == ""


def test_changes_of_a_groups_state_are_reported_as_single_lines_for_the_log(coordinator: Coordinator) -> None:
    member = Member(coordinator, "a\nb")
    coordinator.stable(member)
    assert f"group={GROUP!r} state=Stable generation=1 event=the assignments are known" in coordinator.notes
    assert not any("\n" in note for note in coordinator.notes)
