"""Opens one batch for compaction: its keys, and the same batch without some of its records.

A batch keeps its base offset, last offset delta, leader epoch, producer fields and codec, and each record its offset
and timestamp.  So a consumer, a follower and the state of the producers see the same log with fewer records in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.compression import InflatedSizeError, compress, decompress
from quorumlog.wire.record_batch import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    Buffer,
    seal,
)

TIMESTAMP_MAX: Final = 2**63 - 1
_VARINT_SHIFT_MAX: Final = 63


class UncleanableError(Exception):
    """The log cannot be cleaned, because of the contents of a batch.  The message names the offset and the cause."""


class OpenedRecord(NamedTuple):
    """One record in an inflated body: its bytes are at `start` to `end`, its fields behind the timestamp at `rest`."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool
    start: int
    rest: int
    end: int


def open_body(batch: Buffer, header: BatchHeader, inflated_max: int) -> bytes:
    """Return the records of a batch, decompressed.

    Raises:
        UncleanableError: they inflate to more than `inflated_max` bytes, or are malformed.
    """
    try:
        body = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], inflated_max)
    except InflatedSizeError as error:
        raise _bad(header, f"inflates to more than {inflated_max} bytes") from error
    except RemoteProtocolError as error:
        raise _bad(header, f"cannot be opened: {error.message}") from error
    return bytes(body)


def open_records(body: bytes, header: BatchHeader) -> Iterator[OpenedRecord]:
    """Yield each record in an inflated body.

    Raises:
        UncleanableError: the records do not fill the body, or their offsets do not ascend within the batch.
    """
    position, previous = 0, -1
    size = len(body)
    try:
        for _ in range(header.record_count):
            start = position
            length, position = _varint(body, position)
            end = position + length
            if length <= 0 or end > size:
                raise _bad(header, f"has a record of {length} bytes, {size - position} are left")
            timestamp_delta, rest = _varint(body, position + 1)
            offset_delta, position = _varint(body, rest)
            if not previous < offset_delta <= header.last_offset_delta:
                raise _bad(header, f"has offset delta {offset_delta} after {previous}")
            previous = offset_delta
            key_size, position = _varint(body, position)
            key = None
            if key_size >= 0:
                key = body[position : position + key_size]
                position += key_size
            value_size, position = _varint(body, position)
            if position + max(value_size, 0) > end:
                raise _bad(header, f"has a record at offset {header.base_offset + offset_delta} that is cut off")
            yield OpenedRecord(
                header.base_offset + offset_delta,
                header.base_timestamp + timestamp_delta,
                key,
                value_size < 0,
                start,
                rest,
                end,
            )
            position = end
    except IndexError as error:
        raise _bad(header, "has a record that is cut off") from error
    if position != size:
        raise _bad(header, f"has {size - position} bytes after its last record")


def rebuild(
    header: BatchHeader, body: bytes, kept: Sequence[OpenedRecord], delete_horizon_ms: int | None = None
) -> bytes:
    """Return the batch with only the records in `kept`, of which there is at least one.

    delete_horizon_ms: the time from which its tombstones may be removed; None: it already has one, or needs none.  As
        in Kafka, it becomes the base timestamp, and attribute bit 6 says so.  The timestamps of records stay the same.
    """
    assert kept, "a batch without records is written by `emptied`"
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if delete_horizon_ms is None:
        records = b"".join([body[one.start : one.end] for one in kept])
    else:
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = min(delete_horizon_ms, TIMESTAMP_MAX)
        records = b"".join([_with_timestamp(body, one, one.timestamp - base_timestamp) for one in kept])
    newest = header.max_timestamp
    if not attributes & TIMESTAMP_TYPE_FLAG:
        newest = max(one.timestamp for one in kept)
    packed = compress(header.codec, records)
    rebuilt = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=newest,
        record_count=len(kept),
        batch_length=HEADER_SIZE - LENGTH_END + len(packed),
    )
    return _sealed(rebuilt, packed)


def emptied(header: BatchHeader) -> bytes:
    """Return the batch without records: its offsets and its producer's sequence numbers remain."""
    return _sealed(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG),
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            record_count=0,
            batch_length=HEADER_SIZE - LENGTH_END,
        ),
        b"",
    )


def filler(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """Return a batch without records that replaces the removed batches in this range of offsets, of one epoch."""
    return _sealed(
        BatchHeader(
            base_offset=base_offset,
            batch_length=HEADER_SIZE - LENGTH_END,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=end_offset - base_offset - 1,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            base_sequence=NO_SEQUENCE,
            record_count=0,
        ),
        b"",
    )


def is_filler(header: BatchHeader) -> bool:
    """Return whether the batch has no records and no producer, so that any part of it may stand for its offsets."""
    return header.record_count == 0 and not header.has_producer_id and not header.is_control


def _sealed(header: BatchHeader, body: bytes) -> bytes:
    batch = bytearray(HEADER_SIZE) + body
    seal(batch, header)
    return bytes(batch)


def _with_timestamp(body: bytes, record: OpenedRecord, delta: int) -> bytes:
    """Return the bytes of a record with another timestamp delta."""
    _, content = _varint(body, record.start)
    fields = body[content : content + 1] + _encode_varint(delta) + body[record.rest : record.end]
    return _encode_varint(len(fields)) + fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag number and the position after it.  Raises IndexError at the end of `data`."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            raise IndexError("number of more than ten bytes")


def _encode_varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bad(header: BatchHeader, problem: str) -> UncleanableError:
    return UncleanableError(f"the batch at offset {header.base_offset} {problem}")
