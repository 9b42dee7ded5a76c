"""Short fuzz runs of the C extension's code with sanitizers; the programs of `tests.fuzz` run longer."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

import pytest

from quorumlog.wire.record_framing import Problem
from tests.fuzz import key_offsets, offset_format, record_columns
from tests.fuzz.native import build, run


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("record_scan", Problem),
        ("record_columns", record_columns.Outcome),
        ("offset_format", offset_format.Outcome),
        ("key_offsets", key_offsets.Outcome),
    ],
)
def test_mutated_input_causes_no_invalid_memory_access_and_reaches_every_outcome(
    tmp_path: Path, name: str, outcomes: type[IntEnum]
) -> None:
    found = run(build(name, tmp_path), outcomes, seed=7, rounds=50_000)
    assert sum(found.values()) >= 50_000
    assert [outcome.name for outcome in outcomes if found[outcome] < 10] == []
