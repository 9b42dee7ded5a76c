"""One consumer group of the newer protocol: its members, with their current and target assignments.

Theory of operation
-------------------
**Three epochs.**  The group epoch grows when the members, their subscriptions, or the partitions of the topics change.
The target assignment for that epoch is computed in the same step, or later (below).  Each member moves towards its
target on its own, with its heartbeats (`reconcile`).  Its member epoch is the epoch of the target that it follows.

**At most one target per interval** (KIP-1263).  The cost of a target is proportional to the number of members.  So if
1,000 members join an empty group, a target for each join would cost about 500 times as much as one target for all.  The
first target of a group that was empty is computed at once.  Further changes only raise the group epoch until the
interval since the last target has passed.  Then the next heartbeat or tick computes one target for all these changes.
Meanwhile the last target stays in force, except for topics to which a member is no longer subscribed.

**Stored state** is everything except soft state: records contain the members, with their current and target
assignments.  `apply` is the only writer of this state, for replayed records and for new ones.  A new coordinator
therefore continues where the last one stopped.  Members keep their partitions meanwhile, and each gets a new session.

**The order of records.**  Compaction keeps the last record of each key, so the record of a member may come before the
record of its group.  Any record creates the group or member that it concerns.  A group or member without records is
dropped.

**Records of members that have left.**  A replica that was behind while other replicas compacted may have old records of
a member and lack the later ones.  It may even lack tombstones that were older than `delete.retention.ms`.  So during a
replay, two members may claim the same partition, target or instance id.  The later claim is valid: it was stored only
after the other member had given up its own.  Usually a later record of the other member ends the earlier claim.  If the
log has no such record, that member has left, and `load` drops it.  (Kafka failed to load such a log: KAFKA-19862.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final
from uuid import UUID

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.census import Census
from broker.core.coordinator.consumer.partitions import NO_PARTITIONS, Partitions, each
from broker.core.coordinator.consumer.records import (
    ConsumerKey,
    CurrentValue,
    GroupValue,
    Kind,
    MemberState,
    MemberValue,
    RegexValue,
    read_current,
    read_group,
    read_member,
    read_regex,
    read_target,
    read_target_member,
)
from broker.core.coordinator.consumer.requests import SubscribedTopics, Topic
from broker.core.coordinator.group_requests import GroupState, MemberName
from broker.core.coordinator.history import History
from broker.core.coordinator.records import NO_TIME
from broker.core.coordinator.subscription import CONSUMER
from quorumlog.wire.errors import KafkaCode

NEW: Final = CurrentValue()
"""The current assignment of a member that has no record of it."""


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """A member.  value: None until its own record has been read.  target_order: grows with each record of a target.

    Soft state: expires_ms is the end of its session.  rejoin_by_ms is the time by which it must have given up its
    partitions, or by which a classic member must have sent JoinGroup or SyncGroup; None if nothing is awaited.
    """

    member_id: str
    value: MemberValue | None = None
    target: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    target_order: int = 0
    current: CurrentValue = NEW
    expires_ms: int | None = None
    rejoin_by_ms: int | None = None

    @property
    def known(self) -> MemberValue:
        """Return the member's properties.  Its own record must have been read."""
        assert self.value is not None, self.member_id
        return self.value

    @property
    def names(self) -> MemberName:
        """Return all names of the member."""
        known = self.known
        return MemberName(self.member_id, known.instance_id, Client(known.client_id, known.client_host))

    @property
    def name(self) -> str:
        """Return the member's name for people: its id, and the instance id of a static member."""
        instance_id = None if self.value is None else self.value.instance_id
        return repr(self.member_id) if instance_id is None else f"{self.member_id!r} ({instance_id!r})"

    @property
    def places(self) -> Iterator[tuple[UUID, int]]:
        """Yield the partitions of its current assignment."""
        yield from each(self.current.assigned)
        yield from each(self.current.revoking)

    @property
    def is_classic(self) -> bool:
        return self.known.classic is not None

    @property
    def is_vacant(self) -> bool:
        """Return whether the member has no records."""
        return self.value is None and not self.target and self.current == NEW

    def is_reconciled(self, target_epoch: int) -> bool:
        """Return whether the member has reached the target of this epoch."""
        return self.current.state is MemberState.STABLE and self.current.epoch == target_epoch


class ConsumerGroup:
    """The state of one group.  Times end in `_ms` and use the monotonic clock, except `state_ms`.

    static: member ids by instance id.
    state_ms: wall clock at which the group became empty, or was loaded; NO_TIME if unknown.  Soft state.
    is_outdated: the subscribed topics may have changed since `metadata_hash` was compared.  Soft state.
    assigned_ms: when the last target was computed; None if the group was empty or loaded since.  Soft state.
    assign_at_ms: when the target of the current epoch is to be computed; None if it was computed already, or did not
        fit into a batch.  Soft state.
    wake_ms, queued_ms: as in `group.Group`.
    """

    protocol_type: Final = CONSUMER
    pending: Final = ()
    """As in `group.Group`, but always empty: no member gets an id before it has joined."""

    __slots__ = (
        "_has_record",
        "_has_target",
        "_is_dead",
        "_subscribed",
        "_targets",
        "assign_at_ms",
        "assigned_ms",
        "assignment_epoch",
        "census",
        "epoch",
        "history",
        "is_outdated",
        "members",
        "metadata_hash",
        "name",
        "owners",
        "queued_ms",
        "regexes",
        "state_ms",
        "static",
        "wake_ms",
    )

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: Final[dict[str, ConsumerMember]] = {}
        self.static: Final[dict[str, str]] = {}
        self.regexes: Final[dict[str, RegexValue]] = {}
        self.owners: Final[dict[tuple[UUID, int], str]] = {}
        """For each partition, the id of the member whose current assignment contains it."""
        self.census: Final = Census()
        self.history: Final = History()
        self.state_ms = NO_TIME
        self.is_outdated = True
        self.assigned_ms: int | None = None
        self.assign_at_ms: int | None = None
        self.wake_ms: int | None = None
        self.queued_ms: int | None = None
        self._has_record = False
        self._has_target = False
        self._is_dead = False
        self._subscribed: frozenset[str] | None = None
        self._targets = 0

    # -- records

    def apply(self, key: ConsumerKey, value: bytes | None) -> None:
        """Apply a record.

        Raises:
            BadRecord: the record is damaged, and nothing was changed.
        """
        match key.kind:
            case Kind.GROUP:
                read = GroupValue(0) if value is None else read_group(value)
                self.epoch, self.metadata_hash = read.epoch, read.metadata_hash
                self._has_record = value is not None
            case Kind.TARGET:
                self.assignment_epoch = 0 if value is None else read_target(value)
                self._has_target = value is not None
            case Kind.REGEX:
                if value is None:
                    self.regexes.pop(key.name, None)
                else:
                    self.regexes[key.name] = read_regex(value)
                self._subscribed = None
            case Kind.MEMBER | Kind.TARGET_MEMBER | Kind.CURRENT:
                self._apply_to_member(key, value)
            case _:
                pass

    def _apply_to_member(self, key: ConsumerKey, value: bytes | None) -> None:
        known = self.members.get(key.name)
        member = known or ConsumerMember(key.name)
        match key.kind:
            case Kind.MEMBER:
                self._set_value(member, None if value is None else read_member(value))
            case Kind.TARGET_MEMBER:
                member.target = NO_PARTITIONS if value is None else read_target_member(value)
                self._targets += 1
                member.target_order = self._targets
            case _:
                self._set_current(member, NEW if value is None else read_current(value))
        if known is None and not member.is_vacant:
            self._enter(member)
        elif known is not None and member.is_vacant:
            self._exit(member)

    def _enter(self, member: ConsumerMember) -> None:
        """Add a member.  `_set_value` and `_set_current` count its value and its current assignment."""
        self.members[member.member_id] = member
        self.census.place(NEW, 1)

    def _exit(self, member: ConsumerMember) -> None:
        del self.members[member.member_id]
        self.census.place(NEW, -1)

    def _set_value(self, member: ConsumerMember, value: MemberValue | None) -> None:
        instance_id = None if value is None else value.instance_id
        old = None if member.value is None else member.value.instance_id
        if old is not None and self.static.get(old) == member.member_id:
            del self.static[old]
        if instance_id is not None:
            self.static[instance_id] = member.member_id
        self.census.describe(member.member_id, member.value, -1)
        self.census.describe(member.member_id, value, 1)
        member.value = value
        self._subscribed = None

    def _set_current(self, member: ConsumerMember, current: CurrentValue) -> None:
        own = member.member_id
        for place in member.places:
            if self.owners.get(place) == own:
                del self.owners[place]
        self.owners.update(dict.fromkeys((*each(current.assigned), *each(current.revoking)), own))
        self.census.place(member.current, -1)
        self.census.place(current, 1)
        member.current = current

    @property
    def is_stored(self) -> bool:
        """Return whether the group has any record."""
        return self._has_record or self._has_target or bool(self.members) or bool(self.regexes)

    def record_keys(self) -> list[ConsumerKey]:
        """Return the keys of all records of the group, in the order in which they are deleted."""
        keys = [key for member_id in self.members for key in member_keys(self.name, member_id)]
        keys += [ConsumerKey(Kind.REGEX, self.name, regex) for regex in self.regexes]
        if self._has_target:
            keys.append(ConsumerKey(Kind.TARGET, self.name))
        if self._has_record:
            keys.append(ConsumerKey(Kind.GROUP, self.name))
        return keys

    # -- state

    @property
    def state(self) -> GroupState:
        if self._is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if self.census.reconciled[self.assignment_epoch] == len(self.members):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def is_dead(self) -> bool:
        """Return whether the group is being deleted."""
        return self._is_dead

    @property
    def generation(self) -> int:
        """Return the group epoch, under the name that classic groups use for it."""
        return self.epoch

    @property
    def is_vacant(self) -> bool:
        """Return whether the coordinator can drop this object: the group has no records and is not being deleted."""
        return not self.is_stored and not self._is_dead

    def die(self) -> None:
        """Become Dead: the group, which has no members, is being deleted."""
        assert not self.members, self.name
        self._is_dead = True

    def load(self, now_ms: int, wall_ms: int, session_timeout_ms: int) -> list[ConsumerKey]:
        """Begin to serve.  Each member gets a new session, and its whole rebalance timeout to give up partitions.

        Drop members that have left, and the remains of a deleted group.  Return the keys of their records, which the
        caller deletes from the log.
        """
        targets: dict[tuple[UUID, int], ConsumerMember] = {}
        for member in sorted(self.members.values(), key=lambda member: member.target_order):
            targets.update(dict.fromkeys(each(member.target), member))
        gone = [member for member in self.members.values() if self._has_left(member, targets)]
        stale = [key for member in gone for key in member_keys(self.name, member.member_id)]
        for member in gone:
            self._set_value(member, None)
            self._set_current(member, NEW)
            self._exit(member)
        if not self._has_record:
            stale += self.record_keys()
            self.regexes.clear()
            self.assignment_epoch, self._has_target = 0, False
        self.state_ms = wall_ms
        self.outdate(now_ms)
        for member in self.members.values():
            self.renew(member, now_ms, session_timeout_ms)
            if member.current.revoking:
                self.expect(member, now_ms)
        return stale

    def _has_left(self, member: ConsumerMember, targets: dict[tuple[UUID, int], ConsumerMember]) -> bool:
        """Return whether a member has left, although the replayed log lacks its tombstones.

        targets: for each partition, the member with the latest target that contains it.
        """
        if member.value is None or not self._has_record:
            return True
        instance_id = member.value.instance_id
        return (
            member.current.epoch > self.assignment_epoch  # it is a member of a deleted group of the same name
            or (instance_id is not None and self.static.get(instance_id) != member.member_id)
            or any(self.owners.get(place) != member.member_id for place in member.places)
            or any(targets[place] is not member for place in each(member.target))
        )

    # -- members

    def member_of_instance(self, instance_id: str | None) -> ConsumerMember | None:
        """Return the static member with this instance id, or None."""
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def member_error(self, member_id: str, instance_id: str | None) -> KafkaCode:
        """Return NONE if the ids name a member, and the error otherwise."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                return KafkaCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return KafkaCode.FENCED_INSTANCE_ID
        return KafkaCode.NONE if member_id in self.members else KafkaCode.UNKNOWN_MEMBER_ID

    def is_free(self, topic: UUID, partition: int, member_id: str) -> bool:
        """Return whether no member other than `member_id` owns a partition."""
        return self.owners.get((topic, partition), member_id) == member_id

    @property
    def consumer_members(self) -> int:
        """Return how many members use the newer protocol."""
        return len(self.members) - self.census.classic

    # -- subscriptions

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics to which a member is subscribed; some may not exist."""
        value = member.known
        regex = self.regexes.get(value.regex or "")
        return frozenset(value.topics if regex is None else (*value.topics, *regex.topics))

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics to which any member is subscribed."""
        if self._subscribed is None:
            matched = (self.regexes[regex].topics for regex in self.census.regexes if regex in self.regexes)
            self._subscribed = frozenset(self.census.topics).union(*matched)
        return self._subscribed

    def concerns(self, topics: Collection[str] | None) -> bool:
        """Return whether a change of these topics may concern the group.  None: any topic may have changed."""
        if topics is None or self.regexes:
            return True
        return not self.subscribed_topics().isdisjoint(topics)

    def existing_topics(self, topics: SubscribedTopics) -> dict[str, Topic]:
        """Return the subscribed topics that exist, by name."""
        found = ((name, topics.topic(name)) for name in sorted(self.subscribed_topics()))
        return {name: topic for name, topic in found if topic is not None}

    # -- time

    def renew(self, member: ConsumerMember, now_ms: int, session_timeout_ms: int) -> None:
        """Restart the session of a member.  A classic member has a session timeout of its own."""
        classic = member.known.classic
        member.expires_ms = now_ms + (session_timeout_ms if classic is None else classic.session_timeout_ms)
        self.wake(member.expires_ms)

    def expect(self, member: ConsumerMember, now_ms: int) -> None:
        """Start the timeout within which a member must give up partitions or join again, unless it is running."""
        if member.rejoin_by_ms is None:
            member.rejoin_by_ms = now_ms + max(member.known.rebalance_timeout_ms, 0)
            self.wake(member.rejoin_by_ms)

    def wake(self, at_ms: int) -> None:
        """Note that the group has something to do at this time: `wake_ms` is at most `at_ms` afterwards."""
        if self.wake_ms is None or at_ms < self.wake_ms:
            self.wake_ms = at_ms

    def outdate(self, now_ms: int) -> None:
        """Note that the subscribed topics may have changed.  The next heartbeat or tick compares them."""
        if self.members:
            self.is_outdated = True
            self.wake(now_ms)

    def assignment_due_ms(self, interval_ms: int) -> int | None:
        """Return the earliest time of the next target; None if it may be computed at once."""
        if self.assigned_ms is None or not self.members:
            return None
        return self.assigned_ms + interval_ms

    def postpone_assignment(self, until_ms: int) -> None:
        """Note when the target of the current epoch is to be computed."""
        self.assign_at_ms = until_ms
        self.wake(until_ms)

    def note_assignment(self, now_ms: int) -> None:
        """Note that a target was computed.  The next target waits for the interval, unless the group is empty."""
        self.assign_at_ms = None
        self.assigned_ms = now_ms if self.members else None

    def deadlines(self) -> Iterator[int]:
        """Yield all deadlines of the group and its members, unsorted."""
        if self.assign_at_ms is not None:
            yield self.assign_at_ms
        for member in self.members.values():
            if member.expires_ms is not None:
                yield member.expires_ms
            if member.rejoin_by_ms is not None:
                yield member.rejoin_by_ms

    def next_deadline(self) -> int | None:
        """Return the earliest deadline, or None.

        This visits each member; `wake_ms` is a lower bound that costs nothing.
        """
        return min(self.deadlines(), default=None)

    def check(self) -> None:
        """Assert the invariants.  This visits each member, so only tests call it."""
        owners: dict[tuple[UUID, int], str] = {}
        census = Census()
        assert self.assign_at_ms is None or (self.members and self.epoch > self.assignment_epoch), self.assign_at_ms
        for member_id, member in self.members.items():
            census.describe(member_id, member.value, 1)
            census.place(member.current, 1)
            assert member.value is not None, member_id
            assert member.expires_ms is not None, member_id
            current = member.current
            assert current.epoch <= self.assignment_epoch <= self.epoch, (member, self.assignment_epoch, self.epoch)
            assert bool(current.revoking) == (current.state is MemberState.UNREVOKED), member
            assert member.is_classic or (member.rejoin_by_ms is not None) == bool(current.revoking), member
            for place in member.places:
                assert place not in owners, f"{place} has two owners"
                owners[place] = member_id
        assert owners == self.owners, self.name
        for name in Census.__slots__:
            assert getattr(census, name) == getattr(self.census, name), name
        instances = {member.known.instance_id: member_id for member_id, member in self.members.items()}
        instances.pop(None, None)
        assert instances == self.static, self.name
        regexes = {member.known.regex for member in self.members.values() if member.known.regex}
        assert regexes == self.regexes.keys(), self.name
        targets = [place for member in self.members.values() for place in each(member.target)]
        assert len(targets) == len(set(targets)), "two members have the same target"
        deadline_ms = self.next_deadline()
        assert deadline_ms is None or (self.wake_ms is not None and self.wake_ms <= deadline_ms), self.name


def member_keys(group: str, member_id: str) -> list[ConsumerKey]:
    """Return the keys of the records of a member, in the order in which they are deleted."""
    return [ConsumerKey(kind, group, member_id) for kind in (Kind.CURRENT, Kind.TARGET_MEMBER, Kind.MEMBER)]


def hash_of(topics: dict[str, Topic]) -> int:
    """Return a hash of topics: their names, ids and numbers of partitions.  It has 64 bits, signed, and is never 0."""
    digest = blake2b(digest_size=8)
    for name, topic in sorted(topics.items()):
        digest.update(name.encode() + b"\0" + topic.topic_id.bytes + topic.partitions.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) or 1
