"""The examples, against brokers in this process."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples import batch_etl, change_feed, word_count
from quorumlog.client.records import NewRecord, build_batch
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers

pytestmark = pytest.mark.quiet  # Spark alone keeps two cores busy


NOON = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000


def fill(
    cluster: ThreadedBrokers, topic: str, *records: tuple[bytes | None, bytes | None], timestamp_ms: int = NOON
) -> None:
    batch = build_batch([NewRecord(key, value, timestamp_ms) for key, value in records])
    cluster.run(cluster.brokers.fill(topic, 0, batch))


def test_the_orders_of_a_day_are_summed(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    for topic in ("orders", "revenue", "invalid-orders"):
        cluster.run(cluster.brokers.create(topic, [1]))
    one, two = b'{"customer": "ann", "cents": 5}', b'{"customer": "bob", "cents": 7}'
    fill(cluster, "orders", (None, one), timestamp_ms=NOON - DAY_MS)
    fill(cluster, "orders", (None, one), (None, two), (None, b"nonsense"), (None, one), (None, b'{"cents": 7}'))
    fill(cluster, "orders", (None, two), timestamp_ms=NOON + DAY_MS)

    def written(topic: str) -> list[tuple[bytes | None, bytes | None]]:
        return sorted((one.key or b"", one.value or b"") for one in cluster.run(cluster.brokers.records(topic, 0)))

    for day in (date(2026, 1, 31), date(2026, 3, 1)):  # the second one has no orders
        batch_etl.run(spark, cluster.brokers.bootstrap, day)
    assert written("revenue") == [
        (b"ann", b'{"day":"2026-01-31","customer":"ann","cents":10}'),
        (b"bob", b'{"day":"2026-01-31","customer":"bob","cents":7}'),
    ]
    assert written("invalid-orders") == [(b"", b"nonsense"), (b"", b'{"cents": 7}')]


def test_words_are_counted_across_a_restart(spark: SparkSession, cluster: ThreadedBrokers, tmp_path: Path) -> None:
    for topic in ("lines", "counts"):
        cluster.run(cluster.brokers.create(topic, [1]))
    fill(cluster, "lines", (None, b"to be, or not"), (None, b"to be"))

    def run() -> dict[bytes | None, bytes | None]:
        done = len(cluster.run(cluster.brokers.records("counts", 0)))
        query = word_count.start(spark, cluster.brokers.bootstrap, str(tmp_path), availableNow=True)
        query.awaitTermination()
        return {record.key: record.value for record in cluster.run(cluster.brokers.records("counts", 0))[done:]}

    assert run() == {b"to": b"2", b"be": b"2", b"or": b"1", b"not": b"1"}
    fill(cluster, "lines", (None, b"that is: be"))
    assert run() == {b"that": b"1", b"is": b"1", b"be": b"3"}, "only the counts that changed"


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    spark: SparkSession, cluster: ThreadedBrokers, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.run(cluster.brokers.create("orders", [1, 2]))
    monkeypatch.setenv("BOOTSTRAP", cluster.brokers.bootstrap)
    notebook = json.loads((Path(change_feed.__file__).parent / "notebook.ipynb").read_text())
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["language"]) == (4, "python")
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "the notebook is stored without results"
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)  # our own file
    assert names["spark"] is spark, "getOrCreate returns the session of the tests"
    assert names["total"].count() == 1010
    assert "|customer-0|" in capfd.readouterr().out


def test_the_change_feed_example_keeps_a_table_up_to_date(
    spark: SparkSession, cluster: ThreadedBrokers, tmp_path: Path
) -> None:
    for topic in ("changes", "copy"):
        cluster.run(cluster.brokers.create(topic, [1]))
    bootstrap = cluster.brokers.bootstrap
    fill(cluster, "changes", (b"1", b"a"), (b"2", b"b"), (b"1", b"c"))
    change_feed.append_changes(spark, bootstrap, "changes", str(tmp_path))
    fill(cluster, "changes", (b"2", None), (b"3", b"d"))
    change_feed.append_changes(spark, bootstrap, "changes", str(tmp_path))
    rows = change_feed.current_rows(spark, str(tmp_path))
    assert {(row.id, row.contents) for row in rows.collect()} == {("1", "c"), ("3", "d")}
    change_feed.write_back(rows, bootstrap, "copy")
    assert {(one.key, one.value) for one in cluster.run(cluster.brokers.records("copy", 0))} == {
        (b"1", b"c"),
        (b"3", b"d"),
    }
