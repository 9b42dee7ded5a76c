"""Processes of programs: their events, their deadlines, their end."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.clients.outcomes import NotOffered, RowFailed

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / ".dev" / "clients"
ROW_TIMEOUT_S = 60.0
"""Time for one wait of a row, on a busy machine."""
STDERR_SHOWN_LINES = 6

Event = dict[str, Any]
"""An event as the program wrote it."""


class Program:
    """A running program.  Leaving the block kills it if it still runs."""

    def __init__(self, command: Sequence[str], action: dict[str, Any]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by __exit__
        self._process = subprocess.Popen(
            [*command, json.dumps(action)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._changed = threading.Condition()
        self._has_ended = False
        self.events: list[Event] = []
        self.arrivals_s: list[float] = []
        """When each event arrived, by the monotonic clock."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event: Event = json.loads(line)
            except ValueError:  # a library printed it
                continue
            with self._changed:
                self.events.append(event)
                self.arrivals_s.append(time.monotonic())
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    @property
    def version(self) -> str:
        return next((str(event["value"]) for event in self.events if event["event"] == "version"), "")

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind so far."""
        with self._changed:
            return [event for event in self.events if event["event"] == kind]

    @property
    def assignments(self) -> list[list[int]]:
        return [event["partitions"] for event in self.of("assigned")]

    @property
    def assigned(self) -> list[int]:
        assignments = self.assignments
        return assignments[-1] if assignments else []

    @property
    def values(self) -> list[str]:
        return [event["value"] for event in self.of("record")]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition on the events.

        Raises:
            NotOffered, RowFailed: the program ended, or the time did.
        """
        with self._changed:
            fulfilled = self._changed.wait_for(lambda: condition() or self._has_ended, ROW_TIMEOUT_S)
        if not fulfilled:
            raise RowFailed(f"not within {ROW_TIMEOUT_S:g} s: {what}; {self._errors_shown()}")
        if not condition():
            self._check_end()
            raise RowFailed(f"the program ended before: {what}; {self._errors_shown()}")

    def finish(self) -> None:
        """Close its input and wait for its end."""
        self.close_input()
        try:
            self._process.wait(ROW_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise RowFailed(f"did not end within {ROW_TIMEOUT_S:g} s; {self._errors_shown()}") from None
        self._reader.join()
        self._check_end()

    def kill(self) -> None:
        """End it at once, as kill -9 does."""
        self._process.kill()
        self._process.wait()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _check_end(self) -> None:
        for event in self.of("unsupported"):
            raise NotOffered(event["reason"])
        if status := self._process.wait(ROW_TIMEOUT_S):
            raise RowFailed(f"exit status {status}: {self._errors_shown()}")

    def _errors_shown(self) -> str:
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        return " | ".join(lines[-STDERR_SHOWN_LINES:])
