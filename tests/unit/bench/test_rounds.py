"""The rows of a comparison: medians of the rounds, the ratio of the medians, and the range of each cluster."""

from __future__ import annotations

from bench.clusters import KAFKA, OURS
from bench.confluent import at
from bench.rounds import Rounds, rows


def test_a_row_has_the_medians_their_ratio_and_the_ranges() -> None:
    found = rows({OURS: [{"x, ms": 1.0}, {"x, ms": 30.04}, {"x, ms": 2.0}], KAFKA: [{"x, ms": 4.0}, {"x, ms": 4.0}]})
    assert found == [
        {
            "figure": "x, ms",
            OURS: 2.0,
            KAFKA: 4.0,
            "ratio": 0.5,
            f"{OURS} range": "1 to 30",
            f"{KAFKA} range": "4 to 4",
        }
    ]


def test_a_row_without_kafka_has_no_ratio() -> None:
    assert rows({OURS: [{"x, ms": 1.0}]}) == [{"figure": "x, ms", OURS: 1.0, "ratio": "-", f"{OURS} range": "1 to 1"}]


def test_a_result_has_the_shares_of_other_processes_and_the_reason_why_kafka_is_missing() -> None:
    result = Rounds(1, {OURS: [{"x, ms": 1.0}]}, {OURS: {"start_s": 3.0}}, {OURS: [0.034]}, "java is missing").result()
    assert [row["figure"] for row in result["results"]] == ["x, ms", "start_s"]
    assert result["others_processor_share"] == {OURS: [0.03]}
    assert result["missing"] == "java is missing"
    assert result["floors"]["memcpy_gb_s"] > 0


def test_the_percentile_of_a_few_values_is_one_of_these_values() -> None:
    assert at([1.0, 2.0, 3.0], 0.5) == 2.0
    assert at([1.0, 2.0, 3.0], 0.999) == 3.0
    assert at([1.0, 2.0, 3.0], 1.0) == 3.0
