"""Transactions as compaction sees them.  All of them are decided: cleaning ends at the last stable offset.

**Aborted records** are removed at the first cleaning.

**Markers.**  A marker must stay while the log has a batch of its transaction, even one without records.  Otherwise the
transaction would be open again when the log is read.  When no batch is left, a reader that has read some of the records
still needs the marker, and so does a follower that has copied some of them.  So the first cleaning that finds
no batch of the transaction sets the delete horizon of the marker, as for a tombstone.  A cleaning after that time
removes the marker.  The last marker of each producer stays, because the producer's epoch is computed from it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from quorumlog.wire.record_batch import BatchHeader


class AbortedRecords:
    """The aborted transactions of a job."""

    def __init__(self, aborted: Iterable[tuple[int, int, int]]) -> None:
        """aborted: producer id, first offset, and the offset of the marker."""
        self._first: dict[int, list[int]] = {}
        self._last: dict[int, list[int]] = {}
        for producer_id, first, last in sorted(aborted, key=lambda one: one[1]):
            self._first.setdefault(producer_id, []).append(first)
            self._last.setdefault(producer_id, []).append(last)

    def contains(self, header: BatchHeader) -> bool:
        """Return whether a batch of records belongs to an aborted transaction."""
        if not header.is_transactional or header.is_control:
            return False
        row = bisect_right(self._first.get(header.producer_id, ()), header.base_offset) - 1
        return row >= 0 and header.base_offset < self._last[header.producer_id][row]


class Endings:
    """Notes for each transaction whether a batch of it is left.  The caller reports kept batches in log order."""

    def __init__(self, aborted: AbortedRecords) -> None:
        self.aborted = aborted
        self._kept: set[int] = set()

    def note_kept(self, producer_id: int) -> None:
        """Note that a transactional batch of this producer stays in the log."""
        self._kept.add(producer_id)

    def take(self, producer_id: int) -> bool:
        """Return whether a batch of the producer's transaction has stayed.  Call it at the transaction's marker."""
        has_kept = producer_id in self._kept
        self._kept.discard(producer_id)
        return has_kept
