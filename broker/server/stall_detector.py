"""Detects that this process was stopped, swapped out or starved for longer than heartbeats may be missing.

Theory of operation
-------------------
A process that was stopped resumes where it was.  Its sockets are full of requests, and it still believes that it leads
partitions which others may have been leading for a while.  It cannot acknowledge a write to all replicas then, because
those follow another leader.  But it could acknowledge a write with acks=1, which the new leader's history truncates
later, and it could report where the log ended when it was stopped.

So the process notes the time at regular intervals.  The timer or the first request, whichever comes first, finds that
the last note is too old.  From then on the broker serves no client as leader.  This ends when a controller that a
majority of the voters has confirmed since then reports that the broker is unfenced.  If no controller can be reached,
the broker waits for the timeout of one heartbeat only: brokers serve without a quorum.
"""

from __future__ import annotations

import asyncio

from broker.core.events import Event

PULSES = 8
"""Number of times that the time is noted within the shortest stall."""


class StallDetector:
    """Detects stalls of this process.  limit_s: the shortest stall that counts.

    stalled: reported with the length of the stall in seconds, when it is noticed.
    current: the number of the stall that is not over; 0 if there is none.
    """

    def __init__(self, limit_s: float) -> None:
        self.stalled: Event[[float]] = Event()
        self.current = 0
        self._limit_s = limit_s
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen_at = 0.0
        self._noticed_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._seen_at = self._loop.time()
        self._pulse()

    def is_awake(self) -> bool:
        """Return whether this process may serve, because it is not in a stall.

        Every request calls this, so the first one after a stall detects it.
        """
        loop = self._loop
        if loop is None:
            return True
        late_s = loop.time() - self._seen_at
        if late_s > self._limit_s:
            self._seen_at = self._noticed_at = loop.time()
            self._count += 1
            self.current = self._count
            self.stalled(late_s)
        return self.current == 0

    def end(self, stall: int) -> None:
        """End this stall, because a heartbeat that was sent during it was answered."""
        if stall == self.current:
            self.current = 0

    def give_up(self, stall: int, patience_s: float) -> None:
        """End this stall if no controller has answered for so long since it was noticed.

        Called after a heartbeat that was sent during the stall has failed.  A failure can come at once: a controller in
        the same process, for example, was suspended as well, and has been replaced.
        """
        if self._loop is not None and self._loop.time() - self._noticed_at >= patience_s:
            self.end(stall)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pulse(self) -> None:
        assert self._loop is not None, "start comes first"
        self.is_awake()
        self._seen_at = self._loop.time()
        self._timer = self._loop.call_later(self._limit_s / PULSES, self._pulse)
