"""Deletes expired offsets, groups, and the offsets of deleted topics, which may be millions of offsets.

The deletions are done in slices, so that a batch stays within its limit and the coordinator stays responsive.  Each
slice examines the current state.  A group that is being deleted is Dead, and a commit for a topic whose offsets are
being deleted is refused with COORDINATOR_LOAD_IN_PROGRESS.  So no offset that is committed in the meantime is deleted.

**Searches** examine all offsets, and almost all of them stay.  A cheap test picks the candidates of a chunk, and only
candidates are examined one by one.

**Missing topics.**  When a topic is deleted, its coordinator may not be loaded, or may end before it has deleted all
offsets.  So each coordinator, once it is loaded, deletes the offsets of partitions that do not exist, and offsets that
were committed for an earlier topic of the same name.

**Open transactions.**  The searches for missing topics and for expired offsets leave an offset while an open
transaction has an offset for its place.  A tombstone would be the newest record of the place, so a commit of the
transaction would have no effect.

**Clocks.**  Expiry compares the times in records with a clock that follows a jump of the wall clock only after a day.
So a clock that is wrong by years deletes nothing before people can notice it.

**Expiry** (KIP-211).  Offsets of an empty group expire `offsets_retention_ms` after the group became empty, or after
their commit if that was later: an administrator may set offsets of a group that has long been empty.  A consumer group
does not store when it became empty, so it counts as empty since the load of its coordinator at the earliest.  While the
group is Stable, offsets of topics to which no member is subscribed expire by their commit time.  During a rebalance
nothing expires.  Offsets of simple consumers expire by their commit time.  While the group permits expiry, an offset
that has a retention of its own expires at the time in its record instead.  An empty group without offsets is deleted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from broker.core.coordinator.consumer.group import ConsumerGroup
from broker.core.coordinator.consumer.records import ConsumerKey
from broker.core.coordinator.consumer.records import write_key as write_consumer_key
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import (
    DeletedGroup,
    DeleteGroups,
    DeleteGroupsResponse,
    GroupState,
    Topics,
)
from broker.core.coordinator.group_step import GroupStep
from broker.core.coordinator.offsets import Offsets, key_of
from broker.core.coordinator.records import (
    NO_TIME,
    is_of_other_topic,
    offset_place,
    offset_times,
    topic_ending,
    write_key,
)
from broker.core.coordinator.subscription import CONSUMER
from broker.core.coordinator.transactional_offsets import PendingOffsets
from quorumlog.wire.errors import KafkaCode

OFFSETS_PER_SLICE_MAX = 2_000
"""A slice ends once it has examined this many offsets.  The next slice follows with the next tick."""

OFFSETS_AT_ONCE_MAX = 250
"""Largest number of offsets of one group that a search examines in one step.  With the last step, a slice may exceed
its limit."""

_Stored = list[tuple[bytes, bytes]]
"""Places with their stored values."""

_Search = Iterator[int]
"""A search in progress.  Each step yields its cost, at least 1: about the number of offsets that it examined."""


@dataclass(slots=True, eq=False)
class _Deletion:
    """A DeleteGroups call that waits until its groups are deleted.  call: None if the client disconnected."""

    call: int | None
    request: DeleteGroups
    results: dict[str, KafkaCode]
    left: set[str]

    def response(self) -> DeleteGroupsResponse:
        groups = self.request.groups
        return DeleteGroupsResponse(tuple(DeletedGroup(group, self.results[group]) for group in groups))


class Sweeper:
    """Deletes offsets and groups in slices.

    groups: all groups except those that have only offsets.
    cautious_ms: the wall clock of expiry, in ms since the epoch.

    The queues are bounded.  A group has at most one deletion in the queue, because a Dead group is not deleted again.
    All topics that wait form one set.  There is at most one search for expired offsets, and one for offsets of missing
    partitions.
    """

    def __init__(
        self,
        groups: dict[str, Group | ConsumerGroup],
        offsets: Offsets,
        pending: PendingOffsets,
        topics: Topics,
        cautious_ms: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._pending = pending
        self._image = topics
        self._cautious_ms = cautious_ms
        self._deletions: deque[_Deletion] = deque()
        self._topics: frozenset[str] = frozenset()
        self._topics_later: frozenset[str] = frozenset()
        self._deleting: _Search | None = None
        self._deleting_topics: _Search | None = None
        self._deleting_missing: _Search | None = None
        self._expiring: _Search | None = None
        self._step: GroupStep | None = None
        self._endings: dict[bytes, bytes | tuple[()]] = {}
        """The results of `_ending` for the places that the current slice has examined."""

    # -- choosing the deletions

    def delete_groups(self, step: GroupStep, call: int, request: DeleteGroups, results: dict[str, KafkaCode]) -> None:
        """Begin to delete the groups whose result is NONE.  They are Dead from now on.

        results: an error for each other group of the request.  If there are only errors, they are answered at once.
        """
        left = {group for group, error in results.items() if error is KafkaCode.NONE}
        deletion = _Deletion(call, request, results, left)
        if not left:
            step.answer(call, deletion.response())
            return
        for name in sorted(left):
            self._groups.setdefault(name, Group(name)).die()
        self._deletions.append(deletion)

    def delete_topics(self, topics: Collection[str]) -> None:
        """Begin to delete the offsets of deleted topics.  Deletions in progress are completed first."""
        self._topics_later |= frozenset(topics)

    def delete_missing(self) -> None:
        """Begin to delete the offsets of partitions that do not exist, and of earlier topics of the same name."""
        if self._offsets.count:
            self._deleting_missing = self._delete_missing()

    def transaction_ended(self, places: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin to delete offsets of missing topics if the transaction has added any, or delayed their deletion.

        places: groups and places of the transaction's offsets.
        """
        if any(self._is_missing(group.decode(), place) for group, place in places):
            self.delete_missing()

    def expire(self) -> None:
        """Begin to look for expired offsets.  If a search is in progress, it continues instead."""
        if self._expiring is None:
            self._expiring = self._expire()

    def is_deleting_topic(self, topic: str) -> bool:
        return topic in self._topics or topic in self._topics_later

    def forget(self, call: int) -> None:
        """Drop a call whose client disconnected.  Its groups are still deleted."""
        for deletion in self._deletions:
            if deletion.call == call:
                deletion.call = None

    @property
    def is_busy(self) -> bool:
        """Return whether work is left for another slice."""
        searches = (self._deleting_topics, self._deleting_missing, self._expiring)
        return bool(self._deletions or self._topics_later or any(searches))

    # -- slices

    def run(self, step: GroupStep) -> None:
        """Do one slice."""
        self._step = step
        left = OFFSETS_PER_SLICE_MAX
        while left > 0 and self.is_busy and not step.is_full:
            left -= self._advance()
        self._endings.clear()  # topics may change before the next slice
        self._step = None

    def close(self) -> None:
        """End all searches.  Each refers to this object, so a search in progress forms a reference cycle."""
        self._deletions.clear()
        self._deleting = self._deleting_topics = self._deleting_missing = self._expiring = None

    def _advance(self) -> int:
        """Continue a search, and return the cost; 0 when it has ended.  Groups come first: clients wait for them."""
        cost = 1
        if self._deletions:
            self._deleting = self._deleting or self._delete(self._deletions[0])
            if not (cost := next(self._deleting, 0)):
                self._deleting = None
        elif self._deleting_topics is not None or self._topics_later:
            if self._deleting_topics is None:
                self._topics, self._topics_later = self._topics_later, frozenset()
                self._deleting_topics = self._delete_topics()
            if not (cost := next(self._deleting_topics, 0)):
                self._deleting_topics, self._topics = None, frozenset()
        elif self._deleting_missing is not None:
            if not (cost := next(self._deleting_missing, 0)):
                self._deleting_missing = None
        elif self._expiring is not None and not (cost := next(self._expiring, 0)):
            self._expiring = None
        return cost

    def _append(self, key: bytes) -> None:
        assert self._step is not None
        self._step.append(key, None)

    def _delete(self, deletion: _Deletion) -> _Search:
        for name in sorted(deletion.left):
            for place in self._offsets.places(name):
                self._append(key_of(name, place))
                yield 1
            self._delete_group(name)
            yield 1
        self._deletions.popleft()
        if deletion.call is not None:
            assert self._step is not None
            self._step.answer(deletion.call, deletion.response())

    def _delete_group(self, name: str) -> None:
        """Delete a group without offsets."""
        assert self._step is not None
        group = self._groups.pop(name)
        assert not group.members, group.members
        for key in group.record_keys():
            self._append(write_consumer_key(key) if isinstance(key, ConsumerKey) else write_key(key))
        self._step.note(f"group={name!r} state={GroupState.DEAD} generation={group.generation} event=deleted")

    def _delete_offsets(
        self, name: str, candidates: Callable[[_Stored], list[bytes]], is_to_delete: Callable[[str, bytes], bool]
    ) -> _Search:
        """Delete offsets of one group.

        candidates: returns the places of a chunk that may have to be deleted.
        is_to_delete: decides about one place by its current value, because the offset may have been changed or deleted
            since.
        """
        places = self._offsets.places(name)
        for first in range(0, len(places), OFFSETS_AT_ONCE_MAX):
            chunk = self._offsets.stored(name, places[first : first + OFFSETS_AT_ONCE_MAX])
            for place in candidates(chunk):
                if is_to_delete(name, place):
                    self._append(key_of(name, place))
                yield 1
            yield max(1, len(chunk))

    def _delete_topics(self) -> _Search:
        topics = {topic.encode() for topic in self._topics}

        def of_topics(stored: _Stored) -> list[bytes]:
            return [place for place, _ in stored if place[2:-4] in topics]  # the topic: `offset_place`

        for name in self._offsets.groups():
            yield from self._delete_offsets(name, of_topics, self._offsets.has)

    def _delete_missing(self) -> _Search:
        for name in self._offsets.groups():
            yield from self._delete_offsets(name, self._may_be_missing, self._is_missing)

    def _may_be_missing(self, stored: _Stored) -> list[bytes]:
        endings = self._endings
        for place, _ in stored:
            if place not in endings:
                endings[place] = self._ending(place)
        return [place for place, value in stored if not value.endswith(endings[place])]

    def _ending(self, place: bytes) -> bytes | tuple[()]:
        """Return the ending of values that stay.  A value of the place with another ending is a candidate.

        An empty tuple makes each value of the place a candidate, because `value.endswith(())` is false.
        """
        topic, partition = offset_place(place)
        if not self._image.has_partition(topic, partition):
            return ()
        origin = self._image.origin(topic)
        return b"" if origin is None else topic_ending(origin)

    def _is_missing(self, name: str, place: bytes) -> bool:
        value = self._offsets.raw(name, place)
        if value is None or self._pending.has(name, place):
            return False
        topic, partition = offset_place(place)
        exists = self._image.has_partition(topic, partition)
        return not exists or is_of_other_topic(value, self._image.origin(topic))

    def _expire(self) -> _Search:
        for name in sorted({*self._offsets.groups(), *self._groups}):
            yield from self._delete_offsets(name, self._may_be_expired, self._is_expired)
            group = self._groups.get(name)
            if (
                group is not None
                and group.state is GroupState.EMPTY
                and not group.pending
                and not self._offsets.has_group(name)
            ):
                self._delete_group(name)
            yield 1

    def _may_be_expired(self, stored: _Stored) -> list[bytes]:
        assert self._step is not None
        newest_ms = self._cautious_ms() - self._step.limits.offsets_retention_ms
        times = ((place, offset_times(value)) for place, value in stored)
        return [place for place, (commit_ms, expire_ms) in times if commit_ms <= newest_ms or expire_ms != NO_TIME]

    def _is_expired(self, name: str, place: bytes) -> bool:
        assert self._step is not None
        value = self._offsets.raw(name, place)
        if value is None or self._pending.has(name, place):
            return False
        group = self._groups.get(name)
        commit_ms, expire_ms = offset_times(value)
        now_ms = self._cautious_ms()
        due_ms = commit_ms + self._step.limits.offsets_retention_ms
        if group is not None and group.state is GroupState.EMPTY and group.state_ms != NO_TIME:
            due_ms = max(due_ms, group.state_ms + self._step.limits.offsets_retention_ms)
        if now_ms < (due_ms if expire_ms == NO_TIME else expire_ms):
            return False
        if group is None or group.state is GroupState.EMPTY:
            return True
        if group.state is not GroupState.STABLE or group.protocol_type != CONSUMER:
            return False
        subscribed = group.subscribed_topics()
        return subscribed is not None and offset_place(place)[0] not in subscribed
