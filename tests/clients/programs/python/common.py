"""The shared parts of the Python programs: their action, their events, and the contents of records."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

POLL_S = 0.1
TIMEOUT_S = 30.0
SETTLE_S = 5.0
SESSION_MS = 45_000
HEARTBEAT_MS = 500

Action = dict[str, Any]
T = TypeVar("T")
_reporting = threading.Lock()


def report(event: str, **fields: Any) -> None:
    """Write an event as one line.  Threads may report at the same time, and `print` writes the end of a line apart."""
    with _reporting:
        print(json.dumps({"event": event, **fields}), flush=True)


def unsupported(reason: str) -> NoReturn:
    report("unsupported", reason=reason)
    sys.exit(0)


class Contents:
    """The contents of the record `number` that every program writes."""

    def __init__(self, number: int, base_ms: int) -> None:
        self.key = f"key-{number % 7}"
        self.value = f"value-{number} " * 20
        self.timestamp = base_ms + number
        self.headers = {"number": str(number)}


class Input:
    """Notices the end of standard input."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        sys.stdin.read()
        self._ended.set()

    def wait(self) -> None:
        self._ended.wait()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()


class Partitions:
    """Reports the partitions of a member whenever they have changed."""

    def __init__(self) -> None:
        self._known: list[int] = []

    def now(self, partitions: list[int]) -> None:
        if sorted(partitions) != self._known:
            self._known = sorted(partitions)
            report("assigned", partitions=self._known)


def settled(look: Callable[[], T], wanted: T) -> T:
    """Call `look` until it returns `wanted` or the time is up; return its last result.

    Brokers learn of a change one after another.
    """
    deadline = time.monotonic() + SETTLE_S
    while (found := look()) != wanted and time.monotonic() < deadline:
        time.sleep(POLL_S)  # before it looks again; nothing reports that the last broker has learned of a change
    return found


def run(version: str, actions: Mapping[str, Callable[[Action], None]]) -> None:
    action: Action = json.loads(sys.argv[1])
    report("version", value=version)
    actions[action["action"]](action)
