"""Spark's entry points: the data source, its reader and its writer.

These objects are created in two or three processes and pickled in between, so they hold options and no connections.  On
the driver, `partitions` asks the brokers; only `read` and `write` run in executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_quorumlog.options import OptionError, parse_read, parse_write

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from pyspark_quorumlog.options import ReadOptions, WriteOptions
    from pyspark_quorumlog.plan import OffsetRange

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_WRITABLE: Mapping[str, tuple[DataType, ...]] = {
    "value": (BinaryType(), StringType()),
    "key": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}


def read_schema(with_headers: bool) -> StructType:
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    return StructType([*fields, StructField("headers", HEADERS_TYPE)] if with_headers else fields)


class DefaultSource(DataSource):
    """Reads topics of a quorumlog cluster as rows, and writes rows to them, in batches.

    Name: `quorumlog`.  Options, schema and meaning are those of Spark's Kafka source; see docs/spark.md.

    Examples:
        >>> spark.read.format("quorumlog").option("bootstrap.servers", "localhost:9092").option("subscribe", "t").load()
        >>> df.write.format("quorumlog").option("bootstrap.servers", "localhost:9092").option("topic", "t") \\
        ...     .mode("append").save()
    """

    @classmethod
    def name(cls) -> str:
        return "quorumlog"

    def schema(self) -> StructType:
        return read_schema(parse_read(self.options).with_headers)

    def reader(self, schema: StructType) -> Reader:
        options = parse_read(self.options)
        if schema != read_schema(options.with_headers):
            raise OptionError("the schema of quorumlog rows is fixed: remove .schema(...)")
        return Reader(options)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        options = parse_write(self.options)
        _check_writable(schema, options)
        if overwrite:
            raise OptionError('records cannot be overwritten: use .mode("append")')
        return Writer(options)

    def streamReader(self, schema: StructType) -> RefusedStream:
        """Return a reader that refuses.  Spark calls `stop` on it even after an error, and shows a failure of `stop`.

        `schema` cannot refuse, since Spark calls it in the same way for a batch and for a stream.
        """
        return RefusedStream()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse the stream."""
        raise OptionError("writeStream is not supported: write each batch with foreachBatch and frame.write")


class RefusedStream(DataSourceStreamReader):
    """Refuses every operation on a stream."""

    def initialOffset(self) -> NoReturn:
        _refuse_stream()

    def latestOffset(self, start: object = None, limit: object = None) -> NoReturn:
        _refuse_stream()

    def partitions(self, start: object, end: object) -> NoReturn:
        _refuse_stream()

    def read(self, partition: InputPartition) -> NoReturn:
        _refuse_stream()


def _refuse_stream() -> NoReturn:
    raise OptionError("readStream is not supported: read a batch with spark.read, from given offsets or times")


@dataclass
class TaskRange(InputPartition):
    """One task's range of the read."""

    value: OffsetRange


class Reader(DataSourceReader):
    """Reads ranges of offsets that are fixed when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        from pyspark_quorumlog.reading import plan_tasks

        return [TaskRange(one) for one in plan_tasks(self.options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskRange):  # Spark replaces an empty list of partitions
            return iter(())
        from pyspark_quorumlog.reading import read_range

        return read_range(self.options, partition.value)


@dataclass
class Written(WriterCommitMessage):
    """The number of rows that a task has written, all acknowledged."""

    record_count: int


class Writer(DataSourceArrowWriter):
    """Appends rows.  An attempt of a task writes each row once; Spark may run a failed task again."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        from pyspark_quorumlog.writing import write_rows

        context = TaskContext.get()
        return Written(write_rows(self.options, iterator, context.partitionId() if context is not None else 0))


def _check_writable(schema: StructType, options: WriteOptions) -> None:
    problems = []
    kinds: dict[str, Any] = {field.name: field.dataType for field in schema.fields}
    for name, kind in kinds.items():
        if name == "headers":
            if not _is_headers(kind):
                problems.append(
                    f"column headers is {kind.simpleString()}; expected: array<struct<key:string,value:binary>>"
                )
        elif name not in _WRITABLE:
            allowed = ", ".join(sorted((*_WRITABLE, "headers")))
            problems.append(f"column {name} is not part of a record: use {allowed}")
        elif kind not in _WRITABLE[name]:
            allowed = " or ".join(one.simpleString() for one in _WRITABLE[name])
            problems.append(f"column {name} is {kind.simpleString()}; expected: {allowed}")
    if "value" not in kinds:
        problems.append("column value is required")
    if "topic" not in kinds and options.topic is None:
        problems.append("the option topic or a column topic is required")
    if problems:
        raise OptionError(*problems)


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, field.dataType) for field in kind.elementType.fields]
    return fields == [("key", StringType()), ("value", BinaryType())]
