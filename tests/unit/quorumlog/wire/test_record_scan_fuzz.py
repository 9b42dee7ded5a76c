"""A short fuzz run of the compiled check with sanitizers; `python -m tests.fuzz.record_scan` runs longer."""

from __future__ import annotations

from pathlib import Path

from quorumlog.wire.record_framing import Problem
from tests.fuzz.record_scan import build, run


def test_mutated_bodies_cause_no_bad_read_and_meet_every_verdict(tmp_path: Path) -> None:
    verdicts = run(build(tmp_path), seed=7, rounds=50_000)
    assert sum(verdicts.values()) == 50_000
    assert [problem.name for problem in Problem if verdicts[problem] < 10] == []
