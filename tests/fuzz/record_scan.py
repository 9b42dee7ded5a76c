"""`python -m tests.fuzz.record_scan [--seconds S] [--seed N]`: the compiled check of records, fuzzed under sanitizers.

Builds `record_scan.c` with the address and undefined-behaviour sanitizers and runs it with one seed after another until
the time is up.  Ends with 1 and the sanitizer's report at the first bad read.  The tests run a short round of it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from quorumlog.wire.record_framing import Problem

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "quorumlog" / "wire" / "native"
ROUNDS = 1_000_000


def build(folder: Path) -> Path:
    """Compile the harness into `folder`."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    program = folder / "record_scan"
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", *sanitizers, f"-I{NATIVE}"]
    subprocess.run([*compiler, *flags, str(HERE / "record_scan.c"), "-o", str(program)], check=True)
    return program


def run(program: Path, seed: int, rounds: int) -> dict[Problem, int]:
    """Return how often each verdict was given.  Raises: CalledProcessError, with the sanitizer's report."""
    done = subprocess.run([str(program), str(seed), str(rounds)], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in done.stdout.splitlines())
    return {Problem(int(verdict)): int(count) for verdict, count in pairs}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.record_scan", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each runs a million bodies")
    options = parser.parse_args()
    totals = dict.fromkeys(Problem, 0)
    seed = options.seed
    ends_at = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        while time.monotonic() < ends_at:
            try:
                verdicts = run(program, seed, ROUNDS)
            except subprocess.CalledProcessError as error:
                print(f"seed {seed}:\n{error.stderr}", file=sys.stderr)
                return 1
            for problem, count in verdicts.items():
                totals[problem] += count
            seed += 1
    print(f"{sum(totals.values())} bodies, seeds {options.seed} to {seed - 1}, no bad read")
    for problem, count in totals.items():
        print(f"{count:12} {problem.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
