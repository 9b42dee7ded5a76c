"""Offsets that producers commit within transactions (TxnOffsetCommit).

They are records of the producer's transaction in the log.  Until the marker of the transaction, they are *pending*: a
group does not see them, but a client that asks for stable offsets gets an error and retries.  The marker makes them
offsets of the group, or drops them.

The newest offset of a place (a topic and partition) wins.  The order of the records decides, not the order of the
markers: an offset that was written after a pending one supersedes it.  Compaction keeps the newest record of a key, so
replay gives the same offsets.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.core.coordinator.offsets import Offsets
from broker.core.coordinator.records import check_offset


class _Pending(NamedTuple):
    """number: the position in the order of all records of pending offsets.  A newer offset has a higher number."""

    number: int
    value: bytes | None
    is_superseded: bool = False


class PendingOffsets:
    """The pending offsets of all groups, by producer id, then by group and place as `Offsets` names them.

    count: the number of pending offsets.
    """

    __slots__ = ("_by_group", "_by_producer", "_number", "count")

    def __init__(self) -> None:
        self._by_producer: Final[dict[int, dict[tuple[bytes, bytes], _Pending]]] = {}
        self._by_group: Final[dict[bytes, dict[bytes, int]]] = {}
        """The number of producers with a pending offset, by group and place."""
        self._number = 0
        self.count = 0

    def add(self, producer_id: int, group: bytes, place: bytes, value: bytes | None) -> None:
        """Note an offset of an open transaction; a value of None deletes the offset.

        Raises:
            BadRecord: the record is damaged, and nothing was changed.
        """
        if value is not None:
            check_offset(value)
        pending = self._by_producer.setdefault(producer_id, {})
        if (group, place) not in pending:
            self.count += 1
            places = self._by_group.setdefault(group, {})
            places[place] = places.get(place, 0) + 1
        self._number += 1
        pending[group, place] = _Pending(self._number, value)

    def supersede(self, group: bytes, place: bytes, number: int | None = None) -> None:
        """Note that the group has a newer offset for this place than the pending offsets.

        number: only pending offsets with a lower number are older; None: all are older.
        """
        if place not in self._by_group.get(group, {}):
            return
        for offsets in self._by_producer.values():
            pending = offsets.get((group, place))
            if pending is not None and (number is None or pending.number < number):
                offsets[group, place] = pending._replace(is_superseded=True)

    def end(self, producer_id: int, offsets: Offsets, *, is_commit: bool) -> None:
        """End the transaction of a producer: apply its offsets to `offsets`, or drop them."""
        for (group, place), pending in self._by_producer.pop(producer_id, {}).items():
            self.count -= 1
            places = self._by_group[group]
            places[place] -= 1
            if not places[place]:
                del places[place]
                if not places:
                    del self._by_group[group]
            if is_commit and not pending.is_superseded:
                offsets.apply(group, place, pending.value)
                self.supersede(group, place, pending.number)

    def of_producer(self, producer_id: int) -> list[tuple[bytes, bytes]]:
        """Return the groups and places of the pending offsets of a producer."""
        return list(self._by_producer.get(producer_id, ()))

    def has_group(self, group: str) -> bool:
        """Return whether an open transaction has an offset of the group."""
        return group.encode() in self._by_group

    def has(self, group: str, place: bytes) -> bool:
        """Return whether an open transaction has an offset for this place of the group."""
        return place in self._by_group.get(group.encode(), {})

    def places(self, group: str) -> frozenset[bytes]:
        """Return the places for which open transactions have offsets of the group."""
        return frozenset(self._by_group.get(group.encode(), {}))
