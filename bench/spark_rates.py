"""Rows written and read by Spark (`local[2]`) through one standalone broker: batch write, acks=all, then batch read.

Spark itself generates the rows, and counts and sums the rows that are read, so this work is part of the time.
`made_rows_s` is the rate of generating rows alone, with Spark's sink that drops everything.  Count and checksum of the
written and the read rows must be equal.  Driver, Python workers and broker share the machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.broker_rates import create_topic
from bench.plots import Panel, show
from quorumlog.testing import standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SIZES = (100, 1024)
PARTITIONS = 4
ROOT = Path(__file__).parents[1]


def run(tiny: bool) -> dict[str, Any]:
    rounds = 1 if tiny else 3
    results = []
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder, standalone() as broker:
        spark = local_session("quorumlog-bench", folder)
        try:
            create_topic(broker.bootstrap, "warm", PARTITIONS)
            _write(
                rows_of(spark, 1_000, SIZES[0]), broker.bootstrap, "warm"
            )  # starts workers, loads the compiled codec
            checksum(_read(spark, broker.bootstrap, "warm"))
            for size in SIZES:
                count = 2_000 if tiny else 200_000_000 // size
                results.append(_measure(spark, broker.bootstrap, size, count, rounds))
        finally:
            spark.stop()
    return {"master": "local[2]", "acks": "all", "partitions": PARTITIONS, "rounds": rounds, "results": results}


def present(result: dict[str, Any]) -> list[Panel]:
    show("rows of Spark", result["results"])
    return []


def _measure(spark: SparkSession, bootstrap: str, size: int, count: int, rounds: int) -> dict[str, Any]:
    made, written, read = [], [], []
    rows = rows_of(spark, count, size)
    for number in range(rounds):
        topic = f"rows-{size}-{number}"
        create_topic(bootstrap, topic, PARTITIONS)
        made.append(count / _seconds(lambda: rows.write.format("noop").mode("overwrite").save()))
        written.append(count / _seconds(lambda to=topic: _write(rows, bootstrap, to)))  # type: ignore[misc]
        began = time.monotonic()
        found = checksum(_read(spark, bootstrap, topic))
        read.append(count / (time.monotonic() - began))
        assert found == checksum(rows), f"the rows read from {topic} differ from the written rows"
    return {
        "row_bytes": size,
        "rows": count,
        "made_rows_s_median": round(median(made)),
        "write_rows_s_median": round(median(written)),
        "write_mb_s_median": round(median(written) * size / 1e6, 1),
        "read_rows_s_median": round(median(read)),
        "read_mb_s_median": round(median(read) * size / 1e6, 1),
    }


def local_session(name: str, warehouse: str) -> SparkSession:
    """Return a Spark session with two threads, whose Python workers import the packages of this tree.

    warehouse: the folder of its warehouse.
    """
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    session = (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", warehouse)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def rows_of(spark: SparkSession, count: int, size: int) -> DataFrame:
    """Return `count` different rows, each with a key of 8 bytes and a value of `size` bytes."""
    return spark.range(0, count, numPartitions=PARTITIONS).selectExpr(
        "lpad(hex(id), 8, '0') AS key", f"rpad(hex(id), {size}, 'x') AS value"
    )


def _write(rows: DataFrame, bootstrap: str, topic: str) -> None:
    writer = rows.write.format("quorumlog").option("bootstrap.servers", bootstrap).option("topic", topic)
    writer.mode("append").save()


def _read(spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
    source = spark.read.format("quorumlog").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    return source.load().select("key", "value")


def checksum(rows: DataFrame) -> tuple[int, int]:
    """Return the number of rows, and the sum of the CRC-32 of their values."""
    found = rows.selectExpr("crc32(CAST(value AS BINARY)) AS crc").selectExpr("count(*)", "sum(crc)").first()
    assert found is not None
    return int(found[0]), int(found[1])


def _seconds(act: Callable[[], None]) -> float:
    began = time.monotonic()
    act()
    return time.monotonic() - began
