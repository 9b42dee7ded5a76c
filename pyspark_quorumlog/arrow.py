"""Fetched batches as Arrow record batches in Spark's row schema, and Arrow columns as record batches.

The C extension walks the records; this module contains the work that is done once per buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quorumlog.client.records import OpenBatch, new_header, open_batches, seal_batch, unreadable
from quorumlog.errors import ClusterError
from quorumlog.wire._record_scan import assign_groups, count_headers, decode_columns, encode_columns, order_by_group
from quorumlog.wire.errors import ApiError
from quorumlog.wire.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_FLAG, Buffer, Codec, seal
from quorumlog.words import about

HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_TYPE))

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

PIECE_SIZE_BYTES = 32 << 20
"""Maximum size of the decompressed records of one Arrow batch.  A larger record batch is an Arrow batch of its own."""
TOPIC_COLUMN_SIZE_MAX_BYTES = 64 << 20
"""Maximum size of the column `topic` of one Arrow batch.  More rows are divided into several Arrow batches.  Arrow's
offsets into the text have 32 bits, and a large batch of small records could exceed them."""
RECORD_SIZE_MAX_BYTES = 64 << 20
"""Maximum size of a record.  A row that becomes a larger record is refused."""
KEY_SHOWN_MAX = 40
"""Maximum number of bytes of a key in an error message."""

_NO_APPEND_TIME = -(2**63)

_FIELDS: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}


def read_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow form of `source.read_schema`; Spark compares the two for equality."""
    return pa.schema([(name, _FIELDS[name]) for name in columns])


# Reading


def decode(
    data: Buffer,
    first_offset: int,
    end_offset: int,
    topic: str,
    partition: int,
    columns: Sequence[str],
    aborted: Iterable[tuple[int, int]] = (),
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a fetched buffer with `first_offset <= offset < end_offset`.

    The records form one Arrow batch, or several if the record batches decompress to more than `PIECE_SIZE_BYTES` or the
    column `topic` would exceed `TOPIC_COLUMN_SIZE_MAX_BYTES`.  An Arrow batch without rows is left out.

    Args:
        columns: some of `reference.COLUMNS`, in the same order.
        aborted: (producer id, first offset) of each aborted transaction; its records are left out.

    Raises:
        UnreadableBatchError: a batch is damaged or contains a malformed record.
    """
    for piece in _pieces(open_batches(data, end_offset, aborted=aborted)):
        bodies, spans = _spans(data, piece)
        try:
            yield from _decode_spans(bodies, spans, first_offset, end_offset, topic, partition, columns)
        except _MalformedError as error:
            position = error.position - spans[error.span].start
            reason = f"malformed record at byte {position} of the records"
            raise unreadable(piece[error.span].header, reason) from None


def _pieces(opened: Iterator[OpenBatch]) -> Iterator[list[OpenBatch]]:
    """Divide batches into pieces, since decompressed data can be many times the size of the fetched data."""
    piece: list[OpenBatch] = []
    size = 0
    for batch in opened:
        if piece and size + len(batch.body) > PIECE_SIZE_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(batch)
        size += len(batch.body)
    if piece:
        yield piece


def _decode_spans(
    bodies: Buffer,
    spans: Sequence[_Span],
    first_offset: int,
    end_offset: int,
    topic: str,
    partition: int,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    rows_max, size = sum(span.record_count for span in spans), sum(span.end - span.start for span in spans)
    fields = np.array(spans, np.int64)
    offsets, timestamps = np.empty(rows_max, np.int64), np.empty(rows_max, np.int64)
    timestamp_types = np.empty(rows_max, np.int32)
    key, value = (_Binary.empty(rows_max, size) if name in columns else None for name in ("key", "value"))
    headers = _Headers.empty(rows_max, _header_count(bodies, fields), size) if "headers" in columns else None
    rows, malformed = decode_columns(
        bodies, fields, first_offset, end_offset, (offsets, timestamps, timestamp_types), key, value, headers
    )
    if malformed is not None:
        raise _MalformedError(*malformed)
    part_rows = max(TOPIC_COLUMN_SIZE_MAX_BYTES // len(topic.encode()) if "topic" in columns else rows, 1)
    made: Mapping[str, Callable[[], pa.Array]] = {
        "key": lambda: key and key.array(rows, pa.binary()),
        "value": lambda: value and value.array(rows, pa.binary()),
        "topic": lambda: _constant_text(topic, min(rows, part_rows)),
        "partition": lambda: pa.array(np.full(rows, partition, np.int32)),
        "offset": lambda: pa.array(offsets[:rows]),
        "timestamp": lambda: pa.Array.from_buffers(_FIELDS["timestamp"], rows, [None, pa.py_buffer(timestamps)]),
        "timestampType": lambda: pa.array(timestamp_types[:rows]),
        "headers": lambda: headers and headers.array(rows),
    }
    arrays = {name: made[name]() for name in columns}
    for start in range(0, rows, part_rows):
        part = [
            array.slice(0 if name == "topic" else start, min(part_rows, rows - start)) for name, array in arrays.items()
        ]
        yield pa.RecordBatch.from_arrays(part, schema=read_schema(columns))


def _header_count(bodies: Buffer, fields: Int64s) -> int:
    count, malformed = count_headers(bodies, fields)
    if malformed is not None:
        raise _MalformedError(*malformed)
    return count


class _Span(NamedTuple):
    """The records of one batch, as `decode_columns` expects it.  start, end: positions in the bodies."""

    start: int
    end: int
    base_offset: int
    base_timestamp: int
    append_time: int
    record_count: int
    last_delta: int


def _spans(data: Buffer, opened: Sequence[OpenBatch]) -> tuple[Buffer, list[_Span]]:
    """Return the bytes with every batch's records, and each batch's place in them.

    Without compression, the bytes are the fetched buffer itself.
    """
    compressed = any(batch.header.codec for batch in opened)
    spans = list[_Span]()
    inflated_size = 0
    for header, body, position in opened:
        start = inflated_size if compressed else position
        append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_FLAG else _NO_APPEND_TIME
        place = start, start + len(body), header.base_offset, header.base_timestamp
        spans.append(_Span(*place, append_time, header.record_count, header.last_offset_delta))
        inflated_size += len(body)
    return b"".join(batch.body for batch in opened) if compressed else data, spans


class _Binary(NamedTuple):
    """The arrays of a binary or text column, which `decode_columns` fills."""

    offsets: Int32s
    data: Bytes
    valid: Bytes  # one byte per row

    @classmethod
    def empty(cls, rows: int, size: int) -> _Binary:
        """Return arrays with room for `rows` and `size` bytes in total.  Their memory is not initialized."""
        return cls(np.empty(rows + 1, np.int32), np.empty(size, np.uint8), np.empty(rows, np.uint8))

    def array(self, rows: int, kind: pa.DataType) -> pa.Array:
        valid = self.valid[:rows]
        bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(kind, rows, buffers)


class _Headers(NamedTuple):
    """The arrays of the column of headers.  ends: the offsets of a list column."""

    ends: Int32s
    key: _Binary
    value: _Binary

    @classmethod
    def empty(cls, rows: int, headers: int, size: int) -> _Headers:
        return cls(np.empty(rows + 1, np.int32), _Binary.empty(headers, size), _Binary.empty(headers, size))

    def array(self, rows: int) -> pa.Array:
        total = int(self.ends[rows])
        entries = pa.StructArray.from_arrays(
            [self._names(total), self.value.array(total, pa.binary())], fields=list(HEADER_TYPE)
        )
        filled = np.diff(self.ends[: rows + 1]) > 0  # a record without headers has NULL, as in Spark's Kafka source
        bitmap = None if filled.all() else pa.py_buffer(np.packbits(filled, bitorder="little"))
        return pa.Array.from_buffers(HEADERS_TYPE, rows, [bitmap, pa.py_buffer(self.ends)], children=[entries])

    def _names(self, total: int) -> pa.Array:
        """Return the names.  Bytes that are not UTF-8 are replaced by U+FFFD, as Kafka's Java client does.

        Brokers do not check names.  Arrow's text must be UTF-8, or functions that use it fail.
        """
        names = self.key.array(total, pa.string())
        try:
            names.validate(full=True)
        except pa.ArrowInvalid:
            found = self.key.array(total, pa.binary()).to_pylist()
            names = pa.array([name.decode(errors="replace") for name in found], pa.string())
        return names


def _constant_text(text: str, rows: int) -> pa.Array:
    encoded = text.encode()
    offsets = np.arange(0, (rows + 1) * len(encoded), len(encoded), dtype=np.int32)[: rows + 1]
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(encoded * rows)])


class _MalformedError(Exception):
    """A malformed record.  span: the index of its batch.  position: the position of the record in the bodies."""

    def __init__(self, span: int, position: int) -> None:
        super().__init__(span, position)
        self.span = span
        self.position = position


# Writing


class BytesColumn(NamedTuple):
    """Arrow's arrays of a binary or text column.  valid: the validity bitmap; None if no value is null."""

    offsets: Int32s
    data: Bytes
    valid: Bytes | None


class HeadersColumn(NamedTuple):
    """Arrow's arrays of a column of headers.

    ends: the offsets of the lists.  valid: the validity bitmap of the lists; None if no list is null.
    """

    ends: Int32s
    valid: Bytes | None
    key: BytesColumn
    value: BytesColumn


class PartitionColumn(NamedTuple):
    """Arrow's arrays of the column partition.  valid: the validity bitmap; None if no value is null."""

    values: Int32s
    valid: Bytes | None


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of rows to write, as arrays for the extension.  None: the column is missing."""

    row_count: int
    key: BytesColumn | None
    value: BytesColumn
    headers: HeadersColumn | None
    partition: PartitionColumn | None
    timestamps: Int64s  # ms since 1970
    topic: Int32s | None  # index into `topics`; None: every row has the topic with index 0
    topics: tuple[str, ...]

    @classmethod
    def of(cls, table: pa.Table | pa.RecordBatch, timestamps: Int64s, topic: str | None) -> Columns:
        """Return the columns key, value, headers, topic and partition; others are ignored.

        Args:
            timestamps: the time of each row, in ms since 1970.
            topic: the topic of every row; None: the column contains the topics.

        Raises:
            ClusterError: a row has no topic, or a header has no name.
        """
        names = table.schema.names
        key = _bytes_column(_column(table, "key")) if "key" in names else None
        codes, topics = (None, (topic,)) if topic is not None else _topics(_column(table, "topic"))
        return cls(
            table.num_rows,
            key,
            _bytes_column(_column(table, "value")),
            _headers_column(_column(table, "headers"), key) if "headers" in names else None,
            _partition_column(_column(table, "partition")) if "partition" in names else None,
            timestamps,
            codes,
            topics,
        )


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A sealed record batch of one partition."""

    topic: str
    partition: int
    record_count: int
    data: bytearray


def encode(
    columns: Columns,
    partition_counts: Sequence[int],
    sticky: Sequence[int],
    batch_size_max: int,
    codec: Codec = Codec.NONE,
) -> Iterator[EncodedBatch]:
    """Yield the rows as sealed batches of at most `batch_size_max` bytes before compression, grouped by partition.

    A larger record becomes a batch of its own, because the topic's config decides whether it is too large.  Rows of a
    partition keep their order.

    Args:
        partition_counts: the number of partitions of each topic in `columns.topics`.
        sticky: for each of these topics, the partition of rows that have neither a key nor a partition.

    Raises:
        ClusterError: a row names a partition that its topic does not have, or is larger than any broker accepts.
    """
    counts = np.asarray(partition_counts, np.int64)
    first_groups = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    groups = np.empty(columns.row_count, np.int32)
    group_sizes = np.zeros(int(first_groups[-1]), np.int64)
    misplaced = assign_groups(
        (first_groups[:-1], counts, np.asarray(sticky, np.int64)),
        columns.topic,
        columns.partition,
        columns.key,
        groups,
        group_sizes,
    )
    if misplaced >= 0:
        raise _no_such_partition(columns, misplaced, counts)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(group_sizes)])
    order = np.empty(columns.row_count, np.int64)
    order_by_group(groups, starts[:-1].copy(), order)
    rows = columns.timestamps, columns.key, columns.value, columns.headers
    out = np.empty(batch_size_max, np.uint8)
    for group in np.flatnonzero(group_sizes):
        topic_index = int(np.searchsorted(first_groups, group, side="right")) - 1
        topic, partition = columns.topics[topic_index], int(group - first_groups[topic_index])
        first, end = int(starts[group]), int(starts[group + 1])
        while first < end:
            place = out
            following, size = encode_columns(order, first, end, *rows, place, HEADER_SIZE)
            if following == first:  # no record fits
                if size > RECORD_SIZE_MAX_BYTES:
                    named = _key_named(columns.key, int(order[first]))
                    raise ClusterError(
                        ApiError.MESSAGE_TOO_LARGE,
                        f"{topic}-{partition}: a row {named} is a record of {size} bytes, which exceeds every limit",
                    )
                place = np.empty(HEADER_SIZE + size, np.uint8)
                following, size = encode_columns(order, first, first + 1, *rows, place, HEADER_SIZE)
            times = columns.timestamps[order[first:following]]
            yield _sealed(place[:size], topic, partition, times, codec)
            first = following


def _sealed(encoded: Bytes, topic: str, partition: int, timestamps: Int64s, codec: Codec) -> EncodedBatch:
    """Seal `encoded`, which has room for the header before its records.  timestamps: the times of these records."""
    record_count = len(timestamps)
    base_ms, newest_ms = int(timestamps[0]), int(timestamps.max())
    if codec is not Codec.NONE:
        body = memoryview(encoded.data)[HEADER_SIZE:]
        data = seal_batch(body, record_count, base_ms, newest_ms, codec)
    else:
        data = bytearray(encoded.data)
        seal(data, new_header(len(data), record_count, base_ms, newest_ms, codec))
    return EncodedBatch(topic, partition, record_count, data)


def _no_such_partition(columns: Columns, row: int, counts: Int64s) -> ClusterError:
    topic = 0 if columns.topic is None else int(columns.topic[row])
    assert columns.partition is not None
    partition = int(columns.partition.values[row])
    return ClusterError(
        ApiError.UNKNOWN_TOPIC_OR_PARTITION,
        f"a row {_key_named(columns.key, row)} names partition {partition} of topic {columns.topics[topic]}, which has "
        f"{counts[topic]} partitions",
        f"drop the column partition, or add partitions: {about('kctl topics add-partitions', columns.topics[topic])}",
    )


def _key_named(key: BytesColumn | None, row: int) -> str:
    """Return the key of a row for an error, because rows have no other name."""
    if key is None or (key.valid is not None and not key.valid[row >> 3] >> (row & 7) & 1):
        return "without a key"
    found = bytes(key.data[key.offsets[row] : key.offsets[row + 1]])
    return f"with the key {found[:KEY_SHOWN_MAX]!r}" + ("…" if len(found) > KEY_SHOWN_MAX else "")


def _column(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = table.column(table.schema.names.index(name))  # the first, if a name is repeated
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def _bytes_column(column: pa.Array) -> BytesColumn:
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    first = column.offset
    if len(column) == 0 or offsets is None:  # the offsets of an empty column may be missing or empty
        return BytesColumn(np.zeros(1, np.int32), np.empty(0, np.uint8), None)
    return BytesColumn(
        np.frombuffer(offsets, np.int32)[first : first + len(column) + 1],
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8),
        _bitmap(validity, first, len(column)),
    )


def _bitmap(validity: pa.Buffer | None, first: int, rows: int) -> Bytes | None:
    """Return Arrow's validity bitmap, shifted so that bit 0 is the first row."""
    if validity is None or rows == 0:
        return None
    bits = np.frombuffer(validity, np.uint8)
    if first == 0:
        return bits
    moved = np.unpackbits(bits, count=first + rows, bitorder="little")[first:]
    return np.packbits(moved, bitorder="little")


def _int32s(column: pa.Array) -> Int32s:
    """Return the values, including those of null rows."""
    values = column.buffers()[1]
    if values is None or len(column) == 0:
        return np.empty(0, np.int32)
    return np.frombuffer(values, np.int32)[column.offset : column.offset + len(column)]


def _partition_column(column: pa.Array) -> PartitionColumn:
    if column.type != pa.int32():
        column = column.cast(pa.int32())
    return PartitionColumn(_int32s(column), _bitmap(column.buffers()[0], column.offset, len(column)))


def _topics(column: pa.Array) -> tuple[Int32s, tuple[str, ...]]:
    if column.null_count:
        raise ClusterError(
            ApiError.INVALID_TOPIC, "a row has no topic", "fill the column topic, or set the option topic"
        )
    encoded = column.dictionary_encode()
    try:
        topics = tuple(encoded.dictionary.to_pylist())
    except UnicodeDecodeError as error:
        raise ClusterError(
            ApiError.INVALID_TOPIC,
            f"a row names the topic {error.object[:KEY_SHOWN_MAX]!r}, which is not UTF-8",
            "correct the column topic, or set the option topic",
        ) from None
    return _int32s(encoded.indices), topics


def _headers_column(column: pa.Array, key: BytesColumn | None) -> HeadersColumn:
    """Return the arrays of a list<struct<key, value>>; a null list means no headers."""
    entries = column.values
    keys, values = entries.field(0), entries.field(1)  # `field` keeps offsets and ignores the struct's nulls
    if entries.null_count or keys.null_count:  # perhaps in rows outside this slice of a column
        nameless = (
            row
            for row, found in enumerate(column)
            if found.is_valid and (found.values.null_count or found.values.field(0).null_count)
        )
        if (row := next(nameless, None)) is not None:
            named = f"a header of a row {_key_named(key, row)} has no key"
            raise ClusterError(ApiError.INVALID_RECORD, named, "give every header a key")
    ends = np.frombuffer(column.buffers()[1], np.int32) if len(column) else np.zeros(1, np.int32)
    return HeadersColumn(
        ends[column.offset :][: len(column) + 1],
        _bitmap(column.buffers()[0], column.offset, len(column)),
        _bytes_column(keys)._replace(valid=None),
        _bytes_column(values),
    )
