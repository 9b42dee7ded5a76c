"""Every bound of the Kafka listener, and the two small accounts that hold some of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from quorumlog.runtime.logging import Logger


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    frame_max_bytes: int = 100 << 20
    """A larger frame closes its connection before it is read."""
    small_request_max_bytes: int = 4 << 20
    """The same for every request but Produce: decoded, they take many times their size."""
    connections_max: int = 4_000
    """Connections of all listeners; one more is closed at once.  At most half of the process's file descriptors."""
    requests_per_connection_max: int = 64
    """Requests of one connection read and not yet answered; then it is not read from."""
    held_max_bytes: int = 512 << 20
    """Bytes of requests and unsent replies over all connections; then none is read from, but the one that has been
    reading its frame for longest."""
    idle_ms: int = 600_000
    """A connection without requests for so long is closed."""
    frame_stall_ms: int = 30_000
    """How long a frame may take to arrive, beside a second for each MiB."""
    write_stall_ms: int = 60_000
    """A peer that has taken less than `write_stall_bytes` of its replies in this time is closed."""
    write_stall_bytes: int = 64 << 10
    write_buffer_bytes: int = 1 << 20
    """Unsent replies of one connection; above it no further request of it is begun."""
    sweep_ms: int = 5_000
    """How often idle and stalled connections are looked for."""
    close_ms: int = 2_000
    """How long closing the server waits for replies to be made and sent."""
    metadata_cache_max_bytes: int = 16 << 20
    controller_timeout_max_ms: int = 120_000
    """Longest that a forwarded request may take, whatever it asks for."""


class Reading(Protocol):
    """What `MemoryBudget` sees of a connection."""

    def hold_reading(self) -> None: ...
    def go_on_reading(self) -> None: ...


class MemoryBudget:
    """Counts held bytes, and stops connections from reading while there are too many.

    Theory of operation.  A connection takes bytes when a buffer for a frame grows and gives them back when the request
    is answered.  Above the limit, whoever takes is held.  If everybody held part of a frame, nobody could ever give
    back: so the connection that began its large frame first (the elder) is never held, and its frame has a deadline.
    What is held in memory is thus at most the limit plus one frame, and a buffer a connection.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held = 0
        self._waiting: dict[Reading, None] = {}
        self._partial: dict[Reading, None] = {}

    def take(self, who: Reading, size: int, partial: bool) -> None:
        """`partial`: part of a frame; its connection is in line to be the elder until it says otherwise."""
        self.held += size
        if partial:
            self._partial.setdefault(who)
        if self.held > self.max_bytes and who is not self._elder():
            self._waiting.setdefault(who)
            who.hold_reading()

    def give(self, size: int) -> None:
        self.held -= size
        assert self.held >= 0, f"{-self.held} bytes given back that were never taken"
        while self.held <= self.max_bytes and self._waiting:
            who = next(iter(self._waiting))
            del self._waiting[who]
            who.go_on_reading()

    def complete(self, who: Reading) -> None:
        """The frame is whole, or its connection gone: the next elder goes on."""
        self._partial.pop(who, None)
        elder = self._elder()
        if elder is not None and elder in self._waiting:
            del self._waiting[elder]
            elder.go_on_reading()

    def forget(self, who: Reading) -> None:
        self._waiting.pop(who, None)
        self.complete(who)

    def _elder(self) -> Reading | None:
        return next(iter(self._partial), None)


class LineBudget:
    """Log lines that anybody can cause from outside: at most `lines` each `interval_s`, the rest is counted."""

    def __init__(self, log: Logger, now: Callable[[], float], lines: int = 20, interval_s: float = 10.0) -> None:
        self._log = log
        self._now = now
        self._lines = lines
        self._interval_s = interval_s
        self._begin = float("-inf")
        self._used = 0
        self.suppressed = 0

    def warning(self, event: str, **keys: object) -> None:
        now = self._now()
        if now - self._begin >= self._interval_s:
            self._begin, self._used = now, 0
        if self._used >= self._lines:
            self.suppressed += 1
            return
        self._used += 1
        if self.suppressed:
            keys["lines_suppressed"], self.suppressed = self.suppressed, 0
        self._log.warning(event, **keys)
