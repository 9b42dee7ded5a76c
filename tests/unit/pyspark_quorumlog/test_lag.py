"""The lag of a stream, from Spark's reports of its progress."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_quorumlog.lag import Lag, LagListener, lag_of


def source(end: str | None, latest: str | None) -> Any:
    return SimpleNamespace(endOffset=end, latestOffset=latest)


@pytest.mark.parametrize(
    ("end", "latest", "expected"),
    [
        ('{"t":{"0":5,"1":2}}', '{"t":{"0":9,"1":2}}', {("t", 0): 4, ("t", 1): 0}),
        ('{"t":{"0":5},"gone":{"0":7}}', '{"t":{"0":5,"1":3}}', {("t", 0): 0, ("t", 1): 3}),
        (None, None, {}),
        ("7", "9", None),
        ("{}", "soon", None),
    ],
)
def test_the_lag_is_the_distance_to_the_ends_of_the_logs(end: str | None, latest: str | None, expected: Lag) -> None:
    assert lag_of(source(end, latest)) == expected


def test_a_listener_reports_the_lag_of_each_source() -> None:
    reports: list[tuple[str, Lag]] = []
    listener = LagListener(lambda query, lag: reports.append((query, lag)))
    ours, other = source('{"t":{"0":5}}', '{"t":{"0":9}}'), source("7", "9")
    for name in ("mine", None):
        progress = SimpleNamespace(name=name, id="an-id", sources=[ours, other])
        listener.onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    assert reports == [("mine", {("t", 0): 4}), ("an-id", {("t", 0): 4})]
