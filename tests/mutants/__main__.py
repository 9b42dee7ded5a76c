"""Plant each mutant in a copy of the tree, and check that a test fails: `python -m tests.mutants [ROOM…] [--name …]`.

Exit status: 0 when every mutant was caught, 1 when one was not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import TREE, Mutant, mutants_of, room_names

DEADLINE_S = 60
OUTCOMES = {0: "missed", 1: "caught"}
"""By pytest's exit status; with any other, pytest ran no test to its end."""

_NOT_COPIED = shutil.ignore_patterns(".*", "*.egg-info")


def outcome_of(mutant: Mutant, tree: Path) -> str:
    """Run the tests of `mutant` in `tree`, a copy of the repository in which it is planted meanwhile.

    Return "caught", "missed", "late" (still running after a minute), or "broken" (pytest could not run the tests).
    """
    path = tree / mutant.file
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has the old text {text.count(mutant.old)} times"
    try:
        _write(path, text.replace(mutant.old, mutant.new))
        return _run(mutant.caught_by, tree, DEADLINE_S)
    finally:
        _write(path, text)


def _write(path: Path, text: str) -> None:
    """Write a module, and delete its compiled form, which could seem up to date by its time."""
    path.write_text(text)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def _run(selection: Sequence[str], tree: Path, deadline_s: int) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *selection]
    environment = {**os.environ, "PYTHONPATH": str(tree), "HYPOTHESIS_STORAGE_DIRECTORY": str(tree / ".hypothesis")}
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return OUTCOMES.get(process.wait(deadline_s), "broken")
    except subprocess.TimeoutExpired:
        return "late"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # including processes that the tests started
            process.wait()


def hunt(room: str, name: str, tree: Path) -> list[str]:
    """Print and return the outcome of each mutant of `room` that has `name` in its name.

    First all their tests run on the unchanged product: a test that fails there catches nothing.
    """
    mutants = [mutant for mutant in mutants_of(room) if name in mutant.name]
    selection = sorted({test for mutant in mutants for test in mutant.caught_by})
    if selection and _run(selection, tree, DEADLINE_S * len(mutants)) != "missed":
        print(f"broken   {room}: its tests fail, or do not end, on the unchanged product")
        return ["broken"]
    outcomes = []
    for mutant in mutants:
        began = time.monotonic()
        outcomes.append(outcome_of(mutant, tree))
        print(f"{outcomes[-1]:7}{time.monotonic() - began:6.1f} s  {room}: {mutant.name}", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"one of {', '.join(room_names())}; all by default")
    parser.add_argument("--name", default="", help="only mutants whose name contains this")
    chosen = parser.parse_args()
    unknown = set(chosen.rooms) - set(room_names())
    if unknown:
        parser.error(f"no such room: {', '.join(sorted(unknown))}; there are {', '.join(room_names())}")
    with tempfile.TemporaryDirectory(prefix="quorumlog-mutants-") as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(TREE, tree, ignore=_NOT_COPIED)
        outcomes = [each for room in chosen.rooms or room_names() for each in hunt(room, chosen.name, tree)]
    print(f"{outcomes.count('caught')} of {len(outcomes)} caught")
    return 0 if outcomes and set(outcomes) == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
