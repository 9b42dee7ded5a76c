"""Measurements of running processes for benches (Linux)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


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
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    """The processor time that anything but the measured servers and this process takes, from now on.

    servers_s: returns the processor time of the servers in seconds.  They must be the same processes at both ends.
    """

    def __init__(self, servers_s: Callable[[], float]) -> None:
        self._servers_s = servers_s
        self._began, self._before_s = time.monotonic(), self._foreign_s()

    def share(self) -> float:
        """Return their share of the machine, 0 to 1, since this object was made."""
        took_s = time.monotonic() - self._began
        return (self._foreign_s() - self._before_s) / took_s / (os.cpu_count() or 1)

    def _foreign_s(self) -> float:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        busy = sum(int(value) for index, value in enumerate(fields) if index not in (3, 4)) / os.sysconf("SC_CLK_TCK")
        return busy - self._servers_s() - sum(os.times()[:4])
