"""ISR proposals, and the controller's answers to them."""

from __future__ import annotations

import pytest

from broker.core.partition import Answer
from broker.replica.isr import answer_of
from tests.unit.broker.replica.rig import Rig


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("NONE", Answer.ACCEPTED),
        ("INELIGIBLE_REPLICA", Answer.REFUSED),
        ("FENCED_LEADER_EPOCH", Answer.OVERTAKEN),
        ("INVALID_UPDATE_VERSION", Answer.OVERTAKEN),
        ("STALE_BROKER_EPOCH", Answer.OVERTAKEN),
        ("NOT_CONTROLLER", Answer.UNKNOWN),
        ("TIMED_OUT", Answer.UNKNOWN),
        ("OUTCOME_UNKNOWN", Answer.UNKNOWN),
        ("", Answer.UNKNOWN),
    ],
)
def test_each_error_code_determines_the_outcome_of_an_isr_proposal(word: str, answer: Answer) -> None:
    """A proposal that was not answered may still be accepted.  Until it is decided, the high watermark waits for it."""
    assert answer_of(word) is answer


async def test_an_unanswered_isr_proposal_is_replaced_after_a_stall(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the decision, the watermark waits for the proposed follower, even if that follower has stopped."""
    await rig.create((1, 2))
    await rig.change(isr=(1,))
    await rig.write(b"x")
    await rig.fetch(2, 1, 0)
    keeper = rig.role.isr
    (asked,) = keeper._propose()
    assert asked.proposal.members == (1, 2)
    keeper._on_answer(asked, "TIMED_OUT")
    with monkeypatch.context() as stalled:
        stalled.setattr(rig.context, "is_awake", lambda: False)
        assert keeper._propose() == []
    leader = rig.leader
    leader.followers[2].caught_up_ms -= 60_000  # it stopped long ago
    await rig.write(b"y")
    assert leader.high_watermark == 1
    await keeper._look_at_all()
    monkeypatch.setattr(leader._pending, "not_before_ms", 0)
    (again,) = keeper._propose()
    assert again.proposal.members == (1,)
