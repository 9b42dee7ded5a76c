"""tests/unit mirrors the source: the tests of a package are in the folder of the same path."""

from __future__ import annotations

from pathlib import Path

UNIT = Path(__file__).resolve().parent
ROOT = UNIT.parents[1]


def test_each_folder_of_unit_tests_has_its_folder_in_the_source() -> None:
    folders = {file.parent.relative_to(UNIT) for file in UNIT.rglob("*.py")}
    assert {str(folder) for folder in folders if not (ROOT / folder).is_dir()} == set()
