from __future__ import annotations

import asyncio
import errno
import logging
import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from broker.log import LogConfig, LogKey, LogManager, PartitionLog, Refused
from broker.log.types import folder_name, parse_folder_name
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime import file_disk
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.file_disk import FileDisk
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import KEY, Rig, append, batches_of, fill

OTHER = LogKey(UUID(int=7), 3, 43)
HOUR = 3_600_000
DAY = 24 * HOUR


def two_disks(tmp_path: Path) -> list[FileDisk]:
    return [FileDisk.acquire(tmp_path / name, 1, "cluster", uuid4) for name in "ab"]


@pytest.mark.parametrize("topic", ["a", "a.b_c-d", "x" * 249, "a-1." + "0" * 32 + ".5"])
def test_folder_names(topic: str) -> None:
    key = LogKey(uuid4(), 2**31 - 1, 2**63 - 1)
    name = folder_name(key, topic)
    assert len(name) <= 255
    parsed = parse_folder_name(name)
    assert parsed is not None
    assert parsed[0] == key
    assert topic.startswith(parsed[1])


@pytest.mark.parametrize("topic", ["../x", "a/b", "", "ä", "a\nb", ".."])
def test_no_topic_name_leads_out_of_the_directory(topic: str) -> None:
    try:
        name = folder_name(KEY, topic)
    except AssertionError:
        return
    assert "/" not in name
    assert name not in (".", "..")


async def test_folders_appear_with_the_first_append(rig: Rig) -> None:
    log = rig.create()
    assert os.listdir(rig.folder / "logs") == []
    assert log.flushed_offset == log.end_offset == 0
    await rig.logs.flush_all([log])
    append(log, [b"a"])
    assert os.listdir(rig.folder / "logs") == [folder_name(KEY, "topic")]
    await rig.restart(clean=True)
    assert batches_of(rig.log)


async def test_an_empty_log_leaves_nothing(rig: Rig) -> None:
    rig.create()
    await rig.restart(clean=True)
    assert not rig.logs.logs


async def test_strays_are_set_aside_then_deleted(rig: Rig) -> None:
    fill(rig.create(), 5)
    kept = rig.create(key=OTHER)  # the same partition, created again
    fill(kept, 5)
    empty = LogKey(UUID(int=9), 0, 1)
    rig.create(key=empty)
    await rig.logs.set_aside([KEY, empty, LogKey(UUID(int=1), 1, 1)], wall_ms=5_000)
    assert list(rig.logs.logs) == [OTHER]
    (stray,) = os.listdir(rig.folder / "strays")
    assert stray == folder_name(KEY, "topic") + ".5000.0"
    assert await rig.logs.delete_strays(5_000, kept_ms=1_000) == 0
    assert await rig.logs.delete_strays(5_999, kept_ms=1_000) == 0
    await rig.restart(clean=False)  # they are kept for as long again: a restart has observed no time
    assert list(rig.logs.logs) == [OTHER]
    assert await rig.logs.delete_strays(6_000, kept_ms=1_000) == 0
    assert await rig.logs.delete_strays(6_999, kept_ms=1_000) == 0
    assert await rig.logs.delete_strays(7_000, kept_ms=1_000) == 2
    assert os.listdir(rig.folder / "strays") == []
    assert rig.disk.facts.load("stray/") == {}
    assert len(batches_of(rig.logs.logs[OTHER])) == 5


async def test_setting_many_logs_aside_and_deleting_them_takes_two_log_lines(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keys = [LogKey(UUID(int=7), index, 1) for index in range(20)]
    for key in keys:
        fill(rig.create(key=key), 1)
    await rig.logs.flush_all(rig.logs.logs.values())
    caplog.clear()
    await rig.logs.set_aside(keys, wall_ms=1)
    assert await rig.logs.purge_strays() == 20
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" directory_id")[0] for line in lines] == ["logs set aside", "strays deleted"]
    assert all("count=20" in line and line.count(",") == 4 for line in lines), "a few are named"


async def test_strays_that_are_kept_go_only_when_they_are_purged(rig: Rig) -> None:
    """One was set aside before it was said that they are to be kept, one after."""
    for key in (KEY, OTHER):
        fill(rig.create(key=key), 5)
    await rig.logs.set_aside([KEY], wall_ms=1)
    await rig.logs.keep_strays()
    await rig.logs.set_aside([OTHER], wall_ms=1, keep=True)
    await rig.restart(clean=False)
    assert await rig.logs.delete_strays(0, kept_ms=0) == 0
    assert [(one.folder, one.is_kept) for one in rig.logs.strays()] == sorted(
        (folder_name(key, "topic"), True) for key in (KEY, OTHER)
    )
    assert await rig.logs.purge_strays() == 2
    assert (os.listdir(rig.folder / "strays"), rig.logs.strays()) == ([], [])
    assert rig.disk.facts.load("stray/") == {}


async def test_strays_are_purged_while_another_is_being_set_aside(rig: Rig) -> None:
    fill(rig.create(), 1)
    await rig.logs.flush_all(rig.logs.logs.values())
    await asyncio.gather(rig.logs.set_aside([KEY], wall_ms=1), rig.logs.purge_strays())
    assert len(rig.logs.strays()) == len(os.listdir(rig.folder / "strays"))
    await rig.logs.purge_strays()
    assert rig.logs.strays() == os.listdir(rig.folder / "strays") == []


async def test_a_damaged_fact_of_a_stray_is_named(rig: Rig) -> None:
    await rig.disk.facts.commit({"stray/x": b"not ours"})
    await rig.stop()
    with pytest.raises(CorruptStoreError, match="stray/x"):
        await rig.start()
    rig.disk.close()


async def test_a_replica_may_come_back_after_it_was_set_aside(rig: Rig) -> None:
    for turn in range(3):
        log = rig.create()
        assert log.end_offset == 0
        fill(log, 5)
        await rig.logs.set_aside([KEY], wall_ms=1)
        assert len(os.listdir(rig.folder / "strays")) == turn + 1
    assert await rig.logs.delete_strays(0, kept_ms=0) == 3


@pytest.mark.parametrize("calls", range(4))
async def test_setting_aside_is_finished_after_a_crash(rig: Rig, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
    log = rig.create()
    fill(log, 5)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    steps = 0

    def crash_before(name: str) -> None:
        original = getattr(type(rig.disk.facts if name == "commit" else rig.disk), name)

        def step(self: object, *arguments: object) -> object:
            nonlocal steps
            if steps == calls:
                raise KeyboardInterrupt
            steps += 1
            return original(self, *arguments)

        monkeypatch.setattr(type(rig.disk.facts if name == "commit" else rig.disk), name, step)

    for name in ("commit", "rename", "flush"):
        crash_before(name)
    with pytest.raises(KeyboardInterrupt):
        await rig.logs.set_aside([KEY], wall_ms=1)
    monkeypatch.undo()
    await rig.restart(clean=False)
    if calls == 0:  # nothing was written yet
        assert list(rig.logs.logs) == [KEY]
        assert len(batches_of(rig.log)) == 5
        return
    assert not rig.logs.logs
    assert not rig.logs.failures
    assert len(os.listdir(rig.folder / "strays")) == 1
    assert await rig.logs.delete_strays(0, kept_ms=0) == 1
    assert os.listdir(rig.folder / "strays") == []


async def test_upkeep_leaves_a_log_alone_that_was_set_aside_before_its_turn(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    log.advance_start_offset(10)
    setting_aside = asyncio.ensure_future(rig.logs.set_aside([KEY], wall_ms=1))
    upkeep = asyncio.ensure_future(rig.logs.checkpoint([log]))
    await setting_aside
    await upkeep
    assert not rig.logs.failed_disks
    assert rig.disk.list("logs") == []


async def test_a_damaged_log_can_be_set_aside(rig: Rig) -> None:
    log = rig.create()
    fill(log, 5)
    rig.logs.take_offline(KEY, CorruptStoreError("damaged"))
    assert list(rig.logs.failures) == [KEY]
    await rig.logs.set_aside([KEY], wall_ms=1)
    assert not rig.logs.failures
    assert len(os.listdir(rig.folder / "strays")) == 1
    fill(rig.create(), 2)


async def test_retention_by_time(rig: Rig) -> None:
    log = rig.create(LogConfig(segment_size_max=300, retention_ms=1_000))
    for number in range(30):
        append(log, [b"x" * 20], timestamps=[100 * number], producer=(5, 0, number))
    await rig.logs.maintain(2_000, 2_000)
    assert log.start_offset == 0  # nothing is committed yet
    log.advance_high_watermark(15)
    await rig.logs.flush_all([log])
    await rig.logs.maintain(2_000, 2_000)
    assert log.start_offset == 9  # timestamps below 1,000 in whole segments
    log.advance_high_watermark(30)
    await rig.logs.maintain(2_700, 2_700)
    assert log.start_offset == 15
    assert [int(path.stem) for path in rig.files(log)] == [15, 18, 21, 24, 27]
    assert log.epochs.entries == ((0, 0),)
    await rig.restart(clean=False)
    assert rig.log.start_offset == 15
    assert len(batches_of(rig.log)) == 15
    rig.log.config = LogConfig(retention_ms=1_000)
    rig.log.advance_high_watermark(30)
    await rig.logs.flush_all([rig.log])
    await rig.logs.maintain(10**7, 10**7)
    assert rig.log.start_offset == rig.log.end_offset == 30
    assert rig.files(rig.log) == []
    for clean in (False, True):
        await rig.restart(clean=clean)
        assert (rig.log.start_offset, rig.log.end_offset, rig.log.flushed_offset) == (30, 30, 30)
        assert rig.log.epochs.latest == 0
        assert rig.log.append_as_leader(make_batch([b"x" * 20], producer=(5, 0, 29)), 0, 0) == (29, 30, True)
    assert append(rig.log, [b"on"]).first_offset == 30


async def test_retention_by_size(rig: Rig) -> None:
    log = rig.create(LogConfig(segment_size_max=300, retention_ms=-1, retention_size=600))
    for _ in range(30):
        append(log, [b"x" * 20])
    await rig.settle(log)
    await rig.logs.maintain(0, 0)
    assert 600 <= log.size < 900
    assert log.start_offset > 0


async def test_a_far_timestamp_does_not_delete_others(rig: Rig) -> None:
    log = rig.create(LogConfig(segment_size_max=300, retention_ms=1_000))
    append(log, [b"x"], timestamps=[253_370_764_800_000])
    for _ in range(10):
        append(log, [b"x" * 20], timestamps=[5_000])
    await rig.settle(log)
    await rig.logs.maintain(5_500, 5_500)
    assert log.start_offset == 0
    without = rig.create(LogConfig(segment_size_max=300, retention_ms=1_000), key=OTHER)
    append(without, [b"x"], timestamps=[-1], now_ms=3_000)
    append(without, [b"x"], timestamps=[-1], now_ms=5_000)
    await rig.settle(without)
    await rig.logs.maintain(5_900, 10**6)  # records without a timestamp: the wall clock says nothing of their age
    assert without.start_offset == 0
    await rig.logs.maintain(6_100, 5_500)
    assert without.start_offset == 2
    assert log.start_offset == 0


async def retained(rig: Rig) -> PartitionLog:
    """A log whose records are as old as the wall clock at DAY says that they are: one second."""
    log = rig.create(LogConfig(segment_size_max=300, retention_ms=7 * DAY))
    for _ in range(9):
        append(log, [b"x" * 20], timestamps=[DAY - 1_000])
    await rig.settle(log)
    return log


async def test_a_wall_clock_that_jumps_ahead_deletes_nothing_for_a_day(rig: Rig) -> None:
    log = await retained(rig)
    await rig.logs.maintain(0, DAY)
    for hours in range(1, 25):
        await rig.logs.maintain(hours * HOUR, 3_650 * DAY + hours * HOUR)
        assert log.start_offset == 0
    await rig.logs.maintain(25 * HOUR, 3_650 * DAY + 25 * HOUR)
    assert log.start_offset == 9


async def test_a_wall_clock_that_jumps_ahead_and_back_deletes_nothing(rig: Rig) -> None:
    log = await retained(rig)
    await rig.logs.maintain(0, DAY)
    await rig.logs.maintain(HOUR, 3_650 * DAY)
    for hours in range(2, 50):
        await rig.logs.maintain(hours * HOUR, DAY + hours * HOUR)
    assert log.start_offset == 0


async def test_retention_goes_on_by_the_loops_clock_while_the_wall_clock_is_not_believed(rig: Rig) -> None:
    log = await retained(rig)
    log.config = LogConfig(retention_ms=10 * HOUR)
    await rig.logs.maintain(0, DAY)
    await rig.logs.maintain(9 * HOUR, 3_650 * DAY)
    assert log.start_offset == 0
    await rig.logs.maintain(10 * HOUR, 3_650 * DAY)
    assert log.start_offset == 9


@pytest.mark.parametrize("clean", [True, False])
async def test_a_wall_clock_that_is_ahead_at_the_start_deletes_nothing_for_a_day(rig: Rig, clean: bool) -> None:
    await retained(rig)
    await rig.logs.maintain(0, DAY)
    await rig.restart(clean=clean)
    await rig.settle(rig.log)
    rig.log.config = LogConfig(retention_ms=7 * DAY)
    for hours in range(24):
        await rig.logs.maintain(hours * HOUR, 3_650 * DAY + hours * HOUR)
        assert rig.log.start_offset == 0
    await rig.logs.maintain(24 * HOUR, 3_651 * DAY)
    assert rig.log.start_offset == 9


async def test_the_time_that_retention_goes_by_is_written_once_an_hour(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await retained(rig)
    commit, written = rig.disk.facts.commit, []

    async def noted(changes: dict[str, bytes | None]) -> None:
        written.extend(value for name, value in changes.items() if name == "clock")
        await commit(changes)

    monkeypatch.setattr(rig.disk.facts, "commit", noted)
    for minute in range(121):
        await rig.logs.maintain(60_000 * minute, DAY + 60_000 * minute)
    assert written == [b"%d" % (DAY + hours * HOUR) for hours in range(3)]
    await rig.logs.maintain(60_000 * 121, HOUR)  # set back
    assert written[-1] == b"%d" % HOUR


async def test_a_moved_start_is_kept(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    log.advance_start_offset(20)
    await rig.logs.checkpoint([log])
    assert int(rig.files(log)[0].stem) <= 20
    await rig.restart(clean=False)
    assert rig.log.start_offset == 20
    assert rig.log.read(20, 1, rig.log.end_offset)


async def test_a_start_that_moves_while_the_facts_are_written_takes_no_segment_that_they_name(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    log.advance_start_offset(10)
    commit = rig.disk.facts.commit

    async def slow_commit(changes: dict[str, bytes | None]) -> None:
        log.advance_start_offset(40)  # the leader's reply said so
        await commit(changes)

    monkeypatch.setattr(rig.disk.facts, "commit", slow_commit)
    await rig.logs.checkpoint([log])
    await rig.restart(clean=False)
    assert not rig.logs.failures
    assert rig.log.start_offset == 10


async def test_a_checkpoint_that_was_cut_off_is_made_again_by_a_clean_stop(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that was never written must not be trusted by the next start: it lacks acknowledged records."""
    log = rig.create()
    fill(log, 30)
    await rig.logs.checkpoint([log])
    written = fill(log, 10)
    await rig.settle(log)
    waits = asyncio.Event()

    async def wait_for_turn(changes: dict[str, bytes | None]) -> None:
        waits.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patches:
        patches.setattr(rig.disk.facts, "commit", wait_for_turn)
        upkeep = asyncio.ensure_future(rig.logs.checkpoint([log]))
        await waits.wait()
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)
    await rig.restart(clean=True)
    assert batches_of(rig.log) == written


async def test_reset_that_was_cut_off_is_undone_by_a_clean_stop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty state may have been written, while the log in memory still has all records."""
    log = rig.create()
    written = fill(log, 30)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    commit = rig.disk.facts.commit
    is_written = asyncio.Event()

    async def commit_and_wait(changes: dict[str, bytes | None]) -> None:
        await commit(changes)
        is_written.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patches:
        patches.setattr(rig.disk.facts, "commit", commit_and_wait)
        reset = asyncio.ensure_future(rig.logs.reset_to(log, 19))
        await is_written.wait()
        reset.cancel()
        await asyncio.gather(reset, return_exceptions=True)
    await rig.restart(clean=True)
    assert batches_of(rig.log) == written


async def test_reset(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30, epoch=3)
    await rig.settle(log)
    assert await rig.logs.reset_to(log, 1_000)
    assert (log.start_offset, log.end_offset, log.flushed_offset, log.high_watermark) == (1_000,) * 4
    assert log.epochs.latest == -1
    batch = make_batch([b"a"], base_offset=1_000, leader_epoch=5)
    assert log.append_as_follower(batch, 5, 0) == (1_000, 1_001, False)
    await rig.logs.flush_all([log])
    await rig.restart(clean=False)
    assert (rig.log.start_offset, rig.log.end_offset) == (1_000, 1_001)
    assert batches_of(rig.log) == [batch]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_reset_log_knows_the_epoch_before_its_start(rig: Rig, clean: bool) -> None:
    """Without it the log's position could not be compared with a leader's until a record comes."""
    log = rig.create()
    fill(log, 30, epoch=3)
    await rig.settle(log)
    assert await rig.logs.reset_to(log, 1_000, 7)
    assert (log.start_offset, log.end_offset, log.epochs.last_epoch) == (1_000, 1_000, 7)
    await rig.restart(clean=clean)
    assert (rig.log.start_offset, rig.log.end_offset, rig.log.epochs.last_epoch) == (1_000, 1_000, 7)
    assert not isinstance(
        rig.log.append_as_follower(make_batch([b"a"], base_offset=1_000, leader_epoch=7), 9, 0), Refused
    )


async def test_a_reset_that_was_interrupted_is_finished(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.create()
    fill(log, 30)
    monkeypatch.setattr(log, "restart_at", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        await rig.logs.reset_to(log, 1_000)
    await rig.restart(clean=False)
    assert (rig.log.start_offset, rig.log.end_offset) == (1_000, 1_000)
    assert rig.files(rig.log) == []


async def test_a_reset_gives_way_to_a_leadership(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    resetting = asyncio.ensure_future(rig.logs.reset_to(log, 1_000))
    await asyncio.sleep(0)
    log.begin_epoch(7)
    assert await resetting is False
    assert len(batches_of(log)) == 3
    assert log.epochs.latest == 7


async def test_a_reset_leaves_a_log_alone_that_was_set_aside_before_its_turn(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    await rig.settle(log)
    setting_aside = asyncio.ensure_future(rig.logs.set_aside([KEY], wall_ms=1))
    resetting = asyncio.ensure_future(rig.logs.reset_to(log, 1_000))
    await setting_aside
    assert await resetting is False
    other = rig.create(key=OTHER)
    fill(other, 1)
    await rig.logs.flush_all([other])
    assert not rig.logs.failed_disks
    assert set(rig.disk.facts.load("log/")) == set()


async def test_a_reset_gives_way_to_an_append(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    resetting = asyncio.ensure_future(rig.logs.reset_to(log, 1_000))
    await asyncio.sleep(0)
    fill(log, 1)
    assert await resetting is False
    assert len(batches_of(log)) == 4
    await rig.restart(clean=False)
    assert len(batches_of(rig.log)) == 4


@pytest.mark.parametrize("what", ["write", "sync"])
async def test_a_failed_disk_tells_everyone(rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    failed: list[UUID] = []
    told = asyncio.Event()

    def on_failure(directory_id: UUID, error: DiskError) -> None:
        failed.append(directory_id)
        told.set()

    rig.logs.on_failure = on_failure
    log = rig.create()
    other = rig.create(key=OTHER)
    append(log, [b"a"])
    await rig.logs.flush_all([log])

    def broken(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    if what == "write":
        monkeypatch.setattr(os, "pwrite", broken)
        with pytest.raises(DiskError):
            append(log, [b"b"])
    else:
        monkeypatch.setattr(file_disk, "_fdatasync", broken)
        append(log, [b"b"])
        append(other, [b"b"])
        for one in (log, other):
            with pytest.raises(DiskError, match="Input/output error"):
                await rig.logs.flush_all([one])
    await told.wait()
    monkeypatch.undo()
    assert failed == [rig.disk.directory_id]
    assert list(rig.logs.failed_disks) == failed
    with pytest.raises(DiskError):
        append(other, [b"c"])
    with pytest.raises(DiskError):
        rig.logs.create(LogKey(UUID(int=8), 0, 0), "t", rig.disk.directory_id, LogConfig())
    assert log.read(0, 100, 1)
    await rig.logs.maintain(0, 0)
    await rig.logs.close()
    assert rig.disk.facts.load("clean") == {}


async def test_a_disk_that_fails_at_the_start_is_offline_and_the_others_are_not(tmp_path: Path) -> None:
    disks = two_disks(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    for key, disk in ((KEY, disks[0]), (OTHER, disks[1])):
        log = logs.create(key, "t", disk.directory_id, LogConfig())
        append(log, [b"x"])
        await logs.flush_all([log])
    await logs.close()
    disks[0]._set_failure(DiskError("broken"))
    logs, failed = LogManager(disks), list[UUID]()
    logs.on_failure = lambda directory_id, error: failed.append(directory_id)
    await logs.open()
    assert failed == list(logs.failed_disks) == [disks[0].directory_id]
    assert logs.get(KEY) is None
    log = logs.logs[OTHER]
    append(log, [b"y"])
    await logs.flush_all([log])
    with pytest.raises(DiskError):
        logs.create(KEY, "t", disks[0].directory_id, LogConfig())
    await logs.maintain(0, 0)
    await logs.set_aside([OTHER], 0)
    await logs.close()
    for disk in disks:
        disk.close()


async def test_disks_fail_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = two_disks(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    one = logs.create(KEY, "t", disks[0].directory_id, LogConfig())
    two = logs.create(OTHER, "t", disks[1].directory_id, LogConfig())
    append(one, [b"x"])
    append(two, [b"x"])
    disks[0]._set_failure(DiskError("broken"))
    with pytest.raises(DiskError):
        await logs.flush_all([one])
    await logs.flush_all([two])
    assert list(logs.failed_disks) == [disks[0].directory_id]
    await logs.close()
    for disk in disks:
        disk.close()
    disk = FileDisk.acquire(tmp_path / "b", 1, "cluster", uuid4)
    assert "clean" in disk.facts.load()
    disk.close()


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_what_is_set_aside_on_a_working_disk_goes_although_another_has_failed(
    tmp_path: Path, is_noticed: bool
) -> None:
    disks = two_disks(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    for key, disk in ((KEY, disks[0]), (OTHER, disks[1])):
        append(logs.create(key, "t", disk.directory_id, LogConfig()), [b"x"])
    await logs.flush_all(logs.logs.values())
    error = DiskError("broken")
    disks[0]._set_failure(error)
    if is_noticed:
        logs.disk_failed(disks[0].directory_id, error)
        await logs.set_aside([KEY, OTHER], wall_ms=1)
    else:
        with pytest.raises(DiskError):
            await logs.set_aside([KEY, OTHER], wall_ms=1)
    assert list(logs.failed_disks) == [disks[0].directory_id]
    assert os.listdir(tmp_path / "b" / "logs") == []
    assert [stray.directory_id for stray in logs.strays()] == [disks[1].directory_id]
    await logs.close()
    for disk in disks:
        disk.close()


async def in_two_directories(tmp_path: Path) -> list[FileDisk]:
    """KEY with one record on a, whose disk failed; moved away meanwhile, and back, with three, on b; then killed."""
    disks = two_disks(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    append(logs.create(KEY, "t", disks[0].directory_id, LogConfig()), [b"x"])
    await logs.flush_all(logs.logs.values())
    logs.disk_failed(disks[0].directory_id, DiskError("broken"))
    await logs.set_aside([KEY], wall_ms=1)
    log = logs.create(KEY, "t", disks[1].directory_id, LogConfig())
    for _ in range(3):
        append(log, [b"y"])
    await logs.flush_all([log])
    await logs.close()
    for disk in disks:
        disk.close()
    return two_disks(tmp_path)


@pytest.mark.parametrize("counts", [0, 1])
async def test_of_a_replica_in_two_directories_the_one_that_the_metadata_names_counts(
    tmp_path: Path, counts: int
) -> None:
    disks = await in_two_directories(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    ids = [disk.directory_id for disk in disks]
    assert (logs.get(KEY), dict(logs.failures)) == (None, {})
    assert {at: log.end_offset for at, log in logs.doubles[KEY].items()} == {ids[0]: 1, ids[1]: 3}
    logs.settle(KEY, ids[counts])
    assert (logs.logs[KEY].directory_id, logs.logs[KEY].end_offset) == (ids[counts], (1, 3)[counts])
    await logs.set_doubles_aside(wall_ms=2)
    assert [stray.directory_id for stray in logs.strays()] == [ids[1 - counts]]
    append(logs.logs[KEY], [b"z"])
    await logs.flush_all([logs.logs[KEY]])
    await logs.close()
    again = LogManager(disks)
    await again.open()
    assert (again.logs[KEY].end_offset, dict(again.doubles)) == ((2, 4)[counts], {})
    assert again.clean_start
    await again.close()
    for disk in disks:
        disk.close()


async def test_a_replica_in_two_directories_of_which_the_metadata_names_none_is_offline(tmp_path: Path) -> None:
    disks = await in_two_directories(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    logs.settle(KEY, UUID(int=9))
    assert "is in 2 data directories, and none of them is the assigned one" in str(logs.failures[KEY])
    assert (logs.get(KEY), dict(logs.doubles)) == (None, {})
    await logs.close()
    for disk in disks:
        disk.close()


async def test_doubles_that_nobody_settled_are_there_again_after_a_stop_and_go_when_they_are_nobodys(
    tmp_path: Path,
) -> None:
    disks = await in_two_directories(tmp_path)
    for _ in range(2):
        logs = LogManager(disks)
        await logs.open()
        assert {log.end_offset for log in logs.doubles[KEY].values()} == {1, 3}
        await logs.close()
    logs = LogManager(disks)
    await logs.open()
    assert not logs.clean_start
    await logs.set_doubles_aside(wall_ms=2)
    assert sorted(stray.directory_id for stray in logs.strays()) == sorted(disk.directory_id for disk in disks)
    assert not logs.doubles
    await logs.close()
    for disk in disks:
        disk.close()


async def test_a_directory_that_fails_while_it_is_opened_leaves_the_other_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = await in_two_directories(tmp_path)
    adopt = LogManager._adopt

    def fails_after_it(manager: LogManager, log: PartitionLog) -> None:
        adopt(manager, log)
        if log.directory_id == disks[1].directory_id:
            raise DiskError("broken")

    monkeypatch.setattr(LogManager, "_adopt", fails_after_it)
    logs = LogManager(disks)
    await logs.open()
    assert list(logs.failed_disks) == [disks[1].directory_id]
    assert (logs.logs[KEY].end_offset, dict(logs.doubles)) == (1, {})
    await logs.close()
    for disk in disks:
        disk.close()


async def test_a_disk_that_hangs_holds_up_none_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disks = two_disks(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    one = logs.create(KEY, "t", disks[0].directory_id, LogConfig())
    two = logs.create(OTHER, "t", disks[1].directory_id, LogConfig())
    fill(one, 3)
    fill(two, 3)
    await logs.flush_all([one, two])
    commit, hanging, healed = disks[0].facts.commit, asyncio.Event(), asyncio.Event()

    async def slow_commit(changes: dict[str, bytes | None]) -> None:
        hanging.set()
        await healed.wait()
        await commit(changes)

    monkeypatch.setattr(disks[0].facts, "commit", slow_commit)
    upkeep = asyncio.ensure_future(logs.checkpoint([one]))
    await hanging.wait()
    async with asyncio.timeout(10):
        assert await logs.reset_to(two, 100)
        await logs.lower_truncation_floor(two, 100)
        await logs.set_aside([OTHER], wall_ms=1)
    assert not upkeep.done()
    healed.set()
    await upkeep
    await logs.close()
    for disk in disks:
        disk.close()


async def test_many_logs_open_without_being_looked_at(rig: Rig) -> None:
    keys = [LogKey(UUID(int=number), 0, number) for number in range(300)]
    for number, key in enumerate(keys):
        append(rig.create(key=key), [b"%d" % number])
    await rig.stop()
    await rig.start()
    assert list(rig.logs.logs) != []
    assert not list(rig.disk._handles)
    assert [rig.logs.logs[key].end_offset for key in keys] == [1] * 300


async def test_expired_producers_are_forgotten(rig: Rig) -> None:
    log = rig.create(LogConfig(producer_expiration_ms=1_000))
    append(log, [b"a"], now_ms=0, producer=(5, 0, 0))
    await rig.settle(log)
    await rig.logs.maintain(10_000, 0)  # silence begins here
    assert log.producers.get(5) is not None
    await rig.logs.maintain(11_000, 0)
    assert log.producers.get(5) is not None
    await rig.logs.maintain(11_001, 0)
    assert log.producers.get(5) is None
    await rig.restart(clean=True)
    assert append(rig.log, [b"b"], producer=(5, 0, 1)).first_offset == 1


async def test_a_retry_of_a_batch_that_is_not_committed_is_recognised_however_long_it_waits(rig: Rig) -> None:
    log = rig.create(LogConfig(producer_expiration_ms=1_000))
    append(log, [b"a"], producer=(5, 0, 0))
    await rig.settle(log)
    append(log, [b"b"], producer=(5, 0, 1))
    for now_ms in (0, 10_000, 20_000):
        await rig.logs.maintain(now_ms, 0)
    assert append(log, [b"b"], producer=(5, 0, 1)) == (1, 2, True)


async def test_a_retry_shows_that_its_producer_is_alive(rig: Rig) -> None:
    log = rig.create(LogConfig(producer_expiration_ms=1_000))
    append(log, [b"a"], producer=(5, 0, 0))
    await rig.settle(log)
    await rig.logs.maintain(0, 0)
    assert append(log, [b"a"], producer=(5, 0, 0)) == (0, 1, True)
    await rig.logs.maintain(5_000, 0)
    assert append(log, [b"a"], producer=(5, 0, 0)) == (0, 1, True)


async def test_producers_read_again_after_a_truncation_or_a_restart_have_not_been_silent(rig: Rig) -> None:
    """Whatever the records' own timestamps say."""
    log = rig.create(LogConfig(producer_expiration_ms=1_000))
    append(log, [b"a"], producer=(5, 0, 0), timestamps=[1])
    await rig.settle(log)
    await rig.logs.maintain(50_000, 50_000)
    append(log, [b"b"])
    log.truncate_to(1)
    assert len(log.producers) == 1
    await rig.logs.maintain(60_000, 60_000)
    assert log.producers.get(5) is not None
    for clean in (True, False):
        await rig.restart(clean=clean)
        assert len(rig.log.producers) == 1
        await rig.logs.maintain(10**12, 10**12)
        assert append(rig.log, [b"a"], producer=(5, 0, 0)) == (0, 1, True)


async def test_checkpoints_shorten_recovery(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.create(LogConfig())
    append(log, [b"x" * 500_000])
    for _ in range(20):
        append(log, [b"x" * 500_000])
    await rig.settle(log)
    await rig.logs.maintain(0, 0)
    assert log.truncation_floor == log.end_offset
    append(log, [b"after"])
    await rig.kill()
    read = 0
    original = file_disk._File.pread

    def pread(self: file_disk._File, position: int, size: int) -> bytes:
        nonlocal read
        data = original(self, position, size)
        read += len(data)
        return data

    monkeypatch.setattr(file_disk._File, "pread", pread)
    await rig.start()
    assert rig.log.end_offset == 22
    assert read < 10_000
