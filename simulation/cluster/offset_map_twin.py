"""A second implementation of `broker.log.cleaning.offset_map`: slow and obvious.

Tests compare the compiled code with it.  The mutants of the simulator change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker.log.cleaning.offset_map import ENTRY_SIZE, Survivors
from broker.log.cleaning.records import UncleanableError
from quorumlog.wire.record_batch import BatchHeader, Buffer


class OpenedRecord(NamedTuple):
    """One record.  start, end: its positions in the body.  rest: the position after its timestamp delta."""

    offset: int
    timestamp_delta: int
    key: bytes | None
    is_tombstone: bool
    start: int
    rest: int
    end: int


def open_records(body: Buffer, header: BatchHeader) -> Iterator[OpenedRecord]:
    """Yield each record of a body.

    Raises:
        UncleanableError: the records do not fill the body, or their offsets do not ascend within the batch.
    """
    data = bytes(body)
    position, previous = 0, -1
    for _ in range(header.record_count):
        start = position
        length, position = read_varint(data, position, len(data))
        end = position + length
        if length <= 0 or end > len(data):
            raise UncleanableError("length of a record")
        timestamp_delta, rest = read_varint(data, position + 1, end)
        offset_delta, position = read_varint(data, rest, end)
        if not previous < offset_delta <= header.last_offset_delta:
            raise UncleanableError("offset of a record")
        previous = offset_delta
        key_size, position = read_varint(data, position, end)
        key = None
        if key_size >= 0:
            key = data[position : position + key_size]
            position += key_size
        value_size, position = read_varint(data, position, end)
        if position + max(value_size, 0) > end:
            raise UncleanableError("size of a record")
        offset = header.base_offset + offset_delta
        yield OpenedRecord(offset, timestamp_delta, key, value_size < 0, start, rest, end)
        position = end
    if position != len(data):
        raise UncleanableError("bytes after the last record")


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return a zigzag number of at most ten bytes, and the position after it."""
    raw = 0
    for place in range(10):
        if position >= end:
            break
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            raw &= (1 << 64) - 1
            return (raw >> 1) ^ -(raw & 1), position
    raise UncleanableError("number of a record")


class OffsetMapTwin:
    """Has the methods of `OffsetMap`.  The offsets are in a dict."""

    def __init__(self, memory_max: int) -> None:
        self.entries_max = max(1, memory_max // ENTRY_SIZE)
        self.offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Return False if the map is full."""
        if key not in self.offsets and len(self.offsets) >= self.entries_max:
            return False
        self.offsets[key] = offset
        return True

    def latest(self, key: bytes) -> int:
        return self.offsets.get(key, -1)

    def note(self, body: Buffer, header: BatchHeader, first_offset: int) -> int | None:
        for record in open_records(body, header):
            if record.offset >= first_offset and record.key is not None and not self.put(record.key, record.offset):
                return record.offset
        return None

    def survivors(self, body: Buffer, header: BatchHeader, clean_end: int, *, removes_tombstones: bool) -> Survivors:
        kept = [
            record
            for record in open_records(body, header)
            if record.offset >= clean_end
            or (
                record.key is not None
                and self.latest(record.key) <= record.offset
                and not (record.is_tombstone and removes_tombstones)
            )
        ]
        records = b"".join([bytes(body[one.start : one.end]) for one in kept])
        newest_delta = max((one.timestamp_delta for one in kept), default=0)
        has_tombstone = any(one.is_tombstone and one.offset < clean_end for one in kept)
        return Survivors(len(kept), records, newest_delta, has_tombstone)
