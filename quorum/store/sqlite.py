"""`SqliteQuorumStore`: the durable log and quorum state of one node in one SQLite database.

Theory of operation.  A call of `write` is one transaction, and one fsync (WAL, synchronous=FULL), for any number of
core writes: truncations, batches, and the last quorum state.  The whole transaction runs as one function on aiosqlite's
thread, because each hop between the event loop and that thread costs about as much as an insert (measured).

Every batch and the quorum state carry their own CRC-32C, because SQLite does not notice a changed byte in a page.  The
voter sets in the state are a cache of the log's control records; at start they are recomputed and compared.  The start
also checks that the log has no gap.  A database that fails a check is refused, never repaired.

Slow work is done after the answer to a write, in pieces, so that other work runs in between.  This work checkpoints the
write-ahead log ("folds" it into the database), and deletes batches below the log's start.  The start itself moves
within the write (the table `base`).  Batches that remain below the start no longer belong to the log, even after a
crash; the next opening deletes them.

Nothing is retried after a failure: a second fsync may succeed without having written.  Closing SQLite would sync the
write-ahead log once more, copy it into the database and delete it.  A failed store is therefore not closed: database,
write-ahead log and the mark of an unclean stop stay as they are.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import TypeVar

import aiosqlite
from crc32c import crc32c
from msgspec.structs import replace

from quorum import codec
from quorum.codec import MalformedError, NewerRecordError
from quorum.core.types import Batch, LogBase, LogEnd, QuorumState, TargetVoters, Voters, VoterSet
from quorum.ports import StoredQuorum, StoreWrite
from quorum.snapshot_file import SnapshotInfo, decode_base, encode_base
from quorum.store.directory import (
    DATABASE,
    FORMAT,
    LOCK,
    WAL,
    Identity,
    Lock,
    check_owner,
    finish_moving,
    identity_missing,
    is_blank,
    make_directory,
    mark_path,
    read_identity,
    refusal,
    remove_unfinished,
    write_identity,
    write_mark,
)
from quorum.store.schema import (
    APPLICATION_ID,
    BASE_TABLE,
    DATABASE_FORMAT,
    create_database,
    database_uri,
    state_row,
    was_opened,
)
from quorum.store.snapshots import SnapshotFiles
from quorum.store.wal import check_wal
from quorumlog.errors import CorruptStoreError, FatalError, StoreRefusedError
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.sqlite_end import abandon
from quorumlog.runtime.stall import no_longer_than
from quorumlog.wire.v1 import quorum_pb2 as pb

CHECKPOINT_BYTES = 2 << 20
"""Approximate size of the write-ahead log at which it is checkpointed.  Bounds the work of a start after a crash."""
DROP_BYTES = 1 << 20
"""Size of one deletion below the log's start (measured: 20 MiB in one transaction delay other work by 50 to 90 ms)."""
CLOSE_TIMEOUT_S = 10.0
_TRANSACTION_BYTES = 3 * 4120  # frames of a small transaction: the log's last page, the state's, sometimes a parent

_ROW_BYTES = 100  # bytes of a batch's row besides its content

_INSERT = "INSERT INTO batches (base_offset, epoch, count, timestamp_ms, kind, crc, content) VALUES (?,?,?,?,?,?,?)"
_COLUMNS = "base_offset, epoch, count, timestamp_ms, kind, content, crc"

_T = TypeVar("_T")

logger = get_logger("quorum")


class SqliteQuorumStore:
    """Implements `quorum.ports.QuorumStore` in a directory of its own.

    stall_s: a write that takes longer counts as failed; None: no limit.
    """

    def __init__(self, directory: str | os.PathLike[str], sources: Sources, stall_s: float | None = None) -> None:
        self._directory = os.fspath(directory)
        self._sources = sources
        self._stall_s = stall_s
        self._path = os.path.join(self._directory, DATABASE)
        self._lock: Lock | None = None
        self._connection: aiosqlite.Connection | None = None
        self._files = SnapshotFiles(self._directory)
        self._log_start = 0
        self._log_end = 0
        self._unfolded_bytes = 0
        self.has_leftovers = False  # whether batches below the log's start remain to be deleted
        self._tidying: asyncio.Task[None] | None = None
        self._closing = False
        self._failure: FatalError | None = None

    @property
    def directory(self) -> str:
        return self._directory

    # Opening

    async def open(self, node_id: int, cluster_id: str | None) -> StoredQuorum:
        assert self._connection is None, "opened twice"
        loop = asyncio.get_running_loop()
        try:
            identity = await loop.run_in_executor(None, self._prepare, node_id, cluster_id)
            self._connection = await self._connect()
            stored = await self._run(lambda connection: self._load(connection, identity, cluster_id))
            await self._run(lambda connection: self._begin(connection, stored.log_start))
            assert self._lock is not None
            await loop.run_in_executor(None, self._lock.mark_open)
            snapshots = await loop.run_in_executor(None, self._usable_snapshots, stored)
        except BaseException as error:
            named = self._named(error)
            # A refusal (a wrong --cluster-id) closes the database, which deletes the write-ahead log.  The lock file
            # must record that first; otherwise the next start would report the log as missing.
            is_refused = not isinstance(named, FatalError)
            if is_refused and self._lock is not None and self._connection is not None:
                with suppress(OSError):  # the first error is the one to report
                    await loop.run_in_executor(None, self._lock.mark_closed)
            await self._release(leave_files=not is_refused)
            if named is error:
                raise
            raise named from error
        self._log_start, self._log_end = stored.log_start, stored.log_end
        return replace(stored, snapshots=snapshots)

    def _usable_snapshots(self, stored: StoredQuorum) -> tuple[LogEnd, ...]:
        """Return the ends of the snapshots that the log continues.

        A received snapshot is left out while the log's start has not moved to its end.  It is found again when the
        leader offers it again.
        """
        self._files.clean(stored.log_end)
        ends = tuple(info.end for info in self._files.all() if stored.goes_on_from(info.end))
        if stored.log_start > 0 and not ends:
            raise CorruptStoreError(
                f"{self._directory}: the log starts at {stored.log_start}, and no snapshot holds the earlier records",
                next_step="replace this disk, or restore the directory; nothing was changed",
            )
        return ends

    def _prepare(self, node_id: int, cluster_id: str | None) -> Identity:
        """Lock the directory, format it if it is blank, and examine the state that a crash may have left."""
        finish_moving(self._directory)
        make_directory(self._directory)
        self._lock = Lock(self._directory)
        remove_unfinished(self._directory)
        found = read_identity(self._directory)
        if found is None:
            if is_blank(self._directory, self._lock):
                create_database(self._directory)
            elif self._lock.was_open or os.path.exists(mark_path(self._directory)) or was_opened(self._directory):
                raise identity_missing(self._directory)
        identity = found or Identity(FORMAT, node_id, str(self._sources.uuid4()), cluster_id)
        if found is None:
            write_identity(self._directory, identity)
        self._check_owner(identity, node_id, cluster_id)
        if not os.path.exists(self._path):
            raise CorruptStoreError(f"{self._path} is missing", next_step="restore it, or replace this disk")
        self._check_wal(is_new=found is None)
        if write_mark(self._directory, identity) and found is not None:
            logger.warning(
                "the mark of the quorum directory was missing and was recreated", file=mark_path(self._directory)
            )
        return identity

    def _check_wal(self, is_new: bool) -> None:
        assert self._lock is not None
        path = os.path.join(self._directory, WAL)
        is_lock_lost = self._lock.was_lost and not is_new
        if is_lock_lost:
            logger.warning(
                "the lock file of the quorum directory was missing, so it is unknown whether the last stop was clean",
                file=os.path.join(self._directory, LOCK),
            )
        check_wal(path, in_use=self._lock.was_open or (is_lock_lost and os.path.exists(path)))

    def _check_owner(self, identity: Identity, node_id: int, cluster_id: str | None) -> None:
        check_owner(self._directory, identity, node_id)
        if cluster_id is not None and identity.cluster_id not in (None, cluster_id):
            raise self._wrong_cluster(identity.cluster_id, cluster_id)

    def _wrong_cluster(self, actual: str | None, wanted: str) -> StoreRefusedError:
        return StoreRefusedError(
            f"{self._directory} belongs to cluster {actual}, not to cluster {wanted}",
            next_step="give another directory, or the right --cluster-id",
        )

    async def _connect(self) -> aiosqlite.Connection:
        # mode=rw: a missing file is an error instead of a new database.  Exclusive: no other process reads, so SQLite
        # needs no shared memory file.
        connection = await aiosqlite.connect(database_uri(self._path, "mode=rw"), uri=True, isolation_level=None)
        self._connection = connection
        for pragma in ("locking_mode=EXCLUSIVE", "synchronous=FULL", "wal_autocheckpoint=0", "cell_size_check=ON"):
            await connection.execute(f"PRAGMA {pragma}")
        return connection

    def _load(self, connection: sqlite3.Connection, identity: Identity, cluster_id: str | None) -> StoredQuorum:
        self._check_format(connection)
        state = self._load_state(connection)
        if cluster_id is not None and state.cluster_id not in (None, cluster_id):
            raise self._wrong_cluster(state.cluster_id, cluster_id)
        base = self._load_base(connection)
        log_start, log_end, epochs = self._scan(connection, base)
        controls = self._controls(connection, log_start)
        if state.applied_offset > log_end:
            raise self._corrupt(
                f"the log ends at {log_end}, but its quorum state was written at {state.applied_offset}"
            )
        self._compare_voters(state, base, controls)
        return StoredQuorum(
            node_id=identity.node_id,
            directory_id=identity.uuid,
            state=state,
            log_start=log_start,
            log_end=log_end,
            epochs=epochs,
            controls=controls,
            formatted_for=identity.cluster_id,
            base=base,
        )

    def _load_base(self, connection: sqlite3.Connection) -> LogBase | None:
        row = connection.execute("SELECT content, crc FROM base WHERE id = 0").fetchone()
        if row is None:
            return None
        data, crc = row
        if not isinstance(data, bytes) or crc32c(data) != crc:
            raise self._corrupt("the checksum of the log's start does not match")
        try:
            return decode_base(data)
        except MalformedError as error:
            raise self._corrupt(f"the log's start: {error}") from error

    def _check_format(self, connection: sqlite3.Connection) -> None:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != APPLICATION_ID:
            raise self._corrupt("it is not a quorum database")
        if version > DATABASE_FORMAT:
            raise StoreRefusedError(
                f"{self._path} has format {version}; this version knows {DATABASE_FORMAT}",
                next_step="run the newer version",
            )
        if version == 1:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(BASE_TABLE)
            connection.execute(f"PRAGMA user_version={DATABASE_FORMAT}")
            connection.execute("COMMIT")

    def _load_state(self, connection: sqlite3.Connection) -> QuorumState:
        row = connection.execute("SELECT message, crc FROM state WHERE id = 0").fetchone()
        if row is None:
            raise self._corrupt("it holds no quorum state")
        data, crc = row
        if not isinstance(data, bytes) or crc32c(data) != crc:
            raise self._corrupt("the quorum state's checksum does not match")
        message = pb.QuorumStateMessage()
        try:
            codec.parse(message, data)
            return codec.state_from(message)
        except MalformedError as error:
            raise self._corrupt(f"quorum state: {error}") from error

    def _scan(
        self, connection: sqlite3.Connection, base: LogBase | None
    ) -> tuple[int, int, tuple[tuple[int, int], ...]]:
        """Check that the log has no gap; return (log start, log end, epochs).  Reads no contents of batches."""
        start = end = 0 if base is None else base.end.offset
        epochs: list[tuple[int, int]] = []
        rows = connection.execute(
            "SELECT base_offset, epoch, count FROM batches WHERE base_offset >= ? ORDER BY base_offset", (start,)
        )
        for base_offset, epoch, count in rows:
            if base_offset != end or count < 1:
                raise self._corrupt(f"the log has a gap: batch at offset {base_offset} after end offset {end}")
            if epochs and epoch < epochs[-1][0]:
                raise self._corrupt(f"batch at offset {base_offset} has epoch {epoch} after epoch {epochs[-1][0]}")
            if not epochs or epoch > epochs[-1][0]:
                epochs.append((epoch, base_offset))
            end = base_offset + count
        return start, end, tuple(epochs)

    def _controls(self, connection: sqlite3.Connection, start: int) -> tuple[Batch, ...]:
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM batches WHERE kind = 1 AND base_offset >= ? ORDER BY base_offset", (start,)
        )
        return tuple(self._batch(row) for row in rows)

    def _compare_voters(self, state: QuorumState, base: LogBase | None, controls: Sequence[Batch]) -> None:
        voters, target = (VoterSet(), None) if base is None else (base.voters.voters, base.target)
        for batch in controls:
            if batch.base_offset >= state.applied_offset:
                break
            match batch.control:
                case Voters(_, _, voter_set):
                    voters = voter_set
                case TargetVoters(wanted):
                    target = wanted
        if (voters, target) != (state.voters, state.target_voters):
            raise self._corrupt(
                f"the quorum state's voters {state.voters} (target {state.target_voters}) are not those "
                f"of the log below {state.applied_offset}: {voters} (target {target})"
            )

    def _begin(self, connection: sqlite3.Connection, log_start: int) -> None:
        """Make a first write, which proves that the disk accepts writes and creates the write-ahead log.

        If a killed process left a write-ahead log, it is checkpointed now, while no commit waits (measured: 107 MB took
        128 ms).
        """
        connection.execute("UPDATE starts SET count = count + 1")
        connection.execute("DELETE FROM batches WHERE base_offset < ?", (log_start,))
        _fold(connection)

    # Writing and reading

    async def write(self, writes: Sequence[StoreWrite]) -> None:
        if not writes:
            return
        if self._failure is not None:
            raise self._failure
        try:
            async with nullcontext() if self._stall_s is None else no_longer_than(self._stall_s):
                size = await self._run(lambda connection: self._transaction(connection, writes))
        except sqlite3.Error as error:
            self._failure = self._translate(error)
            raise self._failure from error
        except TimeoutError as error:
            self._failure = FatalError(f"{self._path}: {error}", next_step="check the disk, then start again")
            raise self._failure from error
        self._unfolded_bytes += size  # not read before the await: `_tidy` may reset it meanwhile
        is_due = self.has_leftovers or self._unfolded_bytes >= CHECKPOINT_BYTES
        if is_due and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.get_running_loop().create_task(self._tidy())

    def _transaction(self, connection: sqlite3.Connection, writes: Sequence[StoreWrite]) -> int:
        """Execute the writes; return the approximate number of bytes added to the write-ahead log."""
        size = _TRANSACTION_BYTES
        connection.execute("BEGIN IMMEDIATE")
        start, end = self._log_start, self._log_end
        for write in writes:
            if write.truncate_to is not None:
                end = self._truncate(connection, write.truncate_to, start, end)
            if write.base is not None:
                start, end = self._begin_at(connection, write.base, end)
            rows = []
            for batch in write.batches:
                assert batch.base_offset == end, f"gap: batch at {batch.base_offset}, log end {end}"
                kind, content = codec.batch_content(batch)
                crc = codec.batch_crc(batch, kind, content)
                rows.append((batch.base_offset, batch.epoch, batch.count, batch.timestamp_ms, kind, crc, content))
                end = batch.end_offset
                size += len(content)
            connection.executemany(_INSERT, rows)
        connection.execute("UPDATE state SET message = ?, crc = ? WHERE id = 0", state_row(writes[-1].state))
        connection.execute("COMMIT")
        self._log_start, self._log_end = start, end
        return size

    def _begin_at(self, connection: sqlite3.Connection, base: LogBase, end: int) -> tuple[int, int]:
        """Move the log's start to the end of `base`; return the log's new start and end."""
        offset = base.end.offset
        row = connection.execute("SELECT min(base_offset) FROM batches WHERE base_offset >= ?", (offset,)).fetchone()
        assert row[0] in (None, offset), f"the log would start at {offset}, which is inside a batch (next: {row[0]})"
        data = encode_base(base)
        connection.execute("INSERT OR REPLACE INTO base (id, content, crc) VALUES (0, ?, ?)", (data, crc32c(data)))
        self.has_leftovers = True
        return offset, max(offset, end)

    def _truncate(self, connection: sqlite3.Connection, offset: int, start: int, end: int) -> int:
        """Truncate the log to `offset`, which is a batch boundary; return the new end."""
        assert start <= offset <= end, f"truncate to {offset}, log end {end}"
        connection.execute("DELETE FROM batches WHERE base_offset >= ?", (offset,))
        row = connection.execute(
            "SELECT base_offset + count FROM batches WHERE base_offset >= ? ORDER BY base_offset DESC LIMIT 1", (start,)
        ).fetchone()
        left = start if row is None else int(row[0])
        assert left == offset, f"truncate to {offset}, which is inside a batch or before the log's start ({left})"
        return left

    async def _tidy(self) -> None:
        """Delete the batches below the log's start, then checkpoint, in short pieces.

        Raises:
            FatalError: the disk failed.  The next write or the closing of the store raises it.
        """
        try:
            while self.has_leftovers and not self._closing:
                await self._run(self._drop_some)
                self._unfolded_bytes += _TRANSACTION_BYTES
            if self._unfolded_bytes >= CHECKPOINT_BYTES:
                self._unfolded_bytes = 0
                await self._run(_fold)
        except sqlite3.Error as error:
            self._failure = self._translate(error)
            raise self._failure from error

    def _drop_some(self, connection: sqlite3.Connection) -> None:
        """Delete the oldest batches below the log's start, about `DROP_BYTES` of them."""
        size, last = 0, None
        sizes = "SELECT base_offset, length(content) FROM batches WHERE base_offset < ? ORDER BY base_offset"
        cursor = connection.execute(sizes, (self._log_start,))
        for base_offset, length in cursor:
            size, last = size + length + _ROW_BYTES, base_offset
            if size >= DROP_BYTES:
                break
        cursor.close()
        if last is not None:
            connection.execute("DELETE FROM batches WHERE base_offset <= ?", (last,))
        else:
            self.has_leftovers = False

    async def read(self, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        try:
            return await self._run(lambda connection: self._select(connection, start, end, max_bytes))
        except sqlite3.Error as error:
            self._failure = self._translate(error)
            raise self._failure from error
        except CorruptStoreError as error:
            self._failure = error
            raise

    def _select(self, connection: sqlite3.Connection, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        first = connection.execute("SELECT max(base_offset) FROM batches WHERE base_offset <= ?", (start,)).fetchone()[
            0
        ]
        cursor = connection.execute(
            f"SELECT {_COLUMNS} FROM batches WHERE base_offset >= ? AND base_offset < ? ORDER BY base_offset",
            (max(start if first is None else first, self._log_start), end),
        )
        found: list[Batch] = []
        size = 0
        for row in cursor:
            batch = self._batch(row)
            if batch.end_offset <= start:
                continue
            if found and size + batch.size > max_bytes:
                break
            if found and batch.base_offset != found[-1].end_offset:
                raise self._corrupt(f"the log has a gap before offset {batch.base_offset}")
            found.append(batch)
            size += batch.size
        cursor.close()
        return tuple(found)

    def _batch(self, row: tuple[int, int, int, int, int, bytes, int]) -> Batch:
        try:
            return codec.stored_batch(*row)
        except NewerRecordError as error:
            raise StoreRefusedError(f"{self._path}: {error}", next_step="run the newer version") from error
        except MalformedError as error:
            raise self._corrupt(str(error)) from error
        except (TypeError, OverflowError) as error:
            raise self._corrupt(f"batch at offset {row[0]} holds values of the wrong type") from error

    # Snapshots

    async def begin_snapshot(self, end: LogEnd, *, resume: bool) -> int:
        return await self._file_work(lambda files: files.begin(end, resume))

    async def extend_snapshot(self, end: LogEnd, position: int, data: bytes) -> None:
        await self._file_work(lambda files: files.extend(end, position, data))

    async def finish_snapshot(self, end: LogEnd) -> SnapshotInfo:
        return await self._file_work(lambda files: files.finish(end))

    async def set_snapshot_aside(self, end: LogEnd) -> None:
        await self._file_work(lambda files: files.set_aside(end))

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        return await self._file_work(lambda files: files.all())

    async def read_snapshot(self, end: LogEnd, position: int, max_bytes: int) -> tuple[int, bytes]:
        return await self._file_work(lambda files: files.read(end, position, max_bytes))

    async def delete_snapshot(self, end: LogEnd) -> None:
        await self._file_work(lambda files: files.delete(end))

    async def _file_work(self, work: Callable[[SnapshotFiles], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work, self._files)
        except OSError as error:
            self._failure = FatalError(str(refusal(self._directory, error)), next_step="check the disk")
            raise self._failure from error

    # Closing

    async def close(self, *, leave_files: bool = False) -> None:
        """Checkpoint the write-ahead log, record that the stop was clean, and release the lock.

        After a failure of this store, or with `leave_files`, no file is changed.  The lock is then held until the
        process ends, and the next start finds the same files as after a killed process.

        If the disk hangs for `CLOSE_TIMEOUT_S`, this returns while the process keeps the lock and the thread; the next
        start again finds the same files as after a killed process.  Cancelling does not stop the closing.

        Raises:
            FatalError: the disk failed.
        """
        self._closing = True
        closing = asyncio.get_running_loop().create_task(self._close(leave_files))
        await asyncio.wait({closing}, timeout=CLOSE_TIMEOUT_S)
        if closing.done():
            closing.result()
        else:
            logger.error("quorum directory not closed in time", directory=self._directory, seconds=CLOSE_TIMEOUT_S)

    async def _close(self, leave_files: bool) -> None:
        is_clean = False
        try:
            if self._tidying is not None:
                await self._tidying
            if not leave_files and self._failure is None:
                await self._end_clean()
                is_clean = True
        finally:
            # The files also stay if this task is cancelled.  Otherwise SQLite would delete the write-ahead log, and the
            # next start would report it as missing, because no clean stop is recorded.
            await self._release(leave_files=not is_clean)

    async def _end_clean(self) -> None:
        """Checkpoint the write-ahead log, then record the clean stop.

        The checkpoint is explicit, because SQLite does not report a checkpoint that fails when it closes.
        """
        if self._lock is None or self._connection is None:
            return
        try:
            await self._run(_fold)
            if self._failure is not None:  # a write before the checkpoint has failed
                raise self._failure
            await asyncio.get_running_loop().run_in_executor(None, self._lock.mark_closed)
        except (sqlite3.Error, OSError) as error:
            named = self._named(error)
            self._failure = named if isinstance(named, FatalError) else FatalError(str(named))
            raise self._failure from error

    async def _release(self, leave_files: bool) -> None:
        connection, self._connection = self._connection, None
        lock, self._lock = self._lock, None
        if connection is not None and leave_files:
            logger.warning("quorum directory left as it is, after a failure or cancellation", directory=self._directory)
            abandon(connection._conn)
            connection._connection = None  # otherwise `stop` would close it
            if (stopped := connection.stop()) is not None:
                await stopped
            return  # the lock stays held, and so do SQLite's locks
        try:
            if connection is not None:
                await connection.close()
        except sqlite3.Error as error:
            raise self._translate(error) from error
        finally:
            if lock is not None:
                lock.release()

    # Helpers

    async def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run `work` on the connection's own thread, in one hop.

        aiosqlite's public methods make one hop per statement, so a transaction of four statements would make four.
        Those methods use `_execute`, which takes any function.
        """
        connection = self._connection
        assert connection is not None, "not open"
        result: _T = await connection._execute(lambda: work(connection._conn))  # type: ignore[no-untyped-call]
        return result

    def _corrupt(self, problem: str) -> CorruptStoreError:
        return CorruptStoreError(
            f"{self._path}: {problem}", next_step="replace this disk, or restore the directory; nothing was changed"
        )

    def _named(self, error: BaseException) -> BaseException:
        """Return the error to raise for a failure of opening or closing; `error` itself if it is specific enough."""
        if isinstance(error, sqlite3.Error):
            if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                return StoreRefusedError(
                    f"{self._path} is open in another program", next_step="stop that program, then start the node again"
                )
            return self._translate(error)
        return refusal(self._directory, error) if isinstance(error, OSError) else error

    def _translate(self, error: sqlite3.Error) -> FatalError:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "no such table" in str(error):
            return self._corrupt(f"{error} ({name})")
        return FatalError(f"{self._path}: {error} ({name})", next_step="check the disk: full, read-only or failing")


def _fold(connection: sqlite3.Connection) -> None:
    """Copy the write-ahead log into the database.  The file stays, and the next write restarts at its beginning."""
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
