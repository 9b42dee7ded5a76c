"""Runs the asynchronous clients for synchronous callers: one event loop per process, with its connections.

Spark forks its Python workers, uses each worker for many tasks, and calls plain functions.  So the runner is created at
its first use, and stored under the process id.  A forked process does not use its parent's sockets, and the next task
in the same worker finds its connections open.

The loop runs only while a caller waits in `run`, `start` or `cancel`.  Between two calls, brokers still answer the
requests that were sent, and the answers wait in the socket.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from quorumlog.client.cluster import Cluster

T = TypeVar("T")
_CLEAN_UP_TIMEOUT_S = 5.0


class Runner:
    """The event loop of this process.  Two threads must not use it concurrently."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._clusters: dict[tuple[tuple[str, ...], str], Cluster] = {}

    def cluster(self, bootstrap: Sequence[str], client_id: str) -> Cluster:
        """Return the client for `bootstrap` (HOST:PORT each).  Its connections stay open, and later calls return it."""
        key = (tuple(bootstrap), client_id)
        if key not in self._clusters:
            self._clusters[key] = Cluster(bootstrap, client_id=client_id)
        return self._clusters[key]

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work`, and run the loop for two turns.

        If the connection for the first request of `work` is open, this request is sent.
        """
        task = self.loop.create_task(work)
        for _ in range(2):  # the first turn writes to the buffer, the second to the socket
            self.loop.run_until_complete(asyncio.sleep(0))
        return task

    def run(self, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
        """Run `work` to its end, and return its result.  An interrupt cancels `work`, and waits for its cleanup."""
        task = work if isinstance(work, asyncio.Task) else self.loop.create_task(work)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            self.cancel(task)
            raise

    def cancel(self, task: asyncio.Task[T]) -> None:
        """Cancel `task` if it is still running, and wait up to 5 s for its end."""
        if not task.done():
            task.cancel()
            self.loop.run_until_complete(asyncio.wait([task], timeout=_CLEAN_UP_TIMEOUT_S))
        if task.done() and not task.cancelled():
            task.exception()  # mark as retrieved


_runners: dict[int, Runner] = {}


def runner() -> Runner:
    """Return this process's runner."""
    found = _runners.get(os.getpid())
    if found is None:
        found = _runners[os.getpid()] = Runner()  # the parent's runner stays: to close it would affect the parent
    return found


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
