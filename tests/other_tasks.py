"""Counts how often another task runs during long work on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting() -> Iterator[Callable[[], int]]:
    """Yield a function that returns how often another task has run in this block."""
    passed = 0

    async def others() -> None:
        nonlocal passed
        while True:
            passed += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    try:
        yield lambda: passed
    finally:
        task.cancel()
