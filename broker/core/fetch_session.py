"""Incremental fetch sessions (KIP-227), both ends.  Pure.

Theory of operation
-------------------
A follower of 10,000 partitions that named each of them in every fetch would spend its time on names (measured: 47 ms a
request).  So the first fetch of a session names all, and opens it; later ones name only what changed, and the reply
names only what has something to say.

**Numbers.**  The leader draws the session id; the session epoch counts requests, 1, 2, 3 … (after 2^31-1 comes 1), so
that a repeated or lost request is found out at once: any surprise ends the session, and the fetcher starts over with a
full fetch.  Epoch 0 asks for a new session, -1 for none.

**Cost.**  Neither end ever walks a whole session.  The fetcher keeps the set of partitions whose wish changed since it
was last told.  The leader keeps, per session, the partitions that may have something to say (`ready`); whoever appends,
moves a watermark or changes a role touches the sessions that watch the partition.  A partition that turns out to have
nothing to say leaves `ready` until it is touched again.

**Size.**  One request names `WISHES_MAX` partitions at the most, so that what a leader takes from anybody may be
bounded, and because a leader takes all that a request names in one turn of its loop; whoever has more names the others
in the requests that follow at once.

**Room.**  A bounded number of sessions, which the listener gives to brokers only.  When all are taken, one that was
idle for long enough makes room, else the newcomer is served without a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from broker.core.errors import Code
from broker.core.partition import Contact

NO_SESSION = 0
FULL_FETCH_NO_SESSION = -1
FULL_FETCH_NEW_SESSION = 0
MAX_SESSION_EPOCH = 2**31 - 1
WISHES_MAX = 5_000
"""Each costs its leader some 50 µs (measured on a busy machine: 0.24 s for these; eight times as many would hold
everybody else up for 2 s)."""


def next_session_epoch(epoch: int) -> int:
    return 1 if epoch >= MAX_SESSION_EPOCH else epoch + 1


# -- the fetcher's end


class PartitionKey(NamedTuple):
    topic_id: UUID
    partition_index: int


class Wish(NamedTuple):
    """What a follower wants of one partition."""

    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The next fetch of a session.  wishes: what there is in a full fetch, else what changed; as many as may be.

    before: what the leader had been told of the changed ones until now; a reply to the request before this one, which
    may still be on its way, speaks of those.
    """

    session_id: int
    session_epoch: int
    wishes: tuple[tuple[PartitionKey, Wish], ...]
    forgotten: tuple[PartitionKey, ...]
    before: dict[PartitionKey, Wish | None]

    @property
    def is_full(self) -> bool:
        return self.session_epoch == FULL_FETCH_NEW_SESSION


class FetcherSession:
    """The follower's end: `build` a request, then `on_reply` or `reset`.

    In an open session a further request may be built while one is under way (`may_build`): the leader answers what it
    has parked at once when the next request of a session comes, so that a new wish need not wait for a long poll.
    """

    def __init__(self, wishes_max: int = WISHES_MAX) -> None:
        self._wishes_max = wishes_max
        self._wishes: dict[PartitionKey, Wish] = {}
        self._told: dict[PartitionKey, Wish] = {}
        self._changed: dict[PartitionKey, None] = {}
        self._session_id = NO_SESSION
        self._session_epoch = FULL_FETCH_NEW_SESSION
        self._opening = False

    def __len__(self) -> int:
        return len(self._wishes)

    @property
    def may_build(self) -> bool:
        """False while a full fetch is under way: its session is not known yet."""
        return not self._opening

    @property
    def has_news(self) -> bool:
        """Whether the leader is to be told of something."""
        return bool(self._changed)

    def wish(self, key: PartitionKey) -> Wish | None:
        return self._wishes.get(key)

    def told(self, key: PartitionKey) -> Wish | None:
        """What the newest request that was built has told the leader."""
        return self._told.get(key)

    def want(self, key: PartitionKey, wish: Wish) -> None:
        """Fetch this partition from here on."""
        self._wishes[key] = wish
        self._changed[key] = None

    def drop(self, key: PartitionKey) -> None:
        """Fetch it no more."""
        if self._wishes.pop(key, None) is not None:
            self._changed[key] = None

    def build(self) -> SessionRequest:
        """The next request.  It counts as told: call `reset` unless a good reply comes."""
        assert not self._opening, "a full fetch is under way"
        if self._session_epoch == FULL_FETCH_NEW_SESSION:
            return self._build_full()
        wishes: list[tuple[PartitionKey, Wish]] = []
        forgotten: list[PartitionKey] = []
        before: dict[PartitionKey, Wish | None] = {}
        changed = list(self._changed)
        self._changed.clear()
        for position, key in enumerate(changed):
            if len(before) == self._wishes_max:
                self._changed.update(dict.fromkeys(changed[position:]))
                break
            wish = self._wishes.get(key)
            told = self._told.get(key)
            if wish == told:
                continue
            before[key] = told
            if wish is None:
                del self._told[key]
                forgotten.append(key)
            else:
                self._told[key] = wish
                wishes.append((key, wish))
        request = SessionRequest(self._session_id, self._session_epoch, tuple(wishes), tuple(forgotten), before)
        self._session_epoch = next_session_epoch(self._session_epoch)
        return request

    def _build_full(self) -> SessionRequest:
        chosen = tuple(islice(self._wishes.items(), self._wishes_max))
        self._told = dict(chosen)
        self._changed = dict.fromkeys(islice(self._wishes, self._wishes_max, None))
        if self._changed:  # they come first the next time: perhaps this leader opens no session
            for key, wish in chosen:
                del self._wishes[key]
                self._wishes[key] = wish
        self._opening = True
        return SessionRequest(self._session_id, FULL_FETCH_NEW_SESSION, chosen, (), {})

    def on_reply(self, request: SessionRequest, session_id: int) -> None:
        """A reply without an error for the whole request came."""
        if request.is_full:
            self._opening = False
            if session_id != NO_SESSION:
                self._session_id = session_id
                self._session_epoch = 1
        elif session_id != self._session_id:
            self.reset()

    def reset(self) -> None:
        """Start over with a full fetch: the leader said so, or it is unknown what it has heard."""
        # The id stays: the full fetch names it, so that the leader can let the old session go.
        self._session_epoch = FULL_FETCH_NEW_SESSION
        self._opening = False
        self._told.clear()
        self._changed.clear()


# -- the leader's end

Key = TypeVar("Key")


@dataclass(slots=True)
class Entry(Generic[Key]):
    """What a session holds of one partition.  told_…: what its last reply said, to find out whether there is news."""

    key: Key
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int
    told_high_watermark: int = -1
    told_log_start: int = -1
    told_code: int = Code.NONE

    def take(self, other: Entry[Key]) -> None:
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start_offset = other.log_start_offset
        self.told_code = Code.NONE


@dataclass(slots=True, eq=False)
class LeaderSession(Generic[Key]):
    """The leader's end of one session, or, with id 0, the stand-in for a fetch without one.

    full: the request being served is a full fetch: its reply names every partition.
    """

    session_id: int
    replica_id: int
    contact: Contact
    next_epoch: int = 1
    full: bool = True
    entries: dict[Key, Entry[Key]] = field(default_factory=dict)
    ready: dict[Key, None] = field(default_factory=dict)

    def touch(self, key: Key) -> None:
        """The partition may have something to say."""
        if key in self.entries:
            self.ready[key] = None

    def put(self, entry: Entry[Key]) -> bool:
        """Returns whether the partition is new here."""
        known = self.entries.get(entry.key)
        if known is None:
            self.entries[entry.key] = entry
        else:
            known.take(entry)
        # To the back: whoever was just served waits for the others.
        self.ready.pop(entry.key, None)
        self.ready[entry.key] = None
        return known is None

    def remove(self, key: Key) -> bool:
        self.ready.pop(key, None)
        return self.entries.pop(key, None) is not None


class SessionCache(Generic[Key]):
    """The sessions that a leader keeps.  `on_closed` is told of each that goes."""

    def __init__(
        self,
        capacity: int,
        idle_ms: int,
        draw_id: Callable[[], int],
        on_closed: Callable[[LeaderSession[Key]], None],
    ) -> None:
        self._capacity = capacity
        self._idle_ms = idle_ms
        self._draw_id = draw_id
        self._on_closed = on_closed
        self._sessions: dict[int, LeaderSession[Key]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, session_id: int, session_epoch: int, replica_id: int, now_ms: int) -> LeaderSession[Key] | Code:
        """The session that a request belongs to, or why there is none."""
        if session_epoch in (FULL_FETCH_NO_SESSION, FULL_FETCH_NEW_SESSION):
            self.close(session_id, replica_id)
            new_id = NO_SESSION
            if session_epoch == FULL_FETCH_NEW_SESSION and self._make_room(now_ms):
                new_id = self._free_id()
            session = LeaderSession[Key](new_id, replica_id, Contact(now_ms))
            if new_id != NO_SESSION:
                self._sessions[new_id] = session
            return session
        found = self._sessions.get(session_id)
        if found is None or found.replica_id != replica_id:
            return Code.FETCH_SESSION_ID_NOT_FOUND
        if session_epoch != found.next_epoch:
            return Code.INVALID_FETCH_SESSION_EPOCH
        found.next_epoch = next_session_epoch(session_epoch)
        found.contact.last_fetch_ms = now_ms
        found.full = False
        # Least recently used first: what is used goes to the back.
        del self._sessions[session_id]
        self._sessions[session_id] = found
        return found

    def close(self, session_id: int, replica_id: int) -> None:
        found = self._sessions.get(session_id)
        if found is not None and found.replica_id == replica_id:
            del self._sessions[session_id]
            self._on_closed(found)

    def close_replica(self, replica_id: int) -> None:
        """All sessions of a broker: a new incarnation of it has begun another."""
        for session in [session for session in self._sessions.values() if session.replica_id == replica_id]:
            self.close(session.session_id, replica_id)

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._capacity:
            return True
        for session in self._sessions.values():
            if now_ms - session.contact.last_fetch_ms >= self._idle_ms:
                self.close(session.session_id, session.replica_id)
                return True
        return False

    def _free_id(self) -> int:
        while True:
            session_id = self._draw_id()
            assert session_id > 0, session_id
            if session_id not in self._sessions:
                return session_id
