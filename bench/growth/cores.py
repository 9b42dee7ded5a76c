"""Growth with the cores of a machine: the same load while all servers share one core, then two, and so on.

Three controllers and three brokers, one topic with 12 partitions and three replicas, records of 1,000 B, acks=all,
fsynced.  The servers are limited with sched_setaffinity; the client is not limited.  If the servers have all cores, the
client competes with them.  A machine with two cores therefore shows less than a factor of two, and
`cores_used` shows how much of that is missing.

    cores_used      processor time of all servers while producing, divided by the wall time
    others          as in `bench.growth.record_sizes`
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from bench.clusters import quorumlog_cluster
from bench.growth.curve import Bound, panels, show_curve
from bench.growth.record_sizes import Passed, pass_through, row
from bench.plots import Panel
from bench.processes import limit_cores

PORT_BASE: Final = 28_500
RECORD_BYTES: Final = 1_000
BOUND: Final = Bound(
    "each server is one process with one event loop, which runs on one core at a time; only its flushes, and checks of "
    "large compressed batches, run in threads",
    "several brokers on one host use several cores; a partition has one leader, so it does not grow with them",
)


class Size(NamedTuple):
    """How much is measured.  seconds: the time of each load."""

    rounds: int
    seconds: float


FULL: Final = Size(3, 5.0)
TINY: Final = Size(1, 0.3)


def run(tiny: bool) -> dict[str, Any]:
    size = TINY if tiny else FULL
    cores = sorted(os.sched_getaffinity(0))
    taken: dict[int, list[Passed]] = {count: [] for count in core_counts(len(cores))}
    with quorumlog_cluster(PORT_BASE) as cluster:
        for number in range(size.rounds):
            for count in list(taken) if number % 2 == 0 else reversed(taken):
                limit_cores(cluster.pids.values(), set(cores[:count]))
                taken[count].append(pass_through(cluster, f"cores-{count}-{number}", RECORD_BYTES, size.seconds))
    results = [{"cores": count, "cores_used": cores_used(rounds), **row(rounds)} for count, rounds in taken.items()]
    return {"rounds": size.rounds, "results": results, "bound": BOUND._asdict()}


def core_counts(cores: int) -> list[int]:
    """Return the powers of two below the number of cores, and that number."""
    return [*(1 << each for each in range(cores.bit_length()) if 1 << each < cores), cores]


def cores_used(rounds: Sequence[Passed]) -> float:
    return round(median(each.servers_processor_s / each.produce_s for each in rounds), 2)


def present(result: dict[str, Any]) -> list[Panel]:
    show_curve("growth with the cores of the servers", result)
    figures: dict[str, tuple[str, Sequence[str]]] = {
        "Bytes": ("MB/s", ("produced_mb_s", "consumed_mb_s")),
        "Cores that the servers use": ("cores", ("cores_used",)),
        "Processor time of the servers": ("s/GB", ("servers_s_gb",)),
    }
    return panels(result["results"], "cores", figures)
