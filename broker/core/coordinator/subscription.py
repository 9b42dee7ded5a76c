"""The subscription and the assignment of a classic consumer, in Kafka's format.

Members send these bytes.  A coordinator of classic groups forwards them, and reads them only with this module.  The
bytes are never trusted: each length is checked before anything is read.  For bytes in another format, the functions
return None instead of raising an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from broker.core.coordinator.fields import BadRecord, Reader, int16, int32, string

CONSUMER = "consumer"
"""The protocol type of consumers.  The metadata of other types has formats of its own."""

_FIRST_WITH_OWNED: Final = 1
_FIRST_WITH_RACK: Final = 3
_ASSIGNMENT_VERSION: Final = 0

NamedIndexes = Mapping[str, Sequence[int]]
"""Partitions by the name of their topic."""


class Subscription(NamedTuple):
    """owned: the partitions that a cooperative member keeps while it joins; empty if it keeps none."""

    topics: tuple[str, ...]
    owned: NamedIndexes
    rack_id: str | None


class Assignment(NamedTuple):
    """user_data: data of the assignor; empty for an assignor that only distributes partitions."""

    partitions: NamedIndexes
    user_data: bytes


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a subscription; None if the bytes are not a subscription.

    The fields after the topics depend on the version, and are not read.
    """
    reader = Reader(metadata)
    try:
        return None if reader.int16() < 0 else frozenset(_read_names(reader))
    except BadRecord:
        return None


def read_subscription(metadata: bytes) -> Subscription | None:
    """Return a subscription; None if the bytes are not a subscription.  Fields of later versions are not read."""
    reader = Reader(metadata)
    try:
        version = reader.int16()
        if version < 0:
            return None
        topics = tuple(_read_names(reader))
        reader.nullable_binary()
        owned = _read_indexes(reader) if version >= _FIRST_WITH_OWNED else {}
        rack_id = None
        if version >= _FIRST_WITH_RACK:
            reader.int32()  # the generation in which the member owns them
            rack_id = reader.nullable_string()
    except BadRecord:
        return None
    return Subscription(topics, owned, rack_id)


def read_assignment(data: bytes) -> Assignment | None:
    """Return an assignment; None if the bytes are not an assignment.  Empty bytes mean no partitions."""
    if not data:
        return Assignment({}, b"")
    reader = Reader(data)
    try:
        if reader.int16() < 0:
            return None
        return Assignment(_read_indexes(reader), reader.nullable_binary() or b"")
    except BadRecord:
        return None


def write_assignment(partitions: NamedIndexes) -> bytes:
    """Return the bytes of an assignment in the first version, which all consumers read."""
    parts = [int16(_ASSIGNMENT_VERSION), int32(len(partitions))]
    for topic, indexes in sorted(partitions.items()):
        parts += [string(topic), int32(len(indexes)), *map(int32, sorted(indexes))]
    return b"".join(parts) + int32(-1)


def _read_names(reader: Reader) -> list[str]:
    return [reader.string() for _ in range(reader.count())]


def _read_indexes(reader: Reader) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for _ in range(reader.count()):
        topic = reader.string()
        found.setdefault(topic, []).extend(reader.int32() for _ in range(reader.count()))
    return found
