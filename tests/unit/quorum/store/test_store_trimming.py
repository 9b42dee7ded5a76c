"""A trimmed log: its records are ignored immediately and deleted from the disk in pieces."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from quorum.core.types import Batch, LogEnd
from quorum.ports import StoreWrite
from quorum.store import SqliteQuorumStore
from quorum.store import sqlite as sqlite_store
from quorum.store.directory import DATABASE, mark_path
from tests.contract.samples import base, data, snapshot_bytes, state
from tests.unit.quorum.store.test_sqlite_store import make, write_rounds

START = LogEnd(1, 90)


def rows_of(folder: Path) -> list[int]:
    """Return the offsets of all batches in the database, including those below the log's start."""
    connection = sqlite3.connect(folder / DATABASE)
    try:
        return [row[0] for row in connection.execute("SELECT base_offset FROM batches ORDER BY base_offset")]
    finally:
        connection.close()


async def nothing(store: SqliteQuorumStore) -> None:
    """Do nothing, in place of `_tidy`."""


def offsets(batches: tuple[Batch, ...]) -> list[int]:
    return [batch.base_offset for batch in batches]


async def trimmed(folder: Path) -> SqliteQuorumStore:
    """Return a store whose log is 90..102, after a snapshot."""
    store = make(folder)
    await store.open(1, None)
    await write_rounds(store, 100)
    await store.begin_snapshot(START, resume=False)
    await store.extend_snapshot(START, 0, snapshot_bytes(90, b"one"))
    await store.finish_snapshot(START)
    await store.write([StoreWrite(state(102), None, (), base(90))])
    return store


async def test_trimmed_records_are_deleted_in_pieces_between_other_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "DROP_BYTES", 1000)
    store = await trimmed(tmp_path)
    assert offsets(await store.read(0, 102, 1 << 20)) == list(range(90, 102)), (
        "records below the log start are not read, deleted or not"
    )
    await store.write([StoreWrite(state(95), 95, ())])
    assert offsets(await store.read(0, 102, 1 << 20)) == list(range(90, 95))
    number = 95
    while store.has_leftovers:
        await store.write([StoreWrite(state(number + 1), None, (data(number),))])
        number += 1
    await store.close()
    assert number > 97, "the deletion took several writes"
    assert rows_of(tmp_path) == list(range(90, number))


async def test_opening_a_store_after_a_crash_deletes_trimmed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteQuorumStore, "_tidy", nothing)
    live, left = tmp_path / "live", tmp_path / "left"
    store = await trimmed(live)
    shutil.copytree(live, left)
    shutil.copy(mark_path(str(live)), mark_path(str(left)))
    await store.close()
    assert rows_of(live)[0] == 0
    again = make(left)
    stored = await again.open(1, None)
    assert (stored.log_start, stored.log_end, stored.controls, stored.epochs) == (90, 102, (), ((1, 90),))
    assert offsets(await again.read(90, 102, 1 << 20)) == list(range(90, 102))
    await again.close()
    assert rows_of(left) == list(range(90, 102))


async def test_a_log_restarted_above_its_end_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqliteQuorumStore, "_tidy", nothing)
    store = make(tmp_path)
    await store.open(1, None)
    await write_rounds(store, 5)
    await store.write([StoreWrite(state(50), None, (), base(50))])
    assert await store.read(0, 60, 1 << 20) == ()
    await store.write([StoreWrite(state(52), None, (data(50), data(51)))])
    await store.write([StoreWrite(state(50), 50, ())])
    assert await store.read(0, 60, 1 << 20) == ()
    await store.write([StoreWrite(state(51), None, (data(50, payload=b"again"),))])
    assert [batch.payload for batch in await store.read(50, 60, 1 << 20)] == [b"again"]
    await store.close()
