"""Members of the newer protocol: subscriptions by regular expression, and changes of topics."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.consumer.records import Kind, read_key
from broker.core.coordinator.consumer.requests import ConsumerLimits
from broker.core.coordinator.machine import Step
from tests.unit.broker.core.coordinator.consumer.driver import (
    ConsumerClient,
    coordinator,
    described,
    go_on,
    group_of,
    joined,
    sales,
)

# -- regular expressions


def test_a_regular_expression_matches_whole_names_of_existing_and_later_topics() -> None:
    home = coordinator(sales=1, sales_eu=1, resales=1)
    client = ConsumerClient(home, "m1", (), regex="sales.*")
    joined(home, client)
    assert client.has == {("sales", 0), ("sales_eu", 0)}
    home.change_topics(sales_us=2, other=1)
    client.beat()
    assert client.has == {("sales", 0), ("sales_eu", 0), ("sales_us", 0), ("sales_us", 1)}


def test_a_subscription_by_names_and_by_a_regular_expression_covers_the_topics_of_both() -> None:
    home = coordinator(sales=1, other=1)
    client = ConsumerClient(home, "m1", ("other",), regex="sal.*")
    joined(home, client)
    assert client.has == {("sales", 0), ("other", 0)}


def test_the_record_of_a_regular_expression_is_deleted_when_no_member_uses_it_any_more() -> None:
    home = coordinator(sales=1)
    client, other = ConsumerClient(home, "m1", (), regex="sal.*"), ConsumerClient(home, "m2", (), regex="sal.*")
    joined(home, client, other)
    client.leave()
    assert group_of(home).regexes.keys() == {"sal.*"}
    other.beat(regex="")
    assert group_of(home).regexes == {}
    deleted = [read_key(record.key) for record in home.log if record.value is None]
    assert [key.name for key in deleted if key is not None and key.kind is Kind.REGEX] == ["sal.*"]


def test_an_expression_that_matches_too_many_topics_is_refused_or_keeps_its_former_topics() -> None:
    small = g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000)
    home = coordinator(small, sales=1)
    client = ConsumerClient(home, "m1", (), regex=".*")
    joined(home, client)
    home.change_topics(**{f"topic_{index:0100}": 1 for index in range(13)})
    go_on(client)
    assert client.has == sales(0)
    assert any("too many topics" in note for note in home.notes)
    assert ConsumerClient(home, "m2", (), regex=".*").join() == "INVALID_REGULAR_EXPRESSION"


def test_expressions_that_match_a_new_topic_are_written_in_several_steps() -> None:
    """Each member has its own expression.  Their records together exceed the largest batch that a log accepts."""
    small = g.GroupLimits(
        batch_max_bytes=20_000, name_max_bytes=1_000, consumer=ConsumerLimits(assignment_interval_ms=0)
    )
    names = {f"topic_{index:0100}": 1 for index in range(18)}
    home = coordinator(small, sales=1, **names)
    clients = [ConsumerClient(home, f"m{number}", (), regex=f"(topic_|new).*|{number}") for number in range(20)]
    joined(home, *clients)
    sizes, take = [], home.take

    def measured(step: Step) -> Step:
        sizes.append(sum(len(record.key) + len(record.value or b"") for record in step.records))
        return take(step)

    home.take = measured  # type: ignore[method-assign]
    home.change_topics(new=1)
    go_on(*clients)
    assert max(sizes) < small.batch_max_bytes < sum(sizes)
    assert not group_of(home).is_outdated
    assert all("new" in value.topics for value in group_of(home).regexes.values())


def test_an_expression_whose_topics_fill_a_step_is_written() -> None:
    small = g.GroupLimits(batch_max_bytes=20_000, name_max_bytes=1_000)
    home = coordinator(small, sales=1)
    client = ConsumerClient(home, "m1", (), regex=".*")
    joined(home, client)
    # With `sales`, 2,405 of the 2,500 bytes that are permitted.  The record is larger, since each name has a length.
    names = [f"topic_{index:018}" for index in range(100)]
    home.change_topics(**dict.fromkeys(names, 1))
    go_on(client)
    assert not group_of(home).is_outdated
    assert set(group_of(home).regexes[".*"].topics) == {"sales", *names}


def test_the_expression_of_a_new_member_is_written_before_grown_expressions_of_other_members() -> None:
    small = g.GroupLimits(
        batch_max_bytes=20_000, name_max_bytes=1_000, consumer=ConsumerLimits(assignment_interval_ms=0)
    )
    home = coordinator(small, sales=1, **{f"topic_{index:0100}": 1 for index in range(18)})
    clients = [ConsumerClient(home, f"m{number}", (), regex=f"(topic_|new).*|{number}") for number in range(3)]
    joined(home, *clients)
    home.change_topics(new=1)
    late = ConsumerClient(home, "late", (), regex="sales|zzz")
    assert late.join() == "NONE"
    assert "sales|zzz" in group_of(home).regexes


def test_one_tick_updates_the_expressions_of_a_bounded_number_of_groups() -> None:
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


def test_a_tick_applies_a_change_of_topics_without_a_heartbeat() -> None:
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


def test_the_partitions_of_a_deleted_topic_are_revoked() -> None:
    home = coordinator(sales=2, other=1)
    client = ConsumerClient(home, "m1", ("sales", "other"))
    joined(home, client)
    home.change_topics(sales=0)
    go_on(client)
    assert client.has == {("other", 0)}


def test_a_change_of_topics_without_subscribers_does_not_raise_the_group_epoch() -> None:
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


def test_a_target_assignment_that_exceeds_a_batch_leaves_the_previous_one_in_force() -> None:
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


@pytest.mark.parametrize("subscription", [{"topics": ("large",)}, {"topics": (), "regex": "l.*"}])
def test_a_member_whose_topics_have_too_many_partitions_is_refused(subscription: dict[str, Any]) -> None:
    small = g.GroupLimits(batch_max_bytes=10_000, name_max_bytes=1_000)
    home = coordinator(small, large=1_000)
    assert ConsumerClient(home, "m1").join(**subscription) == "GROUP_MAX_SIZE_REACHED"
    assert described(home).error.name == "GROUP_ID_NOT_FOUND"
