"""What a log is after a stop that was not clean: whole, or named as damaged."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from broker.log import LogConfig, LogKey, PartitionLog
from broker.log.state import UNSYNCED, decode_state, encode_state, folder_fact, watermark_fact
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.wire.record_batch import LENGTH_END
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import KEY, SMALL, Rig, append, batches_of, fill

ONE_SEGMENT = LogConfig(index_interval=100)
CACHING = LogConfig(segment_size_max=500, index_interval=100, write_caching=True)


async def restart_with(rig: Rig, path: Path, content: bytes) -> None:
    await rig.kill()
    path.write_bytes(content)  # noqa: ASYNC240 -- nothing else runs
    await rig.start()


async def test_a_clean_stop_reads_no_log(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.create()
    for number in range(30):
        append(log, [b"%d" % number], epoch=number // 10, producer=(5, 0, number))
    log.advance_high_watermark(25)
    before = batches_of(log)
    await rig.stop()
    opened: list[str] = []
    with monkeypatch.context() as patch:
        original = FileDisk.open
        patch.setattr(
            FileDisk, "open", lambda self, path, create=False: (opened.append(path), original(self, path, create))[1]
        )
        await rig.start()
        assert opened == []
        log = rig.log
        assert rig.logs.clean_start
        assert (log.end_offset, log.flushed_offset, log.high_watermark) == (30, 30, 25)
        assert log.epochs.entries == ((0, 0), (1, 10), (2, 20))
    assert batches_of(log) == before
    assert log.append_as_leader(make_batch([b"29"], producer=(5, 0, 29)), 2, 0) == (29, 30, True)


async def test_a_killed_broker_loses_nothing(rig: Rig) -> None:
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


async def test_recovered_bytes_count_as_flushed_only_after_a_flush(rig: Rig) -> None:
    log = rig.create()
    fill(log, 5)
    await rig.kill()
    await rig.start()
    assert rig.log.flushed_offset == 0
    await rig.logs.flush_all([rig.log])


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_tail_torn_at_every_byte(rig: Rig, caplog: pytest.LogCaptureFixture, checkpoint: bool) -> None:
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
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            await restart_with(rig, path, whole[:size])
        assert batches_of(rig.log) == batches
        assert rig.log.end_offset == end_offset - 2
        assert path.stat().st_size == start
        assert ("torn tail" in caplog.text) == (size > start)
        if size > start:
            assert f"position={start} bytes={size - start} end_offset={end_offset - 2}" in caplog.text
    append(rig.log, [b"on", b"we", b"go"])
    assert len(batches_of(rig.log)) == 7


async def test_a_tail_of_rubbish(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    (path,) = rig.files(log)
    whole = path.read_bytes()
    lying = make_batch(base_offset=log.end_offset, leader_epoch=0, batch_length=2**31 - 1)
    for rubbish in (b"\0" * 5_000, b"\xff" * 100, b"\2" * 100, lying, make_batch(base_offset=log.end_offset)[:61]):
        await restart_with(rig, path, whole + rubbish)
        assert batches_of(rig.log) == batches
        assert path.read_bytes() == whole


async def test_every_flipped_byte_in_the_middle_is_refused(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    (path,) = rig.files(log)
    whole = path.read_bytes()
    start = len(batches[0]) + len(batches[1])
    for position in range(start, start + len(batches[2])):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        await restart_with(rig, path, bytes(damaged))
        if start + LENGTH_END <= position < start + 16 and KEY in rig.logs.logs:
            continue  # the leader epoch is outside the checksum: a higher one can only be told from the next batch
        assert KEY not in rig.logs.logs, position
        message = str(rig.logs.failures[KEY])
        assert path.name in message
        if not start + LENGTH_END <= position < start + 16:
            assert f"position {start}, offset 3" in message, message
        assert path.read_bytes() == bytes(damaged)  # nothing is repaired silently


async def test_the_others_go_on(rig: Rig) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    other = type(KEY)(KEY.topic_id, 9, 42)
    fill(rig.create(key=other), 6)
    (path,) = rig.files(log)
    damaged = bytearray(path.read_bytes())
    damaged[len(batches[0]) + 80] ^= 1
    await restart_with(rig, path, bytes(damaged))
    assert list(rig.logs.logs) == [other]
    assert list(rig.logs.failures) == [KEY]


async def test_a_tear_before_another_segment_is_damage(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    paths = rig.files(log)
    assert len(paths) > 3
    await restart_with(rig, paths[1], paths[1].read_bytes()[:-1])
    assert "but a good batch follows in" in str(rig.logs.failures[KEY])


async def test_with_write_caching_a_tear_before_another_segment_ends_the_log(rig: Rig) -> None:
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


async def test_with_write_caching_damage_below_the_watermark_is_damage(rig: Rig) -> None:
    log = rig.create(CACHING)
    fill(log, 30)
    await rig.settle(log)
    await rig.disk.facts.commit({watermark_fact(KEY): b"%d" % log.take_watermark()})
    paths = rig.files(log)
    await restart_with(rig, paths[1], paths[1].read_bytes()[:-1])
    assert "was durable and committed" in str(rig.logs.failures[KEY])


async def test_with_write_caching_a_missing_committed_segment_deletes_nothing(rig: Rig) -> None:
    """The file may be put back: the log is whole then."""
    log = rig.create(CACHING)
    written = fill(log, 30)
    await rig.settle(log)
    await rig.disk.facts.commit({watermark_fact(KEY): b"%d" % log.take_watermark()})
    second = rig.files(log)[1]
    await rig.kill()
    content = second.read_bytes()
    second.unlink()
    await rig.start()
    assert KEY in rig.logs.failures
    await restart_with(rig, second, content)
    assert batches_of(rig.log) == written


async def test_a_log_without_write_caching_again_is_synced_in_order(rig: Rig) -> None:
    log = rig.create(CACHING)
    fill(log, 3)
    await rig.logs.flush_all([log])
    assert rig.disk.facts.load(folder_fact(log.folder)) == {folder_fact(log.folder): UNSYNCED}
    log.config = SMALL
    fill(log, 27)
    await rig.logs.flush_all([log])
    assert rig.disk.facts.load(folder_fact(log.folder)) == {folder_fact(log.folder): b""}
    paths = rig.files(log)
    await restart_with(rig, paths[1], paths[1].read_bytes()[:-1])
    assert "but a good batch follows in" in str(rig.logs.failures[KEY])


async def test_a_tear_before_a_segment_that_holds_nothing_good(rig: Rig) -> None:
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


async def test_a_missing_segment(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    paths = rig.files(log)
    await rig.kill()
    hidden = paths[1].read_bytes()
    paths[1].unlink()
    await rig.start()
    assert "does not go on at offset" in str(rig.logs.failures[KEY])
    await restart_with(rig, paths[1], hidden)
    await rig.settle(rig.log)
    await rig.logs.checkpoint([rig.log])
    await rig.kill()
    paths[1].unlink()
    await rig.start()
    assert f"{paths[1].name} is missing" in str(rig.logs.failures[KEY])


async def test_a_file_shorter_than_its_recovery_point(rig: Rig) -> None:
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
    """Also in the first 21 bytes of a batch, which its checksum does not cover."""
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


@pytest.mark.parametrize("clean", [True, False])
async def test_every_flipped_byte_of_a_checkpoint_is_found(rig: Rig, clean: bool) -> None:
    log = rig.create()
    for epoch in range(3):
        fill(log, 3, epoch)
    await rig.settle(log)
    before = batches_of(log)
    await rig.stop()
    disk = FileDisk.acquire(rig.folder, 1, "cluster", uuid4)
    (name,) = disk.facts.load("log/")
    good = disk.facts.load(name)[name]
    disk.close()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 1
        disk = FileDisk.acquire(rig.folder, 1, "cluster", uuid4)
        forget = {key: None for key in disk.facts.load("damaged/")}
        await disk.facts.commit({**forget, name: bytes(damaged), "clean": b"" if clean else None})
        disk.close()
        await rig.start()
        if KEY in rig.logs.failures:
            assert name in str(rig.logs.failures[KEY])
        else:  # the checksum was no longer recognised as one, and what it is of is as it was
            assert position < good.index(b'"version"')
            assert batches_of(rig.log) == before
        await rig.kill()


async def test_a_checkpoint_of_a_release_that_wrote_no_checksum_is_read(rig: Rig) -> None:
    log = rig.create()
    state = log.take_state()
    data = encode_state(state)
    assert decode_state("log/x", data) == state
    assert decode_state("log/x", b"{" + data[data.index(b'"version"') :]) == state


async def test_indexes_are_only_hints(rig: Rig) -> None:
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


async def test_an_index_of_another_content_is_not_believed(rig: Rig) -> None:
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


async def test_damaged_producer_snapshots_are_no_loss(rig: Rig) -> None:
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
    name = f"log/{log.folder.removeprefix('logs/')}"
    await rig.disk.facts.commit({name: b'{"version": 1}'})
    await rig.kill()
    await rig.start()
    assert f"fact {name} is damaged" in str(rig.logs.failures[KEY])


async def test_folders_of_others_are_left_alone(rig: Rig) -> None:
    (rig.folder / "logs" / "lost+found").mkdir()
    (rig.folder / "logs" / "topic-1.nonsense").mkdir()
    await rig.restart(clean=False)
    assert not rig.logs.logs
    assert not rig.logs.failures
    assert (rig.folder / "logs" / "topic-1.nonsense").exists()


# What is gone, and was there: the facts know, also when no checkpoint was written


async def write_watermark(rig: Rig, log: PartitionLog) -> None:
    """As the broker does every few seconds."""
    await rig.disk.facts.commit({watermark_fact(log.key): b"%d" % log.take_watermark()})


@pytest.mark.parametrize("committed", [True, False])
async def test_a_flipped_bit_in_the_last_batch_is_damage_if_it_was_committed(rig: Rig, committed: bool) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    await rig.settle(log)
    if committed:
        await write_watermark(rig, log)
    end = log.end_offset
    (path,) = rig.files(log)
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    await restart_with(rig, path, bytes(damaged))
    if committed:
        assert f"but all below offset {end} was durable and committed" in str(rig.logs.failures[KEY])
        assert f"{path.name} at position {len(damaged) - len(batches[-1])}" in str(rig.logs.failures[KEY])
        assert path.read_bytes() == damaged
    else:
        assert batches_of(rig.log) == batches[:-1]


async def test_a_folder_that_vanished_is_not_made_anew(rig: Rig) -> None:
    """After the first acknowledgement already: nothing but the flush has written anything down."""
    log = rig.create()
    fill(log, 3)
    await rig.logs.flush_all([log])
    await rig.kill()
    shutil.rmtree(rig.folder / log.folder)
    for clean in (False, True):
        await rig.start()
        assert f"{log.folder} is missing, although it held a replica" in str(rig.logs.failures[KEY])
        assert not (rig.folder / log.folder).exists()
        await (rig.stop() if clean else rig.kill())
    await rig.start()
    await rig.logs.set_aside([KEY], wall_ms=1)  # what a reassignment does: told to begin anew
    assert await rig.logs.delete_strays(0, kept_ms=0) == 1
    fill(rig.create(), 3)
    await rig.restart(clean=False)
    assert not rig.logs.failures


async def test_a_folder_that_vanished_after_a_clean_stop_is_missed_at_once(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    await rig.settle(log)
    await rig.stop()
    shutil.rmtree(rig.folder / log.folder)
    await rig.start()
    assert f"{log.folder} is missing" in str(rig.logs.failures[KEY])


@pytest.mark.parametrize("gone", [1, 3, None])
async def test_segments_that_vanished_from_the_end_are_missed(rig: Rig, gone: int | None) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await write_watermark(rig, log)
    end = log.end_offset
    paths = rig.files(log)[-gone:] if gone else rig.files(log)
    await rig.kill()
    for path in paths:
        path.unlink()
    await rig.start()
    problem = f"{paths[0].name} is missing: all below offset {end} was durable and committed"
    assert problem in str(rig.logs.failures[KEY])


async def test_what_an_unclean_election_cut_is_not_missed(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await write_watermark(rig, log)
    end = log.end_offset
    assert log.truncation_floor == end
    await rig.logs.lower_truncation_floor(log, 10)
    log.truncate_to(10)
    cut = log.end_offset
    await rig.restart(clean=False)
    assert (rig.log.end_offset, rig.logs.failures) == (cut, {})
    assert rig.log.high_watermark <= cut < end


async def test_what_a_restart_at_the_leaders_start_dropped_is_not_missed(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await write_watermark(rig, log)
    assert await rig.logs.reset_to(log, 5)
    await rig.restart(clean=False)
    assert (rig.log.end_offset, rig.logs.failures) == (5, {})


async def test_a_replica_that_comes_back_empty_is_not_measured_by_the_one_before(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await write_watermark(rig, log)
    await rig.logs.set_aside([KEY], wall_ms=1)
    rig.create()
    await rig.restart(clean=False)
    assert rig.logs.failures == {}


async def test_a_watermark_below_which_all_was_durable_is_in_force_again(rig: Rig) -> None:
    log = rig.create()
    fill(log, 5)
    await rig.settle(log)
    await write_watermark(rig, log)
    end = log.end_offset
    fill(log, 5)
    await rig.restart(clean=False)
    assert (rig.log.high_watermark, rig.log.truncation_floor) == (end, end)
    assert rig.log.end_offset > end


async def test_many_new_partitions_share_the_transactions_that_say_they_exist(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = 0
    commit = rig.disk.facts.commit

    async def counted(changes: dict[str, bytes | None]) -> None:
        nonlocal commits
        commits += 1
        await commit(changes)

    monkeypatch.setattr(rig.disk.facts, "commit", counted)
    made = [rig.create(key=LogKey(KEY.topic_id, index, 42)) for index in range(300)]
    for log in made:
        fill(log, 1)
    await rig.logs.flush_all(made)
    assert 1 <= commits <= 2
    for log in made:
        fill(log, 1)
        log.begin_epoch(1)
    await rig.logs.flush_all(made)
    assert commits <= 2


@pytest.mark.parametrize("clean", [True, False])
async def test_damage_that_was_found_once_is_not_forgotten(rig: Rig, clean: bool) -> None:
    """Until the file is whole again, or the replica is made anew: a clean stop is not believed then."""
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
    await asyncio.gather(*rig.logs._notes)  # killed before that, it is found anew by the next read
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


async def test_a_damaged_replica_that_is_made_anew_is_trusted(rig: Rig) -> None:
    log = rig.create()
    fill(log, 5)
    await rig.settle(log)
    rig.logs.take_offline(KEY, CorruptStoreError("damage"))
    await rig.logs.set_aside([KEY], wall_ms=1)
    before = fill(rig.create(), 3)
    await rig.settle(rig.log)
    await rig.restart(clean=True)
    assert (batches_of(rig.log), rig.disk.facts.load("damaged/")) == (before, {})
