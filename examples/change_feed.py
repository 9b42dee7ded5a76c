"""Keeps a table of Parquet files up to date with a topic of changes.  `write_back` writes its rows to a topic.

A record's key is the id of a row, and its value the row's contents; a record without a value deletes the row.

Records are ordered only within a partition.  Producers send all records of a key to the same partition, so the record
of a row with the highest offset is its last change.  This requires that all producers choose the partition by the key
in the same way, and that no partitions are added to the topic.  Otherwise a row can have changes in two partitions,
whose offsets have no order.

    python -m examples.change_feed --bootstrap localhost:9092 --topic changes --folder /tmp/changes
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def append_changes(spark: SparkSession, bootstrap: str, topic: str, folder: str) -> None:
    """Append the changes since the last call, each exactly once; table and checkpoint are in `folder`."""
    changes = spark.readStream.format("quorumlog").option("kafka.bootstrap.servers", bootstrap)
    changes = changes.option("subscribe", topic).option("startingOffsets", "earliest")
    rows = changes.load().selectExpr(
        "CAST(key AS string) AS id", "CAST(value AS string) AS contents", "partition", "offset", "timestamp"
    )
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start(f"{folder}/table").awaitTermination()


def current_rows(spark: SparkSession, folder: str) -> DataFrame:
    """Return the last contents of each row that was not deleted."""
    changes = spark.read.parquet(f"{folder}/table")
    last = changes.groupBy("id").agg(F.max_by("contents", "offset").alias("contents"))
    return last.where("contents IS NOT NULL")


def write_back(rows: DataFrame, bootstrap: str, topic: str) -> None:
    """Write the rows to a topic."""
    records = rows.selectExpr("id AS key", "contents AS value")
    writer = records.write.format("quorumlog").option("kafka.bootstrap.servers", bootstrap).option("topic", topic)
    writer.mode("append").save()


def main() -> None:
    parser = argparse.ArgumentParser(description="Appends new changes of a topic to a table, and shows the table.")
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", default="changes")
    parser.add_argument("--folder", required=True, help="folder of the table and its checkpoint")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("change feed").getOrCreate()
    append_changes(spark, arguments.bootstrap, arguments.topic, arguments.folder)
    current_rows(spark, arguments.folder).show(truncate=False)


if __name__ == "__main__":
    main()
