"""The charts of the workloads."""

from __future__ import annotations

from typing import Any

from bench.clusters import OURS
from bench.workloads import present


def _row(figure: str, value: float) -> dict[str, Any]:
    return {"figure": figure, OURS: value, "ratio": "-"}


def test_the_charts_show_the_synchronous_producers_of_each_mode_over_their_number() -> None:
    rows = [
        _row("500 partitions, fsync: produced, MB/s", 90.0),
        _row("1 synchronous producer, fsync: records/s", 500.0),
        _row("1 synchronous producer, fsync: p99, ms", 4.0),
        _row("8 synchronous producers, fsync: records/s", 2_000.0),
        _row("8 synchronous producers, fsync: p99, ms", 9.0),
    ]
    panels = present({"results": rows, "floors": {"memcpy_gb_s": 5.0}, "missing": None})
    assert [(panel.title, panel.y_label, list(panel.x), panel.lines) for panel in panels] == [
        ("synchronous producers, fsync", "records/s", [1, 8], {OURS: [500.0, 2_000.0]}),
        ("synchronous producers, fsync", "p99, ms", [1, 8], {OURS: [4.0, 9.0]}),
    ]
