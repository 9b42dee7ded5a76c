"""Decides which records of a batch survive a cleaning, and which empty batches take the place of removed ones.

**Records.**  A record below `clean_end` survives if its key has no later record below `clean_end`.  A tombstone (a
record without value) is removed as well once the delete horizon of its batch has passed.  The first cleaning sets that
horizon, so that a consumer has `delete.retention.ms` to see the tombstone.  A record without key has no place in a
compacted topic and is removed.  A record of an aborted transaction is removed, and hides no earlier record of its key.
Everything at or above `clean_end` stays as it is.

**Batches.**  A batch without records is removed.  But the last batches of each producer stay, because the sequence
numbers of the producer are computed from them.  A run of removed batches of one epoch becomes one empty batch, the
*filler*, of 61 bytes.  So the offsets of batches follow each other without gaps, a lost batch is still recognised as
damage, and the batches still contain the leader epochs of all offsets.

**Markers** of transactions follow the rule of tombstones (`transactions.Endings`).
"""

from __future__ import annotations

from broker.log.cleaning.offset_map import OffsetMap
from broker.log.cleaning.records import (
    TIMESTAMP_MAX,
    emptied,
    filler,
    is_filler,
    open_body,
    rebuild,
)
from broker.log.cleaning.transactions import Endings
from quorumlog.wire.record_batch import DELETE_HORIZON_FLAG, BatchHeader

OFFSET_DELTA_MAX = 2**31 - 1


class BatchFilter:
    """Takes the batches of one group of segments in order, and returns the bytes of its replacement."""

    def __init__(
        self,
        latest: OffsetMap,
        clean_end: int,
        protected: frozenset[int],
        kept_producers: frozenset[int],
        dirty_start: int,
        endings: Endings,
        *,
        wall_ms: int,
        delete_retention_ms: int,
        inflated_max: int,
    ) -> None:
        """latest: the latest offsets of the keys in the dirty part below `clean_end`.

        protected: base offsets of the last batches and markers of producers.
        kept_producers: the producers whose batches below `dirty_start` all stay, without records if necessary.
        endings: has received the kept batches and the markers of all segments before this group.
        wall_ms: tombstones and markers whose delete horizon is not later are removed.
        """
        self._endings = endings
        self._latest = latest
        self._clean_end = clean_end
        self._protected = protected
        self._kept_producers = kept_producers
        self._dirty_start = dirty_start
        self._wall_ms = wall_ms
        self._horizon_ms = min(wall_ms + delete_retention_ms, TIMESTAMP_MAX)
        self._inflated_max = inflated_max
        self._removed: tuple[int, int, int] | None = None  # base offset, end offset, epoch of a run of removed batches

    def take(self, batch: bytes, header: BatchHeader) -> bytes:
        """Return the bytes to append to the replacement; empty while batches are removed.

        Raises:
            UncleanableError: the batch cannot be opened.
        """
        kept = self._filtered(batch, header)
        if kept is not None and header.is_transactional and not header.is_control:
            self._endings.note_kept(header.producer_id)
        if kept is not None:
            return self.end() + kept
        before, self._removed = self._removed, None
        if before is not None:
            first, end, epoch = before
            adjacent = epoch == header.leader_epoch and header.last_offset - first <= OFFSET_DELTA_MAX
            if adjacent:
                self._removed = first, header.end_offset, epoch
                return b""
            self._removed = header.base_offset, header.end_offset, header.leader_epoch
            return filler(first, end, epoch)
        self._removed = header.base_offset, header.end_offset, header.leader_epoch
        return b""

    def end(self) -> bytes:
        """Return the filler for the batches that were removed last; empty if there are none."""
        removed, self._removed = self._removed, None
        return b"" if removed is None else filler(*removed)

    def _filtered(self, batch: bytes, header: BatchHeader) -> bytes | None:
        """Return the remaining batch, or None if nothing remains."""
        if header.base_offset >= self._clean_end:
            return batch
        if header.is_control:
            return self._ending(batch, header)
        if header.record_count == 0:
            return batch if self._must_stay(header) else None
        if self._endings.aborted.contains(header):
            if header.end_offset > self._clean_end:
                return batch
            return emptied(header) if self._must_stay(header) else None
        body = open_body(batch, header, self._inflated_max)
        has_horizon = bool(header.attributes & DELETE_HORIZON_FLAG)
        is_past = has_horizon and self._wall_ms >= header.base_timestamp
        kept = self._latest.survivors(body, header, self._clean_end, removes_tombstones=is_past)
        if not kept.number:
            return emptied(header) if self._must_stay(header) else None
        horizon_ms = None
        if kept.has_tombstone and not has_horizon and header.end_offset <= self._clean_end:
            horizon_ms = self._horizon_ms
        if kept.number == header.record_count and horizon_ms is None:
            return batch
        return rebuild(header, kept.records, kept.number, header.base_timestamp + kept.newest_delta, horizon_ms)

    def _ending(self, batch: bytes, header: BatchHeader) -> bytes | None:
        """Return the remaining control batch, or None if nothing remains."""
        has_records = self._endings.take(header.producer_id)
        if has_records or self._must_stay(header):
            return batch
        if header.attributes & DELETE_HORIZON_FLAG:
            return None if self._wall_ms >= header.base_timestamp else batch
        body = open_body(batch, header, self._inflated_max)
        return rebuild(header, body, header.record_count, header.max_timestamp, self._horizon_ms)

    def _must_stay(self, header: BatchHeader) -> bool:
        """Return whether the state of a producer depends on this batch."""
        if is_filler(header):
            return False
        if header.base_offset in self._protected:
            return True
        return header.producer_id in self._kept_producers and header.base_offset < self._dirty_start
