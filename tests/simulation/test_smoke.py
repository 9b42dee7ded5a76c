"""A whole cluster in virtual time; a seed gives equal traces in every process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulation import smoke

ROOT = Path(__file__).parents[2]


def in_a_process_of_its_own(seed: int, hash_seed: int) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, "-m", "simulation.smoke", "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    result: dict[str, Any] = json.loads(finished.stdout)
    return result


def test_a_seed_replays_in_any_process() -> None:
    first = in_a_process_of_its_own(7, hash_seed=1)
    second = in_a_process_of_its_own(7, hash_seed=2)
    assert first == second
    assert first["messages"] > 500, "the trace is not empty"
    other = in_a_process_of_its_own(8, hash_seed=1)
    assert other["digest"] != first["digest"], "another seed gives another run"


@pytest.mark.parametrize("seed", range(10))
def test_no_acknowledged_record_is_lost(seed: int) -> None:
    """The scenario itself compares the records that are read with the acknowledged ones."""
    seen, _ = smoke.run(seed)
    assert seen["records"] == smoke.BATCHES * smoke.BATCH_RECORDS
