"""Functions in processes of their own, so that the clients of a measurement do not share one interpreter.

The function gets a `Link` as its first argument.  It calls `link.ready.set()` once it is prepared, may wait for
`link.go`, and puts its answers into `link.answers`.  If it fails, the next look of the parent raises.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from queue import Empty
from typing import Any, Final, NamedTuple

LOOK_S: Final = 0.5
"""Time between two looks whether a process that the parent waits for still runs."""
END_S: Final = 10.0
"""Time for a process to end after its last answer.  Then it is killed."""


class Link(NamedTuple):
    ready: Event
    go: Event
    answers: Queue[Any]


class _Failure(NamedTuple):
    text: str


class Helper:
    """The parent's side of a function that runs in another process."""

    def __init__(self, process: SpawnProcess, link: Link) -> None:
        assert process.pid is not None
        self.pid: Final = process.pid
        self._process = process
        self._link = link

    @property
    def has_answered(self) -> bool:
        """Return whether an answer, or a failure, waits for `answer`."""
        return not self._link.answers.empty()

    def wait_ready(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while not self._link.ready.wait(LOOK_S):
            self.check()
            assert time.monotonic() < until, f"{self._process.name} was not ready within {timeout_s:g} s"

    def go(self) -> None:
        self._link.go.set()

    def answer(self, timeout_s: float) -> Any:
        """Return the next answer.

        Raises:
            RuntimeError: the function failed or ended without an answer, or `timeout_s` are over.
        """
        until = time.monotonic() + timeout_s
        while True:
            has_ended = not self._process.is_alive()  # before the look for its last answer
            try:
                found = self._link.answers.get(timeout=LOOK_S)
            except Empty:
                if has_ended:
                    raise RuntimeError(f"{self._process.name} ended without an answer") from None
                if time.monotonic() > until:
                    raise RuntimeError(f"{self._process.name} did not answer within {timeout_s:g} s") from None
                continue
            if isinstance(found, _Failure):
                raise RuntimeError(f"{self._process.name} failed: {found.text}")
            return found

    def check(self) -> None:
        """Raise RuntimeError if the process has ended."""
        if not self._process.is_alive():
            self.answer(LOOK_S)
            raise RuntimeError(f"{self._process.name} ended too early")


@contextmanager
def helper(function: Callable[..., None], *arguments: Any) -> Iterator[Helper]:
    """Run `function(link, *arguments)`.  At the end of the context, wait for the process; after an error, kill it."""
    context = multiprocessing.get_context("spawn")
    link = Link(context.Event(), context.Event(), context.Queue())
    process = context.Process(target=_run, args=(function, link, *arguments), name=function.__qualname__, daemon=True)
    process.start()
    try:
        yield Helper(process, link)
        process.join(END_S)
    finally:
        process.kill()
        process.join()


def _run(function: Callable[..., None], link: Link, *arguments: Any) -> None:
    try:
        function(link, *arguments)
    except Exception as error:
        link.answers.put(_Failure(repr(error)))
        raise
