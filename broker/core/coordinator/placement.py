"""Finds the partition of an internal topic that holds the state of a key, by Kafka's rule."""

from __future__ import annotations


def partition_of(key: str, count: int) -> int:
    """Return the partition of a group or transactional id, for a topic with `count` partitions.

    This is Java's hash of a string, without its sign, modulo the count.  Clients and tools rely on the same rule.
    """
    units = key.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8) + units[at + 1]) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % count
