"""Makes files durable in threads that run no Python code.

A flush of a log is often a single `fdatasync` of 0.1 ms.  In the loop's executor it cost 0.27 ms of processor time: a
queue, three futures, and a thread that competes with the loop for the interpreter's lock.  Here the threads belong to a
C extension (`native/sync_pool.h`), and a pipe informs the loop that they are done.  That costs 0.13 ms.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from quorumlog.runtime import _sync_threads


def reports_lost_writes(release: str) -> bool:
    """Return whether `syncfs` of this release of Linux fails if a write was lost.  Before 5.8 it always succeeds."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 8)


HAS_SYNC_SYSTEM = bool(_sync_threads.HAS_SYNC_SYSTEM) and reports_lost_writes(os.uname().release)
"""Whether the system has a `syncfs` that reports lost writes."""

FULLY_SYNCED = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "tmpfs", "xfs", "zfs"})
"""The types of file systems whose `syncfs` makes everything durable and reports lost writes.

On other types, `syncfs` may succeed without effect: FUSE does not pass it on to the program that stores the data,
network file systems need not ask their server, and overlay does not report the lost writes of the layer below.
"""


def is_fully_synced(path: str) -> bool:
    """Return whether one `syncfs` is enough for many files below this folder, which depends on its file system."""
    if not HAS_SYNC_SYSTEM:
        return False
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            return type_of_file_system(os.path.realpath(path), mounts) in FULLY_SYNCED
    except OSError:
        return False  # unknown


def type_of_file_system(path: str, mounts: Iterable[str]) -> str | None:
    """Return the type of the file system that contains an absolute path; None if it is unknown.

    mounts: the lines of mountinfo, see proc(5).
    """
    longest, found = -1, None
    for mount in mounts:
        fields, _, system = mount.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields.split(" ")[4])
        is_below = path == place or path.startswith(place.rstrip("/") + "/")
        if is_below and len(place) >= longest:  # a later mount hides an earlier one at the same place
            longest, found = len(place), system.split(" ")[0]
    return found


class Sync(IntEnum):
    """The scope of a job: the data that it makes durable.

    DATA: the data of a file, and the metadata without which it could not be read.
    ALL: a file or folder, with all metadata.
    SYSTEM: everything in the file system of the descriptor; only where `is_fully_synced`.
    """

    DATA = _sync_threads.SYNC_DATA
    ALL = _sync_threads.SYNC_ALL
    SYSTEM = _sync_threads.SYNC_SYSTEM


class SyncJob(NamedTuple):
    operation: Sync
    fd: int


class Syncs(Protocol):
    """Runs the jobs of one data directory, outside the loop."""

    async def run(self, jobs: Sequence[SyncJob]) -> None:
        """Run all jobs, even if one fails, and close their descriptors.

        A cancellation does not stop the jobs.  If a job fails after the cancellation, every later call fails: the
        system reports a lost write only once, so a later sync would succeed.

        Raises:
            OSError: the first failure.
        """
        ...

    def close(self) -> None:
        """Drop the jobs that have not begun.  A job that hangs remains, and does not prevent the end of the process."""
        ...


class SyncThreads:
    """One thread at first, and up to `threads_max` when more are needed.  The threads do not survive a fork."""

    def __init__(self, threads_max: int) -> None:
        self._threads = _sync_threads.SyncThreads(threads_max)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._batches = 0
        self._missed = 0
        """The errno of a failed batch whose caller was cancelled; 0 if no such batch failed."""

    async def run(self, jobs: Sequence[SyncJob]) -> None:
        if not jobs:
            return
        future = self._submit(jobs)
        try:
            error = await future
        except asyncio.CancelledError:
            if not future.cancelled():  # its result arrived before the cancellation
                self._missed = future.result() or self._missed
            raise
        if error := error or self._missed:
            raise OSError(error, os.strerror(error))

    def _submit(self, jobs: Sequence[SyncJob]) -> asyncio.Future[int]:
        loop = asyncio.get_running_loop()
        try:
            if loop is not self._loop:
                self._leave_loop()
                loop.add_reader(self._threads.fileno(), self._collect)
                self._loop = loop
            self._batches += 1
            self._threads.submit(self._batches, list(jobs))
        except BaseException:
            close_all(jobs)
            raise
        future: asyncio.Future[int] = loop.create_future()
        self._waiting[self._batches] = future
        return future

    def _collect(self) -> None:
        for number, error in self._threads.take():
            future = self._waiting.pop(number, None)
            if future is None:
                continue
            if not future.done():
                future.set_result(error)
            elif error:  # its caller was cancelled
                self._missed = error

    def close(self) -> None:
        self._leave_loop()
        self._threads.close()

    def _leave_loop(self) -> None:
        """Fail the calls that wait, because no event of the loop would end their wait any more."""
        loop, self._loop = self._loop, None
        waiting, self._waiting = self._waiting, {}
        if loop is None or loop.is_closed():
            return
        loop.remove_reader(self._threads.fileno())
        for future in waiting.values():
            if not future.done():
                future.set_result(errno.ECANCELED)


def close_all(jobs: Iterable[SyncJob]) -> None:
    """Close the descriptors of jobs that nobody runs."""
    for job in jobs:
        os.close(job.fd)
