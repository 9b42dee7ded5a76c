"""Mutants of broker/server."""

from __future__ import annotations

from tests.mutants import Mutant

STALL_DETECTOR = "broker/server/stall_detector.py"

STALL_TESTS = "tests/unit/broker/server/test_stall_detector.py"

MUTANTS = (
    Mutant(
        "an answer from before a hold-up ends it",
        STALL_DETECTOR,
        "if hold_up == self.held_up:",
        "if hold_up <= self.held_up:",
        (f"{STALL_TESTS}::test_an_answer_to_what_was_asked_before_ends_nothing",),
    ),
)
