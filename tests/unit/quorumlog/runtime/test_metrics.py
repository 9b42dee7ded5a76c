"""Metrics are read at each scrape, and a broken reader hides no other metric."""

from __future__ import annotations

from quorumlog.runtime.metrics import Metrics, add_process_metrics


def values(metrics: Metrics) -> dict[str, float]:
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    rows = [line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def test_state_is_read_at_each_scrape() -> None:
    metrics, state = Metrics(), {"epoch": 1, "served": 5}
    metrics.gauge("quorum_epoch", "e", lambda: state["epoch"])
    metrics.counter("http_requests", "r", lambda: state["served"])
    metrics.gauges("broker_partitions", "p", "state", lambda: {"led": 3, "followed": 4})
    metrics.gauge("quorum_leader_id", "l", lambda: None)
    assert values(metrics) == {
        "quorumlog_quorum_epoch": 1,
        "quorumlog_http_requests_total": 5,
        'quorumlog_broker_partitions{state="followed"}': 4,
        'quorumlog_broker_partitions{state="led"}': 3,
    }
    state["epoch"] = 2
    assert values(metrics)["quorumlog_quorum_epoch"] == 2


def test_counters_may_have_several_labels_or_no_values() -> None:
    metrics, state = Metrics(), {"known": True}
    seconds = {("t", "1"): 2.5, ("a", "10"): 1}
    metrics.counters("down_seconds", "d", ("topic", "partition"), lambda: seconds if state["known"] else None)
    assert values(metrics) == {
        'quorumlog_down_seconds_total{partition="10",topic="a"}': 1,
        'quorumlog_down_seconds_total{partition="1",topic="t"}': 2.5,
    }
    state["known"] = False
    assert values(metrics) == {}


def test_histograms_observe_seconds() -> None:
    metrics = Metrics()
    metrics.histogram("quorum_fsync_seconds", "f").observe(0.002)
    found = values(metrics)
    assert found["quorumlog_quorum_fsync_seconds_count"] == 1
    assert found['quorumlog_quorum_fsync_seconds_bucket{le="0.001"}'] == 0
    assert found['quorumlog_quorum_fsync_seconds_bucket{le="0.0025"}'] == 1


def test_a_metric_whose_reader_fails_is_omitted_and_the_others_are_kept() -> None:
    metrics = Metrics()
    metrics.gauge("broken", "b", lambda: 1 // 0)
    metrics.gauge("whole", "w", lambda: 2)
    assert values(metrics) == {"quorumlog_whole": 2}


def test_process_metrics_include_the_resident_memory() -> None:
    metrics = Metrics()
    add_process_metrics(metrics)
    assert values(metrics)["process_resident_memory_bytes"] > 1_000_000
