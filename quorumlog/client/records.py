"""Encodes and decodes record batches in plain Python, for tools.

`kctl` handles hundreds of records and must start fast.  `pyspark_quorumlog` has a compiled version of this module, over
Arrow.  The two share the header (`quorumlog.wire.record_batch`), the compression, and the splitting of a fetched buffer
into batches (`open_batches`); a property test compares their results.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.compression import INFLATED_SIZE_MAX, compress, decompress
from quorumlog.wire.errors import ApiError
from quorumlog.wire.record_batch import (
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    RECORD_SIZE_MIN,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    BatchRefusal,
    Buffer,
    Codec,
    check_batches,
    parse_header,
    seal,
)

_INT32 = struct.Struct(">i")
OFFSET_MAX = 2**63 - 1

Headers = tuple[tuple[str, bytes | None], ...]


class NewRecord(NamedTuple):
    """A record to write."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers = ()


class Record(NamedTuple):
    """A record that was read.  append_time: True if the leader set the timestamp, and not the producer."""

    offset: int
    timestamp_ms: int
    append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Headers


class OpenBatch(NamedTuple):
    """A checked batch with its decompressed records.  position: where its contents begin in the fetched buffer."""

    header: BatchHeader
    body: Buffer
    position: int


# Writing


def build_batch(records: Sequence[NewRecord], codec: Codec = Codec.NONE) -> bytearray:
    """Return one sealed batch of at least one record, without a producer (`stamp` sets the producer)."""
    assert records
    base_timestamp = records[0].timestamp_ms
    body = bytearray()
    for delta, record in enumerate(records):
        _append_record(body, delta, base_timestamp, record)
    newest = max(record.timestamp_ms for record in records)
    return seal_batch(body, len(records), base_timestamp, newest, codec)


def seal_batch(
    body: Buffer, record_count: int, base_timestamp_ms: int, max_timestamp_ms: int, codec: Codec = Codec.NONE
) -> bytearray:
    """Compress encoded records, and add the header with the checksum."""
    contents = body if codec is Codec.NONE else compress(codec, body)
    batch = bytearray(HEADER_SIZE + len(contents))
    batch[HEADER_SIZE:] = contents
    seal(batch, new_header(len(batch), record_count, base_timestamp_ms, max_timestamp_ms, codec))
    return batch


def new_header(
    batch_size: int, record_count: int, base_timestamp_ms: int, max_timestamp_ms: int, codec: Codec
) -> BatchHeader:
    """Return the header of a batch of `batch_size` bytes, without offset and producer."""
    return BatchHeader(
        base_offset=0,
        batch_length=batch_size - LENGTH_END,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=int(codec),
        last_offset_delta=record_count - 1,
        base_timestamp=base_timestamp_ms,
        max_timestamp=max_timestamp_ms,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=record_count,
    )


def stamp(
    batch: bytearray | memoryview,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    is_transactional: bool = False,
) -> None:
    """Write the producer's id, epoch and first sequence number into a sealed batch, and update its checksum."""
    header = parse_header(batch)
    attributes = header.attributes | TRANSACTIONAL_FLAG if is_transactional else header.attributes
    seal(
        batch,
        header._replace(
            attributes=attributes, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
        ),
    )


def _append_record(body: bytearray, delta: int, base_timestamp_ms: int, record: NewRecord) -> None:
    content = bytearray(b"\x00")  # attributes: none are defined
    _append_varint(content, record.timestamp_ms - base_timestamp_ms)
    _append_varint(content, delta)
    _append_bytes(content, record.key)
    _append_bytes(content, record.value)
    _append_varint(content, len(record.headers))
    for name, value in record.headers:
        _append_bytes(content, name.encode())
        _append_bytes(content, value)
    _append_varint(body, len(content))
    body += content


def _append_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        _append_varint(out, -1)
    else:
        _append_varint(out, len(value))
        out += value


def _append_varint(out: bytearray, value: int) -> None:
    raw = (value << 1) ^ (value >> 63)
    while raw > 127:
        out.append((raw & 127) | 128)
        raw >>= 7
    out.append(raw)


# Reading


class UnreadableBatchError(RemoteProtocolError):
    """A batch that cannot be read.

    base_offset, end_offset: the range of its records, from its header; None if unknown.
    """

    def __init__(self, reason: str, base_offset: int | None, end_offset: int | None) -> None:
        super().__init__(f"{_batch_named(base_offset, end_offset)} cannot be read: {reason}")
        self.reason = reason
        self.base_offset = base_offset
        self.end_offset = end_offset

    def of(self, topic: str, index: int, next_step: str) -> ClusterError:
        """Return the error for a user, with the partition and the next step."""
        return ClusterError(ApiError.CORRUPT_MESSAGE, f"{topic}-{index}: {self.message}", next_step)


def _batch_named(base_offset: int | None, end_offset: int | None) -> str:
    if base_offset is None:
        return "a batch without a complete header"
    if end_offset is None:
        return f"the batch at offset {base_offset}"
    return f"the batch of offsets {base_offset} to {end_offset - 1}"


def whole_batches(data: Buffer) -> memoryview:
    """Return `data` without the incomplete batch at its end."""
    view = memoryview(data)
    position, end = 0, len(view)
    while position + HEADER_SIZE <= end:
        (length,) = _INT32.unpack_from(view, position + LENGTH_END - _INT32.size)
        if length < HEADER_SIZE - LENGTH_END or view[position + MAGIC_POSITION] != MAGIC:
            return view  # damage, which the reader of the batch reports
        if position + LENGTH_END + length > end:
            break
        position += LENGTH_END + length
    return view[:position]


class _Aborted:
    """Recognises the batches of aborted transactions in a fetched buffer, batch by batch, as Kafka's consumers do.

    An aborted transaction of a producer ends at the next marker of that producer, which aborts it.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._ahead = sorted(aborted, key=lambda each: each[1], reverse=True)
        self._open = set[int]()

    def has(self, header: BatchHeader) -> bool:
        """Return whether the next batch belongs to an aborted transaction; its marker does not.

        Call this for each batch, in order.
        """
        while self._ahead and self._ahead[-1][1] <= header.last_offset:
            self._open.add(self._ahead.pop()[0])
        if header.is_control:
            self._open.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._open


def open_batches(
    data: Buffer,
    end: int = OFFSET_MAX,
    inflated_size_max: int = INFLATED_SIZE_MAX,
    aborted: Iterable[tuple[int, int]] = (),
) -> Iterator[OpenBatch]:
    """Check and decompress the batches of a fetched buffer, one at a time.

    Control batches contain no records of users and are skipped, like the batches of aborted transactions.

    Args:
        end: an offset; stop before the first batch that begins at or after it.
        inflated_size_max: maximum size of the records of one batch after decompression, in bytes.
        aborted: (producer id, first offset) of each aborted transaction, as the answer to the fetch lists them.

    Raises:
        UnreadableBatchError: the next batch is damaged; the batches before it have been yielded.
    """
    view = whole_batches(data)
    left_out = _Aborted(aborted)
    position = 0
    while position < len(view):
        header = _plain_header(view, position)
        if header.base_offset >= end:
            return
        refusal = check_batches(view[position : position + header.size])
        if isinstance(refusal, BatchRefusal):
            raise unreadable(header, refusal.reason)
        if not left_out.has(header) and not header.is_control:
            contents = view[position + HEADER_SIZE : position + header.size]
            try:
                body = decompress(header.codec, contents, inflated_size_max) if header.codec else contents
            except RemoteProtocolError as error:
                raise unreadable(header, error.message) from error
            if header.record_count * RECORD_SIZE_MIN > len(body):
                raise unreadable(header, f"{header.record_count} records in {len(body)} bytes")
            yield OpenBatch(header, body, position + HEADER_SIZE)
        position += header.size


def unreadable(header: BatchHeader, reason: str) -> UnreadableBatchError:
    end_offset = header.end_offset if header.last_offset_delta >= 0 else None
    return UnreadableBatchError(reason, header.base_offset, end_offset)


def _plain_header(view: memoryview, position: int) -> BatchHeader:
    """Return the header at `position`, whose batch `whole_batches` found to be complete.

    Raises:
        UnreadableBatchError: there is no valid header, so the position of the next batch is unknown.
    """
    if position + HEADER_SIZE > len(view):
        raise UnreadableBatchError(f"{len(view) - position} bytes are too few for a header", None, None)
    header = parse_header(view, position)
    if header.magic != MAGIC:
        raise UnreadableBatchError(f"message format {header.magic}", header.base_offset, None)
    if not HEADER_SIZE <= header.size <= len(view) - position:
        raise UnreadableBatchError(f"batch length {header.batch_length}", header.base_offset, None)
    return header


def end_offset(data: Buffer) -> int | None:
    """Return the offset of the next fetch: the end offset of the last complete batch; None if no batch is complete.

    Raises:
        UnreadableBatchError: the data is not a batch.
    """
    view = whole_batches(data)
    position, last = 0, None
    while position < len(view):
        last = _plain_header(view, position)
        position += last.size
    return last.end_offset if last else None


def decode_batches(data: Buffer, first_offset: int = 0, end: int = OFFSET_MAX) -> Iterator[Record]:
    """Yield the records with `first_offset <= offset < end`.

    Raises:
        UnreadableBatchError: a batch is damaged.  All records before this batch have been yielded, and none of this
            batch.
    """
    for batch in open_batches(data, end):
        for record in _decode_batch(batch.header, memoryview(batch.body)):
            if first_offset <= record.offset < end:
                yield record


def _decode_batch(header: BatchHeader, body: memoryview) -> list[Record]:
    """Raises: UnreadableBatchError."""
    reader = _Reader(body)
    append_time = bool(header.attributes & TIMESTAMP_TYPE_FLAG)
    records: list[Record] = []
    previous = -1
    try:
        for _ in range(header.record_count):
            size = reader.varint()
            record_end = reader.position + size
            if size < 1 or record_end > len(body):
                raise reader.malformed("a record longer than its batch")
            reader.position += 1  # attributes: none are defined
            timestamp = header.base_timestamp + reader.varint()
            delta = reader.varint()
            if not previous < delta <= header.last_offset_delta:
                last = header.last_offset_delta
                raise reader.malformed(f"offset delta {delta} after {previous}; the batch ends with {last}")
            previous = delta
            key, value = reader.nullable(), reader.nullable()
            headers = reader.headers()
            if reader.position != record_end:
                raise reader.malformed("a record whose length differs from its length field")
            if append_time:
                timestamp = header.max_timestamp
            records.append(Record(header.base_offset + delta, timestamp, append_time, key, value, headers))
        if reader.position != len(body):
            raise reader.malformed("bytes after the last record")
    except _MalformedError as error:
        raise unreadable(header, str(error)) from None
    return records


class _MalformedError(Exception):
    """The problem of a malformed record, with its position in the batch."""


class _Reader:
    """Reads the body of one batch from start to end."""

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.position = 0

    def varint(self) -> int:
        raw = shift = 0
        while shift < 70:
            if self.position >= len(self.body):
                raise self.malformed("a number beyond the end")
            byte = self.body[self.position]
            self.position += 1
            raw |= (byte & 127) << shift
            if byte < 128:
                raw &= 0xFFFFFFFFFFFFFFFF
                return (raw >> 1) ^ -(raw & 1)
            shift += 7
        raise self.malformed("an unterminated number")

    def nullable(self) -> bytes | None:
        size = self.varint()
        if size == -1:
            return None
        if size < 0 or size > len(self.body) - self.position:
            raise self.malformed(f"{size} bytes, but only {len(self.body) - self.position} are left")
        self.position += size
        return bytes(self.body[self.position - size : self.position])

    def headers(self) -> Headers:
        count = self.varint()
        if count < 0 or count > len(self.body) - self.position:
            raise self.malformed(f"{count} headers")
        headers = []
        for _ in range(count):
            name = self.nullable()
            if name is None:
                raise self.malformed("a header without a name")
            headers.append((name.decode(errors="replace"), self.nullable()))
        return tuple(headers)

    def malformed(self, problem: str) -> _MalformedError:
        return _MalformedError(f"malformed record at byte {self.position} of the records: {problem}")
