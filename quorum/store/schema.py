"""The tables of `quorum.db`, and how the file is made.  All of this blocks; call it off the loop."""

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
"""2: a log may start above 0, after its base.  A database of format 1 is one without a base."""

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
    """Make the database under another name, complete it, make it durable, and only then give it its name."""
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
            raise StoreRefusedError(f"{directory}: this file system cannot hold a write-ahead log ({mode})")
    finally:
        connection.close()
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(path, os.path.join(directory, DATABASE))
    sync_directory(directory)


def was_opened(directory: str) -> bool:
    """Whether a node has used the database; False only if formatting was cut off after making it.

    Reads the main file alone: a write-ahead log is there only after an opening, which the main file holds as well.
    """
    path = quote(os.path.abspath(os.path.join(directory, DATABASE)))
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        row = connection.execute("SELECT count FROM starts WHERE id = 0").fetchone()
        return bool(row is None or row[0] != 0)
    except sqlite3.Error:  # not as it was made
        return True
    finally:
        connection.close()


def state_row(state: QuorumState) -> tuple[bytes, int]:
    """What the table `state` holds: the message and its checksum."""
    data = codec.state_to(state).SerializeToString(deterministic=True)
    return data, crc32c(data)
