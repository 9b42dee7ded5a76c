"""The asynchronous clients for synchronous callers: one loop and its connections for each process.

Spark forks its Python workers, uses each for many tasks, and calls plain functions.  So everything is made at first use
and kept under the process id: a fork finds nothing of its parent's, whose sockets it must not touch, and the next task
in the same worker finds its connections open.

The loop only turns while somebody waits in `run`.  A request that was sent before goes on its way meanwhile, and its
answer waits in the socket.
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
    """The loop of this process; not to be used by two threads at once."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._clusters: dict[tuple[tuple[str, ...], str], Cluster] = {}

    def cluster(self, bootstrap: Sequence[str], client_id: str) -> Cluster:
        """The cluster behind `bootstrap` (HOST:PORT each), the same one each time: its connections outlive a task."""
        key = (tuple(bootstrap), client_id)
        if key not in self._clusters:
            self._clusters[key] = Cluster(bootstrap, client_id=client_id)
        return self._clusters[key]

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin, and go as far as can be gone without waiting: a request has left when this returns."""
        task = self.loop.create_task(work)
        for _ in range(2):  # the first turn writes, the second lets the loop hand it to the socket
            self.loop.run_until_complete(asyncio.sleep(0))
        return task

    def run(self, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
        """The result of `work`; an interrupt cancels it, and waits until it has cleaned up."""
        task = work if isinstance(work, asyncio.Task) else self.loop.create_task(work)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            self.cancel(task)
            raise

    def cancel(self, task: asyncio.Task[T]) -> None:
        """End `task`, if it has not ended yet."""
        if not task.done():
            task.cancel()
            self.loop.run_until_complete(asyncio.wait([task], timeout=_CLEAN_UP_TIMEOUT_S))
        if task.done() and not task.cancelled():
            task.exception()  # seen


_runners: dict[int, Runner] = {}


def runner() -> Runner:
    """This process's runner."""
    found = _runners.get(os.getpid())
    if found is None:
        found = _runners[os.getpid()] = Runner()  # a parent's, copied by a fork, stays: closing it would disturb him
    return found


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
