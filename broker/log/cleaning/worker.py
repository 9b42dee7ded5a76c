"""The process that cleans logs for a broker: it reads jobs from its standard input, and writes files and results.

Its memory is limited.  It never opens a file of the broker for writing, and ends with the broker.
Each message is one line of JSON:

    broker -> worker    {"root", "bytes_per_second", "job"}     a job
                        an empty line                           continue, after a Replacement
    worker -> broker    Work                                    about every second, to show that the worker runs
                        Replacement, durable; then the worker waits
                        Finished or Failed                      the job has ended
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
import time
from typing import BinaryIO

import msgspec

from broker.log.cleaning.job import CleanJob, Finished, Replacement, SourceChangedError, Work, run_job
from broker.log.cleaning.records import UncleanableError

REPORT_INTERVAL_S = 1.0
"""Interval at which the worker reports that it is at work."""
BASE_MEMORY = 256 << 20
"""Bytes for the interpreter and its libraries."""
INFLATED_COPIES = 8
"""Memory for the records of one batch, as a multiple of their size; dividing, joining and compressing copies them."""
FREE_MIN_BYTES = 256 << 20
FREE_MIN_PART = 0.05
"""Space that the worker leaves free: this part of the file system, or `FREE_MIN_BYTES` if that is less.  A full data
directory would go offline."""
_PR_SET_PDEATHSIG = 1


class Order(msgspec.Struct, frozen=True):
    """A job for the worker.  bytes_per_second: read and written together; -1: no limit."""

    root: str
    bytes_per_second: int
    job: CleanJob


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The job has ended without a result.  kind: uncleanable, changed or failed."""

    kind: str
    cause: str


Report = Work | Replacement | Finished | Failed

_order_decoder = msgspec.json.Decoder(Order)
_encoder = msgspec.json.Encoder()


class RawFile:
    """A file of the data directory, either only read or only appended to."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.size = os.fstat(fd).st_size

    def append(self, data: bytes | memoryview) -> int:
        """Append `data`; return its position.

        Raises: OSError: the write failed, or too little space would be left for the broker.
        """
        _leave_space(self.fd, len(data))
        position, rest = self.size, memoryview(data)
        while rest:
            rest = rest[os.write(self.fd, rest) :]
        self.size += len(data)
        return position

    def pread(self, position: int, size: int) -> bytes:
        return os.pread(self.fd, size, position)


class RawFiles:
    """The files of a data directory: one source and one output are open at a time."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._source: RawFile | None = None
        self._output: RawFile | None = None

    def open(self, path: str, create: bool = False) -> RawFile:
        place = os.path.join(self._root, path)
        if create:
            _close(self._output)
            self._output = None
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._output = RawFile(path, os.open(place, flags, 0o640))
            return self._output
        _close(self._source)
        self._source = None
        self._source = RawFile(path, os.open(place, os.O_RDONLY | os.O_CLOEXEC))
        return self._source

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._root, path))

    def make_durable(self) -> None:
        """Flush the output; the broker flushes the file again before it uses the file."""
        if self._output is not None:
            os.fsync(self._output.fd)

    def close(self, *, remove_output: bool) -> None:
        if remove_output and self._output is not None:
            self.remove(self._output.path)
        _close(self._source)
        _close(self._output)
        self._source = self._output = None


def _leave_space(fd: int, size: int) -> None:
    """Check that enough space is left for the broker after a write of `size` bytes.

    Raises:
        OSError: too little space would be left.
    """
    system = os.fstatvfs(fd)
    free, least = system.f_bavail * system.f_frsize, FREE_MIN_PART * system.f_blocks * system.f_frsize
    if free - size < min(least, FREE_MIN_BYTES):
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {free} bytes are free, and reserved for the broker")


def _close(file: RawFile | None) -> None:
    if file is not None:
        os.close(file.fd)


class Pace:
    """Keeps the work below a number of bytes per second."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._began = time.monotonic()
        self._size = 0

    def wait_after(self, size: int) -> float:
        """Return the seconds to wait after `size` more bytes."""
        if self._rate <= 0:
            return 0.0
        self._size += size
        return max(0.0, self._began + self._size / self._rate - time.monotonic())


class Worker:
    """Runs jobs until its input ends."""

    def __init__(self, orders: BinaryIO, reports: BinaryIO) -> None:
        self._orders = orders
        self._reports = reports

    def run(self) -> None:
        while line := self._orders.readline():
            if line.strip():
                order = _order_decoder.decode(line)
                _limit_memory(order.job)
                self._report(self._run_job(order))

    def _run_job(self, order: Order) -> Finished | Failed:
        files = RawFiles(order.root)
        is_good = False
        try:
            finished = self._steps(order, files)
            is_good = True
            return finished
        except UncleanableError as error:
            return Failed("uncleanable", str(error))
        except SourceChangedError as error:
            return Failed("changed", str(error))
        except MemoryError:
            return Failed("uncleanable", f"a batch does not fit into {_memory_max(order.job)} bytes of memory")
        except OSError as error:
            return Failed("failed", f"{order.root}: {error}")
        finally:
            files.close(remove_output=not is_good)

    def _steps(self, order: Order, files: RawFiles) -> Finished:
        work = run_job(order.job, files)
        pace = Pace(order.bytes_per_second)
        reported, size = time.monotonic(), 0
        while True:
            try:
                step = next(work)
            except StopIteration as stop:
                finished: Finished = stop.value
                return finished
            if isinstance(step, Replacement):
                files.make_durable()
                self._report(step)
                if not self._orders.readline():
                    raise SystemExit(0)  # the broker has ended
                continue
            size += step.size
            wait_s = pace.wait_after(step.size)
            while True:
                if time.monotonic() - reported >= REPORT_INTERVAL_S:
                    self._report(Work(size))
                    reported, size = time.monotonic(), 0
                if wait_s <= 0:
                    break
                time.sleep(min(wait_s, REPORT_INTERVAL_S))  # the throttle; the process has nothing else to do
                wait_s -= REPORT_INTERVAL_S

    def _report(self, report: Report) -> None:
        self._reports.write(_encoder.encode(report) + b"\n")
        self._reports.flush()


def _memory_max(job: CleanJob) -> int:
    return BASE_MEMORY + job.map_memory + INFLATED_COPIES * max(job.inflated_max, job.batch_size_max)


def _limit_memory(job: CleanJob) -> None:
    """Make allocations beyond the memory of a job fail, so that no batch can take the memory of the host."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _memory_max(job)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _end_with_parent() -> None:
    """Make the kernel end this process with its parent, if the system supports that; a closed input also ends it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    _end_with_parent()
    with contextlib.suppress(ConnectionError):  # the broker has ended
        Worker(sys.stdin.buffer, sys.stdout.buffer).run()


if __name__ == "__main__":
    main()
