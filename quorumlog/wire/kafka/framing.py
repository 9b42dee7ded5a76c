"""Splits a byte stream into frames: four bytes of size, then that many bytes.

Theory of operation.  Small frames arrive many at a time, so they are received into one staging buffer and copied out.
The staging buffer begins with 4 KiB, and doubles up to 64 KiB whenever arriving bytes fill it.  The rest of a frame
that does not fit there is received directly into a buffer of its own.  This buffer begins with at most 1 MiB, and
doubles as bytes arrive, so a peer that only announces a large frame gets no more.  `frame_max_bytes` bounds one frame;
the subclass bounds the number of frames that wait (`pause_reading`).

`FrameProtocol` is a buffered protocol; a loop whose transports only know `data_received` can also drive it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.kafka.codec import FRAME_SIZE

_STAGING_MIN_BYTES: Final = 4 << 10
_STAGING_MAX_BYTES: Final = 64 << 10
_FIRST_BUFFER_BYTES: Final = 1 << 20
_GUESS_BYTES: Final = 9
"""Number of first bytes that `_guess` needs."""
_TLS: Final = "TLS, which is not supported: use the security protocol PLAINTEXT"
_SETTINGS: Final = b"\x04\x00\x00\x00\x00\x00"
"""The bytes of a SETTINGS frame of HTTP/2 after its size, which has three bytes: a type, flags, and stream 0."""


def _guess(begin: bytes) -> str:
    """Name another protocol that begins with these bytes, for the reader of an error; empty if none is known."""
    for text, name in (
        (b"\x16\x03", _TLS),
        (b"\x15\x03", _TLS),
        (b"HTTP", "HTTP: this is the address of an HTTP server"),
        (b"PRI ", "HTTP/2, as gRPC does: use a control address"),
        (b"GET ", "HTTP: use the HTTP port of the node"),
        (b"HEAD", "HTTP: use the HTTP port of the node"),
        (b"POST", "HTTP: use the HTTP port of the node"),
    ):
        if begin.startswith(text):
            return f"; the peer seems to speak {name}"
    if begin[3:9] == _SETTINGS:
        return "; the peer seems to speak HTTP/2, as gRPC does: this is a control address"
    return ""


def write_parts(transport: asyncio.WriteTransport, parts: Sequence[bytes | bytearray | memoryview]) -> None:
    """Write all parts in one call.  Do nothing on a lost connection, and pause the writer as `write` does.

    From Python 3.12 on, asyncio's `writelines` does neither: it does not pause the writer (CVE-2024-12254, fixed in
    3.12.9 and 3.13.2), and raises a TypeError on a lost connection.  In 3.11, it joins the parts, like this function.
    The `writelines` of uvloop does both, without copying.
    """
    if type(transport).__module__.startswith("asyncio."):
        if not transport.is_closing():
            transport.write(b"".join(parts))
    else:
        transport.writelines(parts)


class FrameProtocol(asyncio.BufferedProtocol, ABC):
    """Calls `frame_received` for every whole frame, in order, and `frame_refused` once for a size out of bounds.

    After `frame_refused` nothing more is read from the stream.
    """

    def __init__(self, frame_max_bytes: int) -> None:
        self._frame_max_bytes = frame_max_bytes
        self._staging = bytearray(_STAGING_MIN_BYTES)
        self._staged = 0
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._filled = 0
        self._refused = False

    # --- for subclasses ---

    @abstractmethod
    def frame_received(self, frame: memoryview) -> None:
        """Process one frame, given without its size.

        The memory belongs to the receiver; no other code writes to it.
        """

    @abstractmethod
    def frame_refused(self, error: RemoteProtocolError) -> None:
        """Handle a received size that is out of bounds."""

    def frame_growing(self, size: int, expected: int) -> None:
        """Note that the buffer of a large frame was created with `size` bytes, or grew by them.

        expected: the size of the whole frame in bytes.
        """

    @property
    def mid_frame(self) -> bool:
        """Return whether only a part of a frame has arrived."""
        return self._frame is not None or self._staged > 0

    @property
    def frame_filled(self) -> int:
        """Return the number of received bytes of the current large frame, or 0 without a large frame."""
        return 0 if self._frame is None else self._filled

    @property
    def guess_from_part(self) -> str:
        """Return text for an error that names another protocol, if a frame that arrived in part looks like it.

        Correct only before the first whole frame.
        """
        if self._frame is None:
            return _guess(bytes(self._staging[: min(self._staged, _GUESS_BYTES)]))
        return _guess(FRAME_SIZE.pack(self._frame_size) + self._frame[: min(self._filled, _GUESS_BYTES)])

    # --- asyncio ---

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._refused:
            return memoryview(self._staging)
        if self._frame is None:
            return memoryview(self._staging)[self._staged :]
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._refused:
            return
        if self._frame is None:
            self._staged += nbytes
            full = self._staged == len(self._staging)
            self._cut()
            if full and len(self._staging) < _STAGING_MAX_BYTES:
                self._staging = self._staging + bytes(len(self._staging))
            return
        self._filled += nbytes
        if self._filled == self._frame_size:
            frame, self._frame = self._frame, None
            self.frame_received(memoryview(frame))
        elif self._filled == len(self._frame):
            # Grow here, not in `get_buffer`: the subclass may now stop reading, and libuv would call a callback that
            # has just been unset.
            self._grow(self._frame)

    def data_received(self, data: bytes) -> None:
        """Receive bytes from a transport without buffered protocols."""
        left = memoryview(data)
        while left and not self._refused:
            buffer = self.get_buffer(len(left))
            size = min(len(buffer), len(left))
            buffer[:size] = left[:size]
            left = left[size:]
            self.buffer_updated(size)

    # --- cutting ---

    def _cut(self) -> None:
        """Take all whole frames from the staging buffer.  Move the rest to its front, or to a large frame's buffer."""
        start = 0
        while self._staged - start >= FRAME_SIZE.size:
            size: int = FRAME_SIZE.unpack_from(self._staging, start)[0]
            if not 0 < size <= self._frame_max_bytes:
                self._refused = True
                self._staged = 0
                text = f"frame of {size} bytes; the limit is {self._frame_max_bytes}"
                self.frame_refused(RemoteProtocolError(text + _guess(FRAME_SIZE.pack(size))))
                return
            begin = start + FRAME_SIZE.size
            if begin + size > self._staged:
                if FRAME_SIZE.size + size > len(self._staging):
                    self._begin_large(begin, size)
                    return
                break
            frame = self._staging[begin : begin + size]
            start = begin + size
            self.frame_received(memoryview(frame))
            if self._refused:
                return
        if start:
            left = self._staged - start
            self._staging[:left] = self._staging[start : self._staged]
            self._staged = left

    def _begin_large(self, begin: int, size: int) -> None:
        have = self._staged - begin
        self._frame = bytearray(min(size, _FIRST_BUFFER_BYTES))
        self._frame[:have] = memoryview(self._staging)[begin : self._staged]
        self._frame_size = size
        self._filled = have
        self._staged = 0
        self.frame_growing(len(self._frame), size)

    def _grow(self, frame: bytearray) -> None:
        grown = bytearray(min(self._frame_size, 2 * len(frame)))
        grown[: len(frame)] = frame
        self._frame = grown
        self.frame_growing(len(grown) - len(frame), self._frame_size)

    def refuse_rest(self) -> None:
        """Read nothing more from the stream."""
        self._refused = True
