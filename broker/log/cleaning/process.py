"""Starts the worker process when there is a job, and talks to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import NamedTuple

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
NICENESS = 19
SESSION_NICENESS = 10
"""On a busy host, the worker gets about a tenth of the time of another session.  So compaction never stands still."""
MODULE = "broker.log.cleaning.worker"

logger = get_logger("log")

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


class Child(NamedTuple):
    """A worker process, and the connection to its standard input and output."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class ProcessWorker(CleanWorker):
    """A worker in a process of its own, which is started for the first job and ended by `close`."""

    def __init__(self, bytes_per_second: int, silence_max_s: float = SILENCE_MAX_S) -> None:
        """bytes_per_second: read and written together; -1: no limit."""
        self._bytes_per_second = bytes_per_second
        self._silence_max_s = silence_max_s
        self._child: Child | None = None
        self._is_killed = False

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    async def run(self, disk: Disk, job: CleanJob) -> AsyncGenerator[Replacement | Finished, None]:
        """See `CleanWorker.run`.  If the caller closes the iterator early, the process is killed, and the job ends."""
        assert isinstance(disk, FileDisk), f"{disk!r} has no files that another process can read"
        child = await self._started()
        has_ended = False
        try:
            await self._send(child, _encoder.encode(Order(str(disk.root), self._bytes_per_second, job)))
            while True:
                report = await self._next(child)
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
                        await self._send(child, b"")
        finally:
            if not has_ended:
                child.process.kill()
                self._is_killed = True

    async def _started(self) -> Child:
        if self._child is not None and (self._is_killed or self._child.process.poll() is not None):
            await self.close()  # a killed process may not have ended yet, but accepts no other job
        if self._child is None:
            # -P: a folder named `broker` where the broker was started must not replace the package.
            self._child = await start_child("-P", "-m", MODULE)
            logger.debug("cleaner process started", pid=self.pid)
        return self._child

    async def _send(self, child: Child, line: bytes) -> None:
        try:
            async with asyncio.timeout(self._silence_max_s):
                child.writer.write(line + b"\n")
                await child.writer.drain()
        except (ConnectionError, TimeoutError) as error:
            raise WorkerError("the worker process does not read its input") from error

    async def _next(self, child: Child) -> Report:
        try:
            async with asyncio.timeout(self._silence_max_s):
                line = await child.reader.readline()
        except ConnectionError:  # it ended before it had read its input
            line = b""
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
        child = self._child
        if child is None:
            return
        child.process.kill()
        child.writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S):
                while child.process.poll() is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # polls, because the loop gets no event when this process ends
        self._child, self._is_killed = None, False


async def start_child(*arguments: str) -> Child:
    """Start a Python program in a session of its own, with a low priority.

    uvloop starts programs by fork, which copies the page tables of the broker, and the loop waits for that: up to 60 ms
    if the processors are busy.  `subprocess` uses vfork, which copies nothing.

    Raises:
        WorkerError: the program did not start.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, *arguments], stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True
            )
    except OSError as error:
        ours.close()
        raise WorkerError(f"the worker process did not start: {error}") from error
    try:
        _lower_priority(process.pid)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
    except BaseException:
        process.kill()
        ours.close()
        raise
    return Child(process, reader, writer)


def _lower_priority(pid: int) -> None:
    """Give a process that leads a session a low priority.

    Linux divides the processors among sessions before it looks at niceness (autogroups, sched(7)).  Without this, the
    worker would take as much time from the other processes of the host as the broker does.
    """
    with contextlib.suppress(OSError):  # a compaction with normal priority is better than none
        os.setpriority(os.PRIO_PROCESS, pid, NICENESS)
        Path(f"/proc/{pid}/autogroup").write_text(str(SESSION_NICENESS))
