"""Long work on the loop, in turns: nobody else, heartbeats least of all, waits for its end."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

_T = TypeVar("_T")

YIELD_MS = 10


class Turn:
    """Lets others have the loop every few milliseconds."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    async def passed(self) -> None:
        """To be awaited between the steps; gives the loop away if this turn has lasted for long enough."""
        if (self._loop.time() - self._since) * 1000 >= YIELD_MS:
            await asyncio.sleep(0)
            self._since = self._loop.time()

    async def through(self, work: Generator[None, None, _T]) -> _T:
        """What `work` returns, run step by step."""
        while True:
            await self.passed()
            try:
                next(work)
            except StopIteration as stop:
                result: _T = stop.value
                return result
