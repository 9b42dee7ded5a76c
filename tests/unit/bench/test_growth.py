"""The curves of growth: sizes that fit, rows, ranges and lines of plots, and the names of their benches."""

from __future__ import annotations

import math

import pytest

from bench.__main__ import BENCHES, expanded
from bench.growth.connections import RESERVED, fitting
from bench.growth.cores import core_counts, cores_used
from bench.growth.curve import line, panels, spread
from bench.growth.record_sizes import Passed, row


def test_the_name_growth_stands_for_all_curves_and_each_bench_runs_once() -> None:
    curves = [name for name in BENCHES if name.startswith("growth_")]
    assert len(curves) == 6
    assert expanded(["growth"]) == curves
    assert expanded(["growth_cores", "codec", "growth"]) == ["growth_cores", "codec", *curves[:2], *curves[3:]]
    assert expanded([]) == list(BENCHES)
    assert expanded(["nonsense"]) == ["nonsense"]


def test_numbers_of_connections_that_fit_are_all_measured() -> None:
    assert fitting((10, 1_000), accepted_max=4_000, descriptors=20_000) == ([10, 1_000], {})


def test_a_number_above_the_brokers_limit_is_named_and_the_limit_is_measured_instead() -> None:
    counts, skipped = fitting((10, 1_000, 10_000), accepted_max=4_000, descriptors=20_000)
    assert counts == [10, 1_000, 4_000 - RESERVED]
    assert skipped == {"10,000 connections": "a broker accepts 4,000 connections"}


def test_a_number_that_exceeds_the_descriptors_is_named() -> None:
    counts, skipped = fitting((10, 1_000, 10_000), accepted_max=40_000, descriptors=1_024)
    assert counts == [10, 512 - RESERVED]
    assert list(skipped) == ["1,000 connections", "10,000 connections"]
    assert all("1,024 file descriptors" in reason for reason in skipped.values())


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_cores_are_doubled_up_to_all_of_them(cores: int, counts: list[int]) -> None:
    assert core_counts(cores) == counts


def test_a_row_of_records_has_medians_and_ranges_of_the_rounds() -> None:
    """Each round: 1,000,000 records of 1,000 B are 10^9 B."""
    rounds = [
        Passed(1_000, 1_000_000, produce_s, 5.0, 12.0, produce_s / 2, 4.0, share)
        for produce_s, share in ((10.0, 0.01), (20.0, 0.05), (8.0, 0.02))
    ]
    assert row(rounds) == {
        "record_bytes": 1_000,
        "produced_mb_s": 100,
        "produced_mb_s_range": "50 to 125",
        "consumed_mb_s": 200,
        "consumed_mb_s_range": "200 to 200",
        "produced_records_s": 100_000,
        "consumed_records_s": 200_000,
        "servers_s_gb": 12,
        "producer_percent": 50,
        "consumer_percent": 80,
        "others_percent": 5,
    }
    assert cores_used(rounds) == 1.2


def test_a_range_is_the_least_and_the_greatest() -> None:
    assert spread("ready_s", [3.0, 1.0, 2.0]) == {"ready_s": 2.0, "ready_s_range": "1 to 3"}


def test_a_line_has_a_gap_where_a_size_was_not_measured() -> None:
    rows = [{"partitions": 1, "mib": 70.0}, {"partitions": 1_000, "mib": 90.0}]
    first, gap, last = line(rows, "partitions", "mib", [1, 100, 1_000])
    assert (first, last) == (70.0, 90.0)
    assert math.isnan(gap)


def test_a_panel_has_a_line_for_each_figure_over_the_sizes() -> None:
    rows = [{"brokers": 3, "p50": 1.0, "p99": 2.0}, {"brokers": 10, "p50": 1.5, "p99": 4.0}]
    (panel,) = panels(rows, "brokers", {"Commits": ("ms", ("p50", "p99"))})
    assert panel.lines == {"p50": [1.0, 1.5], "p99": [2.0, 4.0]}
    assert (panel.title, panel.y_label, list(panel.x), panel.log_x) == ("Commits", "ms", [3, 10], True)
