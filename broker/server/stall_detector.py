"""Detects stalls of this process: it was suspended, swapped out or starved for longer than a limit.

Theory of operation
-------------------
After a stall, the process resumes where it was.  Its sockets are full of requests, and it still treats itself as the
leader of partitions that other brokers may lead by now.  It cannot acknowledge a write with acks=all, because the
followers fetch from the new leader.  But it could acknowledge a write with acks=1, which is lost when this broker
truncates its log to match the new leader's.  It could also report an outdated log end.

So the process notes the time at regular intervals.  The timer or the first request, whichever comes first, finds that
the last note is too old.  From then on the broker serves no client as leader or follower.  This ends when a controller
that a majority of the voters has confirmed since then reports that the broker is unfenced.  If no controller can be
reached, the stall ends after the timeout of one heartbeat, because brokers also serve without a quorum.
"""

from __future__ import annotations

import asyncio

from broker.core.events import Event

PULSES = 8
"""Number of times that the timer notes the time within the limit of a stall."""


class StallDetector:
    """Detects stalls of this process.  limit_s: the shortest stall that counts.

    stalled: reported with the length of the stall in seconds, when it is noticed.
    current: the number of the stall that has not ended yet, counted from 1; 0 if there is none.
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
        """Begin to note the time.  Call it in the event loop."""
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
        """End this stall, because a heartbeat that was sent during it was answered.

        Nothing changes if the stall has ended or a later one has begun.
        """
        if stall == self.current:
            self.current = 0

    def give_up(self, stall: int, patience_s: float) -> None:
        """End this stall if it was noticed at least `patience_s` seconds ago.

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
