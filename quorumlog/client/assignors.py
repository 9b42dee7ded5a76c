"""The assignors of consumer groups: pure functions from subscriptions to an assignment.

They have Kafka's names, because the members of a group agree on an assignor by its name.  `range` and `roundrobin`
return exactly the same assignments as Kafka's, because other members could rely on them.  The sticky assignors balance
the partitions and move as few of them as possible.

`cooperative-sticky` gives a partition to a new owner only once its old owner has given it up.  Until then no member
gets it: the old owner revokes it and joins again, and the next rebalance assigns it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from quorumlog.client.group_protocol import Subscription
from quorumlog.client.messages import TopicPartition

Members = Mapping[str, Subscription]
"""The subscription of each member, by member id."""
Counts = Mapping[str, int]
"""Number of partitions by topic; topics that do not exist are missing."""
Assignment = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id.  Members without partitions are included."""


class Style(Enum):
    """EAGER: a member gives up all its partitions before it joins.  COOPERATIVE: it gives up only those it loses."""

    EAGER = "eager"
    COOPERATIVE = "cooperative"


class Assignor(NamedTuple):
    """An assignor.  Instance ids order static members, so that a static member keeps its partitions after a restart."""

    style: Style
    assign: Callable[[Members, Counts, Mapping[str, str]], Assignment]


def _order(members: Members, instances: Mapping[str, str]) -> list[str]:
    """Return the member ids as Kafka orders them: static members by their instance ids, then the others."""
    return sorted(members, key=lambda member: (member not in instances, instances.get(member, member)))


def assign_range(members: Members, counts: Counts, instances: Mapping[str, str]) -> Assignment:
    """Give each subscriber of a topic a range of its partitions; the first subscribers get one more if needed."""
    assigned: Assignment = {member: [] for member in members}
    order = _order(members, instances)
    for topic in sorted({topic for each in members.values() for topic in each.topics}):
        takers = [member for member in order if topic in members[member].topics]
        share, extra = divmod(counts.get(topic, 0), len(takers))
        begin = 0
        for position, member in enumerate(takers):
            end = begin + share + (position < extra)
            assigned[member] += [TopicPartition(topic, index) for index in range(begin, end)]
            begin = end
    return assigned


def assign_roundrobin(members: Members, counts: Counts, instances: Mapping[str, str]) -> Assignment:
    """Assign all partitions, in order, to the members in turn; skip members that do not subscribe to the topic."""
    assigned: Assignment = {member: [] for member in members}
    order = _order(members, instances)
    turn = 0
    for topic in sorted({topic for each in members.values() for topic in each.topics}):
        for index in range(counts.get(topic, 0)):
            while topic not in members[order[turn % len(order)]].topics:
                turn += 1
            assigned[order[turn % len(order)]].append(TopicPartition(topic, index))
            turn += 1
    return assigned


def assign_sticky(members: Members, counts: Counts, instances: Mapping[str, str]) -> Assignment:
    """Let members keep their partitions as far as balance permits, and give the rest to the members with the fewest."""
    order = _order(members, instances)
    kept = _kept(members, counts, order)
    if len({each.topics for each in members.values()}) == 1:
        return _level(members, counts, order, kept)
    return _level_unequal(members, counts, order, kept)


def assign_cooperatively(members: Members, counts: Counts, instances: Mapping[str, str]) -> Assignment:
    """Assign as `assign_sticky` does, but leave out the partitions that another member must give up first."""
    assigned = assign_sticky(members, counts, instances)
    owner = _owners(members)
    return {
        member: [each for each in partitions if owner.get(each, member) == member]
        for member, partitions in assigned.items()
    }


def _owners(members: Members) -> dict[TopicPartition, str]:
    """Return the owner of each partition.

    Of two members that claim a partition, the member with the later generation owns it; if the generations are equal,
    the member with the lower id.
    """
    owners: dict[TopicPartition, str] = {}
    for member in sorted(members):
        for partition in members[member].owned:
            rival = owners.get(partition)
            if rival is None or members[member].generation > members[rival].generation:
                owners[partition] = member
    return owners


def _kept(members: Members, counts: Counts, order: list[str]) -> Assignment:
    """Return the partitions that each member owns and may keep, in order."""
    kept: Assignment = {member: [] for member in order}
    for partition, member in sorted(_owners(members).items()):
        if partition.topic in members[member].topics and 0 <= partition.partition < counts.get(partition.topic, 0):
            kept[member].append(partition)
    return kept


def _partitions(members: Members, counts: Counts) -> list[TopicPartition]:
    topics = sorted({topic for each in members.values() for topic in each.topics})
    return [TopicPartition(topic, index) for topic in topics for index in range(counts.get(topic, 0))]


def _level(members: Members, counts: Counts, order: list[str], kept: Assignment) -> Assignment:
    """Distribute the rest if subscriptions are equal: each member gets `share` partitions, and some get one more."""
    every = _partitions(members, counts)
    share, extra = divmod(len(every), len(order))
    assigned: Assignment = {}
    # A stable order: if only some members keep one partition more, these are the members that own the most.
    for member in sorted(order, key=lambda member: -len(kept[member])):
        limit = share + (extra > 0 and len(kept[member]) > share)
        extra -= limit > share
        assigned[member] = kept[member][:limit]
    taken = {partition for partitions in assigned.values() for partition in partitions}
    free = (partition for partition in every if partition not in taken)
    for member in order:
        while len(assigned[member]) < share:
            assigned[member].append(next(free))
    takers = iter([member for member in order if len(assigned[member]) == share])
    for partition in free:
        assigned[next(takers)].append(partition)
    return {member: assigned[member] for member in members}


def _level_unequal(members: Members, counts: Counts, order: list[str], kept: Assignment) -> Assignment:
    """Distribute the rest if subscriptions differ.  Then move partitions while a move makes two members more equal."""
    subscribers: dict[str, list[str]] = defaultdict(list)
    for member in order:
        for topic in members[member].topics:
            subscribers[topic].append(member)
    assigned = {member: list(partitions) for member, partitions in kept.items()}
    taken = {partition for partitions in assigned.values() for partition in partitions}
    free = [partition for partition in _partitions(members, counts) if partition not in taken]
    for partition in sorted(free, key=lambda partition: len(subscribers[partition.topic])):
        least = min(subscribers[partition.topic], key=lambda member: len(assigned[member]))
        assigned[least].append(partition)
    while (move := _improvement(assigned, subscribers, kept)) is not None:
        partition, giver, taker = move
        assigned[giver].remove(partition)
        assigned[taker].append(partition)
    return {member: assigned[member] for member in members}


def _improvement(
    assigned: Assignment, subscribers: Mapping[str, list[str]], kept: Assignment
) -> tuple[TopicPartition, str, str] | None:
    """Return a partition, its owner, and the member that should get it, which has at least two partitions fewer.

    None: no such move is left.
    Each such move lowers the sum of the squares of the loads, so there are finitely many moves.  Partitions that are
    new to their owner are moved first.
    """
    for giver in sorted(assigned, key=lambda member: -len(assigned[member])):
        had = set(kept[giver])
        for partition in sorted(assigned[giver], key=lambda partition: partition in had):
            taker = min(subscribers[partition.topic], key=lambda member: len(assigned[member]))
            if len(assigned[giver]) - len(assigned[taker]) >= 2:
                return partition, giver, taker
    return None


ASSIGNORS: Final[dict[str, Assignor]] = {
    "range": Assignor(Style.EAGER, assign_range),
    "roundrobin": Assignor(Style.EAGER, assign_roundrobin),
    "sticky": Assignor(Style.EAGER, assign_sticky),
    "cooperative-sticky": Assignor(Style.COOPERATIVE, assign_cooperatively),
}

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "Counts", "Members", "Style"]
