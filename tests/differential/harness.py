"""The common parts of the jobs: topics with records, queries, and the comparison of two outcomes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

KAFKA, OURS = "kafka", "quorumlog"
NOW_MS = 1_700_000_000_000
TIMEOUT_S = 60.0
NOT_STARTED = "to connect back"
"""In errors of Spark about a Python process that did not start within 10 seconds, as happens on a busy machine."""
STARTS_MAX = 10
SILENT = logging.getLogger("differential.clients")
SILENT.disabled = True

T = TypeVar("T")
Outcome = dict[str, Any]
"""The results of a job, by aspect: values that JSON can express."""


class Record(NamedTuple):
    """A record to produce.  after_ms: its timestamp is so long after NOW_MS."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    after_ms: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Job:
    """One comparison.

    differs: the aspects that differ, each with a phrase of docs/spark-migration.md that explains it.
    """

    name: str
    run: Callable[[Side], Outcome]
    differs: Mapping[str, str] = field(default_factory=dict)


class Side:
    """A job's view of one connector.  Both sides have topics of their own with the same contents."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path, job: str, connector: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.connector = connector
        self.folder = folder / f"{job}-{connector}"
        self.folder.mkdir()
        self.errors: list[str] = []
        """The first line of each refusal, for the reader of the report."""
        self._prefix = f"{job}.{connector[0]}."
        self._admin = AdminClient({"bootstrap.servers": bootstrap}, logger=SILENT)
        self._transaction_count = 0

    # Topics

    def topic(self, name: str) -> str:
        """Return the name that this side's topic has in the cluster; in outcomes it is `name` again."""
        return self._prefix + name

    def create(self, name: str, partitions: int, *records: Record) -> str:
        topic = self.topic(name)
        new = NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})  # the records are old
        for future in self._admin.create_topics([new], request_timeout=30).values():
            future.result()
        self.produce(name, *records)
        return topic

    def produce(self, name: str, *records: Record, compression: str = "none") -> None:
        """Produce the records without a transaction, as `send`."""
        settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "compression.type": compression}
        self.send(Producer(settings, logger=SILENT), name, records)

    def begin(self, name: str, *records: Record) -> Transaction:
        """Produce records in a transaction that stays open; returns once all are acknowledged."""
        self._transaction_count += 1
        identity = f"{self._prefix}{self._transaction_count}"
        settings = {
            "bootstrap.servers": self.bootstrap,
            "linger.ms": 0,
            "transactional.id": identity,
            "transaction.timeout.ms": 900_000,  # longer than a job
        }
        producer = Producer(settings, logger=SILENT)
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        transaction = Transaction(self, name, producer)
        transaction.add(*records)
        return transaction

    def commit(self, name: str, *records: Record) -> None:
        self.begin(name, *records).commit()

    def abort(self, name: str, *records: Record) -> None:
        self.begin(name, *records).abort()

    def ends(self, name: str, partitions: Iterable[int]) -> dict[int, int]:
        """Return the high watermarks by partition."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka has no types for it
        asked = {TopicPartition(self.topic(name), index): latest for index in partitions}
        listed = self._admin.list_offsets(asked, request_timeout=30)
        return {one.partition: future.result().offset for one, future in listed.items()}

    def send(self, producer: Producer, name: str, records: Iterable[Record]) -> None:
        """Produce the records in order; returns once all are acknowledged."""
        for one in records:
            headers: list[tuple[str, str | bytes | None]] | None = list(one.headers) or None
            timestamp = NOW_MS + one.after_ms
            producer.produce(
                self.topic(name), one.value, one.key, partition=one.partition, timestamp=timestamp, headers=headers
            )
        assert producer.flush(TIMEOUT_S) == 0

    def delete(self, name: str) -> None:
        """Delete a topic; returns once it is deleted."""
        for future in self._admin.delete_topics([self.topic(name)], request_timeout=30).values():
            future.result()
        deadline = time.monotonic() + TIMEOUT_S
        while self.topic(name) in self._admin.list_topics(timeout=TIMEOUT_S).topics:
            assert time.monotonic() < deadline
            time.sleep(0.05)  # another process, which sends no event: poll

    def delete_records(self, name: str, partition: int, before: int) -> None:
        for future in self._admin.delete_records([TopicPartition(self.topic(name), partition, before)]).values():
            future.result()

    def add_partitions(self, name: str, count: int) -> None:
        """Add partitions, up to `count`."""
        for future in self._admin.create_partitions([NewPartitions(self.topic(name), count)]).values():
            future.result()

    # Queries

    def rename(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return options in which `@name` is this side's topic `name`."""
        return {name: value.replace("@", self._prefix) for name, value in options.items()}

    def read(self, **options: str) -> DataFrame:
        reader = self.spark.read.format(self.connector).option("kafka.bootstrap.servers", self.bootstrap)
        return reader.options(**self.rename(options)).load()

    def rows(self, frame: DataFrame) -> list[Any]:
        """Return all columns of the rows, in the order of topic, partition and offset."""
        found = [plain(row.asDict(recursive=True)) for row in frame.collect()]
        return sorted(found, key=lambda row: (row.get("topic", ""), row.get("partition", 0), row.get("offset", 0)))

    def attempt(self, work: Callable[[], Any]) -> Any:
        """Return the result, or "refused" after an error of Spark."""
        for _ in range(STARTS_MAX):
            try:
                return work()
            except (PySparkException, Py4JJavaError) as error:
                if NOT_STARTED not in str(error):
                    self.errors.append(_summary(error))
                    return "refused"
        raise AssertionError(f"a Python process of Spark did not start, {STARTS_MAX} times")

    def attempt_each(self, cases: Mapping[str, T], work: Callable[[T], Any]) -> Outcome:
        return {name: self.attempt(lambda case=case: work(case)) for name, case in cases.items()}  # type: ignore[misc]

    def written(self, name: str) -> list[Any]:
        """Return the committed records of a topic without timestamps and offsets, as Spark's connector reads them."""
        return [{field: row[field] for field in row if field != "offset"} for row in self._read_back(name)]

    def written_offsets(self, name: str) -> list[list[int]]:
        """Return partition and offset of the committed records of a topic."""
        return [[row["partition"], row["offset"]] for row in self._read_back(name)]

    def _read_back(self, name: str) -> list[Any]:
        reader = self.spark.read.format(KAFKA).option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", self.topic(name)).option("includeHeaders", "true")
        frame = reader.option("kafka.isolation.level", "read_committed").load()
        return self.rows(frame.drop("timestamp"))

    def write(self, frame: DataFrame, mode: str | None = "append", **options: str) -> None:
        writer = frame.write.format(self.connector).option("kafka.bootstrap.servers", self.bootstrap)
        writer = writer.options(**self.rename(options))
        (writer if mode is None else writer.mode(mode)).save()

    def normal(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the names of topics as the job gave them."""
        found: Outcome = json.loads(json.dumps(outcome).replace(self._prefix, ""))
        return found


class Transaction:
    """An open transaction in a topic."""

    def __init__(self, side: Side, name: str, producer: Producer) -> None:
        self._side = side
        self._name = name
        self._producer = producer
        self._partitions = set[int]()

    def add(self, *records: Record) -> None:
        self._partitions |= {one.partition for one in records}
        self._side.send(self._producer, self._name, records)

    def commit(self) -> None:
        self._end(lambda: self._producer.commit_transaction(TIMEOUT_S))

    def abort(self) -> None:
        self._end(lambda: self._producer.abort_transaction(TIMEOUT_S))

    def _end(self, decide: Callable[[], None]) -> None:
        """Decide; return once the marker is in each partition.  Nobody else may produce meanwhile."""
        before = self._side.ends(self._name, self._partitions)
        decide()
        deadline = time.monotonic() + TIMEOUT_S
        while any(end <= before[index] for index, end in self._side.ends(self._name, self._partitions).items()):
            assert time.monotonic() < deadline, "a marker is missing"
            time.sleep(0.05)  # another process, which sends no event: poll


class Stream:
    """A streaming query with its checkpoint, whose batches are collected."""

    def __init__(self, side: Side, **options: str) -> None:
        self.side = side
        self.options = options
        self.connector = side.connector
        self.checkpoint = side.folder / "checkpoint"
        self.rows: dict[int, list[Any]] = {}
        self.latest: Any = None
        """The latest offsets that the last batch of the last run reported."""

    def run(self, **trigger: Any) -> str:
        """Run until all available records are read; return "finished" or "refused"."""

        def work() -> str:
            query = self.start(**(trigger or {"availableNow": True}))
            query.awaitTermination()
            progress = query.lastProgress
            self.latest = None if progress is None else json.loads(progress.sources[0].latestOffset or "null")
            return "finished"

        return str(self.side.attempt(work))

    def start(self, **trigger: Any) -> StreamingQuery:
        source = self.side.spark.readStream.format(self.connector).options(**self.side.rename(self.options))
        rows = source.option("kafka.bootstrap.servers", self.side.bootstrap).load().drop("timestamp", "timestampType")
        rows = rows.withColumn("task", F.spark_partition_id())

        def collect(frame: DataFrame, batch: int) -> None:
            self.rows[batch] = self.side.rows(frame)

        writer = rows.writeStream.foreachBatch(collect).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start()

    @property
    def position(self) -> Any:
        """The end of the last batch; None before the first."""
        return max(self._ends().items(), default=(0, None))[1]

    def batches(self) -> list[Any]:
        """Return end and values of the batches that had rows."""
        ends = self._ends()
        return [[ends[batch], _values(rows)] for batch, rows in sorted(self.rows.items()) if rows]

    def all_ends(self) -> list[Any]:
        return [end for _, end in sorted(self._ends().items())]

    def values(self) -> list[str]:
        """Return the values of all rows, sorted."""
        return sorted(value for rows in self.rows.values() for value in _values(rows))

    def uncommit(self, batch: int) -> None:
        """Make this and later batches ones that were planned and did not finish."""
        for commit in (self.checkpoint / "commits").glob("[0-9]*"):
            if int(commit.name) >= batch:
                commit.unlink()
                (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)

    def _ends(self) -> dict[int, Any]:
        files = (self.checkpoint / "offsets").glob("[0-9]*")
        return {int(file.name): json.loads(file.read_text().splitlines()[2]) for file in files}


def _values(rows: Sequence[Any]) -> list[str]:
    return [row["value"] for row in rows]


def plain(value: Any) -> Any:
    """Return the value in a form that JSON can express."""
    match value:
        case bytes() | bytearray():
            return value.decode("latin-1")
        case dict():
            return {name: plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case None | bool() | int() | str():
            return value
        case _:
            return str(value)


def _summary(error: Exception) -> str:
    """Return the class of an error, and the line of its message that names the cause."""
    lines = [line.strip() for line in str(error).partition(" SQLSTATE: ")[0].splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]  # frames of Java
    is_ours = any("Traceback" in line for line in lines)
    said = lines[-1] if is_ours else next((line for line in lines if line.startswith(("Caused", ": "))), lines[0])
    return f"{type(error).__name__}: {said[:160]}"


def differences(theirs: Outcome, ours: Outcome) -> dict[str, tuple[Any, Any]]:
    """Return the aspects that differ, with both values."""
    return {
        aspect: (theirs.get(aspect), ours.get(aspect))
        for aspect in sorted(theirs.keys() | ours.keys())
        if theirs.get(aspect) != ours.get(aspect)
    }
