"""The assignors: balance, stickiness, and subscriptions that differ."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from uuid import UUID

import pytest

from broker.core.coordinator.consumer.assignors import (
    ASSIGNORS_BY_NAME,
    Subscriber,
    assign_range,
    assign_uniform,
)
from broker.core.coordinator.consumer.partitions import Partitions, count, minus

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


ONE = frozenset({A})


def members(
    *names: str, topics: frozenset[UUID] = ONE, last: Mapping[str, Partitions] | None = None
) -> list[Subscriber]:
    return [Subscriber(name, None, topics, (last or {}).get(name, {})) for name in names]


def sizes(targets: Mapping[str, Partitions]) -> list[int]:
    return sorted(count(target) for target in targets.values())


def test_uniform_assigns_each_member_the_same_number_of_partitions_or_one_more() -> None:
    both = frozenset({A, B})
    targets = assign_uniform(members("m1", "m2", "m3", topics=both), {A: 4, B: 7})
    assert sizes(targets) == [3, 4, 4]


def test_uniform_spreads_each_topic_over_the_members() -> None:
    both = frozenset({A, B})
    targets = assign_uniform(members("m1", "m2", topics=both), {A: 2, B: 2})
    assert [sorted(target) for target in targets.values()] == [[A, B], [A, B]]


def test_uniform_moves_only_the_partitions_that_a_new_member_needs() -> None:
    first = assign_uniform(members("m1", "m2"), {A: 6})
    second = assign_uniform(members("m1", "m2", "m3", last=first), {A: 6})
    assert sizes(second) == [2, 2, 2]
    assert all(count(minus(first[name], second[name])) == 1 for name in ("m1", "m2"))


def test_uniform_gives_the_partitions_of_a_member_that_left_to_the_others() -> None:
    first = assign_uniform(members("m1", "m2", "m3"), {A: 6})
    second = assign_uniform(members("m1", "m3", last=first), {A: 6})
    assert sizes(second) == [3, 3]
    assert all(not minus(first[name], second[name]) for name in ("m1", "m3"))


def test_uniform_leaves_the_extra_partition_with_the_member_that_has_the_most() -> None:
    last: dict[str, Partitions] = {"m1": {A: frozenset({0})}, "m2": {A: frozenset({1, 2})}}
    assert assign_uniform(members("m1", "m2", last=last), {A: 3}) == last


def test_partitions_that_no_longer_exist_are_dropped() -> None:
    last: dict[str, Partitions] = {"m1": {A: frozenset({0, 5}), B: frozenset({0})}}
    assert assign_uniform(members("m1", last=last), {A: 2}) == {"m1": {A: frozenset({0, 1})}}


def test_members_without_a_partition_are_in_the_result() -> None:
    targets = assign_uniform(members("m1", "m2", "m3"), {A: 1})
    assert sizes(targets) == [0, 0, 1]


def test_a_topic_goes_only_to_its_subscribers() -> None:
    mixed = [
        Subscriber("m1", None, frozenset({A})),
        Subscriber("m2", None, frozenset({A, B})),
        Subscriber("m3", None, frozenset({B})),
    ]
    for name, assign in ASSIGNORS_BY_NAME.items():
        targets = assign(mixed, {A: 4, B: 4})
        assert all(set(targets[each.member_id]) <= each.topics for each in mixed), name
        assert sum(sizes(targets)) == 8, name


def test_uniform_balances_members_whose_subscriptions_differ() -> None:
    mixed = [
        Subscriber("m1", None, frozenset({A, B, C}), {A: frozenset(range(6)), B: frozenset(range(6))}),
        Subscriber("m2", None, frozenset({B}), {}),
        Subscriber("m3", None, frozenset({B, C}), {C: frozenset({0})}),
    ]
    targets = assign_uniform(mixed, {A: 6, B: 6, C: 1})
    assert count(targets["m1"]) == 6
    assert sizes(targets)[:2] == [3, 4]


def test_range_gives_contiguous_ranges_of_each_topic() -> None:
    both = frozenset({A, B})
    targets = assign_range(members("m1", "m2", "m3", topics=both), {A: 7, B: 2})
    assert [sorted(target.get(A, ())) for target in targets.values()] == [[0, 1, 2], [3, 4], [5, 6]]
    assert [sorted(target.get(B, ())) for target in targets.values()] == [[0], [1], []]


def test_range_assigns_a_member_the_same_partition_indexes_in_topics_of_equal_size() -> None:
    targets = assign_range(members("m1", "m2", topics=frozenset({A, B})), {A: 5, B: 5})
    assert all(target[A] == target[B] for target in targets.values())


@pytest.mark.parametrize("name", sorted(ASSIGNORS_BY_NAME))
def test_a_static_member_that_restarts_keeps_its_partitions(name: str) -> None:
    assign = ASSIGNORS_BY_NAME[name]
    topics = frozenset({A})
    before = assign([Subscriber("z", "i1", topics), Subscriber("y", "i2", topics)], {A: 3})
    after = assign([Subscriber("a", "i1", topics, before["z"]), Subscriber("b", "i2", topics, before["y"])], {A: 3})
    assert (before["z"], before["y"]) == (after["a"], after["b"])


@pytest.mark.parametrize("name", sorted(ASSIGNORS_BY_NAME))
def test_the_order_of_the_members_does_not_change_the_assignment(name: str) -> None:
    assign = ASSIGNORS_BY_NAME[name]
    ones = members("m1", "m2", "m3")
    assert all(assign(these, {A: 5}) == assign(those, {A: 5}) for these, those in pairwise([ones, ones[::-1]]))
    assert assign([], {A: 5}) == {}
