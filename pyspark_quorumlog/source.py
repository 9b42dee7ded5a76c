"""Spark's entry points: the data source, its reader and its writer.

Spark pickles these objects and sends them to other processes, so they hold options and no connections.  The driver
plans reads and commits writes; only `read` and `write` run in executors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
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

from pyspark_quorumlog.options import OptionError, Query, parse_read, parse_write
from pyspark_quorumlog.stream_plan import JsonOffsets, from_json, to_json
from pyspark_quorumlog.warn import warn_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

    from pyspark_quorumlog.options import ReadOptions, WriteOptions
    from pyspark_quorumlog.plan import OffsetRange
    from pyspark_quorumlog.stream_reading import StreamDriver
    from pyspark_quorumlog.transactions import Attempt, Staged
    from quorumlog.client.scope_client import OpenScope

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_UNLIMITED = 2**63 - 1

_WRITABLE: Mapping[str, tuple[DataType, ...]] = {
    "value": (BinaryType(), StringType()),
    "key": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
}


_READABLE: Mapping[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS_TYPE,
}


def read_schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, _READABLE[name]) for name in columns])


class DefaultSource(DataSource):
    """Reads topics of a quorumlog cluster as rows, and writes rows to them, in batches and streams.

    Name: `quorumlog`.  Options, schema and behaviour follow Spark's Kafka source; see docs/spark.md.

    Examples:
        >>> spark.read.format("quorumlog").option("bootstrap.servers", "localhost:9092").option("subscribe", "t").load()
        >>> df.write.format("quorumlog").option("bootstrap.servers", "localhost:9092").option("topic", "t") \\
        ...     .mode("append").save()
    """

    @classmethod
    def name(cls) -> str:
        return "quorumlog"

    def schema(self) -> StructType:
        return read_schema(parse_read(self.options, Query.ANY).columns)

    def reader(self, schema: StructType) -> Reader:
        return Reader(self._read_options(schema, Query.BATCH))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        options = parse_write(self.options)
        _check_writable(schema, options)
        if overwrite:
            raise OptionError('records cannot be overwritten: use .mode("append")')
        if options.scope is not None:
            warn_once(
                "option transactionScope has no effect when writing a batch, also in foreachBatch: a batch that Spark "
                "repeats writes its rows again"
            )
        from pyspark_quorumlog.writing import open_batch

        return Writer(options, open_batch(options, f"spark-{uuid4()}"))

    def streamReader(self, schema: StructType) -> StreamReader | RefusedStream:
        """Return a reader.  It reports invalid options later, because Spark would not show an error of this method."""
        try:
            return StreamReader(self._read_options(schema, Query.STREAM))
        except OptionError as error:
            return RefusedStream(error)

    def _read_options(self, schema: StructType, query: Query) -> ReadOptions:
        options = parse_read(self.options, query)
        if schema != read_schema(options.columns):
            raise OptionError("the schema of quorumlog rows is fixed: remove .schema(...)")
        return options

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return a writer.

        In complete mode (overwrite), it appends all rows of each batch, as Spark's Kafka sink does.
        """
        options = parse_write(self.options)
        _check_writable(schema, options)
        return StreamWriter(options)


@dataclass
class TaskRange(InputPartition):
    """One task's range of the read."""

    value: OffsetRange


class Reader(DataSourceReader):
    """Reads ranges of offsets that are fixed when the query is planned.

    It has no `pushFilters`: Spark 4.3 keeps the plan of the last pushed filters with the DataFrame, and uses this plan
    for other queries of the same DataFrame as well.  Those queries would lack rows; `tests/spark/test_pushdown.py`
    shows this.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        from pyspark_quorumlog.reading import plan_tasks

        return [TaskRange(one) for one in plan_tasks(self.options)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskRange):  # Spark passes InputPartition(None) for an empty list
            return iter(())
        from pyspark_quorumlog.reading import read_range

        return read_range(self.options, partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches.

    Spark calls all methods but `read` in one process of the driver for the whole query, and `read` in executors.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self._driver: StreamDriver | None = None

    def initialOffset(self) -> JsonOffsets:
        return to_json(self._at_driver().initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit of rows even if none is set, so that only a query of one batch gets ReadAllAvailable."""
        return ReadMaxRows(self.options.trigger.offsets_max or _UNLIMITED)

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        assert isinstance(limit, ReadAllAvailable | ReadMaxRows), limit
        offsets_max = None if isinstance(limit, ReadAllAvailable) else limit.max_rows
        return to_json(self._at_driver().next_end(from_json(start), offsets_max))

    def reportLatestOffset(self) -> JsonOffsets | None:
        return to_json(self._at_driver().latest) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self._at_driver().pin()

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> list[InputPartition]:
        return [TaskRange(one) for one in self._at_driver().tasks(from_json(start), from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_quorumlog.reading import read_range

        assert isinstance(partition, TaskRange), partition
        return read_range(self.options, partition.value)

    def _at_driver(self) -> StreamDriver:
        if self._driver is None:
            from pyspark_quorumlog.stream_reading import StreamDriver

            self._driver = StreamDriver(self.options)
        return self._driver


class RefusedStream(DataSourceStreamReader):
    """Refuses every operation on a stream, with the problems of its options."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        raise self._error

    def latestOffset(self, start: object = None, limit: object = None) -> NoReturn:
        raise self._error

    def partitions(self, start: object, end: object) -> NoReturn:
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error


@dataclass
class Written(WriterCommitMessage):
    """A task's report: the number of rows that were written and acknowledged, and their transaction."""

    record_count: int
    staged: Staged


class Writer(DataSourceArrowWriter):
    """Appends rows.

    The rows become visible together when Spark commits the write.  Without a scope, each row is visible at once.

    Spark creates this object in the driver, once for each write, pickles it for the tasks, and commits the write with
    the original.

    scope: the transaction scope of this write; None: the tasks write without transactions.
    """

    def __init__(self, options: WriteOptions, scope: OpenScope | None) -> None:
        self.options = options
        self.scope = scope

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        from pyspark_quorumlog.transactions import attempt_of_batch

        context = TaskContext.get()
        attempt = None if context is None or self.scope is None else attempt_of_batch(self.scope, context)
        return _write(self.options, iterator, context, attempt)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from pyspark_quorumlog.writing import commit_batch

        staged = _staged(self.options, messages)
        if self.scope is not None:
            commit_batch(self.options, self.scope, staged)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transactions of all tasks.

        The whole scope is deleted, because killed tasks did not report their transactions.
        """
        if self.scope is not None:
            from pyspark_quorumlog.writing import abort_batch

            abort_batch(self.options, self.scope)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends the rows of micro-batches: exactly once in transactions (`transactions`), otherwise at least once.

    Spark commits with a new object in another process.  That object knows only the reports of the tasks.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        from pyspark_quorumlog.transactions import attempt_of_stream

        context = TaskContext.get()
        if context is None or self.options.atomic is False:
            return _write(self.options, iterator, context, None)
        return _write(self.options, iterator, context, attempt_of_stream(self.options, context))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        from pyspark_quorumlog.writing import commit_write

        commit_write(self.options, _staged(self.options, messages), batchId + 1)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        from pyspark_quorumlog.writing import abort_write

        abort_write(self.options, _staged(self.options, messages))


def _write(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], context: TaskContext | None, attempt: Attempt | None
) -> Written:
    from pyspark_quorumlog.writing import write_rows

    return Written(*write_rows(options, batches, context.partitionId() if context is not None else 0, attempt))


def _staged(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    """Return the transactions of the tasks.  Warn about rows without a transaction, unless `atomic` is false."""
    written = [message for message in messages if isinstance(message, Written)]
    if options.atomic is None and any(one.record_count and one.staged.scope is None for one in written):
        warn_once(
            "the brokers have no transaction scopes: a task or batch that Spark repeats writes its rows again; "
            "set the option atomic to false if that is intended"
        )
    return [one.staged for one in written]


def _check_writable(schema: StructType, options: WriteOptions) -> None:
    """Refuse missing columns and wrong types.  Other columns are ignored, so a frame that was read can be written."""
    problems = []
    kinds: dict[str, Any] = {field.name: field.dataType for field in reversed(schema.fields)}  # first of each name
    for name, kind in reversed(kinds.items()):
        if name == "headers":
            if not _is_headers(kind):
                problems.append(
                    f"column headers is {kind.simpleString()}; expected: array<struct<key:string,value:binary>>"
                )
        elif name in _WRITABLE and kind not in _WRITABLE[name]:
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
