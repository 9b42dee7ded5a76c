"""Compression of record batches, with a bound on what a batch may inflate to.

A batch of a megabyte can claim to hold ten gigabytes.  Every codec here therefore writes into a buffer of a size that
was decided before, and a batch that does not fit is refused by name; the size that a frame declares is a hint, never an
allocation.

gzip is the standard library's; snappy, lz4 and zstd are cramjam's, which is imported when the first batch needs it.
"""

from __future__ import annotations

import struct
import zlib
from types import ModuleType

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.record_batch import Buffer, Codec

INFLATED_SIZE_MAX = 128 << 20
_FIRST_GUESS = 8  # times the compressed size
_NEXT_GUESS = 4  # times the guess before, up to the bound, until the contents fit

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 64 << 10
_BLOCK_LENGTH = struct.Struct(">i")

CODEC_NAMES = {codec.name.lower(): codec for codec in Codec}


class InflatedSizeError(RemoteProtocolError):
    """The contents are larger than the caller allows."""


def compress(codec: Codec, data: Buffer) -> bytes:
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            compressor = zlib.compressobj(wbits=31)
            return compressor.compress(data) + compressor.flush()
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            return bytes(_cramjam().lz4.compress(_contiguous(data)))
        case Codec.ZSTD:
            return bytes(_cramjam().zstd.compress(_contiguous(data)))


def decompress(codec: Codec, data: Buffer, size_max: int = INFLATED_SIZE_MAX) -> Buffer:
    """The contents of `data`, at most `size_max` bytes.

    Raises:
        InflatedSizeError: it inflates to more.
        RemoteProtocolError: it is not what the codec writes, or something follows it.
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


def _cramjam() -> ModuleType:
    """Return the module; not imported at the top because most processes never need it."""
    import cramjam

    module: ModuleType = cramjam
    return module


def _contiguous(data: Buffer) -> Buffer:
    """What cramjam takes: it wants an object that owns its bytes or a view over one of the bytes-like kinds."""
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
    """lz4 and zstd: neither says reliably how much comes out, so the buffer grows until it is enough or too much."""
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
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:  # librdkafka's and kafka-python's other form: one raw block
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
            raise _malformed(Codec.SNAPPY, f"block of {length} bytes where {len(view) - position} are left")
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
    """What the block says that it inflates to, on top of `before` bytes; the decompressor holds it to that."""
    cramjam = _cramjam()
    try:
        size = int(cramjam.snappy.decompress_raw_len(bytes(block)))
    except cramjam.DecompressionError as error:
        raise _malformed(Codec.SNAPPY, str(error)) from error
    if before + size > size_max:
        raise _too_large(Codec.SNAPPY, size_max)
    if size > 64 * len(block) + 64:  # the densest token copies 64 bytes from 3: more cannot come out
        raise _malformed(Codec.SNAPPY, f"{len(block)} bytes that claim to be {size}")
    return size


def _decompress_raw_snappy(block: memoryview, out: memoryview) -> None:
    cramjam = _cramjam()
    try:
        size = cramjam.snappy.decompress_raw_into(bytes(block), out)
    except cramjam.DecompressionError as error:
        raise _malformed(Codec.SNAPPY, str(error)) from error
    if size != len(out):
        raise _malformed(Codec.SNAPPY, f"{size} bytes came out of a block of {len(out)}")


def _compress_xerial(data: Buffer) -> bytes:
    cramjam = _cramjam()
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[start : start + _XERIAL_BLOCK_SIZE])))
        parts += [_BLOCK_LENGTH.pack(len(block)), block]
    return b"".join(parts)


def _malformed(codec: Codec, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a record batch is not {codec.name.lower()}: {reason}")


def _too_large(codec: Codec, size_max: int) -> InflatedSizeError:
    return InflatedSizeError(f"a {codec.name.lower()} record batch inflates to more than {size_max} bytes")
