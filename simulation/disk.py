"""The simulated `Disk`: a file keeps its flushed content apart from its current one; `crash` goes back to the former.

Names are durable after `sync_dir` of their folder, as on ext4 (a rename without it was undone by a power cut).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from posixpath import dirname
from random import Random
from uuid import UUID

from quorumlog.runtime.disk import Disk, DiskFile, Facts


class SimulatedFile:
    """`DiskFile` in memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.content = bytearray()
        self.flushed = b""
        self.is_open = True

    @property
    def size(self) -> int:
        return len(self.content)

    def append(self, data: bytes | memoryview) -> int:
        position = len(self.content)
        self.content += data
        return position

    def pread(self, position: int, size: int) -> bytes:
        return bytes(self.content[position : position + size])

    def truncate(self, size: int) -> None:
        del self.content[size:]

    def close(self) -> None:
        self.is_open = False


class SimulatedFacts:
    """`Facts` in memory: `commit` is durable when it returns."""

    def __init__(self, random: Random) -> None:
        self._values: dict[str, bytes] = {}
        self._random = random

    def load(self, prefix: str = "") -> dict[str, bytes]:
        return {key: self._values[key] for key in sorted(self._values) if key.startswith(prefix)}

    async def commit(self, changes: dict[str, bytes | None]) -> None:
        await asyncio.sleep(self._random.uniform(0.2, 2.0) / 1000)
        for key, value in changes.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value


class SimulatedDisk:
    """`Disk` in memory.  The object outlives the processes that use it; call `crash` between two of them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._directory_id = UUID(int=random.getrandbits(128), version=4)
        self._facts = SimulatedFacts(random)
        self._files: dict[str, SimulatedFile] = {}
        self._dirs: set[str] = {""}
        self._durable_files: dict[str, SimulatedFile] = {}
        self._durable_dirs: set[str] = {""}

    @property
    def directory_id(self) -> UUID:
        return self._directory_id

    @property
    def facts(self) -> Facts:
        return self._facts

    def open(self, path: str, create: bool = False) -> DiskFile:
        file = self._files.get(path)
        if file is None:
            if not create:
                raise FileNotFoundError(path)
            file = self._files[path] = SimulatedFile(path)
        return file

    def exists(self, path: str) -> bool:
        return path in self._files or path.strip("/") in self._dirs

    def list(self, path: str) -> list[str]:
        prefix = path.strip("/") + "/" if path.strip("/") else ""
        names = [one[len(prefix) :] for one in [*self._files, *self._dirs] if one and one.startswith(prefix)]
        return sorted({name.split("/")[0] for name in names if name})

    def make_dir(self, path: str) -> None:
        self._dirs.add(path.strip("/"))

    def rename(self, old: str, new: str) -> None:
        old, new = old.strip("/"), new.strip("/")
        for path in [one for one in self._files if one == old or one.startswith(old + "/")]:
            file = self._files.pop(path)
            file.path = new + path[len(old) :]
            self._files[file.path] = file
        for path in [one for one in sorted(self._dirs) if one == old or one.startswith(old + "/")]:
            self._dirs.discard(path)
            self._dirs.add(new + path[len(old) :])

    def remove(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        path = path.strip("/")
        for one in [name for name in self._files if name.startswith(path + "/")]:
            del self._files[one]
        self._dirs = {one for one in self._dirs if one != path and not one.startswith(path + "/")}

    async def flush(self, files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        wanted = [(file, bytes(file.content)) for file in files if isinstance(file, SimulatedFile)]
        await asyncio.sleep(self._random.uniform(0.2, 2.0) / 1000)
        for file, content in wanted:
            file.flushed = content
        for folder in folders:
            await self.sync_dir(folder)

    async def sync_dir(self, path: str) -> None:
        path = path.strip("/")
        await asyncio.sleep(self._random.uniform(0.1, 0.5) / 1000)
        inside = {one for one in self._files if dirname(one) == path}
        for gone in [one for one in self._durable_files if dirname(one) == path and one not in inside]:
            del self._durable_files[gone]
        for one in sorted(inside):
            self._durable_files[one] = self._files[one]
        self._durable_dirs = {one for one in self._durable_dirs if dirname(one) != path} | {
            one for one in self._dirs if dirname(one) == path or one == ""
        }

    def crash(self) -> None:
        """Lose everything that was not flushed or not synced, in files, names and folders."""
        self._dirs = {
            one for one in self._durable_dirs if not one or dirname(one) in self._durable_dirs or not dirname(one)
        }
        self._files = {}
        for path, file in sorted(self._durable_files.items()):
            if dirname(path) not in self._dirs:
                continue
            file.path, file.content = path, bytearray(file.flushed)
            self._files[path] = file


def _is_a_disk(disk: SimulatedDisk) -> Disk:
    return disk
