"""Measurements of running processes for benches (Linux)."""

from __future__ import annotations

import os
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
