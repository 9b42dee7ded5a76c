"""The real data directory: identity, lock, damage, failure, open files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from quorumlog.errors import CorruptStoreError, FatalError, StoreRefusedError
from quorumlog.runtime import file_disk, sqlite_facts
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.file_disk import FileDisk


def acquire(root: Path, node_id: int = 1, cluster_id: str | None = "mine") -> FileDisk:
    return FileDisk.acquire(root, node_id, cluster_id, uuid4)


def make(root: Path) -> UUID:
    disk = acquire(root)
    disk.make_dir("logs")
    disk.close()
    return disk.directory_id


def test_a_directory_that_is_in_use_is_refused(tmp_path: Path) -> None:
    disk = acquire(tmp_path / "d")
    with pytest.raises(StoreRefusedError, match=rf"in use by pid={os.getpid()} .*node_id=1"):
        acquire(tmp_path / "d")
    disk.close()
    acquire(tmp_path / "d").close()


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    program = (
        "import os, sys, uuid; from quorumlog.runtime.file_disk import FileDisk;"
        "FileDisk.acquire(sys.argv[1], 1, 'mine', uuid.uuid4); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "d")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(StoreRefusedError, match=f"pid={child.pid} "):
            acquire(tmp_path / "d")
        child.kill()
        child.wait()
    acquire(tmp_path / "d").close()


def test_a_data_directory_of_another_node_or_cluster_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    before = (tmp_path / "meta.json").read_bytes()
    with pytest.raises(StoreRefusedError, match=r"meta.json belongs to node 1; this is node 2") as refused:
        acquire(tmp_path, node_id=2)
    assert refused.value.next_step == "give the node its own directory, or correct --node-id"
    with pytest.raises(StoreRefusedError, match=r"belongs to cluster mine; this is cluster other") as refused:
        acquire(tmp_path, cluster_id="other")
    assert refused.value.next_step == "give the addresses of its own cluster, or another data dir"
    assert (tmp_path / "meta.json").read_bytes() == before


def test_a_directory_may_be_bound_to_its_cluster_later(tmp_path: Path) -> None:
    disk = acquire(tmp_path, cluster_id=None)
    assert disk.cluster_id is None
    disk.bind_cluster("mine")
    with pytest.raises(StoreRefusedError, match="belongs to cluster mine"):
        disk.bind_cluster("other")
    disk.close()
    disk = acquire(tmp_path, cluster_id=None)
    assert disk.cluster_id == "mine"
    disk.close()


def test_a_failure_to_store_the_cluster_id_is_reported_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire(tmp_path, cluster_id=None).close()

    def full(root: Path, meta: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_disk, "save_identity", full)
        with pytest.raises(FatalError, match="No space left on device"):
            acquire(tmp_path)
        disk = acquire(tmp_path, cluster_id=None)  # the failed start has released its lock
        with pytest.raises(FatalError, match="No space left on device"):
            disk.bind_cluster("mine")
        assert disk.cluster_id is None
    disk.bind_cluster("mine")
    assert disk.cluster_id == "mine"
    disk.close()


def test_a_directory_with_a_newer_format_is_refused(tmp_path: Path) -> None:
    make(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "format_version": 2, "what": "new"}))
    with pytest.raises(StoreRefusedError, match="has format 2; this program supports 1"):
        acquire(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format_version": 1}', '{"format_version": 1, "x": 2}'])
def test_a_damaged_meta_json_is_refused_and_left_unchanged(tmp_path: Path, content: str) -> None:
    make(tmp_path)
    (tmp_path / "meta.json").write_text(content)
    with pytest.raises(CorruptStoreError, match=r"meta.json is damaged"):
        acquire(tmp_path)
    assert (tmp_path / "meta.json").read_text() == content


def test_missing_files_of_a_formatted_directory_are_not_recreated(tmp_path: Path) -> None:
    make(tmp_path)
    facts = (tmp_path / "facts.db").read_bytes()
    (tmp_path / "facts.db").unlink()
    with pytest.raises(CorruptStoreError, match=r"facts.db is missing"):
        acquire(tmp_path)
    assert not (tmp_path / "facts.db").exists()
    (tmp_path / "facts.db").write_bytes(facts)
    (tmp_path / "meta.json").unlink()
    with pytest.raises(CorruptStoreError, match=r"meta.json is missing, but .* holds logs"):
        acquire(tmp_path)
    assert not (tmp_path / "meta.json").exists()


def test_a_directory_whose_disk_fails_is_not_formatted_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    facts, stat = (tmp_path / "facts.db").read_bytes(), Path.stat

    def failing(path: Path, **options: bool) -> os.stat_result:
        if path == tmp_path / "meta.json":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return stat(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: os.path.exists(path) and path.name not in ("meta.json", "logs"))
        patch.setattr(Path, "stat", failing)
        with pytest.raises(FatalError, match=r"cannot use .*Input/output error \(EIO\) at .*meta\.json") as refused:
            acquire(tmp_path)
    assert refused.value.exit_status == 7
    assert refused.value.next_step.startswith("check the disk")
    assert (tmp_path / "facts.db").read_bytes() == facts
    acquire(tmp_path).close()


def test_an_interrupted_formatting_starts_over(tmp_path: Path) -> None:
    name = acquire(tmp_path)
    name.close()
    (tmp_path / "meta.json").rename(tmp_path / "meta.json.tmp")
    disk = acquire(tmp_path)
    assert disk.directory_id != name.directory_id
    assert disk.facts.load() == {}
    disk.close()
    assert not (tmp_path / "meta.json.tmp").exists()


def test_a_path_that_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreRefusedError, match=r"cannot use data directory .*file/d: .*file is not a directory"
    ) as refused:
        acquire(tmp_path / "file" / "d")
    assert refused.value.next_step.startswith("correct the path")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_write_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o500)
    with pytest.raises(StoreRefusedError, match="EACCES"):
        acquire(tmp_path / "d")


def test_a_read_only_file_system_is_refused_with_the_disk_as_a_possible_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, *_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patch:
        patch.setattr("quorumlog.runtime.data_directory.os.open", read_only)
        with pytest.raises(StoreRefusedError, match="EROFS") as refused:
            acquire(tmp_path)
    assert refused.value.exit_status == 2
    assert refused.value.next_step.startswith("check the disk")


async def test_damaged_facts_are_reported_and_left_unchanged(tmp_path: Path) -> None:
    disk = acquire(tmp_path)
    await disk.facts.commit({f"key/{number}": b"some value " * 20 for number in range(200)})
    disk.close()
    path = tmp_path / "facts.db"
    good = path.read_bytes()
    place = good.index(b"some value some value")
    path.write_bytes(good[: place + 3] + b"X" + good[place + 4 :])
    disk = acquire(tmp_path)
    with pytest.raises(CorruptStoreError, match=r"facts.db is damaged: checksum of fact 'key/"):
        disk.facts.load()
    disk.close()
    for damaged in (b"", good[:50] + b"\xff" * 200 + good[250:], b"not a database" * 1000, good[: len(good) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptStoreError, match=r"facts.db is damaged"):
            acquire(tmp_path)
        assert path.read_bytes() == damaged


def test_a_directory_with_damaged_facts_is_not_kept_open(tmp_path: Path) -> None:
    acquire(tmp_path).close()
    (tmp_path / "facts.db").write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptStoreError):
        acquire(tmp_path)
    with os.scandir("/proc/self/fd") as descriptors:
        assert str(tmp_path) not in [os.readlink(each) for each in descriptors if each.is_symlink()]


async def test_a_commit_of_facts_that_takes_too_long_fails_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_default_executor(executor := ThreadPoolExecutor(3))
    disk = FileDisk.acquire(tmp_path, 1, "mine", uuid4, stall_s=0.05)
    released, real = threading.Event(), disk.facts._commit

    def slow(changes: dict[str, bytes | None]) -> None:
        with disk.facts._connection_lock:
            assert released.wait(60)
        real(changes)

    monkeypatch.setattr(disk.facts, "_commit", slow)
    commits = (disk.facts.commit({"a": b"1"}), disk.facts.commit({"b": b"2"}))
    first, second = await asyncio.gather(*commits, return_exceptions=True)
    assert isinstance(first, DiskError)
    assert "facts.db: [Errno 110] not done within 0.05 s: the disk hangs" in str(first)
    assert second is first, "later operations do not wait for the same time again"
    assert disk.failure is first
    disk.close()
    released.set()
    executor.shutdown()


async def test_closing_does_not_wait_for_a_commit_of_facts_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the event loop would wait, and the timers that end a process would not run."""
    disk = acquire(tmp_path)
    entered, released = threading.Event(), threading.Event()

    def slow(changes: dict[str, bytes | None]) -> None:
        with disk.facts._connection_lock:
            entered.set()
            assert released.wait(60)

    monkeypatch.setattr(disk.facts, "_commit", slow)
    monkeypatch.setattr(sqlite_facts, "CLOSE_WAIT_S", 0.05)
    commit = asyncio.ensure_future(disk.facts.commit({"a": b"1"}))
    try:
        await asyncio.to_thread(entered.wait, 60)
        commit.cancel()
        await asyncio.wait({commit})
        disk.close()
        assert not released.is_set()
    finally:
        released.set()


async def test_a_failed_commit_of_facts_fails_the_directory(tmp_path: Path) -> None:
    disk = acquire(tmp_path)
    disk.facts._connection.execute("DROP TABLE facts")
    with pytest.raises(DiskError, match=r"facts.db: no such table"):
        await disk.facts.commit({"a": b"1"})
    with pytest.raises(DiskError):
        await disk.facts.commit({"a": b"1"})
    with pytest.raises(DiskError):
        disk.open("b", create=True)
    disk.close()


@pytest.mark.parametrize("heard", [True, False])
async def test_facts_are_not_written_after_a_commit_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    """This includes writers that waited for their turn, and a failed write that was cancelled meanwhile."""
    disk = acquire(tmp_path)
    began, goes_on = threading.Event(), threading.Event()

    commit = disk.facts._commit

    def refuse(*_: object) -> int:
        began.set()
        goes_on.wait(30)
        return sqlite3.SQLITE_DENY

    def failing(changes: dict[str, bytes | None]) -> None:
        if "bad" in changes:
            disk.facts._connection.set_authorizer(refuse)
        try:
            commit(changes)
        finally:
            disk.facts._connection.set_authorizer(None)

    monkeypatch.setattr(disk.facts, "_commit", failing)
    first = asyncio.create_task(disk.facts.commit({"bad": b"1"}))
    await asyncio.to_thread(began.wait, 30)
    second = asyncio.create_task(disk.facts.commit({"good": b"2"}))
    if not heard:
        first.cancel()
        await asyncio.wait([first])
    goes_on.set()
    if heard:
        with pytest.raises(DiskError, match="not authorized"):
            await first
    with pytest.raises(DiskError):
        await second
    assert isinstance(disk.failure, DiskError)
    assert disk.facts.load() == {}


def test_facts_that_cannot_be_examined_do_not_count_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)
    examine = Path.stat

    def failing(path: Path, **options: bool) -> os.stat_result:
        if path == tmp_path / "facts.db":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return examine(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_file", lambda path: os.path.isfile(path) and path.name != "facts.db")
        patch.setattr(Path, "stat", failing)
        with pytest.raises(FatalError, match=r"Input/output error \(EIO\) at .*facts\.db") as refused:
            acquire(tmp_path)
    assert not isinstance(refused.value, CorruptStoreError), "the next step of that error is to move the directory away"
    acquire(tmp_path).close()


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failure_to_write_the_lock_is_reported_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    make(tmp_path)

    def failing(fd: int, *_: object) -> bytes:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        for name in ("pread", "pwrite"):
            patch.setattr(os, name, failing)
        with pytest.raises(FatalError, match=os.strerror(error)):
            acquire(tmp_path)
    acquire(tmp_path).close()  # the lock is free again


async def test_facts_have_the_newest_value_after_an_earlier_commit_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the cancelled commit may not have reached the database yet."""
    disk = acquire(tmp_path)
    commit, began, goes_on, ended = disk.facts._commit, threading.Event(), threading.Event(), threading.Event()

    def slow_if_old(changes: dict[str, bytes | None]) -> None:
        is_old = changes["key"] == b"old"
        if is_old:
            began.set()
            assert goes_on.wait(60)
        commit(changes)
        if is_old:
            ended.set()

    monkeypatch.setattr(disk.facts, "_commit", slow_if_old)
    old = asyncio.create_task(disk.facts.commit({"key": b"old"}))
    await asyncio.to_thread(began.wait, 60)
    old.cancel()
    await asyncio.wait([old])
    new = asyncio.create_task(disk.facts.commit({"key": b"new"}))
    await asyncio.wait([new], timeout=0.05)  # time in which the new value would reach the database first
    goes_on.set()
    await new
    await asyncio.to_thread(ended.wait, 60)
    assert old.cancelled()
    assert disk.facts.load() == {"key": b"new"}
    disk.close()


async def test_a_cancelled_commit_of_facts_that_waits_for_a_thread_is_executed(tmp_path: Path) -> None:
    disk, released = acquire(tmp_path), threading.Event()
    for _ in range(file_disk.THREADS_MAX):
        disk._threads.submit(released.wait, 60)
    commit = asyncio.create_task(disk.facts.commit({"key": b"value"}))
    await asyncio.wait([commit], timeout=0.01)  # the commit waits for a thread
    commit.cancel()
    await asyncio.wait([commit])
    released.set()
    await disk.facts.commit({"other": b"value"})
    assert disk.facts.load() == {"key": b"value", "other": b"value"}
    disk.close()


async def test_hanging_directories_do_not_delay_commits_reads_and_writes_of_another_one(tmp_path: Path) -> None:
    """The work of hanging directories occupies all threads of the loop's executor."""
    asyncio.get_running_loop().set_default_executor(executor := ThreadPoolExecutor(1))
    released = threading.Event()
    executor.submit(released.wait, 60)
    disk = FileDisk.acquire(tmp_path, 1, "mine", uuid4, stall_s=20.0)
    try:
        await disk.facts.commit({"key": b"value"})
        file = disk.open("a", create=True)
        await disk.write(file, b"data")
        assert await disk.read(file, 0, 10) == b"data"
        assert await disk.free_bytes() > 0
    finally:
        released.set()
        disk.close()
    assert disk.failure is None


async def test_open_files_stay_within_a_quarter_of_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (80, 80))
    disk = acquire(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    files = [disk.open(f"{number:03}", create=True) for number in range(100)]
    for turn in range(3):
        for number, file in enumerate(files):
            file.append(b"%03d-%d;" % (number, turn))
            assert len(os.listdir("/proc/self/fd")) <= before + 20
    await disk.flush(files)
    for number, file in enumerate(files):
        assert file.pread(0, 100) == b"%03d-0;%03d-1;%03d-2;" % (number, number, number)
    disk.close()
    assert len(os.listdir("/proc/self/fd")) < before


@pytest.mark.parametrize("count", [1, 12])  # of the files to flush: one by one, and all together
async def test_a_lack_of_file_descriptors_is_not_a_failure_of_the_disk(tmp_path: Path, count: int) -> None:
    disk = acquire(tmp_path)
    for number in range(12):
        disk.open(f"{number:02}", create=True)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 8, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        new = disk.open("new", create=True)
        new.append(b"data")
        files = [new, *(disk.open(f"{number:02}") for number in range(count - 1))]
        for file in files[1:]:
            file.append(b"data")
        await disk.flush(files)
        assert [file.pread(0, 10) for file in files] == [b"data"] * count
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
    assert disk.failure is None
    disk.close()


def test_a_file_deleted_by_another_program_is_reported(tmp_path: Path) -> None:
    disk = acquire(tmp_path)
    file = disk.open("a", create=True)
    file.append(b"data")
    assert isinstance(file, file_disk._File)
    file.release()
    (tmp_path / "a").unlink()
    with pytest.raises(DiskError, match=r"a: .*No such file"):
        file.pread(0, 4)
    assert disk.failure is not None
    disk.close()


def test_a_file_that_cannot_be_examined_does_not_count_as_missing(tmp_path: Path) -> None:
    disk = acquire(tmp_path)
    disk.open("a", create=True)
    assert [disk.exists(path) for path in ("a", "b", "a/b")] == [True, False, False]
    os.symlink("loop", tmp_path / "loop")
    with pytest.raises(DiskError, match=os.strerror(errno.ELOOP)):
        disk.exists("loop")
    assert isinstance(disk.failure, DiskError)
    disk.close()


def test_opening_a_path_outside_the_directory_fails_an_assertion(tmp_path: Path) -> None:
    disk = acquire(tmp_path / "d")
    for path in ("../out", "/etc/passwd", "logs/../../out"):
        with pytest.raises(AssertionError):
            disk.open(path, create=True)
    disk.close()
