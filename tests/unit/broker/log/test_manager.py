"""Logs of several data directories: opening, failing directories, replicas in two directories."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from broker.log import LogConfig, LogKey, LogManager, PartitionLog
from broker.log.state import state_fact
from broker.log.types import folder_name
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.runtime.syncs import SyncJob, SyncThreads, close_all
from tests.unit.broker.log.rig import KEY, OTHER, Rig, append, batches_of, fill, stopped_at, two_disks


async def test_the_folder_of_a_log_is_created_by_the_first_append(rig: Rig) -> None:
    log = rig.create()
    assert os.listdir(rig.folder / "logs") == []
    assert log.flushed_offset == log.end_offset == 0
    await rig.logs.flush_all([log])
    append(log, [b"a"])
    assert os.listdir(rig.folder / "logs") == [folder_name(KEY, "topic")]
    await rig.restart(clean=True)
    assert batches_of(rig.log)


async def test_an_empty_log_leaves_no_folder(rig: Rig) -> None:
    rig.create()
    await rig.restart(clean=True)
    assert not rig.logs.logs


@pytest.mark.parametrize("what", ["write", "sync"])
async def test_a_failed_disk_is_reported(rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    failed: list[UUID] = []
    told = asyncio.Event()

    def on_failure(directory_id: UUID, error: DiskError) -> None:
        failed.append(directory_id)
        told.set()

    rig.logs.events.directory_failed.subscribe(on_failure)
    log = rig.create()
    other = rig.create(key=OTHER)
    append(log, [b"a"])
    await rig.logs.flush_all([log])

    def broken(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def broken_sync(_: SyncThreads, jobs: Sequence[SyncJob]) -> None:
        close_all(jobs)
        broken()

    if what == "write":
        monkeypatch.setattr(os, "pwrite", broken)
        with pytest.raises(DiskError):
            append(log, [b"b"])
    else:
        monkeypatch.setattr(SyncThreads, "run", broken_sync)
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
    await rig.logs.maintain(stopped_at(0), 0)
    await rig.logs.close()
    assert rig.disk.facts.load("clean") == {}


async def test_only_the_disk_that_fails_at_the_start_is_offline(tmp_path: Path) -> None:
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
    logs.events.directory_failed.subscribe(lambda directory_id, error: failed.append(directory_id))
    await logs.open()
    assert failed == list(logs.failed_disks) == [disks[0].directory_id]
    assert logs.get(KEY) is None
    log = logs.logs[OTHER]
    append(log, [b"y"])
    await logs.flush_all([log])
    with pytest.raises(DiskError):
        logs.create(KEY, "t", disks[0].directory_id, LogConfig())
    await logs.maintain(stopped_at(0), 0)
    await logs.set_aside([OTHER], 0)
    await logs.close()
    for disk in disks:
        disk.close()


async def test_an_invariant_that_breaks_in_a_flush_ends_the_process_and_takes_no_directory_offline(rig: Rig) -> None:
    """The handler of the loop ends the process; see `quorumlog.runtime.run`."""
    loop = asyncio.get_running_loop()
    reported: asyncio.Future[object] = loop.create_future()
    loop.set_exception_handler(lambda _, context: reported.set_result(context["exception"]))
    log = rig.create()

    def broken() -> None:
        raise AssertionError(f"{log.flushed_offset} is below the watermark")

    log.durability.on_flushed = broken
    append(log, [b"a"])
    flushing = asyncio.create_task(rig.logs.flush_all([log]))
    either: list[asyncio.Future[Any]] = [reported, flushing]
    async with asyncio.timeout(10):
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    flushing.cancel()
    assert rig.logs.failed_disks == {}
    assert str(reported.result()) == "1 is below the watermark"


@asynccontextmanager
async def dirty_in_each(tmp_path: Path) -> AsyncIterator[tuple[list[FileDisk], LogManager, list[PartitionLog]]]:
    """Yield two directories, their manager, and one log in each with a record that is not flushed; then close all."""
    disks = two_disks(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    created = [
        logs.create(key, "t", disk.directory_id, LogConfig()) for key, disk in zip((KEY, OTHER), disks, strict=True)
    ]
    for log in created:
        append(log, [b"x"])
    yield disks, logs, created
    await logs.close()
    for disk in disks:
        disk.close()


async def test_a_failed_disk_does_not_affect_other_disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with dirty_in_each(tmp_path) as (disks, logs, (one, two)):
        disks[0]._set_failure(DiskError("broken"))
        with pytest.raises(DiskError):
            await logs.flush_all([one])
        await logs.flush_all([two])
        assert list(logs.failed_disks) == [disks[0].directory_id]
    disk = FileDisk.acquire(tmp_path / "b", 1, "cluster", uuid4)
    assert "clean" in disk.facts.load()
    disk.close()


async def test_a_flush_of_several_directories_begins_in_all_of_them_in_one_turn(tmp_path: Path) -> None:
    """One turn later, a log may have moved.  The flush of its former directory would then vouch for its records."""
    async with dirty_in_each(tmp_path) as (_, logs, (one, two)):
        flushing = asyncio.create_task(logs.flush_all([one, two]))
        await asyncio.sleep(0)  # one turn
        assert [len(directory.flush._next_pass) for directory in logs._directories.values()] == [1, 1]
        await flushing
        assert (one.flushed_offset, two.flushed_offset) == (1, 1)


async def in_two_directories(tmp_path: Path) -> list[FileDisk]:
    """Return two directories that both hold a copy of the replica KEY.

    The copy in the first directory has one record.  That directory failed, and the replica was created again in the
    second directory.  This copy has three records.
    """
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
async def test_the_metadata_decide_between_two_copies_of_a_replica(tmp_path: Path, counts: int) -> None:
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


async def test_a_replica_with_two_copies_is_offline_if_the_metadata_name_neither(tmp_path: Path) -> None:
    disks = await in_two_directories(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    logs.settle(KEY, UUID(int=9))
    assert "is in 2 data directories, and none of them is the assigned one" in str(logs.failures[KEY])
    assert (logs.get(KEY), dict(logs.doubles)) == (None, {})
    await logs.close()
    for disk in disks:
        disk.close()


async def damage(disk: FileDisk) -> None:
    """Damage the copy of KEY in this directory."""
    await disk.facts.commit({state_fact(folder_name(KEY, "t")): b"not a state"})


@pytest.mark.parametrize("damaged", [0, 1])
async def test_a_damaged_copy_that_the_metadata_do_not_name_is_set_aside(tmp_path: Path, damaged: int) -> None:
    disks = await in_two_directories(tmp_path)
    await damage(disks[damaged])
    logs = LogManager(disks)
    await logs.open()
    ids = [disk.directory_id for disk in disks]
    assert (logs.get(KEY), list(logs.failures)) == (None, [KEY])
    assert list(logs.doubles[KEY]) == [ids[1 - damaged]]
    logs.settle(KEY, ids[1 - damaged])
    assert (logs.logs[KEY].directory_id, dict(logs.failures)) == (ids[1 - damaged], {})
    await logs.set_doubles_aside(wall_ms=2)
    assert [stray.directory_id for stray in logs.strays()] == [ids[damaged]]
    end_offset = logs.logs[KEY].end_offset
    await logs.close()
    assert logs.clean_stop
    again = LogManager(disks)
    await again.open()
    assert (again.logs[KEY].end_offset, dict(again.failures), dict(again.doubles)) == (end_offset, {}, {})
    await again.close()
    for disk in disks:
        disk.close()


@pytest.mark.parametrize("damaged", [0, 1])
async def test_a_damaged_copy_that_the_metadata_name_takes_the_replica_offline(tmp_path: Path, damaged: int) -> None:
    disks = await in_two_directories(tmp_path)
    await damage(disks[damaged])
    logs = LogManager(disks)
    await logs.open()
    failure = logs.failures[KEY]
    logs.settle(KEY, disks[damaged].directory_id)
    assert (logs.get(KEY), dict(logs.failures), dict(logs.doubles)) == (None, {KEY: failure}, {})
    await logs.set_doubles_aside(wall_ms=1)
    assert logs.strays() == [], "the good copy may be needed"
    await check_that_it_starts_over(logs)
    for disk in disks:
        disk.close()


async def check_that_it_starts_over(logs: LogManager) -> None:
    """Check that a reassignment to another broker and back removes both copies."""
    await logs.set_aside([KEY], wall_ms=3)
    assert len(logs.strays()) == 2
    assert not logs.failures
    for directory in logs._directories.values():
        assert directory.disk.list("logs") == []
    await logs.close()
    assert logs.clean_stop


async def test_two_copies_that_the_metadata_do_not_name_are_set_aside_by_a_reassignment(tmp_path: Path) -> None:
    disks = await in_two_directories(tmp_path)
    for _ in range(2):
        logs = LogManager(disks)
        await logs.open()
        logs.settle(KEY, UUID(int=9))
        await logs.set_doubles_aside(wall_ms=1)
        assert logs.strays() == []
        await logs.close()
        assert not logs.clean_stop, "the state of the second copy is not written"
    logs = LogManager(disks)
    await logs.open()
    logs.settle(KEY, UUID(int=9))
    await check_that_it_starts_over(logs)
    for disk in disks:
        disk.close()


async def test_two_copies_stay_after_a_stop_until_they_are_set_aside(
    tmp_path: Path,
) -> None:
    disks = await in_two_directories(tmp_path)
    for _ in range(2):
        logs = LogManager(disks)
        await logs.open()
        assert {log.end_offset for log in logs.doubles[KEY].values()} == {1, 3}
        await logs.close()
        assert not logs.clean_stop, "the state of the second copy is not written"
    logs = LogManager(disks)
    await logs.open()
    assert not logs.clean_start
    await logs.set_doubles_aside(wall_ms=2)
    assert sorted(stray.directory_id for stray in logs.strays()) == sorted(disk.directory_id for disk in disks)
    assert not logs.doubles
    await logs.close()
    assert logs.clean_stop
    for disk in disks:
        disk.close()


async def test_a_stop_that_interrupts_setting_a_second_copy_aside_is_not_clean(tmp_path: Path) -> None:
    disks = await in_two_directories(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    logs.settle(KEY, disks[0].directory_id)
    async with logs._directories[disks[1].directory_id].changing:
        removal = asyncio.create_task(logs.set_doubles_aside(wall_ms=2))
        await asyncio.sleep(0)
        removal.cancel()
        await asyncio.gather(removal, return_exceptions=True)
    await logs.close()
    assert not logs.clean_stop, "the state of the second copy is not written"
    for disk in disks:
        disk.close()


async def test_a_replica_uses_its_other_copy_if_a_directory_fails_while_it_is_opened(
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


async def test_a_hanging_disk_delays_no_log_of_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_many_logs_open_without_reading_their_segments(rig: Rig) -> None:
    keys = [LogKey(UUID(int=number), 0, number) for number in range(300)]
    for number, key in enumerate(keys):
        append(rig.create(key=key), [b"%d" % number])
    await rig.stop()
    await rig.start()
    assert list(rig.logs.logs) != []
    assert not list(rig.disk._handles)
    assert [rig.logs.logs[key].end_offset for key in keys] == [1] * 300
