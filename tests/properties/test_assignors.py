"""The assignors of consumer groups, with any subscriptions and any last targets."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.coordinator.consumer.assignors import ASSIGNORS_BY_NAME, Subscriber, assign_uniform
from broker.core.coordinator.consumer.partitions import Partitions, count, each

TOPICS = [UUID(int=index) for index in range(4)]

counts = st.fixed_dictionaries({topic: st.integers(0, 9) for topic in TOPICS})
lasts = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 12), min_size=1))


@st.composite
def groups(draw: st.DrawFn) -> list[Subscriber]:
    """Return members whose last targets have no partition in common."""
    same = draw(st.none() | st.frozensets(st.sampled_from(TOPICS)))
    taken: set[tuple[UUID, int]] = set()
    made = []
    for index in range(draw(st.integers(1, 6))):
        topics = draw(st.frozensets(st.sampled_from(TOPICS))) if same is None else same
        last: dict[UUID, frozenset[int]] = {}
        for topic, indexes in draw(lasts).items():
            own = frozenset(each for each in indexes if (topic, each) not in taken)
            taken.update((topic, each) for each in own)
            if own:
                last[topic] = own
        made.append(Subscriber(f"m{index}", draw(st.sampled_from([None, f"i{9 - index}"])), topics, last))
    return made


@pytest.mark.parametrize("name", sorted(ASSIGNORS_BY_NAME))
@given(members=groups(), sizes=counts)
def test_each_partition_has_one_subscriber(name: str, members: list[Subscriber], sizes: dict[UUID, int]) -> None:
    targets = ASSIGNORS_BY_NAME[name](members, sizes)
    assert targets.keys() == {member.member_id for member in members}
    for member in members:
        assert targets[member.member_id].keys() <= member.topics
        assert all(targets[member.member_id].values()), "a topic without partitions does not occur"
    assigned = [place for target in targets.values() for place in each(target)]
    wanted = {topic for member in members for topic in member.topics}
    assert sorted(assigned) == [(topic, index) for topic in sorted(wanted) for index in range(sizes[topic])]
    assert ASSIGNORS_BY_NAME[name](members[::-1], sizes) == targets


@given(members=groups(), sizes=counts)
def test_the_uniform_assignor_is_balanced_and_moves_no_partition_without_a_reason(
    members: list[Subscriber], sizes: dict[UUID, int]
) -> None:
    targets = assign_uniform(members, sizes)
    loads = {name: count(target) for name, target in targets.items()}
    for owner, target in targets.items():
        for topic in target:
            others = [loads[member.member_id] for member in members if topic in member.topics]
            assert loads[owner] <= min(others) + 1, (owner, topic, loads)
    again = [Subscriber(each.member_id, each.instance_id, each.topics, targets[each.member_id]) for each in members]
    assert assign_uniform(again, sizes) == targets


@given(members=groups(), sizes=counts)
def test_members_with_the_same_topics_give_up_no_more_than_balance_needs(
    members: list[Subscriber], sizes: dict[UUID, int]
) -> None:
    if len({member.topics for member in members}) > 1:
        return
    targets = assign_uniform(members, sizes)
    total = sum(sizes[topic] for topic in members[0].topics)
    share, longer = divmod(total, len(members))
    had = sorted((len(_existing(member, sizes)) for member in members), reverse=True)
    could_keep = sum(min(number, share + (place < longer)) for place, number in enumerate(had))
    kept = sum(len(_existing(member, sizes) & set(each(targets[member.member_id]))) for member in members)
    assert kept == could_keep


def _existing(member: Subscriber, sizes: dict[UUID, int]) -> set[tuple[UUID, int]]:
    last: Partitions = member.last
    return {(topic, index) for topic, index in each(last) if topic in member.topics and index < sizes[topic]}
