"""The subscription in a consumer's metadata, in Kafka's format.

Members send it, and a coordinator otherwise passes it on unread.  So it is never trusted: each length is checked before
anything is read, and metadata in another format is an answer (None), not an error.
"""

from __future__ import annotations

from broker.core.coordinator.fields import BadRecord, Reader

CONSUMER = "consumer"
"""The protocol type of consumers.  The metadata of other types has formats of its own."""


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a subscription; None if the bytes are no subscription.

    Later versions add fields after the topics, so these are not read.
    """
    reader = Reader(metadata)
    try:
        if reader.int16() < 0:
            return None
        return frozenset(reader.string() for _ in range(reader.count()))
    except BadRecord:
        return None
