"""Watermarks across restarts: written to the data directories' facts at intervals, read at start.

If a written watermark is too low, a new leader waits for one more round of fetches.  If it were too high, consumers
could read uncommitted records.  So a written value never exceeds the watermark.  It never exceeds the durable end of
the log either, because a restart treats a log that ends below a written watermark as damaged (`broker.log.state`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.log import LogKey
from broker.log.state import WATERMARK, watermark_fact
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from quorumlog.runtime.disk import Disk, DiskError

CHANGES_MAX = 10_000
"""Maximum number of replicas whose watermarks one transaction writes."""


class Watermarks:
    """The saved watermarks of all replicas.  on_failure: called with a directory that could not be written."""

    def __init__(
        self, disks: Sequence[Disk], table: ReplicaTable, on_failure: Callable[[UUID, DiskError], None]
    ) -> None:
        self._on_failure = on_failure
        self._disks = {disk.directory_id: disk for disk in disks}
        self._table = table
        self._unsaved: dict[PartitionKey, None] = {}
        self._restored: dict[str, dict[UUID, int]] = {}
        self._forgotten: dict[UUID, set[str]] = {disk.directory_id: set() for disk in disks}
        self._found_in: dict[str, UUID] = {}
        table.context.events.watermark_moved.subscribe(self.note)

    def note(self, replica: Replica) -> None:
        """Write the watermark of this replica with the next `save`."""
        self._unsaved[replica.partition] = None

    def load(self) -> None:
        """Read the watermarks that were written before this start."""
        for directory_id, disk in self._disks.items():
            for name, value in disk.facts.load(WATERMARK).items():
                if value.isdigit():
                    self._restored.setdefault(name, {})[directory_id] = int(value)
                    self._found_in[name] = directory_id

    def restored(self, key: LogKey, directory_id: UUID) -> int:
        """Return the watermark that was saved in this directory before this start; 0 if it is unknown.

        Forget the watermarks of the replica.  Another directory may hold an older copy of the replica.  An unclean
        election may have discarded records of that copy, so its watermark may be too high for this copy.
        """
        return self._restored.pop(watermark_fact(key), {}).get(directory_id, 0)

    def forget(self, key: LogKey) -> None:
        """Delete the fact of a deleted replica with the next `save`."""
        name = watermark_fact(key)
        self._restored.pop(name, None)
        directory_id = self._found_in.pop(name, None)
        if directory_id is not None:
            self._forgotten[directory_id].add(name)

    async def save(self) -> None:
        """Write the unsaved watermarks.  Watermarks that move meanwhile wait for the next call."""
        due = list(self._unsaved)
        for start in range(0, max(len(due), 1), CHANGES_MAX):  # at least once, as there may be facts to delete
            taken = due[start : start + CHANGES_MAX]
            for key in taken:
                del self._unsaved[key]
            await self._save(taken)

    async def _save(self, keys: Sequence[PartitionKey]) -> None:
        due: dict[UUID, list[Replica]] = {each: [] for each in self._disks}
        for key in keys:
            replica = self._table.get(key)
            if replica is not None and replica.log is not None:
                due[replica.log.directory_id].append(replica)
        for directory_id, disk in self._disks.items():
            # Read the watermarks just before the commit, so that a later truncation commits its facts after this.
            changes = self._changes(directory_id, due[directory_id])
            if changes:
                try:
                    await disk.facts.commit(changes)
                except DiskError as error:
                    self._on_failure(directory_id, error)

    def _changes(self, directory_id: UUID, due: list[Replica]) -> dict[str, bytes | None]:
        changes: dict[str, bytes | None] = dict.fromkeys(sorted(self._forgotten[directory_id]))
        self._forgotten[directory_id].clear()
        for replica in due:
            if replica.log is not None and replica.log.directory_id == directory_id:
                name = watermark_fact(replica.key)
                changes[name] = b"%d" % replica.log.marks.take_watermark()
                self._found_in[name] = directory_id
        return changes

    async def run(self, interval_ms: int) -> None:
        """Call `save` at each interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.save()
