"""Transactions as the source sees them, written by confluent-kafka to a real broker."""

from __future__ import annotations

import itertools
import time

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bench.broker_rates import create_topic
from pyspark_quorumlog.options import Query, parse_read
from pyspark_quorumlog.plan import OffsetRange
from pyspark_quorumlog.reading import plan_tasks, read_range
from pyspark_quorumlog.reference import COLUMNS
from pyspark_quorumlog.source import DefaultSource, StreamReader, read_schema
from pyspark_quorumlog.stream_plan import JsonOffsets
from quorumlog.errors import ClusterError
from quorumlog.testing import Broker

UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}

_topics = (f"isolated-{number}" for number in itertools.count())


class Topic:
    """A topic with one partition, and the producers of its transactions."""

    def __init__(self, broker: Broker) -> None:
        self.name = next(_topics)
        self.bootstrap = broker.bootstrap
        self.end = 0
        create_topic(broker.bootstrap, self.name, 1)

    def begin(self, *values: int) -> Producer:
        """Write values in a transaction, and leave it open."""
        identity = f"{self.name}-{values[0]}"
        settings = {"bootstrap.servers": self.bootstrap, "transactional.id": identity, "log_level": 0}
        producer = Producer(settings)
        producer.init_transactions(60)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.name, str(value), partition=0)
        assert producer.flush(60) == 0
        self.end += len(values)
        return producer

    def decide(self, producer: Producer, *, commit: bool) -> None:
        """End a transaction, and wait for its marker."""
        if commit:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        self.end += 1
        deadline = time.monotonic() + 60
        while sum(task.size for task in self.tasks(**UNCOMMITTED)) < self.end:
            assert time.monotonic() < deadline, "the marker is missing"
            time.sleep(0.05)  # no event reports it

    def commit(self, *values: int) -> None:
        self.decide(self.begin(*values), commit=True)

    def abort(self, *values: int) -> None:
        self.decide(self.begin(*values), commit=False)

    def options(self, **options: str) -> dict[str, str]:
        return {"bootstrap.servers": self.bootstrap, "subscribe": self.name} | options

    def tasks(self, **options: str) -> list[OffsetRange]:
        return plan_tasks(parse_read(self.options(**options), Query.BATCH))

    def read(self, **options: str) -> list[int]:
        parsed = parse_read(self.options(**options), Query.BATCH)
        batches = [batch for task in plan_tasks(parsed) for batch in read_range(parsed, task)]
        return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


@pytest.fixture
def topic(quorumlog_broker: Broker) -> Topic:
    """Offsets: 0 and 1 committed, 2 their marker, 3 and 4 aborted, 5 their marker, 6 committed, 7 its marker."""
    made = Topic(quorumlog_broker)
    made.commit(1, 2)
    made.abort(3, 4)
    made.commit(5)
    return made


@pytest.mark.quiet  # Spark alone keeps two cores busy
def test_a_batch_ends_before_an_open_transaction(topic: Topic, spark: SparkSession) -> None:
    assert topic.read() == [1, 2, 5]
    undecided = topic.begin(6)
    (task,) = topic.tasks()
    assert (task.first, task.end) == (0, 8), "the open transaction begins at offset 8"
    topic.commit(7)
    assert topic.read() == [1, 2, 5], "the open transaction holds back the records after it"
    assert sorted(topic.read(**UNCOMMITTED)) == [1, 2, 3, 4, 5, 6, 7]
    rows = spark.read.format("quorumlog").options(**topic.options()).load()
    assert sorted(int(row.value) for row in rows.selectExpr("cast(value as string) as value").collect()) == [1, 2, 5]
    topic.decide(undecided, commit=True)
    assert topic.read() == [1, 2, 5, 6, 7]


def test_a_task_that_ends_within_an_open_transaction_fails_until_the_transaction_has_ended(topic: Topic) -> None:
    undecided = topic.begin(6)
    asked = {"endingOffsets": f'{{"{topic.name}":{{"0":9}}}}', "kafkaConsumer.pollTimeoutMs": "1500"}
    with pytest.raises(ClusterError, match="a transaction at offset 8 is not decided yet; wait until it ends, or"):
        topic.read(**asked)
    topic.decide(undecided, commit=False)
    assert topic.read(**asked) == [1, 2, 5]


class Stream:
    def __init__(self, topic: Topic, **options: str) -> None:
        source = DefaultSource({name.lower(): value for name, value in topic.options(**options).items()})
        reader = source.streamReader(read_schema(COLUMNS[:-1]))
        assert isinstance(reader, StreamReader)
        self.reader = reader

    def batch(self, start: JsonOffsets) -> tuple[JsonOffsets, list[int]]:
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        batches = [rows for task in self.reader.partitions(start, end) for rows in self.reader.read(task)]
        return end, [int(value) for rows in batches for value in rows.column("value").to_pylist()]


def test_a_stream_reads_the_records_after_an_open_transaction_once_it_has_ended(topic: Topic) -> None:
    undecided = topic.begin(6)
    stream = Stream(topic, startingOffsets="earliest")
    start, _ = stream.batch(stream.reader.initialOffset())  # the first batch is empty
    position, values = stream.batch(start)
    assert (position, values) == ({topic.name: {"0": 8}}, [1, 2, 5])
    topic.commit(7)
    assert stream.batch(position) == (position, [])
    topic.decide(undecided, commit=False)
    position, values = stream.batch(position)
    assert values == [7]
    assert position == {topic.name: {"0": 12}}


def test_a_position_beyond_the_last_stable_offset_is_no_loss(topic: Topic) -> None:
    """Such a position comes from the checkpoint of a query that read uncommitted records."""
    undecided = topic.begin(6)
    position = {topic.name: {"0": 9}}
    stream = Stream(topic)
    assert stream.batch(position) == (position, [])
    topic.decide(undecided, commit=True)
    topic.commit(7)
    assert stream.batch(position)[1] == [7]
