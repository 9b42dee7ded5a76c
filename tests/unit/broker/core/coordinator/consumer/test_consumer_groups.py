"""Members of the newer protocol: joining, moving partitions, epochs, static members, time, topics and offsets."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.consumer.records import Kind, read_key
from broker.core.coordinator.machine import Record
from tests.unit.broker.core.coordinator.consumer.driver import (
    REBALANCE_MS,
    SESSION_MS,
    ConsumerClient,
    coordinator,
    described,
    go_on,
    group_of,
    joined,
    limits,
)
from tests.unit.broker.core.coordinator.driver import GROUP, Coordinator


def sales(*partitions: int) -> set[tuple[str, int]]:
    return {("sales", partition) for partition in partitions}


# -- joining, and moving partitions


def test_the_first_member_gets_all_partitions_with_its_first_heartbeat() -> None:
    home = coordinator(sales=3)
    client = ConsumerClient(home, "m1")
    assert client.join() == "NONE"
    assert client.has == sales(0, 1, 2)
    assert client.epoch == 1
    assert client.answer.heartbeat_interval_ms == 5_000
    assert described(home).state == "Stable"


def test_a_partition_moves_only_after_its_owner_gave_it_up() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    second.join()
    assert second.has == set()
    assert second.epoch == 2
    first.silent_beat()
    assert first.has == sales(0, 1)
    assert first.epoch == 1, "the epoch stays until the partitions are given up"
    second.beat()
    assert second.has == set(), "the first member has not confirmed that it gave them up"
    first.beat()
    assert first.epoch == 2
    second.beat()
    assert second.has == sales(2, 3)
    assert described(home).state == "Stable"


def test_a_heartbeat_that_changes_nothing_has_no_assignment_and_no_record() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    records = len(home.log)
    assert client.silent_beat() == "NONE"
    assert client.answer.assignment is None
    assert len(home.log) == records


def test_a_full_heartbeat_is_answered_with_the_assignment() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.beat(topics=("sales",), rebalance_timeout_ms=REBALANCE_MS)
    assert client.answer.assignment is not None


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first, second)
    assert first.leave() == "NONE"
    assert first.answer.epoch == -1
    second.beat()
    assert second.has == sales(0, 1, 2, 3)


def test_a_member_that_changes_its_subscription_gets_its_topics() -> None:
    home = coordinator(sales=2, other=2)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.subscribe("other")
    assert client.has == set()
    client.beat()
    assert client.has == {("other", 0), ("other", 1)}


def test_a_group_without_members_is_empty_and_its_epoch_continues() -> None:
    home = coordinator(sales=2)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.leave()
    assert described(home).state == "Empty"
    client.join()
    assert client.epoch == 3


def test_members_choose_the_assignor_by_majority() -> None:
    home = coordinator(sales=4, other=4)
    both = ("sales", "other")
    clients = [ConsumerClient(home, f"m{index}", both, assignor="range") for index in range(2)]
    joined(home, *clients)
    assert described(home).assignor == "range"
    assert [client.has for client in clients] == [
        {("sales", 0), ("sales", 1), ("other", 0), ("other", 1)},
        {("sales", 2), ("sales", 3), ("other", 2), ("other", 3)},
    ]


def test_a_member_without_topics_gets_none() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", ())
    joined(home, client)
    assert client.has == set()
    assert client.epoch == 1


# -- epochs


def test_a_heartbeat_with_the_previous_epoch_is_accepted_if_its_answer_was_lost() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    second.join()
    first.silent_beat()
    before = first.epoch
    first.beat()
    first.epoch = before
    assert first.beat() == "NONE"
    assert first.epoch == 2


@pytest.mark.parametrize("offset", [-2, 1])
def test_another_epoch_is_fenced(offset: int) -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    for topic in ("sales", "other", "sales"):
        client.subscribe(topic)
        client.beat()
    client.epoch += offset
    assert client.beat() == "FENCED_MEMBER_EPOCH"
    assert "must join again" in (client.answer.message or "")
    client.epoch = 0
    assert client.join() == "NONE"
    assert client.has == sales(0, 1, 2, 3)


def test_the_previous_epoch_is_fenced_if_the_member_owns_other_partitions() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    owned = first.owned
    second.join()
    first.silent_beat()
    before = first.epoch
    first.beat()
    first.epoch = before
    assert first.beat(owned=owned) == "FENCED_MEMBER_EPOCH"
    assert first.silent_beat() == "FENCED_MEMBER_EPOCH"


def test_an_unknown_member_joins_again() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "m1"))
    stranger = ConsumerClient(home, "m2")
    stranger.epoch = 1
    assert stranger.beat() == "UNKNOWN_MEMBER_ID"
    assert stranger.leave() == "UNKNOWN_MEMBER_ID"


def test_a_heartbeat_for_a_missing_group_makes_no_group() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    client.epoch = 3
    assert client.beat() == "GROUP_ID_NOT_FOUND"
    assert home.machine._groups == {}
    assert home.log == []


# -- requests that are refused


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, "INVALID_REQUEST"),
        ({"member_id": ""}, "INVALID_REQUEST"),
        ({"instance_id": " "}, "INVALID_REQUEST"),
        ({"rack_id": ""}, "INVALID_REQUEST"),
        ({"rebalance_timeout_ms": -1}, "INVALID_REQUEST"),
        ({"rebalance_timeout_ms": -2}, "INVALID_REQUEST"),
        ({"owned": None}, "INVALID_REQUEST"),
        ({"topics": None}, "INVALID_REQUEST"),
        ({"epoch": -3}, "INVALID_REQUEST"),
        ({"epoch": -2}, "INVALID_REQUEST"),
        ({"member_id": "m" * 1_025}, "INVALID_REQUEST"),
        ({"topics": tuple(map(str, range(10_001)))}, "INVALID_REQUEST"),
        ({"topics": tuple(f"{index:01000}" for index in range(126))}, "INVALID_REQUEST"),
        ({"assignor": "mine"}, "UNSUPPORTED_ASSIGNOR"),
        ({"regex": "("}, "INVALID_REGULAR_EXPRESSION"),
    ],
)
def test_a_request_that_no_group_accepts_changes_nothing(fields: dict[str, Any], error: str) -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    assert client.join(**fields) == error
    assert client.answer.message
    assert home.log == []
    assert home.machine._groups == {}


def test_a_group_takes_no_more_members_than_its_maximum() -> None:
    home = coordinator(limits(members_max=2), sales=4)
    joined(home, ConsumerClient(home, "m1"), ConsumerClient(home, "m2"))
    records = len(home.log)
    late = ConsumerClient(home, "m3")
    assert late.join() == "GROUP_MAX_SIZE_REACHED"
    assert len(home.log) == records


def test_a_group_whose_targets_would_not_fit_into_a_batch_takes_no_more_members() -> None:
    small = g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000)
    home = coordinator(small, sales=10)
    errors = [ConsumerClient(home, f"member-{index}").join() for index in range(100)]
    assert errors[0] == "NONE"
    assert errors[-1] == "GROUP_MAX_SIZE_REACHED"
    assert len(group_of(home).members) == errors.count("NONE")


def test_the_coordinator_makes_the_member_id_only_in_the_first_version() -> None:
    home = coordinator(sales=4)
    old = ConsumerClient(home, "")
    assert old.join(may_lack_id=True) == "NONE"
    assert old.answer.member_id
    assert old.has == sales(0, 1, 2, 3)


# -- regular expressions


def test_a_regular_expression_matches_whole_names_also_of_later_topics() -> None:
    home = coordinator(sales=1, sales_eu=1, resales=1)
    client = ConsumerClient(home, "m1", (), regex="sales.*")
    joined(home, client)
    assert client.has == {("sales", 0), ("sales_eu", 0)}
    home.change_topics(sales_us=2, other=1)
    client.beat()
    assert client.has == {("sales", 0), ("sales_eu", 0), ("sales_us", 0), ("sales_us", 1)}


def test_names_and_a_regular_expression_are_added() -> None:
    home = coordinator(sales=1, other=1)
    client = ConsumerClient(home, "m1", ("other",), regex="sal.*")
    joined(home, client)
    assert client.has == {("sales", 0), ("other", 0)}


def test_the_record_of_a_regular_expression_is_deleted_with_its_last_member() -> None:
    home = coordinator(sales=1)
    client, other = ConsumerClient(home, "m1", (), regex="sal.*"), ConsumerClient(home, "m2", (), regex="sal.*")
    joined(home, client, other)
    client.leave()
    assert group_of(home).regexes.keys() == {"sal.*"}
    other.beat(regex="")
    assert group_of(home).regexes == {}
    deleted = [read_key(record.key) for record in home.log if record.value is None]
    assert [key.name for key in deleted if key is not None and key.kind is Kind.REGEX] == ["sal.*"]


def test_a_regular_expression_that_matches_too_much_is_refused_and_one_that_grows_keeps_its_topics() -> None:
    small = g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000)
    home = coordinator(small, sales=1)
    client = ConsumerClient(home, "m1", (), regex=".*")
    joined(home, client)
    home.change_topics(**{f"topic_{index:0100}": 1 for index in range(13)})
    go_on(client)
    assert client.has == sales(0)
    assert any("too many topics" in note for note in home.notes)
    assert ConsumerClient(home, "m2", (), regex=".*").join() == "INVALID_REGULAR_EXPRESSION"


def test_a_tick_compares_the_topics_with_the_expressions_of_few_groups() -> None:
    home = coordinator(sales=1)
    clients = [
        ConsumerClient(home, f"m{number}", (), regex=f"sales.*|{number}", group=f"g{number}") for number in range(10)
    ]
    for client in clients:
        joined(home, client)
    home.cluster.partitions["sales_eu"] = 1
    home.machine.topics_changed(None, home.now_ms)
    outdated = []
    while any(group_of(home, client.group).is_outdated for client in clients):
        deadline_ms = home.machine.deadline_ms
        assert deadline_ms is not None
        assert deadline_ms <= home.now_ms + 1
        home.now_ms = deadline_ms
        home.take(home.machine.tick(home.now_ms))
        outdated.append(sum(group_of(home, client.group).is_outdated for client in clients))
    assert outdated == [6, 2, 0]


# -- topics


def test_new_partitions_are_assigned() -> None:
    home = coordinator(sales=2)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    home.change_topics(sales=3)
    client.beat()
    assert client.has == sales(0, 1, 2)
    assert client.epoch == 2


def test_the_tick_follows_a_change_of_topics_without_a_heartbeat() -> None:
    home = coordinator(sales=2)
    joined(home, ConsumerClient(home, "m1"))
    home.change_topics(sales=3)
    home.pass_time(1)
    assert described(home).epoch == 2


def test_a_topic_that_is_created_later_is_assigned() -> None:
    home = coordinator()
    client = ConsumerClient(home, "m1")
    joined(home, client)
    assert client.has == set()
    home.change_topics(sales=1)
    client.beat()
    assert client.has == sales(0)


def test_the_partitions_of_a_deleted_topic_are_taken_away() -> None:
    home = coordinator(sales=2, other=1)
    client = ConsumerClient(home, "m1", ("sales", "other"))
    joined(home, client)
    home.change_topics(sales=0)
    go_on(client)
    assert client.has == {("other", 0)}


def test_a_change_of_other_topics_begins_no_epoch() -> None:
    home = coordinator(sales=2)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    home.change_topics(other=3)
    client.beat()
    assert client.epoch == 1


def test_a_new_coordinator_applies_changes_of_topics_that_it_missed() -> None:
    home = coordinator(sales=2)
    joined(home, ConsumerClient(home, "m1"))
    home.cluster.partitions["sales"] = 3
    after = home.reload()
    after.pass_time(1)
    assert described(after).epoch == 2


def test_a_target_that_does_not_fit_leaves_the_last_one_in_force() -> None:
    small = g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000)
    home = coordinator(small, sales=2)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    home.change_topics(sales=5_000)
    home.pass_time(small.consumer.assignment_interval_ms)
    assert client.beat() == "NONE"
    assert client.has == sales(0, 1)
    assert described(home).state == "Assigning"
    assert any("does not fit" in note for note in home.notes)
    home.change_topics(sales=3)
    home.pass_time(small.consumer.assignment_interval_ms)
    go_on(client)
    assert client.has == sales(0, 1, 2)


# -- time


def test_a_member_without_heartbeats_is_removed_after_its_session() -> None:
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


def test_a_member_that_keeps_partitions_for_too_long_is_removed() -> None:
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


def test_a_member_that_gave_its_partitions_up_in_time_stays() -> None:
    home = coordinator(sales=4)
    first, second = ConsumerClient(home, "m1"), ConsumerClient(home, "m2")
    joined(home, first)
    second.join()
    go_on(first, second)
    home.pass_time(SESSION_MS - 1)
    assert first.beat() == "NONE"


def test_a_new_coordinator_continues_with_fresh_sessions() -> None:
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


def test_a_new_coordinator_does_not_wait_for_ever_for_partitions_to_be_given_up() -> None:
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


def test_a_static_member_that_restarts_gets_its_partitions_back_without_an_epoch() -> None:
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


def test_a_static_member_that_does_not_return_loses_its_partitions_with_its_session() -> None:
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


def test_an_instance_id_that_is_in_use_is_not_released() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "m1", instance_id="i1"))
    records = len(home.log)
    assert ConsumerClient(home, "m2", instance_id="i1").join() == "UNRELEASED_INSTANCE_ID"
    assert len(home.log) == records


def test_the_member_that_was_replaced_is_fenced() -> None:
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


def test_a_static_member_that_returns_with_other_topics_begins_an_epoch() -> None:
    home = coordinator(sales=4, other=1)
    first = ConsumerClient(home, "m1", instance_id="i1")
    joined(home, first)
    first.go_away()
    again = ConsumerClient(home, "m2", ("other",), instance_id="i1")
    again.join()
    go_on(again)
    assert again.has == {("other", 0)}
    assert again.epoch == 2


def test_a_static_member_that_leaves_while_it_gives_partitions_up_no_longer_owns_them() -> None:
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


# -- offsets


def test_a_member_commits_and_fetches_with_its_present_epoch_only() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    assert client.commit(5) == "NONE"
    assert client.fetch() == "NONE"
    assert client.commit(6, epoch=0) == "STALE_MEMBER_EPOCH"
    assert client.fetch(epoch=0) == "STALE_MEMBER_EPOCH"
    stranger = ConsumerClient(home, "m9")
    assert stranger.commit(7) == "UNKNOWN_MEMBER_ID"
    assert stranger.fetch() == "UNKNOWN_MEMBER_ID"
    assert home.offsets() == {("sales", 0): 5}


def test_others_commit_only_while_the_group_is_empty() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    assert home.commit(g.OffsetToCommit("sales", 0, 5)) == ["UNKNOWN_MEMBER_ID"]
    client.leave()
    assert home.commit(g.OffsetToCommit("sales", 0, 5)) == ["NONE"]
    assert client.commit(7, epoch=1) == "UNKNOWN_MEMBER_ID"


def test_an_old_version_of_commits_knows_no_epochs() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    request = g.OffsetCommit(GROUP, "m1", None, 1, (g.OffsetToCommit("sales", 0, 5),))
    assert [each.error.name for each in home.ask(request).results] == ["UNSUPPORTED_VERSION"]


def test_a_commit_for_a_missing_group_names_the_group_where_clients_know_epochs() -> None:
    home = coordinator(sales=4)
    assert ConsumerClient(home, "m1").commit(5, epoch=3) == "GROUP_ID_NOT_FOUND"


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", (), regex="sal.*")
    joined(home, client)
    client.commit(5)
    delete = g.OffsetDelete(GROUP, (g.TopicPartitions("sales", (0,)), g.TopicPartitions("other", (0,))))
    results = home.ask(delete).results
    assert [each.error.name for each in results] == ["GROUP_SUBSCRIBED_TO_TOPIC", "NONE"]


def test_offsets_expire_after_the_group_became_empty() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.commit(5)
    for _ in range(50):
        home.pass_time(SESSION_MS - 1)
        client.beat()
    client.leave()
    day_ms = 86_400_000
    home.pass_time(day_ms - 1_000_000)
    assert home.offsets() == {("sales", 0): 5}
    home.pass_time(2_000_000)
    assert home.offsets() == {}
    assert home.machine._groups == {}


# -- administrators


def test_groups_are_listed_by_type_and_state() -> None:
    home = coordinator(sales=4)
    joined(home, ConsumerClient(home, "m1"))
    home.commit(g.OffsetToCommit("sales", 0, 5), group="simple")

    def listed(**filters: frozenset[str]) -> list[tuple[str, ...]]:
        return [tuple(group) for group in home.ask(g.ListGroups(**filters)).groups]

    assert listed(types=frozenset({"Consumer"})) == [(GROUP, "consumer", "Stable", "consumer")]
    assert listed(types=frozenset({"classic"})) == [("simple", "", "Empty", "classic")]
    assert [name for name, *_ in listed(states=frozenset({"stable"}))] == [GROUP]
    assert len(listed()) == 2


def test_each_kind_of_group_has_its_own_description() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", rebalance := ("sales",))
    joined(home, client)
    description = described(home)
    (member,) = description.members
    assert (description.epoch, description.assignment_epoch, description.assignor) == (1, 1, "uniform")
    assert (member.epoch, member.client_id, member.topics, member.is_classic) == (1, "m1", rebalance, False)
    assert [(each.topic, each.partitions) for each in member.assignment] == [("sales", (0, 1, 2, 3))]
    assert member.assignment == member.target
    classic = home.describe()
    assert (classic.error.name, classic.state) == ("GROUP_ID_NOT_FOUND", "Dead")
    assert "not a classic group" in (classic.error_message or "")
    home.commit(g.OffsetToCommit("sales", 0, 5), group="simple")
    assert described(home, "simple").error.name == "GROUP_ID_NOT_FOUND"


def test_a_group_with_members_is_not_deleted_and_an_empty_one_leaves_only_tombstones() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1", (), regex="sal.*")
    joined(home, client)
    client.commit(5)
    assert home.delete(GROUP) == ["NON_EMPTY_GROUP"]
    client.leave()
    assert home.delete(GROUP) == ["NONE"]
    last = {record.key: record.value for record in home.log}
    assert set(last.values()) == {None}
    assert client.join() == "NONE"


def test_a_deletion_in_progress_refuses_members() -> None:
    home = coordinator(sales=4)
    client = ConsumerClient(home, "m1")
    joined(home, client)
    client.leave()
    for start in range(10):
        home.commit(*[g.OffsetToCommit(f"topic-{index}", start, 5) for index in range(300)])
    assert home.waits(home.send(g.DeleteGroups((GROUP,))))
    assert client.join() == "COORDINATOR_NOT_AVAILABLE"
    assert described(home).error.name == "GROUP_ID_NOT_FOUND"


# -- the log


def test_a_compacted_log_gives_the_same_group() -> None:
    home = coordinator(sales=4)
    clients = [ConsumerClient(home, f"m{index}", instance_id=f"i{index}") for index in range(3)]
    joined(home, *clients)
    clients[0].leave()
    clients[1].subscribe("sales", "other")
    go_on(*clients[1:])
    last = {record.key: position for position, record in enumerate(home.log)}
    compacted = [record for position, record in enumerate(home.log) if last[record.key] == position and record.value]
    after = Coordinator(records=compacted, cluster=home.cluster)
    assert described(after) == described(home)


def test_the_records_of_partitions_of_older_releases_are_skipped() -> None:
    home = coordinator(sales=4)
    home.machine.replay(Record(b"\0\4\0\6orders", b"\0\0 whatever"))
    assert home.machine._groups == {}
    assert home.machine.unknown_records == 0
