"""Identifies, signals and stops processes that outlive the kctl process that started them.

A pid alone does not identify a process, because pids are reused.  So the process's start time is stored with the pid,
and its command line must contain its data folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

_THREADS_FIELD, _START_TIME_FIELD = 17, 19  # of /proc/PID/stat, counted after the command's closing parenthesis


def start_mark(pid: int) -> str | None:
    """Return the start time of process `pid` in the system's format; None if it does not exist or is a zombie.

    A killed process counts as running until its last thread has ended.  Until then, it keeps its ports and files open.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _ps(pid, "lstart=")
    fields = stat.rpartition(")")[2].split()
    has_ended = fields[0] in "ZX" and int(fields[_THREADS_FIELD]) <= 1  # the main thread may end before the others
    return None if has_ended else f"{_boot_id()}:{fields[_START_TIME_FIELD]}"


def is_ours(pid: int, mark: str, data_dir: str) -> bool:
    """Return whether `pid` is still the process that was recorded with `mark` and runs on `data_dir`."""
    arguments = command_line(pid)  # empty: the process has ended, or has only just started
    return start_mark(pid) == mark and (not arguments or data_dir in arguments)


def command_line(pid: int) -> list[str]:
    """Return the arguments of process `pid`; empty if it has ended."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return [] if Path("/proc/self/stat").exists() else (_ps(pid, "command=") or "").split()
    return [argument for argument in text.split("\0") if argument]


def spawn(command: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that it outlives this process, and append its output to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            close_fds=True,
        )


def send(pid: int, number: signal.Signals) -> None:
    """Send the signal `number` to a process; do nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def gone(pid: int, mark: str, timeout_s: float) -> bool:
    """Wait until the process has ended; return False if the time is up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while start_mark(pid) == mark:
        if loop.time() >= deadline:
            return False
        _reap(pid)
        await asyncio.sleep(0.02)  # only a parent is notified, and this may not be our child
    return True


def _reap(pid: int) -> None:
    """Reap the process if it is a child of this one."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def last_lines(log: Path, count: int, size_max: int = 64 * 1024) -> list[str]:
    """Return the last `count` lines of a log file, from its last `size_max` bytes; empty if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size_max))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _boot_id() -> str:
    """Return the id of the current boot.  Start times count from the boot, so they are unique only with this id."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _ps(pid: int, field: str) -> str | None:
    """Return a field of `ps`, for systems without /proc; None if the process does not exist."""
    done = subprocess.run(["ps", "-o", field, "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.strip() or None
