"""The tables of mutants fit the product and its tests; `python -m tests.mutants` shows that each is caught."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.mutants import TREE, Mutant, mutants_of, room_names

TABLES = [(room, mutant) for room in room_names() for mutant in mutants_of(room)]


@pytest.mark.parametrize(("room", "mutant"), TABLES, ids=[f"{room}: {mutant.name}" for room, mutant in TABLES])
def test_the_text_that_a_mutant_replaces_occurs_once(room: str, mutant: Mutant) -> None:
    text = (TREE / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert mutant.new != mutant.old


def test_the_names_of_mutants_are_unique() -> None:
    assert max(Counter(mutant.name for _, mutant in TABLES).values()) == 1


def test_pytest_finds_every_test_that_a_mutant_names() -> None:
    selections = sorted({test for _, mutant in TABLES for test in mutant.caught_by})
    assert all(mutant.caught_by for _, mutant in TABLES)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *selections]
    collected = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
    assert collected.returncode == 0, collected.stdout[-4000:] + collected.stderr[-4000:]
    # Pytest does not report an unknown test of a file that another argument names as a whole.
    found = [line for line in collected.stdout.splitlines() if "::" in line]
    unknown = [
        test
        for test in selections
        if not any(f"{one}[".startswith((f"{test}[", f"{test}::", f"{test}/")) for one in found)
    ]
    assert not unknown
