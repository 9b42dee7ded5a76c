"""What the jobs share: topics with records, queries, and the comparison of two outcomes."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

KAFKA, OURS = "kafka", "quorumlog"
NOW_MS = 1_700_000_000_000
TIMEOUT_S = 60.0
SILENT = logging.getLogger("differential.clients")
SILENT.disabled = True

T = TypeVar("T")
Outcome = dict[str, Any]
"""What a job found, by aspect: values that JSON can express."""


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
        """Produce the records in order; returns once all are acknowledged."""
        settings = {"bootstrap.servers": self.bootstrap, "linger.ms": 0, "compression.type": compression}
        producer = Producer(settings, logger=SILENT)
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
        try:
            return work()
        except (PySparkException, Py4JJavaError) as error:
            self.errors.append(_summary(error))
            return "refused"

    def attempt_each(self, cases: Mapping[str, T], work: Callable[[T], Any]) -> Outcome:
        return {name: self.attempt(lambda case=case: work(case)) for name, case in cases.items()}  # type: ignore[misc]

    def written(self, name: str) -> list[Any]:
        """Return the records of a topic without their timestamps, as Spark's connector reads them."""
        reader = self.spark.read.format(KAFKA).option("kafka.bootstrap.servers", self.bootstrap)
        frame = reader.option("subscribe", self.topic(name)).option("includeHeaders", "true").load()
        return self.rows(frame.drop("timestamp"))

    def write(self, frame: DataFrame, mode: str | None = "append", **options: str) -> None:
        writer = frame.write.format(self.connector).option("kafka.bootstrap.servers", self.bootstrap)
        writer = writer.options(**self.rename(options))
        (writer if mode is None else writer.mode(mode)).save()

    def normal(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the names of topics as the job gave them."""
        found: Outcome = json.loads(json.dumps(outcome).replace(self._prefix, ""))
        return found


class Stream:
    """A streaming query with its checkpoint, whose batches are collected."""

    def __init__(self, side: Side, **options: str) -> None:
        self.side = side
        self.options = options
        self.connector = side.connector
        self.checkpoint = side.folder / "checkpoint"
        self.rows: dict[int, list[Any]] = {}

    def run(self, **trigger: Any) -> str:
        """Run until all available records are read; return "finished" or "refused"."""
        result = self.side.attempt(lambda: self.start(**(trigger or {"availableNow": True})).awaitTermination())
        return "finished" if result is None else str(result)

    def start(self, **trigger: Any) -> StreamingQuery:
        source = self.side.spark.readStream.format(self.connector).options(**self.side.rename(self.options))
        rows = source.option("kafka.bootstrap.servers", self.side.bootstrap).load().drop("timestamp", "timestampType")

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
    lines = [line.strip() for line in str(error).partition(" SQLSTATE: ")[0].splitlines() if line.strip()]
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
