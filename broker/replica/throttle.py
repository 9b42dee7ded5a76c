"""The throttle of reassignments: limits the rate of copies to replicas that are being added to this broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.core.throttle import Throttle


class ReplicationThrottle:
    """The common rate limit of the replicas that are being added to this broker.

    release: called when waiting replicas may continue.
    """

    PORTION_MIN = 4096
    WAIT_MIN_S = 0.01
    """Smaller portions and shorter waits are rounded up, so that no replica is woken for a few bytes."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._throttle = Throttle()
        self._release = release
        self._timer: asyncio.TimerHandle | None = None

    def set_rate(self, rate: int) -> None:
        """Limit to `rate` bytes per second; a negative rate means no limit."""
        if self._throttle.set_rate(rate, asyncio.get_running_loop().time()):
            self.stop()
            self._release()

    def spend(self, size: int) -> None:
        """Count `size` copied bytes."""
        self._throttle.spend(size, asyncio.get_running_loop().time())

    def portion(self, most: int) -> int:
        """Return the number of bytes to request at a time.

        The rate permits this number in 0.1 s.  It is raised to `PORTION_MIN`, and never exceeds `most`.
        """
        rate = self._throttle.rate
        return most if rate < 0 else min(most, max(self.PORTION_MIN, rate // 10))

    def must_wait(self) -> bool:
        """Return whether the rate is exceeded, so that nothing may be requested now; `release` is then called later."""
        loop = asyncio.get_running_loop()
        wait_s = self._throttle.wait_s(loop.time())
        if wait_s == 0.0:
            return False
        if wait_s is not None and self._timer is None:
            self._timer = loop.call_later(max(wait_s, self.WAIT_MIN_S), self._on_time)
        return True

    def _on_time(self) -> None:
        self._timer = None
        self._release()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
