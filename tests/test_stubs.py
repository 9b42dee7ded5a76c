"""The checked-in protobuf stubs equal those generated from the .proto files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STUBS = ROOT / "quorumlog" / "wire" / "v1"


@pytest.mark.timeout(600)  # the first run makes the generator's environment
def test_checked_in_stubs_are_up_to_date(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "dev"), "stubs", str(tmp_path / "v1")], capture_output=True, text=True, check=False, timeout=590
    )
    assert done.returncode == 0, done.stderr
    made = {path.name: path.read_text() for path in (tmp_path / "v1").iterdir()}
    kept = {path.name: path.read_text() for path in STUBS.iterdir() if path.is_file()}
    protos = list((ROOT / "proto" / "quorumlog" / "v1").glob("*.proto"))
    assert len(protos) >= 4
    assert sorted(made) == sorted(
        ["__init__.py", *(f"{one.stem}_pb2.{end}" for one in protos for end in ("py", "pyi"))]
    )
    assert sorted(made) == sorted(kept)
    assert [name for name in made if made[name] != kept[name]] == [], "run ./dev stubs and commit the result"
