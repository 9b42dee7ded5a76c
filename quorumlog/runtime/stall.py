"""A disk that hangs: what is asked of it ends in time, as a failure, so that somebody else takes over what is on it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

STALL_S = 60.0


@asynccontextmanager
async def no_longer_than(stall_s: float) -> AsyncIterator[None]:
    """Limit the body, which waits for a thread that writes; the thread itself cannot be stopped.

    Raises:
        TimeoutError: an `OSError`, as from a disk that says so itself.
    """
    try:
        async with asyncio.timeout(stall_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(errno.ETIMEDOUT, f"not done within {stall_s:g} s: the disk hangs") from None
