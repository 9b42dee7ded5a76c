"""Every bench in its tiny size: real processes, real figures, and nothing left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHES, RESULTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", BENCHES)
def test_the_tiny_size_of_each_bench_runs(name: str) -> None:
    kept = RESULTS / f"{name}.json"
    before = kept.stat().st_mtime_ns if kept.exists() else None
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--tiny", name],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["bench"] == name
    figures = [value for value in _numbers(result) if value > 0]
    assert len(figures) > 1, "figures beside the number of cores"
    assert (BENCHES[name].present is not None) == ("┏" in done.stderr), "a table of them"
    assert (kept.stat().st_mtime_ns if kept.exists() else None) == before, "no result of a tiny run is kept"


def _numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in _numbers(each)]
    if isinstance(value, list):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, (int, float)) else []
