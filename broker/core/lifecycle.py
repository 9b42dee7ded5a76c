"""The life of a broker as the controller sees it, from the broker's side.  Pure: says what to send next, and when.

Theory of operation
-------------------
STARTING → (registered, and its own registration carried out) → FENCED ⇄ RUNNING → DRAINING → STOPPED.

A process is one *incarnation*, drawn at start.  It registers until it is accepted; the reply's broker epoch names the
registration.  Then it heartbeats: at once, each interval, and at once whenever its state changes in a way that the
controller should act on: the metadata that it has carried out passed its own registration (so it is unfenced without
waiting for the next beat), a directory failed, it wants to stop.  A reply that calls its epoch stale sends it back to
registering: another incarnation cannot have taken the id while this one holds the data directory's lock, so the
controller has lost us, not replaced us; a duplicate id is refused at registration and is for a person to see.

Stopping: heartbeats with `want_shutdown` go on at the (shorter) draining interval until the controller lets go, having
moved the leaderships, the deadline passes, or no controller has answered for longer than an election takes (the whole
cluster is being stopped).  Either way the process may end; what was flushed is safe.

No reply and a retriable refusal are the same: try again, after a back-off that starts small, since a controller
election takes longer than most, and doubles up to the interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

NO_EPOCH = -1


class Stage(Enum):
    STARTING = auto()
    FENCED = auto()
    RUNNING = auto()
    DRAINING = auto()
    STOPPED = auto()


@dataclass(frozen=True, slots=True)
class Register:
    """Send the registration."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Send a heartbeat."""

    want_shutdown: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to send before `until_ms`, unless something happens."""

    until_ms: int


@dataclass(frozen=True, slots=True)
class End:
    """The process may stop.  released: the controller said so; else the deadline passed."""

    released: bool


Action = Register | Beat | Wait | End

BACKOFF_MIN_MS = 50
DRAINING_INTERVAL_MS = 100
DRAINING_SILENCE_MS = 8_000
"""How long no controller may answer before a stopping broker goes without its leave."""


class Lifecycle:
    """One request at a time: the caller carries out `next_action`, then reports the reply."""

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
        if self.stage is Stage.STOPPED:
            return End(self._released)
        if self._deadline_ms is not None and now_ms >= min(self._deadline_ms, self._stop_after_ms):
            self.stage = Stage.STOPPED
            return End(released=False)
        if self._deadline_ms is not None and not self.registered:
            # Never registered under this epoch: there is nothing to hand over.
            self.stage = Stage.STOPPED
            return End(released=True)
        if now_ms < self._due_ms:
            if self._deadline_ms is None:
                return Wait(self._due_ms)
            return Wait(min(self._due_ms, self._deadline_ms, self._stop_after_ms))
        return Beat(self._deadline_ms is not None) if self.registered else Register()

    # -- what happens

    def on_registered(self, epoch: int, now_ms: int) -> None:
        self.epoch = epoch
        self.fenced = True
        self.stage = Stage.FENCED
        self._failures = 0
        self._due_ms = now_ms

    def on_applied(self, offset: int, now_ms: int) -> None:
        """Metadata up to `offset` (exclusive) is carried out."""
        passed = self.applied_offset <= self.epoch < offset
        self.applied_offset = max(self.applied_offset, offset)
        if passed or (self.registered and self.fenced):
            # Also when it was fenced later: the heartbeat that shows that it knows is the one that unfences it.
            self._due_ms = now_ms

    def on_beat(self, fenced: bool, should_shutdown: bool, leaders_left: int, now_ms: int) -> None:
        """A heartbeat was accepted."""
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
        """The controller does not know this registration any more: make another."""
        self.epoch = NO_EPOCH
        self.fenced = True
        self._due_ms = now_ms
        if self._deadline_ms is None:
            self.stage = Stage.STARTING

    def on_no_reply(self, now_ms: int) -> None:
        """No answer, or one that says to try again."""
        self._failures += 1
        self._due_ms = now_ms + min(self._interval_ms, BACKOFF_MIN_MS << min(self._failures - 1, 10))

    def on_urgent(self, now_ms: int) -> None:
        """Something that the controller should hear now."""
        self._due_ms = now_ms

    def stop(self, deadline_ms: int, now_ms: int) -> None:
        """Begin the controlled shutdown."""
        if self._deadline_ms is None:
            self._deadline_ms = deadline_ms
            self._stop_after_ms = now_ms + DRAINING_SILENCE_MS
            self.stage = Stage.DRAINING
            self._due_ms = now_ms
