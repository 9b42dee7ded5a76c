"""The page docs/performance.md shows the stored comparison, and says where quorumlog is behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.performance_page import PAGE, STORED, Figure, page


@pytest.fixture
def stored() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(STORED.read_text())
    return result


def test_the_performance_page_matches_the_stored_result(stored: dict[str, Any]) -> None:
    assert PAGE.read_text() == page(stored), "run `python -m bench.performance_page`"


def test_the_page_without_kafka_gives_the_reason_and_no_ratios(stored: dict[str, Any]) -> None:
    for row in stored["results"]:
        del row["kafka"]
    text = page(stored | {"missing": "java is not installed"})
    assert "Apache Kafka was not measured: java is not installed" in text
    assert " / " not in text.partition("## ")[2].replace("s/GB", "")
    assert "behind" not in text.partition("## ")[2]


@pytest.mark.parametrize(
    ("name", "ratio", "is_behind"),
    [
        ("100 B: produced, MB/s", 0.94, True),
        ("100 B: produced, MB/s", 0.96, False),
        ("100 B: produced, MB/s", 2.0, False),
        ("500 records/s: p99, ms", 1.06, True),
        ("500 records/s: p99, ms", 1.04, False),
        ("500 records/s: p99, ms", 0.1, False),
        ("idle_mib", None, False),
    ],
)
def test_a_figure_is_behind_if_a_rate_is_lower_or_a_latency_is_higher(
    name: str, ratio: float | None, is_behind: bool
) -> None:
    assert Figure(name, 1.0, None, ratio).is_behind is is_behind
