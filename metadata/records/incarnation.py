"""The id of one process of a broker.  The id contains the number of the start, so a controller can order processes.

A request of a killed process may wait in a socket's buffer or a slow network, and reach the controller after the next
process has registered.  The starts of a data directory are numbered (`broker.server.marks`), and the number is the
first 48 bits of the id, which is a UUID of version 8 (RFC 9562, section 5.8).  The other bits are random.
"""

from __future__ import annotations

from uuid import UUID

STARTS_MAX = (1 << 48) - 1

_VERSION = 8
_RANDOM_BITS = 80


def incarnation_id(start: int, random: UUID) -> UUID:
    """Return the id of start number `start` (1 to STARTS_MAX).  random: a random UUID (version 4)."""
    assert 0 < start <= STARTS_MAX, f"start number {start}"
    kept = random.int & ((1 << _RANDOM_BITS) - 1)
    version_bits = 0xF << 76
    return UUID(int=start << _RANDOM_BITS | kept & ~version_bits | _VERSION << 76)


def is_earlier(incarnation: UUID, other: UUID) -> bool:
    """Return whether a process started before another of the same directories; false if an id contains no number."""
    return incarnation.version == other.version == _VERSION and _start(incarnation) < _start(other)


def _start(incarnation: UUID) -> int:
    return incarnation.int >> _RANDOM_BITS
