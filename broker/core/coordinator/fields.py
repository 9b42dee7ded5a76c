"""Fields of internal records, in Kafka's binary encoding.

Each length is checked against the bytes that are left before anything is read, so garbage cannot make the reader
allocate more than its input.
"""

from __future__ import annotations

import struct
from uuid import UUID

_MAX_VARINT_BYTES = 5
STRING_MAX_BYTES = 0x7FFF


class BadRecord(ValueError):
    """The bytes of a key or value do not have the format of its version."""


class Reader:
    """Reads fields in order.  Each method raises BadRecord if the bytes do not contain its field.

    flexible: strings, bytes and arrays have compact lengths, and tagged fields exist.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.flexible = False

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise BadRecord(f"a field of {size} bytes at {self._at} does not fit into {len(self._data)} bytes")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int8(self) -> int:
        return int.from_bytes(self._take(1), "big", signed=True)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def _uvarint(self) -> int:
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise BadRecord(f"a varint before {self._at} is longer than {_MAX_VARINT_BYTES} bytes")

    def nullable_string(self) -> str | None:
        size = self._uvarint() - 1 if self.flexible else self.int16()
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise BadRecord(f"a string before {self._at} is not UTF-8") from error

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise BadRecord(f"a string before {self._at} is null")
        return text

    def binary(self) -> bytes:
        return self._take(self._uvarint() - 1 if self.flexible else self.int32())

    def nullable_binary(self) -> bytes | None:
        size = self._uvarint() - 1 if self.flexible else self.int32()
        return None if size == -1 else self._take(size)

    def nullable_count(self) -> int:
        """Return the length of an array as `count` does; 0 for null."""
        return max(0, self.count(lowest=-1))

    def count(self, lowest: int = 0) -> int:
        """Return the length of an array, which has at least one byte per element.  lowest: -1 permits null."""
        count = self._uvarint() - 1 if self.flexible else self.int32()
        if count == -1 and lowest < 0:
            return count
        if not 0 <= count <= len(self._data) - self._at:
            raise BadRecord(f"an array of {count} elements before {self._at} does not fit")
        return count

    def skip_tags(self) -> None:
        """Skip the tagged fields, which only flexible versions have."""
        if self.flexible:
            for _ in range(self._uvarint()):
                self._uvarint()
                self._take(self._uvarint())

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields by their number, each as bytes."""
        tags: dict[int, bytes] = {}
        for _ in range(self._uvarint()):
            tag = self._uvarint()
            if tags and tag <= max(tags):
                raise BadRecord(f"tag {tag} before {self._at} is not in order")
            tags[tag] = self._take(self._uvarint())
        return tags

    def end(self) -> None:
        """Check that no bytes follow the last field."""
        if self._at != len(self._data):
            raise BadRecord(f"{len(self._data) - self._at} bytes follow the last field")


def open_flexible(data: bytes, version: int) -> Reader:
    """Return a reader of the fields of a flexible value.  Raises: BadRecord: the value has another version."""
    reader = Reader(data)
    found = reader.int16()
    if found != version:
        raise BadRecord(f"value version {found} is unknown")
    reader.flexible = True
    return reader


def int8(value: int) -> bytes:
    return struct.pack(">b", value)


def int16(value: int) -> bytes:
    return struct.pack(">h", value)


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def int64(value: int) -> bytes:
    return struct.pack(">q", value)


def string(text: str | None) -> bytes:
    """Return the length and the bytes of a string.  Raises: BadRecord: it has more than 32,767 bytes."""
    if text is None:
        return int16(-1)
    data = text.encode()
    if len(data) > STRING_MAX_BYTES:
        raise BadRecord(f"a string of {len(data)} bytes is longer than {STRING_MAX_BYTES}")
    return int16(len(data)) + data


def binary(data: bytes) -> bytes:
    return int32(len(data)) + data


# -- fields of flexible versions


def uvarint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def compact_string(text: str | None) -> bytes:
    """Return the compact length and the bytes of a string.  Raises: BadRecord: it has more than 32,767 bytes."""
    if text is None:
        return b"\0"
    data = text.encode()
    if len(data) > STRING_MAX_BYTES:
        raise BadRecord(f"a string of {len(data)} bytes is longer than {STRING_MAX_BYTES}")
    return uvarint(len(data) + 1) + data


def compact_binary(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


def tagged(fields: dict[int, bytes]) -> bytes:
    """Return tagged fields by their number, each as bytes."""
    parts = [uvarint(len(fields))]
    for tag in sorted(fields):
        parts += [uvarint(tag), uvarint(len(fields[tag])), fields[tag]]
    return b"".join(parts)
