"""A limit on copied bytes per second: a token bucket that one reply may overdraw.

The size of a fetch reply is known only on its arrival, so it is counted afterwards.  While the bucket is overdrawn, no
further fetch is sent.  So the average rate is kept, regardless of the size of a reply.  Unused bytes are kept for a
second.
"""

from __future__ import annotations

NONE = -1
KEPT_S = 1.0


class Throttle:
    """The bucket.  rate: bytes per second; below 0: no limit; 0: nothing may be copied."""

    def __init__(self) -> None:
        self.rate = NONE
        self._level = 0.0
        self._at_s = 0.0

    def set_rate(self, rate: int, now_s: float) -> bool:
        """Change the rate; overdrawn bytes are paid off at the new rate.  Return whether the rate changed."""
        if rate == self.rate:
            return False
        self._refill(now_s)
        if rate < 0 or self.rate < 0:
            self._level = 0.0
        self.rate = rate
        self._level = min(self._level, rate * KEPT_S)
        return True

    def spend(self, size: int, now_s: float) -> None:
        """Count `size` copied bytes."""
        if self.rate >= 0:
            self._refill(now_s)
            self._level -= size

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds to wait before the next fetch; None if no fetch is permitted until the rate changes."""
        if self.rate < 0:
            return 0.0
        if self.rate == 0:
            return None
        self._refill(now_s)
        return -self._level / self.rate if self._level < 0 else 0.0

    def _refill(self, now_s: float) -> None:
        if self.rate > 0:
            self._level = min(self.rate * KEPT_S, self._level + self.rate * max(0.0, now_s - self._at_s))
        self._at_s = now_s
