"""States of logs in the facts: checkpoints, and changes that are recorded in the facts before they are made."""

from __future__ import annotations

import asyncio

import pytest

from broker.log import LogConfig, Refused
from broker.log.state import folder_fact, state_fact
from broker.log.upkeep import LogUpkeep
from quorumlog.runtime import file_disk
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.turns import Turn
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import KEY, OTHER, Rig, append, batches_of, fill, stopped_at


async def test_upkeep_skips_a_log_that_was_set_aside_before_its_turn(rig: Rig) -> None:
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


async def test_an_advanced_log_start_offset_survives_a_restart(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    log.advance_start_offset(20)
    await rig.logs.checkpoint([log])
    assert int(rig.files(log)[0].stem) <= 20
    await rig.restart(clean=False)
    assert rig.log.start_offset == 20
    assert rig.log.read(20, 1, rig.log.end_offset)


async def test_a_start_within_a_batch_that_recovery_has_just_read_is_kept(rig: Rig) -> None:
    """Recovery begins at this batch, so nothing after the beginning of the batch counts as durable before a flush."""
    log = rig.create()
    append(log, [b"a", b"b", b"c"])
    await rig.logs.flush_all([log])
    log.advance_high_watermark(2)
    log.advance_start_offset(2)
    await rig.logs.checkpoint([log])
    await rig.restart(clean=False)
    marks = rig.log.marks
    assert (marks.durable_offset, marks.durable_start_offset) == (0, 2)
    assert rig.log.upkeep.take_state().start_offset == 2


@pytest.mark.parametrize("step", ["prepare_checkpoint", "remove_below_start"])
async def test_a_checkpoint_that_fails_takes_the_directory_offline(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    log.advance_start_offset(20)

    def fail(_: LogUpkeep) -> None:
        raise DiskError("no space left on device")

    monkeypatch.setattr(LogUpkeep, step, fail)
    with pytest.raises(DiskError, match="no space left"):
        await rig.logs.checkpoint([log])
    assert list(rig.logs.failed_disks) == [log.directory_id]


async def test_a_log_start_that_advances_during_a_checkpoint_deletes_no_segment_of_the_checkpoint(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    log.advance_start_offset(10)
    commit = rig.disk.facts.commit

    async def slow_commit(changes: dict[str, bytes | None]) -> None:
        log.advance_start_offset(40)  # according to the leader's reply
        await commit(changes)

    monkeypatch.setattr(rig.disk.facts, "commit", slow_commit)
    await rig.logs.checkpoint([log])
    await rig.restart(clean=False)
    assert not rig.logs.failures
    assert rig.log.start_offset == 10


async def test_an_interrupted_checkpoint_is_repeated_by_a_clean_stop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start must not trust the last stored state, which lacks acknowledged records."""
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


async def test_an_interrupted_reset_is_undone_by_a_clean_stop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_reset_log_is_empty_and_continues_at_its_new_start(rig: Rig) -> None:
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
    """Without this epoch, the position of the log could not be compared with the leader's before the next append."""
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


async def test_an_interrupted_reset_is_finished_after_a_crash(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.create()
    fill(log, 30)
    monkeypatch.setattr(log, "restart_at", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        await rig.logs.reset_to(log, 1_000)
    await rig.restart(clean=False)
    assert (rig.log.start_offset, rig.log.end_offset) == (1_000, 1_000)
    assert rig.files(rig.log) == []


@pytest.mark.parametrize("at_a_segment", [False, True])
async def test_a_reset_within_the_log_is_finished_after_a_power_failure(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, at_a_segment: bool
) -> None:
    """The state is durable before the deletions, so old segments may be found at and above the new start."""
    log = rig.create()
    fill(log, 30, epoch=3)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    start = log.segments[2].base_offset + (0 if at_a_segment else 1)
    monkeypatch.setattr(log, "restart_at", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        await rig.logs.reset_to(log, start, 7)
    await rig.restart(clean=False)
    assert (rig.log.start_offset, rig.log.end_offset) == (start, start)
    assert rig.files(rig.log) == []
    batch = make_batch([b"a"], base_offset=start, leader_epoch=8)
    assert rig.log.append_as_follower(batch, 8, 0) == (start, start + 1, False)
    await rig.logs.flush_all([rig.log])
    await rig.restart(clean=False)
    assert batches_of(rig.log) == [batch]


async def test_a_cancelled_reset_keeps_the_fact_of_its_folder(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    await rig.settle(log)
    before = rig.disk.facts.load(folder_fact(log.folder))
    assert before
    resetting = asyncio.ensure_future(rig.logs.reset_to(log, 1_000))
    await asyncio.sleep(0)
    log.begin_epoch(7)
    assert await resetting is False
    assert rig.disk.facts.load(folder_fact(log.folder)) == before


async def test_becoming_leader_cancels_a_reset(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    resetting = asyncio.ensure_future(rig.logs.reset_to(log, 1_000))
    await asyncio.sleep(0)
    log.begin_epoch(7)
    assert await resetting is False
    assert len(batches_of(log)) == 3
    assert log.epochs.latest == 7


async def test_becoming_leader_cancels_a_reset_that_waits_for_its_turn(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    await rig.settle(log)
    (directory,) = rig.logs._directories.values()
    async with directory.changing:
        resetting = asyncio.ensure_future(rig.logs.reset_to(log, 1_000))
        await asyncio.sleep(0)
        log.begin_epoch(7)
        fill(log, 1, epoch=7)
    assert await resetting is False
    assert len(batches_of(log)) == 4
    await rig.restart(clean=False)
    assert len(batches_of(rig.log)) == 4


async def test_a_new_leader_keeps_its_high_watermark_although_a_truncation_was_waiting(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    await rig.settle(log)
    log.advance_high_watermark(log.end_offset)
    (directory,) = rig.logs._directories.values()
    async with directory.changing:
        lowering = asyncio.ensure_future(rig.logs.lower_truncation_floor(log, 1))
        await asyncio.sleep(0)
        log.begin_epoch(7)
    await lowering
    assert log.high_watermark == log.end_offset


async def test_a_reset_is_skipped_if_its_log_was_set_aside_before_its_turn(rig: Rig) -> None:
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


async def test_an_append_cancels_a_reset(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    resetting = asyncio.ensure_future(rig.logs.reset_to(log, 1_000))
    await asyncio.sleep(0)
    fill(log, 1)
    assert await resetting is False
    assert len(batches_of(log)) == 4
    await rig.restart(clean=False)
    assert len(batches_of(rig.log)) == 4


async def test_no_record_is_acknowledged_while_the_facts_describe_an_empty_log(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica may become leader while it begins to reset its log.  A crash would lose the records that it flushes."""
    log = rig.create()
    append(log, [b"a"])
    await rig.logs.flush_all([log])
    commit, resets, is_restored, may_end = rig.disk.facts.commit, 0, asyncio.Event(), asyncio.Event()

    async def held(changes: dict[str, bytes | None]) -> None:
        nonlocal resets
        resets += state_fact(log.folder) in changes
        if resets == 1:
            append(log, [b"b"])
            await rig.logs.flush_all([log])
        elif resets == 2:
            is_restored.set()
            await may_end.wait()
        await commit(changes)

    monkeypatch.setattr(rig.disk.facts, "commit", held)
    resetting = asyncio.ensure_future(rig.logs.reset_to(log, 1_000))
    async with asyncio.timeout(20):
        await is_restored.wait()
    assert log.flushed_offset == 1
    may_end.set()
    assert not await resetting
    assert log.flushed_offset == 2


async def test_checkpoints_shorten_recovery(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.create(LogConfig())
    append(log, [b"x" * 500_000])
    for _ in range(20):
        append(log, [b"x" * 500_000])
    await rig.settle(log)
    await rig.logs.maintain(stopped_at(0), 0)
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


async def test_a_stop_during_a_checkpoint_leaves_no_segments_below_the_start(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start after a clean stop reads no folder, so nothing would ever delete these files."""
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    log.advance_start_offset(20)
    removing = asyncio.Event()

    async def stopped(_: Turn) -> None:
        if log.durable_start_offset == 20:
            removing.set()
            await asyncio.Event().wait()

    with monkeypatch.context() as patches:
        patches.setattr(Turn, "passed", stopped)
        upkeep = asyncio.ensure_future(rig.logs.checkpoint([log]))
        await removing.wait()
        upkeep.cancel()
        await asyncio.gather(upkeep, return_exceptions=True)
    await rig.restart(clean=True)
    assert [int(path.stem) for path in rig.files(rig.log)] == [segment.base_offset for segment in rig.log.segments]
