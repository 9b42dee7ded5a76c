"""The registration and heartbeats of a broker.  Pure: decides which request to send next, and when.

Theory of operation
-------------------
STARTING → (registered) → FENCED ⇄ RUNNING → DRAINING → STOPPED.

A process is one *incarnation*, whose id is drawn at start.  It registers until it is accepted; the broker epoch in the
reply names the registration.  Then it heartbeats: at first immediately, then in each interval, and immediately when the
controller should act on a change.  Such a change is a failed directory, a requested stop, or metadata that a fenced
broker has applied, so that the broker is unfenced before the next interval.  If a reply calls its epoch stale,
the broker registers again.  No other incarnation can have taken the broker id while this one holds the lock of the data
directory.  So the controller has lost this registration, but has not replaced it.  A duplicate broker id is refused at
registration and needs an operator.

To stop, the broker heartbeats with `want_shutdown` at the (shorter) draining interval.  It stops when the controller
releases it, having moved the leaderships, or when the deadline passes.  It also stops when no controller has answered
for longer than an election takes, because the whole cluster may be stopping.  In each case the process may end; flushed
records are safe.

A missing reply and a retriable refusal are treated alike: the broker retries after a back-off.  The back-off starts
small, because most failures are short.  It doubles up to the heartbeat interval, because a controller election takes
longer.
"""

from __future__ import annotations

from enum import Enum, auto

import msgspec

NO_EPOCH = -1


class Stage(Enum):
    STARTING = auto()
    FENCED = auto()
    RUNNING = auto()
    DRAINING = auto()
    STOPPED = auto()


class Register(msgspec.Struct, frozen=True):
    """Send the registration."""


class Beat(msgspec.Struct, frozen=True):
    """Send a heartbeat."""

    want_shutdown: bool


class Wait(msgspec.Struct, frozen=True):
    """Send nothing before `until_ms`, unless an event is reported."""

    until_ms: int


class End(msgspec.Struct, frozen=True):
    """End the broker.  released: the controller released it, or it had no registration; False after a timeout."""

    released: bool


Action = Register | Beat | Wait | End

BACKOFF_MIN_MS = 50
DRAINING_INTERVAL_MS = 100
DRAINING_SILENCE_MS = 8_000
"""Time without an answer after which a stopping broker stops without being released."""


class Lifecycle:
    """The life cycle of one broker.  The caller performs `next_action` and reports the reply, one request at a time."""

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._due_ms = now_ms
        self._failures = 0
        self._deadline_ms: int | None = None
        self._stop_after_ms = 0
        self._released = False
        self.stage = Stage.STARTING
        self.epoch = NO_EPOCH
        self.applied_offset = 0
        self.fenced = True
        self.leaders_left = 0

    @property
    def registered(self) -> bool:
        return self.epoch != NO_EPOCH

    def next_action(self, now_ms: int) -> Action:
        """Return what to do now: send a request, wait, or end."""
        if self.stage is Stage.STOPPED:
            return End(self._released)
        if self._deadline_ms is not None and now_ms >= min(self._deadline_ms, self._stop_after_ms):
            self.stage = Stage.STOPPED
            return End(released=False)
        if self._deadline_ms is not None and not self.registered:
            # Without a registration there is nothing to hand over.
            self.stage = Stage.STOPPED
            return End(released=True)
        if now_ms < self._due_ms:
            if self._deadline_ms is None:
                return Wait(self._due_ms)
            return Wait(min(self._due_ms, self._deadline_ms, self._stop_after_ms))
        return Beat(self._deadline_ms is not None) if self.registered else Register()

    # -- events

    def on_registered(self, epoch: int, now_ms: int) -> None:
        """Process an accepted registration.  epoch: the broker epoch in the reply."""
        self.epoch = epoch
        self.fenced = True
        self._failures = 0
        self._due_ms = now_ms
        if self._deadline_ms is None:
            self.stage = Stage.FENCED

    def on_applied(self, offset: int, now_ms: int) -> None:
        """Note that metadata up to `offset` (exclusive) has been applied."""
        passed = self.applied_offset <= self.epoch < offset
        self.applied_offset = max(self.applied_offset, offset)
        if passed or (self.registered and self.fenced):
            # A broker that was fenced later also heartbeats immediately.  The controller unfences it when a heartbeat
            # shows that it has applied the metadata.
            self._due_ms = now_ms

    def on_beat(self, fenced: bool, should_shutdown: bool, leaders_left: int, now_ms: int) -> None:
        """Process the reply to an accepted heartbeat."""
        self._failures = 0
        self.fenced = fenced
        self.leaders_left = leaders_left
        if self._deadline_ms is not None:
            self._stop_after_ms = now_ms + DRAINING_SILENCE_MS
            self._due_ms = now_ms + min(DRAINING_INTERVAL_MS, self._interval_ms)
            if should_shutdown:
                self._released = True
                self.stage = Stage.STOPPED
            return
        self.stage = Stage.FENCED if fenced else Stage.RUNNING
        self._due_ms = now_ms + self._interval_ms

    def on_stale(self, now_ms: int) -> None:
        """Register again, because the controller no longer knows this registration."""
        self.epoch = NO_EPOCH
        self.fenced = True
        self._due_ms = now_ms
        if self._deadline_ms is None:
            self.stage = Stage.STARTING

    def on_no_reply(self, now_ms: int) -> None:
        """Retry after the back-off, because there was no reply or a retriable refusal."""
        self._failures += 1
        self._due_ms = now_ms + min(self._interval_ms, BACKOFF_MIN_MS << min(self._failures - 1, 10))

    def on_urgent(self, now_ms: int) -> None:
        """Send the next heartbeat immediately."""
        self._due_ms = now_ms

    def stop(self, deadline_ms: int, now_ms: int) -> None:
        """Begin the controlled shutdown.  It ends by `deadline_ms`, even without a release.  Later calls do nothing."""
        if self._deadline_ms is None:
            self._deadline_ms = deadline_ms
            self._stop_after_ms = now_ms + DRAINING_SILENCE_MS
            self.stage = Stage.DRAINING
            self._due_ms = now_ms
