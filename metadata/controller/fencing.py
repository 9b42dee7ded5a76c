"""The active controller's fencing of brokers whose session or process has ended.

`metadata.controller.refusals` detects that a process has ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

from metadata.control import brokers
from metadata.control.decision import Decision
from metadata.controller.background import NEXT_TURN, Background
from metadata.controller.sessions import Session, Sessions
from metadata.image import ClusterImage
from quorumlog.runtime.logging import get_logger

Decide = Callable[[Callable[[ClusterImage], Decision[Any]]], Decision[Any]]

LATE_SHARE = 4
"""A check renews all sessions if it is late by more than the session timeout divided by this number."""


class Why(Enum):
    """The reason for fencing a broker; the values are those of the metric's label."""

    SESSION_ENDED = "session_timeout"
    PROCESS_ENDED = "refused_connections"


_WORDS = {Why.SESSION_ENDED: "no heartbeat", Why.PROCESS_ENDED: "its process has ended: connections are refused"}

logger = get_logger("controller")


class Fencing:
    """The job that fences brokers.

    decide: makes one decision of the controller's own.  It raises the exceptions that a `background.Job` handles.
    counts: number of fenced brokers, by reason; increased by this object.
    """

    def __init__(
        self, background: Background, sessions: Sessions, timeout_s: float, decide: Decide, counts: Counter[str]
    ) -> None:
        self.sessions = sessions
        self._timeout_s = timeout_s
        self._decide = decide
        self._counts = counts
        self._under_way: tuple[int, Why] | None = None  # a broker whose fencing takes several batches, and the reason
        self._gone: dict[int, tuple[Session, float]] = {}  # broker id → its session, and its last heartbeat (loop time)
        self._job = background.job("fencing", self._step)
        self.sessions_changed()

    def sessions_changed(self) -> None:
        """Set the job's timer, since a session may have begun.

        A timer that is already set stays.  When it fires, the job examines all sessions and sets the timer again.
        """
        if not self._job.is_set:
            after_s = self._until_first_ends()
            if after_s is not None:
                self._job.wake(after_s)

    def process_ended(self, broker_id: int, session: Session, heard_at: float) -> None:
        """Fence a broker whose process has ended, unless it has sent a heartbeat after `heard_at` (loop time)."""
        self._gone[broker_id] = (session, heard_at)
        self._job.wake()

    def _until_first_ends(self) -> float | None:
        first = self.sessions.first_to_expire()
        return None if first is None else max(0.0, first[0] - asyncio.get_running_loop().time())

    def _step(self) -> float | None:
        """Append one batch for one broker; the next batch, or the next broker, has its own turn."""
        if self._under_way is not None:
            return self._fence(*self._under_way)
        now = asyncio.get_running_loop().time()
        if self._job.late_s > self._timeout_s / LATE_SHARE:
            logger.warning("sessions renewed, because this process was delayed", late_ms=round(self._job.late_s * 1000))
            self.sessions.renew(now)
        for broker_id, (session, heard_at) in list(self._gone.items()):
            if self.sessions.get(broker_id) is session and session.last_contact == heard_at:
                return self._fence(broker_id, Why.PROCESS_ENDED)
            del self._gone[broker_id]
        first = self.sessions.first_to_expire()
        if first is not None and first[0] <= now:
            return self._fence(first[1], Why.SESSION_ENDED)
        return self._until_first_ends()

    def _fence(self, broker_id: int, why: Why) -> float:
        decision = self._decide(lambda image: brokers.fence(image, broker_id))
        self._under_way = (broker_id, why) if decision.more else None
        if not decision.more:
            session = self.sessions.get(broker_id)
            self.sessions.drop(broker_id)
            if decision.records:
                self._counts[why.value] += 1
                self._tell(broker_id, why, session, len(decision.records) - 1)
        return NEXT_TURN

    def _tell(self, broker_id: int, why: Why, session: Session | None, changes: int) -> None:
        facts: dict[str, Any] = {"broker_id": broker_id, "changes": changes}
        if session is not None:
            facts["silent_ms"] = round((asyncio.get_running_loop().time() - session.last_contact) * 1000)
            if why is Why.PROCESS_ENDED:
                facts["refused_by"] = ",".join(f"{host}:{port}" for host, port in session.accepted)
        logger.warning(f"broker fenced: {_WORDS[why]}", **facts)
