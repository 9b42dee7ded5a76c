"""Group flush: one task for each disk flushes all dirty logs under one barrier, and then informs each log.

Appends continue during a barrier; the next barrier flushes them as one group.  After a failed barrier nothing is
flushed again, because it is unknown which data is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker.log.durability import Durability, FlushTicket
from broker.log.state import folder_fact
from quorumlog.runtime.disk import Disk, DiskError
from quorumlog.runtime.logging import get_logger

logger = get_logger("log")


class GroupFlush:
    """The group flush of one disk, which knows each log by its `Durability`.  `start` begins its task."""

    def __init__(self, disk: Disk, on_failure: Callable[[DiskError], None]) -> None:
        self.failure: DiskError | None = None
        self._disk = disk
        self._on_failure = on_failure
        self._dirty: dict[Durability, None] = {}
        self._wake = asyncio.Event()
        self._this_pass: list[asyncio.Future[None]] = []
        self._next_pass: list[asyncio.Future[None]] = []
        self._is_flushing = False

    def mark(self, log: Durability) -> None:
        """Include this log in the next flush."""
        self._dirty[log] = None
        self._wake.set()

    def forget(self, log: Durability) -> None:
        """Leave out this log, because it is in another directory now."""
        self._dirty.pop(log, None)

    def start(self) -> asyncio.Task[None]:
        """Begin to flush.  A broken invariant is reported to the loop's handler, which ends the process."""
        task = asyncio.get_running_loop().create_task(self.run())
        task.add_done_callback(_report_bug)
        return task

    async def run(self) -> None:
        """Flush until cancelled or failed."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                tickets = [log.take_ticket() for log in self._dirty]
                self._dirty.clear()
                self._this_pass, self._next_pass = self._next_pass, []
                self._is_flushing = True
                await self._flush(tickets)
                self._is_flushing = False
                for ticket in tickets:
                    ticket.durability.flush_done(ticket)
                _settle(self._this_pass)
        except DiskError as error:
            self._fail(error)
        except AssertionError:
            raise  # it says nothing about the disk; `_report_bug` ends the process
        except Exception as error:
            logger.exception("group flush stopped", directory_id=self._disk.directory_id)
            self._fail(DiskError(f"group flush stopped: {error!r}"))

    async def _flush(self, tickets: list[FlushTicket]) -> None:
        """Flush the data of `tickets`, deletions first, so that no deleted file reappears beside its replacement."""
        gone = {folder: None for ticket in tickets if ticket.folders_first for folder in ticket.folders}
        if gone:
            await self._disk.flush((), gone)
        folders = {folder: None for ticket in tickets for folder in ticket.folders if folder not in gone}
        await self._disk.flush([file for ticket in tickets for file in ticket.files], folders)
        facts: dict[str, bytes | None] = {}
        written = []
        for ticket in tickets:
            if ticket.folder_fact is not None and ticket.durability.accepts_fact(ticket):
                ticket.durability.fact_begins(ticket.folder_fact)
                facts[folder_fact(ticket.durability.folder)] = ticket.folder_fact
                written.append(ticket)
        if facts:  # new folders, new segments and changes of write.caching, all in one transaction
            await self._disk.facts.commit(facts)
            for ticket in written:
                ticket.durability.fact_written(ticket)

    def _fail(self, error: DiskError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        _settle(self._this_pass + self._next_pass, error)
        self._on_failure(error)

    async def flush_all(self, logs: Iterable[Durability]) -> None:
        """Make everything dirty in `logs` durable, including files beside the segments.

        Raises:
            DiskError: the disk failed.
        """
        await self.begin(logs)

    def begin(self, logs: Iterable[Durability]) -> asyncio.Future[None]:
        """Begin a flush as in `flush_all`, in this turn of the event loop; the future gets the outcome."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.failure is not None:
            done.set_exception(self.failure)
            return done
        dirty = [log for log in logs if log.is_dirty]
        if not dirty and not self._is_flushing:
            done.set_result(None)
            return done
        for log in dirty:
            self.mark(log)
        self._wake.set()
        self._next_pass.append(done)
        return done


def _report_bug(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "group flush stopped", "exception": error})


def _settle(futures: list[asyncio.Future[None]], error: DiskError | None = None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
    futures.clear()
