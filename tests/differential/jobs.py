"""The jobs, each run through both connectors.  In options, `@t` is the topic `t` of the side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tests.differential.harness import KAFKA, NOW_MS, OURS, Job, Outcome, Record, Side, Stream

EARLIEST = {"startingOffsets": "earliest"}


def numbers(values: Iterable[int], partition: int = 0) -> list[Record]:
    """Records with these values, and timestamps as many milliseconds after NOW_MS."""
    return [Record(b"%d" % value, partition=partition, after_ms=value) for value in values]


def two_partitions(side: Side) -> None:
    """Create t: t-0 with 0 to 9, t-1 with 100 to 102."""
    side.create("t", 2, *numbers(range(10)), *numbers(range(100, 103), 1))


# Batches


def schemas(side: Side) -> Outcome:
    two_partitions(side)
    plain, full = side.read(subscribe="@t"), side.read(subscribe="@t", includeHeaders="true")
    return {"schema": plain.schema.json(), "schema with headers": full.schema.json()}


def all_columns(side: Side) -> Outcome:
    side.create("t", 3, *numbers(range(3)), Record(None, b"tombstone", 1), Record(b"", b"", 1), Record(None, None, 2))
    side.create("empty", 1)
    return {"rows": side.rows(side.read(subscribe="@t,@empty"))}


HEADERS = (
    Record(b"none"),
    Record(b"one", headers=(("h", b"1"),)),
    Record(b"null and empty", headers=(("n", None), ("e", b""), ("", b"x"))),
    Record(b"twice", headers=(("h", b"1"), ("h", b"2"))),
)


def headers(side: Side) -> Outcome:
    side.create("t", 1, *HEADERS)
    return {"rows": side.rows(side.read(subscribe="@t", includeHeaders="true"))}


def compressions(side: Side) -> Outcome:
    side.create("t", 1)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        side.produce("t", *numbers(range(20)), compression=codec)
    return {"rows": side.rows(side.read(subscribe="@t"))}


def subscriptions(side: Side) -> Outcome:
    for number, name in enumerate(("ab", "abc", "b")):
        side.create(name, 2, Record(b"%d" % number))
    cases = {
        "one": {"subscribe": "@ab"},
        "two with a space": {"subscribe": "@b , @ab"},
        "twice": {"subscribe": "@b,@b"},
        "assign": {"assign": '{"@ab":[0],"@b":[1,0]}'},
        "part of a name": {"subscribePattern": "@ab"},
        "whole name": {"subscribePattern": "^@ab$"},
        "any rest": {"subscribePattern": "@a.*"},
        "alternatives": {"subscribePattern": "@b|@abc"},
        "no match": {"subscribePattern": "@z.*"},
    }
    return side.attempt_each(cases, lambda options: [row["topic"] for row in side.rows(side.read(**options))])


def offset_positions(side: Side) -> Outcome:
    two_partitions(side)
    cases = {
        "offsets": {"startingOffsets": '{"@t":{"0":3,"1":-2}}', "endingOffsets": '{"@t":{"0":5,"1":-1}}'},
        "empty range": {"startingOffsets": '{"@t":{"0":10,"1":3}}'},
        "capital letters": {"StartingOffsets": "EARLIEST", "endingoffsets": "Latest"},
        "latest as start": {"startingOffsets": "latest"},
        "-1 as start": {"startingOffsets": '{"@t":{"0":-1,"1":0}}'},
        "earliest as end": {"endingOffsets": "earliest"},
        "-2 as end": {"endingOffsets": '{"@t":{"0":-2,"1":1}}'},
        "a partition is missing": {"startingOffsets": '{"@t":{"0":0}}'},
        "a partition too many": {"startingOffsets": '{"@t":{"0":0,"1":0,"2":0}}'},
        "end below start": {"startingOffsets": '{"@t":{"0":5,"1":0}}', "endingOffsets": '{"@t":{"0":3,"1":1}}'},
        "end beyond the log": {"endingOffsets": '{"@t":{"0":12,"1":1}}', "kafkaConsumer.pollTimeoutMs": "3000"},
        "start beyond the log": {"startingOffsets": '{"@t":{"0":12,"1":1}}', "kafkaConsumer.pollTimeoutMs": "3000"},
        "no JSON": {"startingOffsets": "{t"},
    }
    return side.attempt_each(cases, lambda options: values(side.read(subscribe="@t", **options)))


def times(side: Side) -> Outcome:
    two_partitions(side)
    late, middle = str(NOW_MS + 1000), str(NOW_MS + 4)
    cases = {
        "start": {"startingTimestamp": middle},
        "start and end": {"startingTimestamp": middle, "endingTimestamp": str(NOW_MS + 8)},
        "end after all": {"endingTimestamp": late},
        "start after all": {"startingTimestamp": late},
        "start after all, latest": {"startingTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"},
        "by partition": {"startingOffsetsByTimestamp": f'{{"@t":{{"0":{middle},"1":0}}}}'},
        "by partition, incomplete": {"startingOffsetsByTimestamp": f'{{"@t":{{"0":{middle}}}}}'},
        "precedence": {"startingTimestamp": middle, "startingOffsetsByTimestamp": '{"@t":{"0":0,"1":0}}'},
        "precedence over offsets": {"startingTimestamp": middle, "startingOffsets": "earliest"},
        "end by partition": {"endingOffsetsByTimestamp": f'{{"@t":{{"0":{middle},"1":{late}}}}}'},
    }
    return side.attempt_each(cases, lambda options: values(side.read(subscribe="@t", **options)))


def values(frame: DataFrame) -> list[str]:
    return sorted(row.value.decode() for row in frame.select("value").collect())


def conditions(side: Side) -> Outcome:
    """Compare conditions on the columns that describe a record's place and time."""
    two_partitions(side)
    frame = side.read(subscribe="@t")
    time = f"timestamp_millis({NOW_MS + 4})"
    cases = (
        *("partition = 1", "offset > 1 and offset <= 4", "offset in (0, 7)", "partition <> 0 and offset < 2"),
        *(f"timestamp >= {time}", f"timestamp < {time}", f"timestamp = {time}", "topic = 'none'", "key is null"),
    )
    return {case: values(frame.where(case)) for case in cases}


def left_out_columns(side: Side) -> Outcome:
    """Compare rows of some columns: an option of ours, and a selection of Spark's."""
    side.create("t", 1, *HEADERS)
    options = {"columns": "key,offset,headers"} if side.connector == OURS else {"includeHeaders": "true"}
    frame = side.read(subscribe="@t", **options).select("key", "offset", "headers")
    return {"rows": side.rows(frame), "schema": frame.schema.json()}


def tasks(side: Side) -> Outcome:
    """Compare the ranges of the tasks."""
    side.create("t", 3, *numbers(range(10)), *numbers(range(100), 1), *numbers(range(1), 2))
    cases: dict[str, dict[str, str]] = {
        "default": {},
        "minPartitions 2": {"minPartitions": "2"},
        "minPartitions 5": {"minPartitions": "5"},
        "minPartitions 50": {"minPartitions": "50"},
        "maxRecordsPerPartition 7": {"maxRecordsPerPartition": "7"},
        "both": {"maxRecordsPerPartition": "40", "minPartitions": "9"},
    }

    def ranges(options: Mapping[str, str]) -> list[Any]:
        frame = side.read(subscribe="@t", **options).groupBy(F.spark_partition_id().alias("task"), "partition")
        found = frame.agg(F.min("offset").alias("first"), F.max("offset").alias("last")).collect()
        return sorted([row.partition, row.first, row["last"]] for row in found)

    return side.attempt_each(cases, ranges)


def deleted_records(side: Side) -> Outcome:
    two_partitions(side)
    side.delete_records("t", 0, 4)
    start = {"startingOffsets": '{"@t":{"0":1,"1":0}}', "kafkaConsumer.pollTimeoutMs": "3000"}
    lossy = start | {"failOnDataLoss": "false"}
    return {
        "earliest": values(side.read(subscribe="@t")),
        "below the log start": side.attempt(lambda: values(side.read(subscribe="@t", **start))),
        "below the log start, permitted": side.attempt(lambda: values(side.read(subscribe="@t", **lossy))),
    }


HASTY = {"kafka.request.timeout.ms": "3000", "kafka.default.api.timeout.ms": "4000", "fetchOffset.numRetries": "1"}
"""For jobs that fail after a timeout."""


def read_options(side: Side) -> Outcome:
    two_partitions(side)
    found: Outcome = {}
    cases = {
        "trigger options": {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1s"},
        "write option": {"topic": "@t"},
        "unknown option": {"noSuchOption": "1"},
        "mistyped option": {"startingOffset": "earliest"},
        "unknown kafka option": {"kafka.no.such.option": "1"},
        "group": {"groupIdPrefix": "mine"},
        "fetch sizes": {"kafka.fetch.max.bytes": "200000000", "kafka.max.partition.fetch.bytes": "100"},
        "small fetches": {"kafka.fetch.max.bytes": "0"},
        "plaintext": {"kafka.security.protocol": "PLAINTEXT"},
        "ssl": {"kafka.security.protocol": "SSL"} | HASTY,
        "sasl without a protocol": {"kafka.sasl.mechanism": "PLAIN"},
        "read uncommitted": {"kafka.isolation.level": "read_uncommitted"},
        "read committed": {"kafka.isolation.level": "read_committed"},
        "deserializer": {"kafka.key.deserializer": "x"},
        "offset reset": {"kafka.auto.offset.reset": "latest"},
        "auto commit": {"kafka.enable.auto.commit": "true"},
        "two subscriptions": {"assign": '{"@t":[0]}'},
        "bad number": {"minPartitions": "x"},
        "zero": {"minPartitions": "0"},
        "bad flag": {"failOnDataLoss": "maybe"},
    }
    found = side.attempt_each(cases, lambda options: len(values(side.read(subscribe="@t", **options))))
    reads = {
        "no subscription": {},
        "empty subscription": {"subscribe": " "},
        "unknown topic": {"subscribe": "@nope"} | HASTY,
        "unknown partition": {"assign": '{"@t":[7]}'},
        "bad pattern": {"subscribePattern": "("},
    }
    return found | side.attempt_each(reads, lambda options: len(values(side.read(**options))))


def schema_of_the_user(side: Side) -> Outcome:
    two_partitions(side)
    reader = side.spark.read.format(side.connector).option("kafka.bootstrap.servers", side.bootstrap)
    reader = reader.option("subscribe", side.topic("t"))
    return {"result": side.attempt(lambda: reader.schema("value string").load().count())}


# Writes

ROW = "select cast({n} as string) as key, 'v{n}' as value"


def sql(side: Side, text: str) -> DataFrame:
    return side.spark.sql(text)


def written_columns(side: Side) -> Outcome:
    side.create("t", 3)
    side.create("u", 1)
    side.write(sql(side, "select 'text' as value, 0 as partition"), topic="@t")
    side.write(
        sql(side, "select cast('bin' as binary) as key, cast('ary' as binary) as value, 1 as partition"), topic="@t"
    )
    side.write(sql(side, "select cast(null as string) as value, 'k' as key, 2 as partition"), topic="@t")
    pair = "array(named_struct('key', 'h', 'value', cast('1' as binary)), named_struct('key', 'n', 'value', null))"
    side.write(sql(side, f"select 'h' as value, {pair} as headers"), topic="@u")
    side.write(
        sql(side, "select 'none' as value, cast(array() as array<struct<key:string,value:binary>>) as headers"),
        topic="@u",
    )
    side.write(sql(side, f"select 'column' as value, '{side.topic('u')}' as topic"))
    side.write(sql(side, f"select 'both' as value, '{side.topic('t')}' as topic"), topic="@u")
    side.write(sql(side, "select 'more' as value, 1 as offset, now() as timestamp, 2 as other"), topic="@u")
    return {"t": side.written("t"), "u": side.written("u"), "offsets": side.written_offsets("u")}


def chosen_partitions(side: Side) -> Outcome:
    side.create("t", 5)
    frame = side.spark.range(0, 200, 1, 1).selectExpr("cast(id as string) as key", "cast(id as string) as value")
    side.write(frame, topic="@t")
    side.write(sql(side, "select '' as key, 'empty' as value"), topic="@t")
    return {"partitions": sorted([row["key"], row["partition"]] for row in side.written("t"))}


def copied_topic(side: Side) -> Outcome:
    """Write a frame that was read from a topic, with all of its columns, to another one."""
    side.create("t", 1, *HEADERS, Record(None, b"tombstone"))
    side.create("copy", 1)
    side.write(side.read(subscribe="@t", includeHeaders="true").coalesce(1), topic="@copy")
    return {"copy": [{**row, "topic": ""} for row in side.written("copy")]}


def write_modes(side: Side) -> Outcome:
    side.create("t", 1)
    frame = sql(side, "select 'x' as value")
    modes = {str(mode): mode for mode in (None, "append", "overwrite", "ignore", "error")}
    return side.attempt_each(modes, lambda mode: side.write(frame, mode, topic="@t"))


def refused_writes(side: Side) -> Outcome:
    side.create("t", 1)
    good = "select 'x' as value"
    short = {"kafka.delivery.timeout.ms": "2500", "kafka.request.timeout.ms": "2000", "kafka.max.block.ms": "2500"}
    cases: dict[str, tuple[str, dict[str, str]]] = {
        "no topic": (good, {}),
        "null topic": ("select 'x' as value, cast(null as string) as topic", {}),
        "unknown topic": (good, {"topic": "@nope"} | short),
        "no value": ("select 'x' as key", {"topic": "@t"}),
        "number as value": ("select 1 as value", {"topic": "@t"}),
        "number as key": ("select 1 as key, 'x' as value", {"topic": "@t"}),
        "long as partition": ("select 'x' as value, cast(0 as bigint) as partition", {"topic": "@t"}),
        "text as headers": ("select 'x' as value, 'x' as headers", {"topic": "@t"}),
        "partition beyond the topic": ("select 'x' as value, 9 as partition", {"topic": "@t"} | short),
        "negative partition": ("select 'x' as value, -1 as partition", {"topic": "@t"}),
        "read option": (good, {"topic": "@t", "subscribe": "@t"}),
        "unknown option": (good, {"topic": "@t", "noSuchOption": "1"}),
        "acks 0": (good, {"topic": "@t", "kafka.acks": "0", "kafka.enable.idempotence": "false"}),
        "acks 1": (good, {"topic": "@t", "kafka.acks": "1"}),
        "acks 2": (good, {"topic": "@t", "kafka.acks": "2"}),
        "zstd": (good, {"topic": "@t", "kafka.compression.type": "zstd"}),
        "no such codec": (good, {"topic": "@t", "kafka.compression.type": "brotli"}),
        "serializer": (good, {"topic": "@t", "kafka.key.serializer": "x"}),
        "linger": (good, {"topic": "@t", "kafka.linger.ms": "5"}),
    }
    return side.attempt_each(cases, lambda case: side.write(sql(side, case[0]), **case[1]))


# Streams


def stream_with_a_cap(side: Side) -> Outcome:
    two_partitions(side)
    stream = Stream(side, subscribe="@t", maxOffsetsPerTrigger="5", **EARLIEST)
    first = stream.run()
    side.produce("t", *numbers([10]))
    return {"runs": [first, stream.run(), stream.run()], "batches": stream.batches(), "all ends": stream.all_ends()}


def stream_from_the_latest_offsets(side: Side) -> Outcome:
    two_partitions(side)
    stream = Stream(side, subscribe="@t")
    runs = [stream.run()]
    before = stream.position
    side.produce("t", *numbers([10]))
    runs += [stream.run()]
    return {"runs": runs, "before": before, "batches": stream.batches()}


def stream_of_single_batches(side: Side) -> Outcome:
    two_partitions(side)
    early, late = Stream(side, subscribe="@t", maxOffsetsPerTrigger="3", **EARLIEST), Stream(side, subscribe="@t")
    late.checkpoint = side.folder / "late"
    runs = [early.run(once=True), late.run(once=True)]
    side.produce("t", *numbers([10]))
    runs += [early.run(once=True), late.run(once=True)]
    return {"runs": runs, "early": early.batches(), "late": late.batches()}


def stream_positions(side: Side) -> Outcome:
    two_partitions(side)
    found: Outcome = {}
    for number, (name, options) in enumerate(
        {
            "offsets": {"startingOffsets": '{"@t":{"0":8,"1":-2}}'},
            "latest in one": {"startingOffsets": '{"@t":{"0":8,"1":-1}}'},
            "time": {"startingTimestamp": str(NOW_MS + 7)},
            "time after all": {"startingTimestamp": str(NOW_MS + 1000)},
            "time after all, latest": {
                "startingTimestamp": str(NOW_MS + 1000),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            "times by partition": {"startingOffsetsByTimestamp": f'{{"@t":{{"0":{NOW_MS + 8},"1":{NOW_MS}}}}}'},
            "incomplete": {"startingOffsets": '{"@t":{"0":8}}'},
            "ending offsets": {"endingOffsets": "latest"},
            "pattern": {"subscribePattern": "@t", "startingOffsets": "earliest"},
            "assign": {"assign": '{"@t":[1]}', "startingOffsets": "earliest"},
        }.items()
    ):
        subscription = {} if {"subscribePattern", "assign"} & options.keys() else {"subscribe": "@t"}
        stream = Stream(side, **subscription, **options)
        stream.checkpoint = side.folder / str(number)
        found[name] = [stream.run(), stream.position, stream.values()]
    return found


def stream_that_is_repeated(side: Side) -> Outcome:
    """A batch that did not finish is run again after a restart."""
    two_partitions(side)
    stream = Stream(side, subscribe="@t", **EARLIEST)
    stream.run()
    last = max(stream.rows)
    stream.uncommit(last)
    side.produce("t", *numbers([10]))
    stream.rows.clear()
    return {"run": stream.run(), "batches": stream.batches()}


def stream_of_new_partitions(side: Side) -> Outcome:
    two_partitions(side)
    stream = Stream(side, subscribePattern="@t.*", **EARLIEST)
    runs = [stream.run()]
    side.add_partitions("t", 3)
    side.produce("t", *numbers([200], 2))
    side.create("t2", 1, *numbers([300]))
    runs += [stream.run()]
    return {"runs": runs, "batches": stream.batches()}


def handed_over(first: str, second: str) -> Job:
    """A query that began with one connector continues with the other one, and once more with the first."""

    def run(side: Side) -> Outcome:
        two_partitions(side)
        stream = Stream(side, subscribe="@t", maxOffsetsPerTrigger="5", **EARLIEST)
        runs = []
        for number, connector in enumerate((first, second, first)):
            stream.connector = connector if side.connector == OURS else KAFKA
            side.produce("t", *numbers([10 + number]))
            runs.append(stream.run())
        return {"runs": runs, "position": stream.position, "values": stream.values()}

    return Job(f"a checkpoint of {first} that {second} continues", run)


def lossy(side: Side, change: Callable[[], Any], **options: str) -> Outcome:
    """Run, change the topics, run again; then once more with failOnDataLoss=false, and after one more record."""
    two_partitions(side)
    side.create("u", 1, *numbers([500]))
    stream = Stream(side, **({"subscribe": "@t"} | options), **EARLIEST)
    runs = [stream.run()]
    change()
    runs.append(stream.run())
    stream.options["failOnDataLoss"] = "false"
    runs.append(stream.run())
    side.produce("t", *numbers([50]))
    runs.append(stream.run())
    return {"runs": runs, "values": stream.values(), "position": stream.position}


def stream_with_deleted_records(side: Side) -> Outcome:
    def change() -> None:
        side.produce("t", *numbers(range(20, 30)))
        side.delete_records("t", 0, 15)

    return lossy(side, change)


def stream_with_a_cap_and_deleted_records(side: Side) -> Outcome:
    def change() -> None:
        side.produce("t", *numbers(range(20, 30)))
        side.delete_records("t", 0, 15)

    return lossy(side, change, maxOffsetsPerTrigger="2")


def stream_with_a_deleted_topic(side: Side) -> Outcome:
    return lossy(side, lambda: side.delete("u"), subscribe="@t,@u")


def stream_with_a_deleted_topic_of_a_pattern(side: Side) -> Outcome:
    return lossy(side, lambda: side.delete("u"), subscribePattern="@(t|u)")


def stream_with_a_topic_created_again(side: Side) -> Outcome:
    def change() -> None:
        side.delete("t")
        side.create("t", 2, *numbers([40, 41]))

    return lossy(side, change)


def stream_with_another_subscription(side: Side) -> Outcome:
    two_partitions(side)
    side.create("u", 1, *numbers([500]))
    stream = Stream(side, subscribe="@t,@u", **EARLIEST)
    runs = [stream.run()]
    stream.options["subscribe"] = "@t"
    runs.append(stream.run())
    stream.options["failOnDataLoss"] = "false"
    side.produce("t", *numbers([50]))
    runs.append(stream.run())
    position = stream.position
    stream.options["subscribe"] = "@t,@u"
    side.produce("u", *numbers([501]))
    runs.append(stream.run())
    return {"runs": runs, "position": position, "values": stream.values()}


def stream_with_a_minimum(side: Side) -> Outcome:
    two_partitions(side)
    stream = Stream(side, subscribe="@t", minOffsetsPerTrigger="20", maxTriggerDelay="1h", **EARLIEST)
    runs = [stream.run()]
    side.produce("t", *numbers([10, 11]))
    runs.append(stream.run())
    return {"runs": runs, "values": stream.values()}


def stream_tasks(side: Side) -> Outcome:
    """Compare the ranges of the tasks of a batch, and options that a stream accepts."""
    side.create("t", 3, *numbers(range(10)), *numbers(range(100), 1), *numbers(range(1), 2))
    cases: dict[str, dict[str, str]] = {
        "minPartitions": {"minPartitions": "9"},
        "maxRecordsPerPartition": {"maxRecordsPerPartition": "30"},
        "both": {"minPartitions": "9", "maxRecordsPerPartition": "40"},
        "group": {"groupIdPrefix": "mine"},
        "retries": {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "100"},
        "patience": {"kafkaConsumer.pollTimeoutMs": "60000"},
        "no retries": {"fetchOffset.numRetries": "0"},
        "bad retries": {"fetchOffset.numRetries": "-1"},
        "bad cap": {"maxOffsetsPerTrigger": "0"},
        "bad minimum": {"minOffsetsPerTrigger": "x"},
        "minimum above cap": {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
        "bad delay": {"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"},
        "unknown option": {"noSuchOption": "1"},
    }
    found: Outcome = {}
    for number, (name, options) in enumerate(cases.items()):
        stream = Stream(side, subscribe="@t", **EARLIEST, **options)
        stream.checkpoint = side.folder / str(number)
        run = stream.run(once=True)
        rows = [row for batch in stream.rows.values() for row in batch]
        by_task: dict[Any, list[int]] = {}
        for row in rows:
            by_task.setdefault((row["partition"], row["task"]), []).append(row["offset"])
        found[name] = [run, sorted([partition, min(each), max(each)] for (partition, _), each in by_task.items())]
    return found


def stream_with_headers(side: Side) -> Outcome:
    side.create("t", 1, *HEADERS)
    stream = Stream(side, subscribe="@t", includeHeaders="true", **EARLIEST)
    return {"run": stream.run(), "rows": [rows for rows in stream.rows.values() if rows]}


def stream_writes(side: Side) -> Outcome:
    """Compare the rows that a stream writes, by output mode."""
    side.create("t", 1, *numbers(range(6)))
    found: Outcome = {}
    for mode in ("append", "complete", "update"):
        side.create(mode, 1)
        source = side.spark.readStream.format(KAFKA).option("kafka.bootstrap.servers", side.bootstrap)
        rows = (
            source.option("subscribe", side.topic("t")).option("maxOffsetsPerTrigger", "3").options(**EARLIEST).load()
        )
        frame = rows.select("key", "value")
        if mode != "append":
            frame = rows.groupBy("partition").count().selectExpr("cast(count as string) as value")

        def run(frame: DataFrame = frame, mode: str = mode) -> str:
            writer = frame.writeStream.format(side.connector).outputMode(mode)
            writer = writer.option("kafka.bootstrap.servers", side.bootstrap).option("topic", side.topic(mode))
            writer = writer.option("checkpointLocation", str(side.folder / mode)).trigger(availableNow=True)
            writer.start().awaitTermination()
            return "finished"

        found[mode] = [side.attempt(run), [row["value"] for row in side.written(mode)]]
    return found


def views(side: Side) -> Outcome:
    """Read through SQL."""
    two_partitions(side)
    options = f"'kafka.bootstrap.servers' '{side.bootstrap}', subscribe '{side.topic('t')}'"
    side.spark.sql(f"create or replace temporary view records using {side.connector} options ({options})")
    counted = side.spark.sql("select partition, count(*) as n, max(offset) as last from records group by partition")
    return {"rows": sorted([row.partition, row.n, row["last"]] for row in counted.collect())}


JOBS: tuple[Job, ...] = (
    Job("schemas", schemas),
    Job("all columns", all_columns),
    Job("headers", headers),
    Job("compressions", compressions),
    Job("subscriptions", subscriptions),
    Job("offsets as positions", offset_positions),
    Job("times as positions", times),
    Job("conditions on columns", conditions),
    Job("columns that are left out", left_out_columns),
    Job("ranges of tasks", tasks, {"maxRecordsPerPartition 7": "ignores `maxRecordsPerPartition` in a batch"}),
    Job("a batch over deleted records", deleted_records),
    Job(
        "options of a read",
        read_options,
        {
            "unknown option": "ignores unknown options",
            "mistyped option": "ignores unknown options",
            "sasl without a protocol": "security options",
            "unknown partition": "reads nothing from a partition in `assign` that does not exist",
        },
    ),
    Job("a schema of the user", schema_of_the_user),
    Job("a view in SQL", views),
    Job("columns of a write", written_columns, {"offsets": "the marker of each transaction takes an offset"}),
    Job("partitions of keys", chosen_partitions),
    Job("a copy of a topic", copied_topic),
    Job(
        "modes of a write",
        write_modes,
        {"None": "a batch write without a mode", "error": "a batch write without a mode"},
    ),
    Job(
        "refused writes",
        refused_writes,
        {
            "acks 0": "`kafka.acks=0`",
            "unknown option": "ignores unknown options",
            "unknown topic": "a write creates a missing topic, if the brokers permit it",
        },
    ),
    Job("a stream with a cap", stream_with_a_cap, {"all ends": "the first batch of a query is empty"}),
    Job("a stream from the latest offsets", stream_from_the_latest_offsets),
    Job("a stream of single batches", stream_of_single_batches),
    Job("positions of a stream", stream_positions),
    Job("a stream whose batch is repeated", stream_that_is_repeated),
    Job("a stream with new partitions and topics", stream_of_new_partitions),
    handed_over(KAFKA, OURS),
    handed_over(OURS, KAFKA),
    Job("a stream over deleted records", stream_with_deleted_records),
    Job("a stream with a cap over deleted records", stream_with_a_cap_and_deleted_records),
    Job(
        "a stream of a deleted topic",
        stream_with_a_deleted_topic,
        dict.fromkeys(("position", "runs", "values"), "without `failOnDataLoss`, ends if a named topic is deleted"),
    ),
    Job("a stream of a deleted topic of a pattern", stream_with_a_deleted_topic_of_a_pattern),
    Job(
        "a stream of a topic that was created again",
        stream_with_a_topic_created_again,
        {"values": "continues at the end of a topic that was created again"},
    ),
    Job(
        "a stream with another subscription",
        stream_with_another_subscription,
        dict.fromkeys(("position", "values"), "drops the position of a partition that the options no longer name"),
    ),
    Job("a stream with a minimum", stream_with_a_minimum),
    Job(
        "tasks and options of a stream",
        stream_tasks,
        {
            "unknown option": "ignores unknown options",
            "bad cap": "accepts `maxOffsetsPerTrigger=0` with `Trigger.Once`",
            "no retries": "counts the first request among `fetchOffset.numRetries`",
        },
    ),
    Job("headers in a stream", stream_with_headers),
    Job("streams that write", stream_writes, {"update": "output mode update"}),
)
