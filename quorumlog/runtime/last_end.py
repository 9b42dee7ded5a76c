"""The reason why a process ended, stored in its directories for the next process.

The disk that ends a process may be full or failing, so nothing can be allocated or opened at the end.  Therefore
`begin` writes a small file of full size in each directory and keeps it open; `write` overwrites the same bytes in
place.  Until then the file contains `running`: a process that reads this knows that its predecessor was killed, or that
the machine lost power.  The file is information for people.  A file that is missing or damaged, or cannot be read or
written, is not an error.
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
"""Maximum number of characters of a cause or next step.  If both do not fit the file, because they contain many
characters that are not ASCII or must be escaped, `_encode` shortens the cause and omits the next step."""
AT_MAX_MS = 253_402_300_799_999
"""The end of the year 9999: a later time cannot be shown."""
RUNNING, STOPPED, FAILED = "running", "stopped", "failed"


class End(NamedTuple):
    """The end of a process, or the fact that it runs.  at_ms: wall time of the end, or of the start."""

    state: str
    at_ms: int
    exit_status: int = 0
    cause: str = ""
    next_step: str = ""


class LastEnd:
    """The file of one process, with the same contents in each of `folders`."""

    def __init__(self, folders: Sequence[str], wall_ms: Callable[[], int]) -> None:
        self._paths = [os.path.join(folder, FILE) for folder in folders]
        self._wall_ms = wall_ms
        self._files: list[int] = []  # descriptors
        self.before: End | None = None
        """The end of the previous process; None if unknown."""

    def begin(self) -> bool:
        """Read the end of the previous process, and record that this process runs.  The directories must be locked.

        Returns False, and does nothing, if it was called before.
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

    @property
    def has_begun(self) -> bool:
        """Return whether `begin` has recorded that this process runs.  Not valid after `write`."""
        return bool(self._files)

    def _open(self) -> None:
        for path in self._paths:
            with contextlib.suppress(OSError):
                self._files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))

    def ended(self, exit_status: int, cause: str, next_step: str) -> End:
        """Return an end of this process at the current time.

        Cause and next step become one line each, and are shortened if they are long.
        """
        return End(FAILED if exit_status else STOPPED, self._wall_ms(), exit_status, _line(cause), _line(next_step))

    async def write(self, end: End) -> None:
        """Record the end of this process.  The caller sets the deadline, since a directory may hang."""
        if not self._files:
            self._open()  # the process fails before `begin`
        if not self._files:
            return
        data, loop = _encode(end), asyncio.get_running_loop()
        # Use separate threads: the disk that ended the process may block all threads of the loop.
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
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    sound = end.state in (RUNNING, STOPPED, FAILED) and all(
        isinstance(value, int if name in ("at_ms", "exit_status") else str) for name, value in end._asdict().items()
    )
    return end if sound and 0 <= end.at_ms <= AT_MAX_MS else None
