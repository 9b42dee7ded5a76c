"""After an unclean stop, a log is complete or is reported as damaged."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from broker.log import LogConfig
from broker.log.state import DAMAGED, UNSYNCED, damage_note, folder_fact, watermark_fact
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskFile
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.runtime.sqlite_facts import SqliteFacts
from quorumlog.wire.record_batch import LENGTH_END
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import CACHING, KEY, ONE_SEGMENT, SMALL, Rig, append, batches_of, fill, restart_with


async def test_a_start_after_a_clean_stop_opens_no_log_file(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.create()
    for number in range(30):
        append(log, [b"%d" % number], epoch=number // 10, producer=(5, 0, number))
    log.advance_high_watermark(25)
    before = batches_of(log)
    await rig.stop()
    opened: list[str] = []
    with monkeypatch.context() as patch:
        original = FileDisk.open

        def noted(disk: FileDisk, path: str, create: bool = False) -> DiskFile:
            opened.append(path)
            return original(disk, path, create)

        patch.setattr(FileDisk, "open", noted)
        await rig.start()
        assert opened == []
        log = rig.log
        assert rig.logs.clean_start
        assert (log.end_offset, log.flushed_offset, log.high_watermark) == (30, 30, 25)
        assert log.epochs.entries == ((0, 0), (1, 10), (2, 20))
    assert batches_of(log) == before
    assert log.append_as_leader(make_batch([b"29"], producer=(5, 0, 29)), 2, 0) == (29, 30, True)


async def test_a_killed_broker_loses_no_record(rig: Rig) -> None:
    log = rig.create()
    for number in range(30):
        append(log, [b"%d" % number], epoch=number // 10, producer=(5, 0, number))
    before = batches_of(log)
    await rig.restart(clean=False)
    log = rig.log
    assert not rig.logs.clean_start
    assert batches_of(log) == before
    assert log.epochs.entries == ((0, 0), (1, 10), (2, 20))
    assert log.append_as_leader(make_batch([b"29"], producer=(5, 0, 29)), 2, 0) == (29, 30, True)


async def test_recovered_records_do_not_count_as_flushed_before_a_flush(rig: Rig) -> None:
    log = rig.create()
    fill(log, 5)
    await rig.kill()
    await rig.start()
    assert rig.log.flushed_offset == 0
    await rig.logs.flush_all([rig.log])


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_torn_tail_is_truncated_at_every_byte(rig: Rig, checkpoint: bool) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    if checkpoint:
        await rig.settle(log)
        await rig.logs.checkpoint([log])
    append(log, [b"last", b"one"])
    (path,) = rig.files(log)
    whole = path.read_bytes()
    start = sum(map(len, batches))
    end_offset = log.end_offset
    await rig.kill()
    for size in range(start, len(whole)):
        with capture_logs() as logs:
            await restart_with(rig, path, whole[:size])
        assert batches_of(rig.log) == batches
        assert rig.log.end_offset == end_offset - 2
        assert path.stat().st_size == start
        cuts = [line for line in logs if line["event"] == "torn tail truncated"]
        torn = [(line["position"], line["bytes"], line["end_offset"]) for line in cuts]
        assert torn == ([(start, size - start, end_offset - 2)] if size > start else [])
    append(rig.log, [b"on", b"we", b"go"])
    assert len(batches_of(rig.log)) == 7


async def test_a_tail_of_garbage_is_truncated(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    (path,) = rig.files(log)
    whole = path.read_bytes()
    lying = make_batch(base_offset=log.end_offset, leader_epoch=0, batch_length=2**31 - 1)
    for rubbish in (b"\0" * 5_000, b"\xff" * 100, b"\2" * 100, lying, make_batch(base_offset=log.end_offset)[:61]):
        await restart_with(rig, path, whole + rubbish)
        assert batches_of(rig.log) == batches
        assert path.read_bytes() == whole


async def test_a_flipped_byte_in_the_middle_of_a_log_takes_it_offline(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    await rig.logs.flush_all([log])
    (path,) = rig.files(log)
    whole = path.read_bytes()
    start = len(batches[0]) + len(batches[1])
    for position in range(start, start + len(batches[2])):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        await restart_with(rig, path, bytes(damaged))
        if start + LENGTH_END <= position < start + 16 and KEY in rig.logs.logs:
            continue  # the leader epoch is outside the checksum: a higher one can only be detected by the next batch
        assert KEY not in rig.logs.logs, position
        message = str(rig.logs.failures[KEY])
        assert path.name in message
        if not start + LENGTH_END <= position < start + 16:
            assert f"position {start}, offset 3" in message, message
        assert path.read_bytes() == bytes(damaged)  # nothing is repaired silently


async def test_a_damaged_log_does_not_prevent_the_opening_of_other_logs(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    other = type(KEY)(KEY.topic_id, 9, 42)
    fill(rig.create(key=other), 6)
    await rig.logs.flush_all(rig.logs.logs.values())
    (path,) = rig.files(log)
    damaged = bytearray(path.read_bytes())
    damaged[len(batches[0]) + 80] ^= 1
    await restart_with(rig, path, bytes(damaged))
    assert list(rig.logs.logs) == [other]
    assert list(rig.logs.failures) == [KEY]


async def test_a_torn_segment_before_a_good_segment_is_reported_as_damage(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.logs.flush_all([log])
    paths = rig.files(log)
    assert len(paths) > 3
    await restart_with(rig, paths[1], paths[1].read_bytes()[:-1])
    assert "but a good batch follows in" in str(rig.logs.failures[KEY])


async def test_with_write_caching_a_torn_segment_before_a_good_segment_ends_the_log(rig: Rig) -> None:
    """Nothing makes one segment durable before the next, so a power failure may keep only the later one."""
    log = rig.create(CACHING)
    before = fill(log, 30)
    paths = rig.files(log)
    await rig.logs.flush_all([log])
    kept = sum(1 for batch in before if int.from_bytes(batch[:8], "big") < int(paths[2].stem)) - 1
    await restart_with(rig, paths[1], paths[1].read_bytes()[:-1])
    assert batches_of(rig.log) == before[:kept]
    assert rig.files(rig.log) == paths[:2]
    assert rig.log.config.write_caching


async def test_with_write_caching_a_bad_batch_before_good_batches_ends_the_log(rig: Rig) -> None:
    log = rig.create(LogConfig(index_interval=100, write_caching=True))
    before = fill(log, 6)
    await rig.logs.flush_all([log])
    (path,) = rig.files(log)
    content = bytearray(path.read_bytes())
    content[len(before[0]) + len(before[1]) + 70] ^= 1
    await restart_with(rig, path, bytes(content))
    assert batches_of(rig.log) == before[:2]


async def test_with_write_caching_a_missing_segment_ends_the_log(rig: Rig) -> None:
    log = rig.create(CACHING)
    before = fill(log, 30)
    paths = rig.files(log)
    await rig.logs.flush_all([log])
    await rig.kill()
    paths[1].unlink()
    await rig.start()
    assert batches_of(rig.log) == [batch for batch in before if int.from_bytes(batch[:8], "big") < int(paths[1].stem)]
    assert rig.files(rig.log) == paths[:1]


async def test_with_write_caching_a_torn_segment_below_the_high_watermark_is_reported_as_damage(rig: Rig) -> None:
    log = rig.create(CACHING)
    fill(log, 30)
    await rig.settle(log)
    await rig.disk.facts.commit({watermark_fact(KEY): b"%d" % log.marks.take_watermark()})
    paths = rig.files(log)
    await restart_with(rig, paths[1], paths[1].read_bytes()[:-1])
    assert "were durable and committed" in str(rig.logs.failures[KEY])


async def test_with_write_caching_a_missing_committed_segment_does_not_delete_other_segments(rig: Rig) -> None:
    """If the missing file is restored, the log is complete again."""
    log = rig.create(CACHING)
    written = fill(log, 30)
    await rig.settle(log)
    await rig.disk.facts.commit({watermark_fact(KEY): b"%d" % log.marks.take_watermark()})
    second = rig.files(log)[1]
    await rig.kill()
    content = second.read_bytes()
    second.unlink()
    await rig.start()
    assert KEY in rig.logs.failures
    await restart_with(rig, second, content)
    assert batches_of(rig.log) == written


async def test_a_torn_segment_is_reported_as_damage_once_write_caching_is_turned_off(rig: Rig) -> None:
    log = rig.create(CACHING)
    fill(log, 3)
    await rig.logs.flush_all([log])
    assert rig.disk.facts.load(folder_fact(log.folder)) == {folder_fact(log.folder): UNSYNCED}
    log.config = SMALL
    fill(log, 27)
    await rig.logs.flush_all([log])
    paths = rig.files(log)
    newest = b"%d" % int(paths[-1].stem)
    assert rig.disk.facts.load(folder_fact(log.folder)) == {folder_fact(log.folder): newest}
    await restart_with(rig, paths[1], paths[1].read_bytes()[:-1])
    assert "but a good batch follows in" in str(rig.logs.failures[KEY])


async def test_a_torn_segment_before_a_segment_that_was_never_flushed_ends_the_log(rig: Rig) -> None:
    """A power failure during a flush may keep a new segment, and lose the end of the previous segment."""
    log = rig.create()
    before = fill(log, 10)
    await rig.logs.flush_all([log])
    written = fill(log, 10)
    await rig.kill()
    torn, *later = rig.files(log)[-3:]
    torn.write_bytes(torn.read_bytes()[:-1])
    await rig.start()
    kept = sum(1 for batch in written if int.from_bytes(batch[:8], "big") < int(later[0].stem)) - 1
    assert kept >= len(before)
    assert batches_of(rig.log) == written[:kept]
    assert not any(path.exists() for path in later)


async def test_an_empty_segment_before_a_segment_that_was_never_flushed_ends_the_log(rig: Rig) -> None:
    log = rig.create()
    fill(log, 10)
    await rig.logs.flush_all([log])
    written = fill(log, 10)
    await rig.kill()
    lost, last = rig.files(log)[-2:]
    lost.write_bytes(b"")
    await rig.start()
    assert batches_of(rig.log) == [batch for batch in written if int.from_bytes(batch[:8], "big") < int(lost.stem)]
    assert not lost.exists()
    assert not last.exists()


@pytest.mark.parametrize("config", [SMALL, CACHING])
async def test_no_damage_is_reported_in_a_folder_that_was_never_flushed(rig: Rig, config: LogConfig) -> None:
    """Nothing in it was acknowledged as durable.  With write.caching, even its first segment may be empty."""
    log = rig.create(config)
    fill(log, 30)
    await rig.kill()
    path = rig.files(log)[0]
    path.write_bytes(b"")
    await rig.start()
    assert (rig.log.start_offset, rig.log.end_offset) == (0, 0)
    assert rig.files(rig.log) == []


async def test_a_missing_first_segment_is_reported_as_damage(rig: Rig) -> None:
    """Without a checkpoint, the log begins at offset 0."""
    log = rig.create()
    fill(log, 30)
    await rig.logs.flush_all([log])
    await rig.kill()
    rig.files(log)[0].unlink()
    await rig.start()
    assert "does not continue at offset 0" in str(rig.logs.failures[KEY])


async def test_segments_without_any_facts_are_kept(rig: Rig) -> None:
    """For example, the folder was moved back from the strays after the log start had advanced."""
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await rig.disk.facts.commit(dict.fromkeys(rig.disk.facts.load()))
    await rig.kill()
    rig.files(log)[0].unlink()
    paths = rig.files(log)
    await rig.start()
    assert "has no checkpoint" in str(rig.logs.failures[KEY])
    assert rig.files(log) == paths


async def test_an_empty_first_segment_is_reported_as_damage_at_every_start(rig: Rig) -> None:
    log = rig.create()
    written = fill(log, 30)
    await rig.logs.flush_all([log])
    paths = rig.files(log)
    content = paths[0].read_bytes()
    await restart_with(rig, paths[0], b"")
    for _ in range(2):
        assert "does not continue at offset 0" in str(rig.logs.failures[KEY])
        assert rig.files(log) == paths, "nothing is deleted"
        await rig.restart(clean=False)
    await rig.kill()
    paths[0].unlink()
    await rig.start()
    assert "does not continue at offset 0" in str(rig.logs.failures[KEY])
    await restart_with(rig, paths[0], content)
    assert batches_of(rig.log) == written


async def test_a_torn_segment_in_the_folder_of_an_older_release_is_reported_as_damage(rig: Rig) -> None:
    """An older release did not note which segments were flushed, so any later segment shows that the log was whole."""
    log = rig.create()
    fill(log, 30)
    await rig.logs.flush_all([log])
    await rig.disk.facts.commit({folder_fact(log.folder): b""})
    paths = rig.files(log)
    await restart_with(rig, paths[-2], paths[-2].read_bytes()[:-1])
    assert "but a good batch follows in" in str(rig.logs.failures[KEY])


async def test_a_torn_segment_before_a_segment_without_good_batches_ends_the_log(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    before = batches_of(log)
    paths = rig.files(log)
    kept = sum(1 for batch in before if int.from_bytes(batch[:8], "big") < int(paths[-1].stem)) - 1
    await rig.kill()
    paths[-1].write_bytes(b"\0" * 50)
    paths[-2].write_bytes(paths[-2].read_bytes()[:-1])
    await rig.start()
    assert batches_of(rig.log) == before[:kept]
    assert rig.files(rig.log) == paths[:-1]


async def test_a_missing_segment_is_reported_as_damage(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    paths = rig.files(log)
    await rig.kill()
    hidden = paths[1].read_bytes()
    paths[1].unlink()
    await rig.start()
    assert "does not continue at offset" in str(rig.logs.failures[KEY])
    await restart_with(rig, paths[1], hidden)
    await rig.settle(rig.log)
    await rig.logs.checkpoint([rig.log])
    await rig.kill()
    paths[1].unlink()
    await rig.start()
    assert f"{paths[1].name} is missing" in str(rig.logs.failures[KEY])


async def test_a_file_shorter_than_its_recovery_point_is_reported_as_damage(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    fill(log, 6)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    (path,) = rig.files(log)
    await restart_with(rig, path, path.read_bytes()[:-1])
    assert "were durable" in str(rig.logs.failures[KEY])
    await rig.kill()
    path.unlink()
    await rig.start()
    assert f"{path.name} is missing" in str(rig.logs.failures[KEY])


@pytest.mark.parametrize("clean", [True, False])
async def test_damage_stays_recorded_until_it_is_repaired(rig: Rig, clean: bool) -> None:
    """The record is removed once the file is whole again or the replica is replaced, but not by a clean stop."""
    log = rig.create()
    before = fill(log, 30)
    await rig.settle(log)
    path = rig.files(log)[1]
    good = path.read_bytes()
    await rig.stop()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    await rig.start()
    with pytest.raises(CorruptStoreError, match=path.name) as found:
        batches_of(rig.log)
    rig.logs.take_offline(KEY, found.value)
    await asyncio.gather(*rig.logs._notes)  # after a kill before this line, the next read finds the damage again
    for _ in range(2):
        await rig.restart(clean=clean)
        assert path.name in str(rig.logs.failures[KEY])
        assert KEY not in rig.logs.logs
    await (rig.stop() if clean else rig.kill())
    path.write_bytes(good)
    await rig.start()
    assert batches_of(rig.log) == before
    await rig.restart(clean=clean)
    assert (batches_of(rig.log), rig.disk.facts.load("damaged/")) == (before, {})


@pytest.mark.parametrize("found", ["by a read", "at a start"])
async def test_a_torn_tail_beside_repaired_damage_is_truncated(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, found: str
) -> None:
    """The records after the last flush were never acknowledged."""
    log = rig.create()
    before = fill(log, 30)
    await rig.logs.flush_all([log])

    async def blocked(files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.disk, "flush", blocked)
    append(log, [b"never flushed"])
    path, *_, last = rig.files(log)
    good = path.read_bytes()
    if found == "by a read":
        rig.logs.take_offline(KEY, CorruptStoreError("damage"))
        await asyncio.gather(*rig.logs._notes)
    await rig.kill()
    monkeypatch.undo()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    torn = last.read_bytes()[:-1]
    await restart_with(rig, last, torn)
    assert KEY in rig.logs.failures
    assert last.read_bytes() == torn
    await restart_with(rig, path, good)
    assert batches_of(rig.log) == before
    assert rig.disk.facts.load("damaged/") == {}


@pytest.mark.parametrize("found", ["by a read", "at a start", "by an older release"])
async def test_no_durable_record_is_truncated_once_damage_was_found(rig: Rig, found: str) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 30)
    await rig.logs.flush_all([log])
    (path,) = rig.files(log)
    good = path.read_bytes()
    if found == "by a read":
        rig.logs.take_offline(KEY, CorruptStoreError("damage"))
        await asyncio.gather(*rig.logs._notes)
    await rig.kill()
    if found == "at a start":
        at = len(b"".join(batches[:-2]))
        await restart_with(rig, path, good[:at] + b"?" + good[at + 1 :])
        assert "but a good batch follows" in str(rig.logs.failures[KEY])
    elif found == "by an older release":
        await rig.start()
        await rig.disk.facts.commit({f"damaged/{log.folder_name}": b"damage"})
    for _ in range(2):
        await restart_with(rig, path, good[:-1])
        assert KEY in rig.logs.failures
    assert path.read_bytes() == good[:-1]
    await restart_with(rig, path, good)
    assert batches_of(rig.log) == batches


async def test_damage_is_not_repaired_by_a_segment_of_an_older_leader(rig: Rig) -> None:
    """Each batch in it is whole, but the leader epochs of a log never decrease."""
    log = rig.create()
    before = fill(log, 30, epoch=5)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    path = rig.files(log)[1]
    good = path.read_bytes()
    rig.logs.take_offline(KEY, CorruptStoreError("damage"))
    await asyncio.gather(*rig.logs._notes)
    older = b"".join(batch[:12] + (4).to_bytes(4, "big") + batch[16:] for batch in before if batch in good)
    await restart_with(rig, path, older)
    assert f"{path.name} at position 0" in str(rig.logs.failures[KEY])
    assert "leader epoch 4 after 5" in str(rig.logs.failures[KEY])
    await restart_with(rig, path, good)
    assert batches_of(rig.log) == before


async def test_a_recreated_replica_is_no_longer_damaged(rig: Rig) -> None:
    log = rig.create()
    fill(log, 5)
    await rig.settle(log)
    rig.logs.take_offline(KEY, CorruptStoreError("damage"))
    await rig.logs.set_aside([KEY], wall_ms=1)
    before = fill(rig.create(), 3)
    await rig.settle(rig.log)
    await rig.restart(clean=True)
    assert (batches_of(rig.log), rig.disk.facts.load("damaged/")) == (before, {})


@pytest.mark.parametrize("is_damaged", [False, True], ids=["after a kill", "after damage was found"])
async def test_the_memory_of_a_recovery_does_not_depend_on_the_number_of_batches(rig: Rig, is_damaged: bool) -> None:
    """A segment of 1 GiB may have ten million batches, whose headers would take gigabytes."""
    batch, count = make_batch([b"x"], leader_epoch=0), 20_000
    log = rig.create(ONE_SEGMENT)
    append(log, [b"x"])
    await rig.settle(log)
    path = rig.files(log)[0]
    await rig.kill()
    path.write_bytes(b"".join(offset.to_bytes(8, "big") + batch[8:] for offset in range(count)))
    if is_damaged:
        facts = SqliteFacts(rig.folder / "facts.db", lambda _: None)
        await facts.commit({DAMAGED + log.folder_name: damage_note("a bad batch", 1)})
        facts.close()
    tracemalloc.start()
    try:
        await rig.start()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rig.log.end_offset == count
    assert peak < 5 << 20, "memory holds only a chunk of the file and the index"
