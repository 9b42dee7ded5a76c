"""The labels of the x axis."""

from __future__ import annotations

from bench.plots import Panel, ticks_of


def test_few_values_all_have_labels() -> None:
    assert ticks_of(Panel("t", "x", "y", [1, 10, 1000], {})) == [(1, "1"), (10, "10"), (1000, "1,000")]


def test_many_values_have_labels_at_equal_distances() -> None:
    ticks = ticks_of(Panel("t", "minute", "y", range(1, 61), {}))
    assert [int(position) for position, _ in ticks] == list(range(3, 61, 3))
    assert ticks[-1] == (60, "60")


def test_names_replace_the_values_as_labels() -> None:
    assert ticks_of(Panel("t", "x", "y", range(2), {}, x_names=["idle", "busy"])) == [(0, "idle"), (1, "busy")]
