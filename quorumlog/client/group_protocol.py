"""What the members of a consumer group tell each other: subscriptions and assignments, in Kafka's format.

A coordinator passes these bytes on unread, so any client may have put anything into them.  Bytes in another format are
an answer here (None), not an error.  Each version appends fields to the one before it, and the fields that matter here
are in version 0, so every version is read as version 0 with bytes after its end.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from kio.schema.consumer_protocol_assignment.v0.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka import codec

CONSUMER: Final = "consumer"
"""The protocol type of consumers.  The bytes of other types have formats of their own."""

_VERSION: Final = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Return the topics of a subscription, ascending; None if the bytes are no subscription."""
    found = _decoded(ConsumerProtocolSubscription, metadata)
    return None if found is None else tuple(sorted(set(found.topics)))


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
    """Return each assigned topic with its partitions, ascending; None if the bytes are no assignment.

    A member that has no assignment has empty bytes: no partitions.
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


def _decoded(schema: Any, raw: bytes) -> Any:
    if len(raw) < _VERSION.size or _VERSION.unpack_from(raw)[0] < 0:
        return None
    try:
        return codec.decode(schema, memoryview(raw), _VERSION.size, whole=False)
    except RemoteProtocolError:
        return None
