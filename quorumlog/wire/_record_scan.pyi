from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Headers = tuple[tuple[str, bytes | None], ...]

class Record(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    append_time: bool
    key: bytes | None
    value: bytes | None
    headers: Headers

def scan(
    body: bytes | bytearray | memoryview,
    count: int,
    base_timestamp: int,
    oldest_timestamp: int,
    newest_timestamp: int,
    /,
) -> tuple[int, int, int, int, int]: ...
def encode(
    records: list[tuple[int, bytes | None, bytes | None, Headers]], base_timestamp: int, reserve: int, /
) -> tuple[bytearray, int]: ...
def decode(
    body: bytes | bytearray | memoryview,
    count: int,
    topic: str,
    partition: int,
    base_offset: int,
    last_delta: int,
    base_timestamp: int,
    append_timestamp: int | None,
    first_offset: int,
    end_offset: int,
    /,
) -> tuple[list[Record], int, int, int]: ...
def apply_offsets(
    records: list[Record], groups: dict[bytes, dict[bytes, bytes]], other: Callable[[Record], object], /
) -> int: ...

class KeyOffsets:
    def __new__(cls, keys_max: int, secret: bytes, /) -> KeyOffsets: ...
    def __len__(self) -> int: ...
    def note(
        self,
        body: bytes | bytearray | memoryview,
        count: int,
        base_offset: int,
        last_delta: int,
        first_offset: int,
        /,
    ) -> tuple[int, int]: ...
    def select(
        self,
        body: bytes | bytearray | memoryview,
        count: int,
        base_offset: int,
        last_delta: int,
        clean_end: int,
        removes_tombstones: bool,
        /,
    ) -> tuple[int, int, int, int, bool, bytes | None]: ...

def shift_timestamps(records: bytes | bytearray | memoryview, count: int, change: int, /) -> bytes: ...
def murmur2(data: bytes | bytearray | memoryview, /) -> int: ...

# Arrays: of numpy, or any contiguous buffers of the same type.

_Bytes = npt.NDArray[np.uint8]
_Int32s = npt.NDArray[np.int32]
_Int64s = npt.NDArray[np.int64]
_Filled = tuple[_Int32s, _Bytes, _Bytes]
_Given = tuple[_Int32s, _Bytes, _Bytes | None]

def count_headers(data: bytes | bytearray | memoryview, spans: _Int64s, /) -> tuple[int, tuple[int, int] | None]: ...
def decode_columns(
    data: bytes | bytearray | memoryview,
    spans: _Int64s,
    first_offset: int,
    end_offset: int,
    records: tuple[_Int64s, _Int64s, _Int32s],
    key: _Filled | None,
    value: _Filled | None,
    headers: tuple[_Int32s, _Filled, _Filled] | None,
    /,
) -> tuple[int, tuple[int, int] | None]: ...
def encode_columns(
    order: _Int64s,
    first: int,
    end: int,
    timestamps: _Int64s,
    key: _Given | None,
    value: _Given | None,
    headers: tuple[_Int32s, _Bytes | None, _Given, _Given] | None,
    out: _Bytes,
    position: int,
    /,
) -> tuple[int, int]: ...
def assign_groups(
    topics: tuple[_Int64s, _Int64s, _Int64s],
    row_topics: _Int32s | None,
    partitions: tuple[_Int32s, _Bytes | None] | None,
    key: _Given | None,
    groups: _Int32s,
    group_sizes: _Int64s,
    /,
) -> int: ...
def order_by_group(groups: _Int32s, group_starts: _Int64s, order: _Int64s, /) -> None: ...
