"""Opening one batch, for a timestamp look-up: bounded decompression, then record after record.

The only place of the broker that looks into a body.  What cannot be opened here (a codec whose library is not
installed, a body that inflates beyond the limit or is malformed) raises, and the look-up falls back on the header.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from quorumlog.wire.record_batch import HEADER_SIZE, BatchHeader, Codec

INFLATED_MAX = 64 << 20
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEAD = 16
_INT32 = struct.Struct(">i")


class RecordPlace(NamedTuple):
    timestamp: int
    offset: int


class MalformedError(ValueError):
    """The body is not what the header says."""


def first_at_or_after(batch: bytes, header: BatchHeader, timestamp: int, start_offset: int) -> RecordPlace | None:
    """The first record that is as new as `timestamp` and not below `start_offset`; None if there is none.

    Raises:
        MalformedError: the batch cannot be opened.
    """
    body = inflate(batch[HEADER_SIZE:], header.codec)
    for place in record_places(body, header):
        if place.timestamp >= timestamp and place.offset >= start_offset:
            return place
    return None


def record_places(body: bytes, header: BatchHeader) -> Iterator[RecordPlace]:
    """Timestamp and offset of each record in an inflated body.

    Raises:
        MalformedError: the records do not fill the body.
    """
    position = 0
    try:
        for _ in range(header.record_count):
            length, position = _varint(body, position)
            end = position + length
            if length < 0 or end > len(body):
                raise MalformedError(f"record of {length} bytes in a body of {len(body)}")
            delta, after = _varint(body, position + 1)
            offset_delta, _ = _varint(body, after)
            yield RecordPlace(header.base_timestamp + delta, header.base_offset + offset_delta)
            position = end
    except IndexError as error:
        raise MalformedError("record cut off") from error


def inflate(body: bytes, codec: Codec) -> bytes:
    """At most `INFLATED_MAX` bytes.

    Raises:
        MalformedError: more than that, or not of this codec, or its library is not installed.
    """
    match codec:
        case Codec.NONE:
            return body
        case Codec.GZIP:
            return _inflate_gzip(body)
        case _:
            return _inflate_with_library(body, codec)


def _inflate_gzip(body: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    try:
        data = inflater.decompress(body, INFLATED_MAX)
    except zlib.error as error:
        raise MalformedError(str(error)) from error
    if not inflater.eof:
        raise MalformedError(f"gzip body is cut off or inflates beyond {INFLATED_MAX} bytes")
    return data


def _inflate_with_library(body: bytes, codec: Codec) -> bytes:
    try:
        cramjam = importlib.import_module("cramjam")
    except ImportError as error:
        raise MalformedError(f"no library for {codec.name.lower()}") from error
    try:
        if codec is Codec.SNAPPY:
            return _inflate_snappy(body, cramjam)
        return _inflate_into(getattr(cramjam, codec.name.lower()).decompress_into, body)
    except (cramjam.DecompressionError, struct.error) as error:
        raise MalformedError(str(error)) from error


def _inflate_into(decompress_into: Callable[[bytes, bytearray], int], body: bytes) -> bytes:
    """Into buffers of ours, each larger than the last: what the body claims of its own size counts for nothing."""
    size = max(1 << 16, 8 * len(body))
    while True:
        buffer = bytearray(min(size, INFLATED_MAX))
        try:
            return bytes(memoryview(buffer)[: decompress_into(body, buffer)])
        except Exception:  # "too small" and "damaged" look the same
            if size >= INFLATED_MAX:
                raise
        size *= 16


def _inflate_snappy(body: bytes, cramjam: Any) -> bytes:
    """One raw block, or the framing of the Java client: a head, then blocks with their lengths."""
    raw = cramjam.snappy.decompress_raw_into
    if not body.startswith(_XERIAL):
        return _inflate_into(raw, body)
    parts, total, position = [], 0, _XERIAL_HEAD
    while position < len(body):
        (length,) = _INT32.unpack_from(body, position)
        position += _INT32.size
        if not 0 <= length <= len(body) - position:
            raise MalformedError(f"snappy block of {length} bytes")
        parts.append(_inflate_into(raw, body[position : position + length]))
        total += len(parts[-1])
        if total > INFLATED_MAX:
            raise MalformedError(f"body inflates beyond {INFLATED_MAX} bytes")
        position += length
    return b"".join(parts)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number and the position after it.  Raises IndexError at the end of `data`."""
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
