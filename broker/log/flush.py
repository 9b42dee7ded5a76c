"""Group flush: one task a disk makes durable whatever is dirty, all logs under one barrier, many waiters an fsync.

While one barrier is under way, appends go on and gather for the next; that alone forms the groups.  A failed barrier
ends it for good: what is durable is unknown then, so nothing is tried again (design §4.13).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from broker.log.partition_log import FlushTicket, PartitionLog
from quorumlog.runtime.disk import Disk, DiskError

log = logging.getLogger(__name__)


class GroupFlush:
    """The flushing of one disk.  `run` is its task."""

    def __init__(self, disk: Disk, on_failure: Callable[[DiskError], None]) -> None:
        self.failure: DiskError | None = None
        self._disk = disk
        self._on_failure = on_failure
        self._dirty: dict[PartitionLog, None] = {}
        self._wake = asyncio.Event()
        self._watched: dict[PartitionLog, None] = {}  # with waiters

    def mark(self, log: PartitionLog) -> None:
        """`log` has something to flush."""
        self._dirty[log] = None
        self._wake.set()

    async def run(self) -> None:
        """Flush until cancelled or failed."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                tickets = [log.take_ticket() for log in self._dirty]
                self._dirty.clear()
                await self._flush(tickets)
                for ticket in tickets:
                    ticket.log.flush_done(ticket)
                    if not ticket.log.waiters:
                        self._watched.pop(ticket.log, None)
        except DiskError as error:
            self._fail(error)
        except Exception as error:
            log.exception("group flush stopped directory_id=%s", self._disk.directory_id)
            self._fail(DiskError(f"group flush stopped: {error!r}"))

    async def _flush(self, tickets: list[FlushTicket]) -> None:
        """Deletions first: after a crash no deleted file may follow what was written in its place."""
        gone = {folder: None for ticket in tickets if ticket.folders_first for folder in ticket.folders}
        if gone:
            await self._disk.flush((), gone)
        folders = {folder: None for ticket in tickets for folder in ticket.folders if folder not in gone}
        await self._disk.flush([file for ticket in tickets for file in ticket.files], folders)

    def _fail(self, error: DiskError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for log_ in self._watched:
            for _, future in log_.waiters:
                if not future.done():
                    future.set_exception(error)
            log_.waiters = []
        self._watched.clear()
        self._on_failure(error)

    async def flushed(self, log: PartitionLog, offset: int) -> bool:
        """Wait until `log` is durable up to `offset`: True; or has been cut below it: False.

        Raises:
            DiskError: the disk failed.
        """
        if self.failure is not None:
            raise self.failure
        if offset <= log.durable_offset:
            return True
        if offset > log.end_offset:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        log.waiters.append((offset, future))
        self._watched[log] = None
        if log.is_dirty and log.config.write_caching:
            self.mark(log)
        return await future

    async def flush_all(self, logs: Iterable[PartitionLog]) -> None:
        """Make `logs` durable as they are now; those cut meanwhile are left to the caller's next look.

        Raises:
            DiskError: the disk failed.
        """
        waits = []
        for log in logs:
            if log.is_dirty:
                self.mark(log)
                waits.append((log, log.end_offset))
        for log, end_offset in waits:
            await self.flushed(log, end_offset)
