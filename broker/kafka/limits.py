"""Every bound of the Kafka listener, and `MemoryBudget`, which enforces one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class KafkaLimits:
    frame_max_bytes: int = 100 << 20
    """A larger frame closes its connection before it is read."""
    small_request_max_bytes: int = 4 << 20
    """The same for every request but Produce: decoded, they take many times their size."""
    connections_max: int = 4_000
    """Connections of all listeners, at most half of the process's file descriptors.  One more takes the place of an
    idle one, or is closed at once if none is idle."""
    requests_per_connection_max: int = 64
    """Requests of one connection read and not yet answered; then it is not read from."""
    held_max_bytes: int = 512 << 20
    """Bytes over all connections: half of it for frames that arrive, half for whole requests and unsent replies.  What
    happens above it: see `MemoryBudget`."""
    idle_ms: int = 600_000
    """A connection without requests for so long is closed."""
    frame_stall_ms: int = 30_000
    """How long a frame may take to arrive, beside a second for each MiB."""
    crowded_stall_ms: int = 1_000
    crowded_progress_bytes: int = 64 << 10
    """While others wait for room for their frames: one that grows by less than this in that time is given up."""
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


REPLY_MIN_BYTES = 1 << 20
"""Of records, that a consumer is given whatever is held; one batch is always given whole."""


class Reading(Protocol):
    """What `MemoryBudget` sees of a connection."""

    def hold_reading(self) -> None: ...
    def go_on_reading(self) -> None: ...
    def make_way(self, now: float) -> None: ...


class MemoryBudget:
    """Counts held bytes, and stops connections from reading while there are too many.

    Theory of operation.  Two accounts, each with half of the limit, so that neither can starve the other.

    *Whole* requests and unsent replies: taken when a frame is whole, given back when it is answered.  While there is
    too much of them, a connection is held that has more than its share, the account divided by those who have anything
    in it: somebody whose requests are not answered, or who does not take his replies, delays himself and not others.

    *Growing* frames, those too large for the staging buffer: while there is too much of them, whoever takes more is
    held, but for `allowance` bytes that every connection may always have, so that small requests go on.  If everybody
    held part of a frame, nobody could ever give back: so the connection that began its frame first (the elder) is never
    held; and the server is told (`on_crowded`), which closes those whose frames do not grow.

    What is held in memory is thus at most the limit, plus a share and the allowance each for those that were just
    reading, plus one frame.
    """

    def __init__(self, max_bytes: int, allowance: int, on_crowded: Callable[[], None]) -> None:
        self._half = max_bytes // 2
        self._allowance = allowance
        self._on_crowded = on_crowded
        self._whole = 0
        self._whole_of: dict[Reading, int] = {}
        self._above_share: dict[Reading, None] = {}
        self._growing = 0
        self._growing_of: dict[Reading, int] = {}  # in the order in which they began
        self._crowded_out: dict[Reading, None] = {}

    @property
    def held(self) -> int:
        """Bytes of both accounts."""
        return self._whole + self._growing

    @property
    def is_crowded(self) -> bool:
        """Whether somebody waits for room for a growing frame."""
        return bool(self._crowded_out)

    # -- whole requests, and replies

    def take(self, who: Reading, size: int) -> None:
        self._whole += size
        self._whole_of[who] = self._whole_of.get(who, 0) + size
        if self._whole > self._half and self._whole_of[who] > self._share():
            self._above_share[who] = None
            who.hold_reading()

    def give(self, who: Reading, size: int) -> None:
        left = self._whole_of.get(who, 0) - size
        assert left >= 0, f"{-left} bytes given back that were never taken"
        self._whole -= size
        if left:
            self._whole_of[who] = left
        else:
            self._whole_of.pop(who, None)
        if who in self._above_share and left <= self._share():
            self._go_on(self._above_share, who)
        while self._whole <= self._half and self._above_share:
            self._go_on(self._above_share, next(iter(self._above_share)))

    def room(self) -> int:
        """How large the records of one more reply may be: less and less, the more is held, but never nothing."""
        return max(REPLY_MIN_BYTES, (self._half - self._whole) // 8)

    def _share(self) -> int:
        return self._half // max(1, len(self._whole_of))

    # -- growing frames

    def grow(self, who: Reading, size: int) -> None:
        self._growing += size
        own = self._growing_of[who] = self._growing_of.get(who, 0) + size
        if self._growing > self._half and own > self._allowance and who is not self._elder():
            self._crowded_out[who] = None
            who.hold_reading()
            self._on_crowded()

    def grown(self, who: Reading) -> None:
        """The frame is whole, or will never be: the next elder goes on, and whoever there is room for."""
        self._growing -= self._growing_of.pop(who, 0)
        elder = self._elder()
        if elder is not None and elder in self._crowded_out:
            self._go_on(self._crowded_out, elder)
        while self._growing <= self._half and self._crowded_out:
            self._go_on(self._crowded_out, next(iter(self._crowded_out)))

    def growing(self) -> list[Reading]:
        """Those that are free to go on with a growing frame."""
        return [who for who in self._growing_of if who not in self._crowded_out and who not in self._above_share]

    def _elder(self) -> Reading | None:
        return next(iter(self._growing_of), None)

    def forget(self, who: Reading) -> None:
        """The connection is gone, with all that it held."""
        self._above_share.pop(who, None)
        self._crowded_out.pop(who, None)
        self.give(who, self._whole_of.get(who, 0))
        self.grown(who)

    def _go_on(self, waiting: dict[Reading, None], who: Reading) -> None:
        del waiting[who]
        if who not in self._above_share and who not in self._crowded_out:
            who.go_on_reading()
