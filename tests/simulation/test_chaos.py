"""Whole clusters, with brokers and a producer, under kills, pauses and cut links."""

from __future__ import annotations

import pytest

from simulation import chaos


@pytest.mark.parametrize("seed", range(10))
def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """The scenario itself compares what is read back with what was acknowledged, record by record."""
    seen, world = chaos.run(seed)
    assert seen["records"] > 100
    assert sum(seen["faults"].values()) > 3
    assert world.loop.time() > chaos.DURATION_S
