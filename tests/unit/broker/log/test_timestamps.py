from __future__ import annotations

import asyncio
import gzip
import struct
import zlib
from pathlib import Path
from threading import Event

import cramjam
import pytest

from broker.log import LogConfig, TimestampOffset
from broker.log.records import INFLATED_MAX, MalformedError, inflate
from broker.log.segment import Segment
from quorumlog.wire.record_batch import Codec, parse_header
from tests.unit.broker.log.batches import Compress, make_batch
from tests.unit.broker.log.rig import ONE_SEGMENT, Rig, append, restart_with, two_disks


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
async def test_every_record_is_found_by_its_timestamp(rig: Rig, codec: int) -> None:
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


@pytest.mark.parametrize("by", ["truncation", "power failure", "truncation whose deletion is lost"])
async def test_no_timestamp_of_a_lost_record_stays_in_the_index(rig: Rig, by: str) -> None:
    """Other batches of the same sizes replace the lost batches, and their index is not written."""
    log = rig.create(ONE_SEGMENT)
    for _ in range(10):
        append(log, [b"v" * 50])
    await rig.logs.flush_all([log])
    log.advance_high_watermark(5)
    await rig.logs.checkpoint([log])
    [path], [index] = rig.files(log), rig.files(log, "index")
    content, stale = path.read_bytes(), index.read_bytes()
    if by != "power failure":
        log.truncate_to(5)
    else:
        await restart_with(rig, path, content[: len(content) // 2])
        log = rig.log
    assert log.end_offset == 5
    append(log, [b"v" * 50], 1, timestamps=[9_000])
    for _ in range(4):
        append(log, [b"v" * 50], 1)
    await rig.settle(log)
    if by == "truncation whose deletion is lost":  # a power failure before the folder was durable
        await restart_with(rig, index, stale)
        log = rig.log
        log.advance_high_watermark(log.end_offset)
    await rig.logs.lower_truncation_floor(log, 9)  # writes the state of the log, and nothing beside the segments
    await rig.settle(log)
    await rig.restart(clean=True)
    assert await rig.log.offset_for_timestamp(5_000, 10) == TimestampOffset(9_000, 5, 1)


async def test_the_deletion_of_a_stale_index_becomes_durable_with_the_next_batches(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    for _ in range(10):
        append(log, [b"v" * 50])
    await rig.logs.flush_all([log])
    await rig.logs.checkpoint([log])
    log.truncate_to(5)
    await rig.logs.flush_all([log])
    folders = []
    for _ in range(2):
        append(log, [b"v" * 50], 1)
        ticket = log.durability.take_ticket()
        folders.append(ticket.folders)
        log.durability.flush_done(ticket)
    assert folders == [(log.folder,), ()]


@pytest.mark.parametrize("by", ["append", "checkpoint"])
async def test_a_stale_index_that_a_move_has_copied_is_not_extended(tmp_path: Path, by: str) -> None:
    """A move copies the index of the active segment before the last appends, which discard it."""
    source, target = two_disks(tmp_path)
    for disk in (source, target):
        disk.make_dir("log")
    segment = Segment.create(source, "log", 0)

    def append_ten(first: int, timestamp: int) -> None:
        for offset in range(first, first + 10):
            batch = make_batch([b"v" * 50], base_offset=offset, leader_epoch=0, timestamps=[timestamp])
            segment.append(batch, [parse_header(batch)], 100)

    append_ten(0, 1_000)
    segment.persist_index()
    segment.truncate(segment.position_of(5), 5)
    copied = (tmp_path / "a" / segment.index_path).read_bytes()
    (tmp_path / "b" / segment.index_path).write_bytes(copied)
    assert segment.discard_stale_index()
    append_ten(5, 9_000)
    (tmp_path / "b" / segment.path).write_bytes((tmp_path / "a" / segment.path).read_bytes())
    segment.move_to(target)
    if by == "append":
        assert segment.discard_stale_index()
        assert not target.exists(segment.index_path)
    for _ in range(2):
        segment.persist_index()
        loaded = Segment(target, "log", 0, end_offset=15, size=segment.size, newest_timestamp=9_000)
        assert loaded.index.persisted == len(loaded.index) == len(segment.index)
        assert [loaded.index.by_offset(offset) for offset in range(15)] == [
            segment.index.by_offset(offset) for offset in range(15)
        ]
    for disk in (source, target):
        disk.close()


async def test_look_ups_by_timestamp_are_correct_if_timestamps_are_not_in_order(rig: Rig) -> None:
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


async def test_look_ups_by_timestamp_find_nothing_in_an_empty_log(rig: Rig) -> None:
    log = rig.create()
    assert await log.offset_for_timestamp(0, 0) is None
    assert await log.max_timestamp_offset(0) is None


async def test_headers_with_wrong_max_timestamps_cause_a_limited_number_of_reads(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_look_up_that_finds_an_unreadable_batch_uses_its_header(rig: Rig) -> None:
    log = rig.create()
    log.append_as_leader(make_batch([b"v"], timestamps=[1]), 0, 0)
    log.append_as_leader(
        make_batch([b"v", b"w"], timestamps=[5, 6], attributes=4, compress=lambda body: b"rubbish"), 2, 0
    )
    assert await log.offset_for_timestamp(6, 3) == TimestampOffset(6, 1, 2)


async def test_a_look_up_continues_in_segments_that_replaced_its_segments_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.create(LogConfig(segment_size_max=100))
    for _ in range(4):  # each in a segment of its own, with a header that claims a newer timestamp than its record has
        log.append_as_leader(make_batch([b"v" * 20], attributes=1, timestamps=[1], max_timestamp=9), 0, 0)
    log.append_as_leader(make_batch([b"v"], timestamps=[9]), 0, 0)
    assert len(log.segments) == 5
    opened, replaced = Event(), Event()

    def wait(*arguments: object) -> None:
        opened.set()
        assert replaced.wait(60)

    monkeypatch.setattr("broker.log.timestamps.first_at_or_after", wait)
    monkeypatch.setattr("broker.log.timestamps.OPENED_MAX", 4)
    look_up = asyncio.create_task(log.offset_for_timestamp(9, 5))
    await asyncio.to_thread(opened.wait, 60)
    before = list(log.segments)
    log._segments.adopt(
        Segment(
            rig.disk,
            log.folder,
            old.base_offset,
            end_offset=old.end_offset,
            size=old.size,
            newest_timestamp=old.newest_timestamp,
        )
        for old in before
    )
    for old in before:
        old.close()
        old._folder = "replaced"  # so that a read of it fails
    replaced.set()
    assert await look_up == TimestampOffset(9, 4, 0)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_decompression_bombs_are_refused(codec: Codec) -> None:
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
def test_invalid_compressed_data_inflates_to_nothing_or_is_refused(codec: Codec) -> None:
    for body in (b"", b"x", b"\xff" * 50, b"\x82SNAPPY\x00" + b"\xff" * 20, zlib.compress(b"x")):
        try:
            assert inflate(body, codec) == b""
        except MalformedError:
            continue


async def test_the_offset_of_the_max_timestamp_is_never_that_of_a_deleted_record(rig: Rig) -> None:
    log = rig.create(LogConfig())
    for times in ([100, 900], [300, 200], [800, 400], [500, 600], [100, 50]):
        log.append_as_leader(make_batch([b"v"] * 2, timestamps=times), 3, 0)
    log.advance_high_watermark(10)
    for start, end, newest in (
        (0, 10, TimestampOffset(900, 1, 3)),
        (2, 10, TimestampOffset(800, 4, 3)),
        (6, 10, TimestampOffset(600, 7, 3)),
        (6, 6, None),
        (8, 10, TimestampOffset(100, 8, 3)),
        (9, 10, TimestampOffset(100, 9, 3)),  # from the header of its batch; the record itself is older
        (10, 10, None),
    ):
        log.advance_start_offset(start)
        assert await log.max_timestamp_offset(end) == newest, start
