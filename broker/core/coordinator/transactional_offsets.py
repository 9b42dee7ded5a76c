"""Offsets that producers commit within transactions (TxnOffsetCommit).

They are records of the producer's transaction in the log.  Until its marker, they are *pending*: a group does not see
them, but a client that asks for stable offsets is told to ask again.  With the marker they become offsets of the group,
or are dropped.
"""

from __future__ import annotations

from typing import Final

from broker.core.coordinator.offsets import Offsets
from broker.core.coordinator.records import check_offset


class PendingOffsets:
    """The pending offsets of all groups, by producer id, then by group and place as `Offsets` names them.

    count: of all of them.
    """

    __slots__ = ("_by_group", "_by_producer", "count")

    def __init__(self) -> None:
        self._by_producer: Final[dict[int, dict[tuple[bytes, bytes], bytes | None]]] = {}
        self._by_group: Final[dict[bytes, dict[bytes, int]]] = {}
        """How many producers have a pending offset for a place of a group."""
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
        pending[group, place] = value

    def end(self, producer_id: int, offsets: Offsets, *, is_commit: bool) -> None:
        """End the transaction of a producer: apply its offsets to `offsets`, or drop them."""
        for (group, place), value in self._by_producer.pop(producer_id, {}).items():
            self.count -= 1
            places = self._by_group[group]
            places[place] -= 1
            if not places[place]:
                del places[place]
                if not places:
                    del self._by_group[group]
            if is_commit:
                offsets.apply(group, place, value)

    def has_group(self, group: str) -> bool:
        return group.encode() in self._by_group

    def has(self, group: str, place: bytes) -> bool:
        """Return whether an open transaction has an offset for this place of the group."""
        return place in self._by_group.get(group.encode(), {})

    def places(self, group: str) -> frozenset[bytes]:
        return frozenset(self._by_group.get(group.encode(), {}))
