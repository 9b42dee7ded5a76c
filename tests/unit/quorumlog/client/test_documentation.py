"""The tables of docs/client.md have the arguments of the clients, with the defaults of the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from quorumlog.client import Consumer, FetchLimits, Producer

PAGE = (Path(__file__).parents[4] / "docs" / "client.md").read_text()
SECTIONS = {
    Producer: "Send records",
    Consumer: "The arguments of a consumer",
    FetchLimits: "The arguments of a consumer",
}
NOT_LISTED = {"self", "bootstrap", "sources"}
"""The text explains `bootstrap`; `sources` is for tests."""
SIZES = {"KiB": 1 << 10, "MiB": 1 << 20}


def documented(section: str) -> dict[str, str]:
    """Return the default of each argument in the tables of a section, as text."""
    text = PAGE.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \| ", text, re.MULTILINE)
    return {name: default for names, default in rows for name in re.findall(r"\w+", names)}


def number(text: str) -> float | None:
    """Return a default that is a number or a size; None for another one."""
    value, _, unit = text.partition(" ")
    return float(value) * SIZES.get(unit, 1) if re.fullmatch(r"[0-9.]+( [KM]iB)?", text) else None


@pytest.mark.parametrize("described", SECTIONS)
def test_each_argument_is_listed_with_its_default(described: type) -> None:
    shown = documented(SECTIONS[described])
    for name, parameter in inspect.signature(described).parameters.items():
        if name in NOT_LISTED:
            continue
        assert name in shown, name
        if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool):
            assert number(shown[name]) == parameter.default, name
        elif isinstance(parameter.default, str):
            assert shown[name] == f'`"{parameter.default}"`', name


def test_no_other_argument_is_listed() -> None:
    known = {name for described in SECTIONS for name in inspect.signature(described).parameters}
    assert {name for section in SECTIONS.values() for name in documented(section)} <= known
