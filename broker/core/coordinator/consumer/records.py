"""Records of consumer groups in `__consumer_offsets`, in Kafka's format: key types 3 to 8, and 16.

A group has one record with its epoch (3) and one with the epoch of its target assignment (6).  Each member has up to
three records: its subscription (5), its target (7), and its current assignment (8).  Each regular expression has one
record with the topics that it matches (16).  Releases of Kafka before 4.1 stored the partitions of the topics (4); such
records are skipped.

All values have version 0, which is flexible.  Tagged fields of later releases are skipped.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final
from uuid import UUID

import msgspec

from broker.core.coordinator.consumer.partitions import NO_PARTITIONS, Partitions, write_partitions
from broker.core.coordinator.fields import (
    BadRecord,
    Reader,
    compact_binary,
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
from broker.core.coordinator.group_requests import MemberProtocol

_VERSION: Final = 0
_PRESENT: Final = 1
"""The byte before a tagged struct that is not null."""
_HASH_TAG: Final = 0
_CLASSIC_TAG: Final = 0


class Kind(IntEnum):
    """The type of a record: the version of its key."""

    GROUP = 3
    PARTITION_METADATA = 4
    MEMBER = 5
    TARGET = 6
    TARGET_MEMBER = 7
    CURRENT = 8
    REGEX = 16


_KINDS: Final = frozenset(Kind)
_WITH_SECOND_NAME: Final = (Kind.MEMBER, Kind.TARGET_MEMBER, Kind.CURRENT, Kind.REGEX)


class MemberState(IntEnum):
    """The progress of a member towards its target assignment.

    STABLE: it has reached the target of its epoch.  UNREVOKED: it must first give up partitions.  UNRELEASED: it
    waits for partitions that other members still own.
    """

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


_STATES: Final = frozenset(MemberState)


class ConsumerKey(msgspec.Struct, frozen=True):
    """The key of a record.  name: the member id or the regular expression; empty for records of the group."""

    kind: Kind
    group: str
    name: str = ""


class GroupValue(msgspec.Struct, frozen=True):
    """The epoch of a group.  metadata_hash: a hash of its subscribed topics and their partitions at this epoch."""

    epoch: int
    metadata_hash: int = 0


class ClassicValue(msgspec.Struct, frozen=True):
    """The additional properties of a classic member.  session_timeout_ms: the timeout that it asked for."""

    session_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]


class MemberValue(msgspec.Struct, frozen=True):
    """The properties that a member reports about itself.

    topics: sorted, without repetitions.  regex: None or empty if it has none.  assignor: None if it has no preference.
    classic: None if it uses the newer protocol.
    """

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicValue | None = None


class CurrentValue(msgspec.Struct, frozen=True):
    """The current assignment of a member: the partitions that it may use, and those that it must still give up.

    previous_epoch: the epoch before `epoch`.  A member that did not get the last answer still sends its previous epoch.
    """

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = msgspec.field(default_factory=lambda: NO_PARTITIONS)
    revoking: Partitions = msgspec.field(default_factory=lambda: NO_PARTITIONS)


class RegexValue(msgspec.Struct, frozen=True):
    """The topics that a regular expression matches, sorted.

    version: the version of the topics with which it was compared.  timestamp_ms: the wall clock at that time.
    """

    topics: tuple[str, ...]
    version: int = 0
    timestamp_ms: int = 0


# -- keys


def read_key(data: bytes) -> ConsumerKey | None:
    """Return the key; None if the record does not belong to a consumer group.

    Like all readers in this module, it raises BadRecord if the bytes are damaged.
    """
    reader = Reader(data)
    version = reader.int16()
    if version not in _KINDS:
        return None
    kind = Kind(version)
    key = ConsumerKey(kind, reader.string(), reader.string() if kind in _WITH_SECOND_NAME else "")
    reader.end()
    return key


def write_key(key: ConsumerKey) -> bytes:
    """Return the bytes of a key.  Raises: BadRecord: a name is too long."""
    names = string(key.group) + (string(key.name) if key.kind in _WITH_SECOND_NAME else b"")
    return int16(key.kind) + names


# -- values


def _end(reader: Reader) -> dict[int, bytes]:
    tags = reader.tags()
    reader.end()
    return tags


def read_group(data: bytes) -> GroupValue:
    """Return the epoch of a group.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    epoch = reader.int32()
    tags = _end(reader)
    metadata_hash = 0
    if _HASH_TAG in tags:
        tag = Reader(tags[_HASH_TAG])
        metadata_hash = tag.int64()
        tag.end()
    return GroupValue(epoch, metadata_hash)


def write_group(value: GroupValue) -> bytes:
    """Return the bytes of a group's epoch."""
    tags = {_HASH_TAG: int64(value.metadata_hash)} if value.metadata_hash else {}
    return int16(_VERSION) + int32(value.epoch) + tagged(tags)


def read_member(data: bytes) -> MemberValue:
    """Return the properties of a member.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    topics = tuple(reader.string() for _ in range(reader.count()))
    regex = reader.nullable_string()
    rebalance_timeout_ms = reader.int32()
    assignor = reader.nullable_string()
    classic = _read_classic(_end(reader).get(_CLASSIC_TAG))
    return MemberValue(
        instance_id,
        rack_id,
        client_id,
        client_host,
        tuple(sorted(set(topics))),
        regex,
        rebalance_timeout_ms,
        assignor,
        classic,
    )


def _read_classic(data: bytes | None) -> ClassicValue | None:
    if data is None:
        return None
    reader = Reader(data)
    reader.flexible = True
    if reader.int8() != _PRESENT:
        reader.end()
        return None
    session_timeout_ms = reader.int32()
    protocols = []
    for _ in range(reader.count()):
        protocols.append(MemberProtocol(reader.string(), reader.binary()))
        reader.skip_tags()
    _end(reader)
    return ClassicValue(session_timeout_ms, tuple(protocols))


def write_member(value: MemberValue) -> bytes:
    """Return the bytes of a member's properties.  Raises: BadRecord: a name is too long."""
    parts = [int16(_VERSION), *map(compact_string, (value.instance_id, value.rack_id))]
    parts += [compact_string(value.client_id), compact_string(value.client_host)]
    parts += [uvarint(len(value.topics) + 1), *map(compact_string, value.topics)]
    parts += [compact_string(value.regex), int32(value.rebalance_timeout_ms), compact_string(value.assignor)]
    tags = {} if value.classic is None else {_CLASSIC_TAG: _write_classic(value.classic)}
    return b"".join(parts) + tagged(tags)


def _write_classic(value: ClassicValue) -> bytes:
    parts = [int8(_PRESENT), int32(value.session_timeout_ms), uvarint(len(value.protocols) + 1)]
    for protocol in value.protocols:
        parts += [compact_string(protocol.name), compact_binary(protocol.metadata), tagged({})]
    return b"".join(parts) + tagged({})


def read_target(data: bytes) -> int:
    """Return the epoch of a target assignment.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    epoch = reader.int32()
    _end(reader)
    return epoch


def write_target(epoch: int) -> bytes:
    """Return the bytes of the epoch of a target assignment."""
    return int16(_VERSION) + int32(epoch) + tagged({})


def read_target_member(data: bytes) -> Partitions:
    """Return the target of a member.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    partitions = _read_partitions(reader)
    _end(reader)
    return partitions


def write_target_member(partitions: Partitions) -> bytes:
    """Return the bytes of the target of a member."""
    return int16(_VERSION) + write_partitions(partitions) + tagged({})


def read_current(data: bytes) -> CurrentValue:
    """Return the current assignment of a member.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
    if state not in _STATES:
        raise BadRecord(f"member state {state} is unknown")
    assigned, revoking = _read_partitions(reader), _read_partitions(reader)
    _end(reader)
    if any(assigned[topic] & revoking[topic] for topic in assigned.keys() & revoking.keys()):
        raise BadRecord("a partition is assigned and revoked at the same time")
    return CurrentValue(epoch, previous_epoch, MemberState(state), assigned, revoking)


def write_current(value: CurrentValue) -> bytes:
    """Return the bytes of the current assignment of a member."""
    head = int16(_VERSION) + int32(value.epoch) + int32(value.previous_epoch) + int8(value.state)
    return head + write_partitions(value.assigned) + write_partitions(value.revoking) + tagged({})


def _read_partitions(reader: Reader) -> Partitions:
    partitions: dict[UUID, frozenset[int]] = {}
    for _ in range(reader.count()):
        topic = reader.uuid()
        if topic in partitions:
            raise BadRecord(f"topic {topic} occurs twice")
        indexes = frozenset(reader.int32() for _ in range(reader.count()))
        if indexes:
            partitions[topic] = indexes
        reader.skip_tags()
    return partitions


def read_regex(data: bytes) -> RegexValue:
    """Return the topics that a regular expression matches.  Raises: BadRecord."""
    reader = open_flexible(data, _VERSION)
    topics = tuple(sorted({reader.string() for _ in range(reader.count())}))
    value = RegexValue(topics, reader.int64(), reader.int64())
    _end(reader)
    return value


def write_regex(value: RegexValue) -> bytes:
    """Return the bytes of the topics that a regular expression matches.  Raises: BadRecord: a name is too long."""
    topics = [uvarint(len(value.topics) + 1), *map(compact_string, value.topics)]
    return int16(_VERSION) + b"".join(topics) + int64(value.version) + int64(value.timestamp_ms) + tagged({})
