"""This data source beside Spark's own Kafka connector: rows written, read and streamed, and the time of a micro-batch.

Both connectors run in one Spark (`local[2]`).  After a warm-up of both, they take turns in being the first of a round.
Spark's connector is measured if `python -m tests.differential` has installed it.  Each connector has a broker of its
own kind, in one process.  By default, ours acknowledges records that are durable, and Apache Kafka records that are in
memory.  The jars of Apache Kafka are the ones of `python -m tests.clients`.  Written and read rows must have the same
checksum.

Spark's connector writes without Kafka's idempotence.  With it, writes to 32 partitions end with a timeout after 120 s:
the broker refuses the repetitions of a batch (OutOfOrderSequenceException, kafka-clients 3.9.2, Apache Kafka 4.4.0).

The rate of a stream is the rate of its single batch.  `streams` has the time until a query's first batch, and the time
of a batch with 50 rows.

`made` is the upper limit of a read: the rate of a data source in Python whose tasks make one Arrow batch each, and
return it repeatedly.

BENCH_TINY_WITH_KAFKA=1 includes Spark's connector and Apache Kafka in a `--tiny` run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.broker_rates import create_topic
from bench.clusters import kafka_broker
from bench.plots import Panel, show
from bench.rounds import uses_java
from bench.spark_rates import PARTITIONS as TASKS
from bench.spark_rates import ROOT, checksum, local_session, rows_of
from quorumlog.testing import standalone
from tests.clients.outcomes import Skipped

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import InputPartition

OURS, KAFKA = "quorumlog", "kafka"
PACKAGES = ROOT / ".dev" / "differential"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
SIZES = (100, 1024)
PARTITIONS = (1, 6, 32)
CODECS = ("none", "lz4", "zstd", "snappy")
ROUNDS = 3
BYTES_OF_VALUES = 100_000_000
WARM_ROWS = 1_000
LATENCY_BATCHES = 20
MADE_BATCH_ROWS = 10_000


def run(tiny: bool) -> dict[str, Any]:
    """Run the measurement in a process of its own.

    If Spark's connector is measured, this process uses the version of Spark that fits the connector.
    """
    path, missing = [str(ROOT)], None
    with ExitStack() as stack:
        bootstrap = {OURS: stack.enter_context(standalone()).bootstrap}
        if uses_java(tiny):
            try:
                if not (PACKAGES / "python" / "pyspark").is_dir():
                    raise Skipped("Spark's connector is not installed: python -m tests.differential")
                bootstrap[KAFKA] = stack.enter_context(kafka_broker())
                path.insert(0, str(PACKAGES / "python"))
            except Skipped as reason:
                missing = str(reason)
        done = subprocess.run(
            [sys.executable, "-m", "bench.spark_connectors", json.dumps({"tiny": tiny, "bootstrap": bootstrap})],
            env={name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
            | {"PYTHONPATH": os.pathsep.join(path)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found | {"missing": missing}


def present(result: dict[str, Any]) -> list[Panel]:
    show("rows a second through Spark (medians; ratio = ours / Spark's connector)", result["results"])
    show("ready-made Arrow batches through Spark, rows a second", result["made"])
    show("streams, median ms: a micro-batch, and the start of a query until its first batch", result["streams"])
    return []


class _MicroBatch(NamedTuple):
    rows: int
    duration_s: float


class _Stream(NamedTuple):
    """start_s: from the start of the query to the start of its first batch with rows.  batches: all that had rows."""

    start_s: float
    batches: list[_MicroBatch]


class _Case:
    """One combination of size, partitions and codec."""

    def __init__(self, spark: SparkSession, bootstrap: dict[str, str], size: int, partitions: int, codec: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.size = size
        self.partitions = partitions
        self.codec = codec
        self.rates: dict[tuple[str, str], list[float]] = {}

    def round(self, connector: str, count: int, topic: str) -> None:
        """Write `count` rows, read them in a batch, and read them in a stream."""
        create_topic(self.bootstrap[connector], topic, self.partitions)
        rows = rows_of(self.spark, count, self.size)
        began = time.monotonic()
        writer = rows.write.format(connector).option("kafka.bootstrap.servers", self.bootstrap[connector])
        if connector == KAFKA:
            writer = writer.option("kafka.enable.idempotence", "false")
        writer.options(**{"topic": topic, "kafka.compression.type": self.codec}).mode("append").save()
        self._note(connector, "write", count, time.monotonic() - began)
        began = time.monotonic()
        found = checksum(self._read(connector, topic))
        self._note(connector, "read", count, time.monotonic() - began)
        assert found == checksum(rows), f"the rows read from {topic} differ from the written rows"
        batches = self.stream(connector, topic).batches
        assert sum(batch.rows for batch in batches) == count, f"a stream of {topic} had another number of rows"
        self._note(connector, "stream", count, sum(batch.duration_s for batch in batches))

    def stream(self, connector: str, topic: str, rows_a_batch: int | None = None) -> _Stream:
        """Read the topic in micro-batches; without `rows_a_batch`, in a single one."""
        source = self.spark.readStream.format(connector).option("subscribe", topic)
        source = source.options(**{"kafka.bootstrap.servers": self.bootstrap[connector], "startingOffsets": "earliest"})
        if rows_a_batch is not None:
            source = source.option("maxOffsetsPerTrigger", str(rows_a_batch))
        rows = source.load()
        with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
            writer = rows.select("key", "value").writeStream.format("noop").trigger(availableNow=True)
            began = datetime.now(UTC)
            query = writer.option("checkpointLocation", folder).start()
            query.awaitTermination()
            full = [one for one in query.recentProgress if one.numInputRows]
            batches = [_MicroBatch(one.numInputRows, one.durationMs["triggerExecution"] / 1000) for one in full]
            start_s = (datetime.fromisoformat(full[0].timestamp) - began).total_seconds()
            return _Stream(start_s, batches)

    def _read(self, connector: str, topic: str) -> DataFrame:
        source = self.spark.read.format(connector).option("kafka.bootstrap.servers", self.bootstrap[connector])
        return source.option("subscribe", topic).load().select("key", "value")

    def _note(self, connector: str, what: str, count: int, duration_s: float) -> None:
        self.rates.setdefault((connector, what), []).append(count / duration_s)

    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = {"row_bytes": self.size, "partitions": self.partitions, "codec": self.codec}
        for what in ("write", "read", "stream"):
            rates = {connector: median(self.rates[connector, what]) for connector in self.bootstrap}
            found |= {f"{connector} {what}": round(rate) for connector, rate in rates.items()}
            if KAFKA in rates:
                found[f"{what} ratio"] = round(rates[OURS] / rates[KAFKA], 2)
        return found


def _made_rate(spark: SparkSession, size: int, count: int, rounds: int) -> int:
    """Return the median number of rows per second that Spark reads from a source that repeats one Arrow batch."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    batches = max(1, count // MADE_BATCH_ROWS // TASKS)

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(task) for task in range(TASKS)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa

            columns = [pa.array([b"k" * 8] * MADE_BATCH_ROWS), pa.array([b"x" * size] * MADE_BATCH_ROWS)]
            batch = pa.RecordBatch.from_arrays(columns, names=["key", "value"])
            return iter([batch] * batches)

    class Made(DataSource):
        @classmethod
        def name(cls) -> str:
            return f"made_{size}"

        def schema(self) -> str:
            return "key binary, value binary"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Made)
    rates = []
    for _ in range(1 + rounds):
        began = time.monotonic()
        rows, _crc = checksum(spark.read.format(Made.name()).load())
        rates.append(rows / (time.monotonic() - began))
    return round(median(rates[1:]))  # the first one warms up


def _latencies(case: _Case, connector: str, batches: int, rounds: int) -> dict[str, Any]:
    """Return the times of the streams of a topic with few rows."""
    streams = [case.stream(connector, f"warm-{connector}", WARM_ROWS // batches) for _ in range(rounds)]
    return {
        "connector": connector,
        "batch_ms": round(1000 * median(batch.duration_s for one in streams for batch in one.batches)),
        "start_ms": round(1000 * median(one.start_s for one in streams)),
    }


def _measure(settings: dict[str, Any]) -> dict[str, Any]:
    tiny, bootstrap = settings["tiny"], settings["bootstrap"]
    connectors = list(bootstrap)
    rounds = 1 if tiny else ROUNDS
    cases = [(100, 1, "none")] if tiny else [(s, p, c) for s in SIZES for p in PARTITIONS for c in CODECS]
    if KAFKA in connectors:
        os.environ["PYSPARK_SUBMIT_ARGS"] = (
            f"--packages {CONNECTOR} --conf spark.jars.ivy={PACKAGES / 'ivy'} pyspark-shell"
        )
    results, made, latencies = [], [], []
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
        spark = local_session("quorumlog-connectors", folder)
        try:
            for connector in connectors:
                _Case(spark, bootstrap, SIZES[0], 1, "none").round(connector, WARM_ROWS, f"warm-{connector}")
            for size, partitions, codec in cases:
                case = _Case(spark, bootstrap, size, partitions, codec)
                count = 2_000 if tiny else BYTES_OF_VALUES // size
                for number in range(rounds):
                    turn = number % len(connectors)
                    for connector in connectors[turn:] + connectors[:turn]:
                        case.round(connector, count, f"{connector}-{size}-{partitions}-{codec}-{number}")
                results.append(case.result())
                print(f"{len(results)} of {len(cases)} cases: {results[-1]}", file=sys.stderr, flush=True)
            for size in SIZES:
                rate = _made_rate(spark, size, 2_000 if tiny else BYTES_OF_VALUES // size, rounds)
                made.append({"row_bytes": size, "rows_s": rate})
            for connector in connectors:
                case = _Case(spark, bootstrap, SIZES[0], 1, "none")
                latencies.append(_latencies(case, connector, 2 if tiny else LATENCY_BATCHES, rounds))
        finally:
            spark.stop()
    return {"master": "local[2]", "rounds": rounds, "results": results, "made": made, "streams": latencies}


def main() -> None:
    print(json.dumps(_measure(json.loads(sys.argv[1]))))


if __name__ == "__main__":
    main()
