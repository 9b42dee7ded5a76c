"""docs/spark.md lists each option once, in the table of its use."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark_quorumlog.options import READ_OPTIONS, TRIGGER_OPTIONS, WRITE_OPTIONS

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
BOOTSTRAP = {"bootstrap.servers", "kafka.bootstrap.servers"}


def options_in(section: str) -> list[str]:
    """The names in the first column of the section's tables of options."""
    text = re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)
    (body,) = [part for part in text if part.startswith(f"{section}\n")]
    tables = re.findall(r"^\| option \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", body, flags=re.MULTILINE)
    return [
        name for table in tables for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]


def test_the_tables_of_options_are_those_of_the_code() -> None:
    for section, options in {
        "Reading": set(READ_OPTIONS) - set(TRIGGER_OPTIONS),
        "Streams": set(TRIGGER_OPTIONS),
        "Writing": set(WRITE_OPTIONS) - {"kafka.transactional.id"},
    }.items():
        listed = options_in(section)
        assert sorted(listed) == sorted(options - BOOTSTRAP)
