"""Atomic writes, exactly once, to a real broker.  Most tests make the calls of Spark's driver and tasks themselves."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from bench.broker_rates import create_topic
from pyspark_quorumlog.options import Query, WriteOptions, parse_read, parse_write
from pyspark_quorumlog.reading import plan_tasks, read_range
from pyspark_quorumlog.transactions import Attempt
from pyspark_quorumlog.writing import Outcome, abort_batch, abort_write, commit_write, open_batch, write_rows
from quorumlog.errors import ClusterError
from quorumlog.testing import Broker
from quorumlog.wire.errors import KafkaCode

_topics = (f"once-{number}" for number in itertools.count())


class Topic:
    """A topic with two partitions, and a scope with the same name."""

    def __init__(self, broker: Broker) -> None:
        self.name = next(_topics)
        self.bootstrap = broker.bootstrap
        create_topic(broker.bootstrap, self.name, 2)

    def options(self, **options: str) -> WriteOptions:
        return parse_write({"bootstrap.servers": self.bootstrap, "topic": self.name, **options})

    def write(self, attempt: Attempt, *values: int) -> Outcome:
        """Write rows as a task does."""
        texts = pa.array([str(value) for value in values], pa.string())
        rows = pa.record_batch([texts], names=["value"])
        return write_rows(self.options(), iter([rows] if values else []), 0, attempt)

    def attempt(self, batch: int, name: str, run: str = "run-1", owner: str = "query") -> Attempt:
        return Attempt(self.name, owner, run, batch + 1, name)

    def commit(self, batch: int, *outcomes: Outcome) -> None:
        """Commit as the driver does."""
        commit_write(self.options(), [one.staged for one in outcomes], batch + 1)

    def read(self, **options: str) -> list[int]:
        parsed = parse_read({"bootstrap.servers": self.bootstrap, "subscribe": self.name, **options}, Query.BATCH)
        batches = [batch for task in plan_tasks(parsed) for batch in read_range(parsed, task)]
        return sorted(int(value) for batch in batches for value in batch.column("value").to_pylist())


@pytest.fixture
def topic(quorumlog_broker: Broker) -> Topic:
    return Topic(quorumlog_broker)


def test_a_batch_is_visible_as_a_whole_once_it_is_committed(topic: Topic) -> None:
    loser = topic.write(topic.attempt(0, "0.0"), 1, 2)
    first, second = topic.write(topic.attempt(0, "0.1"), 1, 2), topic.write(topic.attempt(0, "1.0"), 3)
    empty = topic.write(topic.attempt(0, "2.0"))
    assert [one.record_count for one in (loser, first, second, empty)] == [2, 2, 1, 0]
    assert topic.read() == [], "no part of a batch is visible before its commit"
    topic.commit(0, first, second, empty)
    assert topic.read() == [1, 2, 3]
    assert topic.read(**{"kafka.isolation.level": "read_uncommitted"}) == [1, 1, 2, 2, 3]


def test_a_repeated_batch_writes_nothing(topic: Topic) -> None:
    topic.commit(0, topic.write(topic.attempt(0, "0.0"), 1))
    again = topic.write(topic.attempt(0, "0.1", run="run-2"), 1)
    assert again.record_count == 0
    topic.commit(0, again)
    topic.commit(1, topic.write(topic.attempt(1, "0.2", run="run-2"), 2))
    assert topic.read(**{"kafka.isolation.level": "read_uncommitted"}) == [1, 2]
    assert topic.read() == [1, 2]


def test_an_older_driver_is_fenced(topic: Topic) -> None:
    old = topic.write(topic.attempt(0, "0.0"), 1)
    new = topic.write(topic.attempt(0, "0.1", run="run-2"), 1)
    with pytest.raises(ClusterError) as fenced:
        topic.commit(0, old)
    assert fenced.value.code == KafkaCode.PRODUCER_FENCED.name
    with pytest.raises(ClusterError) as fenced:
        topic.write(topic.attempt(0, "0.2"), 1)
    assert fenced.value.code == KafkaCode.PRODUCER_FENCED.name, "a late attempt of the old run fences nothing"
    topic.commit(0, new)
    assert topic.read() == [1]


def test_another_query_may_not_use_the_scope(topic: Topic) -> None:
    topic.commit(6, topic.write(topic.attempt(6, "0.0"), 1))
    with pytest.raises(ClusterError, match=r"it belongs to query.*resetTransactionScope"):
        topic.write(topic.attempt(0, "0.1", "run-2", "new checkpoint"), 2)
    reset = topic.attempt(0, "0.2", "run-2", "new checkpoint")._replace(may_reset=True)
    topic.commit(0, topic.write(reset, 2))
    assert topic.read() == [1, 2]


def test_an_aborted_batch_is_written_again(topic: Topic) -> None:
    failed = topic.write(topic.attempt(0, "0.0"), 1)
    abort_write(topic.options(), [failed.staged])
    topic.commit(0, topic.write(topic.attempt(0, "0.1"), 1))
    assert topic.read() == [1]


def test_an_attempt_that_fails_ends_its_own_transaction(topic: Topic) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": pa.array(["1"])})
        raise RuntimeError("the query fails")

    options = topic.options(maxRecordsPerSecond="1000")  # each Arrow batch is written at once
    with pytest.raises(RuntimeError):
        write_rows(options, failing(), 0, topic.attempt(0, "0.0"))
    topic.commit(0, topic.write(topic.attempt(0, "0.1"), 1))
    assert topic.read() == [1]


def test_an_attempt_that_outlives_its_failed_write_is_refused_and_blocks_no_reader(topic: Topic) -> None:
    """Spark gives a task up when it aborts the write, but the task runs until its worker notices."""
    scope = open_batch(topic.options(), f"write-{topic.name}")
    assert scope is not None
    abort_batch(topic.options(), scope)
    late = Attempt(scope.name, scope.name, scope.name, 1, "0.0", ready=scope)
    with pytest.raises(ClusterError, match="there is no such scope, or it was deleted"):
        topic.write(late, 1)
    topic.commit(0, topic.write(topic.attempt(0, "0.0"), 2))
    assert topic.read() == [2]


def frame(spark: SparkSession, values: list[int], partition: str = "null") -> DataFrame:
    rows = spark.createDataFrame([(value,) for value in values], "id int").repartition(2)
    return rows.selectExpr("cast(id as string) as value", f"cast({partition} as int) as partition")


def save(rows: DataFrame, topic: Topic) -> None:
    target = rows.write.format("quorumlog").options(**{"bootstrap.servers": topic.bootstrap, "topic": topic.name})
    target.mode("append").save()


@pytest.mark.quiet  # Spark alone keeps two cores busy
def test_a_batch_write_of_spark_is_atomic(topic: Topic, spark: SparkSession) -> None:
    save(frame(spark, list(range(100))), topic)
    assert topic.read() == list(range(100)), "the rows are visible when the write returns"
    with pytest.raises(PySparkException, match="names partition 9 of topic"):
        save(frame(spark, list(range(100, 200)), "if(id = 199, 9, null)"), topic)
    save(frame(spark, [200]), topic)
    assert topic.read() == [*range(100), 200], "nothing of the failed write is visible, and it holds nothing back"


@pytest.mark.quiet
def test_a_stream_of_spark_writes_a_batch_whose_commit_was_lost_only_once(
    topic: Topic, quorumlog_broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    source = Topic(quorumlog_broker)
    save(frame(spark, list(range(50))), source)

    def run() -> None:
        reader = spark.readStream.format("quorumlog").option("kafka.bootstrap.servers", source.bootstrap)
        rows = reader.options(subscribe=source.name, startingOffsets="earliest").load().selectExpr("value")
        writer = rows.writeStream.format("quorumlog").option("kafka.bootstrap.servers", topic.bootstrap)
        writer = writer.option("topic", topic.name).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    assert topic.read() == list(range(50))
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    save(frame(spark, list(range(50, 60))), source)
    run()
    assert Counter(topic.read()) == Counter(range(60))
