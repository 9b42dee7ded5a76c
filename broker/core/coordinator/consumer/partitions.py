"""Sets of partitions by topic id.  A topic without partitions does not occur, so equal sets compare as equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

from broker.core.coordinator.fields import int32, tagged, uvarint

Partitions = Mapping[UUID, frozenset[int]]

NO_PARTITIONS: Final[Partitions] = MappingProxyType({})


def of(pairs: Iterable[tuple[UUID, int]]) -> Partitions:
    """Return the set of these partitions."""
    found: dict[UUID, set[int]] = {}
    for topic, partition in pairs:
        found.setdefault(topic, set()).add(partition)
    return {topic: frozenset(indexes) for topic, indexes in found.items()}


def each(partitions: Partitions) -> Iterator[tuple[UUID, int]]:
    """Yield each partition, by ascending topic id and index."""
    for topic in sorted(partitions):
        for index in sorted(partitions[topic]):
            yield topic, index


def minus(these: Partitions, others: Partitions) -> Partitions:
    """Return these partitions without the others."""
    left = {topic: indexes - others.get(topic, frozenset()) for topic, indexes in these.items()}
    return {topic: indexes for topic, indexes in left.items() if indexes}


def common(these: Partitions, others: Partitions) -> Partitions:
    """Return the partitions that are in both."""
    both = {topic: indexes & others[topic] for topic, indexes in these.items() if topic in others}
    return {topic: indexes for topic, indexes in both.items() if indexes}


def union(these: Partitions, others: Partitions) -> Partitions:
    """Return the partitions that are in at least one of the two."""
    joined = dict(these)
    for topic, indexes in others.items():
        joined[topic] = joined.get(topic, frozenset()) | indexes
    return joined


def count(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def write_partitions(partitions: Partitions) -> bytes:
    """Return the bytes of a set of partitions in a flexible record."""
    parts = [uvarint(len(partitions) + 1)]
    for topic in sorted(partitions):
        indexes = sorted(partitions[topic])
        parts += [topic.bytes, uvarint(len(indexes) + 1), *map(int32, indexes), tagged({})]
    return b"".join(parts)
