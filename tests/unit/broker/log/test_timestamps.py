from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import pytest

from broker.log import LogConfig, TimestampOffset
from broker.log.records import INFLATED_MAX, MalformedError, inflate
from quorumlog.wire.record_batch import Codec
from tests.unit.broker.log.batches import Compress, make_batch
from tests.unit.broker.log.rig import Rig


def xerial(body: bytes) -> bytes:
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(body), 100):
        block = bytes(cramjam.snappy.compress_raw(body[start : start + 100]))
        framed += struct.pack(">i", len(block)) + block
    return framed


CODECS: list[tuple[int, Compress]] = [
    (0, bytes),
    (1, gzip.compress),
    (2, lambda body: bytes(cramjam.snappy.compress_raw(body))),
    (2, xerial),
    (3, lambda body: bytes(cramjam.lz4.compress(body))),
    (4, lambda body: bytes(cramjam.zstd.compress(body))),
]


@pytest.mark.parametrize("codec", range(len(CODECS)))
async def test_every_record_is_found(rig: Rig, codec: int) -> None:
    attributes, compress = CODECS[codec]
    log = rig.create(LogConfig(segment_size_max=2_000, index_interval=200))
    for number in range(20):
        times = [100 * number + 10 * at for at in range(5)]
        batch = make_batch([b"v" * 30] * 5, attributes=attributes, compress=compress, timestamps=times)
        log.append_as_leader(batch, 3, 0)
    for number in range(100):
        time = 100 * (number // 5) + 10 * (number % 5)
        assert await log.offset_for_timestamp(time, 100) == TimestampOffset(time, number, 3)
        if number % 5:
            assert await log.offset_for_timestamp(time - 1, 100) == TimestampOffset(time, number, 3)
    assert await log.offset_for_timestamp(-1, 100) == TimestampOffset(0, 0, 3)
    assert await log.offset_for_timestamp(1_941, 100) is None
    assert await log.max_timestamp_offset(100) == TimestampOffset(1_940, 99, 3)
    assert await log.max_timestamp_offset(50) == TimestampOffset(940, 49, 3)
    assert await log.offset_for_timestamp(950, 50) is None


async def test_times_need_no_order(rig: Rig) -> None:
    log = rig.create(LogConfig(segment_size_max=1_000, index_interval=100))
    times = [(number * 37) % 101 for number in range(100)]
    for time in times:
        log.append_as_leader(make_batch([b"v" * 20], timestamps=[time]), 0, 0)
    log.advance_high_watermark(100)
    for start in (0, 13):
        log.advance_start_offset(start)
        for wanted in range(102):
            found = await log.offset_for_timestamp(wanted, 100)
            offset = next((at for at, time in enumerate(times) if at >= start and time >= wanted), None)
            assert (found.offset if found else None) == offset, wanted


async def test_an_empty_log(rig: Rig) -> None:
    log = rig.create()
    assert await log.offset_for_timestamp(0, 0) is None
    assert await log.max_timestamp_offset(0) is None


async def test_headers_that_lie_cost_a_bounded_number_of_looks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.create(LogConfig())
    for _ in range(50):
        log.append_as_leader(make_batch([b"v"], attributes=1, timestamps=[1], max_timestamp=10**12), 0, 0)
    opened = 0

    def counted(*arguments: object) -> None:
        nonlocal opened
        opened += 1

    monkeypatch.setattr("broker.log.timestamps.first_at_or_after", counted)
    found = await log.offset_for_timestamp(10**12, 50)
    assert found == TimestampOffset(10**12, 8, 0)
    assert opened == 8


async def test_a_batch_that_cannot_be_opened_answers_with_its_header(rig: Rig) -> None:
    log = rig.create()
    log.append_as_leader(make_batch([b"v"], timestamps=[1]), 0, 0)
    log.append_as_leader(
        make_batch([b"v", b"w"], timestamps=[5, 6], attributes=4, compress=lambda body: b"rubbish"), 2, 0
    )
    assert await log.offset_for_timestamp(6, 3) == TimestampOffset(6, 1, 2)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_bombs_are_refused(codec: Codec) -> None:
    bomb = b"\0" * (INFLATED_MAX + 1)
    body = {
        Codec.GZIP: lambda: gzip.compress(bomb, 1),
        Codec.SNAPPY: lambda: bytes(cramjam.snappy.compress_raw(bomb)),
        Codec.LZ4: lambda: bytes(cramjam.lz4.compress(bomb)),
        Codec.ZSTD: lambda: bytes(cramjam.zstd.compress(bomb)),
    }[codec]()
    with pytest.raises(MalformedError):
        inflate(body, codec)


@pytest.mark.parametrize("codec", list(Codec)[1:])
def test_rubbish_is_refused(codec: Codec) -> None:
    for body in (b"", b"x", b"\xff" * 50, b"\x82SNAPPY\x00" + b"\xff" * 20, zlib.compress(b"x")):
        try:
            assert inflate(body, codec) == b""
        except MalformedError:
            continue
