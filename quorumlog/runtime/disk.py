"""The `Disk` port: all that a broker's log does to a file system.

Synchronous calls reach the page cache only and are cheap; what must be durable goes through `flush` and `sync_dir`,
which run off the loop.  The simulator's disk keeps what was not flushed apart and loses it in a crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol
from uuid import UUID


class DiskError(Exception):
    """The disk failed.  Nothing is retried: the data directory is not written again by this process (design §4.13)."""


class DiskFile(Protocol):
    """An open file of a log.  Positions and sizes in bytes."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int: ...

    def append(self, data: bytes | memoryview) -> int:
        """Write all of `data` at the end, to the page cache; returns the position it starts at.

        Raises:
            DiskError: nothing may be written to this directory any more.
        """
        ...

    def pread(self, position: int, size: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut to `size` bytes; durable after the next `flush`."""
        ...

    def close(self) -> None: ...


class Facts(Protocol):
    """The small durable facts of one data directory, in one SQLite file: key -> value.

    Epoch caches, recovery points, identities: many changes, one transaction, one fsync.
    """

    def load(self, prefix: str = "") -> dict[str, bytes]:
        """All facts whose key starts with `prefix`, sorted by key."""
        ...

    async def commit(self, changes: dict[str, bytes | None]) -> None:
        """Set (or, with None, delete) the given keys in one transaction; durable on return.

        Raises:
            DiskError: what is durable is unknown; never retried.
        """
        ...


class Disk(Protocol):
    """A data directory, locked by this process."""

    @property
    def directory_id(self) -> UUID:
        """Random, made when the directory was formatted: names the disk."""
        ...

    @property
    def facts(self) -> Facts: ...

    def open(self, path: str, create: bool = False) -> DiskFile:
        """The file at `path`; the same object for as long as it is open.

        Raises:
            FileNotFoundError: it does not exist and `create` is not set.
        """
        ...

    def exists(self, path: str) -> bool: ...
    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted; none when there is no such folder."""
        ...

    def make_dir(self, path: str) -> None:
        """One level; an existing folder is left as it is.  Durable after `sync_dir` of its parent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; durable after `sync_dir` of the parents.  Open files of it, or in it, are closed."""
        ...

    def remove(self, path: str) -> None: ...
    def remove_tree(self, path: str) -> None: ...

    async def flush(self, files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        """Make everything appended to `files` before this call durable, with one barrier for all (design §6).

        folders: as `sync_dir`, under the same barrier; new files are named here once, with their folder's parent
        when that is new, too.

        Raises:
            DiskError: what is durable is unknown; never retried.
        """
        ...

    async def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a folder durable."""
        ...
