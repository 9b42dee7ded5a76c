"""The assignors: complete, balanced and sticky, and `cooperative-sticky` never gives a partition to two members."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quorumlog.client.assignors import ASSIGNORS, Assignment, Counts, Members
from quorumlog.client.group_protocol import (
    Subscription,
    assigned_partitions,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    subscribed_topics,
)
from quorumlog.client.messages import TopicPartition

TOPICS = ("a", "b", "c")
names = st.sampled_from(["m1", "m2", "m3", "m4", "m5"])
some_topics = st.frozensets(st.sampled_from(TOPICS), min_size=1)
counts = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})
partitions = st.frozensets(st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 8)), max_size=8)
subscriptions = st.builds(Subscription, some_topics, partitions, st.integers(-1, 3))
groups = st.dictionaries(names, subscriptions, min_size=1)
EACH = pytest.mark.parametrize("name", ASSIGNORS)


def assign(name: str, members: Members, counts: Counts) -> Assignment:
    return ASSIGNORS[name].assign(members, counts, {})


def after(members: Members, assignment: Assignment, generation: int) -> dict[str, Subscription]:
    """The members as they join next, with what they own."""
    return {name: Subscription(each.topics, frozenset(assignment[name]), generation) for name, each in members.items()}


def settle(name: str, members: Members, counts: Counts, generation: int = 10) -> Assignment:
    """Rebalance until nothing moves, as cooperative members do."""
    for step in range(3):
        assignment = assign(name, members, counts)
        if all(members[each].owned <= frozenset(assignment[each]) for each in members) and step:
            return assignment
        members = after(members, assignment, generation + step)
    return assign(name, members, counts)


@EACH
@given(groups, counts)
def test_every_partition_has_one_owner_that_subscribes_to_it(name: str, members: Members, counts: Counts) -> None:
    assignment = settle(name, members, counts)
    assert assignment.keys() == members.keys()
    owners = Counter(partition for given in assignment.values() for partition in given)
    wanted = {topic for each in members.values() for topic in each.topics}
    assert set(owners) == {TopicPartition(topic, index) for topic in wanted for index in range(counts[topic])}
    assert set(owners.values()) <= {1}
    assert all(partition.topic in members[each].topics for each, given in assignment.items() for partition in given)


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@given(groups, counts)
def test_sticky_assignments_are_balanced(name: str, members: Members, counts: Counts) -> None:
    assignment = settle(name, members, counts)
    for giver, given_partitions in assignment.items():
        for taker in members:
            if any(partition.topic in members[taker].topics for partition in given_partitions):
                assert len(given_partitions) - len(assignment[taker]) <= 1, (giver, taker, assignment)


@pytest.mark.parametrize("name", ["sticky", "cooperative-sticky"])
@given(groups, counts)
def test_sticky_assignors_move_no_partition_without_a_reason(name: str, members: Members, counts: Counts) -> None:
    first = settle(name, members, counts)
    again = assign(name, after(members, first, 50), counts)
    assert {each: set(given) for each, given in again.items()} == {each: set(given) for each, given in first.items()}


many = st.fixed_dictionaries({topic: st.integers(0, 25) for topic in "abcdef"})
many_partitions = st.frozensets(st.builds(TopicPartition, st.sampled_from("abcdef"), st.integers(0, 24)), max_size=60)
many_subscriptions = st.builds(
    Subscription, st.frozensets(st.sampled_from("abcdef"), min_size=1), many_partitions, st.integers(-1, 3)
)
many_members = st.dictionaries(st.sampled_from([f"m{n}" for n in range(9)]), many_subscriptions, min_size=2)


def simply_levelled(members: Members, counts: Counts) -> Assignment:
    """The same as `assign_sticky` for unequal subscriptions, with a look at all partitions for each move."""
    order = sorted(members)
    subscribers = {topic: [name for name in order if topic in members[name].topics] for topic in counts}
    every = [TopicPartition(topic, index) for topic in sorted(counts) for index in range(counts[topic])]
    every = [partition for partition in every if subscribers[partition.topic]]
    owners: dict[TopicPartition, str] = {}
    for name in order:
        for partition in members[name].owned:
            rival = owners.get(partition)
            if rival is None or members[name].generation > members[rival].generation:
                owners[partition] = name
    assigned: Assignment = {name: [] for name in order}
    for partition in every:
        if partition in owners and partition.topic in members[owners[partition]].topics:
            assigned[owners[partition]].append(partition)
    kept = {name: set(given) for name, given in assigned.items()}

    def least(partition: TopicPartition) -> str:
        return min(subscribers[partition.topic], key=lambda name: len(assigned[name]))

    free = [partition for partition in every if not any(partition in given for given in kept.values())]
    for partition in sorted(free, key=lambda partition: len(subscribers[partition.topic])):
        assigned[least(partition)].append(partition)
    moved = True
    while moved:
        moves = (
            (partition, giver)
            for giver in sorted(order, key=lambda name: -len(assigned[name]))
            for partition in sorted(assigned[giver], key=lambda partition: partition in kept[giver])
            if len(assigned[giver]) - len(assigned[least(partition)]) >= 2
        )
        moved = (move := next(moves, None)) is not None
        if move is not None:
            partition, giver = move
            taker = least(partition)
            assigned[giver].remove(partition)
            assigned[taker].append(partition)
    return assigned


@given(many_members, many)
def test_members_with_unequal_subscriptions_get_what_a_simple_assignor_gives_them(
    members: Members, counts: Counts
) -> None:
    assume(len({each.topics for each in members.values()}) > 1)
    assert assign("sticky", members, counts) == simply_levelled(members, counts)


@pytest.mark.parametrize("seed", range(10))
def test_a_larger_group_with_unequal_subscriptions_gets_what_a_simple_assignor_gives_it(seed: int) -> None:
    """Without shrinking, so that a difference is found at once."""
    random = Random(seed)
    counts = {topic: random.randrange(30) for topic in "abcdefgh"}
    every = [TopicPartition(topic, index) for topic in counts for index in range(counts[topic])]
    members = {
        f"m{number}": Subscription(
            frozenset(random.sample("abcdefgh", random.choice((1, 2, 4)))),
            frozenset(random.sample(every, len(every) // random.choice((1, 2, 8)))),
            random.randrange(3),
        )
        for number in range(12)
    }
    assert assign("sticky", members, counts) == simply_levelled(members, counts)


@given(groups, counts)
def test_a_partition_moves_only_once_its_owner_gave_it_up(members: Members, counts: Counts) -> None:
    assignment = assign("cooperative-sticky", members, counts)
    for name, given_partitions in assignment.items():
        for partition in set(given_partitions) - members[name].owned:
            owners = [other for other in members if partition in members[other].owned]
            assert not owners, f"{partition} goes to {name} while {owners} have it"


@given(st.integers(1, 5), st.integers(0, 30))
def test_a_member_that_leaves_moves_only_its_own_partitions(size: int, count: int) -> None:
    members = {f"m{n}": Subscription(frozenset("a")) for n in range(size + 1)}
    before = assign("sticky", members, {"a": count})
    rest = after({name: each for name, each in members.items() if name != "m0"}, before, 1)
    now = assign("sticky", rest, {"a": count})
    assert all(set(before[name]) <= set(now[name]) for name in rest)


def test_the_range_assignor_gives_the_first_members_one_partition_more() -> None:
    members = {name: Subscription(frozenset(("a", "b"))) for name in ("x", "y")}
    assert assign("range", members, {"a": 3, "b": 3}) == {
        "x": [("a", 0), ("a", 1), ("b", 0), ("b", 1)], "y": [("a", 2), ("b", 2)],
    }  # fmt: skip


def test_roundrobin_skips_members_that_do_not_subscribe() -> None:
    members = {"x": Subscription(frozenset("ab")), "y": Subscription(frozenset("b")), "z": Subscription(frozenset("a"))}
    assert assign("roundrobin", members, {"a": 3, "b": 2}) == {
        "x": [("a", 0), ("a", 2), ("b", 1)], "y": [("b", 0)], "z": [("a", 1)],
    }  # fmt: skip


def test_static_members_keep_their_place_under_another_member_id() -> None:
    members = {"m9": Subscription(frozenset("a")), "m1": Subscription(frozenset("a"))}
    assert ASSIGNORS["range"].assign(members, {"a": 2}, {"m9": "i1", "m1": "i2"}) == {
        "m9": [("a", 0)],
        "m1": [("a", 1)],
    }


def test_a_partition_that_two_members_claim_belongs_to_the_later_generation() -> None:
    both = frozenset((TopicPartition("a", 0),))
    members = {"x": Subscription(frozenset("a"), both, 1), "y": Subscription(frozenset("a"), both, 2)}
    assert TopicPartition("a", 0) in assign("sticky", members, {"a": 2})["y"]


@EACH
@given(subscriptions)
def test_subscriptions_are_read_as_they_were_written(name: str, subscription: Subscription) -> None:
    data = encode_subscription(subscription, name)
    assert decode_subscription(data, name) == subscription
    assert subscribed_topics(data) == tuple(sorted(subscription.topics))


@EACH
@given(st.binary(max_size=80))
@settings(max_examples=300)
def test_arbitrary_bytes_decode_to_a_subscription_or_none(name: str, data: bytes) -> None:
    found = decode_subscription(data, name)
    assert found is None or decode_subscription(encode_subscription(found, name), name) == found


@given(partitions)
def test_assignments_are_read_as_they_were_written(owned: frozenset[TopicPartition]) -> None:
    found = assigned_partitions(encode_assignment(owned))
    assert found is not None
    assert {(topic, index) for topic, indexes in found for index in indexes} == owned
