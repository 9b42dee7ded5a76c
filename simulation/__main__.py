"""Attack the quorum: `python -m simulation --seeds 0:1000`.

A seed draws everything: voters, observers, faults, clients.  `--seed N --trace` replays one, readably; `--faults 3,7`
leaves all other faults of its plan out.  `--cluster` runs whole clusters with brokers instead.  `--mutants` shows that
known mistakes are found.  Exit status: 0 when every promise held, 1 when one was broken.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import count, islice

from simulation import chaos, mutants
from simulation.coverage import ROWS, Row, describe
from simulation.plan import KINDS, Plan, draw
from simulation.quorum_world import Result, play
from simulation.shrink import shrink

BLOCK = 10
PROGRESS = 500


class Totals:
    """Sums over many runs, and their report."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.seeds = self.events = self.steps = self.operations = self.acknowledged = self.undecided = 0
        self.virtual_s = 0.0
        self.faults: Counter[str] = Counter()
        self.seen: Counter[str] = Counter()
        self.transitions: Counter[Row] = Counter()

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.events += result.events
        self.steps += result.steps
        self.operations += result.operations
        self.acknowledged += result.acknowledged
        self.undecided += result.undecided
        self.virtual_s += result.virtual_s
        self.faults += result.faults
        self.seen += result.seen
        self.transitions += result.transitions

    def report(self) -> str:
        took = max(time.monotonic() - self.began, 1e-9)
        missed = [row for row in ROWS if self.transitions[row] == 0]
        lines = [
            f"seeds         {self.seeds} in {took:.1f} s ({self.seeds / took:.1f} per second), "
            f"{self.virtual_s:.0f} s of virtual time",
            f"events        {self.events}, of them {self.steps} steps of a core",
            f"operations    {self.operations}, acknowledged {self.acknowledged}, histories undecided {self.undecided}",
            "faults        " + ", ".join(f"{kind} {self.faults[kind]}" for kind in KINDS if self.faults[kind]),
            "seen          " + ", ".join(f"{what} {times}" for what, times in sorted(self.seen.items())),
            f"transitions   {len(ROWS) - len(missed)} of {len(ROWS)} rows of the table: "
            + ", ".join(f"{describe(row)} {self.transitions[row]}" for row in ROWS if self.transitions[row]),
        ]
        if missed:
            lines.append("never seen    " + ", ".join(describe(row) for row in missed))
        return "\n".join(lines)


def play_calmly(plan: Plan) -> Result:
    """Play without the garbage collector's help: it would look through a whole world again and again.  Afterwards it
    looks through that world, not through the program, which stays."""
    gc.disable()
    _freeze_program()
    try:
        return play(plan)
    finally:
        gc.enable()
        gc.collect()


@cache
def _freeze_program() -> None:
    """Once: what is there before the first world is no garbage."""
    gc.freeze()


def _play_block(seeds: list[int]) -> list[Result]:
    return [play_calmly(draw(seed)) for seed in seeds]


def _results(seeds: Iterator[int], jobs: int) -> Iterator[Result]:
    """Runs of the seeds, in their order, on `jobs` processes."""
    if jobs == 1:
        yield from (play_calmly(draw(seed)) for seed in seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_play_block, block) for block in islice(_blocks(seeds), 2 * jobs)]
        while waiting:
            yield from waiting.pop(0).result()
            waiting += [pool.submit(_play_block, block) for block in islice(_blocks(seeds), 1)]
        pool.shutdown(cancel_futures=True)


def _blocks(seeds: Iterator[int]) -> Iterator[list[int]]:
    while block := list(islice(seeds, BLOCK)):
        yield block


def attack(seeds: Iterator[int], jobs: int, minutes: float | None, keep_going: bool = False) -> int:
    """Run seeds until they end or the time is up, or one fails (with `keep_going` it is named); print what happened."""
    totals, failed = Totals(), 0
    for result in _results(seeds, jobs):
        totals.add(result)
        if result.violation is not None:
            failed += 1
            if not keep_going:
                print(totals.report())
                return explain(result)
            print(f"seed {result.plan.seed}: {result.violation}", flush=True)
        if keep_going and totals.seeds % PROGRESS == 0:
            took = time.monotonic() - totals.began
            print(f"{totals.seeds} seeds in {took:.0f} s, {failed} failed", flush=True)
        if minutes is not None and time.monotonic() - totals.began >= 60 * minutes:
            break
    print(totals.report())
    print(f"{failed} seeds failed" if failed else "every promise held")
    return 1 if failed else 0


def explain(result: Result) -> int:
    """Print a failing seed, shrunk, and how to replay it."""
    print(f"\nseed {result.plan.seed}: {result.violation}")
    best, runs = shrink(result, play_calmly)
    faults = best.plan.faults
    print(f"\nshrunk from {len(result.plan.faults)} faults to {len(faults)} in {runs} runs: {best.violation}")
    for fault in faults:
        print(f"  {fault}")
    numbers = ",".join(str(fault.number) for fault in faults) or "none"
    print(f"\npython -m simulation --seed {result.plan.seed} --faults {numbers} --trace")
    return 1


def replay(seed: int, faults: str | None, traced: bool) -> int:
    """Play one seed; with `traced`, every message, fault and effect."""
    plan = draw(seed)
    if faults is not None:
        plan = plan.only({int(number) for number in faults.split(",") if number.isdecimal()})
    result = play(plan, traced)
    for line in result.lines:
        print(line)
    print(f"seed {seed}: {plan.voters} voters, {plan.observers} observers, digest {result.digest[:16]}")
    for fault in plan.faults:
        print(f"  {fault}")
    totals = Totals()
    totals.add(result)
    print(totals.report())
    print(result.violation or "every promise held")
    return 0 if result.violation is None else 1


def attack_clusters(seeds: Iterator[int], minutes: float | None) -> int:
    """Whole clusters with brokers and producers."""
    began, done, records = time.monotonic(), 0, 0
    faults: Counter[str] = Counter()
    for seed in seeds:
        try:
            result, world = chaos.run(seed)
        except Exception as failure:
            print(f"seed {seed}: {failure}\n\npython -m simulation --cluster --seed {seed}")
            return 1
        done += 1
        records += result["records"]
        faults += Counter(result["faults"])
        del world
        if minutes is not None and time.monotonic() - began >= 60 * minutes:
            break
    took = time.monotonic() - began
    print(f"seeds         {done} in {took:.1f} s ({done / took:.2f} per second)")
    print(f"records       {records}, every one acknowledged and read back once")
    print("faults        " + ", ".join(f"{kind} {times}" for kind, times in sorted(faults.items())))
    return 0


def _seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    return int(first), int(last)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m simulation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default=None, metavar="FIRST:END", help="END is not run (0:200)")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--faults", metavar="N,N", help="with --seed: only these faults of its plan, or none")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    parser.add_argument("--minutes", type=float, help="stop after so long; without --seeds, run on until then")
    parser.add_argument("--jobs", type=int, default=1, help=f"processes to run on (this machine: {os.cpu_count()})")
    parser.add_argument("--keep-going", action="store_true", help="name failing seeds, and go on; say how far it is")
    parser.add_argument("--cluster", action="store_true", help="whole clusters, with brokers and producers")
    parser.add_argument("--mutants", action="store_true", help="show that known mistakes are found")
    options = parser.parse_args()
    first, end = options.seeds or (0, 200)
    seeds: Iterator[int] = iter(range(first, end))
    if options.minutes is not None and options.seeds is None:
        seeds = count(0)
    if options.mutants:
        return mutants.hunt_all()
    if options.cluster:
        return attack_clusters(iter([options.seed]) if options.seed is not None else seeds, options.minutes)
    if options.seed is not None:
        return replay(options.seed, options.faults, options.trace)
    return attack(seeds, options.jobs, options.minutes, options.keep_going)


if __name__ == "__main__":
    sys.exit(main())
