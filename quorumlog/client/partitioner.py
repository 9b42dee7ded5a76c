"""The partition of a key: murmur2, as in Kafka's Java client.  The default of librdkafka is another hash.

Plain Python, for tools; `quorumlog.client.Producer` and Spark's writer use a compiled version.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash, unsigned."""
    value = (_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for position in range(0, whole, 4):
        word = int.from_bytes(data[position : position + 4], "little")
        word = word * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of `key`, from 0 to `partition_count` - 1."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count
