"""Compression of record batches, with a limit on the decompressed size.

A batch of a megabyte can claim to contain ten gigabytes.  Therefore every codec here writes into a buffer of limited
size, and a batch that does not fit is refused.  For a block of snappy, the buffer has the size that the block declares.
This size must not exceed the block by more than the format permits.  The other codecs do not use a declared size.

gzip uses the standard library.  snappy, lz4 and zstd use cramjam, which is imported for the first batch that needs it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Set
from types import ModuleType
from typing import NamedTuple

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.record_batch import Buffer, Codec

INFLATED_SIZE_MAX = 128 << 20
_FIRST_GUESS = 8  # factor of the compressed size
_NEXT_GUESS = 4  # factor of the previous guess, up to the limit, until the contents fit

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 64 << 10
_BLOCK_LENGTH = struct.Struct(">i")
_LZ4_BLOCK_SIZE = 64 << 10
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_RESERVED, _LZ4_CONTENT_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM, _LZ4_INDEPENDENT = 3, 4, 8, 0x10, 0x20
_LZ4_SIZE = struct.Struct("<I")
_LZ4_SIZE_MASK = 0x7FFF_FFFF

_OF_CRAMJAM = (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
CODEC_NAMES = {codec.name.lower(): codec for codec in Codec}


class InflatedSizeError(RemoteProtocolError):
    """The contents exceed the caller's limit."""


class Recompression(NamedTuple):
    """The codec that a topic demands.  level: None for the codec's default, or for a codec without levels."""

    codec: Codec
    level: int | None = None


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Return `data`, compressed with the codec, or unchanged with `Codec.NONE`.

    level: higher is smaller and slower: -1 or 1 to 9 for gzip, 1 to 17 for lz4, -131072 to 22 for zstd.  None: the
        codec's default.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            compressor = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, wbits=31)
            return compressor.compress(data) + compressor.flush()
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return _compress_lz4(data, level)
        case Codec.ZSTD:
            return bytes(_cramjam().zstd.compress(_contiguous(data), level=level))


def decompress(codec: Codec, data: Buffer, size_max: int = INFLATED_SIZE_MAX) -> Buffer:
    """Return the contents of `data`, at most `size_max` bytes.  With `Codec.NONE`, return `data` itself, of any size.

    Raises:
        InflatedSizeError: the contents are larger.
        RemoteProtocolError: the data is malformed, or further bytes follow it.
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _gunzip(data, size_max)
        case Codec.SNAPPY:
            return _decompress_snappy(data, size_max)
        case Codec.LZ4 | Codec.ZSTD:
            return _decompress_frame(codec, data, size_max)


def java_problem(codec: Codec, data: Buffer) -> str:
    """Return the reason why Java clients cannot read data that `decompress` accepts; an empty string if they can.

    Kafka's reader of lz4 knows only a part of the frame format, and reads one frame.
    """
    if codec is not Codec.LZ4:
        return ""
    view = memoryview(data)
    flags = view[len(_LZ4_MAGIC)]
    if view[: len(_LZ4_MAGIC)] != _LZ4_MAGIC or flags & _LZ4_RESERVED:
        return "an lz4 batch begins with a frame that Java clients do not read"
    if not flags & _LZ4_INDEPENDENT:
        return "the blocks of an lz4 batch depend on each other, which Java clients do not read"
    position = len(_LZ4_MAGIC) + 3 + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    while size := _LZ4_SIZE.unpack_from(view, position)[0] & _LZ4_SIZE_MASK:
        position += _LZ4_SIZE.size + size + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    end = position + _LZ4_SIZE.size + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)
    return "" if end == len(view) else "an lz4 batch has a second frame, which Java clients do not read"


def unavailable_codecs(names: Set[str | None]) -> dict[str, str]:
    """Return the named codecs that this process cannot use, each with the reason."""
    needing = sorted(name for name in names if name is not None and CODEC_NAMES.get(name) in _OF_CRAMJAM)
    try:
        if needing:
            _cramjam()
    except ImportError as error:
        return {name: f"the Python package cramjam cannot be imported ({error})" for name in needing}
    return {}


def _cramjam() -> ModuleType:
    """Return the module; not imported at the top because most processes never need it."""
    import cramjam

    module: ModuleType = cramjam
    return module


def _contiguous(data: Buffer) -> Buffer:
    """Return the data in a form that cramjam accepts: an object that owns its bytes."""
    return data if isinstance(data, bytes | bytearray) else bytes(data)


def _gunzip(data: Buffer, size_max: int) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    try:
        contents = inflater.decompress(data, size_max + 1)
    except zlib.error as error:
        raise _malformed(Codec.GZIP, str(error)) from error
    if len(contents) > size_max:
        raise _too_large(Codec.GZIP, size_max)
    if not inflater.eof:
        raise _malformed(Codec.GZIP, "truncated")
    if inflater.unused_data:
        raise _malformed(Codec.GZIP, f"{len(inflater.unused_data)} bytes follow its end")
    return contents


def _decompress_frame(codec: Codec, data: Buffer, size_max: int) -> memoryview:
    """Decompress lz4 or zstd, which do not declare the size reliably: the buffer grows until the contents fit."""
    cramjam = _cramjam()
    into = cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
    source = _contiguous(data)
    size = min(max(len(source) * _FIRST_GUESS, 4096), size_max)
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: into(source, out)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise _malformed(codec, str(error)) from error
            if size >= size_max:
                raise _too_large(codec, size_max) from error
        size = min(size * _NEXT_GUESS, size_max)


def _decompress_snappy(data: Buffer, size_max: int) -> Buffer:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:  # librdkafka and kafka-python may send one raw block instead
        out = bytearray(_raw_snappy_size(view, 0, size_max))
        _decompress_raw_snappy(view, memoryview(out))
        return out
    blocks = []
    total, position = 0, len(_XERIAL_HEADER)
    while position < len(view):
        if position + _BLOCK_LENGTH.size > len(view):
            raise _malformed(Codec.SNAPPY, "truncated block length")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise _malformed(Codec.SNAPPY, f"block of {length} bytes, but only {len(view) - position} are left")
        block = view[position : position + length]
        blocks.append((block, _raw_snappy_size(block, total, size_max)))
        total += blocks[-1][1]
        position += length
    out = bytearray(total)
    filled = 0
    for block, size in blocks:
        _decompress_raw_snappy(block, memoryview(out)[filled : filled + size])
        filled += size
    return out


def _raw_snappy_size(block: memoryview, before: int, size_max: int) -> int:
    """Return the decompressed size that the block declares, plus `before`; the decompressor enforces this size."""
    cramjam = _cramjam()
    try:
        size = int(cramjam.snappy.decompress_raw_len(bytes(block)))
    except cramjam.DecompressionError as error:
        raise _malformed(Codec.SNAPPY, str(error)) from error
    if before + size > size_max:
        raise _too_large(Codec.SNAPPY, size_max)
    if size > 64 * len(block) + 64:  # the densest token yields 64 bytes from 3
        raise _malformed(Codec.SNAPPY, f"{len(block)} bytes that claim to be {size}")
    return size


def _decompress_raw_snappy(block: memoryview, out: memoryview) -> None:
    cramjam = _cramjam()
    try:
        size = cramjam.snappy.decompress_raw_into(bytes(block), out)
    except cramjam.DecompressionError as error:
        raise _malformed(Codec.SNAPPY, str(error)) from error
    if size != len(out):
        raise _malformed(Codec.SNAPPY, f"a block of {len(out)} bytes decompressed to {size}")


def _compress_xerial(data: Buffer) -> bytes:
    cramjam = _cramjam()
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK_SIZE])))
        parts += [_BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    """Compress into a frame of independent blocks: the Java client reads no other form of lz4."""
    compressor = _cramjam().lz4.Compressor(level=level, block_linked=False)
    view = memoryview(data)
    for start in range(0, len(view), _LZ4_BLOCK_SIZE):  # each call holds the interpreter's lock
        compressor.compress(bytes(view[start : start + _LZ4_BLOCK_SIZE]))
    return bytes(compressor.finish())


def _malformed(codec: Codec, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a record batch is not {codec.name.lower()}: {reason}")


def _too_large(codec: Codec, size_max: int) -> InflatedSizeError:
    return InflatedSizeError(f"a {codec.name.lower()} record batch inflates to more than {size_max} bytes")
