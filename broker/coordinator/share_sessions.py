"""Share sessions of a broker.  A session stores the partitions that a member fetches, so a request names only changes.

Each request has the epoch of the previous request plus one, so the broker notices repeated and lost requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from quorumlog.wire.errors import KafkaCode

NEW_SESSION: Final = 0
END_SESSION: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
IDLE_MS: Final = 120_000
"""A session without a request for this long is dropped when the limit of sessions is reached."""

Place = tuple[UUID, int]


class SessionKey(NamedTuple):
    group: str
    member_id: str


@dataclass(slots=True, eq=False)
class ShareSession:
    """The session of one member.

    peer: the address of the connection that sent its last request.  next_epoch: the epoch of its next request.
    places: the partitions, in the order in which they are served.
    former: other partitions whose records the member may still hold, because it has used the partitions before.
    """

    key: SessionKey
    peer: str
    next_epoch: int = 1
    used_ms: int = 0
    places: dict[Place, None] = field(default_factory=dict)
    former: dict[Place, None] = field(default_factory=dict)

    def change(self, added: Iterable[Place], forgotten: Iterable[Place]) -> None:
        """Add partitions, then move the `forgotten` partitions to `former`."""
        for place in added:
            self.places[place] = None
            self.former.pop(place, None)
        for place in forgotten:
            if place in self.places:
                del self.places[place]
                self.former[place] = None

    def rotate(self, place: Place) -> None:
        """Move a partition to the end of the order for the next request."""
        if place in self.places:
            del self.places[place]
            self.places[place] = None


class ShareSessions:
    """All sessions of a broker.  on_end: called with each session that ends; it must release the session's records."""

    def __init__(self, on_end: Callable[[ShareSession], None]) -> None:
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_peer: dict[str, set[SessionKey]] = {}
        self._on_end = on_end

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, key: SessionKey, peer: str, epoch: int, sessions_max: int, now_ms: int) -> ShareSession | KafkaCode:
        """Return the session of a request, or the error.  The caller calls `end` after a request with END_SESSION.

        epoch: NEW_SESSION replaces an earlier session of the member.  END_SESSION is accepted for any existing session,
        whatever its `next_epoch` is.  Any other epoch must be the session's `next_epoch`.
        sessions_max: a further session gets SHARE_SESSION_LIMIT_REACHED, unless an idle session can be dropped.
        """
        session = self._sessions.get(key)
        if epoch == NEW_SESSION:
            if session is None and len(self._sessions) >= sessions_max:
                self._drop_idle(now_ms)
                if len(self._sessions) >= sessions_max:
                    return KafkaCode.SHARE_SESSION_LIMIT_REACHED
            if session is not None:
                self._leave_peer(session)
            former = {} if session is None else {**session.former, **session.places}
            session = self._sessions[key] = ShareSession(key, peer, used_ms=now_ms, former=former)
            self._by_peer.setdefault(peer, set()).add(key)
            return session
        if session is None:
            return KafkaCode.SHARE_SESSION_NOT_FOUND
        if epoch != END_SESSION:
            if epoch != session.next_epoch:
                return KafkaCode.INVALID_SHARE_SESSION_EPOCH
            session.next_epoch = 1 if epoch == _EPOCH_MAX else epoch + 1
        session.used_ms = now_ms
        if session.peer != peer:
            self._leave_peer(session)
            session.peer = peer
            self._by_peer.setdefault(peer, set()).add(key)
        return session

    def of(self, key: SessionKey) -> ShareSession | None:
        """Return the session that a member has now."""
        return self._sessions.get(key)

    def is_current(self, session: ShareSession) -> bool:
        """Return whether a session has not ended, and no newer session of the member has replaced it."""
        return self._sessions.get(session.key) is session

    def disconnected(self, peer: str) -> None:
        """End the sessions whose last request came from this connection."""
        for key in sorted(self._by_peer.get(peer, ())):
            self.end(self._sessions[key])

    def _leave_peer(self, session: ShareSession) -> None:
        keys = self._by_peer[session.peer]
        keys.discard(session.key)
        if not keys:
            del self._by_peer[session.peer]

    def end(self, session: ShareSession) -> None:
        """End a session, unless a newer session of the same member has replaced it."""
        if self.is_current(session):
            del self._sessions[session.key]
            self._leave_peer(session)
            self._on_end(session)

    def _drop_idle(self, now_ms: int) -> None:
        for session in [each for each in self._sessions.values() if each.used_ms + IDLE_MS <= now_ms]:
            self.end(session)

    def uses(self, group: str, place: Place) -> bool:
        """Return whether a session of the group has this partition, or had it and may still hold records of it."""
        sessions = (each for each in self._sessions.values() if each.key.group == group)
        return any(place in each.places or place in each.former for each in sessions)
