"""Bounded decompression, and damaged input of each codec."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from itertools import product

import cramjam
import lz4.frame
import pytest

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.compression import compress, decompress, java_problem, unavailable_codecs
from quorumlog.wire.record_batch import Codec

COMPRESSING = [codec for codec in Codec if codec]


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("content", [b"", b"x", b"abc" * 100_000, bytes(range(256)) * 300])
def test_compressed_data_round_trips(codec: Codec, content: bytes) -> None:
    assert bytes(decompress(codec, memoryview(compress(codec, content)))) == content


def test_lz4_blocks_are_independent_because_java_clients_read_no_others() -> None:
    frame = compress(Codec.LZ4, bytes(range(256)) * 1000)
    independent_blocks = 0x20
    assert frame[4] & independent_blocks


def test_java_problem_explains_lz4_frames_that_java_clients_cannot_read() -> None:
    noise = random.Random(1).randbytes(1_000) * 200
    plain = lz4.frame.compress(noise, block_linked=False, block_checksum=True, content_checksum=True)
    linked = lz4.frame.compress(noise, block_linked=True)
    skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    with_dictionary_id = b"\x04\x22\x4d\x18\x61\x40\x07\0\0\0\xe3\x01\0\0\x80x\0\0\0\0"
    for data, problem in [
        (linked, "depend on each other"),
        (plain + plain, "second frame"),
        (plain + skippable, "second frame"),
        (skippable + plain, "begins with a frame"),
        (with_dictionary_id, "begins with a frame"),
    ]:
        assert decompress(Codec.LZ4, data)
        assert problem in java_problem(Codec.LZ4, data)


def lz4_frames() -> Iterator[bytes]:
    for content, checks, sized in product((b"", b"x", bytes(200_000), bytes(range(256)) * 1000), (0, 1), (0, 1)):
        yield lz4.frame.compress(
            content,
            block_linked=False,
            block_checksum=bool(checks),
            content_checksum=bool(checks),
            store_size=bool(sized),
        )


def test_java_problem_is_empty_for_all_other_compressed_data() -> None:
    for frame in lz4_frames():
        assert java_problem(Codec.LZ4, frame) == ""
    for codec in COMPRESSING:
        for content in (b"", b"x", bytes(range(256)) * 1000):
            assert java_problem(codec, compress(codec, content)) == ""


@pytest.mark.parametrize("codec", COMPRESSING)
def test_decompression_refuses_data_above_the_size_limit_but_not_at_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(1_000_000))
    assert len(decompress(codec, bomb, 1_000_000)) == 1_000_000
    with pytest.raises(RemoteProtocolError, match="inflates to more than 999999 bytes"):
        decompress(codec, bomb, 999_999)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_truncated_and_foreign_bytes_are_refused(codec: Codec) -> None:
    good = compress(codec, bytes(range(256)) * 10)
    for bad in (good[:-3], b"\x00nonsense that no codec writes"):
        with pytest.raises(RemoteProtocolError, match=codec.name.lower()):
            decompress(codec, bad)


@pytest.mark.parametrize("codec", COMPRESSING)
def test_decompression_refuses_bytes_after_the_end_of_the_data(codec: Codec) -> None:
    with pytest.raises(RemoteProtocolError, match=codec.name.lower()):
        decompress(codec, compress(codec, b"contents" * 100) + b"trailing")


def test_codecs_of_a_missing_library_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"producer", "uncompressed", "gzip", "zstd", "snappy", "brotli", None}
    assert unavailable_codecs(names) == {}
    monkeypatch.setitem(sys.modules, "cramjam", None)  # an import of it fails
    found = unavailable_codecs(names)
    assert list(found) == ["snappy", "zstd"]
    assert "the Python package cramjam cannot be imported" in found["zstd"]
    assert unavailable_codecs({"gzip", None}) == {}


def test_snappy_data_without_framing_are_decompressed() -> None:
    assert bytes(decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(b"raw" * 50)))) == b"raw" * 50


def test_a_snappy_block_with_an_impossible_size_is_refused() -> None:
    claims_100_mb = b"\x80\xc2\xd7\x2f" + b"\x00a"
    with pytest.raises(RemoteProtocolError, match="claim"):
        decompress(Codec.SNAPPY, claims_100_mb)
