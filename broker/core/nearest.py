"""Chooses the replica from which a consumer should read (KIP-392).  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class ReadReplica(NamedTuple):
    """A replica in the ISR, other than the leader, whose broker is active and reachable for the consumer.

    log_start, end: the bounds of its log, as far as the leader knows them.
    """

    broker_id: int
    rack: str | None
    log_start: int
    end: int


def nearest_replica(rack: str, leader_rack: str | None, offset: int, replicas: Iterable[ReadReplica]) -> int | None:
    """Return the broker in the consumer's rack that should serve the consumer, or None if the leader should.

    The leader serves if it is in that rack itself, or if no replica in the rack has `offset` in its log or at its end.
    Of several replicas, the one with the highest log end is chosen, then the one with the lowest id.
    """
    if not rack or rack == leader_rack:
        return None
    usable = [each for each in replicas if each.rack == rack and 0 <= each.log_start <= offset <= each.end]
    return min(usable, key=lambda each: (-each.end, each.broker_id)).broker_id if usable else None
