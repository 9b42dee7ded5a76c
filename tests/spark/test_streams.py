"""Streams in a real Spark, against brokers in this process.

The planning of batches has its own tests, without Spark.  These tests show that it works with Spark's engine and
checkpoints.
"""

from __future__ import annotations

import json
import queue
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_quorumlog.lag import Lag, LagListener, lag_of
from quorumlog.client.records import NewRecord, build_batch
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers

pytestmark = pytest.mark.quiet  # Spark alone keeps two cores busy

NOW = 1_700_000_000_000


class Job:
    """A query that collects its rows in a table of Parquet files, with its checkpoint."""

    def __init__(self, spark: SparkSession, cluster: ThreadedBrokers, folder: Path, **options: str) -> None:
        self.spark = spark
        self.cluster = cluster
        self.checkpoint = folder / "checkpoint"
        self.table = str(folder / "table")
        self.options = {"subscribe": "t"} | options

    def frame(self) -> DataFrame:
        source = self.spark.readStream.format("quorumlog").options(**self.options)
        return source.option("kafka.bootstrap.servers", self.cluster.brokers.bootstrap).load()

    def start(self, **trigger: Any) -> StreamingQuery:
        rows = self.frame().selectExpr("cast(cast(value as string) as int) as value", "topic", "partition", "offset")
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(self.table)

    def run(self, **trigger: Any) -> StreamingQuery:
        """Run until all available records are read."""
        query = self.start(**(trigger or {"availableNow": True}))
        query.awaitTermination()
        return query

    @contextmanager
    def running(self) -> Iterator[StreamingQuery]:
        query = self.start(processingTime="0 seconds")
        try:
            yield query
        finally:
            query.stop()

    @property
    def values(self) -> list[int]:
        return sorted(row.value for row in self.spark.read.parquet(self.table).select("value").collect())

    def batch_ends(self) -> list[Any]:
        """Return the end of each batch in the checkpoint."""
        files = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
        return [json.loads(file.read_text().splitlines()[2]) for file in files]


def fill(cluster: ThreadedBrokers, topic: str, index: int, *values: int) -> None:
    records = [NewRecord(None, b"%d" % value, NOW + value) for value in values]
    cluster.run(cluster.brokers.fill(topic, index, build_batch(records)))


def last_line(error: PySparkException) -> str:
    """Return the last line of the traceback that Spark shows: the error's class, without its modules, and message."""
    traceback, _, _ = str(error).partition(" SQLSTATE: ")
    return re.sub(r"^[a-z_.]+\.(?=[A-Z])", "", traceback.strip().splitlines()[-1])


@pytest.fixture
def job(spark: SparkSession, cluster: ThreadedBrokers, tmp_path: Path) -> Job:
    """A query of t, where t-0 has 0 to 9 and t-1 has 100 and 101."""
    cluster.run(cluster.brokers.create("t", [1, 2]))
    fill(cluster, "t", 0, *range(10))
    fill(cluster, "t", 1, 100, 101)
    return Job(spark, cluster, tmp_path, startingOffsets="earliest")


FIRST = [*range(10), 100, 101]


def test_available_now_reads_all_records_in_limited_batches_and_a_restart_continues_after_them(job: Job) -> None:
    job.options["maxOffsetsPerTrigger"] = "6"
    query = job.run()
    assert job.values == FIRST
    assert job.batch_ends() == [{"t": {"0": 0, "1": 0}}, {"t": {"0": 5, "1": 1}}, {"t": {"0": 10, "1": 2}}]
    progress = query.lastProgress
    assert progress is not None
    assert json.loads(progress.sources[0].latestOffset or "") == {"t": {"0": 10, "1": 2}}
    assert [lag_of(one.sources[0]) for one in query.recentProgress if one.numInputRows] == [
        {("t", 0): 5, ("t", 1): 1},
        {("t", 0): 0, ("t", 1): 0},
    ]
    fill(job.cluster, "t", 0, 10)
    job.run()
    job.run(once=True)
    assert job.values == sorted([*FIRST, 10])
    assert len(job.batch_ends()) == 4, "a run without new records has no batch"


def test_a_listener_of_the_session_reports_the_lag_of_each_batch(job: Job) -> None:
    reports: queue.Queue[Lag] = queue.Queue()
    listener = LagListener(lambda query, lag: reports.put(lag))
    job.spark.streams.addListener(listener)
    try:
        job.options["maxOffsetsPerTrigger"] = "6"
        job.run()
        found = [reports.get(timeout=60) for _ in job.batch_ends()]
    finally:
        job.spark.streams.removeListener(listener)
    assert found == [
        {("t", 0): 10, ("t", 1): 2},  # the first batch is empty
        {("t", 0): 5, ("t", 1): 1},
        {("t", 0): 0, ("t", 1): 0},
    ]


def test_a_topic_that_is_deleted_ends_a_running_query(job: Job) -> None:
    with job.running() as query:
        query.processAllAvailable()
        job.cluster.run(job.cluster.brokers.delete("t"))
        with pytest.raises(PySparkException) as refused:
            query.awaitTermination(120)
    line = last_line(refused.value)
    assert line.startswith(("OptionError: topic t does not exist", "DataLossError: t-0 does not exist any more")), line


def test_a_checkpoint_of_another_source_is_refused(job: Job) -> None:
    job.run()
    log = job.checkpoint / "offsets" / "1"
    version, metadata, _ = log.read_text().splitlines()
    log.write_text(f"{version}\n{metadata}\n7")  # as the source `rate` writes it
    (log.parent / ".1.crc").unlink(missing_ok=True)
    with pytest.raises(PySparkException) as refused:
        job.run()
    assert last_line(refused.value) == (
        "OptionError: the checkpoint contains '7', which is not a map of offsets by topic and partition; "
        "it belongs to another data source; use another checkpointLocation"
    )


def test_a_batch_that_did_not_finish_is_repeated_after_a_restart(job: Job) -> None:
    job.run()
    uncommit(job, 1)
    fill(job.cluster, "t", 1, 102)
    job.run()
    assert job.values == sorted([*FIRST, 102]), "the table recognises the batch that was repeated"
    assert job.batch_ends() == [{"t": {"0": 0, "1": 0}}, {"t": {"0": 10, "1": 2}}, {"t": {"0": 10, "1": 3}}]


def uncommit(job: Job, batch: int) -> None:
    """Delete the commit of the batch, as if the batch had not finished."""
    (job.checkpoint / "commits" / str(batch)).unlink()
    (job.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_first_batch_that_did_not_finish_is_repeated_and_loses_nothing(job: Job, starting: str) -> None:
    job.options["startingOffsets"] = starting
    query = job.start(once=True) if starting == "latest" else job.start(availableNow=True)
    query.awaitTermination()
    for batch in range(len(job.batch_ends())):
        uncommit(job, batch)
        if batch:
            (job.checkpoint / "offsets" / str(batch)).unlink()
            (job.checkpoint / "offsets" / f".{batch}.crc").unlink(missing_ok=True)
    fill(job.cluster, "t", 0, 10)
    job.table += "-again"
    job.run()
    assert job.values == ([10] if starting == "latest" else sorted([*FIRST, 10]))


def test_new_partitions_and_topics_are_read_while_the_query_runs(job: Job) -> None:
    del job.options["subscribe"]
    job.options |= {"subscribePattern": "t.*", "startingOffsets": "latest"}
    with job.running() as query:
        query.processAllAvailable()
        assert job.batch_ends() == [{"t": {"0": 10, "1": 2}}], "the first batch logs the position"
        job.cluster.run(job.cluster.brokers.add_partition("t", 1))
        fill(job.cluster, "t", 2, 200)
        job.cluster.run(job.cluster.brokers.create("t-too", [2]))
        fill(job.cluster, "t-too", 0, 300)
        query.processAllAvailable()
    assert job.values == [200, 300]
    assert job.batch_ends()[-1] == {"t": {"0": 10, "1": 2, "2": 1}, "t-too": {"0": 1}}


def test_lost_records_end_the_query_unless_losses_are_permitted(job: Job) -> None:
    job.run()
    fill(job.cluster, "t", 0, 10)
    fill(job.cluster, "t", 0, 11)
    job.cluster.run(job.cluster.brokers.cut_front("t", 0, 2))
    with pytest.raises(PySparkException) as refused:
        job.run()
    assert last_line(refused.value) == (
        "DataLossError: t-0: start offset 10 was deleted; the log contains offsets from 11 to 12 (exclusive). "
        "To read the remaining records, set the option failOnDataLoss to false."
    )
    job.options["failOnDataLoss"] = "false"
    job.run()
    assert job.values == sorted([*FIRST, 11])


def test_a_query_continues_from_a_checkpoint_of_sparks_own_source(job: Job) -> None:
    job.run()
    log = job.checkpoint / "offsets" / "1"
    version, metadata, _ = log.read_text().splitlines()
    log.write_text(f'{version}\n{metadata}\n{{"t":{{"1":1,"0":7}}}}')  # as Spark's own: no spaces, any order
    (log.parent / ".1.crc").unlink(missing_ok=True)
    initial = job.checkpoint / "sources" / "0" / "0"
    initial.parent.mkdir(parents=True, exist_ok=True)
    initial.write_text('\0v1\n{"t":{"1":0,"0":0}}')
    job.run()
    assert job.batch_ends()[-1] == {"t": {"0": 10, "1": 2}}
    assert job.values == sorted([*FIRST, 7, 8, 9, 101]), "the records after the edited position are read again"


def copy(job: Job, mode: str = "append", **options: str) -> StreamingQuery:
    """Write the job's rows, or their number by partition, to a topic until all are written."""
    rows = job.frame().selectExpr("value", "key", "timestamp", "cast(null as int) as partition")
    if mode != "append":
        rows = job.frame().groupBy("partition").count().selectExpr("cast(count as string) as value")
    writer = rows.writeStream.format("quorumlog").queryName("copy").outputMode(mode).options(**options)
    writer = writer.option("kafka.bootstrap.servers", job.cluster.brokers.bootstrap)
    query = writer.option("checkpointLocation", str(job.checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def copied(job: Job) -> list[int]:
    return sorted(int(record.value or b"") for record in job.cluster.run(job.cluster.brokers.records("copy", 0)))


def test_a_stream_is_written_and_continues_from_its_checkpoint(job: Job) -> None:
    job.cluster.run(job.cluster.brokers.create("copy", [2]))
    copy(job, topic="copy")
    fill(job.cluster, "t", 0, 10)
    copy(job, topic="copy")
    assert copied(job) == sorted([*FIRST, 10])


def test_the_complete_mode_appends_all_rows_of_each_batch(job: Job) -> None:
    job.cluster.run(job.cluster.brokers.create("copy", [2]))
    job.options["maxOffsetsPerTrigger"] = "6"
    copy(job, "complete", topic="copy")
    assert copied(job) == [1, 2, 5, 10], "the counts of two batches"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "OptionError: the option topic or a column topic is required"),
        (
            {"topic": "nope", "kafka.delivery.timeout.ms": "300"},
            "ClusterError: topic nope does not exist",
        ),
    ],
)
def test_the_last_line_of_an_error_names_the_reason_for_a_refused_write(
    job: Job, options: dict[str, str], expected: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        copy(job, **options)
    assert last_line(refused.value).startswith(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"endingOffsets": "latest"},
            "OptionError: option endingOffsets cannot be used in a stream, which has no end",
        ),
        ({"subscribe": "nope"}, "OptionError: topic nope does not exist; kctl topics list"),
    ],
)
def test_the_last_line_of_an_error_names_the_reason_for_a_refused_stream(
    job: Job, options: dict[str, str], expected: str
) -> None:
    job.options |= options
    with pytest.raises(PySparkException) as refused:
        job.run()
    assert last_line(refused.value) == expected
