"""One classic group: its members, and their common state.

Theory of operation
-------------------
Once loaded, a group moves through its states only along `TRANSITIONS`.

    Empty                no member; it may have committed offsets
    PreparingRebalance   members send JoinGroup; the calls wait until all members have sent it, or until the deadline
    CompletingRebalance  each member knows the new generation; SyncGroup calls wait for the assignments of the leader
    Stable               each member has its assignment, or may fetch it
    Dead                 its offsets and its record are being deleted

**What is stored.**  A group is stored when it is made from a consumer group, when it becomes Stable, when it becomes
Empty, and when another process takes over the name of a static member.  All else is soft state.  A rebalance in
progress is therefore lost when the coordinator changes: the group is loaded as it was last stored.  Members of the lost
generation get ILLEGAL_GENERATION or UNKNOWN_MEMBER_ID, and join again.  No member has an assignment of the lost
generation, because assignments are sent only when they are committed.  So the number of that generation can be used
again.

**Static members.**  The name of a static member (`group.instance.id`) survives a restart of its process; the member id
does not.  The name belongs to the latest process that joined under it, and an older process is fenced.  The record
always names the latest process, even if a rebalance is in progress and everything else in the record is older.
Otherwise a change of the coordinator would fence the running process instead of the stopped one.

**Counters.**  `waiting`, `supported` and `record_bytes` are functions of the members.  They are kept up to date with
each change, so that a join costs no more in a large group.  Members change only through the methods of this class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from broker.core.coordinator.group_requests import GroupState, JoinGroup, MemberProtocol
from broker.core.coordinator.history import History
from broker.core.coordinator.members import Member, loaded_member
from broker.core.coordinator.records import NO_TIME, GroupKey, GroupValue, read_group
from broker.core.coordinator.subscription import CONSUMER, subscribed_topics
from quorumlog.wire.errors import KafkaCode

TRANSITIONS: Final = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE, GroupState.DEAD},
    GroupState.PREPARING_REBALANCE: {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE, GroupState.STABLE},
    GroupState.STABLE: {GroupState.PREPARING_REBALANCE},
    GroupState.DEAD: set(),
}

GENERATION_MAX = 2**31 - 1
"""The largest generation.  The next one is 0."""

_RECORD_FIELDS_BYTES = 64
"""Bytes of a group's own fields in its record, without names."""


class Group:
    """The state of one group.  Times end in `_ms` and use the monotonic clock, except `state_ms`.

    pending: member ids that were given out with MEMBER_ID_REQUIRED and not used yet, each with its expiry time.
    static: member ids by the instance id.
    waiting: how many members have a JoinGroup that waits.  supported: how many members support a protocol, by its name.
    state_ms: wall clock at the last change to Stable or Empty; NO_TIME if unknown.
    stored: the value of the group's last record; None without a record.
    join_deadline_ms: the end of PreparingRebalance.
    delay_left_ms: how long the first rebalance of an empty group may still be prolonged; None in other rebalances.
    grown: whether members have joined since the first rebalance was last prolonged.
    unsynced: members that joined this generation and have not sent SyncGroup; sync_deadline_ms: their deadline.
    wake_ms: a time not later than the next deadline.  queued_ms: the time of the group's entry in the heap.
    """

    __slots__ = (
        "_topics",
        "delay_left_ms",
        "generation",
        "grown",
        "history",
        "join_deadline_ms",
        "leader",
        "members",
        "name",
        "pending",
        "protocol",
        "protocol_type",
        "queued_ms",
        "record_bytes",
        "state",
        "state_ms",
        "static",
        "stored",
        "supported",
        "sync_deadline_ms",
        "unsynced",
        "waiting",
        "wake_ms",
    )

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: Final[dict[str, Member]] = {}
        self.pending: Final[dict[str, int]] = {}
        self.static: Final[dict[str, str]] = {}
        self.waiting = 0
        self.supported: Final[Counter[str]] = Counter()
        self.record_bytes = _RECORD_FIELDS_BYTES + len(name.encode())
        self.state_ms = NO_TIME
        self.stored: bytes | None = None
        self.join_deadline_ms: int | None = None
        self.delay_left_ms: int | None = None
        self.grown = False
        self.unsynced: Final[set[str]] = set()
        self.sync_deadline_ms: int | None = None
        self.wake_ms: int | None = None
        self.queued_ms: int | None = None
        self.history: Final = History()
        self._topics: tuple[frozenset[str] | None] | None = None
        """The subscribed topics, or None if they must be computed again."""

    # -- state

    def become(self, state: GroupState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.name!r}: {self.state} -> {state}"
        self.state = state
        self._topics = None

    @property
    def is_dead(self) -> bool:
        return self.state is GroupState.DEAD

    def die(self) -> None:
        """Become Dead: the group, which has no members, is being deleted."""
        self.pending.clear()
        self.become(GroupState.DEAD)

    def load(self, now_ms: int) -> None:
        """Take over the stored state: each member has a fresh session, and a group with members is Stable."""
        assert self.stored is not None, self.name
        value = read_group(self.stored)
        self.generation, self.protocol_type, self.state_ms = value.generation, value.protocol_type, value.state_ms
        self.protocol, self.leader = value.protocol, value.leader
        for stored in value.members:
            member = loaded_member(stored, value.protocol)
            self.add(member)
            self.renew(member, now_ms)
        if self.members:
            self.state = GroupState.STABLE
        self._topics = None

    def next_generation(self) -> int:
        """Return the generation that a rebalance in progress will make."""
        return 0 if self.generation == GENERATION_MAX else self.generation + 1

    def value(self) -> GroupValue:
        """Return the group as its record stores it."""
        members = tuple(member.value(self.protocol) for member in self.members.values())
        return GroupValue(self.protocol_type, self.generation, self.protocol, self.leader, self.state_ms, members)

    @property
    def is_vacant(self) -> bool:
        """Return whether the coordinator can drop this object without a loss."""
        return self.state is GroupState.EMPTY and not self.pending and self.stored is None

    def record_keys(self) -> list[GroupKey]:
        """Return the keys of all records of the group."""
        return [] if self.stored is None else [GroupKey(self.name)]

    # -- members

    def add(self, member: Member) -> None:
        assert member.member_id not in self.members, member.member_id
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self._count(member, 1)

    def drop(self, member: Member) -> None:
        """Remove a member that waits for no answer."""
        assert member.join_call is None, member
        assert member.sync_call is None, member
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        self.unsynced.discard(member.member_id)
        self._count(member, -1)

    def update(self, member: Member, request: JoinGroup) -> None:
        """Update a member's description of itself when it joins again."""
        self._count(member, -1)
        member.client, member.protocols = request.client, request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        self._count(member, 1)

    def offer(self, member: Member, protocols: tuple[MemberProtocol, ...]) -> None:
        """Set all protocols that a loaded member supports, because its record has only one of them."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def _count(self, member: Member, by: int) -> None:
        self._topics = None
        for name in member.protocol_names:
            self.supported[name] += by
            if not self.supported[name]:
                del self.supported[name]
        self.record_bytes += by * member.record_bytes

    def member_of_instance(self, instance_id: str | None) -> Member | None:
        """Return the static member with this instance id, or None.  An empty text is a valid id."""
        member_id = None if instance_id is None else self.static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def member_error(self, member_id: str, instance_id: str | None) -> KafkaCode:
        """Return NONE if the ids name a member, and the error otherwise."""
        if instance_id is not None:
            current = self.static.get(instance_id)
            if current is not None and current != member_id:
                return KafkaCode.FENCED_INSTANCE_ID
            if current is None:
                return KafkaCode.UNKNOWN_MEMBER_ID
        return KafkaCode.NONE if member_id in self.members else KafkaCode.UNKNOWN_MEMBER_ID

    # -- protocols

    def supports(self, protocol_type: str, names: Iterable[str], without: Member | None = None) -> bool:
        """Return whether all members except `without` have this protocol type and a common protocol among these."""
        names = tuple(names)
        if not protocol_type or not names:
            return False
        others = len(self.members) - (without is not None)
        if others == 0:
            return True
        own = () if without is None else without.protocol_names
        return protocol_type == self.protocol_type and any(
            self.supported[name] - (name in own) == others for name in names
        )

    def elect_protocol(self) -> str:
        """Return the protocol with most votes.

        Each member votes for the first of its protocols that all members support.
        """
        votes = Counter(
            next(name for name in member.protocol_names if self.supported[name] == len(self.members))
            for member in self.members.values()
        )
        # If votes are equal, the choice of the oldest member wins, because `most_common` keeps this order.
        return votes.most_common(1)[0][0]

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics to which any member is subscribed; None if any topic may be among them."""
        if self._topics is None:
            self._topics = (self._subscribed_topics(),)
        return self._topics[0]

    def _subscribed_topics(self) -> frozenset[str] | None:
        if not self.members:
            return frozenset()
        if self.protocol_type != CONSUMER:
            return None
        settled = self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE)
        topics: set[str] = set()
        for member in self.members.values():
            for protocol in member.protocols:
                if settled and protocol.name != self.protocol:
                    continue
                subscribed = subscribed_topics(protocol.metadata)
                if subscribed is None:
                    return None
                topics |= subscribed
        return frozenset(topics)

    # -- time

    @property
    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def renew(self, member: Member, now_ms: int) -> None:
        """Restart the session of a member.  While a call of the member waits, it has no session."""
        if member.join_call is None and member.sync_call is None:
            member.expires_ms = now_ms + member.session_timeout_ms
            self.wake(member.expires_ms)

    def wake(self, at_ms: int) -> None:
        """Note that something is due at this time."""
        if self.wake_ms is None or at_ms < self.wake_ms:
            self.wake_ms = at_ms

    def next_deadline(self) -> int | None:
        """Return the earliest deadline, or None.  This visits each member; `wake_ms` is a lower bound."""
        deadlines = [member.expires_ms for member in self.members.values() if member.expires_ms is not None]
        deadlines += self.pending.values()
        if self.join_deadline_ms is not None:
            deadlines.append(self.join_deadline_ms)
        if self.sync_deadline_ms is not None:
            deadlines.append(self.sync_deadline_ms)
        return min(deadlines, default=None)

    def check(self) -> None:
        """Assert the invariants.  This visits each member, so only tests call it."""
        members = self.members.values()
        assert self.waiting == sum(member.join_call is not None for member in members), self.name
        names = Counter(name for member in members for name in member.protocol_names)
        assert self.supported == names, self.name
        sizes = sum(member.record_bytes for member in members)
        assert self.record_bytes == _RECORD_FIELDS_BYTES + len(self.name.encode()) + sizes, self.name
        by_instance = {member.instance_id: member.member_id for member in members if member.instance_id is not None}
        assert self.static == by_instance, self.name
        assert self.unsynced <= self.members.keys(), self.name
        assert not self.pending.keys() & self.members.keys(), self.name
        for member in members:
            assert member.join_call is None or member.sync_call is None, member
            parked = member.join_call is not None or member.sync_call is not None
            assert parked or member.expires_ms is not None, member
            assert member.join_call is None or self.state is GroupState.PREPARING_REBALANCE, member
            assert member.sync_call is None or self.state is GroupState.COMPLETING_REBALANCE, member
        assert (self.join_deadline_ms is not None) == (self.state is GroupState.PREPARING_REBALANCE), self.name
        assert bool(self.unsynced) <= (self.sync_deadline_ms is not None), self.name
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            assert not self.members, self.name
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert self.members, self.name
        deadline_ms = self.next_deadline()
        assert deadline_ms is None or (self.wake_ms is not None and self.wake_ms <= deadline_ms), self.name
