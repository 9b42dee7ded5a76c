"""How many bytes a second may be copied: a bucket that may be overdrawn once, and is then waited for.

What a fetch brings is known only when it is there, so it is counted afterwards; while the bucket is overdrawn nothing
more is asked for.  On average the rate is kept, whatever the size of a reply.  What was not used is kept for a second.
"""

from __future__ import annotations

NONE = -1
KEPT_S = 1.0


class Throttle:
    """rate: bytes a second; below 0: as fast as it goes; 0: nothing at all."""

    def __init__(self) -> None:
        self.rate = NONE
        self._level = 0.0
        self._at_s = 0.0

    def set_rate(self, rate: int, now_s: float) -> bool:
        """Another rate from now on; what is overdrawn is paid off at that.  Returns whether it is another."""
        if rate == self.rate:
            return False
        self._refill(now_s)
        if rate < 0 or self.rate < 0:
            self._level = 0.0
        self.rate = rate
        self._level = min(self._level, rate * KEPT_S)
        return True

    def spend(self, size: int, now_s: float) -> None:
        """So much has been copied."""
        if self.rate >= 0:
            self._refill(now_s)
            self._level -= size

    def wait_s(self, now_s: float) -> float | None:
        """How long nothing may be asked for: 0.0 = go on, None = until the rate changes."""
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
