"""Time and randomness: servers read them from the system in this module only.

The process that compacts logs is an exception: its results do not depend on them.  Clients and tools may read them
directly as well.

Intervals and deadlines are measured on the running loop's clock (`now_ms`), which never jumps.  Wall time for people,
randomness and new uuids come from a `Sources` object that the process's entry point passes down.  The simulator passes
a seeded object, so that every run of a seed is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random, SystemRandom
from uuid import UUID

WallClock = Callable[[], int]
"""Returns milliseconds since 1970 (UTC).  May jump: for people and for records' timestamps, never for intervals."""

JUMP_MAX_MS = 10 * 60_000
RESTART_JUMP_MAX_MS = 24 * 3_600_000
BELIEVED_AFTER_MS = 24 * 3_600_000


def now_ms() -> int:
    """Return milliseconds on the running loop's monotonic clock, rounded down; the origin is arbitrary."""
    return int(asyncio.get_running_loop().time() * 1000)


def elapsed_s() -> float:
    """Return seconds on a clock that also advances within one turn of the loop, for measuring work."""
    return time.perf_counter()


def processor_s() -> float:
    """Return the processor time that the calling thread has used, in seconds."""
    return time.thread_time()


class CautiousClock:
    """The wall clock for retention: a forward jump takes effect only after a delay.

    A step of more than `JUMP_MAX_MS` beyond the loop's clock is accepted after `BELIEVED_AFTER_MS`.  Until then, time
    continues from before the step.  So a clock that is wrong by years deletes nothing before people can notice it.  A
    step back is accepted immediately, because it only delays deletion.

    seen_ms: the last reading of an earlier process.  The length of the time without a process is unknown, so the first
        reading may be up to `RESTART_JUMP_MAX_MS` later.
    """

    def __init__(self, seen_ms: int | None = None) -> None:
        self._value_ms = seen_ms
        self._at_ms: int | None = None  # the loop's time of that value
        self._ahead_since_ms: int | None = None

    @property
    def is_held(self) -> bool:
        """Return whether the wall clock has jumped ahead and the jump is not accepted yet."""
        return self._ahead_since_ms is not None

    def read(self, wall_ms: int, now_ms: int) -> int:
        """Return the time to use, in milliseconds since 1970, when the wall clock returns `wall_ms`."""
        if self._value_ms is None:
            expected_ms, step_max_ms = wall_ms, 0
        elif self._at_ms is None:
            expected_ms, step_max_ms = self._value_ms, RESTART_JUMP_MAX_MS
        else:
            expected_ms, step_max_ms = self._value_ms + now_ms - self._at_ms, JUMP_MAX_MS
        if wall_ms - expected_ms <= step_max_ms:
            self._ahead_since_ms = None
        elif self._ahead_since_ms is None:
            self._ahead_since_ms = now_ms
        elif now_ms - self._ahead_since_ms >= BELIEVED_AFTER_MS:
            self._ahead_since_ms = None
        self._value_ms, self._at_ms = expected_ms if self.is_held else wall_ms, now_ms
        return self._value_ms


def _system_wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of wall time, randomness and uuids."""

    wall_ms: WallClock
    random: Random

    def uuid4(self) -> UUID:
        """Return a new random uuid."""
        return UUID(int=self.random.getrandbits(128), version=4)

    @classmethod
    def real(cls) -> Sources:
        """Return the system's clock, and its random device, which stays valid across a fork."""
        return cls(_system_wall_ms, SystemRandom())

    @classmethod
    def seeded(cls, seed: int, wall_ms: WallClock) -> Sources:
        """Return sources that are determined by `seed` and the given clock."""
        return cls(wall_ms, Random(seed))
