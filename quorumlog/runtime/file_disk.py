"""`Disk` on a real file system: a locked, identified data directory.

Layout of a directory:

    lock         held with flock by the process that uses the directory; contains its pid
    meta.json    format version, directory id, node id, cluster id (once known)
    facts.db     the small durable facts (`sqlite_facts`)
    logs/ …      the log's own files

`data_directory` locks, checks and formats a directory.

**Open files** are kept in an LRU.  The LRUs of all data directories together use at most a quarter of RLIMIT_NOFILE,
since connections need the rest.  However, each LRU may always keep `OPEN_FILES_MIN` files open.  A file that was closed
is reopened when it is used.  Files with unflushed bytes are closed last, since Linux reports a failed write-back only
to processes that have the file open.  If the process has no descriptor left, the LRU closes some files; that is not a
failure of a disk.

**Flush**: a few files are synced with `fdatasync` in parallel, and more files with one `syncfs`, which also covers new
names (the limit was measured).  Both use duplicated descriptors in threads (`runtime.syncs`), so the LRU may close a
file meanwhile.  `syncfs` reports errors through the descriptor of the directory, which is open from the start.  Linux
before 5.8 and some file systems do not report errors at all (`syncs.FULLY_SYNCED`), and `syncfs` does not reach a
folder on which another file system is mounted.  In these cases each file is synced on its own.  Each directory has its
own threads, so a directory that hangs does not delay the others.  Facts and copies use threads of the directory for the
same reason.  In the loop's executor, directories that hang could occupy all threads, and the work of the others would
count as stalled.

**Failure**: after a failed write or sync it is unknown which data is durable, and a second sync would falsely succeed.
From then on `failure` is set, and every write raises it.  A failed read sets it as well.  The directory also fails if
one operation in a thread (a read, a write, a commit, a query of the free space or one part of a flush) takes longer
than `stall_s`, so that other replicas can lead.  Its blocked threads stay blocked.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from quorumlog.runtime.data_directory import (
    Claim,
    check_identity,
    claim,
    format_directory,
    open_folder,
    refuse_access,
    save_identity,
)
from quorumlog.runtime.descriptors import descriptor_limit
from quorumlog.runtime.disk import Disk, DiskError, DiskFile
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.space import space_of
from quorumlog.runtime.sqlite_facts import SqliteFacts
from quorumlog.runtime.stall import STALL_S, no_longer_than
from quorumlog.runtime.syncs import Sync, SyncJob, Syncs, SyncThreads, close_all, is_fully_synced

SYNC_ONE_BY_ONE_MAX = 8  # more files and folders than this share one syncfs
OPEN_FILES_MIN = 16
SYNC_JOBS_MAX = 64  # single syncs of files and folders that are requested at a time; each needs a descriptor
THREADS_MAX = 4  # of one directory, for facts, copies and the free space; syncs have threads of their own
GIVEN_UP_MAX = 16  # maximum number of files to close for one new descriptor, when the process has none left

logger = get_logger("disk")

_T = TypeVar("_T")


class FileDisk:
    """A data directory, locked by this process.  Created by `FileDisk.acquire` or `FileDisk.open_claimed`."""

    def __init__(
        self,
        root: Path,
        lock_fd: int,
        meta: dict[str, Any],
        stall_s: float,
        syncs: Syncs | None,
        directories: int,
    ) -> None:
        self.root = root
        self._stall_s = stall_s
        self.failure: DiskError | None = None
        self._lock_fd = lock_fd
        self._meta = meta
        self._directory_id = UUID(meta["directory_id"])
        self._device = root.stat().st_dev
        self._is_fully_synced = is_fully_synced(str(root)) and _is_one_file_system(root, self._device)
        self._open_files_max = max(OPEN_FILES_MIN, descriptor_limit() // 4 // directories)
        self._clean: OrderedDict[str, _File] = OrderedDict()  # with a descriptor; least recently used first
        self._dirty: OrderedDict[str, _File] = OrderedDict()  # the same, with unflushed bytes
        self._handles: dict[str, _File] = {}
        self._threads = ThreadPoolExecutor(THREADS_MAX, "disk")  # started when needed
        self._root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._facts = SqliteFacts(root / "facts.db", self._set_failure, stall_s, self._threads)
        except BaseException:
            os.close(self._root_fd)
            raise
        self._syncs = syncs or SyncThreads(SYNC_ONE_BY_ONE_MAX)

    @classmethod
    def acquire(
        cls,
        root: str | Path,
        node_id: int,
        cluster_id: str | None,
        new_directory_id: Callable[[], UUID],
        stall_s: float = STALL_S,
        syncs: Syncs | None = None,
        directories: int = 1,
    ) -> FileDisk:
        """Lock the directory, format it if it is new, and check that it belongs to this node.

        Args:
            cluster_id: None if this node does not know it yet; see `bind_cluster`.
            stall_s: seconds after which an operation in a thread counts as failed.
            syncs: makes the files durable; None: threads of this directory.
            directories: the number of data directories that share the descriptors of this process.

        Raises:
            StoreRefusedError: it belongs to another node or cluster, is in use, has another format, or is not writable.
            CorruptStoreError: a file in it is missing or damaged.
            FatalError: its disk is full or failing, or its `facts.db` cannot be used.
        """
        [claimed] = claim([root], node_id, cluster_id)
        return cls.open_claimed(claimed, node_id, cluster_id, new_directory_id, stall_s, syncs, directories)

    @classmethod
    def open_claimed(
        cls,
        claimed: Claim,
        node_id: int,
        cluster_id: str | None,
        new_directory_id: Callable[[], UUID],
        stall_s: float = STALL_S,
        syncs: Syncs | None = None,
        directories: int = 1,
    ) -> FileDisk:
        """Open a directory that `claim` returned, and format it if it is new.  The lock now belongs to the result.

        The arguments are those of `acquire`.  If this raises, the lock is released.

        Raises:
            StoreRefusedError: it is not writable.
            CorruptStoreError: a file in it is missing or damaged.
            FatalError: its disk is full or failing, or its `facts.db` cannot be used.
        """
        root, lock_fd, meta = claimed
        try:
            if meta is None:
                meta = format_directory(root, node_id, cluster_id, new_directory_id())
            disk = cls(root, lock_fd, meta, stall_s, syncs, directories)
        except OSError as error:
            os.close(lock_fd)
            raise refuse_access(root, error) from error
        except BaseException:
            os.close(lock_fd)
            raise
        if cluster_id is not None:
            try:
                disk.bind_cluster(cluster_id)
            except BaseException:
                disk.close()
                raise
        return disk

    @property
    def directory_id(self) -> UUID:
        return self._directory_id

    @property
    def cluster_id(self) -> str | None:
        return self._meta["cluster_id"]  # type: ignore[no-any-return]

    @property
    def facts(self) -> SqliteFacts:
        return self._facts

    def bind_cluster(self, cluster_id: str) -> None:
        """Record the cluster that this directory belongs to, once it is known; durable on return.

        Raises:
            StoreRefusedError: it belongs to another cluster, or is not writable.
            FatalError: its disk is full or failing.
        """
        check_identity(self.root, self._meta, self._meta["node_id"], cluster_id)
        if self._meta["cluster_id"] is None:
            bound = {**self._meta, "cluster_id": cluster_id}
            try:
                save_identity(self.root, bound)
            except OSError as error:
                raise refuse_access(self.root, error) from error
            self._meta = bound

    def close(self) -> None:
        """Close every file and release the lock, without a flush.

        If the directory has failed or a commit hangs, the facts stay open and the lock is held until the process ends.
        """
        for file in list(self._handles.values()):
            file.close()
        self._syncs.close()
        os.close(self._root_fd)
        self._threads.shutdown(wait=False)  # a thread that hangs remains
        if self._facts.close(leave_files=self.failure is not None):
            os.close(self._lock_fd)

    # -- files and folders

    def open(self, path: str, create: bool = False) -> DiskFile:
        if (file := self._handles.get(path)) is not None:
            return file
        if create:
            self._check_writable()
        file = _File(self, path)
        try:
            self._open_fd(file, create)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._fail(path, error) from error
        self._handles[path] = file
        return file

    def exists(self, path: str) -> bool:
        try:
            os.stat(self._locate(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # the file may exist, so it must not count as missing
            raise self._fail(path, error) from error
        return True

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(self._locate(path)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._fail(path, error) from error

    def make_dir(self, path: str) -> None:
        self._check_writable()
        try:
            os.mkdir(self._locate(path), 0o750)
        except FileExistsError:
            pass
        except OSError as error:
            raise self._fail(path, error) from error

    def rename(self, old: str, new: str) -> None:
        self._check_writable()
        self._close_under(old)
        self._close_under(new)  # `open` would continue to return the file that is replaced
        try:
            os.rename(self._locate(old), self._locate(new))
        except OSError as error:
            raise self._fail(old, error) from error

    def remove(self, path: str) -> None:
        self._check_writable()
        if (file := self._handles.get(path)) is not None:
            file.close()
        try:
            os.unlink(self._locate(path))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._fail(path, error) from error

    def remove_tree(self, path: str) -> None:
        """Remove a folder without open files.  This may take a long time; call it in an executor."""
        self._check_writable()
        assert not any(one.startswith(path + "/") for one in tuple(self._handles)), path
        try:
            shutil.rmtree(self._locate(path))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._fail(path, error) from error

    async def read(self, file: DiskFile, position: int, size: int) -> bytes:
        assert isinstance(file, _File), file
        return await self._in_thread(file, partial(_read, position=position, size=size))

    async def write(self, file: DiskFile, data: bytes) -> None:
        assert isinstance(file, _File), file
        self._check_writable()
        position = file.size
        self._set_dirty(file, True)
        await self._in_thread(file, partial(_write, position=position, data=data))
        file.known_size = position + len(data)
        self._set_dirty(file, True)  # a flush that began meanwhile does not cover all of it

    async def _in_thread(self, file: _File, work: Callable[[int], _T]) -> _T:
        """Run `work` in a thread of the directory.  `work` gets a descriptor of the file, and closes it."""
        try:
            fd = self._duplicate(file)
            async with no_longer_than(self._stall_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, work, fd)
        except OSError as error:
            raise self._fail(file.path, error) from error

    async def free_bytes(self) -> int:
        try:
            async with no_longer_than(self._stall_s):
                space = await asyncio.get_running_loop().run_in_executor(self._threads, space_of, str(self.root))
        except OSError as error:
            raise self._fail("statvfs", error) from error
        return 0 if space is None else space.free_bytes

    # -- durability

    async def flush(self, files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        self._check_writable()
        dirty = [file for file in files if isinstance(file, _File) and not file.is_closed]
        folders = list(folders)
        if not dirty and not folders:
            return
        try:
            await self._sync(dirty, folders)
        except OSError as error:
            raise self._fail("flush", error) from error
        self._check_writable()  # the system may report a failure to only one of two parallel syncs

    async def _sync(self, dirty: Sequence[_File], folders: Sequence[str]) -> None:
        if self._is_fully_synced and len(dirty) + len(folders) > SYNC_ONE_BY_ONE_MAX:
            for file in dirty:
                self._set_dirty(file, False)
            await self._run([SyncJob(Sync.SYSTEM, self._new_fd(lambda: os.dup(self._root_fd)))])
            return
        for start in range(0, len(dirty) + len(folders), SYNC_JOBS_MAX):
            jobs: list[SyncJob] = []
            end = start + SYNC_JOBS_MAX
            try:
                for file in dirty[start:end]:
                    if not file.is_closed:  # the file was deleted or replaced while others were synced
                        jobs.append(SyncJob(Sync.DATA, self._duplicate(file)))
                        self._set_dirty(file, False)  # not earlier: files with unflushed bytes are closed last
                for folder in folders[max(0, start - len(dirty)) : max(0, end - len(dirty))]:
                    with suppress(FileNotFoundError):  # removed or renamed meanwhile: nothing to make durable
                        jobs.append(SyncJob(Sync.ALL, self._new_fd(partial(open_folder, self._locate(folder)))))
            except BaseException:
                close_all(jobs)
                raise
            await self._run(jobs)

    async def _run(self, jobs: Sequence[SyncJob]) -> None:
        async with no_longer_than(self._stall_s):  # for each part: a long flush on a slow disk does not hang
            await self._syncs.run(jobs)

    async def sync_dir(self, path: str) -> None:
        await self.flush((), (path,))

    # -- for _File

    def _open_fd(self, file: _File, create: bool) -> int:
        while len(self._clean) + len(self._dirty) >= self._open_files_max:
            next(iter((self._clean or self._dirty).values())).release()
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        fd = self._new_fd(lambda: os.open(self._locate(file.path), flags, 0o640))
        if file.known_size is None:
            status = os.fstat(fd)
            file.known_size = status.st_size
            if status.st_dev != self._device:  # a link or a mount leads to another file system
                self._is_fully_synced = False
        file.raw_fd = fd
        self._open_as(file)[file.path] = file
        return fd

    def _new_fd(self, make: Callable[[], int]) -> int:
        """Return the result of `make`; if the process has no descriptor left, close some files first."""
        for _ in range(GIVEN_UP_MAX):
            try:
                return make()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE) or not (self._clean or self._dirty):
                    raise
            next(iter((self._clean or self._dirty).values())).release()
        return make()

    def _duplicate(self, file: _File) -> int:
        return self._new_fd(lambda: os.dup(file.fd()))

    def _open_as(self, file: _File) -> OrderedDict[str, _File]:
        return self._dirty if file.is_dirty else self._clean

    def _set_dirty(self, file: _File, is_dirty: bool) -> None:
        if file.is_dirty == is_dirty:
            return
        self._forget(file)
        file.is_dirty = is_dirty
        if file.raw_fd is not None:
            self._open_as(file)[file.path] = file

    def _reopen(self, file: _File) -> int:
        if file.raw_fd is not None:
            self._open_as(file).move_to_end(file.path)
            return file.raw_fd
        assert not file.is_closed, f"{file.path} is used after close"
        try:
            return self._open_fd(file, create=False)
        except OSError as error:
            raise self._fail(file.path, error) from error

    def _forget(self, file: _File) -> None:
        self._open_as(file).pop(file.path, None)

    def _drop_handle(self, file: _File) -> None:
        if self._handles.get(file.path) is file:
            del self._handles[file.path]

    def _close_under(self, path: str) -> None:
        for one in [name for name in self._handles if name == path or name.startswith(path + "/")]:
            self._handles[one].close()

    def _locate(self, path: str) -> str:
        assert not path.startswith("/"), path
        assert ".." not in path.split("/"), path
        return os.path.join(self.root, path)

    def _check_writable(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _fail(self, path: str, error: OSError) -> DiskError:
        failure = DiskError(f"{self.root}: {path}: {error}")
        failure.__cause__ = error
        self._set_failure(failure)
        assert self.failure is not None
        return self.failure

    def _set_failure(self, failure: DiskError) -> None:
        if self.failure is None:
            self.failure = failure
            logger.error("data directory failed", directory_id=self._directory_id, error=str(failure))


class _File:
    """An append-only file, whose descriptor may be closed and reopened."""

    def __init__(self, disk: FileDisk, path: str) -> None:
        self.path = path
        self.raw_fd: int | None = None
        self.known_size: int | None = None
        self.is_dirty = False
        self.is_closed = False
        self._disk = disk

    @property
    def size(self) -> int:
        assert self.known_size is not None
        return self.known_size

    def fd(self) -> int:
        return self._disk._reopen(self)

    def append(self, data: bytes | memoryview) -> int:
        self._disk._check_writable()
        position = self.size
        fd = self.fd()
        self._disk._set_dirty(self, True)
        rest = memoryview(data)
        end = position
        try:
            while rest:
                written = os.pwrite(fd, rest, end)
                end += written
                rest = rest[written:]
        except OSError as error:
            raise self._disk._fail(self.path, error) from error
        self.known_size = end
        return position

    def pread(self, position: int, size: int) -> bytes:
        fd = self.fd()
        try:
            data = os.pread(fd, size, position)
            while len(data) < size and position + len(data) < self.size:  # the kernel returns less near 2 GiB
                more = os.pread(fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise self._disk._fail(self.path, error) from error
        return data

    def truncate(self, size: int) -> None:
        self._disk._check_writable()
        assert 0 <= size <= self.size, f"{self.path}: truncation to {size} bytes, has {self.size}"
        fd = self.fd()
        self._disk._set_dirty(self, True)
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise self._disk._fail(self.path, error) from error
        self.known_size = size

    def release(self) -> None:
        """Close the descriptor; it is reopened when needed."""
        if self.raw_fd is not None:
            os.close(self.raw_fd)
            self.raw_fd = None
            self._disk._forget(self)

    def close(self) -> None:
        self.release()
        self.is_closed = True
        self._disk._drop_handle(self)


# -- in a thread; each function owns and closes the descriptor that it gets


def _read(fd: int, position: int, size: int) -> bytes:
    try:
        data = os.pread(fd, size, position)
        while len(data) < size and (more := os.pread(fd, size - len(data), position + len(data))):
            data += more
        return data
    finally:
        os.close(fd)


def _write(fd: int, position: int, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            written = os.pwrite(fd, rest, position)
            position += written
            rest = rest[written:]
    finally:
        os.close(fd)


# -- folders


def _is_one_file_system(root: Path, device: int) -> bool:
    """Return whether no link or mount in `root` leads to another file system than `device`."""
    for entry in root.iterdir():
        try:
            if entry.stat().st_dev != device:
                return False
        except FileNotFoundError:
            continue  # a link to nothing
        except OSError:
            return False  # unknown
    return True


def _is_a_disk(disk: FileDisk) -> Disk:
    return disk
