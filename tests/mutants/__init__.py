"""One-line mistakes in the product, each with the tests that must notice it.

`tests/mutants/ROOM.py` lists the mutants of one room as `MUTANTS`.  `python -m tests.mutants` plants each of them in a
copy of the tree and runs its tests there; the working tree is never touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
"""The root of the repository."""


@dataclass(frozen=True)
class Mutant:
    """A replacement of source text, which must make a test fail.

    name: the mistake of the product, as a clause: "a follower counts unflushed records".
    file: path below the root of the repository.
    old: text that occurs exactly once in `file`; usually one line, or enough of it.
    new: the replacement.  The file must still be importable.
    caught_by: node ids for pytest, at least one of which must fail within a minute.  Prefer one unit test.
    """

    name: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]


def room_names() -> tuple[str, ...]:
    """Return every room with a table of mutants, sorted."""
    return tuple(sorted(each.stem for each in Path(__file__).parent.glob("[a-z]*.py") if each.stem != "test_mutants"))


def mutants_of(room: str) -> Sequence[Mutant]:
    """Return the table of one room."""
    mutants: Sequence[Mutant] = import_module(f"tests.mutants.{room}").MUTANTS
    return mutants
