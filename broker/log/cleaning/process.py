"""Starts the worker process when there is a job, and talks to it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator

import msgspec

from broker.log.cleaning.job import CleanJob, Finished, Replacement, SourceChangedError, Work
from broker.log.cleaning.ports import CleanWorker, WorkerError
from broker.log.cleaning.records import UncleanableError
from broker.log.cleaning.worker import Failed, Order, Report
from quorumlog.runtime.disk import Disk
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.runtime.logging import get_logger

SILENCE_MAX_S = 120.0
"""Time without a report after which a worker counts as failed and is killed.  A worker reports every second, but one
batch or one flush may take longer."""
END_TIMEOUT_S = 10.0
"""Time that `close` waits for the end of a killed process."""
MODULE = "broker.log.cleaning.worker"

logger = get_logger("log")

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


class ProcessWorker(CleanWorker):
    """A worker in a process of its own, which is started for the first job and ended by `close`."""

    def __init__(self, bytes_per_second: int, silence_max_s: float = SILENCE_MAX_S) -> None:
        """bytes_per_second: read and written together; -1: no limit."""
        self._bytes_per_second = bytes_per_second
        self._silence_max_s = silence_max_s
        self._process: asyncio.subprocess.Process | None = None
        self._is_killed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run(self, disk: Disk, job: CleanJob) -> AsyncGenerator[Replacement | Finished, None]:
        """See `CleanWorker.run`.  If the caller closes the iterator early, the process is killed, and the job ends."""
        assert isinstance(disk, FileDisk), f"{disk!r} has no files that another process can read"
        process = await self._started()
        has_ended = False
        try:
            await self._send(process, _encoder.encode(Order(str(disk.root), self._bytes_per_second, job)))
            while True:
                report = await self._next(process)
                match report:
                    case Work():
                        continue
                    case Failed(kind="uncleanable"):
                        has_ended = True
                        raise UncleanableError(report.cause)
                    case Failed(kind="changed"):
                        has_ended = True
                        raise SourceChangedError(report.cause)
                    case Failed():
                        has_ended = True
                        raise WorkerError(report.cause)
                    case Finished():
                        has_ended = True
                        yield report
                        return
                    case Replacement():
                        yield report
                        await self._send(process, b"")
        finally:
            if not has_ended:
                _kill(process)
                self._is_killed = True

    async def _started(self) -> asyncio.subprocess.Process:
        if self._is_killed:  # the process may not have ended yet, but accepts no other job
            await self.close()
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            # -P: a folder named `broker` where the broker was started must not replace the package.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", MODULE),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise WorkerError(f"the worker process did not start: {error}") from error
        logger.debug("cleaner process started", pid=self._process.pid)
        return self._process

    async def _send(self, process: asyncio.subprocess.Process, line: bytes) -> None:
        assert process.stdin is not None
        try:
            async with asyncio.timeout(self._silence_max_s):
                process.stdin.write(line + b"\n")
                await process.stdin.drain()
        except (ConnectionError, TimeoutError) as error:
            raise WorkerError("the worker process does not read its input") from error

    async def _next(self, process: asyncio.subprocess.Process) -> Report:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._silence_max_s):
                line = await process.stdout.readline()
        except ValueError as error:  # asyncio limits the length of a line
            raise WorkerError("the worker process sent a line that is too long") from error
        except TimeoutError as error:
            raise WorkerError(f"the worker process sent no report for {self._silence_max_s:g} s") from error
        if not line.endswith(b"\n"):
            raise WorkerError("the worker process ended before its job")
        try:
            return _decoder.decode(line)
        except msgspec.DecodeError as error:
            raise WorkerError(f"the worker process sent an invalid report: {error}") from error

    async def close(self) -> None:
        """End the process."""
        process = self._process
        if process is None:
            return
        _kill(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        self._process, self._is_killed = None, False


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
