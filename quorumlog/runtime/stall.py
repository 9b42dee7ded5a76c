"""A disk that hangs: what is asked of it ends in time, as a failure, so that somebody else takes over what is on it.

A process that was itself stopped, or swapped out, must not take that for its disk's fault: the time is counted in
pulses, and one that comes late is one, however late it is.  The last one must come in time, so that what is done by
then is heard of first.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STALL_S = 60.0
PULSES = 8


@asynccontextmanager
async def no_longer_than(stall_s: float) -> AsyncIterator[None]:
    """Limit the body, which waits for a thread that writes; the thread itself cannot be stopped.

    Raises:
        TimeoutError: an `OSError`, as from a disk that says so itself.
    """
    loop = asyncio.get_running_loop()
    pulse_s = stall_s / PULSES

    first = loop.time() + pulse_s
    timer = loop.call_later(pulse_s, lambda: pulse(PULSES - 1, first))

    def pulse(left: int, due: float) -> None:
        nonlocal timer
        if left > 0 or loop.time() - due > pulse_s:
            timer = loop.call_later(pulse_s, pulse, max(left - 1, 0), loop.time() + pulse_s)
        else:
            limit.reschedule(loop.time())

    try:
        async with asyncio.timeout(None) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(errno.ETIMEDOUT, f"not done within {stall_s:g} s: the disk hangs") from None
    finally:
        timer.cancel()
