"""Watermarks across restarts: written to the data directories' facts now and then, read at start.

A watermark that is too low costs a new leader a round of fetches, one that is too high would show what was never
committed; so what is written is always one that was in force, and an old one is as good as none.  It never exceeds what
is durable here, because after a crash it also tells what must still be there (`broker.log.state`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.log import LogKey
from broker.log.state import WATERMARK, watermark_fact
from broker.replica.replica import Replica
from quorumlog.runtime.disk import Disk, DiskError

MAX_CHANGES = 10_000
"""Replicas whose watermarks are in one transaction."""


class Watermarks:
    """on_failure: told of a directory that could not be written, by its id."""

    def __init__(
        self,
        disks: Sequence[Disk],
        hosted: Mapping[PartitionKey, Replica],
        on_failure: Callable[[UUID, DiskError], None],
    ) -> None:
        self._on_failure = on_failure
        self._disks = {disk.directory_id: disk for disk in disks}
        self._hosted = hosted
        self._restored: dict[str, int] = {}
        self._forgotten: dict[UUID, set[str]] = {disk.directory_id: set() for disk in disks}
        self._found_in: dict[str, UUID] = {}

    def load(self) -> None:
        """Read what was written before; once, at start."""
        for directory_id, disk in self._disks.items():
            for name, value in disk.facts.load(WATERMARK).items():
                if value.isdigit():
                    self._restored[name] = int(value)
                    self._found_in[name] = directory_id

    def restored(self, key: LogKey) -> int:
        """What was in force at some time before this start; 0 when unknown.  To be read once."""
        return self._restored.pop(watermark_fact(key), 0)

    def forget(self, key: LogKey) -> None:
        """The replica is gone: so is its fact, with the next `save`."""
        name = watermark_fact(key)
        self._restored.pop(name, None)
        directory_id = self._found_in.pop(name, None)
        if directory_id is not None:
            self._forgotten[directory_id].add(name)

    async def save(self, unsaved: dict[PartitionKey, None]) -> None:
        """Write the watermarks that are in `unsaved` now, which they leave as they are taken.

        What moves again meanwhile waits for the next time: under load something always does.
        """
        due = list(unsaved)
        for start in range(0, max(len(due), 1), MAX_CHANGES):  # once at least: for what was forgotten
            taken = due[start : start + MAX_CHANGES]
            for key in taken:
                del unsaved[key]
            await self._save(taken)

    async def _save(self, keys: Sequence[PartitionKey]) -> None:
        due: dict[UUID, list[Replica]] = {each: [] for each in self._disks}
        for key in keys:
            hosted = self._hosted.get(key)
            if hosted is not None and hosted.log is not None:
                due[hosted.log.directory_id].append(hosted)
        for directory_id, disk in self._disks.items():
            # Read at the moment of the commit: a truncation that comes later then also commits later.
            changes = self._changes(directory_id, due[directory_id])
            if changes:
                try:
                    await disk.facts.commit(changes)
                except DiskError as error:
                    self._on_failure(directory_id, error)

    def _changes(self, directory_id: UUID, due: list[Replica]) -> dict[str, bytes | None]:
        changes: dict[str, bytes | None] = dict.fromkeys(sorted(self._forgotten[directory_id]))
        self._forgotten[directory_id].clear()
        for hosted in due:
            if hosted.log is not None and hosted.log.directory_id == directory_id:
                name = watermark_fact(hosted.key)
                changes[name] = b"%d" % hosted.log.take_watermark()
                self._found_in[name] = directory_id
        return changes

    async def run(self, unsaved: dict[PartitionKey, None], interval_ms: int) -> None:
        """`save` at each interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            await self.save(unsaved)
