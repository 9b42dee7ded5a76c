"""Facts on a failing disk: after the first failure, the file and its log do not change."""

from __future__ import annotations

import asyncio
import gc
import resource
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import CorruptStoreError, FatalError, StoreRefusedError
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.file_disk import FileDisk
from tests.failing_syncs import contents, failing_disk

FACTS, WAL = "facts.db", "facts.db-wal"


@contextmanager
def full_disk() -> Iterator[None]:
    """Files do not grow above 4 KiB: enough for the lock and the identity, not for a file that SQLite writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def acquire(root: Path) -> FileDisk:
    return FileDisk.acquire(root, 1, None, uuid.uuid4)


@pytest.mark.parametrize("file", [FACTS, WAL])
async def test_facts_and_wal_stay_unchanged_after_a_failed_sync(tmp_path: Path, file: str) -> None:
    with failing_disk(tmp_path / "d") as failing:
        disk = acquire(failing.folder)
        await disk.facts.commit({"first": b"1"})
        failing.fails = file
        with pytest.raises(DiskError, match="disk I/O error"):
            await disk.facts.commit({"second": b"2"})
        assert not disk.facts.close()
        disk.close()
        del disk
        gc.collect()
    failing.assert_untouched()
    assert failing.left is not None
    assert failing.left[WAL]
    with pytest.raises(StoreRefusedError, match="in use"):
        acquire(failing.folder)


async def test_a_commit_after_the_close_is_refused(tmp_path: Path) -> None:
    disk = acquire(tmp_path)
    disk.close()
    with pytest.raises(DiskError, match=r"facts\.db is closed"):
        await disk.facts.commit({"first": b"1"})
    assert disk.failure is None


async def cancelled_commit(
    disk: FileDisk, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Future[None], threading.Event]:
    """Cancel a commit while its transaction runs.  Return the transaction, and the event after which it fails."""
    began, fails = threading.Event(), threading.Event()

    def failing(_: object) -> None:
        began.set()
        assert fails.wait(60)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(disk.facts, "_commit", failing)
    commit = asyncio.create_task(disk.facts.commit({"first": b"1"}))
    await asyncio.to_thread(began.wait, 60)
    commit.cancel()
    await asyncio.wait([commit])
    running: asyncio.Future[None] | None = disk.facts._running
    assert running is not None
    return running, fails


async def test_a_transaction_whose_caller_was_cancelled_fails_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no caller would learn before the next commit that earlier facts may be lost."""
    disk = acquire(tmp_path)
    running, fails = await cancelled_commit(disk, monkeypatch)
    fails.set()
    await asyncio.wait([running])
    await asyncio.sleep(0)  # its callbacks
    assert disk.failure is not None
    with pytest.raises(DiskError, match="disk I/O error"):
        await disk.facts.commit({"second": b"2"})
    disk.close()


async def test_a_transaction_that_fails_after_the_close_is_not_an_unhandled_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller of the transaction was cancelled, so no task awaits the transaction."""
    unhandled: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    disk = acquire(tmp_path)
    running, fails = await cancelled_commit(disk, monkeypatch)
    disk.close()
    fails.set()
    await asyncio.wait([running])
    await asyncio.sleep(0)  # its callbacks
    assert disk.failure is None
    disk.facts._running = None
    del running
    gc.collect()
    assert unhandled == []


async def test_facts_stay_unchanged_when_another_file_fails(tmp_path: Path) -> None:
    disk = acquire(tmp_path)
    await disk.facts.commit({"first": b"1"})
    disk._set_failure(DiskError("the disk is gone"))
    left = contents(tmp_path)
    disk.close()
    gc.collect()
    assert contents(tmp_path) == left
    assert WAL in left


async def test_damaged_facts_are_refused_and_not_changed(tmp_path: Path) -> None:
    disk = acquire(tmp_path)
    await disk.facts.commit({"first": b"1"})
    disk.close()
    (tmp_path / FACTS).write_bytes(bytes((tmp_path / FACTS).stat().st_size))
    left = contents(tmp_path)
    with pytest.raises(CorruptStoreError, match=r"facts\.db is damaged"):
        acquire(tmp_path)
    gc.collect()
    assert contents(tmp_path).keys() == left.keys()
    assert contents(tmp_path)[FACTS] == left[FACTS]


@pytest.mark.parametrize(
    "damage",
    [
        "key = CAST(x'ff' AS TEXT)",  # Python cannot decode it
        "key = CAST(key AS BLOB)",
        "value = CAST(value AS TEXT)",
        "crc = CAST(crc AS BLOB)",
    ],
)
async def test_facts_with_damaged_texts_or_types_are_reported_as_damaged(tmp_path: Path, damage: str) -> None:
    """A single flipped bit can cause each of these damages, and SQLite detects none of them."""
    disk = acquire(tmp_path)
    await disk.facts.commit({"first": b"\xff"})
    disk.close()
    with closing(sqlite3.connect(tmp_path / FACTS, isolation_level=None)) as connection:
        connection.execute(f"UPDATE facts SET {damage}")
    with pytest.raises(CorruptStoreError, match=r"facts\.db is damaged") as refused:
        acquire(tmp_path).facts.load()
    assert refused.value.next_step.startswith("restore the whole directory")


async def test_a_full_disk_is_not_reported_as_damage(tmp_path: Path) -> None:
    """Nothing is wrong with the data, so the next step must not be to move it away."""
    disk = acquire(tmp_path)
    await disk.facts.commit({"first": b"1"})
    disk.close()
    with full_disk(), pytest.raises(FatalError, match=r"cannot use .*facts\.db: .*SQLITE_") as full:
        acquire(tmp_path)
    assert not isinstance(full.value, CorruptStoreError)
    assert full.value.next_step.startswith("check the disk (full, read-only or failing)")
    gc.collect()


def test_formatting_a_directory_on_a_full_disk_reports_the_disk(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(FatalError, match=r"cannot use .*facts\.db: .*SQLITE_"):
        acquire(tmp_path)
    acquire(tmp_path).close()


async def test_facts_that_another_program_has_open_are_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire(tmp_path).close()
    connect = sqlite3.connect
    with closing(connect(tmp_path / FACTS, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(sqlite3, "connect", lambda path, **options: connect(path, timeout=0, **options))
        with pytest.raises(StoreRefusedError, match="open in another program"):
            acquire(tmp_path)
