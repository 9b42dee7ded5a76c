"""Tables in Markdown, and values as a reader expects them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

INT64_MAX: Final = 2**63 - 1
_DURATIONS: Final = ((86_400_000, "day"), (3_600_000, "h"), (60_000, "min"))
_SIZES: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_KIB_FROM: Final = 4 << 10
"""A smaller size is shown in bytes."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table.  No cell is empty, and a vertical bar in a cell does not end it."""
    lines = [_line(head), f"|{'---|' * len(head)}\n"]
    for row in rows:
        assert len(row) == len(head), row
        lines.append(_line([cell.replace("|", "\\|") or "-" for cell in row]))
    return "".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def code(text: str) -> str:
    """Return a text in the type of code; `-` for an empty one."""
    return f"`{text}`" if text else "-"


def duration(ms: int) -> str:
    """Return a duration in its largest unit without a remainder, at most in seconds from one second on."""
    for unit, name in _DURATIONS:
        if ms and ms % unit == 0:
            count = ms // unit
            return f"{count} days" if name == "day" and count > 1 else f"{count} {name}"
    return f"{ms / 1000:g} s" if ms >= 1000 else f"{ms} ms"


def size(count: int) -> str:
    """Return a number of bytes in its largest unit without a remainder."""
    for unit, name in _SIZES:
        if count >= _KIB_FROM and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} bytes"


def unit_of(name: str) -> str:
    """Return the unit of a setting or limit, according to its name: `ms`, `minutes`, `bytes`, or none."""
    parts = name.replace("_", ".").split(".")
    for unit in ("ms", "minutes", "bytes"):
        if unit in parts:
            return unit
    return "bytes" if name.endswith("buffer.size") else ""


def readable(name: str, value: int) -> str:
    """Return a number with its unit, which the name gives."""
    if value == INT64_MAX:
        return "no limit"
    match unit_of(name):
        case "ms":
            return duration(value)
        case "minutes":
            return duration(value * 60_000)
        case "bytes":
            return size(value)
    return f"{value:,}"


def with_meaning(name: str, text: str) -> str:
    """Return the value of a setting as one writes it, and in brackets in a larger unit if there is one."""
    if not text.isdigit():
        return code(text)
    shown = readable(name, int(text))
    is_clearer = shown == "no limit" or (unit_of(name) and not shown.endswith((" ms", " bytes")))
    return f"`{text}` ({shown})" if is_clearer else code(text)


def span(low: int, high: int) -> str:
    """Return a closed range of numbers in words."""
    return f"at least {low}" if high == INT64_MAX else f"{low} to {high}"


def sentence(text: str) -> str:
    """Return a docstring as one line of prose."""
    return " ".join(text.split())
