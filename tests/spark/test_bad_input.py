"""Bad input that is found only while a query runs: the last line of Spark's error names option, topic or row.

The options themselves are tested without Spark (`tests/unit/pyspark_quorumlog/test_options.py`).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quorumlog.client.records import NewRecord, build_batch
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers

pytestmark = pytest.mark.quiet  # Spark alone keeps two cores busy

NOW = 1_700_000_000_000
SHORT = {"kafkaConsumer.pollTimeoutMs": "1500", "fetchOffset.retryIntervalMs": "50", "fetchOffset.numRetries": "1"}


def last_line(work: Callable[[], Any]) -> str:
    """Return the last line of the traceback that Spark shows, without the modules of the error's class."""
    with pytest.raises(PySparkException) as refused:
        work()
    traceback, _, _ = str(refused.value).partition(" SQLSTATE: ")
    return re.sub(r"^[a-z_.]+\.(?=[A-Z])", "", traceback.strip().splitlines()[-1])


@pytest.fixture
def filled(cluster: ThreadedBrokers) -> ThreadedBrokers:
    """Topic t has ten records, topic u has one; both have one partition."""
    for topic, count in (("t", 10), ("u", 1)):
        cluster.run(cluster.brokers.create(topic, [1]))
        records = [NewRecord(None, b"%d" % number, NOW) for number in range(count)]
        cluster.run(cluster.brokers.fill(topic, 0, build_batch(records)))
    return cluster


def stream(spark: SparkSession, bootstrap: str, folder: Path, **options: str) -> None:
    source = spark.readStream.format("quorumlog").option("kafka.bootstrap.servers", bootstrap)
    rows = source.options(**{"startingOffsets": "earliest", **SHORT, **options}).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "table")).awaitTermination()


def write(spark: SparkSession, bootstrap: str, select: str, **options: str) -> None:
    target = spark.sql(select).write.format("quorumlog").option("kafka.bootstrap.servers", bootstrap)
    target.options(**{"kafka.delivery.timeout.ms": "1500", **options}).mode("append").save()


@pytest.mark.parametrize("kind", ["batch", "stream", "write"])
def test_the_error_about_brokers_that_never_answer_names_their_addresses(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    with socket.socket() as unused:  # bound, and not listening
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        reader = spark.read.format("quorumlog").option("kafka.bootstrap.servers", address).options(**SHORT)
        kinds: dict[str, Callable[[], Any]] = {
            "batch": lambda: reader.option("subscribe", "t").load().count(),
            "stream": lambda: stream(spark, address, tmp_path, subscribe="t"),
            "write": lambda: write(spark, address, "select 'x' as value", topic="t"),
        }
        line = last_line(kinds[kind])
    asked = "the requests that the brokers serve" if kind == "write" else "topics"
    assert line.startswith(f"ClusterError: {asked}: given up after 1.5 s; the last answer was: no broker answers: ")
    assert line.endswith(f"; check the option bootstrap.servers ({address}), and that brokers run")


def test_the_error_about_brokers_that_stopped_answering_names_their_addresses(
    spark: SparkSession, filled: ThreadedBrokers, tmp_path: Path
) -> None:
    bootstrap = filled.brokers.bootstrap
    stream(spark, bootstrap, tmp_path, subscribe="t")
    for node_id in (1, 2):
        filled.run(filled.brokers.kill(node_id))
    line = last_line(lambda: stream(spark, bootstrap, tmp_path, subscribe="t"))
    assert line.startswith("ClusterError: ")
    assert f"check the option bootstrap.servers ({bootstrap})" in line


def test_a_checkpoint_of_another_topic_is_refused(spark: SparkSession, filled: ThreadedBrokers, tmp_path: Path) -> None:
    stream(spark, filled.brokers.bootstrap, tmp_path, subscribe="t")
    line = last_line(lambda: stream(spark, filled.brokers.bootstrap, tmp_path, subscribe="u"))
    assert line.startswith("DataLossError: t-0 is not part of the query any more; it was read up to 10")


def test_a_checkpoint_beyond_the_end_of_a_topic_is_refused(
    spark: SparkSession, filled: ThreadedBrokers, tmp_path: Path
) -> None:
    stream(spark, filled.brokers.bootstrap, tmp_path, subscribe="t")
    filled.run(filled.brokers.delete("t"))
    filled.run(filled.brokers.create("t", [1]))
    line = last_line(lambda: stream(spark, filled.brokers.bootstrap, tmp_path, subscribe="t"))
    assert line.startswith("DataLossError: t-0: start offset 10 is beyond the end 0 of the log")


def test_the_error_about_a_deleted_topic_names_the_topic(
    spark: SparkSession, filled: ThreadedBrokers, tmp_path: Path
) -> None:
    stream(spark, filled.brokers.bootstrap, tmp_path, subscribe="t,u")
    filled.run(filled.brokers.delete("t"))
    line = last_line(lambda: stream(spark, filled.brokers.bootstrap, tmp_path, subscribe="t,u"))
    assert line.startswith(("OptionError: topic t does not exist", "DataLossError: t-0 does not exist any more"))


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("select 'x' as key", "OptionError: column value is required"),
        ("select 'x' as value, 'y' as headers", "OptionError: column headers is string; expected: array<struct<"),
        (
            "select 'x' as value, array(named_struct('key', cast(null as string), 'value', x'00')) as headers",
            "ClusterError: a header of a row without a key has no key; give every header a key",
        ),
        (
            "select 'k' as key, 'x' as value, 9 as partition",
            "ClusterError: a row with the key b'k' names partition 9 of topic t, which has 1 partitions",
        ),
        ("select 'k' as key, repeat('x', 2000000) as value", "ClusterError: t-0: a batch of 1 record"),
    ],
)
def test_the_error_about_a_row_that_cannot_be_written_names_the_cause(
    spark: SparkSession, filled: ThreadedBrokers, select: str, expected: str
) -> None:
    line = last_line(lambda: write(spark, filled.brokers.bootstrap, select, topic="t"))
    assert line.startswith(expected)
