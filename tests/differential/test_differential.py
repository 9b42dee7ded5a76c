"""Runs the comparison if its environment was installed; see the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.differential.__main__ import ROOT, is_prepared
from tests.differential.harness import differences, plain


@pytest.mark.quiet  # Spark alone keeps two cores busy
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not is_prepared(), reason="`python -m tests.differential` installs what it needs")
def test_all_differences_from_sparks_own_connector_are_documented() -> None:
    command = [sys.executable, "-m", "tests.differential"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout


def test_differences_are_found_by_aspect() -> None:
    assert differences({"rows": [1], "schema": "a"}, {"rows": [2], "schema": "a", "end": 3}) == {
        "rows": ([1], [2]),
        "end": (None, 3),
    }
    assert plain({"key": b"\xff", "headers": [("h", None)]}) == {"key": "ÿ", "headers": [["h", None]]}
