"""Databases of earlier and later versions, and a write-ahead log that is damaged frame by frame."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from crc32c import crc32c

from quorum import codec
from quorum.core.types import Batch, LogEnd, QuorumState
from quorum.ports import BadSnapshotError, StoreWrite
from quorum.store import schema, wal
from quorum.store import sqlite as sqlite_store
from quorum.store.directory import DATABASE, IDENTITY, WAL
from quorumlog.errors import CorruptStoreError, StoreRefusedError
from quorumlog.wire.v1 import quorum_pb2
from tests.contract.samples import CLUSTER, KEYS, base, data, founding, leader_change, snapshot_bytes, state
from tests.unit.quorum.store.test_sqlite_store import FRAME, crashed, flip, make, opened_copy, write_rounds

DIRECTORY_ID = UUID(int=5, version=4)
LOG = (founding(), leader_change(1), data(2, payload=b"one"), data(3, count=4, payload=b"four"))

FORMAT_1 = """
PRAGMA application_id=1902931815;
PRAGMA user_version=1;
PRAGMA page_size=4096;
CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 0), message BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE batches (
    base_offset INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, count INTEGER NOT NULL, timestamp_ms INTEGER NOT NULL,
    kind INTEGER NOT NULL, crc INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE TABLE starts (id INTEGER PRIMARY KEY CHECK (id = 0), count INTEGER NOT NULL);
INSERT INTO starts VALUES (0, 3);
"""
"""A database in format 1, in which every log begins at 0.  Do not change it with the code."""


def make_format_1(folder: Path, batches: Sequence[Batch] = LOG) -> Path:
    """Make a directory that a version with format 1 has used and closed."""
    folder.mkdir()
    connection = sqlite3.connect(folder / DATABASE, isolation_level=None)
    connection.executescript(FORMAT_1)
    for batch in batches:
        kind, content = codec.batch_content(batch)
        crc = codec.batch_crc(batch, kind, content)
        row = (batch.base_offset, batch.epoch, batch.count, batch.timestamp_ms, kind, crc, content)
        connection.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    message = codec.state_to(state(7, voted_for=KEYS[2])).SerializeToString(deterministic=True)
    connection.execute("INSERT INTO state VALUES (0, ?, ?)", (message, crc32c(message)))
    assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    connection.close()
    identity = {"format": 1, "node_id": 1, "directory_id": str(DIRECTORY_ID), "cluster_id": CLUSTER}
    (folder / IDENTITY).write_text(json.dumps(identity, indent=2) + "\n")
    (folder / "lock").write_text("4711 \n")
    return folder


def version_of(folder: Path) -> int:
    connection = sqlite3.connect(folder / DATABASE)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return int(found)


async def test_a_directory_of_format_1_is_upgraded_with_all_its_data(tmp_path: Path) -> None:
    folder = make_format_1(tmp_path / "q")
    store = make(folder)
    stored = await store.open(1, CLUSTER)
    assert stored.state == state(7, voted_for=KEYS[2]), "in particular the vote"
    assert (stored.node_id, stored.directory_id, stored.formatted_for) == (1, DIRECTORY_ID, CLUSTER)
    assert (stored.log_start, stored.log_end, stored.base, stored.snapshots) == (0, 7, None, ())
    assert (stored.epochs, stored.controls) == (((0, 0), (1, 1)), LOG[:2])
    assert await store.read(0, 7, 1 << 20) == LOG
    await store.close()
    assert version_of(folder) == schema.DATABASE_FORMAT == 2


async def test_a_control_record_with_an_unknown_field_is_refused_at_the_start(tmp_path: Path) -> None:
    """This version would drop the field and send the record with a valid checksum, so replicas would differ."""
    store = make(tmp_path / "q")
    await store.open(1, CLUSTER)
    await store.write([StoreWrite(state(7), None, LOG)])
    await store.close()
    batch, field_900 = LOG[1], b"\xa0\x38\x07"
    content = codec.batch_content(batch)[1] + field_900
    crc = codec.batch_crc(batch, codec.CONTROL, content)
    connection = sqlite3.connect(tmp_path / "q" / DATABASE)
    with connection:
        connection.execute("UPDATE batches SET content = ?, crc = ? WHERE base_offset = 1", (content, crc))
    connection.close()
    with pytest.raises(StoreRefusedError, match="at offset 1 has fields that this version does not know") as refused:
        await make(tmp_path / "q").open(1, CLUSTER)
    assert refused.value.next_step == "run the newer version"


async def test_an_upgraded_store_can_keep_snapshots(tmp_path: Path) -> None:
    store = make(make_format_1(tmp_path / "q"))
    await store.open(1, None)
    end, content = LogEnd(1, 3), snapshot_bytes(3, b"image")
    assert await store.begin_snapshot(end, resume=False) == 0
    await store.extend_snapshot(end, 0, content)
    await store.finish_snapshot(end)
    await store.write([StoreWrite(state(7), None, (), base(3))])
    await store.write([StoreWrite(state(8), None, (data(7),))])
    await store.close()
    store = make(tmp_path / "q")
    stored = await store.open(1, None)
    assert (stored.log_start, stored.log_end, stored.snapshots) == (3, 8, (end,))
    assert await store.read(3, 8, 1 << 20) == (LOG[3], data(7))
    await store.close()


async def test_an_interrupted_upgrade_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_format_1(tmp_path / "q")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_store.SqliteQuorumStore, "_load_state", killed)
        with pytest.raises(KeyboardInterrupt):
            await make(folder).open(1, None)
    for _ in range(2):
        store = make(folder)
        assert (await store.open(1, None)).log_end == 7
        await store.close()


def killed(store: object, connection: sqlite3.Connection) -> QuorumState:
    raise KeyboardInterrupt


async def test_an_older_version_refuses_an_upgraded_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(make_format_1(tmp_path / "q"))
    await store.open(1, None)
    await store.close()
    before = (tmp_path / "q" / DATABASE).read_bytes()
    monkeypatch.setattr(sqlite_store, "DATABASE_FORMAT", 1)
    with pytest.raises(StoreRefusedError, match="has format 2; this version knows 1") as refused:
        await make(tmp_path / "q").open(1, None)
    assert refused.value.next_step == "run the newer version"
    assert (tmp_path / "q" / DATABASE).read_bytes() == before


async def test_a_quorum_state_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    folder = make_format_1(tmp_path / "q")
    connection = sqlite3.connect(folder / DATABASE)
    message = quorum_pb2.QuorumStateMessage()
    message.ParseFromString(connection.execute("SELECT message FROM state").fetchone()[0])
    message.version += 1
    content = message.SerializeToString(deterministic=True)
    connection.execute("UPDATE state SET message = ?, crc = ?", (content, crc32c(content)))
    connection.commit()
    connection.close()
    with pytest.raises(CorruptStoreError, match=r"quorum state: .*version"):
        await make(folder).open(1, None)


async def test_a_snapshot_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorum.snapshot_file.VERSION", 2)
    newer = snapshot_bytes(3, b"image")
    monkeypatch.undo()
    store = make(make_format_1(tmp_path / "q"))
    await store.open(1, None)
    await store.begin_snapshot(LogEnd(1, 3), resume=False)
    await store.extend_snapshot(LogEnd(1, 3), 0, newer)
    with pytest.raises(BadSnapshotError, match="version 2 is unknown; this program knows version 1"):
        await store.finish_snapshot(LogEnd(1, 3))
    await store.close()


# A damaged write-ahead log


def transactions(path: Path) -> list[range]:
    """Return the numbers of the frames of each transaction, from 0."""
    found, first = [], 0
    content = path.read_bytes()
    for frame in range((len(content) - 32) // FRAME):
        if content[32 + frame * FRAME + 4 : 32 + frame * FRAME + 8] != bytes(4):  # a database size marks a commit
            found.append(range(first, frame + 1))
            first = frame + 1
    return found


async def big_last_write(tmp_path: Path) -> Path:
    """Return the folder of a killed process whose last transaction has many frames."""
    live, left = tmp_path / "live", tmp_path / "big"
    store = make(live)
    await store.open(1, None)
    await write_rounds(store, 10)
    await store.write([StoreWrite(state(13), None, (data(12, payload=b"\7" * 40_000),))])
    shutil.copytree(live, left)
    await store.close()
    return left


def positions(frame: int) -> list[int]:
    """Return positions in a frame: one in each field of its header, and some in its page."""
    chosen = random.Random(frame)
    return [0, 5, 9, 13, 17, 21, 24, *(24 + chosen.randrange(4096) for _ in range(3))]


async def test_a_store_refuses_to_open_after_a_bit_flip_in_any_wal_frame_except_the_last(tmp_path: Path) -> None:
    """Votes and acknowledged records are in these frames; SQLite alone would undo them silently."""
    folder = await big_last_write(tmp_path)
    frames = transactions(folder / WAL)
    assert len(frames) >= 12
    assert len(frames[-1]) >= 10, "also in the last transaction, as long as its commit is intact"
    for frame in range(frames[-1][-1]):
        for position in positions(frame):
            with pytest.raises(CorruptStoreError, match=f"{WAL}: frame {frame + 1} .*is damaged"):
                await opened_copy(folder, partial(flip, position=32 + frame * FRAME + position))


async def test_a_bit_flip_in_the_last_frame_undoes_the_last_transaction(
    tmp_path: Path,
) -> None:
    """The frame that commits is the last thing in the file.  If it is damaged, the file looks like one after a power
    failure before the sync: nothing shows that the frame was ever whole.  So this transaction is undone, and no other.
    One damaged bit may thereby cost this disk its last acknowledged write, a vote or a record.  Records that a majority
    has on disk are not lost.
    """
    folder = await big_last_write(tmp_path)
    last = transactions(folder / WAL)[-1][-1]
    assert await opened_copy(folder, lambda path: None) == (13, state(13))
    for position in positions(last):
        undone = await opened_copy(folder, partial(flip, position=32 + last * FRAME + position))
        assert undone == (12, state(12)), f"byte {position}: the state before, whole"


async def test_a_bit_flip_in_a_rewound_wal_is_damage_unless_it_is_in_a_leftover_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "CHECKPOINT_BYTES", 100_000)
    for rounds in range(100, 140):  # the time of SQLite's rewind depends on the time of the checkpoint
        folder = await crashed(tmp_path / str(rounds), rounds)
        summary = wal.check_wal(str(folder / WAL))
        if summary.torn and summary.commits >= 3:
            break
    assert summary.torn, "older frames lie behind the new ones"
    assert summary.commits >= 3
    end = rounds + 2
    for frame in range(summary.frames - 1):
        with pytest.raises(CorruptStoreError, match=f"frame {frame + 1} .*is damaged"):
            await opened_copy(folder, partial(flip, position=32 + frame * FRAME + 30))
    undone = await opened_copy(folder, lambda path: flip(path, 32 + (summary.frames - 1) * FRAME + 30))
    assert undone == (end - 1, state(end - 1))
    for frame in range(summary.frames, summary.frames + 3):  # damage in leftover frames has no effect
        assert await opened_copy(folder, partial(flip, position=32 + frame * FRAME + 30)) == (
            end,
            state(end),
        )
