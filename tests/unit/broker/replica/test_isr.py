"""The controller's answers to ISR proposals."""

from __future__ import annotations

import pytest

from broker.core.partition import Answer
from broker.replica.isr import answer_of


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
def test_only_a_definite_refusal_voids_a_proposal(word: str, answer: Answer) -> None:
    """A copy that was never answered may still be accepted, and holds the watermark until then."""
    assert answer_of(word) is answer
