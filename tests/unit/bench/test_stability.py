"""The hour at a fixed rate: its summary, its charts, and the counts of the servers' upkeep."""

from __future__ import annotations

from pathlib import Path

from bench.clusters import KAFKA, OURS
from bench.rounds import Figures
from bench.stability import counted, present, summarized


def _window(p50: float, p99: float, p999: float, greatest: float, memory: float) -> Figures:
    return {"p50, ms": p50, "p99, ms": p99, "p99.9, ms": p999, "max, ms": greatest, "memory, MiB": memory}


WINDOWS = [_window(1, 5, 9, 10, 400), _window(3, 7, 8, 50, 420), _window(2, 6, 30, 40, 410)]


def test_the_summary_has_medians_and_greatest_values_of_the_windows() -> None:
    assert summarized(WINDOWS) == {
        "median of p50, ms": 2,
        "greatest p50, ms": 3,
        "median of p99, ms": 6,
        "greatest p99, ms": 7,
        "median of p99.9, ms": 9,
        "greatest p99.9, ms": 30,
        "max, ms": 50,
        "first memory, MiB": 400,
        "last memory, MiB": 410,
        "greatest memory, MiB": 420,
    }


def test_the_lines_of_all_logs_are_counted_by_their_texts(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("ready\nsnapshot taken end_offset=3\nlog compacted folder=a\n")
    second.write_text("snapshot taken end_offset=4\n")
    texts = {"snapshots": "snapshot taken", "compactions": "log compacted", "other": "missing"}
    assert counted([first, second], texts) == {"snapshots": 2, "compactions": 1, "other": 0}


def test_each_cluster_has_a_chart_of_its_latencies_and_a_line_in_the_chart_of_memory() -> None:
    rows = [
        {"cluster": name, "window": number, **window}
        for name in (OURS, KAFKA)
        for number, window in enumerate(WINDOWS, 1)
    ]
    summary = [{"cluster": OURS, **summarized(WINDOWS)}]
    panels = present({"records_a_second": 1000, "window_s": 60.0, "summary": summary, "results": rows, "missing": None})
    assert [panel.title for panel in panels] == ["Latency, quorumlog", "Latency, kafka", "Memory of all servers"]
    assert panels[0].lines == {"p50": [1, 3, 2], "p99": [5, 7, 6], "p99.9": [9, 8, 30]}
    assert panels[2].lines == {OURS: [400, 420, 410], KAFKA: [400, 420, 410]}
    assert [list(panel.x) for panel in panels] == [[1, 2, 3]] * 3
