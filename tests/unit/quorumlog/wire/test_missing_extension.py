"""A copy of the sources without the compiled extension names the cause and the next step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import quorumlog

PACKAGE = Path(quorumlog.__file__).parent


@pytest.mark.parametrize("is_zipped", [False, True])
def test_missing_extension_is_reported_with_the_next_step(tmp_path: Path, is_zipped: bool) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(PACKAGE, copied / "quorumlog", ignore=shutil.ignore_patterns("*.so", "native", "__pycache__"))
    path = shutil.make_archive(str(tmp_path / "zipped"), "zip", copied) if is_zipped else str(copied)
    done = subprocess.run(
        [sys.executable, "-c", "import quorumlog.client.record_codec"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    assert "ImportError: the C extension quorumlog.wire._record_scan is missing" in done.stderr
    assert "run `pip install`" in done.stderr
