"""The flushes of a data directory: failures, file systems, disks that hang, and stopped processes."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from uuid import uuid4

import pytest

from quorumlog.runtime import file_disk, stall
from quorumlog.runtime.disk import DiskError, DiskFile
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.runtime.syncs import Sync, SyncJob, SyncThreads, close_all
from tests.hanging_syncs import hanging_syncs
from tests.unit.quorumlog.runtime.test_file_disk import acquire, make


async def test_nothing_is_written_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = acquire(tmp_path)
    file = disk.open("a", create=True)
    file.append(b"good")

    def full(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DiskError, match="No space left"):
            file.append(b"more")
    assert isinstance(disk.failure, DiskError)
    for attempt in (
        lambda: file.append(b"again"),
        lambda: file.truncate(0),
        lambda: disk.open("b", create=True),
        lambda: disk.rename("a", "b"),
        lambda: disk.remove("a"),
    ):
        with pytest.raises(DiskError, match="No space left"):
            attempt()
    with pytest.raises(DiskError, match="No space left"):
        await disk.flush([file])
    assert file.pread(0, 10) == b"good"
    disk.close()


@pytest.mark.parametrize("count", [1, 20])
async def test_a_failed_sync_is_not_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(file_disk, "is_fully_synced", lambda _: True)
    disk = acquire(tmp_path)
    files = [disk.open(str(number), create=True) for number in range(count)]
    for file in files:
        file.append(b"data")

    async def broken(_: SyncThreads, jobs: Sequence[SyncJob]) -> None:
        assert [job.operation for job in jobs] == [Sync.DATA if count == 1 else Sync.SYSTEM]
        close_all(jobs)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(SyncThreads, "run", broken)
    with pytest.raises(DiskError, match="Input/output error"):
        await disk.flush(files)
    monkeypatch.undo()
    with pytest.raises(DiskError, match="Input/output error"):
        await disk.flush(files)
    disk.close()


async def test_a_few_files_and_folders_are_synced_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was removed meanwhile is skipped, because it has nothing to make durable."""
    disk = acquire(tmp_path)
    disk.make_dir("logs")
    file = disk.open("logs/a", create=True)
    file.append(b"data")
    synced: list[tuple[str, Sync]] = []
    run = SyncThreads.run

    async def noted(threads: SyncThreads, jobs: Sequence[SyncJob]) -> None:
        synced.extend((os.readlink(f"/proc/self/fd/{job.fd}"), job.operation) for job in jobs)
        await run(threads, jobs)

    monkeypatch.setattr(SyncThreads, "run", noted)
    await disk.flush([file], ["logs", "removed"])
    assert synced == [(str(tmp_path / "logs/a"), Sync.DATA), (str(tmp_path / "logs"), Sync.ALL)]
    disk.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Sync]:
    """Return a list that records all further syncs, which are not executed."""
    found: list[Sync] = []

    async def sync(_: SyncThreads, jobs: Sequence[SyncJob]) -> None:
        found.extend(job.operation for job in jobs)
        close_all(jobs)

    monkeypatch.setattr(SyncThreads, "run", sync)
    return found


async def test_each_file_and_folder_is_synced_if_the_file_system_has_no_full_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[Sync]
) -> None:
    monkeypatch.setattr(file_disk, "is_fully_synced", lambda _: False)
    disk = acquire(tmp_path)
    files = [disk.open(str(number), create=True) for number in range(100)]
    for folder in ("c", "d"):
        disk.make_dir(folder)
    for count in (20, 63, 64, 65, 100):
        synced.clear()
        await disk.flush(files[:count], ["", "c", "d"])
        assert synced == [*[Sync.DATA] * count, *[Sync.ALL] * 3]
    disk.close()


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no second file system")
async def test_files_on_another_file_system_are_synced_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[Sync]
) -> None:
    """The sync of the directory's own file system does not include these files."""
    monkeypatch.setattr(file_disk, "is_fully_synced", lambda _: True)
    disk = acquire(tmp_path)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        (tmp_path / "logs").symlink_to(other)
        assert os.stat(other).st_dev != os.stat(tmp_path).st_dev
        await disk.flush([disk.open(f"{number:02}", create=True) for number in range(20)])
        await disk.flush([disk.open(f"logs/{number:02}", create=True) for number in range(20)])
        disk.close()
    assert synced == [Sync.SYSTEM, *[Sync.DATA] * 20]


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="no second file system")
async def test_folders_on_another_file_system_are_synced_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: list[Sync]
) -> None:
    """After a start, a deletion may have to become durable before any file of the folder is opened."""
    monkeypatch.setattr(file_disk, "is_fully_synced", lambda _: True)
    folders = [f"logs/{number:02}" for number in range(20)]
    acquire(tmp_path).close()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        (tmp_path / "logs").symlink_to(other)
        (tmp_path / "dangling").symlink_to(tmp_path / "missing")
        disk = acquire(tmp_path)
        for folder in folders:
            disk.make_dir(folder)
        await disk.flush((), folders)
        disk.close()
    assert synced == [Sync.ALL] * 20


def test_a_symbolic_link_that_cannot_be_followed_does_not_prevent_a_start(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    acquire(tmp_path).close()


async def test_each_part_of_a_large_flush_has_its_own_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk with many files still makes some files durable in each part."""
    monkeypatch.setattr(file_disk, "is_fully_synced", lambda _: False)
    limits: list[float] = []
    limit, run = stall.no_longer_than, SyncThreads.run

    def counting(stall_s: float) -> AbstractAsyncContextManager[None]:
        limits.append(stall_s)
        return limit(stall_s)

    monkeypatch.setattr(file_disk, "no_longer_than", counting)
    disk = acquire(tmp_path)
    files = [disk.open(str(number), create=True) for number in range(100)]
    for file in files:
        file.append(b"x")
    dirty: list[int] = []

    async def sync(threads: SyncThreads, jobs: Sequence[SyncJob]) -> None:
        dirty.append(len(disk._dirty))
        await run(threads, jobs)

    monkeypatch.setattr(SyncThreads, "run", sync)
    await disk.flush(files)
    disk.close()
    assert len(limits) == 2
    assert dirty == [36, 0], "files whose sync has not begun must be closed last"


async def test_a_flush_of_many_files_needs_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_disk, "is_fully_synced", lambda _: False)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, limits[1]))
    try:
        disk = acquire(tmp_path)
        files = [disk.open(f"{number:03}", create=True) for number in range(300)]
        for file in files:
            file.append(b"data")
        await disk.flush(files, [""])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert disk.failure is None
    disk.close()


async def test_a_directory_that_hangs_does_not_delay_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, other = acquire(tmp_path / "a"), acquire(tmp_path / "b")
    files = {disk: [disk.open(f"{number}.log", create=True) for number in range(5)] for disk in (hung, other)}
    for disk in files:
        for file in files[disk]:
            file.append(b"x")
    with hanging_syncs(tmp_path / "a", monkeypatch):
        waiting = asyncio.ensure_future(hung.flush(files[hung]))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await other.flush(files[other])
        assert not waiting.done()
    await waiting
    for disk in (hung, other):
        disk.close()


def unflushed(folder: Path, stall_s: float) -> tuple[FileDisk, DiskFile]:
    """Return a directory, and a file in it with a byte that is not flushed."""
    disk = FileDisk.acquire(folder, 1, "mine", uuid4, stall_s=stall_s)
    file = disk.open("a.log", create=True)
    file.append(b"x")
    return disk, file


async def test_a_directory_that_flushes_nothing_for_too_long_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, file = unflushed(tmp_path, stall_s=0.05)
    with hanging_syncs(tmp_path, monkeypatch):
        with pytest.raises(DiskError, match=r"flush: .*not done within 0\.05 s: the disk hangs"):
            await disk.flush([file])
        with pytest.raises(DiskError, match="the disk hangs"):
            file.append(b"y")
        with pytest.raises(DiskError, match="the disk hangs"):
            await disk.flush([file])
    disk.close()


async def test_a_suspended_process_does_not_treat_its_disk_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, file = unflushed(tmp_path, stall_s=0.8)
    with hanging_syncs(tmp_path, monkeypatch) as released:
        flush = asyncio.ensure_future(disk.flush([file]))
        await asyncio.sleep(0)
        time.sleep(1)  # noqa: ASYNC251  # as SIGSTOP: the whole process stops
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, released.set)
        await flush
    assert disk.failure is None
    disk.close()


async def test_a_process_resumed_after_the_timeout_first_waits_for_the_result_of_its_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stall, "PULSES", 1)
    answered = asyncio.get_running_loop().create_future()
    async with stall.no_longer_than(0.3):
        time.sleep(1)  # noqa: ASYNC251  # as SIGSTOP
        for _ in range(5):  # turns of the loop until the thread's result has arrived
            await asyncio.sleep(0)
        answered.set_result(None)
        await answered
    with pytest.raises(TimeoutError, match="the disk hangs"):
        async with stall.no_longer_than(0.3):
            await asyncio.Event().wait()


async def test_a_failed_sync_fails_concurrent_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reports a failed write-back only once: another sync of the same file then succeeds."""
    disk = acquire(tmp_path)
    file = disk.open("a", create=True)
    file.append(b"data")
    began, is_second_there, reported = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def sync(_: SyncThreads, jobs: Sequence[SyncJob]) -> None:
        close_all(jobs)
        if not began.is_set():
            began.set()
            await is_second_there.wait()
            raise OSError(errno.EIO, "Input/output error")
        is_second_there.set()
        await reported.wait()

    monkeypatch.setattr(SyncThreads, "run", sync)
    first = asyncio.create_task(disk.flush([file]))
    await began.wait()
    second = asyncio.create_task(disk.flush([file]))
    with pytest.raises(DiskError, match="Input/output error"):
        await first
    reported.set()
    with pytest.raises(DiskError, match="Input/output error"):
        await second
