"""The assignors of the coordinator: they distribute the partitions of topics among the members of a group.

An assignor gets the ids, the subscribed topics and the last target of each member, and the number of partitions of each
topic.  Its result depends on nothing else, so that it is the same at each coordinator.

**uniform** gives members with the same subscription numbers of partitions that differ by at most one, and moves as few
partitions as possible.  If members are subscribed to different topics, it moves single partitions from their owners to
subscribers that have at least two partitions fewer in total.  It ends when no such move is left, or at
`MOVES_PER_PARTITION_MAX`.

**range** gives each member a contiguous range of each topic, in the order of the members.  So if all members have the
same subscription, a member gets the same indexes of all topics with equally many partitions, which joins of topics
need.  It ignores the last target.

A static member is ordered by its instance id, which survives a restart; any other member by its member id.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import accumulate
from typing import Final
from uuid import UUID

import msgspec

from broker.core.coordinator.consumer.partitions import NO_PARTITIONS, Partitions, count, of

MOVES_PER_PARTITION_MAX: Final = 4
"""Maximum number of moves, per partition of the group, that balance members with different subscriptions.  After this
many moves, the result is used as it is: each move has made the load more equal."""


class Subscriber(msgspec.Struct, frozen=True):
    """A member as an assignor sees it.

    topics: ids of the topics that exist and to which it is subscribed.  last: its partitions in the last target.
    """

    member_id: str
    instance_id: str | None
    topics: frozenset[UUID]
    last: Partitions = msgspec.field(default_factory=lambda: NO_PARTITIONS)

    @property
    def sort_key(self) -> tuple[str, str]:
        return self.instance_id or self.member_id, self.member_id


Assignor = Callable[[Sequence[Subscriber], Mapping[UUID, int]], dict[str, Partitions]]
"""Makes a target for each member, by its id.  The mapping has the number of partitions of each topic."""


def assign_range(members: Sequence[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Give each member a contiguous range of each topic."""
    ordered = sorted(members, key=lambda each: each.sort_key)
    targets: dict[str, dict[UUID, frozenset[int]]] = {each.member_id: {} for each in ordered}
    for topic, size in sorted(counts.items()):
        subscribers = [each.member_id for each in ordered if topic in each.topics]
        if not subscribers:
            continue
        share, longer = divmod(size, len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + share + (position < longer)
            if end > start:
                targets[member_id][topic] = frozenset(range(start, end))
            start = end
    return dict(targets)


def assign_uniform(members: Sequence[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Give the members equal numbers of partitions, and let them keep as many as possible."""
    if not members:
        return {}
    ordered = sorted(members, key=lambda each: each.sort_key)
    if all(each.topics == ordered[0].topics for each in ordered):
        return _assign_equal(ordered, {topic: counts[topic] for topic in sorted(ordered[0].topics)})
    return _Balancing(ordered, counts).targets()


def _assign_equal(ordered: Sequence[Subscriber], counts: Mapping[UUID, int]) -> dict[str, Partitions]:
    """Assign to members with the same subscription.

    The partitions of all topics are numbered consecutively, because the hash of a UUID is slow.
    """
    starts = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    total = sum(counts.values())
    share, longer = divmod(total, len(ordered))
    free = set(range(total))
    kept: dict[str, list[int]] = {}
    had = {each.member_id: _numbers(each.last, starts, counts) for each in ordered}
    # The members with the most partitions keep one more than the others, so that as few partitions as possible move.
    for each in sorted(ordered, key=lambda each: -len(had[each.member_id])):
        own = [number for number in had[each.member_id] if number in free]
        room = share + (longer > 0)
        kept[each.member_id] = own[:room]
        if len(own) > share and longer > 0:
            longer -= 1
        free.difference_update(kept[each.member_id])
    # Round n gives one partition to each member that has at most n, so that the partitions of a topic spread over the
    # members.
    left = sorted(free, reverse=True)
    for room in range(share):
        if not left:
            break
        for each in ordered:
            if left and len(kept[each.member_id]) <= room:
                kept[each.member_id].append(left.pop())
    for each in ordered:
        if left and len(kept[each.member_id]) == share:
            kept[each.member_id].append(left.pop())
    assert not left, left
    return {each.member_id: _unchanged_or_new(each.last, kept[each.member_id], starts, counts) for each in ordered}


def _numbers(partitions: Partitions, starts: Mapping[UUID, int], counts: Mapping[UUID, int]) -> list[int]:
    """Return the numbers of the partitions that exist and are in the subscription, in order."""
    return sorted(
        starts[topic] + index
        for topic, indexes in partitions.items()
        if topic in starts
        for index in indexes
        if 0 <= index < counts[topic]
    )


def _unchanged_or_new(
    last: Partitions, numbers: list[int], starts: Mapping[UUID, int], counts: Mapping[UUID, int]
) -> Partitions:
    """Return the partitions with these numbers; the object `last` itself if it has the same partitions."""
    if len(numbers) == count(last) and _numbers(last, starts, counts) == sorted(numbers):
        return last
    topics, firsts = list(starts), list(starts.values())
    # A topic without partitions starts at the same number as the next topic.  Of the topics with the same start, the
    # last one has the partitions.
    places = ((bisect_right(firsts, number) - 1, number) for number in numbers)
    return of((topics[place], number - firsts[place]) for place, number in places)


class _Balancing:
    """Assigns partitions to members with different subscriptions.

    First, members keep their partitions.  Then free partitions are distributed.  Finally the loads are balanced.

    loads: the number of partitions of each member, by its place in the order.
    """

    def __init__(self, ordered: Sequence[Subscriber], counts: Mapping[UUID, int]) -> None:
        self._ordered = ordered
        self._owned: list[dict[UUID, set[int]]] = [{} for _ in ordered]
        self._loads = [0] * len(ordered)
        self._subscribers: dict[UUID, list[int]] = {}
        for place, each in enumerate(ordered):
            for topic in each.topics:
                self._subscribers.setdefault(topic, []).append(place)
        # Topics with few subscribers come first, because partitions of other topics have more possible owners.
        self._topics = sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic))
        free = {topic: set(range(counts[topic])) for topic in self._topics}
        for place, each in enumerate(ordered):
            for topic, indexes in each.last.items():
                if topic in each.topics:
                    for index in sorted(indexes & free[topic]):
                        free[topic].discard(index)
                        self._give(place, topic, index)
        for topic in self._topics:
            self._distribute(topic, sorted(free[topic]))
        self._balance(MOVES_PER_PARTITION_MAX * sum(counts[topic] for topic in self._topics))

    def _give(self, place: int, topic: UUID, index: int) -> None:
        self._owned[place].setdefault(topic, set()).add(index)
        self._loads[place] += 1

    def _distribute(self, topic: UUID, indexes: Sequence[int]) -> None:
        heap = [(self._loads[place], place) for place in self._subscribers[topic]]
        heapify(heap)
        for index in indexes:
            load, place = heap[0]
            self._give(place, topic, index)
            heapreplace(heap, (load + 1, place))

    def _balance(self, moves: int) -> None:
        """Move single partitions to members that have at least two fewer than the owner, until no move is left.

        moves: the largest number of moves.
        """
        has_moved = True
        while has_moved and moves > 0:
            has_moved = False
            for topic in self._topics:
                done = self._balance_topic(topic, moves)
                moves -= done
                has_moved = has_moved or done > 0

    def _balance_topic(self, topic: UUID, moves: int) -> int:
        """Balance the partitions of one topic, by at most `moves` moves; return how many partitions moved."""
        lowest = [(self._loads[place], place) for place in self._subscribers[topic]]
        highest = [(-load, place) for load, place in lowest if self._owned[place].get(topic)]
        heapify(lowest)
        heapify(highest)
        done = 0
        while highest and done < moves:
            # Entries become stale when a load changes: they are replaced when they come to the top.
            load, to = lowest[0]
            if load != self._loads[to]:
                heapreplace(lowest, (self._loads[to], to))
                continue
            negative, source = highest[0]
            if -negative != self._loads[source] or not self._owned[source].get(topic):
                if self._owned[source].get(topic):
                    heapreplace(highest, (-self._loads[source], source))
                else:
                    heappop(highest)
                continue
            if self._loads[source] - load < 2:
                break
            index = max(self._owned[source][topic])
            self._owned[source][topic].discard(index)
            self._loads[source] -= 1
            self._give(to, topic, index)
            done += 1
        return done

    def targets(self) -> dict[str, Partitions]:
        return {
            each.member_id: {topic: frozenset(indexes) for topic, indexes in sorted(owned.items()) if indexes}
            for each, owned in zip(self._ordered, self._owned, strict=True)
        }


ASSIGNORS_BY_NAME: Final[dict[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
