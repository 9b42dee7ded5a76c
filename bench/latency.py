"""Times of asyncio calls, one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles


async def times(act: Callable[[], Awaitable[object]], count: int, pause_s: float = 0.0) -> list[float]:
    """Return the seconds of each of `count` calls.  pause_s: time between the end of a call and the next one."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await act()
        found.append(time.perf_counter() - began)
        if pause_s:
            await asyncio.sleep(pause_s)
    return found


def p50_ms(seconds: Sequence[float]) -> float:
    return round(median(seconds) * 1000, 3)


def p99_ms(seconds: Sequence[float]) -> float:
    """Return the 99th percentile in milliseconds; seconds: at least two values."""
    return round(quantiles(seconds, n=100)[98] * 1000, 3)
