"""One data directory of a broker, while the broker uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from broker.log.events import LogEvents
from broker.log.flush import GroupFlush
from broker.log.strays import StrayFolders
from quorumlog.runtime.disk import Disk, DiskError


class LogDirectory:
    """A data directory: its disk, its group flush and its strays.

    changing: guards the facts about logs.
    failure: why the directory is offline; None while it works.
    """

    def __init__(self, disk: Disk, events: LogEvents) -> None:
        self.disk = disk
        self.id = disk.directory_id
        self.changing = asyncio.Lock()
        self.failure: DiskError | None = None
        self.flush = GroupFlush(disk, self.fail)
        self.strays = StrayFolders(disk)
        self._events = events

    def fail(self, error: DiskError) -> None:
        """Treat the directory as offline from now on, because it failed; report it once."""
        if self.failure is None:
            self.failure = error
            self._events.directory_failed(self.id, error)

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Take the directory offline if the body raises DiskError, and raise it again."""
        try:
            yield
        except DiskError as error:
            self.fail(error)
            raise
