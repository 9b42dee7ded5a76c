"""Keys and values of `__consumer_offsets`, in Kafka's format.

Versions 0 to 4 of the values are read.  Version 4 is the first flexible one.  A group is written as version 3.  An
offset is written as version 4 with the id of its topic, as Kafka 4.1 does.  Offsets with their own expiry time are
written as version 1, and others without a known topic id as version 3.  Readers skip other tagged fields.

Functions that read bytes raise BadRecord if the bytes are damaged.
"""

from __future__ import annotations

from struct import Struct
from uuid import UUID

import msgspec

from broker.core.coordinator.fields import (
    BadRecord,
    Reader,
    binary,
    compact_string,
    int16,
    int32,
    int64,
    string,
    tagged,
)

NO_TIME = -1
_FLEXIBLE = 4
_GROUP_KEY = 2
_OFFSET_KEY_HEAD = Struct(">hh")  # version, length of the group
_OFFSET_KEY_BYTES_MIN = 10
_PLAIN_OFFSET_BYTES = 24
"""Size of an offset in version 3 with empty metadata."""
_TOPIC_TAG = 0
_TOPIC_FIELD = b"\1\0\x10"
"""The bytes before a topic id: one tagged field, its number, and its size."""
_PLAIN_OFFSET_WITH_TOPIC_BYTES = 42
"""Size of an offset in version 4 with empty metadata and a topic id."""


class OffsetKey(msgspec.Struct, frozen=True):
    """The key of a committed offset."""

    group: str
    topic: str
    partition: int


class GroupKey(msgspec.Struct, frozen=True):
    """The key of a group's metadata."""

    group: str


class OffsetValue(msgspec.Struct, frozen=True):
    """A committed offset.  Times: ms since the epoch; expire_ms is NO_TIME unless the client set a retention.

    topic_id: the id with which the topic was created (`TopicImage.origin`); None if unknown.  It distinguishes the
    topic from a later topic of the same name.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_TIME
    topic_id: UUID | None = None


class MemberValue(msgspec.Struct, frozen=True):
    """One member of a stored group.  Timeouts: ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(msgspec.Struct, frozen=True):
    """The stored state of a classic group.  state_ms: time of the last state change, or NO_TIME."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


def read_key(data: bytes) -> OffsetKey | GroupKey | None:
    """Return the key, or None for a type that this version does not know.  Raises: BadRecord."""
    reader = Reader(data)
    version = reader.int16()
    key: OffsetKey | GroupKey
    if version in (0, 1):
        key = OffsetKey(reader.string(), reader.string(), reader.int32())
    elif version == _GROUP_KEY:
        key = GroupKey(reader.string())
    else:
        return None
    reader.end()
    return key


def write_key(key: OffsetKey | GroupKey) -> bytes:
    """Return the bytes of a key.  Raises: BadRecord: a name is too long."""
    if isinstance(key, GroupKey):
        return int16(_GROUP_KEY) + string(key.group)
    return int16(1) + string(key.group) + string(key.topic) + int32(key.partition)


def split_offset_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Return the group of an offset's key as bytes, and the rest of the key; None for a key of another type.

    The rest consists of the topic with its length, and the partition; see `offset_place`.  A load splits millions of
    keys, and two slices of a key are much cheaper than decoded fields.

    Raises:
        BadRecord: the key is damaged.  This function accepts names that are not UTF-8.
    """
    if len(key) < _OFFSET_KEY_BYTES_MIN:
        read_key(key)  # raises if it is the beginning of a longer key
        return None
    version, group_size = _OFFSET_KEY_HEAD.unpack_from(key)
    if version not in (0, 1):
        return None
    group_end = 4 + group_size
    rest = key[group_end:]
    if group_size < 0 or len(rest) < 6 or len(rest) != 6 + int.from_bytes(rest[:2], "big"):
        raise BadRecord(f"the fields of the offset key do not fit into {len(key)} bytes")
    return key[4:group_end], rest


def offset_key(group: bytes, rest: bytes) -> bytes:
    """Return the key, in version 1, that has these parts (see `split_offset_key`)."""
    return b"\0\1" + len(group).to_bytes(2, "big") + group + rest


def offset_rest(topic: str, partition: int) -> bytes:
    """Return the part of a key after the group.  Raises: BadRecord: the name is too long."""
    return string(topic) + int32(partition)


def offset_place(rest: bytes) -> tuple[str, int]:
    """Return the topic and the partition in the part of a key after the group.  Raises: BadRecord."""
    try:
        return rest[2:-4].decode(), int.from_bytes(rest[-4:], "big", signed=True)
    except UnicodeDecodeError as error:
        raise BadRecord("the topic of an offset is not UTF-8") from error


def offset_times(value: bytes) -> tuple[int, int]:
    """Return the commit time of an offset, and its expiry time or NO_TIME.  `check_offset` must accept the value."""
    if value[:2] == b"\0\3":
        return int.from_bytes(value[-8:], "big", signed=True), NO_TIME
    if _is_plain_with_topic(value):
        return int.from_bytes(value[15:23], "big", signed=True), NO_TIME
    read = read_offset(value)
    return read.commit_ms, read.expire_ms


def check_offset(value: bytes) -> None:
    """Check the bytes of a committed offset.  Raises: BadRecord."""
    is_plain = value[:2] == b"\0\3" and len(value) == _PLAIN_OFFSET_BYTES and value[14:16] == b"\0\0"
    if not (is_plain or _is_plain_with_topic(value)):
        read_offset(value)


def _is_plain_with_topic(value: bytes) -> bool:
    """Return whether an offset has empty metadata and a topic id.  Almost all offsets have both."""
    is_size = len(value) == _PLAIN_OFFSET_WITH_TOPIC_BYTES and value[:2] == b"\0\4"
    return is_size and value[14] == 1 and value[23:26] == _TOPIC_FIELD


def is_of_other_topic(value: bytes, origin: UUID | None) -> bool:
    """Return whether an offset was committed for a topic with another id.  `check_offset` must accept the value.

    origin: the id with which the topic of this name was created; None if there is none.
    """
    if origin is None or value[:2] != b"\0\4":
        return False
    if _is_plain_with_topic(value):
        return value[26:] != origin.bytes
    return read_offset(value).topic_id not in (None, origin)


def topic_ending(origin: UUID) -> bytes:
    """Return the last bytes of almost every offset that was committed for the topic with this id."""
    return _TOPIC_FIELD + origin.bytes


def _open_value(data: bytes) -> tuple[Reader, int]:
    reader = Reader(data)
    version = reader.int16()
    if not 0 <= version <= _FLEXIBLE:
        raise BadRecord(f"value version {version} is unknown")
    reader.flexible = version >= _FLEXIBLE
    return reader, version


def read_offset(data: bytes) -> OffsetValue:
    """Return a committed offset.  Raises: BadRecord."""
    reader, version = _open_value(data)
    offset = reader.int64()
    epoch = reader.int32() if version >= 3 else -1
    metadata, commit_ms, expire_ms = reader.string(), reader.int64(), reader.int64() if version == 1 else NO_TIME
    tag = reader.tags().get(_TOPIC_TAG) if reader.flexible else None
    reader.end()
    topic_id = None
    if tag is not None:
        field = Reader(tag)
        topic_id = field.uuid()
        field.end()
    return OffsetValue(offset, epoch, metadata, commit_ms, expire_ms, topic_id)


def write_offset(value: OffsetValue) -> bytes:
    """Return the bytes of a committed offset.  An expiry time needs version 1, without leader epoch and topic id."""
    if value.expire_ms == NO_TIME and value.topic_id is not None:
        head = int16(_FLEXIBLE) + int64(value.offset) + int32(value.leader_epoch)
        tags = tagged({_TOPIC_TAG: value.topic_id.bytes})
        return head + compact_string(value.metadata) + int64(value.commit_ms) + tags
    if value.expire_ms == NO_TIME:
        head = int16(3) + int64(value.offset) + int32(value.leader_epoch)
        return head + string(value.metadata) + int64(value.commit_ms)
    head = int16(1) + int64(value.offset) + string(value.metadata)
    return head + int64(value.commit_ms) + int64(value.expire_ms)


def read_group(data: bytes) -> GroupValue:
    """Return a group's metadata.  Raises: BadRecord."""
    reader, version = _open_value(data)
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    state_ms = reader.int64() if version >= 2 else NO_TIME
    members = tuple(_read_member(reader, version) for _ in range(reader.count()))
    reader.skip_tags()
    reader.end()
    instances = [member.instance_id for member in members if member.instance_id is not None]
    if len({member.member_id for member in members}) < len(members) or len(set(instances)) < len(instances):
        raise BadRecord("two members have the same id")
    return GroupValue(protocol_type, generation, protocol, leader, state_ms, members)


def _read_member(reader: Reader, version: int) -> MemberValue:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_ms = reader.int32() if version >= 1 else None
    session_ms = reader.int32()
    # Version 0 has one timeout for sessions and rebalances.
    timeouts = (session_ms if rebalance_ms is None else rebalance_ms, session_ms)
    member = MemberValue(member_id, instance_id, client_id, client_host, *timeouts, reader.binary(), reader.binary())
    reader.skip_tags()
    return member


def write_group(value: GroupValue) -> bytes:
    """Return the bytes of a group's metadata.  Raises: BadRecord: a name is too long."""
    parts = [int16(3), string(value.protocol_type), int32(value.generation), string(value.protocol)]
    parts += [string(value.leader), int64(value.state_ms), int32(len(value.members))]
    for member in value.members:
        parts += [string(member.member_id), string(member.instance_id)]
        parts += [string(member.client_id), string(member.client_host)]
        parts += [int32(member.rebalance_timeout_ms), int32(member.session_timeout_ms)]
        parts += [binary(member.subscription), binary(member.assignment)]
    return b"".join(parts)
