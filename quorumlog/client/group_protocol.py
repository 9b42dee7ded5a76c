"""The data that the members of a consumer group send to each other: subscriptions and assignments, in Kafka's format.

A coordinator forwards these bytes unchecked, so they may have any content.  A function that decodes them
returns None for another format, and raises no error.  Each version only appends fields to the previous one.  So a
function reads a newer version as the version that it knows, and ignores the bytes after it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import quorumlog.wire.kafka  # noqa: F401  (before kio: it keeps hypothesis out)

# isort: split
from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.schema.consumer_protocol_subscription.v1.data import ConsumerProtocolSubscription as Subscription1
from kio.schema.consumer_protocol_subscription.v2.data import ConsumerProtocolSubscription as Subscription2

from quorumlog.client.messages import TopicPartition
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.buffer import Reader, string

CONSUMER: Final = "consumer"
"""The protocol type of consumers.  The bytes of other types have formats of their own."""

NO_GENERATION: Final = -1
STICKY: Final = "sticky"
COOPERATIVE_STICKY: Final = "cooperative-sticky"

_VERSION: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_SUBSCRIPTIONS: Final = (ConsumerProtocolSubscription, Subscription1, Subscription2)


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics to which a member subscribes, and the partitions that it owns.

    owned: the partitions from earlier rebalances.  generation: the generation that assigned them.
    """

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Return the topics of a subscription, ascending; None if the bytes are not a subscription."""
    found = _decoded(ConsumerProtocolSubscription, metadata)
    return None if found is None else tuple(sorted(set(found.topics)))


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Return each assigned topic with its partitions, ascending; None if the bytes are not an assignment.

    Empty bytes are an assignment without partitions.
    """
    if not assignment:
        return ()
    found = _decoded(ConsumerProtocolAssignment, assignment)
    if found is None:
        return None
    by_topic: dict[str, set[int]] = {}
    for topic in found.assigned_partitions:
        by_topic.setdefault(topic.topic, set()).update(topic.partitions)
    return tuple((topic, tuple(sorted(indexes))) for topic, indexes in sorted(by_topic.items()))


def encode_subscription(
    subscription: Subscription, assignor: str, last: frozenset[TopicPartition] | None = None
) -> bytes:
    """Return a member's metadata for one assignor.

    last: the last assignment of the member, which `sticky` uses; None: the partitions that the member owns.
    """
    user_data = None
    if assignor == STICKY:  # its members give up all partitions before they join, so they own none
        assigned = subscription.owned if last is None else last
        user_data = _encode_partitions(assigned) + _INT32.pack(subscription.generation)
    elif assignor == COOPERATIVE_STICKY:
        user_data = _INT32.pack(subscription.generation)
    values = {
        "topics": sorted(subscription.topics),
        "user_data": user_data,
        "owned_partitions": _by_topic(subscription.owned),
        "generation_id": subscription.generation,
    }
    return _VERSION.pack(2) + codec.encode(codec.make(Subscription2, values))


def decode_subscription(metadata: bytes, assignor: str) -> Subscription | None:
    """Return a member's metadata for one assignor; None if the bytes are not a subscription.

    For `sticky`, `owned` is the member's last assignment, which it has given up.
    """
    version = _VERSION.unpack_from(metadata)[0] if len(metadata) >= _VERSION.size else -1
    found = _decoded(_SUBSCRIPTIONS[max(0, min(version, 2))], metadata)
    if found is None:
        return None
    owned = frozenset(
        TopicPartition(topic.topic, index)
        for topic in getattr(found, "owned_partitions", ())
        for index in topic.partitions
    )
    generation = getattr(found, "generation_id", NO_GENERATION)
    if found.user_data:
        try:
            if assignor == STICKY:  # in all versions, as in Kafka's clients
                reader = Reader(memoryview(found.user_data))
                owned = _read_partitions(reader)
                generation = reader.int32() if reader.left() else NO_GENERATION
            elif assignor == COOPERATIVE_STICKY and generation == NO_GENERATION:
                generation = Reader(memoryview(found.user_data)).int32()
        except RemoteProtocolError:
            pass  # another client's format, which only its own members can read
    return Subscription(frozenset(found.topics), owned, generation)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the assignment of one member."""
    values = {"assigned_partitions": _by_topic(partitions), "user_data": None}
    return _VERSION.pack(0) + codec.encode(codec.make(ConsumerProtocolAssignment, values))


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partitions": [each.partition for each in group]}
        for topic, group in groupby(sorted(partitions), lambda each: each.topic)
    ]


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics = _by_topic(partitions)
    out = _INT32.pack(len(topics))
    for each in topics:
        indexes = each["partitions"]
        out += string(each["topic"], False) + _INT32.pack(len(indexes)) + b"".join(map(_INT32.pack, indexes))
    return out


def _read_partitions(reader: Reader) -> frozenset[TopicPartition]:
    found: list[TopicPartition] = []
    for _ in range(reader.count(False, 6)):
        topic = reader.string(False)
        found += [TopicPartition(topic, reader.int32()) for _ in range(reader.count(False, 4))]
    return frozenset(found)


def _decoded(schema: Any, raw: bytes) -> Any:
    if len(raw) < _VERSION.size or _VERSION.unpack_from(raw)[0] < 0:
        return None
    try:
        return codec.decode(schema, memoryview(raw), _VERSION.size, whole=False)
    except RemoteProtocolError:
        return None
