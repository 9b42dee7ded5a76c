"""The work of Spark in the demo.  Every function here blocks, so the demo calls it in a thread."""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.demo.flights import KEY, SCHEMA, Truth

DELIVERY_TIMEOUT_MS = 120_000
STOP_TIMEOUT_S = 20
_CORES = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """lost: rows of the source that were not read.  duplicated: rows that were read more often than they occur."""

    rows_read: int
    lost: int
    duplicated: int
    checksum_source: int
    checksum_read: int
    by_key: Counter[str]

    def problems(self, truth: Truth) -> list[str]:
        found = []
        if self.rows_read != truth.row_count:
            found.append(f"{self.rows_read} rows were read, the source holds {truth.row_count}")
        if self.by_key != truth.by_key:
            keys = sorted(key for key in {*self.by_key, *truth.by_key} if self.by_key[key] != truth.by_key[key])
            found.append(f"the counts of the keys {', '.join(keys)} differ")
        if self.checksum_read != self.checksum_source:
            found.append(f"the checksum is {self.checksum_read:x}, of the source {self.checksum_source:x}")
        if self.lost or self.duplicated:
            found.append(f"{self.lost} rows are lost, {self.duplicated} are duplicated")
        return found


def start_spark(directory: Path) -> SparkSession:
    """Start a local Spark that writes its own messages to `directory`/spark.log, and return its session."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    kept = os.dup(2)
    with (directory / "spark.log").open("ab") as log:
        os.dup2(log.fileno(), 2)  # the JVM, a child process, keeps it open
    try:
        session: SparkSession = (
            SparkSession.builder.master(f"local[{_CORES}]")
            .appName("quorumlog-demo")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.driver.memory", "1g")
            .config("spark.sql.shuffle.partitions", str(_CORES))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.local.dir", str(directory / "spark"))
            .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
            .getOrCreate()
        )
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return session


def stop_spark() -> None:
    """Stop Spark and its JVM, if they run, so that the JVM deletes its files before this process ends."""
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is not None and process is not None:
        gateway.shutdown()
        process.stdin.close()  # the JVM ends with it
        process.wait(STOP_TIMEOUT_S)


def source_rows(spark: SparkSession, path: Path) -> DataFrame:
    """Return the data set as records: carrier → the whole row as JSON."""
    flights = spark.read.csv(str(path), header=True, schema=SCHEMA, nullValue="NA", mode="FAILFAST")
    value = F.to_json(F.struct(*flights.columns))
    return flights.select(F.col(KEY).alias("key"), value.alias("value"))


def write(rows: DataFrame, bootstrap: str, topic: str, rows_per_second: int) -> None:
    """Write the rows in one task, so that a single attempt must survive all failures."""
    target = rows.coalesce(1).write.format("quorumlog")
    target = target.option("bootstrap.servers", bootstrap).option("topic", topic)
    target = target.option("kafka.delivery.timeout.ms", DELIVERY_TIMEOUT_MS)
    target.option("maxRecordsPerSecond", rows_per_second).mode("append").save()


def read_and_compare(spark: SparkSession, source: DataFrame, bootstrap: str, topic: str) -> Comparison:
    """Read everything back once, and compare it with the source."""
    read = spark.read.format("quorumlog").option("bootstrap.servers", bootstrap).option("subscribe", topic).load()
    read = read.select(F.col("key").cast("string").alias("key"), F.col("value").cast("string").alias("value"))
    row_hash = F.xxhash64("key", "value")
    each = source.select("key", row_hash.alias("hash"), F.lit(1).alias("expected"), F.lit(0).alias("found"))
    each = each.unionAll(
        read.select("key", row_hash.alias("hash"), F.lit(0).alias("expected"), F.lit(1).alias("found"))
    )
    by_row = each.groupBy("key", "hash").agg(F.sum("expected").alias("expected"), F.sum("found").alias("found"))
    wide = F.col("hash").cast("decimal(38,0)")
    by_key = by_row.groupBy("key").agg(
        F.sum("found").alias("found"),
        F.sum(F.greatest(F.col("expected") - F.col("found"), F.lit(0))).alias("lost"),
        F.sum(F.greatest(F.col("found") - F.col("expected"), F.lit(0))).alias("duplicated"),
        F.sum(wide * F.col("expected")).alias("checksum_source"),
        F.sum(wide * F.col("found")).alias("checksum_read"),
    )
    answers = by_key.collect()
    mask = 2**64 - 1
    return Comparison(
        rows_read=sum(row.found for row in answers),
        lost=sum(row.lost for row in answers),
        duplicated=sum(row.duplicated for row in answers),
        checksum_source=sum(int(row.checksum_source) for row in answers) & mask,
        checksum_read=sum(int(row.checksum_read) for row in answers) & mask,
        by_key=Counter({row.key: row.found for row in answers if row.found}),
    )
