"""I32: the records that compaction may remove from a partition, and the records that every replica keeps.

Theory of operation.  A history keeps the records of a compacted partition as they were committed, by offset.  A replica
may lack some of these records, and may hold the others in different batches.  Every record that it holds equals the
committed record at that offset.  It may lack a record only if a later record of the same key is committed, or if the
record is a tombstone whose `delete.retention.ms` has passed.  So the last value of a key is never missing.

Replicas compact independently of each other, so two of them may lack different records.  A replica that had a tombstone
must not show an older value of its key later on.  This rule does not apply if the replica fetched the tombstone's
offset only after `delete.retention.ms` (docs/compaction.md).  Nor does it apply if the log no longer reached that
offset when the broker started, for example because the disk was restored from a backup.

A record in a transaction counts as a later record of its key only once the transaction is committed.  A record of an
aborted transaction may be missing.  If the marker of a transaction is lost with the end of a log, the transaction is
open again, and the next marker of its producer may decide otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from quorumlog.client.records import Record, decode_batches

if TYPE_CHECKING:
    from simulation.cluster.history import Committed


class Entry(NamedTuple):
    """A record as it was committed."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def contents(self) -> bytes:
        """The value and the values of the headers."""
        return b"".join(one for one in (self.value, *(value for _, value in self.headers)) if one is not None)


Entries = tuple[tuple[int, Entry], ...]
"""Records with their offsets."""


def entries_in(batch: bytes | memoryview) -> Entries:
    """Return the records of one batch."""
    return tuple([(one.offset, _entry(one)) for one in decode_batches(batch)])


def _entry(record: Record) -> Entry:
    return Entry(record.key, record.value, record.timestamp_ms, record.headers)


@dataclass
class KeyedRecords:
    """The records of a compacted partition that were ever committed.

    delete_retention_s: how long a tombstone must remain after its commit, in true time; 0 if clocks are not exact.
    min_lag_ms: the age that a record must have before it is removed; 0 if clocks are not exact.
    """

    delete_retention_s: float
    min_lag_ms: int
    entries: dict[int, Entry] = field(default_factory=dict)
    newest: dict[bytes, int] = field(default_factory=dict)
    """By key: the highest offset of its records, including those that do not belong to the history."""
    committed_s: dict[tuple[int, Entry], float] = field(default_factory=dict)
    """By offset and tombstone: the true time at which the tombstone first became committed, under any leader."""
    open: dict[int, list[tuple[int, Entry]]] = field(default_factory=dict)
    """By producer id: the records of its open transaction."""
    aborted: set[int] = field(default_factory=set)
    """The offsets of the records of aborted transactions."""
    decided: dict[int, tuple[int, list[tuple[int, Entry]]]] = field(default_factory=dict)
    """By the offset of a marker: its producer id, and the records that it decides."""

    def note(self, entries: Entries, now_s: float) -> None:
        """Note records that became committed, even if they do not belong to the history.

        A leader that an unclean election has deposed may commit, and compact, until it learns of its successor.  If it
        leads again, its records may become part of the history, without those that it has compacted.
        """
        for offset, entry in entries:
            if entry.key is not None:
                self.newest[entry.key] = max(offset, self.newest.get(entry.key, -1))
            if entry.value is None:
                self.committed_s.setdefault((offset, entry), now_s)

    def add(self, batch: Committed, now_s: float) -> None:
        """Add a committed batch."""
        self.entries.update(batch.entries)
        transaction = batch.transaction
        if transaction is None:
            self.note(batch.entries, now_s)
        elif transaction.commits is None:
            self.open.setdefault(transaction.producer[0], []).extend(batch.entries)
        else:
            producer_id = transaction.producer[0]
            records = self.open.pop(producer_id, [])
            self.decided[batch.base_offset] = producer_id, records
            if transaction.commits:
                self.note(tuple(records), now_s)
            else:
                self.aborted.update(offset for offset, _ in records)

    def cut_to(self, end: int) -> None:
        """Drop the records and markers from `end` on, which an unclean election or a restored backup has removed."""
        self.entries = {offset: entry for offset, entry in self.entries.items() if offset < end}
        for marker in sorted((offset for offset in self.decided if offset >= end), reverse=True):
            producer_id, records = self.decided.pop(marker)
            self.aborted.difference_update(offset for offset, _ in records)
            self.open[producer_id] = records + self.open.get(producer_id, [])
        self.open = {
            producer_id: left
            for producer_id, records in self.open.items()
            if (left := [one for one in records if one[0] < end])
        }

    def differing(self, entries: Entries) -> int | None:
        """Return the offset of a record that is not the committed one, or None.

        Offsets whose record is not known count as equal: the leader of an unclean election had compacted these records
        before.
        """
        for offset, entry in entries:
            if self.entries.get(offset, entry) != entry:
                return offset
        return None

    def lost(self, offsets: Iterable[int], now_s: float, wall_ms: int) -> str | None:
        """Return why a replica must not lack the records at these offsets now, or None."""
        for offset in offsets:
            entry = self.entries.get(offset)
            if entry is None or entry.key is None or offset in self.aborted:
                continue
            age_ms = wall_ms - entry.timestamp_ms
            if self.min_lag_ms and age_ms < self.min_lag_ms:
                return f"the record at {offset} is {age_ms} ms old, min.compaction.lag.ms is {self.min_lag_ms}"
            if self.newest.get(entry.key, -1) > offset:
                continue
            if entry.value is not None:
                return f"the record at {offset} is the last one of key {entry.key!r}"
            kept_s = now_s - self.committed_s.get((offset, entry), now_s)  # 0 while its transaction is open
            if kept_s < self.delete_retention_s:
                return f"the tombstone at {offset} was committed {kept_s:.3f} s ago"
        return None

    def outlived(self, entries: Iterable[tuple[int, Entry]], end: int, had: set[int]) -> str | None:
        """Return why the records of a replica contradict the tombstones that it had before, or None.

        entries: all records below `end`.  had: the offsets of the tombstones that this replica had; it may still have
        those from `end` on.
        """
        last = {
            entry.key: (offset, entry)
            for offset, entry in entries
            if entry.key is not None and offset not in self.aborted
        }
        for key, (offset, entry) in last.items():
            newest = self.newest.get(key, -1)
            found = self.entries.get(newest)
            is_tombstone = found is not None and found.key == key and found.value is None
            if entry.value is not None and end > newest > offset and is_tombstone and newest in had:
                return f"key {key!r} has the value of offset {offset} again, its tombstone at {newest} was removed"
        return None


def missing_in(base_offset: int, end_offset: int, entries: Entries) -> Iterator[int]:
    """Yield the offsets of a batch that have no record."""
    present = {offset for offset, _ in entries}
    return (offset for offset in range(base_offset, end_offset) if offset not in present)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The settings of a compacted topic.

    keys: the number of different keys that its producer writes.  deletes: retention deletes old segments as well.
    dirty_percent: the share of dirty bytes at which a log is due for compaction.
    """

    keys: int
    deletes: bool = False
    delete_retention_ms: int = 86_400_000
    min_lag_ms: int = 0
    max_lag_ms: int | None = None
    dirty_percent: int = 50

    @property
    def configs(self) -> dict[str, str]:
        chosen = {
            "cleanup.policy": "compact,delete" if self.deletes else "compact",
            "delete.retention.ms": str(self.delete_retention_ms),
            "min.compaction.lag.ms": str(self.min_lag_ms),
            "min.cleanable.dirty.ratio": str(self.dirty_percent / 100),
        }
        if self.max_lag_ms is not None:
            chosen["max.compaction.lag.ms"] = str(self.max_lag_ms)
        return chosen

    def records(self, exact_clocks: bool, clock_rate_max: float) -> KeyedRecords:
        """Return the records of a new partition.

        exact_clocks: no clock of the run jumps or is skewed.  clock_rate_max: the rate of the fastest clock.
        """
        if not exact_clocks:
            return KeyedRecords(0.0, 0)
        return KeyedRecords(self.delete_retention_ms / 1000 / clock_rate_max, self.min_lag_ms)
