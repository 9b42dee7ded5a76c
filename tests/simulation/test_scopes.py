"""Transaction scopes in whole clusters: only the winners of ends become visible, under all kinds of faults."""

from __future__ import annotations

import pytest

from simulation.__main__ import CLUSTER
from simulation.cluster.compaction import Compaction
from simulation.cluster.plan import DAY_MS, LEADER, ClusterPlan, TopicPlan, Upkeep
from simulation.kernel.faults import Fault

COURSES: dict[str, tuple[Fault, ...]] = {
    "nothing fails": (),
    "leaders are killed": (Fault(0, "kill", 0.8, 0.8, (LEADER,), 0.11), Fault(1, "kill", 2.4, 0.5, (LEADER,), 0.61)),
    "leaders hang": (Fault(0, "pause", 0.7, 2.2, (LEADER,), 0.31), Fault(1, "pause", 1.5, 1.0, (LEADER,), 0.81)),
    "links are cut": (
        Fault(0, "cut", 0.6, 1.0, (LEADER, 12), 0.13),
        Fault(1, "isolate", 1.4, 0.8, (LEADER,), 0.51),
        Fault(2, "loss", 0.5, 2.5, (), 0.1),
    ),
    "the power fails": (Fault(0, "power", 0.9, 0.5, (LEADER,), 0.71), Fault(1, "power all", 2.2, 0.4, (11, 12, 13), 0)),
    "leaders move": tuple(Fault(n, "bounce", 0.5 + n * 0.7, 0.5, (LEADER,), 0.11 + 0.2 * n) for n in range(4)),
}
COMPACTED = "leaders are killed"
"""In this course, the log of the coordinator is compacted often."""
UPKEEP = Upkeep(0.5, 1000, 500, 300, 150, DAY_MS, DAY_MS, cleaner_ms=100)


def plan_of(course: str, seed: int = 1) -> ClusterPlan:
    """Return a run with few other clients."""
    return ClusterPlan(
        seed=seed,
        voters=1,
        spares=0,
        brokers=3,
        directories=1,
        topics=(TopicPlan("safe", 1, 3, 2),),
        chaos_s=6.0,
        gap_s=1.0,
        lag_max_bytes=-1,
        snapshots=False,
        small_fetches=False,
        converts=False,
        slow_disks=(),
        real_files=False,
        upkeep=UPKEEP if course == COMPACTED else None,
        real_store=False,
        older_releases=(),
        faults=COURSES[course],
        offsets=Compaction(keys=0, dirty_percent=0),
        drivers=(2,),
        executors=2,
        results_partitions=2,
    )


@pytest.mark.parametrize("course", COURSES)
def test_only_the_winners_of_ends_become_visible(course: str) -> None:
    assert CLUSTER.play(plan_of(course)).violation is None
