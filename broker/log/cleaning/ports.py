"""The interface of a worker, and a worker that runs jobs inside the process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from broker.log.cleaning.job import CleanJob, Finished, Replacement, Work, run_job
from quorumlog.runtime.disk import Disk


class WorkerError(Exception):
    """The worker did not finish a job.  The job may be tried again later."""


class CleanWorker(Protocol):
    """Runs one job at a time."""

    def run(self, disk: Disk, job: CleanJob) -> AsyncGenerator[Replacement | Finished, None]:
        """Yield each replacement, and at the end `Finished`.  The job continues when the caller asks for the next one.

        A caller that stops early closes the iterator, which ends the job.

        disk: the data directory of the log.

        Raises:
            UncleanableError: the contents of a batch do not permit the cleaning.
            SourceChangedError: the log has changed.
            WorkerError: the worker failed.
        """
        ...

    async def close(self) -> None:
        """End the worker."""
        ...


class LocalWorker(CleanWorker):
    """A worker that runs jobs on the event loop, for a simulated disk.

    It reads the log's own open files, which a task that deletes a segment would close.  So it lets other tasks run
    only when it yields a replacement.
    """

    async def run(self, disk: Disk, job: CleanJob) -> AsyncGenerator[Replacement | Finished, None]:
        work = run_job(job, disk)
        while True:
            try:
                step = next(work)
            except StopIteration as stop:
                yield stop.value
                return
            if not isinstance(step, Work):
                yield step

    async def close(self) -> None:
        """Do nothing: a job ends with its iterator."""
