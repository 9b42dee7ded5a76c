"""`FileDisk`, on a real file system, in place of the simulated disk: for runs in which no disk fails.

The simulated loop runs the disk's work inline instead of in threads, so a run remains a function of its seed.  Written
data survives a kill, as the page cache would keep it.  Not even a power failure loses unflushed data of this disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from quorumlog.runtime.disk import Disk, DiskFile, Facts
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.runtime.syncs import SyncJob, close_all
from simulation.kernel.disk import SimulatedDisk
from simulation.kernel.loop import device_wait

SHARED_MEMORY = "/dev/shm"


class RealDisk(SimulatedDisk):
    """A `FileDisk` in `folder`.  The object outlives the processes that use it, as `SimulatedDisk` does."""

    def __init__(self, random: Random, folder: Path, node_id: int) -> None:
        super().__init__(random)
        self._folder = folder
        self._node_id = node_id
        self._disk = self._acquire()

    def _acquire(self) -> FileDisk:
        return FileDisk.acquire(self._folder, self._node_id, None, lambda: self._directory_id, syncs=_SyncsOnLoop())

    @property
    def facts(self) -> Facts:
        return self._disk.facts

    def process_ends(self) -> None:
        self._disk.close()
        self._disk = self._acquire()

    def crash(self) -> None:
        """Do the same as `process_ends`, because a power failure loses nothing on this disk."""
        self.process_ends()

    def close(self) -> None:
        self._disk.close()

    def open(self, path: str, create: bool = False) -> DiskFile:
        return self._disk.open(path, create)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def make_dir(self, path: str) -> None:
        self._disk.make_dir(path)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def remove(self, path: str) -> None:
        self._disk.remove(path)

    def remove_tree(self, path: str) -> None:
        self._disk.remove_tree(path)

    async def read(self, file: DiskFile, position: int, size: int) -> bytes:
        return await self._disk.read(file, position, size)

    async def write(self, file: DiskFile, data: bytes) -> None:
        await self._disk.write(file, data)

    async def free_bytes(self) -> int:
        return await self._disk.free_bytes()

    async def flush(self, files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        await device_wait(self._random.uniform(*self.sync_ms) / 1000)
        await self._disk.flush(files, folders)

    async def sync_dir(self, path: str) -> None:
        await self._disk.sync_dir(path)


class _SyncsOnLoop:
    """Syncs nothing, because a power failure loses nothing on this disk.  Lets other tasks run, as a sync does."""

    async def run(self, jobs: Sequence[SyncJob]) -> None:
        close_all(jobs)
        await asyncio.sleep(0)

    def close(self) -> None:
        pass


class Folders:
    """The folders of one run's disks, in `SHARED_MEMORY` if it exists; `remove` deletes them all."""

    def __init__(self) -> None:
        memory = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
        self._root = Path(tempfile.mkdtemp(prefix="quorumlog-simulation-", dir=memory))
        self._disks: list[RealDisk] = []

    def disk(self, random: Random, node_id: int) -> RealDisk:
        disk = RealDisk(random, self._root / str(len(self._disks)), node_id)
        self._disks.append(disk)
        return disk

    def remove(self) -> None:
        for disk in self._disks:
            disk.close()
        shutil.rmtree(self._root, ignore_errors=True)


def _is_a_disk(disk: RealDisk) -> Disk:
    return disk
