"""A limit of CPU time for one run, because a program that loops without waiting never lets virtual time pass.

The limit can only end a run: until then the run does not notice it, so results stay a function of plan and code.  A
signal of the CPU timer of this process interrupts the loop, wherever it is.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from simulation.kernel.loop import SimulatedLoop

CPU_MAX_S = 120.0
"""The limit of a run, in seconds.  Most runs take less than 1 s, runs with the highest number of events about 40 s."""
AGAIN_S = 1.0
"""CPU time after which the signal is repeated, in case a program that swallows every exception continues."""
FRAMES_MAX = 8
HANG = "L6: hang"
"""The beginning of each violation by this limit."""

_PROJECT = Path(__file__).parents[2]


class HangError(KeyboardInterrupt):
    """A run has used all its CPU time.

    It is a `KeyboardInterrupt`, because asyncio passes that to the caller of the loop.  Asyncio would store most other
    exceptions in the task in which they are raised.
    """


@contextmanager
def cpu_limited(loop: SimulatedLoop, limit_s: float = CPU_MAX_S) -> Iterator[None]:
    """Limit the CPU time of the context, which runs `loop`.  Without effect outside the main thread.

    Raises:
        HangError: the limit was reached; the message names the virtual time, the process, and the code that ran.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_: int, frame: FrameType | None) -> None:
        at = f"at {loop.true_time():.3f} s of virtual time, in {loop.running or 'no process'}"
        raise HangError(f"{HANG}: more than {limit_s:g} s of CPU time {at}: {_where(frame)}")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, limit_s, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _where(frame: FrameType | None) -> str:
    """Return the innermost calls of a stack, beginning with the last."""
    calls: list[str] = []
    while frame is not None and len(calls) < FRAMES_MAX:
        code = frame.f_code
        path = Path(code.co_filename)
        name = path.relative_to(_PROJECT) if path.is_relative_to(_PROJECT) else path.name
        calls.append(f"{name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(calls)
