"""The data source in a real Spark, against brokers in this process.

Spark's workers are other processes, so everything passes through sockets as it would in production.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from quorumlog.client.records import NewRecord, Record, build_batch
from quorumlog.wire.record_batch import Codec
from tests.unit.quorumlog.client.fake_cluster import ThreadedBrokers

pytestmark = pytest.mark.quiet  # Spark alone keeps two cores busy

NOW = 1_700_000_000_000
ROWS = 20_000


def batch(*values: int, codec: Codec = Codec.NONE) -> bytearray:
    return build_batch([NewRecord(None, str(value).encode(), NOW + value) for value in values], codec)


def reader(spark: SparkSession, cluster: ThreadedBrokers, **options: Any) -> DataFrame:
    source = spark.read.format("quorumlog").option("kafka.bootstrap.servers", cluster.brokers.bootstrap)
    if not {"assign", "subscribePattern"} & options.keys():
        options.setdefault("subscribe", "t")
    return source.options(**options).load()


def write(frame: DataFrame, cluster: ThreadedBrokers, **options: Any) -> None:
    target = frame.write.format("quorumlog").option("bootstrap.servers", cluster.brokers.bootstrap)
    target.options(**options).mode("append").save()


def values(frame: DataFrame) -> list[int]:
    return [int(row.value) for row in frame.selectExpr("cast(value as string) as value").collect()]


def logged(cluster: ThreadedBrokers, topic: str, partitions: int) -> list[list[Record]]:
    return [cluster.run(cluster.brokers.records(topic, index)) for index in range(partitions)]


def numbers(spark: SparkSession, count: int = ROWS, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id % 97 as string) as key", "cast(id as string) as value")


def test_rows_are_read_as_they_were_written(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1, 2, 1]))
    write(numbers(spark), cluster, topic="t")
    logs = logged(cluster, "t", 3)
    assert sorted(int(record.value or b"") for log in logs for record in log) == list(range(ROWS))
    where: dict[bytes | None, set[int]] = {}
    for index, log in enumerate(logs):
        for record in log:
            where.setdefault(record.key, set()).add(index)
    assert len(where) == 97
    assert all(len(partitions) == 1 for partitions in where.values()), "each key is in one partition"
    frame = reader(spark, cluster)
    assert frame.count() == ROWS
    assert sorted(values(frame)) == list(range(ROWS))
    for row in frame.groupBy("partition").agg(F.count("*").alias("n"), F.max("offset").alias("last")).collect():
        assert (row.n, row["last"]) == (len(logs[row.partition]), len(logs[row.partition]) - 1)


def test_keys_get_the_same_partitions_as_with_other_clients(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    from kafka.partitioner import murmur2  # of kafka-python, an independent implementation

    cluster.run(cluster.brokers.create("t", [1, 2, 1, 2, 1]))
    write(numbers(spark, 500, 1), cluster, topic="t")
    for index, log in enumerate(logged(cluster, "t", 5)):
        assert log
        for record in log:
            assert record.key is not None
            assert (murmur2(record.key) & 0x7FFFFFFF) % 5 == index


def test_every_column_round_trips(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("a", [1, 2]))
    cluster.run(cluster.brokers.create("b", [2]))
    schema = "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int"
    rows = [
        (b"k", b"v1", [("h", b"1"), ("h", None)], "a", 1),
        (None, b"v2", None, "a", 0),
        (b"", None, [], "a", 0),
        (b"k", b"", [("\u00e9", b"")], "b", None),
    ]
    write(spark.createDataFrame(rows, schema).coalesce(1), cluster)
    frame = reader(spark, cluster, subscribe="a, b", includeHeaders="true")
    found = {
        (row.topic, row.partition, row.offset): (
            bytes(row.key) if row.key is not None else None,
            bytes(row.value) if row.value is not None else None,
            None if row.headers is None else [(header.key, header.value) for header in row.headers],
            row.timestampType,
        )
        for row in frame.collect()
    }
    assert found == {
        ("a", 1, 0): (b"k", b"v1", [("h", b"1"), ("h", None)], 0),
        ("a", 0, 0): (None, b"v2", None, 0),
        ("a", 0, 1): (b"", None, None, 0),  # as in Spark's own source, a record without headers has NULL
        ("b", 0, 0): (b"k", b"", [("\u00e9", b"")], 0),
    }
    assert frame.filter("timestamp > current_timestamp() - interval 1 hour").count() == 4
    assert [name for name, _ in frame.dtypes[:7]] == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    ]


def test_a_frame_that_was_read_can_be_written(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1, 2]))
    cluster.run(cluster.brokers.create("copy", [2, 1]))
    cluster.run(cluster.brokers.fill("t", 0, batch(1, 2)))
    cluster.run(cluster.brokers.fill("t", 1, batch(3)))
    trigger = {"maxOffsetsPerTrigger": "1", "kafka.security.protocol": "PLAINTEXT"}
    frame = reader(spark, cluster, includeHeaders="true", **trigger).withColumn("unrelated", F.lit(1))
    write(frame, cluster, topic="copy", startingOffsets="earliest")
    assert [[int(one.value or b"") for one in log] for log in logged(cluster, "copy", 2)] == [[1, 2], [3]]


def test_options_choose_offsets_times_and_task_sizes(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1, 2]))
    cluster.run(cluster.brokers.fill("t", 0, *[batch(n, n + 1) for n in range(0, 100, 2)]))
    cluster.run(cluster.brokers.fill("t", 1, batch(500, 501, codec=Codec.ZSTD), batch(502, codec=Codec.SNAPPY)))
    part = reader(spark, cluster, startingOffsets='{"t":{"0":95,"1":1}}', endingOffsets='{"t":{"0":97,"1":-1}}')
    assert sorted(values(part)) == [95, 96, 501, 502]
    assigned = reader(spark, cluster, assign='{"t":[1]}')
    assert values(assigned) == [500, 501, 502]
    since = reader(spark, cluster, assign='{"t":[0]}', startingTimestamp=str(NOW + 96))
    assert sorted(values(since)) == [96, 97, 98, 99]
    until = reader(spark, cluster, assign='{"t":[0]}', endingTimestamp=str(NOW + 4))
    assert sorted(values(until)) == [0, 1, 2, 3]
    split = reader(spark, cluster, minPartitions="7", maxRecordsPerPartition="30")
    assert split.rdd.getNumPartitions() == 9
    assert sorted(values(split)) == [*range(100), 500, 501, 502]
    matched = reader(spark, cluster, subscribePattern="[s-u]")
    assert matched.count() == 103
    assert reader(spark, cluster, subscribePattern="nothing.*").count() == 0
    empty = reader(spark, cluster, startingOffsets='{"t":{"0":100,"1":3}}')
    assert empty.count() == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_writes_are_compressed(spark: SparkSession, cluster: ThreadedBrokers, codec: str) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    write(numbers(spark, 3000), cluster, topic="t", **{"kafka.compression.type": codec})
    assert sorted(values(reader(spark, cluster))) == list(range(3000))
    records = [NewRecord(one.key, one.value, one.timestamp_ms) for one in logged(cluster, "t", 1)[0]]
    stored = sum(len(data) for *_, data in cluster.brokers.shared.logs["t", 0].batches)
    assert stored < 0.8 * len(build_batch(records))


def test_a_leader_killed_during_a_write_loses_and_repeats_no_record(
    spark: SparkSession, cluster: ThreadedBrokers
) -> None:
    brokers = cluster.brokers
    cluster.run(brokers.create("t", [1, 1, 2]))
    leader = brokers.replicas[1]
    count = 3000

    async def kill_in_mid_write() -> None:
        for _ in range(5):  # let some batches be answered, and then none
            leader.appended.clear()
            await leader.appended.wait()
        leader.acknowledge.clear()
        leader.appended.clear()
        await leader.appended.wait()
        await brokers.kill(1)
        for index in (0, 1):
            await brokers.move("t", index, 2)

    killing = asyncio.run_coroutine_threadsafe(kill_in_mid_write(), cluster.loop)
    # paced: many small batches, so that the kill falls into the middle
    write(numbers(spark, count, 1), cluster, topic="t", maxRecordsPerSecond="1500")
    killing.result(60)
    found = Counter(int(record.value or b"") for log in logged(cluster, "t", 3) for record in log)
    assert found == Counter(range(count))
    assert {index for _, index, *_ in leader.produced} == {0, 1}
    assert {index for _, index, *_ in brokers.replicas[2].produced} == {0, 1, 2}


def test_a_read_continues_at_the_new_leader_after_the_old_one_was_killed(
    spark: SparkSession, cluster: ThreadedBrokers
) -> None:
    brokers = cluster.brokers
    cluster.run(brokers.create("t", [1]))
    cluster.run(brokers.fill("t", 0, *[batch(*range(n, n + 10)) for n in range(0, 1000, 10)]))
    leader = brokers.replicas[1]

    async def kill_in_mid_read() -> None:
        while len(leader.plans) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await brokers.kill(1)
        await brokers.move("t", 0, 2)

    killing = asyncio.run_coroutine_threadsafe(kill_in_mid_read(), cluster.loop)
    frame = reader(spark, cluster, **{"kafka.fetch.max.bytes": "1"})  # a batch at a time
    found = values(frame)
    killing.result(60)
    assert found == list(range(1000))
    assert brokers.replicas[2].plans, "the new leader was asked"


def test_missing_records_are_an_error_unless_permitted(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    cluster.run(cluster.brokers.fill("t", 0, batch(0, 1, 2)))
    options = {"startingOffsets": '{"t":{"0":7}}'}
    with pytest.raises(
        PySparkException, match="t-0: start offset 7 is beyond the end; the log contains offsets from 0 to 3"
    ):
        reader(spark, cluster, **options).count()
    assert reader(spark, cluster, failOnDataLoss="false", **options).count() == 0
    with pytest.raises(PySparkException, match="topic nope does not exist"):
        reader(spark, cluster, subscribe="nope").count()
    with pytest.raises(PySparkException, match="assign names t-4, but the topic has 1 partitions"):
        reader(spark, cluster, assign='{"t":[4]}').count()


@pytest.mark.parametrize(
    ("select", "options", "complaint"),
    [
        ("'x' as key", {"topic": "t"}, "column value is required"),
        ("'x' as value", {}, "the option topic or a column topic is required"),
        ("1 as value", {"topic": "t"}, "column value is int; expected: "),
        ("'x' as value, map('a', 'b') as headers", {"topic": "t"}, "column headers is map"),
        ("'x' as value", {"topic": "nope", "kafka.delivery.timeout.ms": "300"}, "topic nope does not exist"),
        (
            "'x' as value, 9 as partition",
            {"topic": "t"},
            "a row without a key names partition 9 of topic t, which has 1",
        ),
        ("'x' as value, cast(null as string) as topic", {}, "a row has no topic"),
        (
            "repeat('x', 2000000) as value",
            {"topic": "t"},
            r"t-0: a batch of 1 record was answered with MESSAGE_TOO_LARGE \(batch of 20000\d\d bytes; the limit is "
            r"1048588\); split the record, or raise max.message.bytes",
        ),
    ],
)
def test_the_error_about_a_bad_write_names_the_cause(
    spark: SparkSession, cluster: ThreadedBrokers, select: str, options: dict[str, str], complaint: str
) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    with pytest.raises(PySparkException, match=complaint):
        write(spark.sql(f"select {select}"), cluster, **options)
    assert logged(cluster, "t", 1) == [[]]


def test_overwriting_is_refused(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    target = spark.sql("select 'x' as value").write.format("quorumlog").option("topic", "t")
    with pytest.raises(PySparkException, match="records cannot be overwritten"):
        target.option("bootstrap.servers", cluster.brokers.bootstrap).mode("overwrite").save()


def last_line(error: PySparkException) -> str:
    """Return the last line of the traceback that Spark shows: the error's class without its module, and its message."""
    traceback, _, _ = str(error).partition(" SQLSTATE: ")
    return traceback.strip().splitlines()[-1].removeprefix("pyspark_quorumlog.options.")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":5}}'},
            "OptionError: option startingOffsetsByTimestamp lacks t-1: add ms since 1970",
        ),
        (
            {"startingOffsets": '{"t":{"0":2,"1":0}}', "endingOffsets": '{"t":{"0":1,"1":0}}'},
            "OptionError: option endingOffsets: t-0 ends at 1, below its start 2; "
            "swap them, or correct startingOffsets",
        ),
        (
            {"startingTimestamp": str(NOW + 1), "endingTimestamp": str(NOW)},
            f"OptionError: option endingTimestamp: t-0 ends at {NOW}, below its start {NOW + 1}; "
            f"option endingTimestamp: t-1 ends at {NOW}, below its start {NOW + 1}; "
            "swap them, or correct startingTimestamp",
        ),
    ],
)
def test_the_last_line_of_an_error_names_the_invalid_position(
    spark: SparkSession, cluster: ThreadedBrokers, options: dict[str, str], expected: str
) -> None:
    cluster.run(cluster.brokers.create("t", [1, 2]))
    cluster.run(cluster.brokers.fill("t", 0, batch(1, 2, 3)))
    with pytest.raises(PySparkException) as refused:
        reader(spark, cluster, **options).collect()
    assert last_line(refused.value) == expected


def test_only_the_chosen_columns_are_read(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    cluster.run(cluster.brokers.fill("t", 0, batch(5, 6)))
    frame = reader(spark, cluster, columns="offset, Value")
    assert frame.columns == ["value", "offset"]
    assert [(bytes(row.value), row.offset) for row in frame.collect()] == [(b"5", 0), (b"6", 1)]
    assert [tuple(row) for row in reader(spark, cluster, columns="topic,headers").collect()] == [("t", None)] * 2
    with pytest.raises(
        PySparkException, match="option columns contains 'ofset', which is not a column; did you mean off"
    ):
        reader(spark, cluster, columns="ofset")


def test_a_topic_is_read_by_sql(spark: SparkSession, cluster: ThreadedBrokers) -> None:
    cluster.run(cluster.brokers.create("t", [1]))
    cluster.run(cluster.brokers.fill("t", 0, batch(1, 2, 3)))
    where = f"bootstrap.servers '{cluster.brokers.bootstrap}', subscribe 't'"
    spark.sql(f"create or replace temporary view v using quorumlog options ({where})")
    assert spark.sql("select count(*) as n from v where offset > 0").collect()[0].n == 2
    spark.catalog.dropTempView("v")
