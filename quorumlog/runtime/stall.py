"""Time limits for a disk that hangs, so that its operations fail and other nodes can take over.

If the process itself was stopped or swapped out, the disk must not be blamed.  So the time is counted in pulses: a
pulse that comes late counts once, however late it is.  The last pulse must be on time, so that results that have
arrived are handled first.
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
    """Limit the time of the body, which waits for a thread that uses a disk; the thread itself cannot be stopped.

    Raises:
        TimeoutError: the body took longer.  It is an `OSError`, so callers treat it as a failure of the disk.
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
