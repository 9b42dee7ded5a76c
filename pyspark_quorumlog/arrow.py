"""Fetched batches as Arrow record batches in Spark's row schema, and Arrow columns as record batches.

`compiled` walks the records; this module contains the work that is done once per buffer.  It imports numba and pyarrow,
so only code that runs in a Spark worker's task may import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_quorumlog import compiled
from quorumlog.client.records import OpenBatch, new_header, open_batches, seal_batch, unreadable
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.wire.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_FLAG, Buffer, Codec, seal

HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS_TYPE = pa.list_(pa.field("element", HEADER_TYPE))

Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_FLAGS = {"key": compiled.WANTS_KEY, "value": compiled.WANTS_VALUE, "headers": compiled.WANTS_HEADERS}

PIECE_SIZE_BYTES = 32 << 20
RECORD_SIZE_MAX_BYTES = 64 << 20
KEY_SHOWN_MAX = 40
"""Maximum number of bytes of a key in an error message."""

_NO_BYTES: Bytes = np.empty(0, np.uint8)
_NO_INT32: Int32s = np.empty(0, np.int32)
_NO_BINARY = (_NO_INT32, _NO_BYTES, _NO_BYTES)
_NO_HEADERS = (_NO_INT32, _NO_BYTES, _NO_INT32, _NO_BYTES, _NO_INT32, _NO_BYTES, _NO_BYTES)


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

    Yields one Arrow batch, or several if the record batches decompress to more than `PIECE_SIZE_BYTES`; none without
    rows.

    Args:
        columns: of `reference.COLUMNS`, in their order.
        aborted: the aborted transactions whose records are left out, as for `open_batches`.

    Raises:
        UnreadableBatchError: a batch is damaged or a record of it is malformed.
    """
    for piece in _pieces(open_batches(data, end_offset, aborted=aborted)):
        bodies, spans = _spans(data, piece)
        try:
            rows = _decode_spans(bodies, spans, first_offset, end_offset, topic, partition, columns)
        except _MalformedError as error:
            position = error.position - int(spans[error.span, compiled.SPAN_START])
            reason = f"malformed record at byte {position} of the records"
            raise unreadable(piece[error.span].header, reason) from None
        if rows.num_rows:
            yield rows


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
    bodies: Bytes,
    spans: Int64s,
    first_offset: int,
    end_offset: int,
    topic: str,
    partition: int,
    columns: Sequence[str],
) -> pa.RecordBatch:
    rows_max = int(spans[:, compiled.SPAN_COUNT].sum())
    size = int((spans[:, compiled.SPAN_END] - spans[:, compiled.SPAN_START]).sum())
    with_headers = "headers" in columns
    wanted = sum(flag for name, flag in _FLAGS.items() if name in columns)
    headers_max = 0
    if with_headers:
        headers_max, position = compiled.count_headers(bodies, spans)
        if headers_max < 0:
            raise _MalformedError(headers_max, position)
    offsets, timestamps = np.empty(rows_max, np.int64), np.empty(rows_max, np.int64)
    timestamp_types = np.empty(rows_max, np.int32)
    key, value = (
        _Binary.empty(rows_max, size) if name in columns else _Binary.empty(0, 0) for name in ("key", "value")
    )
    header_counts = np.zeros(rows_max + 1 if with_headers else 1, np.int32)
    header_size = size if with_headers else 0
    header_key, header_value = _Binary.empty(headers_max, header_size), _Binary.empty(headers_max, header_size)
    rows, position = compiled.decode(
        *(bodies, spans, first_offset, end_offset, offsets, timestamps, timestamp_types),
        *(*key.outputs, *value.outputs, wanted, header_counts, *header_key.outputs, *header_value.outputs),
    )
    if rows < 0:
        raise _MalformedError(rows, position)
    made: Mapping[str, Callable[[], pa.Array]] = {
        "key": lambda: key.array(rows, pa.binary()),
        "value": lambda: value.array(rows, pa.binary()),
        "topic": lambda: _constant_text(topic, rows),
        "partition": lambda: pa.array(np.full(rows, partition, np.int32)),
        "offset": lambda: pa.array(offsets[:rows]),
        "timestamp": lambda: pa.Array.from_buffers(_FIELDS["timestamp"], rows, [None, pa.py_buffer(timestamps)]),
        "timestampType": lambda: pa.array(timestamp_types[:rows]),
        "headers": lambda: _headers_array(header_counts, header_key, header_value, rows),
    }
    return pa.RecordBatch.from_arrays([made[name]() for name in columns], schema=read_schema(columns))


def _spans(data: Buffer, opened: Sequence[OpenBatch]) -> tuple[Bytes, Int64s]:
    """Return one array of bytes with every batch's records, and each batch's positions in it.

    Without compression, the array is the fetched buffer itself.
    """
    compressed = any(batch.header.codec for batch in opened)
    source: Buffer = b"".join(batch.body for batch in opened) if compressed else data
    spans = np.empty((len(opened), compiled.SPAN_FIELDS), np.int64)
    inflated_size = 0
    for index, (header, body, position) in enumerate(opened):
        start = inflated_size if compressed else position
        append_time = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_FLAG else compiled.NO_APPEND_TIME
        spans[index] = (
            *(start, start + len(body), header.base_offset),
            *(header.base_timestamp, append_time, header.record_count, header.last_offset_delta),
        )
        inflated_size += len(body)
    return np.frombuffer(source, np.uint8) if len(source) else _NO_BYTES, spans


@dataclass(slots=True)
class _Binary:
    """The arrays of a binary or text column, which compiled code fills."""

    offsets: Int32s
    data: Bytes
    valid: Bytes  # one byte per row

    @classmethod
    def empty(cls, rows: int, size: int) -> _Binary:
        """Return arrays with room for `rows` and `size` bytes in total.  Their memory is not initialized."""
        offsets = np.empty(rows + 1, np.int32)
        offsets[0] = 0
        return cls(offsets, np.empty(size, np.uint8), np.empty(rows, np.uint8))

    @property
    def outputs(self) -> tuple[Int32s, Bytes, Bytes]:
        return self.offsets, self.data, self.valid

    def array(self, rows: int, kind: pa.DataType) -> pa.Array:
        valid = self.valid[:rows]
        bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(kind, rows, buffers)


def _headers_array(counts: Int32s, keys: _Binary, values: _Binary, rows: int) -> pa.Array:
    total = int(counts[rows])
    entries = pa.StructArray.from_arrays(
        [keys.array(total, pa.string()), values.array(total, pa.binary())], fields=list(HEADER_TYPE)
    )
    filled = np.diff(counts[: rows + 1]) > 0  # a record without headers has NULL, as in Spark's Kafka source
    bitmap = None if filled.all() else pa.py_buffer(np.packbits(filled, bitorder="little"))
    return pa.Array.from_buffers(HEADERS_TYPE, rows, [bitmap, pa.py_buffer(counts)], children=[entries])


def _constant_text(text: str, rows: int) -> pa.Array:
    encoded = text.encode()
    offsets = np.arange(0, (rows + 1) * len(encoded), len(encoded), dtype=np.int32)[: rows + 1]
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(encoded * rows)])


class _MalformedError(Exception):
    """A malformed record.  span, position: its location.  result: of the compiled function; it contains the span."""

    def __init__(self, result: int, position: int) -> None:
        super().__init__(result, position)
        self.span = compiled.MALFORMED - result
        self.position = position


# Writing


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of rows to write, as arrays for compiled code.  An empty array means that the column is missing."""

    row_count: int
    key: tuple[Int32s, Bytes, Bytes]  # offsets, data, validity bitmap
    value: tuple[Int32s, Bytes, Bytes]
    headers: tuple[Int32s, Bytes, Int32s, Bytes, Int32s, Bytes, Bytes]
    partition: tuple[Int32s, Bytes]  # values, validity bitmap
    timestamps: Int64s  # ms since 1970
    topic: Int32s  # index into the topics
    topics: tuple[str, ...]

    @classmethod
    def of(cls, table: pa.Table | pa.RecordBatch, timestamps: Int64s, topic: str | None) -> Columns:
        """Return the columns key, value, headers, topic and partition; others are ignored.

        Args:
            timestamps: each row's, in ms since 1970.
            topic: if given, it applies to every row.

        Raises:
            ClusterError: a row has no topic, or a header has no name.
        """
        names = table.schema.names
        key = _binary_input(_column(table, "key")) if "key" in names else _NO_BINARY
        codes, topics = (_NO_INT32, (topic,)) if topic is not None else _topics(_column(table, "topic"))
        return cls(
            table.num_rows,
            key,
            _binary_input(_column(table, "value")),
            _headers_input(_column(table, "headers"), key) if "headers" in names else _NO_HEADERS,
            _int_input(_column(table, "partition")) if "partition" in names else (_NO_INT32, _NO_BYTES),
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
    """Return the rows as sealed batches of at most `batch_size_max` bytes before compression, grouped by partition.

    A larger record is a batch of its own, since the topic decides whether it is too large.  Rows of a partition keep
    their order.  `partition_counts` and `sticky` (the partition of rows without key and partition) are by topic.

    Raises:
        ClusterError: a row names a partition that its topic does not have, or is larger than any broker accepts.
    """
    counts = np.asarray(partition_counts, np.int64)
    first_groups = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    groups = np.empty(columns.row_count, np.int32)
    group_sizes = np.zeros(int(first_groups[-1]), np.int64)
    misplaced = compiled.assign(
        *(columns.topic, first_groups[:-1], counts, np.asarray(sticky, np.int64), *columns.partition, *columns.key),
        *(groups, group_sizes),
    )
    if misplaced >= 0:
        raise _no_such_partition(columns, int(misplaced), counts)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(group_sizes)])
    order = np.empty(columns.row_count, np.int64)
    compiled.order_by_group(groups, starts[:-1], order)
    out = np.empty(batch_size_max, np.uint8)
    for group in np.flatnonzero(group_sizes):
        topic_index = int(np.searchsorted(first_groups, group, side="right")) - 1
        topic, partition = columns.topics[topic_index], int(group - first_groups[topic_index])
        first, end = int(starts[group]), int(starts[group + 1])
        while first < end:
            place = out
            following, size = compiled.encode(
                *(order, first, end, columns.timestamps, *columns.key, *columns.value, *columns.headers),
                *(place, HEADER_SIZE),
            )
            if following == compiled.TOO_SMALL:
                if size > RECORD_SIZE_MAX_BYTES:
                    named = _key_named(columns.key, int(order[first]))
                    raise ClusterError(
                        ApiError.MESSAGE_TOO_LARGE,
                        f"{topic}-{partition}: a row {named} is a record of {size} bytes, which exceeds every limit",
                    )
                place = np.empty(HEADER_SIZE + size, np.uint8)
                following, size = compiled.encode(
                    *(order, first, first + 1, columns.timestamps, *columns.key, *columns.value, *columns.headers),
                    *(place, HEADER_SIZE),
                )
            times = columns.timestamps[order[first:following]]
            yield _sealed(place[:size], topic, partition, times, codec)
            first = following


def _sealed(encoded: Bytes, topic: str, partition: int, timestamps: Int64s, codec: Codec) -> EncodedBatch:
    """Seal `encoded`, which has room for the header before its records.  timestamps: of these records."""
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
    topic = int(columns.topic[row]) if len(columns.topic) else 0
    partition = int(columns.partition[0][row])
    return ClusterError(
        ApiError.UNKNOWN_TOPIC_OR_PARTITION,
        f"a row {_key_named(columns.key, row)} names partition {partition} of topic {columns.topics[topic]}, which has "
        f"{counts[topic]} partitions",
    )


def _key_named(key: tuple[Int32s, Bytes, Bytes], row: int) -> str:
    """Return the key of a row for an error, because rows have no other name."""
    offsets, data, valid = key
    if not len(offsets) or (len(valid) and not valid[row >> 3] >> (row & 7) & 1):
        return "without a key"
    found = bytes(data[offsets[row] : offsets[row + 1]])
    return f"with the key {found[:KEY_SHOWN_MAX]!r}" + ("…" if len(found) > KEY_SHOWN_MAX else "")


def _column(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    column = table.column(table.schema.names.index(name))  # the first, if a name is repeated
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def _binary_input(column: pa.Array) -> tuple[Int32s, Bytes, Bytes]:
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())
    validity, offsets, data = column.buffers()
    first = column.offset
    if offsets is None:  # Arrow permits this for an empty column
        return np.zeros(1, np.int32), _NO_BYTES, _NO_BYTES
    return (
        np.frombuffer(offsets, np.int32)[first : first + len(column) + 1],
        np.frombuffer(data, np.uint8) if data is not None and data.size else _NO_BYTES,
        _bitmap(validity, first, len(column)),
    )


def _bitmap(validity: pa.Buffer | None, first: int, rows: int) -> Bytes:
    """Return Arrow's validity bitmap, shifted so that bit 0 is the first row."""
    if validity is None or rows == 0:
        return _NO_BYTES
    bits = np.frombuffer(validity, np.uint8)
    if first == 0:
        return bits
    moved = np.unpackbits(bits, count=first + rows, bitorder="little")[first:]
    return np.packbits(moved, bitorder="little")


def _int_input(column: pa.Array) -> tuple[Int32s, Bytes]:
    if column.type != pa.int32():
        column = column.cast(pa.int32())
    validity, values = column.buffers()
    if values is None or len(column) == 0:
        return _NO_INT32, _NO_BYTES
    first = column.offset
    return np.frombuffer(values, np.int32)[first : first + len(column)], _bitmap(validity, first, len(column))


def _topics(column: pa.Array) -> tuple[Int32s, tuple[str, ...]]:
    if column.null_count:
        raise ClusterError(
            ApiError.INVALID_TOPIC, "a row has no topic", "fill the column topic, or set the option topic"
        )
    encoded = column.dictionary_encode()
    return _int_input(encoded.indices)[0], tuple(encoded.dictionary.to_pylist())


def _headers_input(
    column: pa.Array, key: tuple[Int32s, Bytes, Bytes]
) -> tuple[Int32s, Bytes, Int32s, Bytes, Int32s, Bytes, Bytes]:
    """Return the arrays of a list<struct<key, value>>; a null list means no headers."""
    entries = column.values
    keys, values = entries.field(0), entries.field(1)  # `field` keeps offsets and ignores the struct's nulls
    if entries.null_count or keys.null_count:
        row = next(
            row for row, found in enumerate(column) if any(not one or one["key"] is None for one in found.as_py() or ())
        )
        named = f"a header of a row {_key_named(key, row)} has no key"
        raise ClusterError(ApiError.INVALID_RECORD, named, "give every header a key")
    counts = np.frombuffer(column.buffers()[1], np.int32) if len(column) else np.zeros(1, np.int32)
    key_offsets, key_data, _ = _binary_input(keys)
    return (
        counts[column.offset : column.offset + len(column) + 1],
        _bitmap(column.buffers()[0], column.offset, len(column)),
        *(key_offsets, key_data),
        *_binary_input(values),
    )
