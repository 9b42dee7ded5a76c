"""The tables of `quorum.db`, and the creation of the file.  All functions block; call them off the event loop."""

from __future__ import annotations

import os
import sqlite3
from urllib.parse import quote

from crc32c import crc32c

from quorum import codec
from quorum.core.types import QuorumState
from quorum.store.directory import DATABASE, UNFINISHED, sync_directory
from quorum.store.wal import PAGE_SIZE
from quorumlog.errors import StoreRefusedError

APPLICATION_ID = 0x716C6F67  # "qlog"

DATABASE_FORMAT = 2
"""Format 2: a log may start above 0, after its base.  Format 1 has no base."""

BASE_TABLE = "CREATE TABLE base (id INTEGER PRIMARY KEY CHECK (id = 0), content BLOB NOT NULL, crc INTEGER NOT NULL)"

_SCHEMA = f"""
{BASE_TABLE};
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), message BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE batches (
    base_offset INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, count INTEGER NOT NULL, timestamp_ms INTEGER NOT NULL,
    kind INTEGER NOT NULL, crc INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE TABLE starts (id INTEGER PRIMARY KEY CHECK (id = 0), count INTEGER NOT NULL);
INSERT INTO starts VALUES (0, 0);
"""


def create_database(directory: str) -> None:
    """Create the database under a temporary name, make it durable, and only then rename it."""
    path = os.path.join(directory, UNFINISHED)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={DATABASE_FORMAT}")
        connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.executescript(_SCHEMA)
        connection.execute("INSERT INTO state (id, message, crc) VALUES (0, ?, ?)", state_row(QuorumState()))
        mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StoreRefusedError(
                f"{directory}: this file system cannot hold a write-ahead log ({mode})",
                next_step="give a data dir on a local file system",
            )
    finally:
        connection.close()
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(path, os.path.join(directory, DATABASE))
    sync_directory(directory)


def database_uri(path: str, options: str) -> str:
    """Return the URI with which SQLite opens the file at `path`."""
    if path.startswith("//"):  # two slashes would begin the name of a host
        path = "/" + path.lstrip("/")
    return f"file:{quote(path)}?{options}"


def was_opened(directory: str) -> bool:
    """Return whether a node has used the database.  False only if formatting was interrupted after its creation.

    This reads only the main file, which counts the openings.  The write-ahead log exists only after the first opening.
    """
    connection = sqlite3.connect(database_uri(os.path.join(directory, DATABASE), "mode=ro&immutable=1"), uri=True)
    try:
        row = connection.execute("SELECT count FROM starts WHERE id = 0").fetchone()
        return bool(row is None or row[0] != 0)
    except sqlite3.Error:  # the file is no longer as `create_database` made it
        return True
    finally:
        connection.close()


def state_row(state: QuorumState) -> tuple[bytes, int]:
    """Return the row of the table `state`: the message and its checksum."""
    data = codec.state_to(state).SerializeToString(deterministic=True)
    return data, crc32c(data)
