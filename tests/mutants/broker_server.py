"""Mutants of broker/server."""

from __future__ import annotations

from tests.mutants import Mutant

STALL_DETECTOR = "broker/server/stall_detector.py"

STALL_TESTS = "tests/unit/broker/server/test_stall_detector.py"

MUTANTS = (
    Mutant(
        "an answer from before a stall ends it",
        STALL_DETECTOR,
        "if stall == self.current:",
        "if stall <= self.current:",
        (f"{STALL_TESTS}::test_an_answer_to_what_was_asked_before_ends_nothing",),
    ),
)
