"""The Spark process of a kill run: two streaming queries of one topic, controlled by commands on standard input.

`restart` stops both queries and starts them again from their checkpoints.  `finish` lets them read everything, writes
the contents of the table to one file, and ends this process.  If a query fails or standard input ends, the process ends
with status 1.  Each start of a query notes the batch that Spark will repeat, since only its rows may be duplicated.

Spark ends a query when the machine is so busy that a Python worker does not start within 10 s.  Like an operator, this
process then starts both queries again; `kill_run` reports how often.
"""

from __future__ import annotations

import json
import select
import sys
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.spark_rates import local_session
from tests.spark.kill_check import unfinished

COPY, TABLE = "copy", "table"
LOOK_S = 0.2
SLOW_WORKER = "Python worker failed to connect back"


def main() -> int:
    bootstrap, folder = sys.argv[1], Path(sys.argv[2])
    spark = local_session("kill-run", str(folder / "warehouse"))
    queries = _start(spark, bootstrap, folder)
    print("started", flush=True)
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], LOOK_S)
        queries = _repaired(spark, queries, bootstrap, folder)
        for query in queries:
            if not query.isActive:
                print(f"{query.name} ended: {query.exception()}", flush=True)
                return 1
        command = sys.stdin.readline().strip() if ready else None
        if command == "restart":
            queries = _restart(spark, queries, bootstrap, folder)
            print("restarted", flush=True)
        elif command == "finish":
            while not _has_read_all(queries):
                queries = _repaired(spark, queries, bootstrap, folder)
            for query in queries:
                query.stop()
            pq.write_table(spark.read.parquet(str(folder / TABLE)).toArrow(), folder / "table.parquet")
            print("finished", flush=True)
            return 0
        elif command == "":
            return 1


def slow_workers(folder: Path) -> Path:
    """Return the file with a line for each time at which a slow Python worker ended a query."""
    return folder / "slow-workers"


def _has_read_all(queries: list[StreamingQuery]) -> bool:
    """Wait until the queries have read all records.  Return False if a slow Python worker has ended one of them."""
    try:
        for query in queries:
            query.processAllAvailable()
    except StreamingQueryException as error:
        if SLOW_WORKER not in str(error):
            raise
        return False
    return True


def _repaired(spark: SparkSession, queries: list[StreamingQuery], bootstrap: str, folder: Path) -> list[StreamingQuery]:
    """Start the queries again if a slow Python worker has ended one of them."""
    if not any(not each.isActive and SLOW_WORKER in str(each.exception()) for each in queries):
        return queries
    with slow_workers(folder).open("a") as file:
        file.write("1\n")
    return _restart(spark, queries, bootstrap, folder)


def _restart(spark: SparkSession, queries: list[StreamingQuery], bootstrap: str, folder: Path) -> list[StreamingQuery]:
    for query in queries:
        query.stop()
    return _start(spark, bootstrap, folder)


def _start(spark: SparkSession, bootstrap: str, folder: Path) -> list[StreamingQuery]:
    for name in (COPY, TABLE):
        if (batch := unfinished(_checkpoint(folder, name))) is not None:
            with (folder / f"repeated-{name}.jsonl").open("a") as file:
                file.write(json.dumps(asdict(batch)) + "\n")

    def rows(**options: str) -> DataFrame:
        source = spark.readStream.format("quorumlog").option("kafka.bootstrap.servers", bootstrap)
        return source.options(subscribe="in", startingOffsets="earliest", **options).load()

    identified = rows().selectExpr("concat_ws(':', partition, offset, cast(value as string)) as value")
    to_topic = identified.writeStream.format("quorumlog").option("kafka.bootstrap.servers", bootstrap)
    to_topic = to_topic.option("topic", "out").trigger(processingTime="0 seconds")
    columns = rows(maxOffsetsPerTrigger="20000", minPartitions="8", **{"kafka.fetch.max.bytes": "65536"})
    columns = columns.selectExpr("partition", "offset", "cast(value as string) as value")
    to_files = columns.writeStream.format("parquet").option("path", str(folder / TABLE))
    to_files = to_files.trigger(processingTime="1 second")
    return [
        writer.queryName(name).option("checkpointLocation", str(_checkpoint(folder, name))).start()
        for name, writer in ((COPY, to_topic), (TABLE, to_files))
    ]


def _checkpoint(folder: Path, name: str) -> Path:
    return folder / f"checkpoint-{name}"


if __name__ == "__main__":
    sys.exit(main())
