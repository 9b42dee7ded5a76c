"""`Facts` in one SQLite file: write-ahead log, `synchronous=FULL`, a checksum in every row.

SQLite silently drops a damaged frame of its write-ahead log, and all frames after it.  Facts change rarely, so each
commit is checkpointed into the main file immediately, and the log is emptied: between two commits no frame can be lost.
The main file has no checksums of its own, so each row has one.

After a failed commit the file is not closed, because SQLite would sync and checkpoint its log once more (`sqlite_end`).
"""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path

from crc32c import crc32c

from quorumlog.errors import CorruptStoreError, FatalError, QuorumlogError, StoreRefusedError
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.sqlite_end import abandon
from quorumlog.runtime.stall import STALL_S, no_longer_than

FACTS_VERSION = 1
NEXT_STEP = (
    "restore the whole directory from a copy, or move it away: the broker then starts with an empty one, "
    "and its replicas are copied from their leaders (docs/recovery.md)"
)
"""Next step for a data directory that cannot be used."""
CLOSE_WAIT_S = 1.0  # time that `close` waits for a commit whose caller was cancelled
_CREATE = "CREATE TABLE facts (key TEXT PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID"
_WRONG_TYPES = """SELECT count(*) FROM facts
    WHERE typeof(key) <> 'text' OR typeof(value) <> 'blob' OR typeof(crc) <> 'integer'"""
"""Counts the facts with a value of a wrong type.  A single flipped bit can turn a text into a blob.  A search for the
key then does not find the fact."""


class SqliteFacts:
    """The facts of one directory.

    on_failure: called at the first failed commit, before `commit` raises.
    threads: the executor in which the transactions run; None: the loop's executor.
    """

    def __init__(
        self,
        path: Path,
        on_failure: Callable[[DiskError], None],
        stall_s: float = STALL_S,
        threads: Executor | None = None,
    ) -> None:
        """Open the file at `path`, which `create` created.

        Raises:
            CorruptStoreError: the file is missing or damaged.
            FatalError: the disk is full, read-only or failing.
            OSError: the file cannot be examined.
            StoreRefusedError: the file has another format, or is open in another program.
        """
        if not _is_file(path):
            raise CorruptStoreError(f"{path} is missing from a formatted data directory", NEXT_STEP)
        self._path = path
        self._on_failure = on_failure
        self._stall_s = stall_s
        self._threads = threads
        self._failure: DiskError | None = None
        self._turn = asyncio.Lock()
        self._running: asyncio.Future[None] | None = None
        """The last transaction that has begun, which a cancellation of its caller does not stop."""
        self._is_closed = False
        self._connection_lock = threading.Lock()  # a cancelled commit may still run in the executor
        self._is_whole = True  # guarded by the lock: every commit that began has succeeded
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise _named(path, error) from error
        try:
            damage = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            version = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if damage == "ok" and self._connection.execute(_WRONG_TYPES).fetchone()[0]:
                damage = "a fact has values of wrong types"
            if (damage, version) == ("ok", FACTS_VERSION):  # the file is sound: writing is safe
                _prepare(self._connection)
        except sqlite3.Error as error:
            abandon(self._connection)
            raise _named(path, error) from error
        if damage != "ok":
            abandon(self._connection)
            raise CorruptStoreError(f"{path} is damaged: {damage}", NEXT_STEP)
        if version != FACTS_VERSION:
            abandon(self._connection)
            raise StoreRefusedError(
                f"{path} has format {version}; this program supports {FACTS_VERSION}",
                next_step="use the release that wrote it, or a newer one",
            )

    @staticmethod
    def create(path: Path) -> None:
        """Create an empty file of facts; replace the remains of an earlier attempt.

        Raises:
            FatalError: the disk is full, read-only or failing.
            OSError: the remains cannot be deleted.
        """
        for leftover in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            leftover.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                _prepare(connection)
                connection.execute(f"PRAGMA user_version = {FACTS_VERSION}")
                connection.execute(_CREATE)
        except sqlite3.Error as error:
            raise _named(path, error) from error

    def load(self, prefix: str = "") -> dict[str, bytes]:
        """See `Facts.load`.

        Raises:
            CorruptStoreError: a row's checksum does not match.
            FatalError: the disk fails.
        """
        query = "SELECT key, value, crc FROM facts WHERE substr(key, 1, ?) = ? ORDER BY key"
        with self._connection_lock:
            try:
                rows = self._connection.execute(query, (len(prefix), prefix)).fetchall()
            except sqlite3.Error as error:
                raise _named(self._path, error) from error
        facts: dict[str, bytes] = {}
        for key, value, crc in rows:
            if _crc(key, value) != crc:
                raise CorruptStoreError(f"{self._path} is damaged: checksum of fact {key!r}", NEXT_STEP)
            facts[key] = value
        return facts

    async def commit(self, changes: dict[str, bytes | None]) -> None:
        """See `Facts.commit`.

        A cancellation does not stop a transaction that has begun.  Later transactions wait for it.
        """
        if self._failure is not None:
            raise self._failure
        if not changes:
            return
        async with self._turn:
            if self._failure is not None:
                raise self._failure
            if self._is_closed:
                raise DiskError(f"{self._path} is closed")
            try:
                async with no_longer_than(self._stall_s):
                    if self._running is not None and not self._running.done():
                        # The caller of that transaction was cancelled, and its thread may not have the lock yet.  That
                        # transaction must commit before this one.
                        await asyncio.wait((self._running,))
                    if self._failure is None:
                        loop = asyncio.get_running_loop()
                        self._running = loop.run_in_executor(self._threads, self._commit, dict(changes))
                        self._running.add_done_callback(self._note)
                        await asyncio.shield(self._running)
            except (sqlite3.Error, OSError) as error:
                self._fail(error)
            if self._failure is not None:
                raise self._failure

    def _note(self, running: asyncio.Future[None]) -> None:
        """Note the failure of a transaction, even if its caller was cancelled."""
        error = None if running.cancelled() else running.exception()  # even after `close`: asyncio logs an unread error
        if isinstance(error, sqlite3.Error | OSError) and not self._is_closed:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = DiskError(f"{self._path}: {error}")
            self._failure.__cause__ = error
            self._on_failure(self._failure)

    def _commit(self, changes: dict[str, bytes | None]) -> None:
        sets = [(key, value, _crc(key, value)) for key, value in changes.items() if value is not None]
        deletions = [(key,) for key, value in changes.items() if value is None]
        with self._connection_lock:
            if not self._is_whole:
                raise sqlite3.OperationalError("an earlier commit failed; nothing more is written")
            self._is_whole = False
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", sets)
            connection.executemany("DELETE FROM facts WHERE key = ?", deletions)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._is_whole = True

    def close(self, *, leave_files: bool = False) -> bool:
        """Close the file; return whether it was closed.

        Return False after a failed commit, while a commit hangs, or with `leave_files` (the disk is known to fail).
        Then this call changes no file, and the connection stays open until the process ends.
        """
        self._is_closed = True
        if not leave_files and self._connection_lock.acquire(timeout=CLOSE_WAIT_S):
            try:
                if self._is_whole:
                    self._connection.close()
                    return True
            finally:
                self._connection_lock.release()
        abandon(self._connection)
        return False


def _is_file(path: Path) -> bool:
    """Return whether the path is a file.

    `Path.is_file` in Python 3.14 also returns False if the disk fails; then the file would count as missing.
    """
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # needs no shared-memory file; the directory is locked anyway
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


def _named(path: Path, error: sqlite3.Error) -> QuorumlogError:
    """Return the error to raise if the file cannot be opened or read.

    Only the error about damage advises to move the directory away.  If the disk is merely full, its data is intact.
    """
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    text = str(error)
    is_foreign = "no such " in text or "Could not decode" in text  # a table or column; a text that is not UTF-8
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or is_foreign:
        return CorruptStoreError(f"{path} is damaged: {error} ({name})", NEXT_STEP)
    if name.startswith("SQLITE_BUSY"):
        return StoreRefusedError(
            f"{path} is open in another program", next_step="stop that program, then start the broker again"
        )
    return FatalError(
        f"cannot use {path}: {error} ({name})",
        "check the disk (full, read-only or failing) and the permissions of the file, then start the broker again",
    )


def _crc(key: str, value: bytes) -> int:
    return int(crc32c(value, crc32c(key.encode())))
