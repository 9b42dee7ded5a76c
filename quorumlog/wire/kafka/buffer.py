"""Reading untrusted bytes within bounds, and the varints of the protocol's flexible versions.

A count or length is checked against the remaining bytes before memory is allocated for it.  So a short message can
never cause a large allocation.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from quorumlog.errors import RemoteProtocolError

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")

ELEMENTS_MAX: Final = 2_000_000
"""Maximum number of array elements and tagged fields of one message."""
REQUEST_ELEMENTS_MAX: Final = 100_000
"""The same limit for a client's request.  Reading such a request takes about 0.2 s, and blocks the event loop."""


class Reader:
    """A cursor over one message.  Every method raises RemoteProtocolError instead of reading past the end."""

    __slots__ = ("elements_left", "end", "position", "view")

    def __init__(self, view: memoryview, position: int = 0, elements_max: int = ELEMENTS_MAX) -> None:
        self.view = view
        self.position = position
        self.end = len(view)
        self.elements_left = elements_max

    def left(self) -> int:
        return self.end - self.position

    def _take(self, size: int) -> int:
        position = self.position
        if size < 0 or size > self.end - position:
            raise RemoteProtocolError(f"message ends early: {size} bytes at {position} of {self.end}")
        self.position = position + size
        return position

    def int8(self) -> int:
        value: int = _INT8.unpack_from(self.view, self._take(1))[0]
        return value

    def int16(self) -> int:
        value: int = _INT16.unpack_from(self.view, self._take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack_from(self.view, self._take(4))[0]
        return value

    def int64(self) -> int:
        value: int = _INT64.unpack_from(self.view, self._take(8))[0]
        return value

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack_from(self.view, self._take(layout.size))

    def uuid(self) -> UUID:
        position = self._take(16)
        return UUID(bytes=bytes(self.view[position : position + 16]))

    def uvarint(self) -> int:
        """Read an unsigned varint of at most 5 bytes, below 2**32."""
        position = self.position
        if position < self.end and (first := self.view[position]) < 0x80:  # almost always
            self.position = position + 1
            return first
        value = shift = 0
        while True:
            byte = self.view[self._take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise RemoteProtocolError(f"varint longer than 5 bytes at {self.position}")
        if value >> 32:
            raise RemoteProtocolError(f"varint over 32 bits at {self.position}")
        return value

    def bytes(self, size: int) -> memoryview:
        """Read `size` bytes as a slice of the message, without a copy."""
        position = self._take(size)
        return self.view[position : position + size]

    def _text(self, size: int) -> str:
        try:
            return str(self.bytes(size), "utf-8")
        except UnicodeDecodeError as cause:
            raise RemoteProtocolError(f"text at {self.position - size} is not UTF-8") from cause

    def string(self, flexible: bool) -> str:
        text = self.nullable_string(flexible)
        if text is None:
            raise RemoteProtocolError(f"null text at {self.position} where a value is required")
        return text

    def nullable_string(self, flexible: bool) -> str | None:
        size = self.uvarint() - 1 if flexible else self.int16()
        if size < -1:
            raise RemoteProtocolError(f"text of negative length {size} at {self.position}")
        return None if size == -1 else self._text(size)

    def nullable_bytes(self, flexible: bool) -> memoryview | None:
        size = self.uvarint() - 1 if flexible else self.int32()
        if size < -1:
            raise RemoteProtocolError(f"bytes of negative length {size} at {self.position}")
        return None if size == -1 else self.bytes(size)

    def count(self, flexible: bool, element_size: int) -> int:
        """Read the length of an array whose elements take at least `element_size` bytes each.  Null counts as empty."""
        return self.nullable_count(flexible, element_size) or 0

    def nullable_count(self, flexible: bool, element_size: int) -> int | None:
        count = self.uvarint() - 1 if flexible else self.int32()
        if count == -1:
            return None
        if count < 0 or count * element_size > self.end - self.position:
            raise RemoteProtocolError(f"array of {count} elements at {self.position} with {self.left()} bytes left")
        self.elements_left -= count
        if self.elements_left < 0:
            raise RemoteProtocolError(f"too many elements: {count} more at {self.position}")
        return count

    def _tag_count(self) -> int:
        count = self.uvarint()
        if count:
            if 2 * count > self.end - self.position:
                raise RemoteProtocolError(f"{count} tagged fields at {self.position} with {self.left()} bytes left")
            self.elements_left -= count
            if self.elements_left < 0:
                raise RemoteProtocolError(f"too many elements: {count} tagged fields at {self.position}")
        return count

    def skip_tags(self) -> None:
        position = self.position
        if position < self.end and self.view[position] == 0:  # almost always
            self.position = position + 1
            return
        for _ in range(self._tag_count()):
            self.uvarint()
            self._take(self.uvarint())

    def tags(self) -> dict[int, memoryview]:
        return {self.uvarint(): self.bytes(self.uvarint()) for _ in range(self._tag_count())}


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def string(text: str, flexible: bool) -> bytes:
    data = text.encode()
    return uvarint(len(data) + 1) + data if flexible else _INT16.pack(len(data)) + data


def nullable_string(text: str | None, flexible: bool) -> bytes:
    if text is None:
        return b"\0" if flexible else b"\xff\xff"
    return string(text, flexible)


def count(number: int, flexible: bool) -> bytes:
    """Return the prefix of a non-null array with `number` elements."""
    return uvarint(number + 1) if flexible else _INT32.pack(number)


def nullable_bytes_size(size: int, flexible: bool) -> bytes:
    """Return the prefix of a value of `size` bytes; size -1 means null."""
    return uvarint(size + 1) if flexible else _INT32.pack(size)
