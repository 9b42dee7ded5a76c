"""The background tasks of a client, which end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class BackgroundTasks:
    """Tasks that run until `stop`.

    on_bug: called with the error of a task that failed.  Tasks handle all expected errors, so such an error is a bug.
    """

    def __init__(self, on_bug: Callable[[BaseException], None]) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_bug = on_bug

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel all tasks, and return them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks

    async def stop(self) -> None:
        """Cancel all tasks, and return once they have ended."""
        if tasks := self.cancel():
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._on_bug(bug)
