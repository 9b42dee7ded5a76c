"""Logs what holds the event loop: a callback that computes for too long, a wait for a disk, a garbage collection.

While the loop is held, nothing is answered.  So each long hold is part of the latency of every request that waits then.
A timer of the loop, which is due four times in each limit, is late by the length of a hold.  Once it is late by the
limit, a thread notes the stack of the loop's thread.  The timer then logs the line, which has

    held_ms        how late the timer was
    processor_ms   processor time of the loop's thread meanwhile: if it is far below `held_ms`, the thread waited for a
                   disk, for a lock, or for a processor
    collected_ms   the part that the garbage collector took, in full collections and others
    stack          the innermost calls, innermost last, without those of the import system.  If it is None, or ends in
                   the loop itself, the process did not run: it was suspended, or got no processor

The timer wakes the process 4 times in each limit (200 times a second at 20 ms), so the watch is off by default.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quorumlog.runtime.clock import elapsed_s, processor_s
from quorumlog.runtime.logging import LineBudget, get_logger

BEATS = 4
"""How often the timer is due in each limit.  So a hold of 1.25 limits is always noticed."""
CALLS = 8
"""How many calls a line shows."""

logger = get_logger("run")


@contextmanager
def watched_loop(limit_s: float) -> Iterator[None]:
    """Log each hold of the running loop by at least `limit_s`, during the block.  0: watch nothing."""
    if not limit_s:
        yield
        return
    watch = _LoopWatch(asyncio.get_running_loop(), limit_s)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class _LoopWatch:
    """The timer and the thread.  `_due_s` and `_stack` are each assigned as a whole, so the threads share no lock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit_s: float) -> None:
        self._loop = loop
        self._limit_s = limit_s
        self._thread_id = threading.get_ident()
        self._budget = LineBudget(logger, elapsed_s)
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, name="loop-watch", daemon=True)
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._stack: str | None = None
        self._processor_s = 0.0
        self._collection_began_s = 0.0
        self._collected_s = 0.0

    def start(self) -> None:
        self._due_s = elapsed_s() + self._limit_s
        self._looking.start()
        gc.callbacks.append(self._collect)
        self._wait()

    def stop(self) -> None:
        gc.callbacks.remove(self._collect)
        assert self._timer is not None
        self._timer.cancel()
        self._ended.set()
        self._looking.join()

    def _wait(self) -> None:
        """Begin to wait for the next time at which the timer is due."""
        interval_s = self._limit_s / BEATS
        self._stack, self._collected_s = None, 0.0
        self._processor_s = processor_s()
        self._due_s = elapsed_s() + interval_s
        self._timer = self._loop.call_later(interval_s, self._beat)

    def _beat(self) -> None:
        held_s = elapsed_s() - self._due_s
        if held_s >= self._limit_s:
            self._budget.warning(
                "the event loop was held",
                held_ms=_ms(held_s),
                processor_ms=_ms(processor_s() - self._processor_s),
                collected_ms=_ms(self._collected_s),
                stack=self._stack,
            )
        self._wait()

    def _look(self) -> None:
        """Note the stack of the loop's thread, once in each hold, as early as possible."""
        looked_at = 0.0
        while not self._ended.wait(self._limit_s / BEATS):
            due_s = self._due_s
            if due_s != looked_at and elapsed_s() - due_s >= self._limit_s:
                looked_at = due_s
                stack = _stack_of(self._thread_id)
                if self._due_s == due_s:  # otherwise the hold has ended, and the stack shows something else
                    self._stack = stack

    def _collect(self, phase: str, _: dict[str, int]) -> None:
        """Note the start or the end of a garbage collection.  One in another thread holds the loop as well."""
        now_s = elapsed_s()
        if phase == "start":
            self._collection_began_s = now_s
        else:
            self._collected_s += now_s - self._collection_began_s


def _stack_of(thread_id: int) -> str | None:
    frame = sys._current_frames().get(thread_id)
    if frame is None:
        return None
    calls = [call for call in traceback.extract_stack(frame) if not call.filename.startswith("<frozen importlib")]
    return " > ".join(
        f"{'/'.join(Path(call.filename).parts[-2:])}:{call.lineno} {call.name}" for call in calls[-CALLS:]
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
