"""Soft state of the active controller: when it last heard from each broker, and how far each says to be.

Not in the log: a new controller gives every unfenced broker a fresh session.  If the check itself comes late, this
process was stopped or starved, and the heartbeats that it did not read in that time wait in its sockets: every session
begins anew, so that a controller's own pause fences nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadata.image import ClusterImage


@dataclass(slots=True)
class Session:
    """Offsets are -1 while the broker has not been heard from under this controller."""

    broker_epoch: int
    last_contact: float  # loop time
    applied_offset: int = -1
    received_offset: int = -1
    pending_changes: int = 0


class Sessions:
    """All times are the loop's, in seconds."""

    def __init__(self, image: ClusterImage, timeout: float, now: float) -> None:
        self._timeout = timeout
        self._by_id = {
            broker_id: Session(image.brokers[broker_id].epoch, now)
            for broker_id in sorted(image.brokers)
            if not image.brokers[broker_id].fenced
        }

    def get(self, broker_id: int) -> Session | None:
        return self._by_id.get(broker_id)

    def touch(self, broker_id: int, broker_epoch: int, now: float) -> Session:
        """A heartbeat of this incarnation has come."""
        session = self._by_id.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            session = self._by_id[broker_id] = Session(broker_epoch, now)
        session.last_contact = now
        return session

    def drop(self, broker_id: int) -> None:
        self._by_id.pop(broker_id, None)

    def live(self, broker_id: int, now: float) -> bool:
        """Heard from within the session timeout."""
        session = self._by_id.get(broker_id)
        return session is not None and now - session.last_contact < self._timeout

    def renew(self, now: float) -> None:
        """Everybody's session begins anew."""
        for session in self._by_id.values():
            session.last_contact = now

    def first_to_expire(self) -> tuple[float, int] | None:
        """(when, broker id) of the session that ends first."""
        return min(
            ((session.last_contact + self._timeout, broker_id) for broker_id, session in self._by_id.items()),
            default=None,
        )

    def others_applied(self, image: ClusterImage, broker_id: int) -> int:
        """The least end of metadata that the other unfenced brokers have applied; the image's end if there are none."""
        ends = [
            -1 if other not in self._by_id else self._by_id[other].applied_offset
            for other, broker in image.brokers.items()
            if other != broker_id and not broker.fenced
        ]
        return min(ends, default=image.end_offset)
