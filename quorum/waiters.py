"""Waiting until the log reaches an offset, or until something changes."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

WAITERS_MAX = 100_000
"""Maximum number of waits at a time.  More fail an assertion: the limits on requests should prevent them."""


class OffsetWaiters:
    """Futures, ordered by the end offset that they wait for."""

    def __init__(self) -> None:
        self._numbers = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap

    async def wait(self, offset: int) -> None:
        """Wait until `complete` is called with `offset` or more.  The caller sets the deadline.

        Raises the error that is passed to `fail`.
        """
        if len(self._waiting) >= WAITERS_MAX:
            self._waiting = [waiter for waiter in self._waiting if not waiter[2].done()]
            heapq.heapify(self._waiting)
            assert len(self._waiting) < WAITERS_MAX, f"{len(self._waiting)} wait for the log"
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (offset, next(self._numbers), future))
        await future

    def complete(self, offset: int) -> None:
        """End the waits for `offset` and lower offsets."""
        while self._waiting and self._waiting[0][0] <= offset:
            future = heapq.heappop(self._waiting)[2]
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """End every current wait with `error`.  Later waits are not affected."""
        waiting, self._waiting = self._waiting, []
        for _, _, future in sorted(waiting):
            if not future.done():
                future.set_exception(error)


class ChangeSignal:
    """Wakes all tasks that wait for the next change."""

    def __init__(self) -> None:
        self._event: asyncio.Event | None = None  # while tasks wait

    async def wait(self) -> None:
        """Wait until the next `notify`.  The caller sets the deadline."""
        if self._event is None:
            self._event = asyncio.Event()
        await self._event.wait()

    def notify(self) -> None:
        """Wake all tasks that wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None
