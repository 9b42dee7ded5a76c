"""The SQLite store: locking, formatting, and refusal of damaged files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from quorum.core.types import LogEnd, QuorumState
from quorum.ports import BadSnapshotError, StoreWrite
from quorum.store import SqliteQuorumStore
from quorum.store import sqlite as sqlite_store
from quorum.store.directory import (
    DATABASE,
    IDENTITY,
    LOCK,
    WAL,
    find_identity,
    mark_path,
    move_away,
    replace_identity,
)
from quorum.store.wal import check_wal
from quorumlog.errors import CorruptStoreError, FatalError, StoreRefusedError
from quorumlog.runtime.clock import Sources
from quorumlog_server.standing import FILE, FileStanding, Standing
from tests.contract.samples import CLUSTER, data, founding, leader_change, snapshot_bytes, state

FRAME = 24 + 4096


def make(folder: Path) -> SqliteQuorumStore:
    return SqliteQuorumStore(folder, Sources.real())


async def write_rounds(store: SqliteQuorumStore, rounds: int) -> None:
    await store.write([StoreWrite(state(2), None, (founding(), leader_change(1)))])
    for number in range(rounds):
        await store.write([StoreWrite(state(3 + number), None, (data(2 + number, payload=bytes([number]) * 100),))])


async def crashed(tmp_path: Path, rounds: int = 10) -> Path:
    """Return the folder of a process that was killed after `rounds` writes."""
    live, left = tmp_path / "live", tmp_path / "left"
    store = make(live)
    await store.open(1, None)
    await write_rounds(store, rounds)
    shutil.copytree(live, left)
    shutil.copy(mark_path(str(live)), mark_path(str(left)))
    await store.close()
    return left


async def opened(folder: Path) -> tuple[int, QuorumState]:
    """Return (log end, state) of a folder, after reading all of it."""
    store = make(folder)
    try:
        stored = await store.open(1, None)
        await store.read(0, stored.log_end, 1 << 30)
        return stored.log_end, stored.state
    finally:
        await store.close()


def flip(path: Path, position: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


async def test_a_clean_stop_leaves_one_database_and_no_wal(tmp_path: Path) -> None:
    store = make(tmp_path / "q")
    await store.open(1, None)
    await write_rounds(store, 3)
    await store.close()
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == [LOCK, DATABASE, IDENTITY]
    assert await opened(tmp_path / "q") == (5, state(5))


async def test_the_refusal_of_a_directory_in_use_names_the_process(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    with pytest.raises(StoreRefusedError, match=f"in use by process {os.getpid()}"):
        await make(tmp_path).open(1, None)
    await write_rounds(store, 1)
    await store.close()
    assert await opened(tmp_path) == (3, state(3))


async def test_the_cluster_id_of_formatting_is_stored(tmp_path: Path) -> None:
    store = make(tmp_path)
    assert (await store.open(1, "east")).formatted_for == "east"
    await store.close()
    with pytest.raises(StoreRefusedError, match="belongs to cluster east, not to cluster west"):
        await make(tmp_path).open(1, "west")
    store = make(tmp_path)
    assert (await store.open(1, None)).formatted_for == "east"
    await store.close()


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await store.close()
    identity = json.loads((tmp_path / IDENTITY).read_text())
    (tmp_path / IDENTITY).write_text(json.dumps(identity | {"format": 2}))
    with pytest.raises(StoreRefusedError, match="has format 2; this version knows 1"):
        await make(tmp_path).open(1, None)
    (tmp_path / IDENTITY).write_text(json.dumps(identity))
    with sqlite3.connect(tmp_path / DATABASE) as connection:
        connection.execute("PRAGMA user_version=9")
    connection.close()
    with pytest.raises(StoreRefusedError, match="has format 9"):
        await make(tmp_path).open(1, None)


async def test_the_refusal_of_a_path_that_cannot_be_written_names_path_and_errno(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefusedError, match=r"file/q.*\(ENOTDIR\)|file.*\((ENOTDIR|EEXIST)\)"):
        await make(tmp_path / "file" / "q").open(1, None)


async def test_a_read_only_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(30, os.strerror(30), path)
        return real_open(path, flags, mode)

    monkeypatch.setattr("quorum.store.directory.os.open", read_only)
    with pytest.raises(StoreRefusedError, match=r"lock: Read-only file system \(EROFS\)") as refused:
        await make(tmp_path).open(1, None)
    assert refused.value.next_step.startswith("check the disk")


async def test_a_failing_disk_is_a_fatal_error_and_not_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr("quorum.store.directory.os.fsync", failing)
    with pytest.raises(FatalError, match=r"Input/output error \(EIO\)"):
        await make(tmp_path).open(1, None)


async def test_a_database_open_in_another_program_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await store.close()
    other = sqlite3.connect(tmp_path / DATABASE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    store = make(tmp_path)
    with pytest.raises(StoreRefusedError, match="open in another program") as refused:
        await store.open(1, None)
    assert refused.value.next_step
    other.close()
    assert await opened(tmp_path) == (0, QuorumState())


@pytest.mark.parametrize("step", ["create_database", "write_identity", "write_mark"])
async def test_an_interrupted_formatting_is_finished(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*arguments: object) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "q"
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store, step, cut_off)
        with pytest.raises(KeyboardInterrupt):
            await make(folder).open(1, None)
    (folder / (DATABASE + ".new")).write_bytes(b"half a database")
    assert await opened(folder) == (0, QuorumState())


@pytest.mark.parametrize("identity", [None, "", "{}", "[]", '{"format": 1, "node_id": "x"}'])
async def test_a_lost_identity_is_restored_by_the_command_that_its_refusal_names(
    tmp_path: Path, identity: str | None
) -> None:
    store = make(tmp_path / "q")
    before = await store.open(1, None)
    await store.close()
    await FileStanding(str(tmp_path / "q")).save(Standing.VOTER)  # the mark lists this file
    path = tmp_path / "q" / IDENTITY
    path.unlink() if identity is None else path.write_text(identity)
    with pytest.raises(CorruptStoreError, match=r"quorum\.json is (missing|damaged)") as refused:
        await opened(tmp_path / "q")
    command, _, _ = refused.value.next_step.partition(";")
    assert command.split()[0] == "cp"
    shutil.copy(*command.split()[1:])
    store = make(tmp_path / "q")
    assert (await store.open(1, None)).directory_id == before.directory_id
    await store.close()


async def test_the_formatting_mark_is_updated_when_a_directory_gets_another_identity(tmp_path: Path) -> None:
    store = make(tmp_path / "q")
    await store.open(1, None)
    await store.close()
    folder = str(tmp_path / "q")
    identity = find_identity(folder)
    assert identity is not None
    replace_identity(folder, replace(identity, directory_id=str(UUID(int=9))))
    shutil.copy(mark_path(folder), tmp_path / "q" / IDENTITY)
    assert find_identity(folder) == replace(identity, directory_id=str(UUID(int=9)))


async def test_a_missing_standing_file_is_refused_if_it_existed_before(tmp_path: Path) -> None:
    store = make(tmp_path / "q")
    await store.open(1, None)
    await store.close()
    standing = FileStanding(str(tmp_path / "q"))
    assert await standing.load() is Standing.NEW
    await standing.save(Standing.LEAVING)
    (tmp_path / "q" / FILE).unlink()
    with pytest.raises(CorruptStoreError, match=r"standing\.json is missing, although it existed before") as refused:
        await standing.load()
    assert refused.value.next_step.startswith('write {"standing": "voter"} into it')
    (tmp_path / "q" / FILE).write_text('{"standing": "voter"}')
    assert await standing.load() is Standing.VOTER


async def test_a_missing_identity_file_is_refused_although_the_formatting_mark_is_also_missing(tmp_path: Path) -> None:
    store = make(tmp_path / "q")
    await store.open(1, None)
    await store.close()
    (tmp_path / "q" / IDENTITY).unlink()
    os.unlink(mark_path(str(tmp_path / "q")))
    with pytest.raises(CorruptStoreError, match=r"quorum\.json is missing") as refused:
        await opened(tmp_path / "q")
    assert refused.value.next_step.startswith("restore it from a copy; to start over, `quorum-node set-aside")
    assert not (tmp_path / "q" / IDENTITY).exists()


@pytest.mark.parametrize("missing", [DATABASE, WAL, IDENTITY])
async def test_k17_no_missing_file_is_recreated_after_a_crash(tmp_path: Path, missing: str) -> None:
    folder = await crashed(tmp_path)
    (folder / missing).unlink()
    with pytest.raises(CorruptStoreError, match="missing"):
        await opened(folder)
    assert not (folder / missing).exists()


async def test_a_missing_database_is_not_recreated_after_a_clean_stop(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await store.close()
    (tmp_path / DATABASE).unlink()
    with pytest.raises(CorruptStoreError, match="missing"):
        await opened(tmp_path)
    assert not (tmp_path / DATABASE).exists()


async def test_a_deleted_directory_is_not_recreated(tmp_path: Path) -> None:
    folder = await crashed(tmp_path)
    shutil.rmtree(folder)
    for _ in range(2):  # the first attempt leaves an empty folder, which is refused as well
        with pytest.raises(CorruptStoreError, match=r"quorum\.db is missing, but .*\.formatted shows that it existed"):
            await opened(folder)
    os.unlink(mark_path(str(folder)))  # as the message advises
    assert (await opened(folder))[0] == 0


async def test_a_directory_of_a_release_without_formatting_marks_gets_a_mark(tmp_path: Path) -> None:
    folder = await crashed(tmp_path)
    os.unlink(mark_path(str(folder)))
    assert (await opened(folder))[0] == 12
    assert Path(mark_path(str(folder))).exists()  # noqa: ASYNC240


async def test_setting_a_directory_aside_keeps_its_data_and_permits_a_new_store(tmp_path: Path) -> None:
    folder = await crashed(tmp_path)
    kept = [Path(move_away(str(folder), "generation-0"))]
    assert await opened(folder) == (0, QuorumState())
    kept.append(Path(move_away(str(folder), "generation-0")))
    assert [path.name for path in kept] == [f"{folder.name}.generation-0", f"{folder.name}.generation-0.2"]
    assert (await opened(kept[0]))[0] == 12


@pytest.mark.parametrize("step", ["rename", "unlink"])
async def test_an_interrupted_set_aside_is_finished(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = await crashed(tmp_path)

    def cut_off(*arguments: str) -> None:
        raise OSError(5, os.strerror(5), arguments[0])

    def renamed(source: str, target: str, real: Callable[[str, str], None] = os.rename) -> None:
        return cut_off(source) if source == str(folder) else real(source, target)

    monkeypatch.setattr("quorum.store.directory.os." + step, renamed if step == "rename" else cut_off)
    with pytest.raises(FatalError):
        move_away(str(folder), "generation-3")
    monkeypatch.undo()
    assert await opened(folder) == (0, QuorumState())
    assert (await opened(folder.with_name(folder.name + ".generation-3")))[0] == 12


async def test_a_directory_in_use_is_not_set_aside(tmp_path: Path) -> None:
    store = make(tmp_path / "q")
    await store.open(1, None)
    with pytest.raises(StoreRefusedError, match=f"in use by process {os.getpid()}"):
        move_away(str(tmp_path / "q"), "generation-0")
    await store.close()
    with pytest.raises(StoreRefusedError, match="/never/q does not exist") as refused:
        move_away(str(tmp_path / "never" / "q"), "generation-0")
    assert "if the quorum directory was set aside before, start the node" in refused.value.next_step


async def test_a_quorum_directory_that_is_a_mount_point_stays_usable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = await crashed(tmp_path)
    mark = Path(mark_path(str(folder)))
    before = mark.read_text()  # noqa: ASYNC240
    rename = os.rename

    def busy(source: str, target: str) -> None:
        if source == str(folder):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), source)
        rename(source, target)

    monkeypatch.setattr("quorum.store.directory.os.rename", busy)
    with pytest.raises(StoreRefusedError, match="EBUSY") as refused:
        move_away(str(folder), "set-aside")
    assert refused.value.next_step == f"it is a mount point: mount an empty disk there, and remove {mark}"
    assert mark.read_text() == before  # noqa: ASYNC240
    assert (await opened(folder))[0] == 12


async def test_a_wrong_node_id_is_refused_after_a_crash_and_the_right_one_opens(tmp_path: Path) -> None:
    folder = await crashed(tmp_path)
    with pytest.raises(StoreRefusedError, match="not to cluster another"):
        await make(folder).open(1, "another")
    with pytest.raises(StoreRefusedError, match="not to node 2"):
        await make(folder).open(2, None)
    assert await opened(folder) == (12, state(12))


@pytest.mark.parametrize("size", [0, 31, 55])
async def test_k17_a_wal_without_a_complete_frame_header_is_refused_after_a_crash(tmp_path: Path, size: int) -> None:
    folder = await crashed(tmp_path)
    os.truncate(folder / WAL, size)
    with pytest.raises(CorruptStoreError, match=f"{WAL} has {size} bytes although the directory was in use"):
        await opened(folder)


async def test_a_wal_of_zeros_is_refused_after_a_crash(tmp_path: Path) -> None:
    folder = await crashed(tmp_path)
    (folder / WAL).write_bytes(bytes((folder / WAL).stat().st_size))
    with pytest.raises(CorruptStoreError, match="header is damaged although the directory was in use"):
        await opened(folder)


@pytest.mark.parametrize("size", [0, 100, 5000])
async def test_a_truncated_database_is_refused_and_left_unchanged(tmp_path: Path, size: int) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await write_rounds(store, 50)
    await store.close()
    os.truncate(tmp_path / DATABASE, size)
    before = (tmp_path / DATABASE).read_bytes()
    with pytest.raises(CorruptStoreError, match="quorum"):
        await opened(tmp_path)
    assert (tmp_path / DATABASE).read_bytes() == before


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await store.close()
    (tmp_path / DATABASE).write_bytes(random.Random(1).randbytes(8192))
    with pytest.raises(CorruptStoreError, match="not a database"):
        await opened(tmp_path)


async def test_a_changed_byte_in_a_batch_or_the_state_is_noticed(tmp_path: Path) -> None:
    store = make(tmp_path / "q")
    await store.open(1, None)
    await write_rounds(store, 3)
    await store.close()
    image = (tmp_path / "q" / DATABASE).read_bytes()
    for needle, problem in ((bytes([1]) * 100, "checksum"), (CLUSTER.encode(), "checksum")):
        copy = tmp_path / f"copy-{problem}-{needle[:1].hex()}"
        shutil.copytree(tmp_path / "q", copy)
        flip(copy / DATABASE, image.index(needle) + 5)
        with pytest.raises(CorruptStoreError, match=problem):
            await opened(copy)


async def test_a_random_bit_flip_in_the_database_is_noticed_or_harmless(tmp_path: Path) -> None:
    store = make(tmp_path / "q")
    await store.open(1, None)
    await write_rounds(store, 5)
    await store.close()
    size = (tmp_path / "q" / DATABASE).stat().st_size
    chosen = random.Random(3)
    noticed = 0
    for number in range(60):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "q", copy)
        flip(copy / DATABASE, chosen.randrange(size), chosen.randrange(8))
        try:
            assert await opened(copy) == (7, state(7))
        except (CorruptStoreError, StoreRefusedError):
            noticed += 1
        shutil.rmtree(copy)
    assert noticed > 0


async def change(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / DATABASE) as connection:
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM batches WHERE base_offset = 3", "gap"),
        ("DELETE FROM batches WHERE base_offset = 4", "gap|ends at 4"),
        ("DELETE FROM batches WHERE base_offset >= 4", "ends at 4, but its quorum state"),
        ("DELETE FROM batches WHERE base_offset = 0", "the log has a gap"),
        ("DELETE FROM state", "no quorum state"),
        ("UPDATE batches SET epoch = 0 WHERE base_offset = 4", "has epoch 0 after epoch 1"),
        ("UPDATE batches SET timestamp_ms = 1 WHERE base_offset = 4", "checksum"),
        ("UPDATE batches SET content = 'text' WHERE base_offset = 4", "wrong type|checksum"),
        ("DROP TABLE batches", "no such table"),
    ],
)
async def test_a_database_that_contradicts_itself_is_refused(tmp_path: Path, statement: str, problem: str) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await write_rounds(store, 5)
    await store.close()
    await change(tmp_path, statement)
    with pytest.raises(CorruptStoreError, match=problem):
        await opened(tmp_path)


async def test_k17_a_torn_tail_of_the_wal_is_treated_as_an_unfinished_write(tmp_path: Path) -> None:
    folder = await crashed(tmp_path)
    whole = await opened_copy(folder, lambda wal: None)
    assert whole == (12, state(12))
    size = (folder / WAL).stat().st_size
    seen = set()
    for cut in (1, 500, FRAME - 1, FRAME, FRAME + 1, 2 * FRAME + 100, 3 * FRAME):
        log_end, _ = await opened_copy(folder, partial(os.truncate, length=size - cut))
        seen.add(log_end)
    assert seen <= set(range(9, 13))
    assert min(seen) < 12


async def opened_copy(folder: Path, damage: Callable[[Path], None]) -> tuple[int, QuorumState]:
    copy = folder.parent / "copy"
    shutil.copytree(folder, copy)
    try:
        damage(copy / WAL)
        return await opened(copy)
    finally:
        shutil.rmtree(copy)


async def test_a_store_whose_wal_has_a_damaged_header_refuses_to_open(tmp_path: Path) -> None:
    folder = await crashed(tmp_path)
    for position in range(32):
        with pytest.raises(CorruptStoreError, match="the header is damaged"):
            await opened_copy(folder, partial(flip, position=position))


async def test_the_wal_of_a_killed_process_is_checkpointed_before_the_first_write(tmp_path: Path) -> None:
    folder = await crashed(tmp_path)
    store = make(folder)
    await store.open(1, None)
    database_alone = tmp_path / "alone.db"
    shutil.copy(folder / DATABASE, database_alone)
    await store.close()
    connection = sqlite3.connect(database_alone)
    try:
        assert connection.execute("SELECT max(base_offset) FROM batches").fetchone() == (11,)
    finally:
        connection.close()


async def test_closing_a_hanging_database_takes_limited_time_and_keeps_the_directory_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await write_rounds(store, 2)
    entered, released = threading.Event(), threading.Event()

    def hang(connection: sqlite3.Connection) -> None:
        entered.set()
        assert released.wait(60)

    hanging = asyncio.ensure_future(store._run(hang))
    await asyncio.to_thread(entered.wait, 60)
    monkeypatch.setattr(sqlite_store, "CLOSE_TIMEOUT_S", 0.05)
    try:
        await store.close()
        with pytest.raises(StoreRefusedError, match="in use"):
            await make(tmp_path).open(1, None)
    finally:
        released.set()
    await hanging
    monkeypatch.undo()
    async with asyncio.timeout(60):
        while True:  # work in progress holds the lock for a while
            try:
                log_end, _ = await opened(tmp_path)
                break
            except StoreRefusedError:
                await asyncio.sleep(0.01)
    assert log_end == 4


async def test_a_write_that_takes_too_long_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteQuorumStore(tmp_path, Sources.real(), stall_s=0.1)
    await store.open(1, None)
    await write_rounds(store, 1)
    released, real = threading.Event(), store._transaction

    def hang(connection: sqlite3.Connection, writes: Sequence[StoreWrite]) -> int:
        assert released.wait(60)
        return real(connection, writes)

    monkeypatch.setattr(store, "_transaction", hang)
    more = StoreWrite(state(4), None, (data(3),))
    try:
        for _ in range(2):
            with pytest.raises(FatalError, match=r"not done within 0\.1 s: the disk hangs"):
                await store.write([more])
    finally:
        released.set()
    await store.close()


async def test_wal_frames_left_over_from_before_a_checkpoint_are_not_treated_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_BYTES", 100_000)
    folder = await crashed(tmp_path, rounds=100)
    assert check_wal(str(folder / WAL)).torn, "the log was rewound, and older frames lie behind the new ones"
    assert await opened(folder) == (102, state(102))


async def test_every_write_after_a_failed_write_fails_with_the_same_error(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await store._run(lambda connection: connection.execute("PRAGMA max_page_count=10"))
    big = data(0, payload=b"x" * 1_000_000)
    with pytest.raises(FatalError, match="full"):
        await store.write([StoreWrite(QuorumState(applied_offset=1), None, (big,))])
    with pytest.raises(FatalError, match="full"):
        await store.write([StoreWrite(QuorumState(), None, ())])
    await store.close()
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))  # this process still locks the original
    assert await opened(tmp_path.with_name("copy")) == (0, QuorumState())


async def test_damaged_downloads_are_set_aside_and_the_latest_three_are_kept(tmp_path: Path) -> None:
    store = make(tmp_path)
    await store.open(1, None)
    await write_rounds(store, 10)
    for offset in range(3, 8):
        end = LogEnd(1, offset)
        content = snapshot_bytes(offset, b"chunk")
        await store.begin_snapshot(end, resume=False)
        await store.extend_snapshot(end, 0, content[:-20] + b"x" + content[-19:])
        problem = rf"{offset}-0000000001\.snapshot\.damaged: the frame at byte \d+ has a wrong checksum"
        with pytest.raises(BadSnapshotError, match=problem):
            await store.finish_snapshot(end)
    await store.close()
    names = sorted(name for name in os.listdir(tmp_path) if "snapshot" in name)
    assert names == [f"{offset:020d}-0000000001.snapshot.damaged" for offset in (5, 6, 7)]
    assert (await opened(tmp_path))[0] == 12


async def test_a_path_may_begin_with_two_slashes(tmp_path: Path) -> None:
    """SQLite would treat the first folder as a host name."""
    store = SqliteQuorumStore(f"/{tmp_path}/q", Sources.real())
    await store.open(1, None)
    await store.close()
    (tmp_path / "q" / IDENTITY).unlink()
    with pytest.raises(CorruptStoreError, match=f"{IDENTITY} is missing"):
        await store.open(1, None)
