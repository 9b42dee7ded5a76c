"""Damage after a clean stop: it is found by reads and at starts, and repaired where no record is lost."""

from __future__ import annotations

import pytest

from broker.log import LogConfig, PartitionLog
from broker.log.state import decode_state, encode_state
from quorumlog.errors import CorruptStoreError
from quorumlog.wire.record_batch import HEADER_SIZE, parse_header
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.move_rig import MoveRig
from tests.unit.broker.log.rig import KEY, ONE_SEGMENT, SMALL, Rig, append, batches_of, fill

CRC_END = 21
"""The checksum of a batch covers all bytes from here on."""


async def test_damage_after_a_clean_stop_is_found_when_it_is_read(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    (path,) = rig.files(log)
    await rig.stop()
    good = path.read_bytes()
    damaged = bytearray(good)
    damaged[len(batches[0]) + 70] ^= 1
    path.write_bytes(bytes(damaged))
    await rig.start()
    with pytest.raises(CorruptStoreError, match=rf"position {len(batches[0])}: checksum"):
        rig.log.read(0, 10_000, rig.log.end_offset)
    rig.logs.take_offline(KEY, CorruptStoreError("as above"))
    assert list(rig.logs.failures) == [KEY]
    await rig.stop()
    path.write_bytes(good)
    await rig.start()
    await rig.restart(clean=True)
    path.write_bytes(good[:-1])
    with pytest.raises(CorruptStoreError, match=r"bytes instead of"):
        rig.log.read(0, 10_000, rig.log.end_offset)


async def test_every_flipped_byte_is_found_when_it_is_read_after_a_clean_stop(rig: Rig) -> None:
    """This includes the first 21 bytes of a batch, which its checksum does not cover."""
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    (path,) = rig.files(log)
    await rig.stop()
    good = path.read_bytes()
    start = len(batches[0]) + len(batches[1])
    for position in range(start, start + len(batches[2])):
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        path.write_bytes(bytes(damaged))
        await rig.start()
        with pytest.raises(CorruptStoreError, match=path.name):
            batches_of(rig.log)
        await rig.stop()


async def test_every_flipped_byte_of_a_header_is_found_when_the_producers_are_read_from_it(rig: Rig) -> None:
    """With a wrong producer id or sequence, a leader would treat a new batch as a repeated one, or report a loss."""
    log = rig.create(ONE_SEGMENT)
    for sequence in range(3):
        append(log, [b"a" * 20], producer=(5, 0, sequence))
    (path,) = rig.files(log)
    await rig.stop()
    good = path.read_bytes()
    for snapshot in path.parent.glob("*.producers"):
        snapshot.unlink()  # a log whose segments compaction has replaced may also end after its last snapshot
    size = len(good) // 3
    for position in range(size + CRC_END, size + HEADER_SIZE):
        damaged = bytearray(good)
        damaged[position] ^= 0x10
        path.write_bytes(bytes(damaged))
        await rig.start()
        with pytest.raises(CorruptStoreError, match=path.name):
            _ = rig.log.producers
        await rig.stop()


@pytest.mark.parametrize("position", range(8))
async def test_a_wrong_base_offset_inside_a_long_read_is_found(rig: Rig, position: int) -> None:
    """With an index entry for each batch, the searches for the first and the last batch do not see this header."""
    log = rig.create(LogConfig(index_interval=1))
    batches = fill(log, 6)
    (path,) = rig.files(log)
    await rig.stop()
    damaged = bytearray(path.read_bytes())
    damaged[len(batches[0]) + len(batches[1]) + position] ^= 0x01
    path.write_bytes(bytes(damaged))
    await rig.start()
    with pytest.raises(CorruptStoreError, match=path.name):
        rig.log.read(0, len(damaged), rig.log.end_offset)


def read_in_order(log: PartitionLog, up_to_offset: int) -> None:
    """Read batch after batch, and check that no batch is missing."""
    offset = 0
    while offset < up_to_offset:
        batch = log.read(offset, 1, up_to_offset)
        assert batch, f"nothing at offset {offset}"
        assert parse_header(batch).base_offset == offset
        offset = parse_header(batch).end_offset


@pytest.mark.parametrize("watermark", [6, 9])
@pytest.mark.parametrize("mask", [0x01, 0x80])
async def test_a_header_with_wrong_offsets_hides_no_committed_batch(rig: Rig, watermark: int, mask: int) -> None:
    """A read below the watermark returns every batch, or an error: never nothing, and never a later batch."""
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    (path,) = rig.files(log)
    await rig.stop()
    good = path.read_bytes()
    start = len(batches[0]) + len(batches[1])
    for position in range(start, start + HEADER_SIZE):
        damaged = bytearray(good)
        damaged[position] ^= mask
        path.write_bytes(bytes(damaged))
        await rig.start()
        with pytest.raises(CorruptStoreError, match=path.name):
            read_in_order(rig.log, watermark)
        await rig.stop()


async def test_a_truncation_refuses_a_header_with_wrong_offsets(rig: Rig) -> None:
    """Because of the wrong offsets, the batch seems to contain offset 9, and would be removed as a whole."""
    log = rig.create(LogConfig())
    batches = fill(log, 6)
    (path,) = rig.files(log)
    await rig.stop()
    damaged = bytearray(path.read_bytes())
    damaged[len(batches[0]) + 24] ^= 0x10  # its last offset delta
    path.write_bytes(bytes(damaged))
    await rig.start()
    with pytest.raises(CorruptStoreError, match=path.name):
        rig.log.truncate_to(9)
    assert path.read_bytes() == bytes(damaged)


@pytest.mark.parametrize("clean", [True, False])
async def test_every_flipped_byte_of_a_checkpoint_is_found(clean: bool) -> None:
    rig = MoveRig()
    await rig.start()
    for epoch in range(3):
        fill(rig.create() if epoch == 0 else rig.log, 3, epoch)
    await rig.settle()
    before = batches_of(rig.log)
    await rig.logs.close()
    facts = rig.disks[0].facts
    (name,) = facts.load("log/")
    good = facts.load(name)[name]
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1
        forget = {key: None for key in facts.load("damaged/")}
        await facts.commit({**forget, name: bytes(damaged), "clean": b"" if clean else None})
        await rig.restart()
        if KEY in rig.logs.failures:
            assert name in str(rig.logs.failures[KEY])
        else:  # the damaged field is no longer recognised as a checksum, and the data itself is unchanged
            assert position < good.index(b'"version"')
            assert batches_of(rig.log) == before
    await rig.end()


async def test_a_checkpoint_without_a_checksum_from_an_older_release_is_read(rig: Rig) -> None:
    log = rig.create()
    state = log.upkeep.take_state()
    data = encode_state(state)
    assert decode_state("log/x", data) == state
    assert decode_state("log/x", b"{" + data[data.index(b'"version"') :]) == state


async def test_reads_are_correct_with_damaged_or_missing_indexes(rig: Rig) -> None:
    log = rig.create()
    before = fill(log, 60)
    await rig.stop()
    paths = rig.files(log, "index")
    assert len(paths) > 3
    for damage in (
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: b"\xff" * len(data),
        lambda data: data + b"x",
    ):
        for path in paths:
            path.write_bytes(damage(path.read_bytes()))
        await rig.start()
        assert batches_of(rig.log) == before
        await rig.stop()
    for path in paths:
        path.unlink(missing_ok=True)
    await rig.start()
    assert batches_of(rig.log) == before


async def test_reads_are_correct_with_the_index_of_another_segment(rig: Rig) -> None:
    log = rig.create(SMALL)
    before = fill(log, 60)
    await rig.stop()
    one, two = rig.files(log, "index")[:2]
    swapped = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(swapped)
    await rig.start()
    for batch in reversed(before):
        assert rig.log.read(int.from_bytes(batch[:8], "big"), 1, rig.log.end_offset) == batch


async def test_a_retry_is_recognised_although_the_producer_snapshots_are_damaged(rig: Rig) -> None:
    log = rig.create()
    for number in range(40):
        append(log, [b"%d" % number], producer=(5, 0, number))
    await rig.stop()
    snapshots = rig.files(log, "producers")
    assert len(snapshots) > 2
    for path in snapshots:
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    await rig.start()
    assert rig.log.append_as_leader(make_batch([b"39"], producer=(5, 0, 39)), 0, 0) == (39, 40, True)


async def test_a_damaged_fact_takes_its_log_offline(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    await rig.stop()
    await rig.start()
    name = f"log/{log.folder_name}"
    await rig.disk.facts.commit({name: b'{"version": 1}'})
    await rig.kill()
    await rig.start()
    assert f"fact {name} is damaged" in str(rig.logs.failures[KEY])


async def test_unknown_folders_are_left_unchanged(rig: Rig) -> None:
    (rig.folder / "logs" / "lost+found").mkdir()
    (rig.folder / "logs" / "topic-1.nonsense").mkdir()
    await rig.restart(clean=False)
    assert not rig.logs.logs
    assert not rig.logs.failures
    assert (rig.folder / "logs" / "topic-1.nonsense").exists()
