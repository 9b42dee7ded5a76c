"""Mutants of quorumlog/doctor."""

from __future__ import annotations

from tests.mutants import Mutant

STEPS = "quorumlog/doctor/steps.py"
PARTITION_TESTS = "tests/unit/quorumlog/doctor/test_doctor_partitions.py"

MUTANTS = (
    Mutant(
        "doctor gives up records of partitions that wait for another broker",
        STEPS,
        "if topic in others else [command]",
        "if topic in () else [command]",
        (f"{PARTITION_TESTS}::test_records_that_another_broker_still_holds_are_not_given_up",),
    ),
)
