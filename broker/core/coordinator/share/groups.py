"""One share group: its members, their assignments, and the share partitions that have a state.

A share partition has no owner: it may be assigned to many members.  So an assignment changes at once, and no member has
to give up partitions first.  Records in Kafka's format (key types 10 to 15) contain all state except soft state;
`apply` is their only reader.

**Share partitions are initialized before they are assigned.**  The share coordinator gets the state epoch of each, and
the record of type 15 lists the share partitions that have a state.  So a group knows which states to delete before it
is deleted.

A replica may lack the tombstones of a deleted group (`consumer/group.py` describes how).  Then a later group of the
same name may have members of the deleted group until their sessions end, although they send no heartbeats.  The
share partitions of the later group may begin where the deleted group ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from broker.core.coordinator.consumer.partitions import NO_PARTITIONS, Partitions, write_partitions
from broker.core.coordinator.fields import (
    BadRecord,
    Reader,
    compact_string,
    int8,
    int16,
    int32,
    int64,
    open_flexible,
    string,
    tagged,
    uvarint,
)
from broker.core.coordinator.group_requests import GroupState

_VERSION: Final = 0
SHARE: Final = "share"


class Kind(IntEnum):
    """The type of a record: the version of its key."""

    MEMBER = 10
    GROUP = 11
    TARGET = 12
    TARGET_MEMBER = 13
    CURRENT = 14
    STATE_PARTITIONS = 15


_KINDS: Final = frozenset(Kind)
_OF_MEMBERS: Final = (Kind.MEMBER, Kind.TARGET_MEMBER, Kind.CURRENT)


class ShareGroupKey(NamedTuple):
    """The key of a record.  member_id: empty for records of the group."""

    kind: Kind
    group: str
    member_id: str = ""


class ShareMemberValue(NamedTuple):
    """A member as it describes itself.  topics: sorted, without repetitions."""

    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]


class StateTopic(NamedTuple):
    """The partitions of a topic that have a state.  The id identifies the topic; the name is for people."""

    name: str
    partitions: frozenset[int]


@dataclass(slots=True, eq=False)
class ShareMember:
    """A member.  value: None until its own record has been read.  expires_ms: the end of its session; soft state."""

    member_id: str
    value: ShareMemberValue | None = None
    target: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = field(default_factory=lambda: NO_PARTITIONS)
    expires_ms: int = 0

    @property
    def known(self) -> ShareMemberValue:
        assert self.value is not None, self.member_id
        return self.value

    @property
    def is_vacant(self) -> bool:
        return self.value is None and not self.target and not self.epoch and not self.assigned


class ShareGroup:
    """The state of one group.

    initialized: the share partitions that have a state, by topic id.  deleting: topics whose states are being deleted.
    verified: the share partitions in `initialized` that certainly have a state.  A broker may delete the states of a
        group without members, and fail before the group notes that.  So when the first member joins, all states are
        initialized again, which changes no existing state.
    initializing_until_ms, deleting_until_ms: the time of the next attempt while states are being initialized or
        deleted; otherwise 0.
    is_outdated: topics may have changed since the last target.

    `verified` and the fields after it are soft state.
    """

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: Final[dict[str, ShareMember]] = {}
        self.initialized: dict[UUID, StateTopic] = {}
        self.deleting: dict[UUID, str] = {}
        self.verified: dict[UUID, frozenset[int]] = {}
        self.initializing_until_ms = 0
        self.deleting_until_ms = 0
        self.is_outdated = True
        self._kinds: set[Kind] = set()

    def apply(self, key: ShareGroupKey, value: bytes | None) -> None:
        """Apply a record.

        Raises:
            BadRecord: the record is damaged, and nothing was changed.
        """
        match key.kind:
            case Kind.GROUP:
                self.epoch, self.metadata_hash = (0, 0) if value is None else read_group(value)
            case Kind.TARGET:
                self.assignment_epoch = 0 if value is None else read_target(value)
            case Kind.STATE_PARTITIONS:
                self.initialized, self.deleting = ({}, {}) if value is None else read_state_partitions(value)
            case _:
                self._apply_to_member(key, value)
                return
        if value is None:
            self._kinds.discard(key.kind)
        else:
            self._kinds.add(key.kind)

    def _apply_to_member(self, key: ShareGroupKey, value: bytes | None) -> None:
        member = self.members.get(key.member_id) or ShareMember(key.member_id)
        match key.kind:
            case Kind.MEMBER:
                member.value = None if value is None else read_member(value)
            case Kind.TARGET_MEMBER:
                member.target = NO_PARTITIONS if value is None else read_target_member(value)
            case _:
                current = (0, 0, NO_PARTITIONS) if value is None else read_current(value)
                member.epoch, member.previous_epoch, member.assigned = current
        if member.is_vacant:
            self.members.pop(key.member_id, None)
        else:
            self.members[key.member_id] = member

    def load(self) -> list[ShareGroupKey]:
        """Drop deleted members and data if the log still has their records; return the keys of these records.

        `consumer/group.py` describes why a log may lack tombstones.
        """
        has_record = Kind.GROUP in self._kinds
        gone = [
            member_id
            for member_id, member in self.members.items()
            if not has_record or member.value is None or member.epoch > self.assignment_epoch
        ]
        for member_id in gone:
            del self.members[member_id]
        stale = [key for member_id in gone for key in member_keys(self.name, member_id)]
        if not has_record:
            stale += self.record_keys()
            self._kinds.clear()
        if self.members:
            self.verified = {topic: state.partitions for topic, state in self.initialized.items()}
        return stale

    @property
    def is_vacant(self) -> bool:
        """Return whether the coordinator can drop this object without a loss."""
        return not self._kinds and not self.members

    def record_keys(self) -> list[ShareGroupKey]:
        """Return the keys of all records of the group, in the order in which they are deleted."""
        keys = [key for member_id in self.members for key in member_keys(self.name, member_id)]
        return keys + [ShareGroupKey(kind, self.name) for kind in sorted(self._kinds, reverse=True)]

    @property
    def state(self) -> GroupState:
        return GroupState.STABLE if self.members else GroupState.EMPTY

    def subscribed_topics(self) -> set[str]:
        return {topic for member in self.members.values() for topic in member.known.topics}

    def deadline_ms(self) -> int | None:
        """Return when the next session ends."""
        return min((member.expires_ms for member in self.members.values()), default=None)


def member_keys(group: str, member_id: str) -> list[ShareGroupKey]:
    """Return the keys of the records of a member, in the order in which they are deleted."""
    return [ShareGroupKey(kind, group, member_id) for kind in (Kind.CURRENT, Kind.TARGET_MEMBER, Kind.MEMBER)]


def assign(
    subscriptions: Mapping[str, Iterable[UUID]], partitions: Mapping[UUID, frozenset[int]]
) -> dict[str, Partitions]:
    """Return the targets of members.  Each partition gets a member, and each member a partition of each of its topics.

    If a topic has more members than partitions, members share partitions.  From topic to topic, the first member
    advances by the number of partitions, so that topics with one partition are not all assigned to the same member.

    subscriptions: ids of topics by member.  partitions: the partitions that may be assigned, by topic id.
    """
    by_topic: dict[UUID, list[str]] = {}
    for member in sorted(subscriptions):
        for topic in subscriptions[member]:
            by_topic.setdefault(topic, []).append(member)
    targets: dict[str, dict[UUID, set[int]]] = {member: {} for member in subscriptions}
    turn = 0
    for topic in sorted(by_topic):
        members, indexes = by_topic[topic], sorted(partitions.get(topic, ()))
        for at in range(max(len(members), len(indexes)) if indexes else 0):
            member = members[(turn + at) % len(members)]
            targets[member].setdefault(topic, set()).add(indexes[at % len(indexes)])
        turn += len(indexes)
    return {
        member: {topic: frozenset(indexes) for topic, indexes in target.items()} for member, target in targets.items()
    }


# -- records


def read_key(data: bytes) -> ShareGroupKey | None:
    """Return the key; None if the record does not belong to a share group.

    Like all readers in this module, it raises BadRecord if the bytes are damaged.
    """
    reader = Reader(data)
    version = reader.int16()
    if version not in _KINDS:
        return None
    kind = Kind(version)
    key = ShareGroupKey(kind, reader.string(), reader.string() if kind in _OF_MEMBERS else "")
    reader.end()
    return key


def write_key(key: ShareGroupKey) -> bytes:
    """Return the bytes of a key.  Raises: BadRecord: a name is too long."""
    return int16(key.kind) + string(key.group) + (string(key.member_id) if key.kind in _OF_MEMBERS else b"")


def _end(reader: Reader) -> None:
    reader.skip_tags()
    reader.end()


def read_member(data: bytes) -> ShareMemberValue:
    """Return a member's description of itself.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    rack_id, client_id, client_host = reader.nullable_string(), reader.string(), reader.string()
    topics = tuple(sorted({reader.string() for _ in range(reader.count())}))
    _end(reader)
    return ShareMemberValue(rack_id, client_id, client_host, topics)


def write_member(value: ShareMemberValue) -> bytes:
    """Return the bytes of a member's description.  Raises: BadRecord: a name is too long."""
    parts = [int16(_VERSION), compact_string(value.rack_id), compact_string(value.client_id)]
    parts += [compact_string(value.client_host), uvarint(len(value.topics) + 1), *map(compact_string, value.topics)]
    return b"".join(parts) + tagged({})


def read_group(data: bytes) -> tuple[int, int]:
    """Return the epoch, and the hash of the topics.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    epoch, metadata_hash = reader.int32(), reader.int64()
    _end(reader)
    return epoch, metadata_hash


def write_group(epoch: int, metadata_hash: int) -> bytes:
    return int16(_VERSION) + int32(epoch) + int64(metadata_hash) + tagged({})


def read_target(data: bytes) -> int:
    """Return the epoch of a target assignment.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    epoch = reader.int32()
    _end(reader)
    return epoch


def write_target(epoch: int) -> bytes:
    return int16(_VERSION) + int32(epoch) + tagged({})


def read_target_member(data: bytes) -> Partitions:
    """Return the target of a member.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    partitions = _read_partitions(reader)
    _end(reader)
    return partitions


def write_target_member(partitions: Partitions) -> bytes:
    return int16(_VERSION) + write_partitions(partitions) + tagged({})


def read_current(data: bytes) -> tuple[int, int, Partitions]:
    """Return the epoch of a member, its previous epoch, and its partitions.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    epoch, previous_epoch, _ = reader.int32(), reader.int32(), reader.int8()
    partitions = _read_partitions(reader)
    _end(reader)
    return epoch, previous_epoch, partitions


def write_current(epoch: int, previous_epoch: int, partitions: Partitions) -> bytes:
    head = int16(_VERSION) + int32(epoch) + int32(previous_epoch) + int8(0)
    return head + write_partitions(partitions) + tagged({})


def _read_partitions(reader: Reader) -> Partitions:
    partitions: dict[UUID, frozenset[int]] = {}
    for _ in range(reader.count()):
        topic = reader.uuid()
        indexes = frozenset(reader.int32() for _ in range(reader.count()))
        if topic in partitions or not indexes:
            raise BadRecord(f"topic {topic} occurs twice, or has no partitions")
        partitions[topic] = indexes
        reader.skip_tags()
    return partitions


def read_state_partitions(data: bytes) -> tuple[dict[UUID, StateTopic], dict[UUID, str]]:
    """Return the share partitions that have a state, and the topics whose states are being deleted.

    Share partitions that are being initialized are skipped, and are then initialized again.  Raises: BadRecord.
    """
    reader = open_flexible(data, _VERSION)
    _read_state_topics(reader)
    initialized = _read_state_topics(reader)
    deleting: dict[UUID, str] = {}
    for _ in range(reader.count()):
        topic = reader.uuid()
        deleting[topic] = reader.string()
        reader.skip_tags()
    _end(reader)
    return initialized, deleting


def _read_state_topics(reader: Reader) -> dict[UUID, StateTopic]:
    topics: dict[UUID, StateTopic] = {}
    for _ in range(reader.count()):
        topic, name = reader.uuid(), reader.string()
        topics[topic] = StateTopic(name, frozenset(reader.int32() for _ in range(reader.count())))
        reader.int64()
        reader.skip_tags()
    return topics


def write_state_partitions(
    initialized: Mapping[UUID, StateTopic], deleting: Mapping[UUID, str], created_ms: int
) -> bytes:
    parts = [int16(_VERSION), uvarint(1), uvarint(len(initialized) + 1)]
    for topic in sorted(initialized):
        name, indexes = initialized[topic]
        parts += [topic.bytes, compact_string(name), uvarint(len(indexes) + 1), *map(int32, sorted(indexes))]
        parts += [int64(created_ms), tagged({})]
    parts.append(uvarint(len(deleting) + 1))
    for topic in sorted(deleting):
        parts += [topic.bytes, compact_string(deleting[topic]), tagged({})]
    return b"".join(parts) + tagged({})
