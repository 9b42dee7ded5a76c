"""The simulated `Disk`: each file has a current and a flushed content, and `crash` returns to the flushed one.

Names are durable after `sync_dir` of their folder, as on ext4, where a power failure has undone a rename that was not
synced.  As on any file system with a journal, a rename from one folder to another is durable as a whole once either
folder is synced.  With `torn`, a power failure keeps a random part of the data that was not durable yet.  Of the
changes of names, it keeps all, none, or the first ones.  Of appended data, it keeps a random number of bytes at the
beginning, which zeros sometimes follow.  A disk that has failed once refuses every change until it is `repaired`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple
from uuid import UUID

from quorumlog.runtime.disk import Disk, DiskError, DiskFile, Facts
from simulation.kernel.loop import device_wait

HANG_LOOK_S = 0.05
FREE_BYTES = 1 << 40

NO_NAMES, SOME_NAMES = 0.35, 0.6
"""Bounds for a random number from 0 to 1, which decides about the changes of names that were not synced.

Below the first bound, a power failure loses all of them; below the second, it loses the last ones; otherwise none.
"""


def _folder(path: str) -> str:
    """Return the folder of a path, which must have no slash at its beginning or end."""
    return path.rpartition("/")[0]


class SimulatedFile:
    """`DiskFile` in memory."""

    def __init__(self, path: str, disk: SimulatedDisk) -> None:
        self.path = path
        self.content = bytearray()
        self.flushed = b""
        self.is_open = True
        self._disk = disk

    @property
    def size(self) -> int:
        return len(self.content)

    def append(self, data: bytes | memoryview) -> int:
        position = len(self.content)
        if not self._disk.takes_writes():
            self.content += data[: self._disk.room(len(data))]
            raise DiskError(f"{self.path}: no space left")
        self.content += data
        return position

    def pread(self, position: int, size: int) -> bytes:
        return bytes(self.content[position : position + size])

    def truncate(self, size: int) -> None:
        self._disk.check_not_broken(self.path)
        del self.content[size:]

    def close(self) -> None:
        self.is_open = False

    def rot(self, position: int, mask: int) -> None:
        """Flip the bits of `mask` in one byte of the file, on the disk and in the page cache."""
        durable = self.content[: position + 1] == self.flushed[: position + 1]
        self.content[position] ^= mask
        if durable:
            self.flushed = bytes(self.content[: position + 1]) + self.flushed[position + 1 :]

    def lose_power(self, random: Random, torn: bool) -> None:
        """Reduce the file to its content on the disk.  torn: this may by chance include data that was not flushed."""
        content, flushed = bytes(self.content), self.flushed
        if torn and content != flushed:
            same = _common(content, flushed)
            kept = random.randint(same, len(content))
            if random.random() < 0.2:
                zeros = random.randint(0, len(content) - kept)
                flushed = content[:kept] + bytes(zeros)
            elif same == len(flushed) or random.random() < 0.5:  # otherwise the truncation may not be on the disk yet
                flushed = content[:kept]
        self.content = bytearray(flushed)
        self.flushed = flushed


class _Change(NamedTuple):
    """A change of a name.  now: the file that has the name afterwards, or None; for a folder, whether it exists."""

    path: str
    now: SimulatedFile | bool | None
    is_folder: bool


class DiskImage(NamedTuple):
    """The contents of a backup of a disk."""

    files: dict[str, bytes]
    folders: frozenset[str]
    facts: dict[str, bytes]


class SimulatedFacts:
    """`Facts` in memory: `commit` is durable when it returns."""

    def __init__(self, random: Random, disk: SimulatedDisk) -> None:
        self._values: dict[str, bytes] = {}
        self._random = random
        self._disk = disk
        self._under_way: list[dict[str, bytes | None]] = []
        self._turn = asyncio.Lock()

    def load(self, prefix: str = "") -> dict[str, bytes]:
        return {key: self._values[key] for key in sorted(self._values) if key.startswith(prefix)}

    async def commit(self, changes: dict[str, bytes | None]) -> None:
        changes = dict(changes)
        async with self._turn:
            self._under_way.append(changes)
            try:
                await self._disk.synced()
            except DiskError:
                if self._random.random() < 0.5:
                    self._apply(changes)
                raise
            finally:
                if changes in self._under_way:  # otherwise the process has ended
                    self._under_way.remove(changes)
            self._apply(changes)

    def replace(self, values: Mapping[str, bytes]) -> None:
        """Replace all facts by these values, for example by the facts of a backup."""
        self._values = dict(values)

    def _apply(self, changes: dict[str, bytes | None]) -> None:
        for key, value in changes.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value

    def process_ends(self, torn: bool) -> None:
        """Keep or lose, as a whole, each transaction that was in progress."""
        for changes in self._under_way:
            if torn and self._random.random() < 0.5:
                self._apply(changes)
        self._under_way.clear()
        self._turn = asyncio.Lock()  # the process may have ended in the middle of a commit


class SimulatedDisk:
    """`Disk` in memory.

    The object outlives the processes that use it.  Between two processes, call `crash` or `process_ends`.
    """

    def __init__(self, random: Random, *, torn: bool = False) -> None:
        self._random = random
        self._torn = torn
        self._directory_id = UUID(int=random.getrandbits(128), version=4)
        self._facts = SimulatedFacts(random, self)
        self._files: dict[str, SimulatedFile] = {}
        self._dirs: set[str] = {""}
        self._durable_files: dict[str, SimulatedFile] = {}
        self._durable_dirs: set[str] = {""}
        self._journal: list[list[_Change]] = []
        """The changes of names that are not durable yet; each list takes effect as a whole."""
        self.sync_ms = (0.2, 2.0)
        self.fails = False  # whether the next sync fails
        self.hangs = False
        self.full = False
        self._broken = False

    @property
    def directory_id(self) -> UUID:
        return self._directory_id

    @property
    def facts(self) -> Facts:
        return self._facts

    # Faults

    def takes_writes(self) -> bool:
        """Return whether writes succeed.  On a full disk this fails the disk for the current process."""
        self._broken = self._broken or self.full
        return not self._broken

    def check_not_broken(self, path: str) -> None:
        """Refuse every change after a failure, as a real directory does.

        Raises:
            DiskError: the disk has failed in this process.
        """
        if self._broken:
            raise DiskError(f"{path}: the disk has failed")

    def _check_has_room(self, path: str) -> None:
        """As `check_not_broken`, for changes that need space."""
        if not self.takes_writes():
            raise DiskError(f"{path}: no space left")

    def room(self, size: int) -> int:
        """Return how many bytes of a failing write are written: a random number if the disk is full, otherwise 0."""
        return self._random.randint(0, size) if self.full else 0

    async def synced(self) -> None:
        """Wait for as long as a sync takes.

        Raises:
            DiskError: the sync fails.
        """
        await device_wait(self._random.uniform(*self.sync_ms) / 1000)
        while self.hangs:  # noqa: ASYNC110
            await asyncio.sleep(HANG_LOOK_S)
        if self.fails or not self.takes_writes():
            self.fails, self._broken = False, True
            raise DiskError("fsync failed")

    @property
    def is_broken(self) -> bool:
        """Return whether the disk has failed in the current process."""
        return self._broken

    def repaired(self) -> None:
        """Make the disk work again, for a new process that opens it."""
        self._broken = False

    def image(self) -> DiskImage:
        """Return a backup: the contents that a snapshot of the file system would have now."""
        files = {path: bytes(file.content) for path, file in self._files.items()}
        return DiskImage(files, frozenset(self._dirs), self._facts.load())

    def restore(self, image: DiskImage) -> None:
        """Replace the contents by the contents of a backup, all durable.  No process may use the disk meanwhile."""
        self._files, self._dirs = {}, set(image.folders)
        for path, content in image.files.items():
            file = self._files[path] = SimulatedFile(path, self)
            file.content, file.flushed = bytearray(content), content
        self._facts.replace(image.facts)
        self._durable_files, self._durable_dirs = dict(self._files), set(self._dirs)
        self._journal = []

    def files_in(self, folder: str) -> list[SimulatedFile]:
        """Return the files below a folder, by path."""
        return [file for path, file in sorted(self._files.items()) if path.startswith(folder + "/")]

    def rot_fact(self, key: str, position: int, mask: int) -> None:
        """Flip the bits of `mask` in one byte of a fact."""
        value = bytearray(self._facts.load(key)[key])
        value[position] ^= mask
        self._facts.replace({**self._facts.load(), key: bytes(value)})

    # Disk

    def open(self, path: str, create: bool = False) -> DiskFile:
        file = self._files.get(path)
        if file is None:
            if not create:
                raise FileNotFoundError(path)
            self._check_has_room(path)
            file = self._files[path] = SimulatedFile(path, self)
            self._journal.append([_Change(path, file, is_folder=False)])
        return file

    def exists(self, path: str) -> bool:
        return path in self._files or path.strip("/") in self._dirs

    def list(self, path: str) -> list[str]:
        prefix = path.strip("/") + "/" if path.strip("/") else ""
        names = [one[len(prefix) :] for one in [*self._files, *self._dirs] if one and one.startswith(prefix)]
        return sorted({name.split("/")[0] for name in names if name})

    def make_dir(self, path: str) -> None:
        self._check_has_room(path)
        self._dirs.add(path.strip("/"))
        self._journal.append([_Change(path.strip("/"), now=True, is_folder=True)])

    def rename(self, old: str, new: str) -> None:
        self._check_has_room(old)
        old, new = old.strip("/"), new.strip("/")
        taken = [] if old in self._files else [one for one in self._files if one.startswith(new + "/")]
        assert not taken, f"{old} cannot replace {new}, which is not empty: {taken}"  # as a real file system refuses it
        changes: list[_Change] = []
        below = old + "/"
        for path in [old] if old in self._files else [one for one in self._files if one.startswith(below)]:
            file = self._files.pop(path)
            file.path = new + path[len(old) :]
            self._files[file.path] = file
            changes += [_Change(path, None, is_folder=False), _Change(file.path, file, is_folder=False)]
        for path in sorted([one for one in self._dirs if one == old or one.startswith(below)]):
            self._dirs.discard(path)
            self._dirs.add(new + path[len(old) :])
            changes += [_Change(path, now=False, is_folder=True), _Change(new + path[len(old) :], True, is_folder=True)]
        self._journal.append(changes)

    def remove(self, path: str) -> None:
        self.check_not_broken(path)
        if self._files.pop(path, None) is not None:
            self._journal.append([_Change(path, None, is_folder=False)])

    def remove_tree(self, path: str) -> None:
        self.check_not_broken(path)
        path = path.strip("/")
        for one in [name for name in self._files if name.startswith(path + "/")]:
            del self._files[one]
            self._journal.append([_Change(one, None, is_folder=False)])
        for one in sorted((name for name in self._dirs if name == path or name.startswith(path + "/")), reverse=True):
            self._dirs.discard(one)
            self._journal.append([_Change(one, now=False, is_folder=True)])

    async def read(self, file: DiskFile, position: int, size: int) -> bytes:
        await device_wait(self._random.uniform(*self.sync_ms) / 1000)
        return file.pread(position, size)

    async def write(self, file: DiskFile, data: bytes) -> None:
        await device_wait(self._random.uniform(*self.sync_ms) / 1000)
        file.append(data)

    async def free_bytes(self) -> int:
        await device_wait(0.0)
        return 0 if self.full else FREE_BYTES

    async def flush(self, files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        wanted = [(file, bytes(file.content)) for file in files if isinstance(file, SimulatedFile)]
        await self.synced()
        for file, content in wanted:
            file.flushed = content
        for folder in folders:
            await self.sync_dir(folder)

    async def sync_dir(self, path: str) -> None:
        path = path.strip("/")
        low, high = self.sync_ms
        await device_wait(self._random.uniform(low / 2, high / 4) / 1000)
        if not self.takes_writes():
            raise DiskError("fsync failed")
        left = []
        for changes in self._journal:
            if any(_folder(one.path) == path for one in changes):
                for one in changes:  # a rename between two folders becomes durable as a whole
                    self._make_durable(one)
            else:
                left.append(changes)
        self._journal = left

    def _make_durable(self, change: _Change) -> None:
        """Make the current state of this name durable."""
        path = change.path
        if change.is_folder:
            (self._durable_dirs.add if path in self._dirs else self._durable_dirs.discard)(path)
        elif (file := self._files.get(path)) is not None:
            self._durable_files[path] = file
        else:
            self._durable_files.pop(path, None)

    def process_ends(self) -> None:
        """End the process as kill -9 does: written data stays, because it is in the page cache."""
        self._facts.process_ends(self._torn)

    def crash(self) -> None:
        """Lose power: files, names and folders lose everything that was not flushed or not synced.

        With `torn`, a random part of it is kept.
        """
        self.process_ends()
        chance = self._random.random() if self._torn else 0.0
        if chance < SOME_NAMES:
            self._forget_names(0 if chance < NO_NAMES else self._random.randint(0, len(self._journal)))
        self._durable_files, self._durable_dirs = dict(self._files), set(self._dirs)
        self._journal = []
        for _, file in sorted(self._files.items()):
            file.lose_power(self._random, self._torn)

    def _forget_names(self, kept: int) -> None:
        """Restore the durable names, and then apply the first `kept` entries of the journal."""
        files, dirs = dict(self._durable_files), set(self._durable_dirs)
        for change in (one for changes in self._journal[:kept] for one in changes):
            if change.is_folder:
                (dirs.add if change.now else dirs.discard)(change.path)
            elif isinstance(change.now, SimulatedFile):
                files[change.path] = change.now
            else:
                files.pop(change.path, None)
        self._dirs = {one for one in dirs if not one or _folder(one) in dirs or not _folder(one)}
        self._files = {}
        for path, file in sorted(files.items()):
            if _folder(path) in self._dirs:
                file.path = path
                self._files[path] = file


def _common(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _is_a_disk(disk: SimulatedDisk) -> Disk:
    return disk
