"""SQLite with a disk whose syncs fail: a wrapper around the xSync method of SQLite's own file system layer.

SQLite calls xSync where it wants fsync.  Here that method first asks a function of the test, by path, whether the sync
fails.  Everything else is SQLite and the real file system.  No compiler and no other privileges are needed.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SQLITE_IOERR_FSYNC = 1034
_METHODS_SIZE = 8 + 18 * ctypes.sizeof(ctypes.c_void_p)  # struct sqlite3_io_methods of version 3
_SYNC_AT = 8 + 4 * ctypes.sizeof(ctypes.c_void_p)

_Open = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _FileSystem(ctypes.Structure):
    """The beginning of struct sqlite3_vfs."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("path_size_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
    )


_kept: list[object] = []
"""Callbacks, kept because an open connection, which still calls them, may outlive the test that opened it."""


@contextmanager
def failing_syncs(fails: Callable[[str], bool]) -> Iterator[None]:
    """Let `fails(path)` decide whether a sync fails.

    This applies to databases that are opened inside the context.  `fails` is called on the thread that syncs.
    """
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_FileSystem)
    system = library.sqlite3_vfs_find(None).contents
    real_address = system.open
    real_open = _Open(real_address)

    def open_file(vfs: int, path: int | None, file: int, flags: int, out: int) -> int:
        """`path` is an address, because the file keeps SQLite's own string."""
        result: int = real_open(vfs, path, file, flags, out)
        methods = ctypes.c_void_p.from_address(file)  # the first field of a sqlite3_file
        if result == 0 and path is not None and methods.value is not None:
            methods.value = _with_sync(methods.value, os.fsdecode(ctypes.string_at(path)), fails)
        return result

    callback = _Open(open_file)
    _kept.append(callback)
    system.open = ctypes.cast(callback, ctypes.c_void_p).value
    try:
        yield
    finally:
        system.open = real_address


def _with_sync(methods: int, path: str, fails: Callable[[str], bool]) -> int:
    """Return the address of a copy of `methods` whose sync may fail."""
    copy = ctypes.create_string_buffer(ctypes.string_at(methods, _METHODS_SIZE), _METHODS_SIZE)
    slot = ctypes.c_void_p.from_buffer(copy, _SYNC_AT)
    assert slot.value is not None
    real_sync = _Sync(slot.value)
    callback = _Sync(lambda file, flags: SQLITE_IOERR_FSYNC if fails(path) else real_sync(file, flags))
    slot.value = ctypes.cast(callback, ctypes.c_void_p).value
    _kept.extend((copy, callback))
    return ctypes.addressof(copy)


@dataclass
class FailingDisk:
    """Fails one sync of the file named `fails`, after `spared` syncs of it have succeeded.  All other syncs succeed."""

    folder: Path
    fails: str | None = None
    spared: int = 0
    left: dict[str, bytes] | None = None
    """Contents by name, as they were when the sync failed."""
    synced_later: list[str] = field(default_factory=list)

    def sync(self, path: str) -> bool:
        """Return whether this sync fails."""
        name = os.path.basename(path)
        if self.left is not None:
            self.synced_later.append(name)
            return False
        if name != self.fails:
            return False
        self.spared -= 1
        if self.spared >= 0:
            return False
        self.left = contents(self.folder)
        return True

    def assert_untouched(self) -> None:
        """Assert that nothing was written since the failure."""
        assert self.left is not None, "no sync has failed"
        assert contents(self.folder) == self.left
        assert self.synced_later == []


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    """Yield a `FailingDisk` for databases that are opened in `folder` inside the context.  Create a missing folder."""
    folder.mkdir(exist_ok=True)
    disk = FailingDisk(folder)
    with failing_syncs(disk.sync):
        yield disk
