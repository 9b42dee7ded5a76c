"""A program of a user: writes rows, reads them back in a batch and a stream, and prints the outcome as JSON.

`cluster_job.py URL BOOTSTRAP FOLDER`: the URL names a master (spark://, or local-cluster[…]) or a Spark Connect server
(sc://).
"""

from __future__ import annotations

import json
import os
import sys
from queue import Queue
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_quorumlog.lag import LagListener

ROWS = 20_000
LAG_TIMEOUT_S = 120.0


def main() -> None:
    url, bootstrap, folder = sys.argv[1:]
    builder: Any = SparkSession.builder
    if url.startswith("sc://"):
        spark = builder.remote(url).getOrCreate()
    else:
        for setting, value in (
            ("spark.executor.memory", "512m"),
            ("spark.executor.extraJavaOptions", os.environ.get("SPARK_SUBMIT_OPTS", "")),  # see `short_lived` of ./dev
            ("spark.sql.shuffle.partitions", "2"),
            ("spark.driver.host", "127.0.0.1"),
            ("spark.ui.enabled", "false"),
            ("spark.ui.showConsoleProgress", "false"),
        ):
            builder = builder.config(setting, value)
        spark = builder.master(url).appName("cluster-job").getOrCreate()
    try:
        print(json.dumps(outcome(spark, bootstrap, folder)))
    finally:
        spark.stop()


def outcome(spark: SparkSession, bootstrap: str, folder: str) -> dict[str, Any]:
    rows = spark.range(0, ROWS, 1, 4).selectExpr("cast(id % 97 as string) as key", "cast(id as string) as value")
    target = rows.write.format("quorumlog").option("bootstrap.servers", bootstrap).option("topic", "t")
    target.mode("append").save()
    source = spark.read.format("quorumlog").option("bootstrap.servers", bootstrap).option("subscribe", "t").load()
    numbers = source.selectExpr("cast(cast(value as string) as int) as value")
    stream = spark.readStream.format("quorumlog").option("bootstrap.servers", bootstrap).option("subscribe", "t")
    values = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", ROWS // 2).load()
    writer = values.selectExpr("cast(value as string) as value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    lags: Queue[int] = Queue()
    # the listener is never removed: Spark Connect's client hangs if it removes one while an event arrives
    spark.streams.addListener(LagListener(lambda query, lag: lags.put(sum(lag.values()))))
    writer.start(f"{folder}/table").awaitTermination()
    reported = [lags.get(timeout=LAG_TIMEOUT_S)]
    while reported[-1]:  # after each batch
        reported.append(lags.get(timeout=LAG_TIMEOUT_S))
    folder_of_executor = F.udf(lambda _: os.getcwd(), "string")  # each executor has its own
    refused = ""
    try:
        spark.read.format("quorumlog").option("subscibe", "t").option("bootstrap.servers", bootstrap).load().count()
    except Exception as error:  # its class depends on the kind of session, its text does not
        refused = next((line for line in str(error).splitlines() if "OptionError:" in line), str(error))
    found = numbers.agg(
        F.count_distinct("value").alias("count"),
        F.sum("value").alias("sum"),
        F.count_distinct(folder_of_executor("value")).alias("executors"),
    )
    return {
        **found.collect()[0].asDict(),
        "streamed": spark.read.parquet(f"{folder}/table").distinct().count(),
        "lags": reported,
        "refused": refused,
    }


if __name__ == "__main__":
    main()
