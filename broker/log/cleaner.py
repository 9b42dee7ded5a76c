"""Chooses logs to compact, runs one job after the other, and keeps the results.

A log whose contents do not permit a cleaning is *uncleanable*: it is left as it is, reported with the cause, and tried
again after `uncleanable_retry_ms`.  A failed worker delays the log for `failure_retry_ms` only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from broker.core.cleaning import DirtyRange
from broker.log.cleaning.job import Finished, Replacement, SourceChangedError
from broker.log.cleaning.ports import CleanWorker, WorkerError
from broker.log.cleaning.records import UncleanableError
from broker.log.cleaning.swap import BadReplacementError, remove_leftovers
from broker.log.compaction import PlannedJob
from broker.log.manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.log.types import LogKey
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn

logger = get_logger("log")


class CleanerLimits(msgspec.Struct, frozen=True):
    """Every bound of the cleaner."""

    interval_ms: int = 15_000
    """Time that the cleaner waits if no log is due."""
    map_memory: int = 128 << 20
    """Bytes of the offset map.  If it is full, the rest of the dirty part is left to the next job."""
    uncleanable_retry_ms: int = 3_600_000
    """Time after which an uncleanable log is tried again."""
    failure_retry_ms: int = 30_000
    """Time after which a log whose job failed for another reason is tried again."""


class Uncleanable(NamedTuple):
    """Why a log is not cleaned.

    until_ms: the time of the next try, on the loop's clock.
    is_final: the cause is in the log's contents.
    """

    cause: str
    until_ms: int
    is_final: bool


class CleanResult(NamedTuple):
    """The last cleaning of a log.  at_ms: when it ended, on the loop's clock.  Sizes in bytes, before and after."""

    at_ms: int
    size_before: int
    size_after: int


class DirtyLog(NamedTuple):
    """A log that was not clean at the last look.

    due_since_ms: time of the first look that found it due, on the loop's clock; None if it is not due.
    """

    dirty: DirtyRange
    due_since_ms: int | None


class LogCleaner:
    """The compaction of all logs of a broker.  `run` is its task.

    uncleanable: logs that are not cleaned for now, and why.
    results: the last cleaning of each log.
    dirty: the logs with a dirty part, at the last look.
    """

    def __init__(
        self, logs: LogManager, worker: CleanWorker, limits: CleanerLimits, wall_ms: Callable[[], int]
    ) -> None:
        self.uncleanable: dict[LogKey, Uncleanable] = {}
        self.results: dict[LogKey, CleanResult] = {}
        self.dirty: dict[LogKey, DirtyLog] = {}
        self.cleaned_bytes = 0
        self.removed_bytes = 0
        self.failed_jobs = 0
        self._logs = logs
        self._worker = worker
        self._limits = limits
        self._wall_ms = wall_ms
        self._last_ms: int | None = None
        self._swap: asyncio.Task[bool] | None = None

    async def run(self) -> None:
        """Clean the logs that are due, repeatedly, until cancelled."""
        try:
            while True:
                if not await self.clean_next():
                    await self._worker.close()  # frees its memory until there is another job
                    await asyncio.sleep(self._limits.interval_ms / 1000)
        finally:
            await self._worker.close()

    async def close(self) -> None:
        """Wait until the last swap has ended, after `run` was cancelled.  The caller sets the deadline."""
        if self._swap is None:
            return
        await asyncio.wait([self._swap])
        if self._swap.cancelled():
            return
        try:
            self._swap.result()  # asyncio logs unread errors
        except (BadReplacementError, CorruptStoreError, DiskError) as error:
            logger.warning("swap of compacted segments failed", cause=str(error))

    async def clean_next(self) -> bool:
        """Clean one log, and return True.  Return False if no log is due.

        Of the due logs, it cleans the one with the largest share of dirty bytes.  Logs in `uncleanable` are left out
        until their next try.
        """
        due = await self._look()
        if due is None:
            return False
        await self._clean(due)
        return True

    def seconds_since_last(self) -> float | None:
        """Return the seconds since a log was compacted; None if no log was compacted yet."""
        return None if self._last_ms is None else (now_ms() - self._last_ms) / 1000

    def dirty_bytes(self) -> int:
        return sum(each.dirty.dirty_size for each in self.dirty.values())

    def due(self) -> int:
        """Return the number of logs that are due."""
        return sum(each.due_since_ms is not None for each in self.dirty.values())

    def longest_wait_ms(self) -> int:
        """Return the longest time for which a log that can be compacted has been due; 0 if no such log is due."""
        since = [
            each.due_since_ms
            for key, each in self.dirty.items()
            if each.due_since_ms is not None and key not in self.uncleanable
        ]
        return now_ms() - min(since) if since else 0

    # -- choosing

    async def _look(self) -> PartitionLog | None:
        current_ms = now_ms()
        compacted = [(key, log) for key, log in self._logs.logs.items() if log.config.compacts]
        wall_ms = self._logs.cautious_ms(self._wall_ms(), current_ms) if compacted else 0
        found: dict[LogKey, DirtyLog] = {}
        best: tuple[float, PartitionLog] | None = None
        turn = Turn()
        for key, log in compacted:
            await turn.passed()
            # The logs of a failed directory stay in `logs`.  None of them would ever become clean.
            if self._logs.get(key) is not log or log.directory_id in self._logs.failed_disks:
                continue
            try:
                dirty = log.compaction.dirty(log.config, wall_ms)
                due = log.compaction.is_due(log.config, dirty, wall_ms)
            except CorruptStoreError as error:
                self._logs.take_offline(key, error)
                continue
            except DiskError as error:
                self._logs.disk_failed(log.directory_id, error)
                continue
            if dirty.dirty_size:
                before = self.dirty.get(key)
                since = current_ms if before is None or before.due_since_ms is None else before.due_since_ms
                found[key] = DirtyLog(dirty, since if due else None)
            blocked = self.uncleanable.get(key)
            if due and (blocked is None or current_ms >= blocked.until_ms) and (best is None or dirty.ratio > best[0]):
                best = dirty.ratio, log
        self.dirty = found
        for key in [one for one in self.uncleanable if self._logs.get(one) is None]:
            del self.uncleanable[key]
        for key in [one for one in self.results if self._logs.get(one) is None]:
            del self.results[key]
        return None if best is None else best[1]

    # -- cleaning

    async def _clean(self, log: PartitionLog) -> None:
        key, limits = log.key, self._limits
        if self._logs.get(key) is not log:
            return
        try:
            wall_ms = self._logs.cautious_ms(self._wall_ms(), now_ms())
            # Since this log was chosen, it may have been truncated, reset or shortened by retention.
            dirty = log.compaction.dirty(log.config, wall_ms)
            if dirty.start >= dirty.limit:
                return
            planned = log.compaction.plan(log.config, dirty, wall_ms, limits.map_memory)
            before = log.size
            if (finished := await self._run(log, planned)) is not None:
                log.compaction.cleaned(planned, finished.cleaned_offset)
                await self._logs.checkpoint([log])
        except UncleanableError as error:
            self._failed(log, str(error), limits.uncleanable_retry_ms, is_final=True)
        except (SourceChangedError, WorkerError, BadReplacementError) as error:
            self._failed(log, str(error), limits.failure_retry_ms, is_final=False)
        except CorruptStoreError as error:
            if self._logs.get(key) is log:
                self._logs.take_offline(key, error)
        except DiskError as error:
            self._logs.disk_failed(log.directory_id, error)
        else:
            if finished is None:
                self._failed(log, "the log changed while it was cleaned", limits.failure_retry_ms, is_final=False)
                return
            self.uncleanable.pop(key, None)
            self.dirty.pop(key, None)
            self._last_ms = now_ms()
            self.results[key] = CleanResult(self._last_ms, before, log.size)
            self.cleaned_bytes += before
            self.removed_bytes += max(0, before - log.size)
            logger.info(
                "log compacted",
                folder=log.folder,
                cleaned_offset=finished.cleaned_offset,
                keys=finished.keys,
                bytes_before=before,
                bytes_after=log.size,
            )

    async def _run(self, log: PartitionLog, planned: PlannedJob) -> Finished | None:
        """Run a job to its end; return None if the log has changed."""
        steps = self._worker.run(self._logs.disk_of(log), planned.job)
        try:
            async with aclosing(steps):
                async for step in steps:
                    if isinstance(step, Finished):
                        return step
                    self._swap = asyncio.get_running_loop().create_task(self._swap_in(log, planned, step))
                    if not await asyncio.shield(self._swap) or self._logs.get(log.key) is not log:
                        return None
            raise WorkerError("the worker ended before its job")
        finally:
            self._remove_unfinished(log)

    def _remove_unfinished(self, log: PartitionLog) -> None:
        """Delete the replacement that a worker did not finish, unless a replacement is being swapped in."""
        is_swapping = self._swap is not None and not self._swap.done()
        if self._logs.get(log.key) is log and not is_swapping and log.directory_id not in self._logs.failed_disks:
            try:
                remove_leftovers(self._logs.disk_of(log), log.folder, (".cleaned",))
            except DiskError as error:
                self._logs.disk_failed(log.directory_id, error)

    async def _swap_in(self, log: PartitionLog, planned: PlannedJob, replacement: Replacement) -> bool:
        return await self._logs.swap_segments(log, planned, replacement)

    def _failed(self, log: PartitionLog, cause: str, retry_ms: int, *, is_final: bool) -> None:
        self.failed_jobs += 1
        self.uncleanable[log.key] = Uncleanable(cause, now_ms() + retry_ms, is_final)
        logger.warning(
            "log not compacted", folder=log.folder, cause=cause, uncleanable=is_final, retry_s=retry_ms // 1000
        )
