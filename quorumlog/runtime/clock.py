"""Time and chance: the only place of the product that asks the system for either.

Intervals and deadlines are measured on the running loop's clock (`now_ms`), which never jumps.  What a person reads,
randomness and fresh uuids come from a `Sources` object handed down from the process's entry point, so that a simulation
hands down a seeded one and every run of a seed is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random, SystemRandom
from uuid import UUID

WallClock = Callable[[], int]
"""Milliseconds since 1970 (UTC).  May jump: for people and for records' timestamps, never for a decision on time."""


def now_ms() -> int:
    """Milliseconds on the running loop's monotonic clock, rounded down; the origin means nothing."""
    return int(asyncio.get_running_loop().time() * 1000)


def elapsed_s() -> float:
    """Seconds on a clock that also moves within one turn of the loop, as a loop's own need not: to measure work by."""
    return time.perf_counter()


def _system_wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Sources:
    """Where wall time, randomness and uuids come from."""

    wall_ms: WallClock
    random: Random

    def uuid4(self) -> UUID:
        """A fresh random uuid."""
        return UUID(int=self.random.getrandbits(128), version=4)

    @classmethod
    def real(cls) -> Sources:
        """The system's clock, and its random device, which stays good across a fork."""
        return cls(_system_wall_ms, SystemRandom())

    @classmethod
    def seeded(cls, seed: int, wall_ms: WallClock) -> Sources:
        """Everything follows from `seed` and the given clock."""
        return cls(wall_ms, Random(seed))
