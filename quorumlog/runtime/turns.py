"""Splits long work on the loop into turns, so that other tasks, mainly heartbeats, do not wait for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

_T = TypeVar("_T")

YIELD_MS = 10


class Turn:
    """A turn on the loop.  It yields to other tasks every few milliseconds."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    async def passed(self) -> None:
        """Yield to other tasks if this turn has lasted for long enough.  Await it between the steps of the work."""
        if (self._loop.time() - self._since) * 1000 >= YIELD_MS:
            await asyncio.sleep(0)
            self._since = self._loop.time()

    async def through(self, work: Generator[None, None, _T]) -> _T:
        """Run `work` step by step, in turns; return its result."""
        while True:
            await self.passed()
            try:
                next(work)
            except StopIteration as stop:
                result: _T = stop.value
                return result
