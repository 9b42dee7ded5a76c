"""Measurements of running processes for benches (Linux)."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_OWN: Final = slice(11, 13)
"""The fields of /proc/PID/stat, after the name, that count the time of the process itself."""
_FAMILY: Final = slice(11, 15)
"""The same with the time of the children that have ended."""


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used, in seconds, with a resolution of 0.01 s."""
    return thread_processor_s(Path(f"/proc/{pid}"))


def thread_processor_s(folder: Path) -> float:
    """Return the processor time that a thread has used, in seconds.

    folder: `/proc/PID/task/TID` of the thread; `/proc/PID` for all threads of the process.
    """
    return _seconds(folder, _OWN)


def family_resident_mib(pid: int) -> float:
    """Return the resident memory of a process and its children in MiB."""
    return resident_mib(pid) + sum(_of_children(pid, resident_mib))


def family_processor_s(pid: int) -> float:
    """Return the processor time of a process and its children, including children that have ended, in seconds."""
    running = sum(_of_children(pid, processor_s))
    return running + _seconds(Path(f"/proc/{pid}"), _FAMILY)


def send_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still runs."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def limit_cores(pids: Iterable[int], cores: set[int]) -> None:
    """Let all threads of these processes, and those that they start later, run only on these cores."""
    for pid in pids:
        limited: set[str] = set()
        while threads := set(os.listdir(f"/proc/{pid}/task")) - limited:  # a thread may begin meanwhile
            for thread in threads:
                with suppress(ProcessLookupError):  # or end
                    os.sched_setaffinity(int(thread), cores)
            limited |= threads


@dataclass(frozen=True)
class Servers:
    """The processes of one cluster, which can be suspended together (SIGSTOP)."""

    name: str
    pids: tuple[int, ...]

    def pause(self) -> None:
        send_all(self.pids, signal.SIGSTOP)

    def resume(self) -> None:
        send_all(self.pids, signal.SIGCONT)

    def processor_s(self) -> float:
        return sum(processor_s(pid) for pid in self.pids)


class Others:
    """The processor time that anything but the measured servers and the processes of this bench takes.

    servers_s: returns the processor time of the servers in seconds.  They must be the same processes at both ends.
    """

    def __init__(self, servers_s: Callable[[], float]) -> None:
        self._servers_s = servers_s
        self._since, self._before_s = time.monotonic(), self._foreign_s()

    def share(self) -> float:
        """Return their share of the machine, 0 to 1, since the last call, or since this object was made."""
        now, foreign_s = time.monotonic(), self._foreign_s()
        share = (foreign_s - self._before_s) / (now - self._since) / (os.cpu_count() or 1)
        self._since, self._before_s = now, foreign_s
        return share

    def _foreign_s(self) -> float:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        busy = sum(int(value) for index, value in enumerate(fields) if index not in (3, 4)) / os.sysconf("SC_CLK_TCK")
        helpers_s = sum(processor_s(child.pid) for child in multiprocessing.active_children() if child.pid is not None)
        return busy - self._servers_s() - sum(os.times()[:4]) - helpers_s


def _of_children(pid: int, measure: Callable[[int], float]) -> Iterator[float]:
    """Yield a measure of each child that the main thread of a process has started and that runs now."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(OSError, RuntimeError):  # the child has ended meanwhile
            yield measure(int(child))


def _seconds(folder: Path, fields: slice) -> float:
    found = (folder / "stat").read_text().rpartition(")")[2].split()[fields]
    return sum(int(ticks) for ticks in found) / os.sysconf("SC_CLK_TCK")
