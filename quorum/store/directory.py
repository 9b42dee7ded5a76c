"""A quorum directory: its lock, its identity file, its formatting.  All functions block; call them off the event loop.

Files: `lock` (held by the process that uses the directory), `quorum.json` (format version, node, cluster and directory
id: identifies the folder to people and to later versions), `quorum.db` with SQLite's `quorum.db-wal`.

A missing file is never re-created.  The database gets its final name only when it is complete, and the identity file is
written last.  A directory is therefore empty, or its formatting was interrupted (then its database was never opened),
or it holds all of its files.  The lock and the mark are exceptions: the state of the node does not depend on them, so
they are re-created, and this is logged.  While a process has the directory open, the lock file records this fact.  The
write-ahead log must then also exist, and hold the write with which every opening begins.

**The mark.**  The first opening creates the file `<directory>.formatted` beside the directory.  While this file exists,
the directory must exist.  This distinguishes a directory that was deleted, or whose disk is not mounted, from a
directory that never existed.  To let a node start from an empty directory, use `move_away`, which also removes the
mark.  The mark holds a copy of the identity, and the names of files that other modules keep in the directory
(`note_file`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from quorumlog.errors import READ_ONLY_STEP, CorruptStoreError, FatalError, QuorumlogError, StoreRefusedError

FORMAT = 1
DATABASE = "quorum.db"
WAL = "quorum.db-wal"
UNFINISHED = "quorum.db.new"
IDENTITY = "quorum.json"
LOCK = "lock"
IN_USE_STEP = "stop that process, or give another directory"
LOCK_PAUSES_S = (0.01, 0.03, 0.06)
"""Pauses between the attempts to take the lock."""

MARK_SUFFIX = ".formatted"

_OPEN = "open"
_MOVING_TO = "moving_to"
_FILES = "files"
_DISK_ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


class Identity(msgspec.Struct, frozen=True):
    """The contents of `quorum.json`.  cluster_id: the cluster that the directory was formatted for; None for any."""

    format: int
    node_id: int
    directory_id: str
    cluster_id: str | None

    @property
    def uuid(self) -> UUID:
        return UUID(self.directory_id)


def refusal(path: str, error: OSError) -> QuorumlogError:
    """Return the error to raise for an OSError: the disk fails, or the directory cannot be used by this process."""
    name = errno.errorcode.get(error.errno or 0, "?")
    message = f"{error.filename or path}: {error.strerror or error} ({name})"
    if error.errno in _DISK_ERRNOS:
        return FatalError(message, next_step="check the disk")
    if error.errno == errno.EROFS:
        return StoreRefusedError(message, next_step=READ_ONLY_STEP)
    return StoreRefusedError(message, next_step="make the directory writable, or give another one")


def sync_directory(path: str) -> None:
    """Make creations, renames and removals in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str) -> None:
    """Create a directory and its missing parents, durably."""
    parent = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        return
    if not os.path.isdir(parent):
        make_directory(parent)
    os.mkdir(path, 0o700)
    sync_directory(parent)


class Lock:
    """The lock file of a directory.  Its text is the holder's pid, followed by `open` while the database is in use."""

    def __init__(self, directory: str) -> None:
        """Take the lock.

        Raises:
            StoreRefusedError: another process holds the lock; the message names it.
            OSError: the directory is not writable, or the disk fails.
        """
        self._path = os.path.join(directory, LOCK)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock_exclusively(self._descriptor)
        except OSError as error:
            holder = (self._text().split() or ["unknown"])[0]
            os.close(self._descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise _in_use(directory, holder) from error
        words = self._text().split()
        self.was_open = _OPEN in words
        self.was_lost = not words
        """The lock file was missing or empty, or the directory is new."""
        self._write(self.was_open)

    def _text(self) -> str:
        return os.pread(self._descriptor, 256, 0).decode("ascii", "replace")

    def _write(self, is_open: bool) -> None:
        text = f"{os.getpid()} {_OPEN if is_open else ''}\n".encode()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))
        os.fsync(self._descriptor)

    def mark_open(self) -> None:
        """Record that the write-ahead log must exist from now on; durable on return."""
        self._write(True)

    def mark_closed(self) -> None:
        """Record that SQLite may checkpoint and remove the write-ahead log from now on; durable on return."""
        self._write(False)

    def release(self) -> None:
        os.close(self._descriptor)


@contextlib.contextmanager
def unused(directory: str, next_step: str = IN_USE_STEP) -> Iterator[None]:
    """Hold the directory's lock as a reader, without writing anything.

    Raises:
        StoreRefusedError: another process holds the lock; the message names it.
        OSError: the lock file cannot be opened.
    """
    try:
        descriptor = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # the directory is new, or a copy that was made without its lock file
        yield
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            holder = (os.pread(descriptor, 256, 0).split() or [b"unknown"])[0].decode("ascii", "replace")
            raise _in_use(directory, holder, next_step) from error
        yield
    finally:
        os.close(descriptor)


def check_unused(directory: str, node_id: int) -> None:
    """Check, without writing anything, that no process uses the directory, and that it is not another node's.

    The directory may be missing.

    Raises:
        StoreRefusedError: it is in use, belongs to another node, or cannot be read.
        CorruptStoreError: its identity file is damaged.
        FatalError: the disk fails.
    """
    try:
        with unused(directory):
            identity = read_identity(directory)
    except NotADirectoryError:
        return  # its opening reports this
    except OSError as error:
        raise refusal(directory, error) from error
    if identity is not None:
        check_owner(directory, identity, node_id)


def _lock_exclusively(descriptor: int) -> None:
    """Take the lock of an open file.  Another process may hold it for an instant to find out whether it is free.

    Raises: OSError: EWOULDBLOCK or EACCES: another process holds the lock.
    """
    for pause_s in LOCK_PAUSES_S:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            time.sleep(pause_s)  # the system reports no event when a process releases the lock
        else:
            return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def check_owner(directory: str, identity: Identity, node_id: int) -> None:
    """Check that the directory belongs to this node.

    Raises:
        StoreRefusedError: it belongs to another one.
    """
    if identity.node_id != node_id:
        raise StoreRefusedError(
            f"{directory} belongs to node {identity.node_id}, not to node {node_id}",
            next_step="give the node its own directory",
        )


def _in_use(directory: str, holder: str, next_step: str = IN_USE_STEP) -> StoreRefusedError:
    return StoreRefusedError(f"{directory} is in use by process {holder}", next_step=next_step)


def read_identity(directory: str) -> Identity | None:
    """Return the contents of `quorum.json`; None if the file does not exist.

    Raises:
        StoreRefusedError: a newer version wrote the file.
        CorruptStoreError: the file is damaged.
    """
    path = os.path.join(directory, IDENTITY)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CorruptStoreError(f"{path} is damaged: {error}", next_step=_mend(directory)) from error
    try:
        values = json.loads(text)
        version = values["format"]
        if isinstance(version, int) and version > FORMAT:
            raise StoreRefusedError(
                f"{directory} has format {version}; this version knows {FORMAT}", next_step="run the newer version"
            )
        identity = Identity(version, values["node_id"], values["directory_id"], values["cluster_id"])
        _ = identity.uuid
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptStoreError(f"{path} is damaged: {error!r}", next_step=_mend(directory)) from error
    if identity.format != FORMAT or not isinstance(identity.node_id, int):
        raise CorruptStoreError(f"{path} is damaged: {text[:200]!r}", next_step=_mend(directory))
    return identity


def find_identity(directory: str) -> Identity | None:
    """Return the identity of a directory that no node is formatting; None if it was never formatted.

    Raises the errors of `read_identity`, and CorruptStoreError if a database exists without an identity file.
    """
    identity = read_identity(directory)
    if identity is None and os.path.exists(os.path.join(directory, DATABASE)):
        raise identity_missing(directory)
    return identity


def identity_missing(directory: str) -> CorruptStoreError:
    """Return the error for a directory that was used and whose `quorum.json` is missing."""
    path = os.path.join(directory, IDENTITY)
    return CorruptStoreError(
        f"{path} is missing: without it the disk of a voter would take part under another identity",
        next_step=_mend(directory),
    )


def _mend(directory: str) -> str:
    """Return the next step for an operator whose identity file is lost.  The mark holds a copy of it."""
    anew = f"to start over, `quorum-node set-aside --data-dir {os.path.dirname(os.path.abspath(directory))}`"
    if isinstance(_read_mark(directory).get("directory_id"), str):
        return f"cp {mark_path(directory)} {os.path.join(directory, IDENTITY)}; {anew}"
    return f"restore it from a copy; {anew}"


def write_identity(directory: str, identity: Identity) -> None:
    """Write `quorum.json` atomically; durable on return."""
    path = os.path.join(directory, IDENTITY)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(identity), indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    sync_directory(directory)


def mark_path(directory: str) -> str:
    """Return the path of the mark, the file whose existence means that the directory must exist."""
    return os.path.abspath(directory) + MARK_SUFFIX


def write_mark(directory: str, identity: Identity) -> bool:
    """Record that the directory must exist from now on; durable on return.  Return False if an intact mark existed."""
    if _read_mark(directory):
        return False
    _save_mark(directory, asdict(identity))
    return True


def replace_identity(directory: str, identity: Identity) -> None:
    """Give a directory another identity, in its file and in the mark; durable on return."""
    write_identity(directory, identity)
    _save_mark(directory, {**_read_mark(directory), **asdict(identity)})


def note_file(directory: str, name: str) -> None:
    """Record in the mark that this file of the directory exists; durable on return."""
    values = _read_mark(directory)
    names = noted_files(directory)
    if values and name not in names:
        _save_mark(directory, {**values, _FILES: [*names, name]})


def noted_files(directory: str) -> list[str]:
    """Return the names that were passed to `note_file` since the directory was formatted."""
    names = _read_mark(directory).get(_FILES, [])
    return [str(name) for name in names] if isinstance(names, list) else []


def _read_mark(directory: str) -> dict[str, object]:
    """Return the contents of the mark; empty if it is missing or damaged."""
    try:
        with open(mark_path(directory), encoding="utf-8") as file:
            values = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _save_mark(directory: str, values: dict[str, object]) -> None:
    path = mark_path(directory)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)
    sync_directory(os.path.dirname(path))


def move_away(directory: str, why: str) -> str:
    """Rename a directory that no process uses, and return its new path.  The next opening formats an empty directory.

    If the disk fails meanwhile, the next opening completes the renaming.  A refusal changes nothing.

    Raises:
        StoreRefusedError: the directory does not exist, is in use, is not writable, or is a mount point.
        FatalError: the disk fails.
    """
    directory = os.path.abspath(directory)
    number, target = 1, f"{directory}.{why}"
    while os.path.exists(target):
        number += 1
        target = f"{directory}.{why}.{number}"
    try:
        lock = Lock(directory)
        try:
            before = _read_mark(directory)
            _save_mark(directory, {_MOVING_TO: os.path.basename(target)})
            try:
                finish_moving(directory)
            except OSError as error:
                if error.errno not in _DISK_ERRNOS and os.path.exists(directory):
                    _save_mark(directory, before)  # otherwise no node could open the directory any more
                raise
        finally:
            lock.release()
    except FileNotFoundError as error:
        raise StoreRefusedError(
            f"{directory} does not exist",
            next_step="give the data directory of a node; if the quorum directory was set aside before, start the node",
        ) from error
    except OSError as error:
        refused = refusal(directory, error)
        if error.errno == errno.EBUSY:
            refused.next_step = f"it is a mount point: mount an empty disk there, and remove {mark_path(directory)}"
        raise refused from error
    return target


def finish_moving(directory: str) -> None:
    """Complete a `move_away` that was interrupted, if there was one."""
    path = mark_path(directory)
    target = _read_mark(directory).get(_MOVING_TO)
    if not isinstance(target, str) or target != os.path.basename(target):
        return
    target = os.path.join(os.path.dirname(path), target)
    if os.path.exists(directory) and not os.path.exists(target):
        os.rename(directory, target)
    sync_directory(os.path.dirname(path))
    os.unlink(path)
    sync_directory(os.path.dirname(path))


def remove_unfinished(directory: str) -> None:
    """Remove the temporary files of an interrupted formatting."""
    for name in (UNFINISHED, UNFINISHED + "-wal", UNFINISHED + "-shm", UNFINISHED + "-journal", IDENTITY + ".new"):
        try:
            os.unlink(os.path.join(directory, name))
        except FileNotFoundError:
            continue


def is_blank(directory: str, lock: Lock) -> bool:
    """Return whether the directory may be formatted: it has no database, and nothing indicates that it had one.

    Raises:
        CorruptStoreError: the database is missing, but other files show that it existed.
    """
    database = os.path.join(directory, DATABASE)
    if os.path.exists(database):
        return False
    for name in (WAL, IDENTITY):
        if os.path.exists(os.path.join(directory, name)):
            raise CorruptStoreError(f"{database} is missing, but {name} exists", next_step="restore the directory")
    if lock.was_open:
        raise CorruptStoreError(f"{database} is missing, and was in use before", next_step="restore the directory")
    mark = mark_path(directory)
    if os.path.exists(mark):
        raise CorruptStoreError(
            f"{database} is missing, but {mark} shows that it existed: the log and votes of this node are lost",
            next_step="mount the disk or restore the directory; if this node is to start over, as with an empty disk, "
            f"remove {mark}",
        )
    return True
