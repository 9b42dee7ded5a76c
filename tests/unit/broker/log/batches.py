"""Record batches for tests, built byte by byte, without code of the product."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence

from crc32c import crc32c

Compress = Callable[[bytes], bytes]
COMPRESSORS: dict[int, Compress] = {0: bytes, 1: gzip.compress}


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def make_record(offset_delta: int, timestamp_delta: int, value: bytes) -> bytes:
    body = (
        b"\x00" + varint(timestamp_delta) + varint(offset_delta) + varint(-1) + varint(len(value)) + value + varint(0)
    )
    return varint(len(body)) + body


def make_batch(
    values: Sequence[bytes] = (b"value",),
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    timestamps: Sequence[int] | None = None,
    max_timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    last_offset_delta: int | None = None,
    record_count: int | None = None,
    batch_length: int | None = None,
    crc: int | None = None,
    compress: Compress | None = None,
) -> bytes:
    """Return a batch that is valid, except for the fields that the arguments make invalid."""
    times = list(timestamps) if timestamps is not None else [1_000] * len(values)
    body = b"".join(make_record(at, times[at] - times[0], value) for at, value in enumerate(values))
    body = (compress or COMPRESSORS.get(attributes & 7, bytes))(body)
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        len(values) - 1 if last_offset_delta is None else last_offset_delta,
        times[0] if times else -1,
        (max(times) if times else -1) if max_timestamp is None else max_timestamp,
        *producer,
        len(values) if record_count is None else record_count,
    )
    covered = tail + body
    length = 9 + len(covered) if batch_length is None else batch_length
    checksum = crc32c(covered) if crc is None else crc
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, checksum) + covered
