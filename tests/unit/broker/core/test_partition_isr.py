"""The ISR of one partition: replicas that join and leave, and answers to the leader's proposals."""

from __future__ import annotations

import pytest

from broker.core.partition import (
    Answer,
)
from tests.unit.broker.core.partition_driver import Leader

# -- joining and leaving


def test_a_pending_addition_to_the_isr_counts_for_the_watermark_before_it_is_committed() -> None:
    leader = Leader(isr=(1, 2))
    leader.write(10)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.hw == 10
    assert leader.members() == (1, 2, 3)
    leader.write(20)
    leader.fetch(2, 20)
    assert leader.hw == 10, "3 may be in the ISR by now"
    leader.fetch(3, 15)
    assert leader.hw == 15
    leader.log_shows((1, 2, 3), 8)
    assert leader.hw == 15


def test_a_pending_removal_from_the_isr_counts_only_once_it_is_committed() -> None:
    leader = Leader()
    leader.write(10)
    leader.now_ms += 10_001
    leader.fetch(2, 10)
    assert leader.members() == (1, 2)
    assert leader.hw == 0
    assert leader.log_shows((1, 2), 8)
    assert leader.hw == 10


def test_a_replica_below_the_watermark_or_the_log_end_at_the_election_does_not_join() -> None:
    leader = Leader(isr=(1, 2), log_end=10, watermark=4)
    leader.fetch(3, 3)
    assert leader.members() is None
    leader.fetch(3, 9)
    assert leader.members() is None, "the previous leader may have acknowledged up to 10"
    leader.fetch(3, 10)
    assert leader.members() == (1, 2, 3)


def test_a_replica_that_is_fenced_or_has_an_unknown_broker_epoch_does_not_join() -> None:
    leader = Leader(isr=(1, 2))
    leader.cluster.fenced.add(3)
    leader.fetch(3, 0)
    assert leader.members() is None
    leader.cluster.fenced.clear()
    leader.fetch(3, 0, broker_epoch=700)
    assert leader.members() is None, "the image does not know that incarnation yet"
    leader.cluster.epochs[3] = 700
    assert leader.members() == (1, 2, 3)


def test_a_replica_that_missed_a_deletion_joins_once_its_log_start_is_durable() -> None:
    leader = Leader(isr=(1, 2), log_end=10, watermark=10)
    leader.cluster.fenced.add(3)
    leader.fetch(2, 10)
    leader.state.on_log_start(2, 102, 4)
    assert leader.state.low_watermark(4) == 4, "3 is not active"
    leader.state.on_deleted(4)
    leader.cluster.fenced.clear()
    leader.fetch(3, 10)
    assert leader.members() is None
    leader.state.on_log_start(3, 103, 3)
    assert leader.members() is None
    leader.state.on_log_start(3, 103, 4)
    assert leader.members() == (1, 2, 3)


def test_a_replica_that_missed_a_deletion_by_an_earlier_leader_does_not_join() -> None:
    leader = Leader(isr=(1, 2), log_end=10, watermark=10, log_start=4)
    leader.fetch(3, 10)
    assert leader.members() is None
    leader.state.on_log_start(3, 103, 4)
    assert leader.members() == (1, 2, 3)


def test_the_log_start_of_an_earlier_incarnation_does_not_let_a_replica_join() -> None:
    leader = Leader(isr=(1, 2), log_end=10, watermark=10, log_start=4)
    leader.fetch(3, 10)
    leader.state.on_log_start(3, 103, 4)
    leader.cluster.epochs[3] = 700
    leader.fetch(3, 10)
    assert leader.members() is None


def test_a_deletion_waits_for_a_replica_that_a_proposal_may_still_admit() -> None:
    leader = Leader(isr=(1, 2), log_end=10, watermark=10)
    leader.fetch(2, 10)
    leader.state.on_log_start(2, 102, 4)
    leader.fetch(3, 10)
    leader.state.on_log_start(3, 103, 0)
    assert leader.members() == (1, 2, 3)
    leader.cluster.fenced.add(3)
    assert leader.state.low_watermark(4) == 0
    leader.log_shows((1, 2), 8)
    assert leader.state.low_watermark(4) == 4


def test_a_follower_that_lags_for_too_long_leaves_the_isr() -> None:
    leader = Leader()
    leader.write(10)
    leader.fetch(2, 10)
    leader.fetch(3, 5)
    leader.now_ms += 10_000
    leader.fetch(2, 10)
    assert leader.members() is None
    leader.now_ms += 1
    leader.fetch(3, 6)
    assert leader.members() == (1, 2)


def test_a_follower_that_stops_fetching_leaves_the_isr_of_an_idle_partition() -> None:
    leader = Leader()
    for follower in (2, 3):
        leader.fetch(follower, 0)
    for _ in range(4):
        leader.now_ms += 5_000
        leader.hear(2)
    assert leader.members() == (1, 2)


def test_fetches_that_do_not_name_an_idle_partition_keep_its_follower_in_the_isr() -> None:
    leader = Leader()
    for follower in (2, 3):
        leader.fetch(follower, 0)
    for _ in range(20):
        leader.now_ms += 5_000
        leader.hear(2)
        leader.hear(3)
    leader.write(1)
    assert leader.members() is None, "both had everything until now"


def test_fetches_no_longer_keep_a_follower_in_the_isr_of_a_partition_dropped_from_its_session() -> None:
    leader = Leader()
    for follower in (2, 3):
        leader.fetch(follower, 0)
    leader.state.on_fetch_stopped(3, leader.contacts[3])
    leader.now_ms += 10_001
    leader.hear(2)
    leader.hear(3)
    assert leader.members() == (1, 2)


def test_a_follower_that_keeps_pace_with_a_busy_leader_stays_in_the_isr() -> None:
    """It never reaches the end, but always has the records that the leader had at its last fetch."""
    leader = Leader()
    end = 0
    for _ in range(50):
        end += 10
        leader.write(end)
        leader.now_ms += 1_000
        leader.fetch(2, end)
        leader.fetch(3, end - 10)
    assert leader.members() is None


# -- answers to proposals


def test_only_one_proposal_is_pending_at_a_time() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    assert leader.members() == (1, 2, 3)
    assert leader.members() is None


def test_an_unanswered_proposal_stays_pending_and_is_repeated() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.state.propose(leader.now_ms)
    assert proposal is not None
    leader.state.on_answer(proposal, Answer.UNKNOWN, leader.now_ms)
    leader.write(5)
    leader.fetch(2, 5)
    assert leader.hw == 0, "an unanswered copy may yet be accepted"
    assert leader.members() is None, "not before the retry time"
    leader.now_ms += 500
    again = leader.state.propose(leader.now_ms)
    assert again is not None
    assert (again.partition_epoch, again.members) == (7, (1, 2, 3))


def test_a_refused_addition_no_longer_holds_the_watermark_back() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.state.propose(leader.now_ms)
    assert proposal is not None
    leader.write(5)
    leader.fetch(2, 5)
    assert leader.state.on_answer(proposal, Answer.REFUSED, leader.now_ms)
    assert leader.hw == 5


def test_a_refusal_after_an_unanswered_copy_is_settled_by_proposing_the_committed_isr() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    first = leader.state.propose(leader.now_ms)
    assert first is not None
    leader.state.on_answer(first, Answer.UNKNOWN, leader.now_ms)
    leader.now_ms += 500
    second = leader.state.propose(leader.now_ms)
    assert second is not None
    leader.cluster.fenced.add(3)
    leader.write(5)
    leader.fetch(2, 5)
    assert not leader.state.on_answer(second, Answer.REFUSED, leader.now_ms)
    assert leader.hw == 0, "the first copy may still be on its way"
    leader.now_ms += 500
    assert leader.members() == (1, 2)
    assert leader.log_shows((1, 2), 8), "its partition epoch overtakes every copy"
    assert leader.hw == 5


def test_an_accepted_proposal_is_repeated_if_its_record_is_late() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.state.propose(leader.now_ms)
    assert proposal is not None
    leader.state.on_answer(proposal, Answer.ACCEPTED, leader.now_ms)
    leader.now_ms += 4_999
    leader.hear(3)
    leader.hear(2)
    assert leader.members() is None
    leader.now_ms += 1
    assert leader.members() == (1, 2, 3)


def test_an_answer_after_the_record_was_applied_changes_nothing() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.state.propose(leader.now_ms)
    assert proposal is not None
    leader.log_shows((1, 2, 3), 8)
    assert not leader.state.on_answer(proposal, Answer.REFUSED, leader.now_ms)
    assert leader.state.maximal_isr() == {1, 2, 3}


def test_an_assignment_without_a_newer_partition_epoch_does_not_change_the_isr() -> None:
    leader = Leader(isr=(1, 2))
    assert not leader.log_shows((1,), 7)
    assert leader.state.isr == (1, 2)


# -- lag in bytes


@pytest.mark.parametrize(("limit", "isr"), [(-1, (1, 2, 3)), (40, (1, 2, 3)), (39, (1, 2)), (0, (1, 2))])
def test_a_follower_that_lags_by_too_many_bytes_leaves_the_isr_at_once(limit: int, isr: tuple[int, ...]) -> None:
    """Ten bytes a record: follower 2 has everything, follower 3 lacks four records."""
    leader = Leader()
    leader.state._size_from = lambda offset: 10 * (leader.state.log_end - offset)
    leader.state.limits = leader.state.limits._replace(lag_max_bytes=limit)
    leader.write(10)
    assert leader.state.wanted_isr(leader.now_ms) == (1, 2, 3)  # no follower has fetched yet: each gets its full time
    leader.fetch(2, 10)
    leader.fetch(3, 6)
    assert leader.state.wanted_isr(leader.now_ms) == isr


def test_a_follower_that_left_the_isr_by_its_lag_in_bytes_rejoins_within_the_limit() -> None:
    leader = Leader(isr=(1, 2), log_end=4, watermark=4)
    leader.state._size_from = lambda offset: 10 * (leader.state.log_end - offset)
    leader.state.limits = leader.state.limits._replace(lag_max_bytes=20)
    leader.write(10)
    leader.fetch(2, 7)
    leader.fetch(3, 7)
    assert leader.hw == 7
    assert leader.state.wanted_isr(leader.now_ms) == (1,)
    leader.fetch(2, 8)
    assert leader.state.wanted_isr(leader.now_ms) == (1, 2)
    leader.fetch(3, 8)
    assert leader.state.wanted_isr(leader.now_ms) == (1, 2, 3)
