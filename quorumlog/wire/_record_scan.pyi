from typing import NamedTuple

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
def murmur2(data: bytes | bytearray | memoryview, /) -> int: ...
