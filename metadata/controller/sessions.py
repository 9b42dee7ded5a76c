"""Soft state of the active controller: the last heartbeat of each broker, and its progress.

This state is not in the log: a new controller gives every unfenced broker a new session.  If the check itself is late,
this process was suspended or starved, and heartbeats that arrived in that time wait unread in its sockets.  Then every
session is renewed, so that a controller's own pause fences no broker.

A leadership that pauses because the network failed probably receives no heartbeats either.  Therefore no session ends
earlier than one timeout after the last pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from metadata.image import ClusterImage
from metadata.records import Record, RegisterBroker, UnregisterBroker
from quorumlog.runtime.backoff import Backoff

PROVE_AGAIN_MIN_S = 1.0
PROVE_AGAIN_MAX_S = 64.0
"""Time until a broker's addresses are tried again, if too few of them accepted a connection.  It doubles from
PROVE_AGAIN_MIN_S up to this.  Only the active controller connects, to a few addresses at once: no jitter is needed."""

Socket = tuple[str, int]
"""(host, port)"""


@dataclass(slots=True, eq=False)
class Session:
    """The heartbeats of one incarnation of a broker.  Offsets are -1 until its first heartbeat to this controller.

    The last four fields belong to `metadata.controller.refusals`.  accepted: the numeric addresses of this broker that
    have accepted a connection from this node; empty until enough of them have.  prove_at: loop time from which the
    addresses may be tried again; prove_again: its backoff.  has_task: a task is trying to connect.
    """

    broker_epoch: int
    last_contact: float  # loop time
    applied_offset: int = -1
    received_offset: int = -1
    pending_changes: int = 0
    accepted: tuple[Socket, ...] = ()
    prove_at: float = 0.0
    prove_again: Backoff = field(default_factory=partial(Backoff, PROVE_AGAIN_MIN_S, PROVE_AGAIN_MAX_S))
    has_task: bool = False


class Sessions:
    """The sessions of brokers.  All times are loop times in seconds.

    timeout: the session timeout.  resumed_at: returns the time at which the last pause of the leadership ended.
    """

    def __init__(self, image: ClusterImage, timeout: float, now: float, resumed_at: Callable[[], float]) -> None:
        self._timeout = timeout
        self._resumed_at = resumed_at
        self._by_id = {
            broker_id: Session(image.brokers[broker_id].epoch, now)
            for broker_id in sorted(image.brokers)
            if not image.brokers[broker_id].fenced
        }

    def get(self, broker_id: int) -> Session | None:
        return self._by_id.get(broker_id)

    def items(self) -> Iterable[tuple[int, Session]]:
        return self._by_id.items()

    def touch(self, broker_id: int, broker_epoch: int, now: float) -> Session:
        """Process a heartbeat of this incarnation, and return its session."""
        session = self._by_id.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self._by_id[broker_id] = Session(broker_epoch, now)
        session.last_contact = now
        return session

    def drop(self, broker_id: int) -> None:
        """End the session of a broker, if there is one."""
        self._by_id.pop(broker_id, None)

    def follow(self, records: Iterable[Record], before: ClusterImage, after: ClusterImage, now: float) -> None:
        """Begin a session for each incarnation that `records` register; end the session of each unregistered broker.

        before, after: the images without and with the records.  The registration counts as the first contact.
        """
        for record in records:
            if isinstance(record, RegisterBroker):
                old = before.brokers.get(record.broker_id)
                if old is None or old.incarnation_id != record.incarnation_id:
                    self._by_id[record.broker_id] = Session(after.brokers[record.broker_id].epoch, now)
            elif isinstance(record, UnregisterBroker):
                self.drop(record.broker_id)

    def live(self, broker_id: int, now: float) -> bool:
        """Return whether this broker has a session that has not ended."""
        session = self._by_id.get(broker_id)
        return session is not None and now < self._end_of(session)

    def renew(self, now: float) -> None:
        """Renew all sessions."""
        for session in self._by_id.values():
            session.last_contact = now

    def first_to_expire(self) -> tuple[float, int] | None:
        """Return (end, broker id) of the session that ends first; None if there are no sessions."""
        return min(
            ((self._end_of(session), broker_id) for broker_id, session in self._by_id.items()),
            default=None,
        )

    def _end_of(self, session: Session) -> float:
        return max(session.last_contact, self._resumed_at()) + self._timeout

    def others_applied(self, image: ClusterImage, broker_id: int) -> int:
        """Return the lowest end of metadata applied by the other unfenced brokers; the image's end if none exist.

        Return -1 if one of them has not sent a heartbeat to this controller yet.
        """
        ends = [
            -1 if other not in self._by_id else self._by_id[other].applied_offset
            for other, broker in image.brokers.items()
            if other != broker_id and not broker.fenced
        ]
        return min(ends, default=image.end_offset)
