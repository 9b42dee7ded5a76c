"""The turns of the clusters, and the rows: medians of the rounds, their ratio, and the range of each cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from bench.clusters import KAFKA, OURS
from bench.confluent import at
from bench.rounds import Rounds, Taken, rows, turns


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


@dataclass
class _Servers:
    """Servers that note in which order they were suspended and continued.  used_s: their processor time."""

    name: str
    running: set[str]
    used_s: list[float] = field(default_factory=lambda: [0.0])

    def pause(self) -> None:
        self.running.discard(self.name)

    def resume(self) -> None:
        self.running.add(self.name)

    def processor_s(self) -> float:
        return self.used_s.pop(0)


def test_only_one_cluster_runs_in_each_turn_and_the_order_alternates() -> None:
    running = {"a", "b"}
    seen = []
    for servers, number in turns([_Servers("a", running), _Servers("b", running)], 3):
        assert running == {servers.name}
        seen.append(f"{servers.name}{number}")
    assert seen == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert not running


def test_the_processor_time_of_the_measured_servers_is_not_foreign() -> None:
    """The servers claim 1,000 s more than the machine has: the share of the others is that much lower."""
    taken = Taken()
    for used_s in ([0.0, 0.0], [0.0, 1_000.0]):
        with taken.watch(_Servers(OURS, set(), used_s)):
            pass
    alone, with_servers = taken.others[OURS]
    assert with_servers < alone
    assert with_servers < 0


def test_a_block_that_fails_adds_no_share() -> None:
    taken = Taken()
    with pytest.raises(RuntimeError), taken.watch(_Servers(OURS, set(), [0.0, 0.0])):
        raise RuntimeError
    assert not taken.others


def test_figures_that_were_not_taken_once_have_no_rows() -> None:
    result = Rounds(1, {OURS: [{"x, ms": 1.0}]}, {}, {OURS: [0.0]}).result()
    assert [row["figure"] for row in result["results"]] == ["x, ms"]
