"""The mark of a clean stop: valid until the broker registers again, and for no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock
from uuid import uuid4

import pytest

from broker.log import LogConfig
from broker.log.state import STARTS
from broker.log.types import LOGS
from broker.server.role import BrokerRole, Replay, RoleConfig
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.file_disk import FileDisk
from tests.unit.broker.log.rig import KEY, fill
from tests.unit.metadata.builders import Cluster


@asynccontextmanager
async def started(*folders: Path) -> AsyncIterator[BrokerRole]:
    """A broker that has opened its logs.  It is killed at the end, unless it has been closed."""

    async def nobody(*_: object) -> Any:
        raise AssertionError("the controller is not asked")

    disks = [FileDisk.acquire(folder, 1, "cluster", uuid4) for folder in folders]
    role = BrokerRole(RoleConfig(1), Sources.real(), disks, cast(Replay, Cluster()), nobody)
    await role.__aenter__()
    yield role
    for task in role.logs._tasks:
        task.cancel()
    await asyncio.gather(*role.logs._tasks, return_exceptions=True)
    for disk in disks:
        disk.close()


async def stopped_cleanly(epoch: int, *folders: Path) -> None:
    async with started(*folders) as role:
        await role._on_registered(epoch)
        await role.close()


async def test_a_crash_before_the_registration_keeps_the_mark_of_the_clean_stop(tmp_path: Path) -> None:
    """Nothing was written, so all records of the earlier registration still exist."""
    folders = tmp_path / "a", tmp_path / "b"
    await stopped_cleanly(5, *folders)
    for _ in range(2):
        async with started(*folders) as role:
            assert role._previous_epoch == 5


async def test_a_crash_after_the_registration_counts_as_an_unclean_stop(tmp_path: Path) -> None:
    await stopped_cleanly(5, tmp_path)
    async with started(tmp_path) as role:
        await role._on_registered(9)
    async with started(tmp_path) as role:
        assert role._previous_epoch == -1


async def test_a_registration_removes_the_mark_of_the_clean_stop_in_every_directory(tmp_path: Path) -> None:
    """Otherwise a start with only some of the directories would count the stop as clean."""
    folders = tmp_path / "a", tmp_path / "b"
    await stopped_cleanly(5, *folders)
    async with started(*folders) as role:
        await role._on_registered(9)
    for folder in folders:
        async with started(folder) as role:
            assert role._previous_epoch == -1


async def test_the_mark_of_the_clean_stop_is_removed_before_the_first_record_can_be_written(tmp_path: Path) -> None:
    await stopped_cleanly(5, tmp_path)
    async with started(tmp_path) as role:
        registering = asyncio.ensure_future(role._on_registered(9))
        await asyncio.sleep(0)
        assert role.context.cluster.own_epoch == -1, "the removal is not durable yet"
        await registering
        assert role.context.cluster.own_epoch == 9


async def test_another_registration_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stopped_cleanly(5, tmp_path)
    async with started(tmp_path) as role:
        await role._on_registered(9)
        (disk,) = role._disks

        def waits_for_the_commit_under_way(_: str) -> dict[str, bytes]:
            raise AssertionError("the event loop would stop")

        monkeypatch.setattr(disk.facts, "load", waits_for_the_commit_under_way)
        await role._on_registered(10)
        assert role.context.cluster.own_epoch == 10


async def test_a_clean_stop_before_the_registration_keeps_the_mark_of_the_earlier_clean_stop(tmp_path: Path) -> None:
    await stopped_cleanly(5, tmp_path)
    async with started(tmp_path) as role:
        await role.close()
    async with started(tmp_path) as role:
        assert role._previous_epoch == 5


async def test_directories_with_different_marks_count_as_an_unclean_stop(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    await stopped_cleanly(5, *folders)
    await stopped_cleanly(9, folders[0])
    async with started(*folders) as role:
        assert role._previous_epoch == -1


async def test_a_directory_that_fails_at_the_start_does_not_make_the_last_stop_unclean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulator seed 730013516: the last replica in sync, on a healthy disk, counted as lost by a crash."""
    folders = tmp_path / "a", tmp_path / "b"
    await stopped_cleanly(5, *folders)
    with monkeypatch.context() as patch:
        patch.setattr(FileDisk, "make_dir", Mock(side_effect=[DiskError("failed"), None, None, None]))
        async with started(*folders) as role:
            assert role.progress.directories_offline == [role._disks[0].directory_id]
            assert role._previous_epoch == 5
            await role._on_registered(9)
    async with started(*folders) as role:
        assert role._previous_epoch == -1, "the mark was removed except in the failed directory"


async def test_a_start_without_a_working_directory_counts_the_last_stop_as_unclean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stopped_cleanly(5, tmp_path)
    monkeypatch.setattr(FileDisk, "make_dir", Mock(side_effect=DiskError("failed")))
    async with started(tmp_path) as role:
        assert role._previous_epoch == -1


async def test_a_new_directory_does_not_make_the_last_stop_unclean(tmp_path: Path) -> None:
    """For example, the new directory replaces a broken disk."""
    folders = tmp_path / "a", tmp_path / "b"
    await stopped_cleanly(5, *folders)
    for _ in range(2):  # the second process finds two directories that have been in use
        async with started(folders[1], tmp_path / "new") as role:
            assert role._previous_epoch == 5
            assert len({disk.facts.load(STARTS)[STARTS] for disk in role._disks}) == 1
    async with started(folders[1], tmp_path / "new") as role:
        await role._on_registered(9)
    async with started(folders[1], tmp_path / "new") as role:
        assert role._previous_epoch == -1


async def test_a_directory_with_an_unclean_stop_is_not_treated_as_new(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    async with started(folders[0]) as role:
        await role._on_registered(4)
    await stopped_cleanly(5, folders[1])
    async with started(*folders) as role:
        assert role._previous_epoch == -1


async def test_starts_are_numbered_across_directories(tmp_path: Path) -> None:
    """A directory that is new, or comes from a backup, does not lower the number."""
    folders = tmp_path / "a", tmp_path / "b"
    for number in (1, 2):
        async with started(folders[0]) as role:
            assert role._start_number == number
    for number in (3, 4):
        async with started(*folders) as role:
            assert role._start_number == number
    async with started(folders[1]) as role:
        assert role._start_number == 5
    async with started(*folders) as role:
        assert role._start_number == 6


async def test_a_start_continues_without_a_directory_that_cannot_store_its_number(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    async with started(*folders) as role:
        failing, working = role._disks
        role._on_disk_failure(failing.directory_id, DiskError("failed"))
        assert await role._marks.count_start() == 2
        assert failing.facts.load(STARTS) == {STARTS: b"1"}
        assert working.facts.load(STARTS) == {STARTS: b"2"}
        assert role._marks.clean_epoch() == -1


async def test_a_directory_that_cannot_remove_its_mark_goes_offline_with_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example, its file system is full.  Otherwise new replicas would be created in it."""
    folders = tmp_path / "a", tmp_path / "b"
    await stopped_cleanly(5, *folders)
    async with started(*folders) as role:
        failing = role._disks[0]
        monkeypatch.setattr(failing.facts, "commit", AsyncMock(side_effect=DiskError("no room")))
        await role._on_registered(9)
        assert role.progress.directories_offline == [failing.directory_id]
        assert set(role.logs.failed_disks) == {failing.directory_id}


def newest_segment(folder: Path) -> Path:
    return max(folder.glob(f"{LOGS}/*/*.log"))


@pytest.mark.parametrize("damage", ["last batch", "last segment"])
async def test_no_start_before_a_registration_truncates_records_of_the_clean_stop(tmp_path: Path, damage: str) -> None:
    """Everything was durable at the clean stop, so a bad tail was damaged since then, and is not torn.

    The broker still registers as stopped cleanly.  Therefore the replica must be offline, not shorter.
    """
    async with started(tmp_path) as role:
        await role._on_registered(5)
        config = LogConfig(segment_size_max=500, index_interval=100)
        fill(role.logs.create(KEY, "topic", role._disks[0].directory_id, config), 30)
        await role.close()
    async with started(tmp_path):  # killed before it registers
        pass
    newest = newest_segment(tmp_path)
    damaged = newest.read_bytes()[:-1]
    newest.write_bytes(damaged)
    if damage == "last segment":
        newest.unlink()
    async with started(tmp_path) as role:
        assert role._previous_epoch == 5
        assert "durable at the clean stop" in str(role.logs.failures[KEY])
    async with started(tmp_path) as role:
        assert role._previous_epoch == 5
        assert KEY in role.logs.failures
    assert damage == "last segment" or newest.read_bytes() == damaged, "nothing is repaired silently"


async def test_a_start_truncates_a_torn_tail_once_the_broker_has_registered(tmp_path: Path) -> None:
    async with started(tmp_path) as role:
        await role._on_registered(5)
        log = role.logs.create(KEY, "topic", role._disks[0].directory_id, LogConfig())
        fill(log, 5)
        end_offset = log.end_offset
        await role.close()
    async with started(tmp_path) as role:
        await role._on_registered(9)
    path = newest_segment(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    async with started(tmp_path) as role:
        assert role._previous_epoch == -1
        assert role.logs.logs[KEY].end_offset < end_offset
