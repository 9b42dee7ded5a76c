"""Background work of an active controller, one step at a time.

A step decides on the pending image, appends at most one batch, and returns the time after which it should run again.
Every step runs through a `Job` in its own turn of the loop, so that requests and heartbeats run between any two steps.

An append may be refused although this node still leads: the node is paused, hands leadership over, or its disk lags.
Often this passes within a second, and the leadership continues.  Therefore the job runs a refused step again until it
succeeds or the leadership ends.  A step never sees a refusal, so it cannot forget to set its timer again.  In return it
must be repeatable: it changes its own state only after the append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quorum.ports import CannotAppendNowError, NotLeaderError
from quorumlog.runtime.logging import get_logger

logger = get_logger("controller")

RETRY_S = 0.25
"""Time after which a step whose append was temporarily refused runs again.  It is not random, because such a step loads
no other node."""

TOO_LARGE_RETRY_S = 60.0
"""Time after which a step whose batch had too many bytes runs again: other requests may have changed its decision."""

NEXT_TURN = 0.0
"""A step with more work returns this, and runs again in the next turn of the loop."""

Step = Callable[[], float | None]
"""Returns the seconds until it should run again, or None if it runs again only after its job is woken."""


class BatchTooLargeError(Exception):
    """A decision's records have more bytes than a batch may have; nothing was appended."""


class Background:
    """All jobs of one leadership."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._on_stop: list[Callable[[], None]] = []

    def job(self, name: str, step: Step) -> Job:
        """Return a new job, which runs when it is first woken."""
        job = Job(name, step)
        self._jobs.append(job)
        return job

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the leadership ends."""
        self._on_stop.append(callback)

    def stop(self) -> None:
        """End every job, because the leadership has ended."""
        for job in self._jobs:
            job.stop()
        for callback in self._on_stop:
            callback()


class Job:
    """One kind of background work.  Created by `Background.job`.

    late_s: how much later than planned the current step runs.
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
        """Return whether the timer of the step is set."""
        return self._handle is not None

    def wake(self, after_s: float = NEXT_TURN) -> None:
        """Run the step after this time, or earlier if it is already due earlier."""
        if self._handle is None or _now() + after_s < self._due_at:
            self.reset(after_s)

    def reset(self, after_s: float) -> None:
        """Run the step after this time, and replace an earlier setting."""
        self._cancel()
        if self._is_stopped:
            return
        loop = asyncio.get_running_loop()
        self._due_at = loop.time() + after_s
        self._handle = loop.call_at(self._due_at, self._run) if after_s > 0 else loop.call_soon(self._run)

    def stop(self) -> None:
        """Never run the step again."""
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
                logger.info(
                    "background work waits, because the quorum accepts no appends now",
                    work=self._name,
                    why=str(refusal),
                )
            self._is_refused = True
            after_s = RETRY_S
        except BatchTooLargeError:
            logger.error("a background batch of the controller is too large and is skipped", work=self._name)
            after_s = TOO_LARGE_RETRY_S
        except NotLeaderError:
            return  # the leadership has ended, which stops all jobs
        if after_s is not None:
            self.wake(after_s)


def _now() -> float:
    return asyncio.get_running_loop().time()
