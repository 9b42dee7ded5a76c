"""Opens one batch for a timestamp look-up: bounded decompression, then record after record.

A body that inflates beyond the limit, or is malformed, raises; the look-up then uses the batch's header.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.compression import decompress
from quorumlog.wire.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_FLAG, BatchHeader, Buffer, Codec

INFLATED_MAX = 64 << 20


class RecordPlace(NamedTuple):
    timestamp: int
    offset: int


class MalformedError(ValueError):
    """The body of a batch contradicts its header."""


def first_at_or_after(batch: bytes, header: BatchHeader, timestamp: int, start_offset: int) -> RecordPlace | None:
    """Return the first record with at least `timestamp` and at least `start_offset`, or None.

    Raises:
        MalformedError: the batch cannot be opened.
    """
    body = inflate(batch[HEADER_SIZE:], header.codec)
    for place in record_places(body, header):
        if place.timestamp >= timestamp and place.offset >= start_offset:
            return place
    return None


def record_places(body: Buffer, header: BatchHeader) -> Iterator[RecordPlace]:
    """Yield the timestamp and offset of each record in an inflated body.

    Raises:
        MalformedError: the records do not fill the body.
    """
    position = 0
    append_time_ms = header.max_timestamp if header.attributes & TIMESTAMP_TYPE_FLAG else None
    try:
        for _ in range(header.record_count):
            length, position = _varint(body, position)
            end = position + length
            if length < 0 or end > len(body):
                raise MalformedError(f"record of {length} bytes in a body of {len(body)}")
            delta, after = _varint(body, position + 1)
            offset_delta, _ = _varint(body, after)
            timestamp = header.base_timestamp + delta if append_time_ms is None else append_time_ms
            yield RecordPlace(timestamp, header.base_offset + offset_delta)
            position = end
    except IndexError as error:
        raise MalformedError("record cut off") from error


def inflate(body: bytes, codec: Codec) -> Buffer:
    """Return the decompressed body, of at most `INFLATED_MAX` bytes.

    Raises:
        MalformedError: the body is larger, or does not have this codec.
    """
    try:
        return decompress(codec, body, INFLATED_MAX)
    except RemoteProtocolError as error:
        raise MalformedError(str(error)) from error


def _varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return a zigzag number and the position after it.  Raises IndexError at the end of `data`."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift > 63:
            raise MalformedError("number of more than ten bytes")
