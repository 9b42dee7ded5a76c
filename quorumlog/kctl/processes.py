"""Processes that outlive the kctl which started them: found again, told apart from strangers, ended.

A pid alone proves nothing, it may have been given to somebody else meanwhile.  So the start time of the process is kept
with it, and its command line must hold the data folder that we gave it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

_START_TIME_FIELD = 19  # of /proc/PID/stat, counted after the command's closing parenthesis


def start_mark(pid: int) -> str | None:
    """When process `pid` started, in the system's own form; None if there is no such process (or it is a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _ps(pid, "lstart=")
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{_boot_id()}:{fields[_START_TIME_FIELD]}"


def is_ours(pid: int, mark: str, data_dir: str) -> bool:
    """Whether `pid` is still the process that was recorded with `mark`, running on `data_dir`."""
    arguments = command_line(pid)  # none: it is gone, or so young that the system has not set them yet
    return start_mark(pid) == mark and (not arguments or data_dir in arguments)


def command_line(pid: int) -> list[str]:
    """Its arguments; empty when it is gone."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return [] if Path("/proc/self/stat").exists() else (_ps(pid, "command=") or "").split()
    return [argument for argument in text.split("\0") if argument]


def spawn(command: Sequence[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process of its own session, which keeps running when we end, its output appended to `log`."""
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
    """Signal a process; nothing happens if it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def gone(pid: int, mark: str, timeout_s: float) -> bool:
    """Wait until the process has ended; False if it has not in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while start_mark(pid) == mark:
        if loop.time() >= deadline:
            return False
        _reap(pid)
        await asyncio.sleep(0.02)  # only a parent is told of an end, and this may not be our child
    return True


def _reap(pid: int) -> None:
    """Take note of the end of a child of this very process."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def last_lines(log: Path, count: int, size_max: int = 64 * 1024) -> list[str]:
    """The end of a log file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size_max))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _boot_id() -> str:
    """A start time counts from boot, so it means something only together with which boot that was."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _ps(pid: int, field: str) -> str | None:
    """Where there is no /proc."""
    done = subprocess.run(["ps", "-o", field, "-p", str(pid)], capture_output=True, text=True, check=False, timeout=10)
    return done.stdout.strip() or None
