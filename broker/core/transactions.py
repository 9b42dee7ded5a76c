"""The open and the aborted transactions of a log, and its last stable offset.  Pure.

Theory of operation.  A transaction of a producer begins in a partition with its first transactional batch, and ends
with a marker (`quorumlog.wire.control_records`).  At most one transaction of a producer is open in a log.

**The last stable offset** is the end of the records that a reader of committed transactions may see.  It is the lowest
of the watermark, the first offset of each open transaction, and the first offset of each transaction whose marker is
not committed yet.  Without the last rule, a failover could lose a marker that readers had relied on.

**Aborted transactions** are kept as long as their markers are in the log.  A reader gets the ones that overlap its
records, and skips the records of their producers from the first offset up to the marker.  Each takes a row of 32 bytes.
At `ABORTED_MAX` rows, the log refuses the next transaction until retention or compaction has removed some rows.

All of this follows from the log and the watermark.  `ProducerState` calls `begin` and `end` for each batch, in log
order, and stores the state in its snapshots.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

ABORTED_MAX: Final = 250_000
"""Maximum number of aborted transactions of one log (8 MB).  At this number, the log refuses new transactions."""

_COUNTS: Final = struct.Struct(">III")
_PAIR: Final = struct.Struct(">qq")
_ROW: Final = struct.Struct(">qqqq")


class ProducerKey(NamedTuple):
    """A producer: its id, and its epoch, which fences earlier producers with the same id."""

    producer_id: int
    epoch: int


NO_PRODUCER: Final = ProducerKey(-1, -1)


class Marker(msgspec.Struct, frozen=True):
    """A coordinator's decision about a producer's transaction.  A marker in a log ends the transaction in that log.

    coordinator_epoch: the leader epoch of the coordinator that decided.
    raises_epoch: the decision has raised the epoch of the producer to this one, so no batch of the transaction has the
        epoch of the marker.  Logs do not store this field: it is false for a marker that was read from a log.
    """

    producer: ProducerKey
    is_commit: bool
    coordinator_epoch: int
    raises_epoch: bool = False


class AbortedTransaction(NamedTuple):
    """An aborted transaction.  last_offset: the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class _Decided(NamedTuple):
    first_offset: int
    marker_offset: int


class Transactions:
    """The transactions of one log.

    open: the first offset of each open transaction, by producer id, in the order of the offsets.
    """

    __slots__ = ("_decided", "_first", "_last", "_producers", "_stable", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self._decided: deque[_Decided] = deque()
        # The aborted transactions, in the order of their markers, as columns.
        self._producers = array("q")
        self._first = array("q")
        self._last = array("q")
        self._stable = array("q")
        """The lowest first offset of the transactions that were open just after the marker; without any, the offset
        after the marker.  No later row begins below this offset."""

    @property
    def aborted_count(self) -> int:
        return len(self._last)

    @property
    def is_empty(self) -> bool:
        return not self.open and not self._decided and not self._last

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note a transactional batch in the log.  It begins a transaction, unless the producer has an open one."""
        self.open.setdefault(producer_id, first_offset)

    def end(self, producer_id: int, marker_offset: int, *, is_commit: bool) -> None:
        """Note a marker in the log.  It has no effect if the producer has no open transaction in this log."""
        first = self.open.pop(producer_id, None)
        if first is None:
            return
        self._decided.append(_Decided(first, marker_offset))
        if not is_commit:
            self._producers.append(producer_id)
            self._first.append(first)
            self._last.append(marker_offset)
            self._stable.append(next(iter(self.open.values()), marker_offset + 1))

    def stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset, at most `high_watermark`."""
        self.forget_decided(high_watermark)
        stable = next(iter(self.open.values()), high_watermark)
        for decided in self._decided:
            stable = min(stable, decided.first_offset)
        return min(stable, high_watermark)

    def forget_decided(self, high_watermark: int) -> None:
        """Drop the decisions whose markers are committed."""
        decided = self._decided
        while decided and decided[0].marker_offset < high_watermark:
            decided.popleft()

    def has_aborted_from(self, offset: int) -> bool:
        """Return whether an aborted transaction ends at `offset` or later."""
        return bool(self._last) and self._last[-1] >= offset

    def aborted_between(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap the offsets from `offset` to `end_offset` (exclusive).

        They are in the order of their markers.
        """
        found = []
        for row in range(bisect_left(self._last, offset), len(self._last)):
            if self._first[row] < end_offset:
                found.append(AbortedTransaction(self._producers[row], self._first[row], self._last[row]))
            if self._stable[row] >= end_offset:
                break
        return found

    def drop_before(self, start_offset: int) -> None:
        """Drop the aborted transactions whose markers are below the start of the log."""
        count = bisect_left(self._last, start_offset)
        for column in (self._producers, self._first, self._last, self._stable):
            del column[:count]

    def keep_markers(self, start: int, end: int, markers: Collection[int]) -> None:
        """Drop the aborted transactions whose marker was removed.

        start, end: the compacted offsets; end: exclusive.  markers: the offsets of all markers that are left in them.
        Compaction removes a marker only after all records of its transaction.
        """
        low, high = bisect_left(self._last, start), bisect_left(self._last, end)
        kept = [row for row in range(low, high) if self._last[row] in markers]
        if len(kept) < high - low:
            for column in (self._producers, self._first, self._last, self._stable):
                column[low:high] = array("q", [column[row] for row in kept])

    def encode(self) -> bytes:
        """Return the whole state as bytes; equal states give equal bytes."""
        parts = [_COUNTS.pack(len(self.open), len(self._decided), len(self._last))]
        parts += [_PAIR.pack(*item) for item in self.open.items()]
        parts += [_PAIR.pack(*item) for item in self._decided]
        columns = zip(self._producers, self._first, self._last, self._stable, strict=True)
        parts += [_ROW.pack(*row) for row in columns]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, position: int) -> tuple[Transactions, int]:
        """Return the state that `encode` wrote at `position`, and the position after it.

        Raises:
            struct.error: the bytes end before the state is complete.
        """
        state = cls()
        opened, decided, aborted = _COUNTS.unpack_from(data, position)
        position += _COUNTS.size
        for _ in range(opened):
            producer_id, first = _PAIR.unpack_from(data, position)
            state.open[producer_id] = first
            position += _PAIR.size
        for _ in range(decided):
            state._decided.append(_Decided(*_PAIR.unpack_from(data, position)))
            position += _PAIR.size
        for _ in range(aborted):
            row = _ROW.unpack_from(data, position)
            for column, value in zip((state._producers, state._first, state._last, state._stable), row, strict=True):
                column.append(value)
            position += _ROW.size
        return state, position
