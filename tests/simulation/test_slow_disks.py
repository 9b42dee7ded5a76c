"""Leadership stays where it is while disks are slow, and leaves a slow disk for a fast one."""

from __future__ import annotations

import pytest

from simulation.kernel.store import Latency
from simulation.quorum.slow_disks import measure

P99_MS = 2000


@pytest.mark.parametrize("p50_ms", [100, 500])
def test_leadership_does_not_circulate_among_slow_disks(p50_ms: int) -> None:
    found = measure("all", Latency(p50_ms, P99_MS), 90, runs=1, op_gap_s=0.3)
    assert found.violation is None
    assert found.epochs <= 1
    assert found.acknowledged > 100


def test_a_fast_disk_takes_over_from_a_slow_leader_and_keeps_the_leadership() -> None:
    found = measure("all but one", Latency(500, P99_MS), 90, runs=1, op_gap_s=0.3)
    assert found.violation is None
    assert found.epochs == 1
    assert found.slow_leader_s < found.seconds / 2


def test_a_slow_follower_does_not_move_the_leadership() -> None:
    found = measure("one follower", Latency(500, P99_MS), 30, runs=1, op_gap_s=0.3)
    assert found.violation is None
    assert found.epochs == 0
