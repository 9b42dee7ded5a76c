"""Leader and follower state of one partition: positions, watermark, ISR proposals, answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.core.epochs import EpochCache
from broker.core.partition import (
    Answer,
    AppendRecords,
    Assignment,
    Contact,
    DelayFetch,
    Divergence,
    Drop,
    FollowerState,
    LeaderReply,
    LeaderState,
    Limits,
    RestartAt,
    SentPosition,
    TruncateTo,
    check_leader_epoch,
    check_position,
)
from quorumlog.wire.errors import KafkaCode


@dataclass
class FakeCluster:
    """Broker epochs are 100 + id unless set; a fenced broker may not join."""

    epochs: dict[int, int] = field(default_factory=dict)
    fenced: set[int] = field(default_factory=set)

    def broker_epoch(self, broker_id: int) -> int:
        return self.epochs.get(broker_id, 100 + broker_id)

    def may_join(self, broker_id: int) -> bool:
        return broker_id not in self.fenced


class Leader:
    """Leader 1 of replicas (1, 2, 3) with a log of `log_end` flushed records."""

    def __init__(
        self,
        isr: tuple[int, ...] = (1, 2, 3),
        log_end: int = 0,
        watermark: int = 0,
        min_isr: int = 2,
        log_start: int = 0,
    ) -> None:
        self.now_ms = 1_000
        self.cluster = FakeCluster()
        self.state = LeaderState(
            1,
            Assignment((1, 2, 3), isr, 1, leader_epoch=5, partition_epoch=7),
            log_end=log_end,
            flushed_end=log_end,
            high_watermark=watermark,
            cluster=self.cluster,
            limits=Limits(lag_max_ms=10_000, min_isr=min_isr, retry_ms=500, overdue_ms=5_000),
            now_ms=self.now_ms,
            log_start=log_start,
        )
        self.contacts = {2: Contact(self.now_ms), 3: Contact(self.now_ms)}

    @property
    def hw(self) -> int:
        return self.state.high_watermark

    def write(self, end: int, flush: bool = True) -> None:
        self.state.on_appended(end)
        if flush:
            self.state.on_flushed(end)

    def fetch(self, broker_id: int, end: int, broker_epoch: int | None = None) -> bool:
        contact = self.contacts[broker_id]
        contact.last_fetch_ms = self.now_ms
        epoch = self.cluster.broker_epoch(broker_id) if broker_epoch is None else broker_epoch
        return self.state.on_fetch(broker_id, epoch, end, self.now_ms, contact)

    def hear(self, broker_id: int) -> None:
        """An incremental fetch that does not name this partition."""
        self.contacts[broker_id].last_fetch_ms = self.now_ms

    def log_shows(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        return self.state.on_assignment(Assignment((1, 2, 3), isr, 1, 5, partition_epoch), self.now_ms)

    def members(self) -> tuple[int, ...] | None:
        proposal = self.state.propose(self.now_ms)
        return None if proposal is None else proposal.members


# -- watermark


def test_watermark_is_the_lowest_flushed_end_of_the_isr() -> None:
    leader = Leader()
    leader.write(10)
    leader.fetch(2, 10)
    assert leader.hw == 0
    leader.fetch(3, 4)
    assert leader.hw == 4
    leader.fetch(3, 10)
    assert leader.hw == 10


def test_unflushed_records_of_the_leader_are_not_committed() -> None:
    leader = Leader()
    leader.write(10, flush=False)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    assert leader.hw == 0
    assert leader.state.on_flushed(6)
    assert leader.hw == 6


def test_a_sole_replica_is_committed_by_its_own_flush() -> None:
    state = LeaderState(
        1,
        Assignment((1,), (1,), 1, 0, 0),
        log_end=3,
        flushed_end=3,
        high_watermark=0,
        cluster=FakeCluster(),
        limits=Limits(10_000, min_isr=2),
        now_ms=0,
    )
    assert state.high_watermark == 3
    state.on_appended(5)
    assert state.verdict(-1, 5) is None
    assert state.on_flushed(5)
    assert state.verdict(-1, 5) is KafkaCode.NONE


def test_committed_records_are_visible_once_the_leader_has_flushed_them() -> None:
    """No election waited for the disk of an unclean leader."""
    state = LeaderState(
        1,
        Assignment((1, 2, 3), (1,), 1, leader_epoch=5, partition_epoch=7),
        log_end=9,
        flushed_end=2,
        high_watermark=6,
        cluster=FakeCluster(),
        limits=Limits(10_000, min_isr=2),
        now_ms=0,
    )
    assert state.high_watermark == 2
    assert state.on_flushed(4)
    assert state.high_watermark == 4
    assert state.on_flushed(9)
    assert state.high_watermark == 6
    assert not state.latest_known()


def test_watermark_never_decreases_when_a_follower_truncates() -> None:
    leader = Leader()
    leader.write(10)
    leader.fetch(2, 10)
    leader.fetch(3, 10)
    leader.fetch(3, 2)
    assert leader.hw == 10


def test_watermark_does_not_advance_below_the_minimum() -> None:
    leader = Leader(isr=(1,))
    leader.write(10)
    assert leader.hw == 0
    leader.fetch(2, 10)
    assert leader.members() == (1, 2)
    leader.log_shows((1, 2), 8)
    assert leader.hw == 10


def test_a_fetch_of_an_older_incarnation_is_ignored() -> None:
    leader = Leader(isr=(1, 2))
    leader.write(10)
    leader.cluster.epochs[2] = 500
    assert not leader.fetch(2, 10, broker_epoch=102)
    assert leader.hw == 0
    leader.fetch(2, 3, broker_epoch=500)
    assert leader.hw == 3


def test_a_fetch_of_a_broker_without_a_replica_is_ignored() -> None:
    leader = Leader()
    leader.write(10)
    assert not leader.state.on_fetch(9, 900, 10, leader.now_ms, None)
    assert leader.members() is None


# -- joining and leaving


def test_a_pending_addition_holds_the_watermark_until_the_log_decides() -> None:
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


def test_a_pending_removal_counts_only_when_committed() -> None:
    leader = Leader()
    leader.write(10)
    leader.now_ms += 10_001
    leader.fetch(2, 10)
    assert leader.members() == (1, 2)
    assert leader.hw == 0
    assert leader.log_shows((1, 2), 8)
    assert leader.hw == 10


def test_a_replica_below_the_watermark_or_the_elections_end_does_not_join() -> None:
    leader = Leader(isr=(1, 2), log_end=10, watermark=4)
    leader.fetch(3, 3)
    assert leader.members() is None
    leader.fetch(3, 9)
    assert leader.members() is None, "the previous leader may have acknowledged up to 10"
    leader.fetch(3, 10)
    assert leader.members() == (1, 2, 3)


def test_a_fenced_replica_or_another_broker_epoch_does_not_join() -> None:
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


def test_the_log_start_of_an_earlier_incarnation_proves_nothing() -> None:
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


def test_an_idle_follower_is_caught_up_by_fetches_that_do_not_name_the_partition() -> None:
    leader = Leader()
    for follower in (2, 3):
        leader.fetch(follower, 0)
    for _ in range(20):
        leader.now_ms += 5_000
        leader.hear(2)
        leader.hear(3)
    leader.write(1)
    assert leader.members() is None, "both had everything until now"


def test_a_partition_dropped_from_the_session_is_no_longer_caught_up_by_fetches() -> None:
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


def test_a_missing_answer_is_not_a_refusal() -> None:
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


def test_a_definite_refusal_frees_the_watermark() -> None:
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


def test_an_older_partition_epoch_changes_nothing() -> None:
    leader = Leader(isr=(1, 2))
    assert not leader.log_shows((1,), 7)
    assert leader.state.isr == (1, 2)


# -- answers to clients


@pytest.mark.parametrize(
    ("acks", "code"), [(-1, KafkaCode.NOT_ENOUGH_REPLICAS), (1, KafkaCode.NONE), (0, KafkaCode.NONE)]
)
def test_a_write_is_refused_before_the_append_if_the_isr_is_too_small(acks: int, code: KafkaCode) -> None:
    assert Leader(isr=(1,)).state.admits(acks) is code


@pytest.mark.parametrize("acks", [-2, 2, 7])
def test_other_acks_are_refused(acks: int) -> None:
    assert Leader().state.admits(acks) is KafkaCode.INVALID_REQUIRED_ACKS


def test_replicas_being_added_do_not_raise_the_minimum() -> None:
    """Otherwise a reassignment to more replicas would refuse writes until they have caught up."""
    leader = Leader(isr=(1,), min_isr=3)
    assert leader.state.admits(-1) is KafkaCode.NOT_ENOUGH_REPLICAS
    leader.write(4)
    assert leader.state.verdict(-1, 4) is KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    leader.state.on_assignment(Assignment((1, 2, 3), (1,), 1, 5, 8, adding=(2, 3)), leader.now_ms)
    assert leader.state.min_isr == 1
    assert leader.state.admits(-1) is KafkaCode.NONE
    assert leader.state.verdict(-1, 4) is KafkaCode.NONE, "committed immediately: one of one is in sync"


def test_the_minimum_is_never_above_the_replication_factor() -> None:
    assert Leader(min_isr=9).state.admits(-1) is KafkaCode.NONE


def test_acks_all_is_answered_when_the_watermark_has_passed() -> None:
    leader = Leader()
    leader.write(10)
    assert leader.state.verdict(-1, 10) is None
    leader.fetch(2, 10)
    leader.fetch(3, 9)
    assert leader.state.verdict(-1, 10) is None
    leader.fetch(3, 10)
    assert leader.state.verdict(-1, 10) is KafkaCode.NONE


def test_acks_all_fails_after_the_append_if_the_isr_has_shrunk() -> None:
    leader = Leader()
    leader.write(10)
    leader.log_shows((1,), 8)
    assert leader.state.verdict(-1, 10) is KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert leader.state.verdict(-1, 0) is KafkaCode.NONE


def test_acks_one_waits_for_the_leaders_flush_only() -> None:
    leader = Leader()
    leader.write(10, flush=False)
    assert leader.state.verdict(0, 10) is KafkaCode.NONE
    assert leader.state.verdict(1, 10) is None
    leader.state.on_flushed(10)
    assert leader.state.verdict(1, 10) is KafkaCode.NONE


def test_latest_is_unknown_until_the_watermark_reaches_the_end_at_election() -> None:
    leader = Leader(log_end=10, watermark=4)
    assert not leader.state.latest_known()
    leader.fetch(2, 10)
    leader.fetch(3, 9)
    assert not leader.state.latest_known()
    leader.fetch(3, 10)
    assert leader.state.latest_known()


# -- positions


def history(*epochs: tuple[int, int], end: int) -> EpochCache:
    """The history of a log whose epochs start at the given offsets."""
    return EpochCache(epochs, end)


LEADER_HISTORY = history((1, 0), (3, 10), (5, 20), end=30)


@pytest.mark.parametrize(
    ("offset", "epoch", "verdict"),
    [
        (30, 5, KafkaCode.NONE),
        (25, 5, KafkaCode.NONE),
        (10, 1, KafkaCode.NONE),
        (12, 1, Divergence(1, 10)),
        (15, 2, Divergence(1, 10)),
        (31, 5, Divergence(5, 30)),
        (25, 4, Divergence(3, 20)),
        (25, -1, KafkaCode.NONE),
        (31, -1, KafkaCode.OFFSET_OUT_OF_RANGE),
        (-5, -1, KafkaCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_a_position_is_compared_with_the_leaders_history(offset: int, epoch: int, verdict: object) -> None:
    assert check_position(offset, epoch, 0, LEADER_HISTORY, is_replica=False) == verdict


@pytest.mark.parametrize(
    ("offset", "epoch", "verdict"),
    [(10, 5, Divergence(4, 12)), (10, 4, KafkaCode.NONE), (14, 4, Divergence(4, 12)), (14, 6, KafkaCode.NONE)],
)
def test_divergence_is_judged_by_epoch_not_by_offset_alone(offset: int, epoch: int, verdict: object) -> None:
    """KIP-279: the leader's epoch 4 ends at 12, where 6 begins; offset 10 alone would fit in any epoch."""
    assert check_position(offset, epoch, 0, history((4, 0), (6, 12), end=20), is_replica=True) == verdict


@pytest.mark.parametrize("is_replica", [True, False])
def test_an_epoch_above_the_leaders_latest_diverges_at_its_end(is_replica: bool) -> None:
    assert check_position(25, 6, 0, LEADER_HISTORY, is_replica=is_replica) == Divergence(5, 30)


def test_a_replicas_position_without_an_epoch_fits_only_where_both_logs_begin() -> None:
    def check(offset: int, log_start: int, epochs: EpochCache) -> object:
        return check_position(offset, -1, log_start, epochs, is_replica=True)

    assert check(0, 0, LEADER_HISTORY) is KafkaCode.NONE
    assert check(25, 0, LEADER_HISTORY) is KafkaCode.OFFSET_OUT_OF_RANGE, (
        "within the leader's log, but of an unknown history"
    )
    assert check(30, 0, LEADER_HISTORY) is KafkaCode.OFFSET_OUT_OF_RANGE
    assert check(12, 12, LEADER_HISTORY) is KafkaCode.OFFSET_OUT_OF_RANGE, (
        "the leader knows which epoch is before its start"
    )
    assert check(12, 12, history((5, 12), end=30)) is KafkaCode.NONE, "neither knows the earlier history"


def test_a_position_below_the_log_start_is_out_of_range() -> None:
    assert check_position(4, 1, 5, LEADER_HISTORY, is_replica=True) is KafkaCode.OFFSET_OUT_OF_RANGE


def test_the_leader_epoch_of_a_fetch_is_checked() -> None:
    assert check_leader_epoch(-1, 5) is KafkaCode.NONE
    assert check_leader_epoch(5, 5) is KafkaCode.NONE
    assert check_leader_epoch(4, 5) is KafkaCode.FENCED_LEADER_EPOCH
    assert check_leader_epoch(6, 5) is KafkaCode.UNKNOWN_LEADER_EPOCH


# -- the follower


SENT = SentPosition(5, 25, 4)


def reply(**changes: Any) -> LeaderReply:
    fields: dict[str, Any] = {
        "code": 0,
        "high_watermark": 20,
        "log_start": 0,
        "diverging": None,
        "first_offset": -1,
    }
    return LeaderReply(**{**fields, **changes})


FOLLOWER_HISTORY = history((1, 0), (4, 12), end=25)


def test_a_reply_to_another_request_is_dropped() -> None:
    follower = FollowerState(1, 5, 10)
    assert follower.on_reply(SENT._replace(leader_epoch=4), reply(), 0, FOLLOWER_HISTORY) == Drop()
    assert follower.on_reply(SENT._replace(offset=24), reply(), 0, FOLLOWER_HISTORY) == Drop()
    unknown = SENT._replace(last_fetched_epoch=-1)  # from before a restart
    assert follower.on_reply(unknown, reply(), 0, FOLLOWER_HISTORY) == Drop()
    older = SENT._replace(last_fetched_epoch=1)  # from before a truncation: the log has grown back to 25 since
    assert follower.on_reply(older, reply(diverging=Divergence(1, 8)), 0, FOLLOWER_HISTORY) == Drop()


def test_divergence_comes_before_the_watermark() -> None:
    follower = FollowerState(1, 5, 10)
    answer = reply(diverging=Divergence(3, 20), high_watermark=25)
    assert follower.on_reply(SENT, answer, 0, FOLLOWER_HISTORY) == TruncateTo(12), (
        "epoch 3 is unknown here: truncate epoch 4"
    )
    assert follower.high_watermark == 10


def test_truncation_ends_where_both_logs_agree() -> None:
    follower = FollowerState(1, 5, 10)
    assert follower.on_reply(SENT, reply(diverging=Divergence(4, 18)), 0, FOLLOWER_HISTORY) == TruncateTo(18)
    assert follower.on_reply(SENT, reply(diverging=Divergence(1, 40)), 0, FOLLOWER_HISTORY) == TruncateTo(12)
    follower.on_truncated(8)
    assert follower.high_watermark == 8


def test_batches_must_start_where_the_log_ends() -> None:
    follower = FollowerState(1, 5, 10)
    assert follower.on_reply(SENT, reply(first_offset=25), 0, FOLLOWER_HISTORY) == AppendRecords(20)
    assert follower.on_reply(SENT, reply(first_offset=24), 0, FOLLOWER_HISTORY) == DelayFetch(KafkaCode.CORRUPT_MESSAGE)


def test_a_log_below_the_leaders_start_starts_over() -> None:
    follower = FollowerState(1, 5, 10)
    gone = reply(code=KafkaCode.OFFSET_OUT_OF_RANGE, log_start=100)
    assert follower.on_reply(SENT, gone, 0, FOLLOWER_HISTORY) == RestartAt(100)
    odd = reply(code=KafkaCode.OFFSET_OUT_OF_RANGE, log_start=3)
    assert follower.on_reply(SENT, odd, 0, FOLLOWER_HISTORY) == DelayFetch(KafkaCode.OFFSET_OUT_OF_RANGE)


def test_an_empty_log_of_an_unknown_epoch_starts_where_the_leaders_does() -> None:
    follower = FollowerState(1, 5, 10)
    empty = EpochCache((), 25)
    sent = SentPosition(5, 25, -1)
    refused = reply(code=KafkaCode.OFFSET_OUT_OF_RANGE, log_start=3)
    assert follower.on_reply(sent, refused, 25, empty) == RestartAt(3)
    assert follower.on_reply(sent, refused._replace(diverging=Divergence(4, 3)), 25, empty) == RestartAt(3, epoch=4)
    silent = reply(code=KafkaCode.OFFSET_OUT_OF_RANGE, log_start=-1)
    assert follower.on_reply(sent, silent, 25, empty) == DelayFetch(KafkaCode.OFFSET_OUT_OF_RANGE)


def test_a_log_that_diverges_below_its_start_starts_over() -> None:
    """After an unclean election: records that the leader lacks are truncated, and no common record remains."""
    follower = FollowerState(1, 5, 10)
    emptied = history((4, 12), end=25)
    sent = SentPosition(5, 25, 4)
    assert follower.on_reply(sent, reply(diverging=Divergence(4, 20), log_start=3), 25, emptied) == RestartAt(3)
    assert follower.on_reply(sent, reply(diverging=Divergence(3, 18), log_start=3), 13, emptied) == RestartAt(3)
    assert follower.on_reply(sent, reply(diverging=Divergence(4, 20), log_start=3), 20, emptied) == TruncateTo(20)
    silent = reply(diverging=Divergence(4, 20), log_start=-1)
    assert follower.on_reply(sent, silent, 25, emptied) == DelayFetch(KafkaCode.CORRUPT_MESSAGE)


@pytest.mark.parametrize(
    ("diverging", "step"),
    [
        (Divergence(3, 20), TruncateTo(12)),
        (Divergence(3, 30), TruncateTo(12)),
        (Divergence(4, 20), TruncateTo(20)),
        (Divergence(0, 7), RestartAt(1)),
        (Divergence(5, 20), DelayFetch(KafkaCode.CORRUPT_MESSAGE)),
    ],
)
def test_a_divergence_in_an_unknown_epoch_truncates_to_the_end_of_the_epoch_before(
    diverging: Divergence, step: object
) -> None:
    """The leader's end of such an epoch does not show where the histories diverge."""
    follower = FollowerState(1, 5, 10)
    assert follower.on_reply(SENT, reply(diverging=diverging, log_start=1), 8, FOLLOWER_HISTORY) == step


def test_the_followers_watermark_stays_within_its_log_and_never_decreases() -> None:
    follower = FollowerState(1, 5, 10)
    assert follower.watermark_after(40, 25)
    assert follower.high_watermark == 25
    assert not follower.watermark_after(3, 25)
    assert follower.high_watermark == 25


# Leaving by bytes


@pytest.mark.parametrize(("limit", "isr"), [(-1, (1, 2, 3)), (40, (1, 2, 3)), (39, (1, 2)), (0, (1, 2))])
def test_a_follower_that_lacks_too_many_bytes_leaves_at_once(limit: int, isr: tuple[int, ...]) -> None:
    """Ten bytes a record: follower 2 has everything, follower 3 lacks four records."""
    leader = Leader()
    leader.state._size_from = lambda offset: 10 * (leader.state.log_end - offset)
    leader.state.limits = leader.state.limits._replace(lag_max_bytes=limit)
    assert leader.state.wanted_isr(leader.now_ms) == (1, 2, 3)  # no follower has fetched yet: each gets its full time
    leader.write(10)
    leader.fetch(2, 10)
    leader.fetch(3, 6)
    assert leader.state.wanted_isr(leader.now_ms) == isr


def test_a_follower_that_left_by_its_lag_in_bytes_joins_below_the_limit() -> None:
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
