"""The administrator's requests that need a preparation have an effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.cluster.draw import draw
from simulation.cluster.plan import ClusterPlan
from simulation.cluster.run import play
from simulation.kernel.faults import Fault


@pytest.fixture(scope="module")
def plan() -> ClusterPlan:
    """A run of four or five brokers that lose no data."""
    plans = map(draw, range(1000))
    return next(one for one in plans if one.brokers > 3 and not one.wipes and not one.rebuilds and not one.spares)


@pytest.mark.parametrize(
    ("kind", "seen"), [("unregister", "UnregisterBroker NONE"), ("cancel", "reassignment_cancelled")]
)
def test_a_request_of_the_administrator_that_needs_a_preparation_has_an_effect(
    plan: ClusterPlan, kind: str, seen: str
) -> None:
    """Some cancellations come too late, or draw the replicas that a partition has already."""
    times = (0.5,) if kind == "unregister" else (0.5, 0.8, 1.1, 1.4, 1.7)
    faults = tuple(Fault(number, kind, at_s, 1.0, (plan.broker_ids[-1],), 0.5) for number, at_s in enumerate(times))
    result = play(replace(plan, faults=faults, older_releases=()))
    assert result.violation is None
    assert result.seen[seen] > 0
