"""The parts of the demo: its data set, its write, and its comparison."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from examples.demo import flights, spark_job
from examples.demo.__main__ import _busiest
from quorumlog.client.records import NewRecord, build_batch
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers

ROOT = Path(__file__).parents[2]
ROWS = 4000


def test_the_data_set_has_all_its_rows(tmp_path: Path) -> None:
    truth = flights.count(flights.unpack(tmp_path))
    assert truth.row_count == 336_776
    assert (len(truth.by_key), truth.by_key["UA"], truth.by_key["OO"]) == (16, 58_665, 32)


@pytest.mark.quiet
def test_the_comparison_finds_lost_repeated_and_changed_rows(
    spark: SparkSession, cluster: ThreadedBrokers, tmp_path: Path
) -> None:
    csv = flights.unpack(tmp_path)
    flights.first_rows(csv, ROWS)
    truth = flights.count(csv)
    assert truth.row_count == ROWS
    cluster.run(cluster.brokers.create("flights", [1, 2, 1]))
    source = spark_job.source_rows(spark, csv)
    bootstrap = cluster.brokers.bootstrap
    spark_job.write(source, bootstrap, "flights", rows_per_second=1_000_000)

    good = spark_job.read_and_compare(spark, source, bootstrap, "flights")
    assert good.problems(truth) == []
    assert (good.rows_read, good.lost, good.duplicated) == (ROWS, 0, 0)
    assert good.checksum_read == good.checksum_source != 0

    log = cluster.brokers.shared.logs["flights", 0]
    first = cluster.run(cluster.brokers.records("flights", 0))[0]
    again = build_batch([NewRecord(first.key, first.value, first.timestamp_ms)])
    cluster.run(cluster.brokers.fill("flights", 0, again))
    repeated = spark_job.read_and_compare(spark, source, bootstrap, "flights")
    assert (repeated.rows_read, repeated.lost, repeated.duplicated) == (ROWS + 1, 0, 1)
    assert len(repeated.problems(truth)) == 4

    del log.batches[1:]
    kept = len(cluster.run(cluster.brokers.records("flights", 0)))
    others = sum(len(cluster.run(cluster.brokers.records("flights", index))) for index in (1, 2))
    short = spark_job.read_and_compare(spark, source, bootstrap, "flights")
    assert (short.rows_read, short.lost, short.duplicated) == (kept + others, ROWS - kept - others, 0)

    changed = build_batch([NewRecord(first.key, b"{}", first.timestamp_ms)])
    cluster.run(cluster.brokers.fill("flights", 1, changed))
    strange = spark_job.read_and_compare(spark, source, bootstrap, "flights")
    assert strange.duplicated == 1, "a row that the source does not hold at all"


def test_the_busiest_broker_leads_the_partitions_with_most_rows() -> None:
    assert _busiest({0: 11, 1: 12, 2: 12}, dict.fromkeys(range(3), 1)) == [1, 2]
    assert _busiest({0: 11, 1: 12}, {0: 1, 1: 5}) == [1]


@pytest.mark.quiet
def test_the_demo_loses_and_repeats_no_row_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """A real cluster of processes, a killed controller, a killed leader: `./dev demo`, with fewer rows."""
    command = [sys.executable, "-m", "examples.demo", "--rows", "30000", "--seconds", "14", "--logs", str(tmp_path)]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120", "NO_COLOR": "1"}
    for _ in range(2):  # Spark sometimes fails at its start for reasons outside the cluster
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=190, check=False
        )
        if done.returncode == 0 or "killing the active controller" in done.stdout:
            break
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "nothing lost, nothing duplicated" in done.stdout
    assert "a new controller acknowledged a change" in done.stdout
    assert "a new leader acknowledged a row" in done.stdout
    assert not list(tmp_path.glob("quorumlog-demo-*")), "nothing is left behind"
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert left.stdout == "", "no process is left behind"
