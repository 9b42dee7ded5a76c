"""Plots and tables of benches.

PNG files are written beside the JSON, if matplotlib is installed (the `bench` extra).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

TICKS_MAX: Final = 20


@dataclass(frozen=True)
class Panel:
    """One diagram: lines over a common x axis.

    aim: drawn as a dashed line with its label.  x_names: labels for the values of x.
    """

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    lines: Mapping[str, Sequence[float]]
    aim: tuple[float, str] | None = None
    log_x: bool = False
    log_y: bool = False
    x_names: Sequence[str] = field(default=())


def draw(path: Path, panels: Sequence[Panel]) -> bool:
    """Write the panels side by side to `path`; return False if matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(6.4 * len(panels), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for label, values in panel.lines.items():
            axes.plot(panel.x, values, marker="o", label=label)
        if panel.aim is not None:
            axes.axhline(panel.aim[0], linestyle="--", color="grey", label=panel.aim[1])
        if panel.log_x:
            axes.set_xscale("log")
        ticks = ticks_of(panel)
        axes.set_xticks([at for at, _ in ticks], labels=[name for _, name in ticks])
        axes.minorticks_off()
        if panel.log_y:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return True


def ticks_of(panel: Panel) -> list[tuple[float, str]]:
    """Return positions and labels for the x axis: of all values, or of at most `TICKS_MAX` values at equal distances.

    The last value of a step has a label, so minutes 1 to 60 get the labels 3, 6, …, 60.
    """
    names = panel.x_names or [f"{value:,.0f}" for value in panel.x]
    step = -(-len(panel.x) // TICKS_MAX)
    return list(zip(panel.x, names, strict=True))[step - 1 :: step]


def show(title: str, rows: Sequence[Mapping[str, Any]], aims: Mapping[str, str] | None = None) -> None:
    """Print rows as a table to standard error, because standard output is JSON.

    aims: by column, shown in the last row.  Columns with other values than numbers and text are omitted.
    """
    columns = [name for name, value in rows[0].items() if isinstance(value, (int, float, str))]
    table = Table(title=title, show_footer=bool(aims))
    for name in columns:
        table.add_column(name, justify="right", footer=(aims or {}).get(name, ""))
    for row in rows:
        table.add_row(
            *(f"{row[name]:,}" if isinstance(row[name], (int, float)) else str(row[name]) for name in columns)
        )
    Console(stderr=True, width=220).print(table)
