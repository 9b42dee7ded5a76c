"""A quorum directory on a failing disk: after the first failure, no file in it changes."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from quorum.core.types import LogEnd
from quorum.ports import StoreWrite
from quorum.snapshot_file import snapshot_name
from quorum.store import SqliteQuorumStore
from quorum.store import sqlite as sqlite_store
from quorum.store.directory import DATABASE, IDENTITY, LOCK, WAL
from quorumlog.errors import FatalError, StoreRefusedError
from tests.contract.samples import data, snapshot_bytes, state
from tests.failing_syncs import FailingDisk, contents, failing_disk, failing_syncs
from tests.unit.quorum.store.test_sqlite_store import crashed, make, opened, write_rounds

pytestmark = pytest.mark.usefixtures("short_collections")

ROUNDS = 5
END = LogEnd(1, 4)
LOG_END = 2 + ROUNDS


def assert_left(disk: FailingDisk) -> None:
    """The folder is unchanged since the failure, and records that the stop was not clean."""
    gc.collect()  # destroys connections without references, which closes them
    disk.assert_untouched()
    assert disk.left is not None
    assert disk.left[LOCK] == f"{os.getpid()} open\n".encode()


async def filled(folder: Path) -> SqliteQuorumStore:
    """Return a new, open store whose log ends at `LOG_END`."""
    store = make(folder)
    await store.open(1, None)
    await write_rounds(store, ROUNDS)
    return store


async def reopened(folder: Path) -> int:
    """Return the log end that another process finds.  It opens a copy, since this process holds the lock."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    log_end, _ = await opened(copy)
    return log_end


async def test_no_file_of_the_directory_changes_after_a_failed_sync(tmp_path: Path) -> None:
    with failing_disk(tmp_path / "q") as failing:
        store = await filled(failing.folder)
        failing.fails = WAL
        with pytest.raises(FatalError, match=r"disk I/O error \(SQLITE_IOERR_FSYNC\)"):
            await store.write([StoreWrite(state(LOG_END + 1), None, (data(LOG_END),))])
        await store.close()
    assert_left(failing)
    assert failing.left is not None
    assert failing.left.keys() == {DATABASE, WAL, IDENTITY, LOCK}
    with pytest.raises(StoreRefusedError, match=f"in use by process {os.getpid()}"):
        await make(failing.folder).open(1, None)
    assert await reopened(failing.folder) in (LOG_END, LOG_END + 1)


@pytest.mark.parametrize("file", [DATABASE, WAL])
async def test_a_failed_checkpoint_fails_the_next_write_and_the_close(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The close also fails if no write follows: the process must not end as after a clean stop."""
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_BYTES", 1)
    with failing_disk(tmp_path / "q") as failing:
        store = make(failing.folder)
        await store.open(1, None)
        write, fold = store.write, sqlite_store._fold

        def failing_fold(connection: sqlite3.Connection) -> None:
            failing.fails = file
            fold(connection)

        monkeypatch.setattr(sqlite_store, "_fold", failing_fold)
        await write_rounds(store, 0)
        assert store._tidying is not None
        await asyncio.wait({store._tidying})
        with pytest.raises(FatalError, match="SQLITE_IOERR_FSYNC"):
            await write([StoreWrite(state(3), None, (data(2),))])
        with pytest.raises(FatalError, match="SQLITE_IOERR_FSYNC"):
            await store.close()
    assert_left(failing)
    assert await reopened(failing.folder) == 2


@pytest.mark.parametrize("file", [DATABASE, WAL])
async def test_a_close_whose_sync_fails_is_not_recorded_as_a_clean_stop(tmp_path: Path, file: str) -> None:
    with failing_disk(tmp_path / "q") as failing:
        store = await filled(failing.folder)
        failing.fails = file
        with pytest.raises(FatalError, match="SQLITE_IOERR_FSYNC"):
            await store.close()
    assert_left(failing)
    assert await reopened(failing.folder) == LOG_END


async def test_a_close_whose_sync_of_the_lock_fails_is_not_a_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, os.strerror(5))

    store = await filled(tmp_path / "q")
    with monkeypatch.context() as patch:
        patch.setattr("quorum.store.directory.os.fsync", fail)
        with pytest.raises(FatalError, match="EIO"):
            await store.close()
    gc.collect()
    assert (tmp_path / "q" / WAL).stat().st_size > 0
    assert await reopened(tmp_path / "q") == LOG_END


async def test_a_cancelled_close_leaves_the_files_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the event loop cancels every task.  A database closed without a recorded stop would look damaged."""
    store = await filled(tmp_path / "q")
    fold, folding, may_fold = sqlite_store._fold, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow_fold(connection: sqlite3.Connection) -> None:
        loop.call_soon_threadsafe(folding.set)
        may_fold.wait()
        fold(connection)

    monkeypatch.setattr(sqlite_store, "_fold", slow_fold)
    closing = loop.create_task(store.close())
    await folding.wait()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    may_fold.set()
    await asyncio.wait(others)
    assert closing.cancelled()
    gc.collect()
    monkeypatch.undo()
    assert (tmp_path / "q" / LOCK).read_text() == f"{os.getpid()} open\n"
    assert await reopened(tmp_path / "q") == LOG_END


async def test_a_close_during_which_a_write_fails_is_not_recorded_as_a_clean_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of the closing waits behind the write, and a second sync may succeed."""
    store = await filled(tmp_path / "q")
    may_fail = threading.Event()

    def fail(connection: sqlite3.Connection, writes: object) -> int:
        may_fail.wait()
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(store, "_transaction", fail)
    writing = asyncio.ensure_future(store.write([StoreWrite(state(LOG_END), None, ())]))
    await asyncio.sleep(0)  # the write is queued
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)  # and so is the checkpoint
    may_fail.set()
    for failed in (writing, closing):
        with pytest.raises(FatalError, match="disk I/O error"):
            await failed
    assert (tmp_path / "q" / LOCK).read_text() == f"{os.getpid()} open\n"
    assert await reopened(tmp_path / "q") == LOG_END


async def test_a_write_is_synced_before_it_returns(tmp_path: Path) -> None:
    """SQLite's `synchronous=NORMAL` syncs only at checkpoints, so a power cut would lose acknowledged writes."""
    synced: list[str] = []

    def sync(path: str) -> bool:
        synced.append(os.path.basename(path))
        return False

    with failing_syncs(sync):
        store = await filled(tmp_path)
        synced.clear()
        writes = [list(synced)]
        for end in range(LOG_END, LOG_END + 3):
            await store.write([StoreWrite(state(end + 1), None, (data(end),))])
            writes.append(list(synced))
        await store.close()
    assert writes == [[WAL] * count for count in range(4)]


async def test_a_snapshot_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, rename = os.fsync, os.replace

    def fsync_noted(descriptor: int) -> None:
        steps.append("sync of " + os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def rename_noted(source: str, target: str) -> None:
        steps.append("rename")
        rename(source, target)

    store = await filled(tmp_path / "q")
    await store.begin_snapshot(END, resume=False)
    await store.extend_snapshot(END, 0, snapshot_bytes(END.offset, b"chunk"))
    with monkeypatch.context() as patch:
        patch.setattr("quorum.store.snapshots.os.fsync", fsync_noted)
        patch.setattr("quorum.store.snapshots.os.replace", rename_noted)
        await store.finish_snapshot(END)
    assert steps == [f"sync of {snapshot_name(END)}.part", "rename", "sync of q"]
    await store.close()


async def test_a_failed_sync_while_opening_leaves_the_files_unchanged(tmp_path: Path) -> None:
    folder = await crashed(tmp_path, ROUNDS)
    with failing_disk(folder) as failing:
        failing.fails = WAL
        with pytest.raises(FatalError, match="SQLITE_IOERR_FSYNC"):
            await make(folder).open(1, None)
    assert_left(failing)
    assert await reopened(folder) == LOG_END


async def test_a_failed_write_of_a_snapshot_leaves_the_directory_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(5, os.strerror(5))

    store = await filled(tmp_path / "q")
    await store.begin_snapshot(END, resume=False)
    monkeypatch.setattr("quorum.store.snapshots.os.fdatasync", fail)
    with pytest.raises(FatalError, match="EIO"):
        await store.extend_snapshot(END, 0, snapshot_bytes(END.offset, b"chunk"))
    left = contents(tmp_path / "q")
    with pytest.raises(FatalError, match="EIO"):
        await store.write([StoreWrite(state(LOG_END + 1), None, (data(LOG_END),))])
    await store.close()
    gc.collect()
    assert contents(tmp_path / "q") == left
    assert WAL in left


async def test_damage_found_by_a_read_leaves_the_directory_unchanged(tmp_path: Path) -> None:
    folder = await crashed(tmp_path, ROUNDS)
    store = make(folder)
    await store.open(1, None)
    await store._run(lambda connection: connection.execute("UPDATE batches SET crc = 1 WHERE base_offset = 3"))
    left = contents(folder)
    with pytest.raises(FatalError, match="checksum"):
        await store.read(0, LOG_END, 1 << 20)
    await store.close()
    gc.collect()
    assert contents(folder) == left


async def test_a_close_after_a_failure_in_another_directory_leaves_the_files_unchanged(tmp_path: Path) -> None:
    store = await filled(tmp_path / "q")
    left = contents(tmp_path / "q")
    await store.close(leave_files=True)
    gc.collect()
    assert contents(tmp_path / "q") == left
    assert await reopened(tmp_path / "q") == LOG_END
