"""Why a process ended, kept in its directories, where the next process finds it.

The disk that ends a process may be full or failing, so nothing is allocated or opened at the end.  `begin` writes a
small file in each directory, of full size, and keeps it open; `write` overwrites the same bytes in place.  Meanwhile
the file says `running`: a process that reads that follows one that was killed, or whose machine went down.  The file is
a note for people.  One that is missing or damaged says nothing, and no failure to read or write it is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

FILE = "last_end.json"
SIZE = 4096
TEXT_MAX = 600
"""Characters of a cause or a next step that are kept; escaped, both fit the file."""
RUNNING, STOPPED, FAILED = "running", "stopped", "failed"


class End(NamedTuple):
    """How a process ended, or that it runs.  at_ms: wall time of the end, or of the start."""

    state: str
    at_ms: int
    exit_status: int = 0
    cause: str = ""
    next_step: str = ""


class LastEnd:
    """The notes of one process, the same in each of `folders`."""

    def __init__(self, folders: Sequence[str], wall_ms: Callable[[], int]) -> None:
        self._paths = [os.path.join(folder, FILE) for folder in folders]
        self._wall_ms = wall_ms
        self._files: list[int] = []  # descriptors
        self.before: End | None = None
        """How the previous process ended; None if unknown."""

    def begin(self) -> bool:
        """Read the note of the previous process, and note that this one runs.  Call it once the directories are locked.

        Returns False, and does nothing, when it was called before.
        """
        if self._files:
            return False
        found = [end for path in self._paths if (end := _read(path)) is not None]
        self.before = max(found, key=lambda end: end.at_ms, default=None)
        data = _encode(End(RUNNING, self._wall_ms()))
        self._open()
        for file in self._files:
            with contextlib.suppress(OSError):
                os.pwrite(file, data, 0)
        return True

    def _open(self) -> None:
        for path in self._paths:
            with contextlib.suppress(OSError):
                self._files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))

    def ended(self, exit_status: int, cause: str, next_step: str) -> End:
        """An end of this process, now: one line each of cause and next step, cut where they are long."""
        return End(FAILED if exit_status else STOPPED, self._wall_ms(), exit_status, _line(cause), _line(next_step))

    async def write(self, end: End) -> None:
        """Note how this process ends.  The caller sets the deadline: a directory may hang."""
        if not self._files:
            self._open()  # it fails before it has begun
        if not self._files:
            return
        data, loop = _encode(end), asyncio.get_running_loop()
        # Threads of its own: those of the loop may all be held by the disk that ended the process.
        executor = ThreadPoolExecutor(len(self._files))
        try:
            writes = [loop.run_in_executor(executor, os.pwrite, file, data, 0) for file in self._files]
            await asyncio.gather(*writes, return_exceptions=True)
        finally:
            executor.shutdown(wait=False)


def _line(text: str) -> str:
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"


def _encode(end: End) -> bytes:
    data = json.dumps(end._asdict(), ensure_ascii=False).encode()
    if len(data) >= SIZE:
        data = json.dumps(end._replace(cause=end.cause[:100], next_step="")._asdict(), ensure_ascii=True).encode()
    assert len(data) < SIZE, len(data)
    return data.ljust(SIZE - 1) + b"\n"


def _read(path: str) -> End | None:
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(SIZE))
        end = End(**found)
    except (OSError, ValueError, TypeError):
        return None
    sound = end.state in (RUNNING, STOPPED, FAILED) and all(
        isinstance(value, int if name in ("at_ms", "exit_status") else str) for name, value in end._asdict().items()
    )
    return end if sound else None
