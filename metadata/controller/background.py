"""Background work of an active controller, one step at a time.

A step decides on the pending image, appends at most one batch, and returns after how long it wants to run again.  Every
step runs through a `Job`, in a turn of the loop of its own, so that requests and heartbeats go between any two.

An append may be refused although this node still leads: it is paused, hands leadership over, or its disk is behind.
That passes, often within a second, and the leadership goes on.  The job therefore runs a refused step again, until it
succeeds or the reign ends.  A step never sees a refusal, so no step can forget to set its timer again; in return it
must be repeatable: what it remembers changes only after its append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quorum.ports import CannotAppendNowError, NotLeaderError
from quorumlog.runtime.logging import get_logger

log = get_logger("controller")

RETRY_S = 0.25
"""After this time a step whose append was refused for now runs again."""

TOO_LARGE_RETRY_S = 60.0
"""The same for a step that made a batch of too many bytes: others may change what it decides on."""

NEXT_TURN = 0.0
"""What a step returns that has more to do: it runs again in the next turn of the loop."""

Step = Callable[[], float | None]
"""Returns the seconds until it wants to run again; None: when its job is woken."""


class BatchTooLargeError(Exception):
    """A decision's records are more bytes than a batch may have; nothing was appended."""


class Background:
    """All jobs of one reign."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._on_stop: list[Callable[[], None]] = []

    def job(self, name: str, step: Step) -> Job:
        """A new job, which runs when it is woken for the first time."""
        job = Job(name, step)
        self._jobs.append(job)
        return job

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the reign is over."""
        self._on_stop.append(callback)

    def stop(self) -> None:
        """End every job for good: the reign is over."""
        for job in self._jobs:
            job.stop()
        for callback in self._on_stop:
            callback()


class Job:
    """One kind of background work.  Made by `Background.job`.

    late_s: for the step that runs, how much later it runs than it wanted to.
    """

    def __init__(self, name: str, step: Step) -> None:
        self.late_s = 0.0
        self._name = name
        self._step = step
        self._handle: asyncio.Handle | None = None
        self._due_at = 0.0  # loop time
        self._is_refused = False
        self._is_stopped = False

    @property
    def is_set(self) -> bool:
        """Whether the step is going to run by itself."""
        return self._handle is not None

    def wake(self, after_s: float = NEXT_TURN) -> None:
        """Run the step after this time, or earlier if an earlier time is set already."""
        if self._handle is None or _now() + after_s < self._due_at:
            self.reset(after_s)

    def reset(self, after_s: float) -> None:
        """Run the step after this time, whatever was set before."""
        self._cancel()
        if self._is_stopped:
            return
        loop = asyncio.get_running_loop()
        self._due_at = loop.time() + after_s
        self._handle = loop.call_at(self._due_at, self._run) if after_s > 0 else loop.call_soon(self._run)

    def stop(self) -> None:
        """Never run again."""
        self._is_stopped = True
        self._cancel()

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self.late_s = _now() - self._due_at
        try:
            after_s = self._step()
            self._is_refused = False
        except CannotAppendNowError as refusal:
            if not self._is_refused:
                log.info("background work waits: the quorum accepts no appends now", work=self._name, why=str(refusal))
            self._is_refused = True
            after_s = RETRY_S
        except BatchTooLargeError:
            log.error("a background batch of the controller is too large and is skipped", work=self._name)
            after_s = TOO_LARGE_RETRY_S
        except NotLeaderError:
            return  # the reign is over; whoever is told of that ends all jobs
        if after_s is not None:
            self.wake(after_s)


def _now() -> float:
    return asyncio.get_running_loop().time()
