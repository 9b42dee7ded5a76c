"""The `Disk` port: every file system operation of a broker's log.

Synchronous calls make nothing durable, and most are cheap.  `pread` may wait for the disk if the page cache does not
contain the data, and `remove_tree` may take long.  `flush` and `sync_dir` make data durable, outside the event loop's
thread.  Every operation of `Disk` and `DiskFile` raises `DiskError` if the disk fails.  The simulator's disk keeps
unflushed data apart and loses it in a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID


class DiskError(Exception):
    """The disk failed.  Nothing is retried, and this process does not write to the data directory again."""


class DiskFile(Protocol):
    """An open file of a log.  Positions and sizes in bytes."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...

    def append(self, data: bytes | memoryview) -> int:
        """Write all of `data` at the end, to the page cache; return its position.

        Raises:
            DiskError: this directory must not be written any more.
        """
        ...

    def pread(self, position: int, size: int) -> bytes:
        """Return up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate to `size` bytes; durable after the next `flush`."""
        ...

    def close(self) -> None: ...


class Facts(Protocol):
    """Small durable values of one data directory, in one SQLite file: key -> value.

    Epoch caches, recovery points, identities: many changes share one transaction and one fsync.
    """

    def load(self, prefix: str = "") -> dict[str, bytes]:
        """Return all facts whose key starts with `prefix`, sorted by key.

        For the start only: it reads all facts, on the caller's thread, and waits until a commit has ended.
        """
        ...

    async def commit(self, changes: dict[str, bytes | None]) -> None:
        """Set (or, with None, delete) the given keys in one transaction; durable on return.

        Concurrent commits take effect in the order of the calls.

        Raises:
            DiskError: it is unknown whether the changes are durable; never retried.
        """
        ...


class Disk(Protocol):
    """A data directory, locked by this process."""

    @property
    def directory_id(self) -> UUID:
        """The random id of the disk, created when the directory was formatted."""
        ...

    @property
    def facts(self) -> Facts: ...

    def open(self, path: str, create: bool = False) -> DiskFile:
        """Return the file at `path`; the same object for as long as it is open.

        Raises:
            FileNotFoundError: the file does not exist, and `create` is false.
        """
        ...

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder.

        Raises:
            DiskError: the path cannot be examined.
        """
        ...

    def list(self, path: str) -> list[str]:
        """Return the names in a folder, sorted; empty if the folder does not exist."""
        ...

    def make_dir(self, path: str) -> None:
        """Create one level; keep an existing folder unchanged.  Durable after `sync_dir` of its parent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename atomically; durable after `sync_dir` of the parents.  A file at the new path is replaced.

        Closes open files at or below both paths.
        """
        ...

    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...

    async def read(self, file: DiskFile, position: int, size: int) -> bytes:
        """Return the same as `file.pread`, but read outside the event loop's thread."""
        ...

    async def write(self, file: DiskFile, data: bytes) -> None:
        """Append as `file.append` does, but outside the event loop's thread.

        The caller appends nothing else to this file meanwhile.  After a cancellation, part of `data` may follow the
        file's end, so the file must be deleted.
        """
        ...

    async def free_bytes(self) -> int:
        """Return the number of bytes that this process may still write to the file system; 0 if it is unknown.

        Raises:
            DiskError: the file system does not answer in time.
        """
        ...

    async def flush(self, files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        """Make the appends and truncations of `files` before this call durable.

        One call for several files costs less than several calls.
        folders: synced as by `sync_dir`.  After creating a file, name its folder once, and also the parent of a new
        folder.

        Raises:
            DiskError: it is unknown which data is durable; never retried.
        """
        ...

    async def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a folder durable."""
        ...
