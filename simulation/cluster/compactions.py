"""I32: compares the replicas of compacted partitions with the committed records."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from broker.log import LogKey, PartitionLog
from simulation.cluster.compaction import Entry
from simulation.cluster.evidence import BrokerRun, Copy, Evidence
from simulation.cluster.history import Committed, History, batches_of


class CompactionWatch:
    def __init__(self, evidence: Evidence, clock: Callable[[], float]) -> None:
        """clock: true time, in seconds."""
        self._evidence = evidence
        self._clock = clock
        self._tombstones: dict[tuple[UUID, LogKey], set[int]] = {}
        """By directory and partition: the offsets of the tombstones that the replica has had."""
        self._removed: dict[tuple[UUID, LogKey], set[int]] = {}
        """The part of them that a compaction has removed."""

    def compared(self, run: BrokerRun, history: History, log: PartitionLog, batch: Committed) -> None:
        """Check a batch of a replica that belongs to the committed part of its log."""
        if not history.is_keyed:
            return
        self._check(run, history, batch, history.lost(batch, self._clock(), run.role._sources.wall_ms()))
        had = self._tombstones.setdefault((log.directory_id, log.key), set())
        had.update(offset for offset, entry in batch.entries if entry.value is None)

    def reached(self, run: BrokerRun, history: History, batch: Committed) -> None:
        """Check a batch that may end above the end of the history, and make room for the batch."""
        self._check(run, history, batch, history.reach(batch, self._clock(), run.role._sources.wall_ms()))

    def _check(self, run: BrokerRun, history: History, batch: Committed, problem: str | None) -> None:
        self._evidence.check(problem is None, lambda: f"I32: {run.node_id} has {batch} in {history}: {problem}")

    def committed_aside(self, history: History, copy: Copy) -> None:
        """Note the records that a leader or its followers committed after an unclean election had deposed it."""
        if history.records is not None:
            start = max(history.start, copy.log.start_offset, copy.noted)
            for batch in batches_of(copy.log, start, copy.watermark, keyed=True):
                history.records.note(batch.entries, self._clock())
                copy.noted = batch.end_offset

    def shortened(self, log: PartitionLog, end: int) -> None:
        """Forget the tombstones of a replica from `end` on, because the replica has deleted or lost them."""
        for offsets in (self._tombstones, self._removed):
            had = offsets.get((log.directory_id, log.key), set())
            had.difference_update([offset for offset in had if offset >= end])

    def swapped(self, run: BrokerRun, history: History, log: PartitionLog, end: int, changed: range) -> None:
        """Check as `read_whole` does after a compaction has changed these offsets.

        Only a tombstone that it has removed, or a value that it has left, can contradict the tombstones.  So other
        compactions need not read the whole replica: some runs compact a log of hundreds of segments for thousands of
        times.
        """
        if history.records is None:
            return
        had = self._tombstones.get((log.directory_id, log.key), set())
        removed = self._removed.setdefault((log.directory_id, log.key), set())
        entries = _entries_of(log, max(changed.start, log.start_offset), min(changed.stop, end))
        left = {offset for offset, entry in entries if entry.value is None}
        newly = {offset for offset in had if offset in changed} - left - removed
        removed |= newly
        if newly or history.records.outlived(entries, end, had) is not None:
            self.read_whole(run, history, log, end)

    def read_whole(self, run: BrokerRun, history: History, log: PartitionLog, end: int) -> None:
        """Check that the replica has, below `end`, no older value of a key whose tombstone it had before."""
        evidence = self._evidence
        if history.records is None or (run.node_id, history.key) in evidence.damaged:
            return
        entries = _entries_of(log, log.start_offset, end)
        problem = history.records.outlived(entries, end, self._tombstones.get((log.directory_id, log.key), set()))
        evidence.check(problem is None, lambda: f"I32: {history} on {run.node_id}: {problem}")
        evidence.seen["compacted replica read"] += 1


def _entries_of(log: PartitionLog, start: int, end: int) -> list[tuple[int, Entry]]:
    return [entry for batch in batches_of(log, start, end, keyed=True) for entry in batch.entries]
