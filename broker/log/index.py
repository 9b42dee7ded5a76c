"""The sparse index of one segment: offset -> position, and the newest timestamp before that position.

In memory it has three arrays.  On disk it is an append-only file of checksummed chunks, written at checkpoints and when
a segment is sealed, so that no restart has to read a whole segment.  A truncated or damaged chunk ends the file; the
missing entries are restored from the batch headers.  The index is only a hint: every reader checks the batch header to
which an entry points.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from crc32c import crc32c

_CHUNK_HEAD = struct.Struct("<II")  # entries, CRC-32C of their bytes
_ENTRY_SIZE = 4 + 4 + 8


class IndexEntry(NamedTuple):
    """The start of a batch.  newest_before: the newest timestamp of all batches before it in the segment."""

    offset: int
    position: int
    newest_before: int


class SegmentIndex:
    """The entries in the order of the log; offsets are stored relative to the segment's base."""

    __slots__ = ("_base", "_newest", "_offsets", "_positions", "persisted")

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._offsets = array("I")
        self._positions = array("I")
        self._newest = array("q")
        self.persisted = 0  # number of entries in the file; -1: the file is invalid and must be rewritten

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def memory_size(self) -> int:
        return _ENTRY_SIZE * len(self._offsets)

    def add(self, offset: int, position: int, newest_before: int) -> None:
        self._offsets.append(offset - self._base)
        self._positions.append(position)
        self._newest.append(newest_before)

    def last_position(self) -> int:
        """Return the position of the last entry; 0, the start of the segment, if the index is empty."""
        return self._positions[-1] if self._positions else 0

    def by_offset(self, offset: int) -> IndexEntry:
        """Return the last entry at or before `offset`."""
        return self._entry(bisect_right(self._offsets, offset - self._base) - 1)

    def by_position(self, position: int) -> IndexEntry:
        """Return the last entry at or before `position`."""
        return self._entry(bisect_right(self._positions, position) - 1)

    def by_timestamp(self, timestamp: int) -> IndexEntry:
        """Return the last entry before which everything is older than `timestamp`."""
        return self._entry(bisect_left(self._newest, timestamp) - 1)

    def _entry(self, at: int) -> IndexEntry:
        if at < 0:
            return IndexEntry(self._base, 0, -1)
        return IndexEntry(self._base + self._offsets[at], self._positions[at], self._newest[at])

    def truncate(self, position: int) -> None:
        """Drop the entries at or after `position`."""
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:], self._positions[keep:], self._newest[keep:]

    def take_chunk(self) -> bytes:
        """Return the entries that the file lacks, as one chunk to append; count them as persisted."""
        first, self.persisted = self.persisted, len(self._offsets)
        if first == self.persisted:
            return b""
        body = b"".join(_little(column[first:]) for column in (self._offsets, self._positions, self._newest))
        return _CHUNK_HEAD.pack(self.persisted - first, crc32c(body)) + body

    @classmethod
    def load(cls, base_offset: int, data: bytes, position_limit: int) -> SegmentIndex:
        """Return the index in the file's `data`, up to the first damage; omit entries at or above `position_limit`."""
        index = cls(base_offset)
        at = 0
        while at + _CHUNK_HEAD.size <= len(data):
            count, crc = _CHUNK_HEAD.unpack_from(data, at)
            body = data[at + _CHUNK_HEAD.size : at + _CHUNK_HEAD.size + count * _ENTRY_SIZE]
            if count == 0 or len(body) != count * _ENTRY_SIZE or crc32c(body) != crc:
                break
            _extend(index._offsets, body[: 4 * count])
            _extend(index._positions, body[4 * count : 8 * count])
            _extend(index._newest, body[8 * count :])
            at += _CHUNK_HEAD.size + len(body)
        index.persisted = len(index) if at == len(data) else -1
        index.truncate(position_limit)
        if index.persisted != len(index):
            index.persisted = -1
        return index


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _extend(column: array[int], data: bytes) -> None:
    more = array(column.typecode)
    more.frombytes(data)
    if sys.byteorder == "big":
        more.byteswap()
    column.extend(more)
