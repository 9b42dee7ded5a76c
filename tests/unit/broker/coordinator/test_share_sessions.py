"""Share sessions: epochs of requests, limits, and the end of a connection."""

from __future__ import annotations

from uuid import UUID

from broker.coordinator.share_sessions import END_SESSION, IDLE_MS, NEW_SESSION, SessionKey, ShareSession, ShareSessions
from quorumlog.wire.errors import KafkaCode

KEY = SessionKey("work", "a")
MAX = 2


class Driver:
    """Sessions, and the members whose sessions have ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.sessions = ShareSessions(lambda session: self.ended.append(session.key.member_id))

    def begin(self, epoch: int, member: str = "a", peer: str = "h:1", now_ms: int = 0) -> ShareSession | KafkaCode:
        return self.sessions.begin(SessionKey("work", member), peer, epoch, MAX, now_ms)


def test_a_request_whose_session_epoch_is_not_the_next_one_is_refused() -> None:
    driver = Driver()
    session = driver.begin(NEW_SESSION)
    assert driver.begin(1) is session
    assert driver.begin(1) is KafkaCode.INVALID_SHARE_SESSION_EPOCH
    assert driver.begin(3) is KafkaCode.INVALID_SHARE_SESSION_EPOCH
    assert driver.begin(2) is session
    assert driver.begin(END_SESSION) is session


def test_a_request_without_a_session_is_refused() -> None:
    driver = Driver()
    assert driver.begin(1) is KafkaCode.SHARE_SESSION_NOT_FOUND
    assert driver.begin(END_SESSION) is KafkaCode.SHARE_SESSION_NOT_FOUND


def test_a_new_session_of_a_member_replaces_its_previous_session() -> None:
    driver = Driver()
    first, second = driver.begin(NEW_SESSION), driver.begin(NEW_SESSION, peer="h:2")
    assert isinstance(first, ShareSession)
    driver.sessions.end(first)
    assert len(driver.sessions) == 1, "the replaced session does not end its successor"
    driver.sessions.disconnected("h:1")
    assert driver.begin(1, peer="h:2") is second


def test_a_new_session_above_the_limit_replaces_an_idle_session_or_is_refused() -> None:
    driver = Driver()
    driver.begin(NEW_SESSION, "a", now_ms=0)
    driver.begin(NEW_SESSION, "b", now_ms=1)
    assert driver.begin(NEW_SESSION, "c", now_ms=IDLE_MS - 1) is KafkaCode.SHARE_SESSION_LIMIT_REACHED
    assert isinstance(driver.begin(NEW_SESSION, "c", now_ms=IDLE_MS), ShareSession)
    assert driver.ended == ["a"]


def test_a_lost_connection_ends_the_sessions_that_used_it_last() -> None:
    driver = Driver()
    driver.begin(NEW_SESSION, "a", "h:1")
    driver.begin(NEW_SESSION, "b", "h:1")
    driver.begin(1, "b", "h:2")
    driver.sessions.disconnected("h:1")
    assert driver.ended == ["a"]
    driver.sessions.disconnected("h:2")
    assert driver.ended == ["a", "b"]
    driver.sessions.disconnected("h:2")


def test_a_group_uses_exactly_the_partitions_of_its_open_sessions() -> None:
    driver = Driver()
    session = driver.begin(NEW_SESSION)
    assert isinstance(session, ShareSession)
    place, other = (UUID(int=1), 0), (UUID(int=1), 1)
    session.places.update(dict.fromkeys([place, other]))
    session.rotate(place)
    assert list(session.places) == [other, place]
    assert driver.sessions.uses("work", place)
    assert not driver.sessions.uses("play", place)
    driver.sessions.end(session)
    assert not driver.sessions.uses("work", place)
