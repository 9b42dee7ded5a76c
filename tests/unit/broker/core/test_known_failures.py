"""Failures that others had in replicas, by the numbers of docs/known_failures.md."""

from __future__ import annotations

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
from tests.unit.broker.core.test_partition import Leader, history, reply


def test_k13091_the_watermark_moves_in_the_step_in_which_the_log_shows_the_shrink() -> None:
    """Nobody need fetch once more for it: the write that waits for the one who leaves is answered at once."""
    leader = Leader()
    leader.write(10)
    leader.fetch(2, 10)
    assert leader.state.verdict(-1, 10) is None
    assert leader.log_shows((1, 2), 8)
    assert (leader.hw, leader.state.verdict(-1, 10)) == (10, KafkaCode.NONE)


def test_k15583_the_watermark_stands_still_below_the_minimum_isr() -> None:
    leader = Leader(min_isr=2)
    leader.write(10)
    assert not leader.log_shows((1,), 8)
    leader.write(20)
    assert (leader.hw, leader.state.verdict(-1, 10)) == (0, KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    leader.fetch(2, 15)
    assert leader.hw == 0, "who may join is not in the ISR"
    leader.fetch(2, 20)
    assert leader.log_shows((1, 2), 9)
    assert leader.hw == 20


class Follower:
    """A follower's log as a list of the epochs of its records, and what its state makes of replies."""

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
        """As the fetcher does: cut first, and only a reply without a divergence moves the watermark."""
        step = self.state.on_reply(sent, answer, 0, self.epochs)
        if isinstance(step, TruncateTo):
            del self.log[step.end :]
            self.state.on_truncated(len(self.log))
        elif isinstance(step, AppendRecords):
            self.state.watermark_after(step.high_watermark, len(self.log))
        return step


def test_k14704_what_diverges_is_cut_off_before_any_watermark_is_believed() -> None:
    """The leader's watermark covers offsets at which this log has other records: none of them may be shown."""
    follower = Follower([4, 4, 5, 5, 5], high_watermark=2)
    follower.take(follower.sent(), reply(diverging=Divergence(4, 3), high_watermark=5))
    assert (follower.log, follower.state.high_watermark) == ([4, 4], 2)
    follower.take(follower.sent(), reply(high_watermark=5))
    assert follower.state.high_watermark == 2, "never past its own end"


def test_k18991_what_was_asked_in_another_leader_epoch_cuts_nothing_off() -> None:
    follower = Follower([4, 5, 5], high_watermark=1)
    asked = follower.sent(leader_epoch=6)  # under way while the metadata named the leader of epoch 7
    assert follower.take(asked, reply(diverging=Divergence(4, 1), high_watermark=3)) == Drop()
    assert follower.take(asked, reply(high_watermark=3)) == Drop()
    assert (follower.log, follower.state.high_watermark) == ([4, 5, 5], 1)


def test_k13254_watermark_and_isr_move_in_one_step_whichever_comes_first() -> None:
    """There they were two locks, taken in two orders.  Here one task owns a partition, and both ways end alike."""

    def scenario(flush_first: bool) -> LeaderState:
        leader = Leader(isr=(1, 2), min_isr=1)
        leader.fetch(3, 0)
        proposal = leader.state.propose(leader.now_ms)
        assert proposal is not None
        leader.write(5, flush=False)
        leader.fetch(2, 5)
        steps = [
            lambda: leader.state.on_answer(proposal, Answer.REFUSED, leader.now_ms),
            lambda: leader.state.on_flushed(5),
        ]
        moved = [step() for step in (steps[::-1] if flush_first else steps)]
        assert moved == [False, True], "each waits for the other, and the second moves the watermark"
        return leader.state

    states = [scenario(flush_first) for flush_first in (False, True)]
    assert [(each.high_watermark, each.maximal_isr()) for each in states] == [(5, {1, 2})] * 2


def test_k13790_records_that_come_again_or_late_change_nothing() -> None:
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
