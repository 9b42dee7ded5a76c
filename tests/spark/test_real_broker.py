"""A stream against a real broker process, whose topic changes while the query is stopped and while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from bench.broker_rates import create_topic
from quorumlog.testing import Broker

pytestmark = pytest.mark.quiet  # Spark alone keeps two cores busy


def kctl(broker: Broker, *arguments: str) -> None:
    command = [sys.executable, "-m", "quorumlog.kctl.main", "--controllers", broker.control, *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def write(spark: SparkSession, broker: Broker, first: int, end: int, partition: int) -> None:
    rows = spark.range(first, end, 1, 1).selectExpr("cast(id as string) as value", f"{partition} as partition")
    target = rows.write.format("quorumlog").option("kafka.bootstrap.servers", broker.bootstrap)
    target.option("topic", "t").mode("append").save()


def test_a_stream_reads_each_record_once_while_its_topic_changes_and_its_broker_hangs(
    spark: SparkSession, quorumlog_broker: Broker, tmp_path: Path
) -> None:
    broker, table = quorumlog_broker, str(tmp_path / "table")
    create_topic(broker.bootstrap, "t", 2)

    def frame(**options: str) -> DataFrame:
        source = spark.readStream.format("quorumlog").option("kafka.bootstrap.servers", broker.bootstrap)
        rows = source.options(subscribe="t", startingOffsets="earliest", **options).load()
        return rows.selectExpr("cast(cast(value as string) as int) as value")

    def stream(**options: str) -> list[int]:
        writer = frame(**options).writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(table).awaitTermination()
        return sorted(row.value for row in spark.read.parquet(table).collect())

    write(spark, broker, 0, 1000, 0)
    write(spark, broker, 1000, 1500, 1)
    assert stream(maxOffsetsPerTrigger="900") == list(range(1500))
    kctl(broker, "topics", "add-partitions", "t", "--to", "3")
    write(spark, broker, 1500, 1600, 2)
    assert stream() == list(range(1600))
    kctl(broker, "topics", "remove-partitions", "t", "--to", "2", "--yes", "--wait")  # gives the topic another id
    write(spark, broker, 1600, 1700, 1)
    assert stream(failOnDataLoss="false") == list(range(1700))

    writer = frame(failOnDataLoss="false").writeStream.format("parquet").trigger(processingTime="0 seconds")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(table)
    try:
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(2)  # how long the broker does not answer; there is no event to wait for
        os.kill(broker.pid, signal.SIGCONT)
        write(spark, broker, 1700, 1800, 0)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(row.value for row in spark.read.parquet(table).collect()) == list(range(1800))
