"""Watermarks across restarts: written to the data directories' facts now and then, read at start.

A watermark that is too low costs a new leader a round of fetches, one that is too high would show what was never
committed; so what is written is always one that was in force, and an old one is as good as none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.log import LogKey
from broker.server.hosted import Hosted
from quorumlog.runtime.disk import Disk, DiskError
from quorumlog.runtime.logging import get_logger

log = get_logger("broker")

PREFIX = "watermark/"
MAX_CHANGES = 10_000
"""Facts in one transaction; what is left is written by the next."""


def fact_key(key: LogKey) -> str:
    return f"{PREFIX}{key.topic_id.hex}/{key.index}/{key.created}"


class Watermarks:
    def __init__(self, disks: Sequence[Disk], hosted: Mapping[PartitionKey, Hosted]) -> None:
        self._disks = {disk.directory_id: disk for disk in disks}
        self._hosted = hosted
        self._restored: dict[str, int] = {}
        self._forgotten: dict[UUID, set[str]] = {disk.directory_id: set() for disk in disks}
        self._found_in: dict[str, UUID] = {}

    def load(self) -> None:
        """Read what was written before; once, at start."""
        for directory_id, disk in self._disks.items():
            for name, value in disk.facts.load(PREFIX).items():
                if value.isdigit():
                    self._restored[name] = int(value)
                    self._found_in[name] = directory_id

    def restored(self, key: LogKey) -> int:
        """What was in force at some time before this start; 0 when unknown.  To be read once."""
        return self._restored.pop(fact_key(key), 0)

    def forget(self, key: LogKey) -> None:
        """The replica is gone: so is its fact, with the next `save`."""
        name = fact_key(key)
        self._restored.pop(name, None)
        directory_id = self._found_in.pop(name, None)
        if directory_id is not None:
            self._forgotten[directory_id].add(name)

    async def save(self, unsaved: dict[PartitionKey, None]) -> None:
        """Write the watermarks of `unsaved`, which is emptied as they are taken."""
        changes: dict[UUID, dict[str, bytes | None]] = {each: {} for each in self._disks}
        for directory_id, names in self._forgotten.items():
            changes[directory_id].update(dict.fromkeys(sorted(names)))
            names.clear()
        for key in list(unsaved)[:MAX_CHANGES]:
            del unsaved[key]
            hosted = self._hosted.get(key)
            if hosted is None or hosted.log is None:
                continue
            name = fact_key(hosted.key)
            directory_id = hosted.log.directory_id
            changes[directory_id][name] = b"%d" % min(hosted.log.high_watermark, hosted.log.flushed_offset)
            self._found_in[name] = directory_id
        for directory_id, each in changes.items():
            if each:
                try:
                    await self._disks[directory_id].facts.commit(each)
                except DiskError as error:
                    log.error("watermarks not written", directory=str(directory_id), cause=str(error))

    async def run(self, unsaved: dict[PartitionKey, None], interval_ms: int) -> None:
        """`save` at each interval, until cancelled."""
        while True:
            await asyncio.sleep(interval_ms / 1000)
            while unsaved:
                await self.save(unsaved)
