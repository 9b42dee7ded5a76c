"""Failures of other systems in replicas, by the numbers of docs/known_failures.md."""

from __future__ import annotations

from functools import partial

from broker.core.epochs import EpochCache
from broker.core.partition import (
    Answer,
    AppendRecords,
    Divergence,
    Drop,
    FollowerState,
    LeaderReply,
    LeaderState,
    SentPosition,
    TruncateTo,
)
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.partition_driver import Leader, history, reply


def test_k13091_the_watermark_moves_in_the_step_that_applies_the_committed_shrink() -> None:
    """No further fetch is needed: a write that waits for the leaving replica is answered immediately."""
    leader = Leader()
    leader.write(10)
    leader.fetch(2, 10)
    assert leader.state.verdict(-1, 10) is None
    assert leader.log_shows((1, 2), 8)
    assert (leader.hw, leader.state.verdict(-1, 10)) == (10, KafkaCode.NONE)


def test_k15583_the_watermark_does_not_advance_below_the_minimum_isr() -> None:
    leader = Leader(min_isr=2)
    leader.write(10)
    assert not leader.log_shows((1,), 8)
    leader.write(20)
    assert (leader.hw, leader.state.verdict(-1, 10)) == (0, KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    leader.fetch(2, 15)
    assert leader.hw == 0, "only a replica outside the ISR may join"
    leader.fetch(2, 20)
    assert leader.log_shows((1, 2), 9)
    assert leader.hw == 20


class Follower:
    """A follower's log as a list of the epochs of its records, and the decisions of its state about replies."""

    def __init__(self, epochs: list[int], high_watermark: int) -> None:
        self.log = epochs
        self.state = FollowerState(1, 7, high_watermark)

    @property
    def epochs(self) -> EpochCache:
        starts: dict[int, int] = {}
        for offset, each in enumerate(self.log):
            starts.setdefault(each, offset)
        return history(*starts.items(), end=len(self.log))

    def sent(self, leader_epoch: int = 7) -> SentPosition:
        return SentPosition(leader_epoch, len(self.log), self.log[-1])

    def take(self, sent: SentPosition, answer: LeaderReply) -> object:
        """Do as the fetcher does: truncate first; only a reply without a divergence moves the watermark."""
        step = self.state.on_reply(sent, answer, 0, self.epochs)
        if isinstance(step, TruncateTo):
            del self.log[step.end :]
            self.state.on_truncated(len(self.log))
        elif isinstance(step, AppendRecords):
            self.state.on_leader_watermark(step.high_watermark, len(self.log))
        return step


def test_k14704_a_divergence_truncates_before_any_watermark_is_accepted() -> None:
    """The leader's watermark covers offsets at which this log has other records, which no consumer may see."""
    follower = Follower([4, 4, 5, 5, 5], high_watermark=2)
    follower.take(follower.sent(), reply(diverging=Divergence(4, 3), high_watermark=5))
    assert (follower.log, follower.state.high_watermark) == ([4, 4], 2)
    follower.take(follower.sent(), reply(high_watermark=5))
    assert follower.state.high_watermark == 2, "the watermark never exceeds the follower's own log end"


def test_k18991_a_reply_of_another_leader_epoch_truncates_nothing() -> None:
    follower = Follower([4, 5, 5], high_watermark=1)
    asked = follower.sent(leader_epoch=6)  # under way while the metadata named the leader of epoch 7
    assert follower.take(asked, reply(diverging=Divergence(4, 1), high_watermark=3)) == Drop()
    assert follower.take(asked, reply(high_watermark=3)) == Drop()
    assert (follower.log, follower.state.high_watermark) == ([4, 5, 5], 1)


def test_k13254_a_refused_proposal_and_a_flush_give_the_same_state_in_either_order() -> None:
    """In Kafka, two locks were taken in two orders.

    In quorumlog, one task owns a partition, and both orders end in the same state.
    """

    def scenario(flush_first: bool) -> LeaderState:
        leader = Leader(isr=(1, 2), min_isr=1)
        leader.fetch(3, 0)
        proposal = leader.state.propose(leader.now_ms)
        assert proposal is not None
        leader.write(5, flush=False)
        leader.fetch(2, 5)
        steps = [
            partial(leader.state.on_answer, proposal, Answer.REFUSED, leader.now_ms),
            partial(leader.state.on_flushed, 5),
        ]
        moved = [step() for step in (steps[::-1] if flush_first else steps)]
        assert moved == [False, True], "each waits for the other, and the second moves the watermark"
        return leader.state

    states = [scenario(flush_first) for flush_first in (False, True)]
    assert [(each.high_watermark, set(each.maximal_isr())) for each in states] == [(5, {1, 2})] * 2


def test_k13790_repeated_or_late_partition_changes_do_nothing() -> None:
    leader = Leader(isr=(1, 2))
    leader.fetch(3, 0)
    proposal = leader.state.propose(leader.now_ms)
    assert proposal is not None
    leader.log_shows((1, 2, 3), 8)
    leader.write(4)
    for follower in (2, 3):
        leader.fetch(follower, 4)
    for isr, partition_epoch in (((1, 2, 3), 8), ((1, 2), 7), ((1,), 6)):
        assert not leader.log_shows(isr, partition_epoch)
        assert (leader.state.isr, leader.state.partition_epoch, leader.hw) == ((1, 2, 3), 8, 4)
        assert leader.state.followers[3].end == 4
