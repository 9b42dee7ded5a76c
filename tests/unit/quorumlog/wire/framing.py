"""Records built byte by byte, and bodies of batches that contradict their header, each in one way."""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from quorumlog.wire.compression import compress
from quorumlog.wire.record_batch import Codec
from quorumlog.wire.record_framing import Problem
from tests.unit.broker.log.batches import varint

HUGE = 2**31 - 1


class BadBody(NamedTuple):
    """A body whose record of index `record` has the problem, in a batch that counts `record_count` records."""

    name: str
    body: bytes
    record_count: int
    problem: Problem
    record: int


def record(
    offset_delta: int,
    *,
    timestamp_delta: int = 0,
    attributes: bytes = b"\0",
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    headers: bytes = b"\0",
    rest: bytes = b"",
    length: int | None = None,
) -> bytes:
    """Return one encoded record.

    key, value, headers: as they are encoded.  length: the claimed length, if it differs from the real one.
    """
    content = attributes + varint(timestamp_delta) + varint(offset_delta) + key + value + headers + rest
    return varint(len(content) if length is None else length) + content


def body_of(*records: bytes) -> bytes:
    return b"".join(records)


def bad_bodies() -> list[BadBody]:
    good = record(0)
    endless = b"\xff" * 40
    bad = Problem
    return [
        BadBody("offset deltas 5 and 9", body_of(record(5), record(9)), 2, bad.OFFSET_DELTA, 0),
        BadBody("offset deltas 1 and 0", body_of(record(1), record(0)), 2, bad.OFFSET_DELTA, 0),
        BadBody("offset delta twice", body_of(good, record(0)), 2, bad.OFFSET_DELTA, 1),
        BadBody("negative offset delta", body_of(record(-1)), 1, bad.OFFSET_DELTA, 0),
        BadBody("record cut off", body_of(good, record(1))[:-1], 2, bad.RECORD_LENGTH, 1),
        BadBody("record missing", good, 2, bad.BATCH_SHORT, 1),
        BadBody("no record", b"", 1, bad.BATCH_SHORT, 0),
        BadBody("count of 2^31-1", good, HUGE, bad.BATCH_SHORT, 1),
        BadBody("one record too many", body_of(good, record(1)), 1, bad.BATCH_REST, 1),
        BadBody("trailing byte", good + b"\0", 1, bad.BATCH_REST, 1),
        BadBody("endless length", endless, 1, bad.NUMBER_TOO_LARGE, 0),
        BadBody("endless timestamp", varint(41) + b"\0" + endless, 1, bad.NUMBER_TOO_LARGE, 0),
        BadBody("timestamp of 65 bits", record(0, key=b"\xff" * 9 + b"\x02" + b"\0" * 9), 1, bad.NUMBER_TOO_LARGE, 0),
        BadBody("key length of 33 bits", record(0, key=b"\xff" * 4 + b"\x10"), 1, bad.NUMBER_TOO_LARGE, 0),
        BadBody("length cut off", good + b"\x80", 2, bad.NUMBER_CUT_OFF, 1),
        BadBody("timestamp cut off", varint(6) + b"\0" + b"\xff" * 5 + good, 2, bad.NUMBER_CUT_OFF, 0),
        BadBody("negative length", record(0, length=-1), 1, bad.RECORD_LENGTH, 0),
        BadBody("length of zero", record(0, length=0), 1, bad.RECORD_LENGTH, 0),
        BadBody("length of 2^31-1", record(0, length=HUGE), 1, bad.RECORD_LENGTH, 0),
        BadBody("record longer than its fields", record(0, rest=b"\0"), 1, bad.RECORD_REST, 0),
        BadBody("key of length -2", record(0, key=varint(-2)), 1, bad.KEY_LENGTH, 0),
        BadBody("key of 2^31-1 bytes", record(0, key=varint(HUGE)), 1, bad.KEY_LENGTH, 0),
        BadBody("key one byte too long", record(0, key=varint(5) + b"k"), 1, bad.KEY_LENGTH, 0),
        BadBody("value one byte too long", record(0, value=varint(3) + b"v"), 1, bad.VALUE_LENGTH, 0),
        BadBody("header key one byte too long", record(0, headers=b"\x02\x08kv\x01"), 1, bad.HEADER_KEY, 0),
        BadBody("header value one byte too long", record(0, headers=b"\x02\x02h\x04v"), 1, bad.HEADER_VALUE, 0),
        BadBody("key reaches into the next record", body_of(record(0, key=varint(5)), record(1)), 2, bad.KEY_LENGTH, 0),
        BadBody("value of length -2", record(0, value=varint(-2)), 1, bad.VALUE_LENGTH, 0),
        BadBody("value of 2^31-1 bytes", record(0, value=varint(HUGE)), 1, bad.VALUE_LENGTH, 0),
        BadBody("negative header count", record(0, headers=varint(-1)), 1, bad.HEADER_COUNT, 0),
        BadBody("2^31-1 headers", record(0, headers=varint(HUGE)), 1, bad.HEADER_COUNT, 0),
        BadBody("more headers than fit", record(0, headers=varint(2), rest=b"\0\0\0"), 1, bad.HEADER_COUNT, 0),
        BadBody("null header key", record(0, headers=b"\x02\x01\x01"), 1, bad.HEADER_KEY, 0),
        BadBody("header key too long", record(0, headers=b"\x02\x7ekv"), 1, bad.HEADER_KEY, 0),
        BadBody("header value of length -2", record(0, headers=b"\x02\x02h\x03"), 1, bad.HEADER_VALUE, 0),
        BadBody("header value too long", record(0, headers=b"\x02\x02h\x7e"), 1, bad.HEADER_VALUE, 0),
    ]


def sealed(
    body: bytes,
    count: int,
    codec: Codec = Codec.NONE,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    base_timestamp: int = 1_000,
    max_timestamp: int = 1_000,
) -> bytes:
    """Return a batch around `body`, with a consistent header and a matching checksum."""
    contents = compress(codec, body)
    times = (base_timestamp, max_timestamp)
    covered = struct.pack(">hiqqqhii", int(codec), count - 1, *times, *producer, count) + contents
    return struct.pack(">qiibI", 0, 9 + len(covered), -1, 2, crc32c(covered)) + covered
