"""Splits long work on the loop into turns, so that other tasks, mainly heartbeats, do not wait for its end."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Generator, Iterable
from itertools import islice
from typing import Any, TypeVar

_T = TypeVar("_T")

YIELD_MS = 10
SORTED_AT_ONCE_MAX = 2_000
"""Maximum number of items that `Turn.sorted` sorts without yielding."""


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

    async def sorted(self, items: Iterable[_T], key: Callable[[_T], Any]) -> list[_T]:
        """Return `items`, which must not change meanwhile, sorted by `key`, in turns."""
        left, runs = iter(items), []
        while run := sorted(islice(left, SORTED_AT_ONCE_MAX), key=key):
            runs.append(run)
            await self.passed()
        merged: list[_T] = []
        for item in heapq.merge(*runs, key=key):
            merged.append(item)
            await self.passed()
        return merged
