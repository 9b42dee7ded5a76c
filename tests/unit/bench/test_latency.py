"""Times of calls, and their percentiles in milliseconds."""

from __future__ import annotations

import asyncio

from bench.latency import p50_ms, p99_ms, times


def test_each_call_has_its_own_time_without_the_pauses() -> None:
    calls = []

    async def act() -> None:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.sleep(0.05)

    found = asyncio.run(times(act, 3, pause_s=0.06))
    assert len(calls) == len(found) == 3
    assert found[0] >= 0.05
    assert min(found[1:]) < 0.05, "the pause and the first call do not count"


def test_percentiles_are_in_milliseconds() -> None:
    seconds = [number / 1000 for number in range(1, 100)]
    assert p50_ms(seconds) == 50
    assert p99_ms(seconds) == 99
