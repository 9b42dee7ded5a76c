"""Builds the fuzz harnesses in C with the address and undefined-behaviour sanitizers, and runs them.

A harness NAME.c takes a seed and a number of rounds, and prints how often each outcome occurred.
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
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "quorumlog" / "wire" / "native"
ROUNDS = 1_000_000

Outcome = TypeVar("Outcome", bound=IntEnum)


def compile_c(source: Path, output: Path, *flags: str) -> Path:
    """Compile one C file with warnings as errors; return `output`."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    command = [*compiler, "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags, str(source), "-o", str(output)]
    subprocess.run(command, check=True)
    return output


def build(name: str, folder: Path) -> Path:
    """Compile a harness into `folder`."""
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return compile_c(HERE / f"{name}.c", folder / name, *sanitizers, f"-I{NATIVE}")


def run(program: Path, outcomes: type[Outcome], seed: int, rounds: int) -> dict[Outcome, int]:
    """Return how often each outcome occurred.  Raises: CalledProcessError, with the sanitizer's report."""
    done = subprocess.run([str(program), str(seed), str(rounds)], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in done.stdout.splitlines())
    return {outcomes(int(outcome)): int(count) for outcome, count in pairs}


def main(name: str, outcomes: type[IntEnum], description: str) -> int:
    """Run a harness with one seed after another until the time is up."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{name}", description=description)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; each runs a million rounds")
    options = parser.parse_args()
    totals = dict.fromkeys(outcomes, 0)
    seed = options.seed
    ends_at = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        program = build(name, Path(folder))
        while time.monotonic() < ends_at:
            try:
                found = run(program, outcomes, seed, ROUNDS)
            except subprocess.CalledProcessError as error:
                print(f"seed {seed}:\n{error.stderr}", file=sys.stderr)
                return 1
            for outcome, count in found.items():
                totals[outcome] += count
            seed += 1
    print(f"seeds {options.seed} to {seed - 1} with {ROUNDS} rounds each, no bad access")
    for outcome, count in totals.items():
        print(f"{count:12} {outcome.name}")
    return 0
