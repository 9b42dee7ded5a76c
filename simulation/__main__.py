"""Attack the quorum (`python -m simulation --seeds 0:1000`), or whole clusters with brokers and clients (`--cluster`).

A seed determines the nodes, topics, faults and clients of a run.  `--seed N --trace` prints one run, and `--faults 3,7`
keeps only these faults of its plan.  `--mutants` shows that known mistakes are found.  Exit status: 0 if all invariants
held, 1 if one was violated.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any

from simulation.cluster import draw as cluster_draw
from simulation.cluster import mutants as cluster_mutants
from simulation.cluster import run as cluster_run
from simulation.cluster.plan import ClusterPlan
from simulation.cluster.world import ClusterResult
from simulation.kernel.cpu_limit import HANG
from simulation.kernel.mutation import hunt_all
from simulation.kernel.shrink import shrink
from simulation.quorum import mutants, slow_disks
from simulation.quorum import run as quorum_run
from simulation.quorum.coverage import ROWS, Row, describe
from simulation.quorum.plan import KINDS, Plan, draw
from simulation.quorum.world import Result

BLOCK = 10
PROGRESS = 500


class Sums:
    """The sums over many runs of either kind."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.seeds = self.events = self.acknowledged = 0
        self.virtual_s = 0.0
        self.faults: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self._digest = hashlib.sha256()

    def add(self, result: Any) -> None:
        self._digest.update(result.digest.encode())
        self.seeds += 1
        self.events += result.events
        self.acknowledged += result.acknowledged
        self.virtual_s += result.virtual_s
        self.faults += result.faults
        self.seen += result.seen

    def speed(self) -> str:
        took = max(time.monotonic() - self.began, 1e-9)
        return (
            f"seeds         {self.seeds} in {took:.1f} s ({self.seeds / took:.1f} per second), "
            f"{self.virtual_s:.0f} s of virtual time, digest {self._digest.hexdigest()[:16]}"
        )

    def lines(self, kinds: Sequence[str]) -> list[str]:
        return [
            "faults        " + ", ".join(f"{kind} {self.faults[kind]}" for kind in kinds if self.faults[kind]),
            "events seen   " + ", ".join(f"{name} {times}" for name, times in sorted(self.seen.items())),
        ]

    def report(self) -> str:
        raise AssertionError("a subclass implements it")


class Totals(Sums):
    """The sums of runs of the quorum."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = self.operations = self.undecided = 0
        self.transitions: Counter[Row] = Counter()

    def add(self, result: Result) -> None:
        super().add(result)
        self.steps += result.steps
        self.operations += result.operations
        self.undecided += result.undecided
        self.transitions += result.transitions

    def report(self) -> str:
        missed = [row for row in ROWS if self.transitions[row] == 0]
        lines = [
            self.speed(),
            f"events        {self.events}, including {self.steps} steps of a core",
            f"operations    {self.operations}, acknowledged {self.acknowledged}, undecided histories {self.undecided}",
            *self.lines(KINDS),
            f"transitions   {len(ROWS) - len(missed)} of {len(ROWS)} rows of the table: "
            + ", ".join(f"{describe(row)} {self.transitions[row]}" for row in ROWS if self.transitions[row]),
        ]
        if missed:
            lines.append("not reached   " + ", ".join(describe(row) for row in missed))
        return "\n".join(lines)


class ClusterTotals(Sums):
    """The sums of runs of whole clusters."""

    def __init__(self) -> None:
        super().__init__()
        self.checks = self.written = self.consumed = 0

    def add(self, result: ClusterResult) -> None:
        super().add(result)
        self.checks += result.checks
        self.written += result.written
        self.consumed += result.consumed

    def report(self) -> str:
        missed = [kind for kind in cluster_draw.KINDS if not self.faults[kind]]
        return "\n".join(
            [
                self.speed(),
                f"events        {self.events}, with {self.checks} checks of invariants",
                f"batches       {self.written} written, {self.acknowledged} acknowledged; {self.consumed} records read",
                *self.lines(cluster_draw.KINDS),
                *(["unused faults " + ", ".join(missed)] if missed else []),
            ]
        )


@dataclass(frozen=True)
class Kind:
    """One of the two simulators.  option: its command line option."""

    option: str
    draw: Callable[[int], Any]
    play: Callable[[Any], Any]
    trace: Callable[[Any], Any]
    totals: Callable[[], Sums]

    def run(self, seed: int) -> Any:
        return self.play(self.draw(seed))


QUORUM = Kind("", draw, quorum_run.play, partial(quorum_run.play, traced=True), Totals)
CLUSTER = Kind("--cluster ", cluster_draw.draw, cluster_run.play, partial(cluster_run.play, traced=True), ClusterTotals)


def _play_block(of_clusters: bool, seeds: list[int]) -> list[Any]:
    kind = CLUSTER if of_clusters else QUORUM
    return [kind.run(seed) for seed in seeds]


def _results(kind: Kind, seeds: Iterator[int], jobs: int) -> Iterator[Any]:
    """Yield the results of the seeds, in their order, using `jobs` processes."""
    if jobs == 1:
        yield from (kind.run(seed) for seed in seeds)
        return
    block = partial(_play_block, kind is CLUSTER)
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [pool.submit(block, some) for some in islice(_blocks(seeds), 2 * jobs)]
        while waiting:
            yield from waiting.pop(0).result()
            waiting += [pool.submit(block, some) for some in islice(_blocks(seeds), 1)]
        pool.shutdown(cancel_futures=True)


def _blocks(seeds: Iterator[int]) -> Iterator[list[int]]:
    while block := list(islice(seeds, BLOCK)):
        yield block


def attack(
    kind: Kind, seeds: Iterator[int], jobs: int = 1, minutes: float | None = None, keep_going: bool = False
) -> int:
    """Run seeds until they end, the time is up, or one fails, and print a report.  Return the exit status.

    With `keep_going`, print failing seeds and continue.
    """
    totals, failed = kind.totals(), 0
    for result in _results(kind, seeds, jobs):
        totals.add(result)
        if result.violation is not None:
            failed += 1
            if not keep_going:
                print(totals.report())
                return explain(kind, result)
            print(f"seed {result.plan.seed}: {result.violation}", flush=True)
        if keep_going and totals.seeds % PROGRESS == 0:
            took = time.monotonic() - totals.began
            print(f"{totals.seeds} seeds in {took:.0f} s, {failed} failed", flush=True)
        if minutes is not None and time.monotonic() - totals.began >= 60 * minutes:
            break
    print(totals.report())
    print(f"{failed} seeds failed" if failed else "all invariants held")
    return 1 if failed else 0


def explain(kind: Kind, result: Any) -> int:
    """Shrink a failing seed, and print it with the command that replays it.  Return the exit status, 1."""
    print(f"\nseed {result.plan.seed}: {result.violation}")
    if result.violation.startswith(HANG):
        print(f"\nnot shrunk, because each run could hang\npython -m simulation {kind.option}--seed {result.plan.seed}")
        return 1
    best, runs = shrink(result, kind.play)
    faults = best.plan.faults
    print(f"\nshrunk from {len(result.plan.faults)} faults to {len(faults)} in {runs} runs: {best.violation}")
    for fault in faults:
        print(f"  {fault}")
    numbers = ",".join(str(fault.number) for fault in faults) or "none"
    print(f"\npython -m simulation {kind.option}--seed {result.plan.seed} --faults {numbers} --trace")
    return 1


def replay(kind: Kind, seed: int, faults: str | None, traced: bool) -> int:
    """Play one seed; with `traced`, print every message, fault and effect.  Return the exit status."""
    plan = kind.draw(seed)
    if faults is not None:
        plan = plan.only({int(number) for number in faults.split(",") if number.isdecimal()})
    totals = kind.totals()  # the time counts from here
    result = (kind.trace if traced else kind.play)(plan)
    for line in result.lines:
        print(line)
    print(f"seed {seed}: {_described(plan)}, digest {result.digest[:16]}")
    for fault in plan.faults:
        print(f"  {fault}")
    totals.add(result)
    print(totals.report())
    print(result.violation or "all invariants held")
    return 0 if result.violation is None else 1


def _described(plan: Plan | ClusterPlan) -> str:
    if isinstance(plan, Plan):
        return f"{plan.voters} voters, {plan.observers} observers"
    topics = ", ".join(str(topic) for topic in plan.topics)
    return f"{plan.voters} voters, {plan.brokers} brokers with {plan.directories} data directories, {topics}"


def attack_cluster_seed(seed: int) -> str | None:
    """Return the violation of a seed, for `hunt_all`."""
    violation: str | None = CLUSTER.run(seed).violation
    return violation


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    return int(first), int(last)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default=None, metavar="FIRST:END", help="END excluded (default 0:200)")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--faults", metavar="N,N", help="with --seed: only these faults of its plan; 'none': no fault")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every message, fault and effect")
    parser.add_argument("--minutes", type=float, help="stop after this time; without --seeds, run seeds until then")
    parser.add_argument("--jobs", type=int, default=1, help=f"number of processes (CPUs here: {os.cpu_count()})")
    parser.add_argument("--keep-going", action="store_true", help="print failing seeds and progress, and continue")
    parser.add_argument("--cluster", action="store_true", help="run whole clusters, with brokers and clients")
    parser.add_argument("--mutants", action="store_true", help="show that known mistakes are found")
    parser.add_argument("--slow-disks", action="store_true", help="show how often leadership moves when disks are slow")
    options = parser.parse_args()
    first, end = options.seeds or (0, 200)
    seeds: Iterator[int] = iter(range(first, end))
    if options.minutes is not None and options.seeds is None:
        seeds = count(0)
    if options.mutants and options.cluster:
        return hunt_all(cluster_mutants.MUTANTS, attack_cluster_seed)
    if options.slow_disks:
        for line in slow_disks.table():
            print(line, flush=True)
        return 0
    if options.mutants:
        return hunt_all(mutants.MUTANTS, mutants.attack_quorum)
    kind = CLUSTER if options.cluster else QUORUM
    if options.seed is not None:
        return replay(kind, options.seed, options.faults, options.trace)
    return attack(kind, seeds, options.jobs, options.minutes, options.keep_going)


if __name__ == "__main__":
    sys.exit(main())
