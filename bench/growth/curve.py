"""Parts of all curves: processor shares, ranges, lines of plots, and the tables of a result."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from bench.plots import Panel, show
from bench.processes import processor_s
from bench.rounds import range_of, short


class Bound(NamedTuple):
    """now: what limits the curve, as far as the code shows it.  next: the limit behind it."""

    now: str
    next: str


async def processor_percent(pids: Iterable[int], seconds: float) -> float:
    """Return the processor time that these processes take in this time, in percent of one core."""
    watched = list(pids)
    before_s = sum(processor_s(pid) for pid in watched)
    await asyncio.sleep(seconds)
    return round(100 * (sum(processor_s(pid) for pid in watched) - before_s) / seconds, 1)


def spread(name: str, values: Sequence[float]) -> dict[str, float | str]:
    """Return the median of the values with its name, and their range."""
    return {name: short(median(values)), f"{name}_range": range_of(values)}


def line(rows: Iterable[Mapping[str, Any]], size: str, figure: str, sizes: Iterable[int]) -> list[float]:
    """Return a figure at each of the sizes, for a plot; not a number where no row has this size.

    size: the column with the sizes of the rows.
    """
    found = {row[size]: row[figure] for row in rows}
    return [found.get(each, math.nan) for each in sizes]


def panels(
    rows: Sequence[Mapping[str, Any]], size: str, figures: Mapping[str, tuple[str, Sequence[str]]]
) -> list[Panel]:
    """Return a panel for each title, over the sizes of the rows on a logarithmic axis.

    size: the column with the sizes.  figures: by title, the unit and the columns of the lines.
    """
    x = [row[size] for row in rows]
    return [
        Panel(title, size.replace("_", " "), unit, x, {name: line(rows, size, name, x) for name in names}, log_x=True)
        for title, (unit, names) in figures.items()
    ]


def show_curve(title: str, result: Mapping[str, Any]) -> None:
    """Print the rows, the bound, and the sizes that were skipped."""
    show(title, result["results"])
    show("What bounds it", [{"now": result["bound"]["now"], "next": result["bound"]["next"]}])
    if result.get("skipped"):
        show("Skipped", [{"size": size, "reason": reason} for size, reason in result["skipped"].items()])
