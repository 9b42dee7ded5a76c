"""Finds the partition of an internal topic that holds the state of a key, by Kafka's hash."""

from __future__ import annotations


def partition_of(key: str, count: int) -> int:
    """Return the partition of a group or transactional id, for a topic with `count` partitions.

    The partition is Java's hash of the string, without the sign bit, modulo `count`.  Clients and tools rely on this.
    """
    units = key.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8) + units[at + 1]) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % count
