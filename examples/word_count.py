"""Counts the words of a topic while they arrive, and writes the counts that change to another topic.

kctl topics create lines && kctl topics create counts
python -m examples.word_count --bootstrap localhost:9092 --checkpoint /tmp/word-count
kctl produce lines            # in another terminal
kctl consume counts
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery


def word_counts(lines: DataFrame) -> DataFrame:
    """Return the columns word and count, for lines in the column value."""
    words = lines.select(F.explode(F.split(F.col("value").cast("string"), r"\W+")).alias("word"))
    return words.where("word != ''").groupBy("word").count()


def start(spark: SparkSession, bootstrap: str, checkpoint: str, **trigger: Any) -> StreamingQuery:
    """Start the query.  A restart with the same checkpoint continues the counts."""
    lines = spark.readStream.format("quorumlog").option("kafka.bootstrap.servers", bootstrap)
    lines = lines.option("subscribe", "lines").option("startingOffsets", "earliest")
    counts = word_counts(lines.load()).selectExpr("word AS key", "CAST(count AS string) AS value")
    writer = counts.writeStream.outputMode("update").option("checkpointLocation", checkpoint).trigger(**trigger)

    def write(changed: DataFrame, _batch_id: int) -> None:
        target = changed.write.format("quorumlog").option("kafka.bootstrap.servers", bootstrap)
        target.option("topic", "counts").mode("append").save()

    return writer.foreachBatch(write).start()  # Spark supports no output mode update for data sources in Python


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts the words of the topic lines in the topic counts.")
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--checkpoint", required=True, metavar="FOLDER", help="the progress of the query")
    arguments = parser.parse_args()
    spark = SparkSession.builder.appName("word count").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    start(spark, arguments.bootstrap, arguments.checkpoint, processingTime="1 second").awaitTermination()


if __name__ == "__main__":
    main()
