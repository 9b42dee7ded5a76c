"""Folders that are set aside, kept, deleted and purged."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from broker.log import LogConfig, LogKey, LogManager, strays
from broker.log.types import folder_name
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.turns import Turn
from tests.unit.broker.log.rig import KEY, OTHER, Rig, append, batches_of, fill, two_disks


async def test_a_log_that_was_set_aside_is_deleted_after_the_time_for_which_strays_are_kept(rig: Rig) -> None:
    fill(rig.create(), 5)
    kept = rig.create(key=OTHER)  # the same partition after it was created again
    fill(kept, 5)
    empty = LogKey(UUID(int=9), 0, 1)
    rig.create(key=empty)
    await rig.logs.set_aside([KEY, empty, LogKey(UUID(int=1), 1, 1)], wall_ms=5_000)
    assert list(rig.logs.logs) == [OTHER]
    (stray,) = os.listdir(rig.folder / "strays")
    assert stray == folder_name(KEY, "topic") + ".5000.0"
    assert await rig.logs.delete_strays(5_000, kept_ms=1_000) == 0
    assert await rig.logs.delete_strays(5_999, kept_ms=1_000) == 0
    # They are kept for the whole time again, because a restart has not observed any of it.
    await rig.restart(clean=False)
    assert list(rig.logs.logs) == [OTHER]
    assert await rig.logs.delete_strays(6_000, kept_ms=1_000) == 0
    assert await rig.logs.delete_strays(6_999, kept_ms=1_000) == 0
    assert await rig.logs.delete_strays(7_000, kept_ms=1_000) == 2
    assert os.listdir(rig.folder / "strays") == []
    assert rig.disk.facts.load("stray/") == {}
    assert len(batches_of(rig.logs.logs[OTHER])) == 5


async def test_setting_many_logs_aside_and_deleting_them_writes_two_log_lines(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[tuple[str, int, int]] = []

    def info(event: str, *, count: int, first: str, **_: object) -> None:
        lines.append((event, count, len(first.split(","))))

    keys = [LogKey(UUID(int=7), index, 1) for index in range(20)]
    for key in keys:
        fill(rig.create(key=key), 1)
    await rig.logs.flush_all(rig.logs.logs.values())
    monkeypatch.setattr(strays, "logger", SimpleNamespace(info=info))
    await rig.logs.set_aside(keys, wall_ms=1)
    assert await rig.logs.purge_strays() == 20
    assert lines == [("logs set aside", 20, 5), ("strays deleted", 20, 5)], "each line names only a few logs"


async def test_kept_strays_are_deleted_only_by_a_purge(rig: Rig) -> None:
    """One stray was set aside before the request to keep strays, and one after it."""
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


async def test_keeping_strays_during_a_purge_delays_no_other_change_of_the_directory(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(rig.create(), 5)
    await rig.logs.set_aside([KEY], wall_ms=1)
    (directory,) = rig.logs._directories.values()
    begun, may_delete, remove_tree = threading.Event(), threading.Event(), rig.disk.remove_tree

    def wait(path: str) -> None:
        begun.set()
        may_delete.wait()
        remove_tree(path)

    monkeypatch.setattr(rig.disk, "remove_tree", wait)
    purging = asyncio.create_task(rig.logs.purge_strays())
    await asyncio.to_thread(begun.wait)
    keeping = asyncio.create_task(rig.logs.keep_strays())
    try:
        await asyncio.sleep(0)
        assert not directory.changing.locked()
        assert not keeping.done()
    finally:
        may_delete.set()
    assert await purging == 1
    await keeping


async def test_strays_are_purged_while_another_log_is_being_set_aside(rig: Rig) -> None:
    fill(rig.create(), 1)
    await rig.logs.flush_all(rig.logs.logs.values())
    await asyncio.gather(rig.logs.set_aside([KEY], wall_ms=1), rig.logs.purge_strays())
    assert len(rig.logs.strays()) == len(os.listdir(rig.folder / "strays"))
    await rig.logs.purge_strays()
    assert rig.logs.strays() == []
    assert os.listdir(rig.folder / "strays") == []


async def test_a_damaged_fact_of_a_stray_fails_the_start_and_is_named(rig: Rig) -> None:
    await rig.disk.facts.commit({"stray/x": b"not ours"})
    await rig.stop()
    with pytest.raises(CorruptStoreError, match="stray/x"):
        await rig.start()
    rig.disk.close()


async def test_a_replica_may_be_created_again_after_it_was_set_aside(rig: Rig) -> None:
    for turn in range(3):
        log = rig.create()
        assert log.end_offset == 0
        fill(log, 5)
        await rig.logs.set_aside([KEY], wall_ms=1)
        assert len(os.listdir(rig.folder / "strays")) == turn + 1
    assert await rig.logs.delete_strays(0, kept_ms=0) == 3


@pytest.mark.parametrize("calls", range(4))
async def test_setting_a_log_aside_is_finished_after_a_crash(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
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


async def test_a_damaged_log_can_be_set_aside(rig: Rig) -> None:
    log = rig.create()
    fill(log, 5)
    rig.logs.take_offline(KEY, CorruptStoreError("damaged"))
    assert list(rig.logs.failures) == [KEY]
    await rig.logs.set_aside([KEY], wall_ms=1)
    assert not rig.logs.failures
    assert len(os.listdir(rig.folder / "strays")) == 1
    fill(rig.create(), 2)


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_strays_on_a_working_disk_are_deleted_although_another_disk_failed(
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


async def interrupt_removal(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel the removal of the log with `KEY` once the manager no longer has it."""
    taken_out = asyncio.Event()

    async def stopped(_: Turn) -> None:
        if KEY not in rig.logs.logs:
            taken_out.set()
            await asyncio.Event().wait()

    with monkeypatch.context() as patches:
        patches.setattr(Turn, "passed", stopped)
        removal = asyncio.ensure_future(rig.logs.set_aside([KEY], wall_ms=1))
        await taken_out.wait()
        removal.cancel()
        await asyncio.gather(removal, return_exceptions=True)


async def test_a_stop_that_interrupts_setting_a_log_aside_is_not_clean(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts about the log are outdated, and the log may be assigned to this broker again before the next start."""
    log = rig.create()
    fill(log, 3)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    batches = fill(log, 9)
    await rig.settle(log)
    await interrupt_removal(rig, monkeypatch)
    await rig.restart(clean=True)
    assert not rig.logs.clean_start
    assert batches_of(rig.log) == batches


async def test_a_stop_after_an_interrupted_removal_is_not_clean_although_a_later_removal_succeeded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in (KEY, OTHER):
        fill(rig.create(key=key), 3)
    await rig.logs.flush_all(rig.logs.logs.values())
    await interrupt_removal(rig, monkeypatch)
    await rig.logs.set_aside([OTHER], wall_ms=1)
    await rig.restart(clean=True)
    assert not rig.logs.clean_start


async def test_a_stop_is_clean_after_a_log_was_set_aside_by_two_calls(rig: Rig) -> None:
    """The second call waits for the directory, and then finds nothing to do."""
    fill(rig.create(), 3)
    await rig.settle(rig.log)
    (directory,) = rig.logs._directories.values()
    async with directory.changing:
        removals = [asyncio.ensure_future(rig.logs.set_aside([KEY], wall_ms=1)) for _ in range(2)]
        await asyncio.sleep(0)
    await asyncio.gather(*removals)
    await rig.restart(clean=True)
    assert rig.logs.clean_start
