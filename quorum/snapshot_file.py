"""The format of a snapshot, in its file and on the wire.

    magic | header frame | chunk frames … | footer frame

A frame consists of the payload's length, the kind, a CRC-32C of kind and payload, and the payload.  The header holds
the wall time at which the snapshot was taken, the end of the part of the log that it replaces, and the voters and the
target in force at that end.  The chunks belong to the state machine and are opaque to this module.  The footer holds
the number of chunks, and the size and the CRC-32C of everything before it.  So a snapshot that is truncated, or mixed
from two snapshots, is detected.  Data that does not match is refused; nothing is skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c

from quorum import codec
from quorum.codec import MalformedError, require
from quorum.core.types import LogBase, LogEnd, TargetVoters, Voters
from quorumlog.wire.v1 import quorum_pb2 as pb

VERSION = 1
CHUNK_MAX_BYTES = 64 << 20

_MAGIC = b"QLSNAP\r\n"
_FRAME = struct.Struct(">IBI")  # payload length, kind, CRC-32C of kind and payload
_BASE = struct.Struct(">HiqI")  # version, epoch, end offset, length of the voters; voters and target follow
_TIMESTAMP = struct.Struct(">q")
_FOOTER = struct.Struct(">IQI")  # chunks, bytes before the footer, CRC-32C of them

_HEADER_KIND, _CHUNK_KIND, _FOOTER_KIND = 1, 2, 3


class SnapshotHeader(msgspec.Struct, frozen=True):
    """The header of a snapshot.  timestamp_ms: wall clock of the node that took it; retention uses this time."""

    base: LogBase
    timestamp_ms: int


def encode_base(base: LogBase) -> bytes:
    """Return the header's encoding of a log base, which `decode_base` reads."""
    voters = codec.control_to(base.voters).SerializeToString(deterministic=True)
    target = codec.control_to(TargetVoters(base.target)).SerializeToString(deterministic=True)
    return _BASE.pack(VERSION, base.end.epoch, base.end.offset, len(voters)) + voters + target


def decode_base(data: bytes) -> LogBase:
    """Return the log base that a snapshot's header encodes.

    Raises:
        MalformedError: the data is damaged, or of a newer version.
    """
    require(len(data) >= _BASE.size, f"the header has only {len(data)} bytes")
    version, epoch, offset, length = _BASE.unpack_from(data)
    require(version == VERSION, f"version {version} is unknown; this program knows version {VERSION}")
    voters = _control(data[_BASE.size : _BASE.size + length])
    target = _control(data[_BASE.size + length :])
    if not isinstance(voters, Voters) or not isinstance(target, TargetVoters):
        raise MalformedError("the header names no voters")
    end = LogEnd(codec.check_epoch(epoch, "epoch"), codec.check_offset(offset, "offset"))
    base = LogBase(end, voters, target.target)
    require(encode_base(base) == data, "the header has fields that this version does not know")
    return base


def _control(data: bytes) -> object:
    message = pb.ControlRecord()
    codec.parse(message, data)
    return codec.control_from(message)


class SnapshotWriter:
    """Encodes a snapshot piece by piece: `header`, `chunk`…, `footer`.  Each call returns the bytes of its piece.

    A chunk has 1 to `CHUNK_MAX_BYTES` bytes.  size: the bytes returned so far.
    """

    def __init__(self) -> None:
        self.size = 0
        self._crc = 0
        self._chunks = 0

    def header(self, header: SnapshotHeader) -> bytes:
        payload = _TIMESTAMP.pack(header.timestamp_ms) + encode_base(header.base)
        return self._count(_MAGIC + _frame(_HEADER_KIND, payload))

    def chunk(self, data: bytes) -> bytes:
        assert 0 < len(data) <= CHUNK_MAX_BYTES, f"chunk of {len(data)} bytes"
        self._chunks += 1
        return self._count(_frame(_CHUNK_KIND, data))

    def footer(self) -> bytes:
        return self._count(_frame(_FOOTER_KIND, _FOOTER.pack(self._chunks, self.size, self._crc)))

    def _count(self, piece: bytes) -> bytes:
        self._crc = crc32c(piece, self._crc)
        self.size += len(piece)
        return piece


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), kind, crc32c(payload, crc32c(bytes([kind])))) + payload


class SnapshotParser:
    """Decodes a snapshot that arrives in pieces of any size, and yields its chunks.

    Every method raises MalformedError if the bytes were not made by a `SnapshotWriter`.
    header: None until its frame is complete.  complete: whether the footer was read.
    """

    def __init__(self) -> None:
        self.header: SnapshotHeader | None = None
        self.complete = False
        self._waiting = bytearray()
        self._size = 0  # parsed
        self._crc = 0
        self._chunks = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the chunks that are complete by now.  The caller must exhaust the iterator."""
        self._waiting += data
        if self._size == 0 and len(self._waiting) >= len(_MAGIC):
            self._take(len(_MAGIC), _MAGIC)
        while self._size > 0 and len(self._waiting) >= _FRAME.size:
            length, kind, crc = _FRAME.unpack_from(self._waiting)
            require(not self.complete, "it continues after its footer")
            place = f"the frame at byte {self._size}"
            require(length <= CHUNK_MAX_BYTES, f"{place} has {length} bytes, above the limit of {CHUNK_MAX_BYTES}")
            if len(self._waiting) < _FRAME.size + length:
                return
            payload = bytes(memoryview(self._waiting)[_FRAME.size : _FRAME.size + length])
            require(crc32c(payload, crc32c(bytes([kind]))) == crc, f"{place} has a wrong checksum")
            require((self.header is None) == (kind == _HEADER_KIND), f"{place} has the unexpected kind {kind}")
            if kind == _FOOTER_KIND:
                self._check_footer(payload)
            self._take(_FRAME.size + length)
            if kind == _HEADER_KIND:
                self.header = self._header(payload)
            elif kind == _CHUNK_KIND:
                self._chunks += 1
                yield payload
            else:
                require(kind == _FOOTER_KIND, f"{place} has the unknown kind {kind}")
                self.complete = True

    def finish(self) -> SnapshotHeader:
        """Check that the snapshot is complete, after all bytes have been fed, and return its header."""
        if self.header is None or not self.complete or self._waiting:
            raise MalformedError(f"it does not end with its footer, but at byte {self._size + len(self._waiting)}")
        return self.header

    def _take(self, size: int, expected: bytes | None = None) -> None:
        taken = bytes(memoryview(self._waiting)[:size])
        require(expected is None or taken == expected, "it is not a snapshot")
        del self._waiting[:size]
        self._crc = crc32c(taken, self._crc)
        self._size += size

    def _header(self, payload: bytes) -> SnapshotHeader:
        require(len(payload) > _TIMESTAMP.size, f"the header has only {len(payload)} bytes")
        (timestamp_ms,) = _TIMESTAMP.unpack_from(payload)
        return SnapshotHeader(decode_base(payload[_TIMESTAMP.size :]), codec.check_offset(timestamp_ms, "timestamp_ms"))

    def _check_footer(self, payload: bytes) -> None:
        require(len(payload) == _FOOTER.size, f"the footer has {len(payload)} bytes, not {_FOOTER.size}")
        require(
            _FOOTER.unpack(payload) == (self._chunks, self._size, self._crc), "its footer does not match its content"
        )


class SnapshotInfo(msgspec.Struct, frozen=True):
    """One durable snapshot; `size` in bytes."""

    header: SnapshotHeader
    size: int

    @property
    def end(self) -> LogEnd:
        return self.header.base.end


def snapshot_name(end: LogEnd) -> str:
    """Return the file name of a snapshot.  Names sort by offset, then by epoch."""
    return f"{end.offset:020d}-{end.epoch:010d}.snapshot"
