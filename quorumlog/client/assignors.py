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
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, NamedTuple

from quorumlog.client.group_protocol import Subscription
from quorumlog.client.messages import TopicPartition

Members = Mapping[str, Subscription]
"""The subscription of each member, by member id."""
Counts = Mapping[str, int]
"""Number of partitions by topic; topics that do not exist are missing."""
Assignment = dict[str, list[TopicPartition]]
"""The partitions of each member, by member id.  Members without partitions are included."""
_Held = tuple[bool, int, TopicPartition]
"""Whether the owner had the partition before, a number that grows with each change of an owner, and the partition."""


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
    loads = _Loads(members, order, kept)
    taken = {partition for partitions in kept.values() for partition in partitions}
    free = [partition for partition in _partitions(members, counts) if partition not in taken]
    for partition in sorted(free, key=lambda partition: len(loads.subscribers(partition.topic))):
        loads.give_to_least(partition)
    loads.level()
    assigned = loads.assigned()
    return {member: assigned[member] for member in members}


class _Loads:
    """The partitions of members with different subscriptions.  Members are ranks, that is, indexes of `order`.

    Topics with the same subscribers form a class: a partition of any of them has the same possible owners.  For each
    class, a heap finds the subscriber with the fewest partitions, the lowest rank first.  An entry of this heap may be
    lower than the load of its member, and is corrected once it is the first one, so a load that grows costs nothing.

    A move takes a partition from the member with the highest load that has one for a member with at least two fewer.
    Each move lowers the sum of the squares of the loads, so there are finitely many.  After a look at a member that has
    no such partition, the next look waits until the member gets a partition, or until the lowest load of a class of
    its partitions falls.  So a move costs a look at the classes of two members, and not at all partitions.
    """

    def __init__(self, members: Members, order: list[str], kept: Assignment) -> None:
        self._order = order
        self._kept = [frozenset(kept[member]) for member in order]
        self._loads = [0] * len(order)
        self._given = 0
        by_topic: dict[str, list[int]] = defaultdict(list)
        for rank, member in enumerate(order):
            for topic in members[member].topics:
                by_topic[topic].append(rank)
        self._subscribers: list[tuple[int, ...]] = list(dict.fromkeys(map(tuple, by_topic.values())))
        """The subscribers of each class."""
        numbers = {ranks: number for number, ranks in enumerate(self._subscribers)}
        self._class_of = {topic: numbers[tuple(ranks)] for topic, ranks in by_topic.items()}
        self._classes_of: list[list[int]] = [[] for _ in order]
        for number, ranks in enumerate(self._subscribers):
            for rank in ranks:
                self._classes_of[rank].append(number)
        self._lowest = [[(0, rank) for rank in ranks] for ranks in self._subscribers]
        self._held: list[dict[int, list[_Held]]] = [{} for _ in order]
        """The partitions of each member by class, as heaps."""
        self._holders: list[set[int]] = [set() for _ in self._subscribers]
        for rank, member in enumerate(order):
            for partition in kept[member]:
                self._give(rank, partition)

    def subscribers(self, topic: str) -> tuple[int, ...]:
        return self._subscribers[self._class_of[topic]]

    def give_to_least(self, partition: TopicPartition) -> None:
        """Give a partition to the subscriber with the fewest partitions."""
        self._give(self._least(self._class_of[partition.topic])[1], partition)

    def assigned(self) -> Assignment:
        """Return the partitions of each member, in the order in which it got them."""
        return {
            member: [partition for _, partition in sorted(each[1:] for heap in held.values() for each in heap)]
            for member, held in zip(self._order, self._held, strict=True)
        }

    def level(self) -> None:
        """Move partitions until no move makes two members more equal."""
        loads = self._loads
        looks = [(-load, rank) for rank, load in enumerate(loads)]
        heapify(looks)
        waiting = set(looks)
        while looks:
            look = heappop(looks)
            waiting.discard(look)
            giver = look[1]
            move = self._move_from(giver) if look[0] == -loads[giver] else None
            if move is None:
                continue
            number, taker = move
            lowest = [(each, self._least(each)[0]) for each in self._classes_of[giver]]
            self._give(taker, self._take(giver, number))
            again = {giver, taker}
            for each, before in lowest:
                heappush(self._lowest[each], (loads[giver], giver))
                if loads[giver] < before:
                    again |= self._holders[each]
            for look in {(-loads[rank], rank) for rank in again} - waiting:
                waiting.add(look)
                heappush(looks, look)

    def _move_from(self, giver: int) -> tuple[int, int] | None:
        """Choose a partition that the giver should give away.  Return its class and the taker, or None.

        Partitions that are new to their owner are moved first.
        """
        found: tuple[_Held, int, int] | None = None
        for number, heap in self._held[giver].items():
            load, taker = self._least(number)
            if self._loads[giver] - load >= 2 and (found is None or heap[0] < found[0]):
                found = heap[0], number, taker
        return None if found is None else found[1:]

    def _least(self, number: int) -> tuple[int, int]:
        """Return the lowest load of the subscribers of a class, and the first of these."""
        heap = self._lowest[number]
        while heap[0][0] < self._loads[heap[0][1]]:
            heapreplace(heap, (self._loads[heap[0][1]], heap[0][1]))
        return heap[0]

    def _give(self, rank: int, partition: TopicPartition) -> None:
        number = self._class_of[partition.topic]
        self._given += 1
        heappush(self._held[rank].setdefault(number, []), (partition in self._kept[rank], self._given, partition))
        self._holders[number].add(rank)
        self._loads[rank] += 1

    def _take(self, rank: int, number: int) -> TopicPartition:
        """Take the first partition of a class from a member.  The caller updates the heaps of the lowest loads."""
        heap = self._held[rank][number]
        partition = heappop(heap)[2]
        if not heap:
            del self._held[rank][number]
            self._holders[number].discard(rank)
        self._loads[rank] -= 1
        return partition


ASSIGNORS: Final[dict[str, Assignor]] = {
    "range": Assignor(Style.EAGER, assign_range),
    "roundrobin": Assignor(Style.EAGER, assign_roundrobin),
    "sticky": Assignor(Style.EAGER, assign_sticky),
    "cooperative-sticky": Assignor(Style.COOPERATIVE, assign_cooperatively),
}

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "Counts", "Members", "Style"]
