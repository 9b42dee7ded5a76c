"""Incremental fetch sessions: the fetcher's side, the leader's side, and both together."""

from __future__ import annotations

from random import Random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from broker.core.fetch_session import (
    CONSUMER,
    NO_SESSION,
    SESSION_EPOCH_MAX,
    TARGETS_MAX,
    FetcherSession,
    FetchTarget,
    LeaderSession,
    PartitionKey,
    SessionCache,
    SessionPartition,
    next_session_epoch,
)
from broker.kafka.api import FetchPartition, ForgottenPartition
from broker.kafka.limits import KafkaLimits
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import fetch

TOPIC = UUID(int=7)


def key(index: int) -> PartitionKey:
    return PartitionKey(TOPIC, index)


def target(offset: int) -> FetchTarget:
    return FetchTarget(3, offset, 2, 0, 1 << 20)


def test_the_first_request_names_all_partitions_and_later_requests_only_changes() -> None:
    session = FetcherSession()
    session.want(key(0), target(10))
    session.want(key(1), target(20))
    first = session.build()
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert dict(first.targets) == {key(0): target(10), key(1): target(20)}
    session.on_reply(first, 77)
    session.want(key(1), target(25))
    session.drop(key(0))
    session.want(key(2), target(0))
    second = session.build()
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert dict(second.targets) == {key(1): target(25), key(2): target(0)}
    assert second.forgotten == (key(0),)
    session.on_reply(second, 77)
    third = session.build()
    assert (third.session_epoch, third.targets, third.forgotten) == (2, (), ())


def test_a_target_that_is_restored_before_the_next_request_is_not_sent_again() -> None:
    session = FetcherSession()
    session.want(key(0), target(10))
    session.on_reply(session.build(), 77)
    session.drop(key(0))
    session.want(key(0), target(10))
    session.want(key(5), target(1))
    session.drop(key(5))
    again = session.build()
    assert (again.targets, again.forgotten) == ((), ())


def test_a_refused_partition_is_named_again_with_an_unchanged_target() -> None:
    """The leader refused the position, so it did not count as an acknowledgement."""
    session = FetcherSession()
    session.want(key(0), target(10))
    session.on_reply(session.build(), 77)
    session.refused(key(0))
    session.want(key(0), target(10))
    assert session.has_news
    again = session.build()
    assert (again.targets, again.forgotten) == (((key(0), target(10)),), ())
    assert again.before == {key(0): target(10)}
    assert session.build().targets == (), "once is enough"


def test_a_refused_partition_is_forgotten_unless_it_is_wanted_again() -> None:
    session = FetcherSession()
    session.want(key(0), target(10))
    session.on_reply(session.build(), 77)
    session.refused(key(0))
    again = session.build()
    assert (again.targets, again.forgotten) == ((), (key(0),))
    session.want(key(0), target(10))
    assert session.build().targets == ((key(0), target(10)),)


def test_a_late_refusal_of_a_forgotten_partition_changes_nothing() -> None:
    session = FetcherSession()
    session.want(key(0), target(10))
    session.on_reply(session.build(), 77)
    session.drop(key(0))
    assert session.build().forgotten == (key(0),)
    session.refused(key(0))
    session.want(key(0), target(10))
    session.drop(key(0))
    again = session.build()
    assert (again.targets, again.forgotten) == ((), ())


def test_a_reset_session_names_all_partitions_again() -> None:
    session = FetcherSession()
    session.want(key(0), target(10))
    session.on_reply(session.build(), 77)
    session.reset()
    full = session.build()
    assert (full.session_id, full.session_epoch) == (77, 0), "the leader may close the old session"
    assert dict(full.targets) == {key(0): target(10)}


def test_a_new_target_is_sent_while_a_fetch_is_parked() -> None:
    session = FetcherSession()
    session.want(key(0), target(10))
    opening = session.build()
    assert not session.may_build, "its session is not known yet"
    session.on_reply(opening, 77)
    parked = session.build()
    session.want(key(0), target(12))
    session.want(key(1), target(0))
    assert session.has_news
    assert session.may_build
    interrupting = session.build()
    assert (parked.session_epoch, interrupting.session_epoch) == (1, 2)
    assert interrupting.before == {key(0): target(10), key(1): None}, "the partitions in the reply to the parked fetch"
    session.on_reply(parked, 77)
    session.on_reply(interrupting, 77)
    assert session.build().session_epoch == 3


def test_the_reply_to_a_request_of_the_former_session_changes_nothing_during_a_full_fetch() -> None:
    """The leader closed the session while it had two requests, so it answers both without a session."""
    session = FetcherSession()
    session.want(key(0), target(10))
    session.on_reply(session.build(), 77)
    parked, interrupting = session.build(), session.build()
    session.on_reply(parked, NO_SESSION)
    full = session.build()
    assert full.is_full
    session.on_reply(interrupting, NO_SESSION)
    assert not session.may_build, "the new session is not known yet"
    session.on_reply(full, 78)
    assert session.sent_target(key(0)) == target(10), "otherwise the fetcher drops every reply about this partition"
    assert session.build().session_id == 78


def test_a_leader_without_a_session_gets_full_requests() -> None:
    session = FetcherSession()
    session.want(key(0), target(10))
    session.on_reply(session.build(), 0)
    assert dict(session.build().targets) == {key(0): target(10)}


def test_more_partitions_than_one_request_may_name_need_several_requests() -> None:
    session = FetcherSession(targets_max=3)
    for index in range(8):
        session.want(key(index), target(index))
    first = session.build()
    session.on_reply(first, 77)
    second, third = session.build(), session.build()
    assert [len(each.targets) for each in (first, second, third)] == [3, 3, 2]
    assert dict((*first.targets, *second.targets, *third.targets)) == {key(index): target(index) for index in range(8)}
    assert not session.has_news


def test_full_requests_without_a_session_rotate_through_all_partitions() -> None:
    session = FetcherSession(targets_max=3)
    for index in range(5):
        session.want(key(index), target(index))
    named: list[PartitionKey] = []
    for _ in range(5):
        request = session.build()
        assert request.is_full
        named += [each for each, _ in request.targets]
        session.on_reply(request, 0)
    assert sorted(named) == sorted([key(index) for index in range(5)] * 3)


def test_the_largest_request_is_within_the_listeners_limits() -> None:
    session = FetcherSession()
    for number in range(TARGETS_MAX + 1):
        session.want(PartitionKey(UUID(int=number), 5), target(number))
    request = session.build()
    assert len(request.targets) == TARGETS_MAX
    partitions = [
        FetchPartition(each.topic_id, None, each.partition_index, want.offset, want.max_bytes)
        for each, want in request.targets
    ]
    (body,) = fetch.encode_request(fetch.FOLLOWER_VERSION, partitions, max_wait_ms=0, min_bytes=1, max_bytes=1)
    assert len(body) < KafkaLimits().small_request_max_bytes - 1000
    decoded = fetch.decode_request(memoryview(body), 0, fetch.FOLLOWER_VERSION, FetchPartition, ForgottenPartition)
    assert decoded.partitions == partitions


def test_session_epochs_wrap_to_one() -> None:
    assert next_session_epoch(1) == 2
    assert next_session_epoch(SESSION_EPOCH_MAX) == 1


def cache(capacity: int = 2, partitions_max: int = 100) -> tuple[SessionCache[PartitionKey], list[int]]:
    closed: list[int] = []
    ids = iter(range(1, 100))
    return (
        SessionCache(
            capacity, 1_000, lambda: next(ids), lambda session: closed.append(session.session_id), partitions_max
        ),
        closed,
    )


def opened(
    sessions: SessionCache[PartitionKey], replica_id: int, now_ms: int, size: int = 0
) -> LeaderSession[PartitionKey]:
    session = sessions.begin(0, 0, replica_id, now_ms, size)
    assert isinstance(session, LeaderSession)
    for index in range(size):
        session.put(entry(index, 0))
    assert sessions.count(session)
    return session


def test_a_request_with_an_unexpected_session_epoch_is_refused() -> None:
    sessions, _ = cache()
    session = opened(sessions, 2, 0)
    assert session.full
    assert sessions.begin(session.session_id, 2, 2, 0) is KafkaCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.begin(session.session_id, 1, 2, 5) is session
    assert not session.full
    assert session.contact.last_fetch_ms == 5
    assert sessions.begin(session.session_id, 1, 2, 5) is KafkaCode.INVALID_FETCH_SESSION_EPOCH
    assert sessions.begin(99, 1, 2, 5) is KafkaCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetcher_can_neither_use_nor_close_the_session_of_another_fetcher() -> None:
    sessions, closed = cache()
    session = opened(sessions, 2, 0)
    assert sessions.begin(session.session_id, 1, 3, 0) is KafkaCode.FETCH_SESSION_ID_NOT_FOUND
    sessions.begin(session.session_id, -1, 3, 0)
    assert closed == []
    sessions.begin(session.session_id, -1, 2, 0)
    assert closed == [session.session_id]


def test_only_idle_sessions_are_evicted() -> None:
    sessions, closed = cache()
    first = opened(sessions, -1, 0)
    opened(sessions, -1, 500)
    assert opened(sessions, -1, 900).session_id == 0
    third = opened(sessions, -1, 1_000)
    assert third.session_id != 0
    assert closed == [first.session_id]


def test_idle_sessions_end_even_if_there_is_room() -> None:
    """Each session costs time at every append to its partitions."""
    sessions, closed = cache(capacity=9)
    first, second = opened(sessions, CONSUMER, 0), opened(sessions, 2, 0)
    assert sessions.begin(second.session_id, 1, 2, 600) is second
    sessions.begin(0, -1, CONSUMER, 1_200)
    assert closed == [first.session_id]
    assert sessions.evicted == 1


def kept(sessions: SessionCache[PartitionKey], *busy: LeaderSession[PartitionKey], now_ms: int) -> None:
    for session in busy:
        assert sessions.begin(session.session_id, session.next_epoch, session.replica_id, now_ms) is session


def test_a_consumer_replaces_the_smallest_older_session_that_lists_fewer_partitions() -> None:
    sessions, closed = cache(capacity=3)
    large, small, follower = opened(sessions, CONSUMER, 0, 5), opened(sessions, CONSUMER, 0, 3), opened(sessions, 2, 0)
    kept(sessions, large, small, follower, now_ms=900)
    assert opened(sessions, CONSUMER, 901, 9).session_id == 0, "the others are new"
    kept(sessions, large, small, follower, now_ms=1_800)
    assert opened(sessions, CONSUMER, 1_850, 9).session_id == 0, "the cache was searched a moment ago"
    assert opened(sessions, CONSUMER, 1_901, 3).session_id == 0, "none lists fewer"
    kept(sessions, large, small, follower, now_ms=2_500)
    assert opened(sessions, CONSUMER, 2_901, 4).session_id != 0
    assert closed == [small.session_id]


def test_a_follower_replaces_the_session_of_a_consumer_but_not_of_a_follower() -> None:
    sessions, closed = cache(capacity=2)
    opened(sessions, 2, 0)
    consumer = opened(sessions, CONSUMER, 0, 50)
    assert opened(sessions, 3, 0, 1).session_id != 0
    assert closed == [consumer.session_id]
    assert opened(sessions, 4, 0, 70).session_id == 0


def test_the_partitions_in_consumers_sessions_are_bounded() -> None:
    sessions, closed = cache(capacity=9, partitions_max=10)
    first = opened(sessions, CONSUMER, 0, 6)
    assert opened(sessions, CONSUMER, 0, 5).session_id == 0
    assert opened(sessions, 2, 0, 50).session_id != 0, "partitions of followers' sessions do not count"
    second = opened(sessions, CONSUMER, 0, 4)
    assert second.session_id != 0
    second.put(entry(90, 0))
    assert not sessions.count(second)
    assert closed == [second.session_id]
    first.remove(key(0))
    assert sessions.count(first)
    assert opened(sessions, CONSUMER, 0, 5).session_id != 0
    assert sessions.partitions == 5 + 50 + 5


def test_a_session_names_topics_either_by_id_or_by_name() -> None:
    sessions, _ = cache()
    session = sessions.begin(0, 0, CONSUMER, 0, by_id=True)
    assert isinstance(session, LeaderSession)
    assert sessions.begin(session.session_id, 1, CONSUMER, 0) is KafkaCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert sessions.begin(session.session_id, 1, CONSUMER, 0, by_id=True) is session, "the refusal did not count"


def test_all_partitions_become_ready_again_when_the_isolation_level_changes() -> None:
    sessions, _ = cache()
    session = opened(sessions, CONSUMER, 0, 3)
    session.take_stance("read_committed")
    session.ready.clear()
    session.take_stance("read_committed")
    assert not session.ready
    session.take_stance("read_uncommitted")
    assert list(session.ready) == [key(0), key(1), key(2)]


def test_a_new_incarnation_of_a_follower_closes_its_old_sessions() -> None:
    sessions, closed = cache()
    session = opened(sessions, 2, 0)
    opened(sessions, 3, 0)
    sessions.close_replica(2)
    assert closed == [session.session_id]
    assert len(sessions) == 1


def entry(index: int, offset: int) -> SessionPartition[PartitionKey]:
    return SessionPartition(key(index), offset, 1 << 20, 3, 2, 0)


def test_only_touched_partitions_are_ready() -> None:
    sessions, _ = cache()
    session = opened(sessions, 2, 0)
    assert session.put(entry(0, 0))
    assert session.put(entry(1, 0))
    assert list(session.ready) == [key(0), key(1)]
    session.ready.clear()
    session.touch(key(1))
    session.touch(key(9))
    assert list(session.ready) == [key(1)]
    assert not session.put(entry(1, 5))
    assert session.entries[key(1)].fetch_offset == 5
    assert session.remove(key(1))
    assert not session.ready


@given(st.integers(0, 2**32))
def test_leader_and_fetcher_agree_on_the_session_after_any_requests_and_losses(seed: int) -> None:
    """After a successful request the leader has exactly the fetcher's targets, regardless of lost messages."""
    random = Random(seed)
    sessions, _ = cache(1)
    most = random.choice([2, 3, 100])
    fetcher = FetcherSession(most)
    held: LeaderSession[PartitionKey] | None = None
    wanted: dict[PartitionKey, FetchTarget] = {}
    for _ in range(40):
        for _ in range(random.randrange(4)):
            index = random.randrange(5)
            if random.random() < 0.3:
                fetcher.drop(key(index))
                wanted.pop(key(index), None)
            else:
                fetcher.want(key(index), target(offset := random.randrange(3)))
                wanted[key(index)] = target(offset)
        request = fetcher.build()
        if random.random() < 0.1:
            fetcher.reset()  # the request was lost
            continue
        if random.random() < 0.05 and held is not None:
            sessions.close(held.session_id, 2)
        begun = sessions.begin(request.session_id, request.session_epoch, 2, 0)
        if isinstance(begun, KafkaCode):
            fetcher.reset()
            continue
        held = begun
        for each, want in request.targets:
            begun.put(
                SessionPartition(
                    each,
                    want.offset,
                    want.max_bytes,
                    want.leader_epoch,
                    want.last_fetched_epoch,
                    0,
                )
            )
        for each in request.forgotten:
            assert begun.remove(each)
        if random.random() < 0.1:
            fetcher.reset()  # the reply was lost
            continue
        fetcher.on_reply(request, begun.session_id)
        if begun.session_id == NO_SESSION:  # no room for a session: each request names as many as permitted
            assert len(begun.entries) == min(most, len(wanted))
            continue
        while fetcher.has_news:
            request = fetcher.build()
            assert len(request.targets) + len(request.forgotten) <= most
            again = sessions.begin(request.session_id, request.session_epoch, 2, 0)
            assert again is begun
            for each, want in request.targets:
                begun.put(
                    SessionPartition(
                        each,
                        want.offset,
                        want.max_bytes,
                        want.leader_epoch,
                        want.last_fetched_epoch,
                        0,
                    )
                )
            for each in request.forgotten:
                assert begun.remove(each)
            fetcher.on_reply(request, begun.session_id)
        assert {each: found.fetch_offset for each, found in begun.entries.items()} == {
            each: want.offset for each, want in wanted.items()
        }
