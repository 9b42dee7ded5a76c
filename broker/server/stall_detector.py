"""Notices that this process was held up: stopped, swapped out, starved, for longer than a broker may be silent.

Theory of operation
-------------------
A process that was stopped goes on in the middle of what it did.  Its sockets are full of requests, and it still knows
itself as the leader of what others may have been leading for a while.  It cannot acknowledge a write to all replicas
then, since those follow somebody else; but it could one to itself alone (acks=1), which the new leader's history will
cut off, and it could tell where the log ended when it was stopped.

So a pulse is taken, and who finds that the last one is too long ago, the pulse itself or the first request, says that
the process was held up.  From then on it serves nobody as leader until the controller has answered a heartbeat that was
sent after it woke up, and said that it is unfenced.  If no controller can be reached, the time of one heartbeat is all
that is waited: without a quorum brokers go on serving.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PULSES = 8
"""In the time that makes a hold-up."""


class StallDetector:
    """`held_up` counts the hold-up that is not over, 0 for none.

    limit_s: how long without a pulse makes one.
    on_held_up: called when it is noticed, with how long it was.
    """

    def __init__(self, limit_s: float, on_held_up: Callable[[float], None]) -> None:
        self.held_up = 0
        self._limit_s = limit_s
        self._on_held_up = on_held_up
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen_at = self._loop.time()
        self._pulse()

    def is_awake(self) -> bool:
        """Whether this process may serve, as far as this goes; asked by every request."""
        loop = self._loop
        if loop is None:
            return True
        late_s = loop.time() - self._seen_at
        if late_s > self._limit_s:
            self._seen_at = loop.time()
            self._count += 1
            self.held_up = self._count
            self._on_held_up(late_s)
        return self.held_up == 0

    def is_over(self, hold_up: int) -> None:
        """What was asked of the controller during this hold-up is answered, or will not be."""
        if hold_up == self.held_up:
            self.held_up = 0

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pulse(self) -> None:
        assert self._loop is not None, "start comes first"
        self.is_awake()
        self._seen_at = self._loop.time()
        self._timer = self._loop.call_later(self._limit_s / PULSES, self._pulse)
