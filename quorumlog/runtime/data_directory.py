"""The lock and the identity of a data directory.

A process first locks and checks all of its directories (`claim`), and writes to them afterwards.  So a refused start
changes nothing.  A node without a broker also holds the lock (`lock_directory`), although it keeps only its quorum in
the directory.

Formatting writes facts.db first and meta.json last, by rename.  So a directory without meta.json and without logs was
never in use.  If there are logs but no meta.json, a file was lost, and it is not recreated.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from quorumlog.errors import READ_ONLY_STEP, CorruptStoreError, FatalError, QuorumlogError, StoreRefusedError
from quorumlog.runtime.sqlite_facts import NEXT_STEP, SqliteFacts
from quorumlog.words import uuid_text

FORMAT_VERSION = 1
DISK_ERRNOS = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


class Claim(NamedTuple):
    """A data directory that this process has locked and checked.  meta: its identity; None if it is not formatted."""

    root: Path
    lock_fd: int
    meta: dict[str, Any] | None

    def release(self) -> None:
        """Release the lock, unless a `FileDisk` owns it."""
        os.close(self.lock_fd)


def claim(roots: Sequence[str | Path], node_id: int, cluster_id: str | None) -> list[Claim]:
    """Lock these data directories, and check that they belong to this node.  Call `release` on each one at the end.

    cluster_id: None if this node does not know it yet.

    This creates missing directories and lock files, but only once all existing directories are locked and checked.

    Raises:
        StoreRefusedError: a directory belongs to another node or cluster, is in use, has another format, is a copy of
            another one, or is not writable.  None stays locked.
        CorruptStoreError: a file is missing or damaged.
        FatalError: a disk is full or failing.
    """
    paths = [Path(root).absolute() for root in roots]
    claims: dict[int, Claim] = {}
    try:
        for create in (False, True):
            for index, root in enumerate(paths):
                if index not in claims and (fd := _lock(root, create)) is not None:
                    claims[index] = Claim(root, fd, None)  # released if the checks fail
                    claims[index] = Claim(root, fd, _checked_identity(root, node_id, cluster_id))
            _refuse_copies(claims.values())
        for claimed in claims.values():
            _name_holder(claimed, node_id)
    except BaseException:
        for claimed in claims.values():
            claimed.release()
        raise
    return [claims[index] for index in range(len(paths))]


def lock_directory(root: str | Path, node_id: int) -> Claim:
    """Create and lock the data directory of a node without a broker.  Such a node has no identity of its own there.

    Raises:
        StoreRefusedError: it is in use or not writable.
        FatalError: a disk is full or failing.
    """
    path = Path(root).absolute()
    fd = _lock(path, create=True)
    assert fd is not None, root
    claimed = Claim(path, fd, None)
    try:
        _name_holder(claimed, node_id)
    except BaseException:
        claimed.release()
        raise
    return claimed


def _checked_identity(root: Path, node_id: int, cluster_id: str | None) -> dict[str, Any] | None:
    try:
        meta = _load_identity(root)
    except OSError as error:
        raise refuse_access(root, error) from error
    if meta is not None:
        check_identity(root, meta, node_id, cluster_id)
    return meta


def _refuse_copies(claims: Iterable[Claim]) -> None:
    seen: dict[str, Path] = {}
    for root, _, meta in claims:
        if meta is None:
            continue
        other = seen.setdefault(meta["directory_id"], root)
        if other != root:
            raise StoreRefusedError(
                f"{root} and {other} are both directory {uuid_text(UUID(meta['directory_id']))}: "
                "one is a copy of the other",
                next_step="remove one of them from data.dirs; a directory that is added must be empty",
            )


def _make_folder(root: Path) -> None:
    """Create the folder and its missing parents, durably."""
    if _exists(root):
        return
    if root.parent != root:
        _make_folder(root.parent)
    root.mkdir(mode=0o750, exist_ok=True)
    sync_folder(str(root.parent))


def _lock(root: Path, create: bool) -> int | None:
    """Return the descriptor that holds the lock; None if the lock file does not exist and `create` is False."""
    try:
        if create:
            _make_folder(root)
        fd = os.open(root / "lock", os.O_RDWR | (os.O_CREAT if create else 0) | os.O_CLOEXEC, 0o640)
    except FileNotFoundError as error:
        if not create:
            return None
        raise refuse_access(root, error) from error
    except OSError as error:
        raise refuse_access(root, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = ""
        with os.fdopen(fd, "rb") as file, suppress(OSError):
            holder = file.read(200).decode(errors="replace").strip()
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise refuse_access(root, error) from error
        raise StoreRefusedError(
            f"{root} is in use by {holder or 'another process'}", next_step="stop that process or use another data dir"
        ) from error
    return fd


def _name_holder(claimed: Claim, node_id: int) -> None:
    """Write this process into the lock file, for people and for the error of another process."""
    try:
        os.ftruncate(claimed.lock_fd, 0)
        holder = f"pid={os.getpid()} host={socket.gethostname()} node_id={node_id}\n"
        os.pwrite(claimed.lock_fd, holder.encode(), 0)
    except OSError as error:
        raise refuse_access(claimed.root, error) from error


def _load_identity(root: Path) -> dict[str, Any] | None:
    """Return the identity of a formatted directory; None if it was never formatted."""
    path = root / "meta.json"
    (root / "meta.json.tmp").unlink(missing_ok=True)
    if not _exists(path):
        if _exists(root / "logs"):
            raise CorruptStoreError(f"{path} is missing, but {root} holds logs", NEXT_STEP)
        return None
    try:
        meta = json.loads(path.read_bytes())
        version = meta["format_version"]
        if version == FORMAT_VERSION:
            UUID(meta["directory_id"])
            well_formed = isinstance(meta["node_id"], int) and isinstance(meta["cluster_id"], str | None)
            if not well_formed or set(meta) != {"format_version", "directory_id", "node_id", "cluster_id"}:
                raise ValueError("unexpected content")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptStoreError(f"{path} is damaged: {error}", NEXT_STEP) from error
    assert isinstance(meta, dict)
    return meta


def _exists(path: Path) -> bool:
    """Return whether the path exists.

    `Path.exists` in Python 3.14 also returns False if the disk fails; then the directory would be formatted.
    """
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def check_identity(root: Path, meta: dict[str, Any], node_id: int, cluster_id: str | None) -> None:
    """Check that a directory belongs to this node.  cluster_id: None if this node does not know it yet.

    Raises: StoreRefusedError: it belongs to another node or cluster, or has another format.
    """
    if meta["format_version"] != FORMAT_VERSION:
        raise StoreRefusedError(
            f"{root} has format {meta['format_version']}; this program supports {FORMAT_VERSION}",
            next_step="use the release that wrote it, or a newer one",
        )
    if meta["node_id"] != node_id:
        raise StoreRefusedError(
            f"{root}/meta.json belongs to node {meta['node_id']}; this is node {node_id}",
            next_step="give the node its own directory, or correct --node-id",
        )
    if None not in (cluster_id, meta["cluster_id"]) and meta["cluster_id"] != cluster_id:
        raise StoreRefusedError(
            f"{root}/meta.json belongs to cluster {meta['cluster_id']}; this is cluster {cluster_id}",
            next_step="give the addresses of its own cluster, or another data dir",
        )


def format_directory(root: Path, node_id: int, cluster_id: str | None, directory_id: UUID) -> dict[str, Any]:
    """Give a directory its facts and its identity, and return the identity; durable on return.

    Raises: OSError, or the errors of `SqliteFacts.create`.
    """
    SqliteFacts.create(root / "facts.db")
    meta = {
        "format_version": FORMAT_VERSION,
        "directory_id": str(directory_id),
        "node_id": node_id,
        "cluster_id": cluster_id,
    }
    save_identity(root, meta)
    sync_folder(str(root.parent))
    return meta


def save_identity(root: Path, meta: dict[str, Any]) -> None:
    """Replace meta.json; durable on return.

    Raises: OSError.
    """
    temporary = root / "meta.json.tmp"
    with temporary.open("w") as file:
        json.dump(meta, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(root / "meta.json")
    sync_folder(str(root))


def refuse_access(root: Path, error: OSError) -> QuorumlogError:
    """Return the error to raise for an OSError: the disk fails, or this process cannot use the directory."""
    name = errno.errorcode.get(error.errno or 0, "?")
    message = f"cannot use data directory {root}: {error.strerror} ({name}) at {error.filename or root}"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        file = next((path for path in (*reversed(root.parents), root) if path.exists() and not path.is_dir()), root)
        what = "it" if file == root else str(file)
        message = f"cannot use data directory {root}: {what} is not a directory"
    if error.errno in DISK_ERRNOS:
        return FatalError(message, "check the disk (full or failing), then start the broker again")
    if error.errno == errno.EROFS:  # the disk may fail, but a service without ReadWritePaths= gets the same error
        return StoreRefusedError(message, next_step=READ_ONLY_STEP)
    return StoreRefusedError(message, next_step="correct the path or its permissions, or give another data dir")


# -- folders


def open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sync_folder(path: str) -> None:
    fd = open_folder(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
