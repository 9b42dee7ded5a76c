"""`SqliteQuorumStore`, on a real file system, beside the simulated store: for runs in which no quorum disk fails.

Opening, writing and reading the log go to both stores.  The simulated store is the model: the results of opening and
reading must be equal.  Snapshots go to the real store, and the model gets a copy of each finished one.  The work of
aiosqlite's thread runs inline, so a run remains a function of its seed.  A kill leaves the files as they are, as the
page cache would.  A power failure does the same, since every transaction is synced before it is answered.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from quorum.core.types import Batch, LogEnd
from quorum.ports import StoredQuorum, StoreWrite
from quorum.snapshot_file import SnapshotInfo
from quorum.store import sqlite
from quorum.store.directory import Lock
from quorumlog.runtime.clock import Sources
from simulation.kernel.real_disk import SHARED_MEMORY
from simulation.kernel.store import QuorumDisk, SimulatedStore

FOLDER = "quorum"
CHECKPOINT_BYTES = 40_000
"""In place of 2 MiB, so that a run checkpoints the write-ahead log several times."""
DROP_BYTES = 2_000
"""In place of 1 MiB, so that batches below the log's start are deleted in several pieces."""


@dataclass
class SqliteDisk(QuorumDisk):
    """The model of a quorum disk, and the folder that holds the real one.  A wiped disk is a new `SqliteDisk`."""

    folders: Folders | None = None
    folder: Path | None = None
    is_open: bool = False

    def store(self) -> CheckedStore:
        """Return a store for one process."""
        return CheckedStore(self)

    def crash(self) -> None:
        """Continue with a copy of the files that the killed process left, which its connection cannot change."""
        super().crash()
        if self.is_open:
            assert self.folders is not None
            self.is_open = False
            self.folder = self.folders.take_over(self.folder)


class CheckedStore:
    """Implements `quorum.ports.QuorumStore` by two stores whose results must agree."""

    def __init__(self, disk: SqliteDisk) -> None:
        assert disk.folder is not None
        sources = Sources.seeded(disk.random.getrandbits(64), lambda: 0)
        self._disk = disk
        self._model = SimulatedStore(disk)
        self._real = sqlite.SqliteQuorumStore(disk.folder / FOLDER, sources)

    async def open(self, node_id: int, cluster_id: str | None) -> StoredQuorum:
        disk = self._disk
        disk.is_open = True
        found = await self._real.open(node_id, cluster_id)
        if disk.directory_id is None:
            disk.node_id, disk.directory_id = node_id, found.directory_id
        await self._take_snapshots()
        expected = await self._model.open(node_id, cluster_id)
        _agree("opening", replace(found, snapshots=(), formatted_for=None), replace(expected, snapshots=()))
        return found

    async def _take_snapshots(self) -> None:
        """Copy the real store's snapshots to the model, since a kill may have come before the model received one."""
        before, self._disk.snapshots = self._disk.snapshots, {}
        for info in await self._real.snapshots():
            await self._finished(info, is_new=info.end not in before)

    async def _finished(self, info: SnapshotInfo, *, is_new: bool) -> None:
        disk = self._disk
        _, data = await self._real.read_snapshot(info.end, 0, info.size)
        disk.snapshots[info.end] = data
        if is_new and disk.watch_snapshot is not None:
            disk.watch_snapshot(info.end, data)

    async def write(self, writes: Sequence[StoreWrite]) -> None:
        """Write to both stores at one moment in the middle of the call.

        A process that is killed before that moment has written nothing.  A process that is killed later has written
        everything, but received no answer.
        """
        disk = self._disk
        if disk.on_write is not None:
            disk.on_write()
        await disk.wait()
        await self._real.write(writes)  # inline: nothing runs between this and the model's write
        disk.apply_all(writes)
        await disk.wait()

    async def read(self, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        found = await self._real.read(start, end, max_bytes)
        _agree(f"reading from {start} to {end}", found, await self._model.read(start, end, max_bytes))
        return found

    async def begin_snapshot(self, end: LogEnd, *, resume: bool) -> int:
        return await self._real.begin_snapshot(end, resume=resume)

    async def extend_snapshot(self, end: LogEnd, position: int, data: bytes) -> None:
        await self._real.extend_snapshot(end, position, data)
        if self._disk.on_part is not None:
            self._disk.on_part()

    async def finish_snapshot(self, end: LogEnd) -> SnapshotInfo:
        await self._disk.wait()
        info = await self._real.finish_snapshot(end)
        await self._finished(info, is_new=True)
        return info

    async def set_snapshot_aside(self, end: LogEnd) -> None:
        await self._real.set_snapshot_aside(end)
        self._disk.snapshots.pop(end, None)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return await self._real.snapshots()

    async def read_snapshot(self, end: LogEnd, position: int, max_bytes: int) -> tuple[int, bytes]:
        return await self._real.read_snapshot(end, position, max_bytes)

    async def delete_snapshot(self, end: LogEnd) -> None:
        await self._real.delete_snapshot(end)
        self._disk.snapshots.pop(end, None)

    async def close(self, *, leave_files: bool = False) -> None:
        await self._real.close(leave_files=leave_files)
        self._disk.locked_by = None


def _agree(call: str, found: object, expected: object) -> None:
    assert found == expected, f"D1: {call}, SQLite returns {found}, the model {expected}"


class Folders:
    """The folders of one run's quorum disks, in `SHARED_MEMORY` if it exists; `remove` deletes them all."""

    def __init__(self) -> None:
        memory = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
        self._root = Path(tempfile.mkdtemp(prefix="quorumlog-simulation-", dir=memory))
        self._made = 0
        self._connections: list[tuple[Path, sqlite3.Connection]] = []
        self._locks: list[tuple[Path, _Lock]] = []

    def disk(self, random: Random) -> SqliteDisk:
        return SqliteDisk(random, folders=self, folder=self._new())

    def _new(self) -> Path:
        self._made += 1
        folder = self._root / str(self._made)
        folder.mkdir()
        return folder

    def take_over(self, folder: Path | None) -> Path:
        """Copy the folder of a killed process, and end its connection and lock, since the process cannot do so."""
        assert folder is not None
        copy = self._new()
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        self._end(lambda path: path.is_relative_to(folder))
        shutil.rmtree(folder)
        return copy

    def remove(self) -> None:
        self._end(lambda path: True)
        shutil.rmtree(self._root, ignore_errors=True)

    def _end(self, is_meant: Callable[[Path], bool]) -> None:
        for path, connection in self._connections:
            if is_meant(path):
                connection.close()
        for path, lock in self._locks:
            if is_meant(path):
                lock.release()
        self._connections = [one for one in self._connections if not is_meant(one[0])]
        self._locks = [one for one in self._locks if not is_meant(one[0])]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Make this run's stores work inline, with limits so low that they often do work that is rare in production."""

        async def connect(database: str, **options: Any) -> _Connection:
            connection = sqlite3.connect(database, **options)
            self._connections.append((Path(database.removeprefix("file:").partition("?")[0]), connection))
            return _Connection(connection)

        def locked(directory: str) -> _Lock:
            lock = _Lock(directory)
            self._locks.append((Path(directory), lock))
            return lock

        with (
            patch.object(sqlite, "aiosqlite", SimpleNamespace(connect=connect)),
            patch.object(sqlite, "Lock", locked),
            patch.object(sqlite, "abandon", lambda connection: None),
            patch.object(sqlite, "CHECKPOINT_BYTES", CHECKPOINT_BYTES),
            patch.object(sqlite, "DROP_BYTES", DROP_BYTES),
        ):
            yield


class _Lock(Lock):
    """A lock that can be released twice: by its process, and by the world that has killed it."""

    _is_released = False

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            super().release()


class _Connection:
    """The part of `aiosqlite.Connection` that the store uses, without a thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._conn = connection
        self._connection: sqlite3.Connection | None = connection

    async def execute(self, statement: str) -> sqlite3.Cursor:
        return self._conn.execute(statement)

    async def _execute(self, work: Callable[[], Any]) -> Any:
        return work()

    async def close(self) -> None:
        self._conn.close()

    def stop(self) -> None:
        """Do nothing, because there is no thread to stop."""
