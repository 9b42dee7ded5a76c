"""`quorumlog_server.dump` reads quorum directories and snapshots, changes nothing, and names damage."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from metadata.codec import encode
from metadata.image import ClusterImage
from metadata.records import Feature
from metadata.snapshot import chunks
from quorum.core.types import LogEnd
from quorum.ports import StoreWrite
from quorum.store import SqliteQuorumStore
from quorum.store.directory import DATABASE, IDENTITY, LOCK, WAL
from quorumlog.errors import ClusterError, CorruptStoreError, FatalError, QuorumlogError, StoreRefusedError
from quorumlog.kctl.metadata_dump import Dump
from quorumlog.wire.v1 import node_pb2
from quorumlog_server import dump as dumping
from quorumlog_server.dump import FRAME, dump
from tests.contract.samples import CLUSTER, base, data, founding, leader_change, snapshot_bytes, state
from tests.unit.metadata.fake_node import run
from tests.unit.metadata.test_snapshot import example
from tests.unit.quorum.store.test_sqlite_store import crashed, flip, make

ROOT = Path(__file__).resolve().parents[3]
SNAPSHOT_NAME = "{:020d}-{:010d}.snapshot"


def feature(offset: int) -> bytes:
    return encode([Feature("f", offset)])


async def a_log(folder: Path, rounds: int = 5, *, closed: bool = True) -> Any:
    """Return a store with the founding record, a leader, and this many features from offset 2 on."""
    store = make(folder)
    await store.open(1, None)
    await store.write([StoreWrite(state(2), None, (founding(), leader_change(1)))])
    for offset in range(2, 2 + rounds):
        await store.write([StoreWrite(state(offset + 1), None, (data(offset, payload=feature(offset)),))])
    if closed:
        await store.close()
    return store


def image_bytes(image: ClusterImage) -> bytes:
    return snapshot_bytes(image.end_offset, *(chunk for chunk in chunks(image) if chunk))


class Read:
    """The output of a dump."""

    def __init__(self, path: Path, *topics: str) -> None:
        self.frames: list[tuple[bytes, bytes]] = []
        self.error: QuorumlogError | OSError | None = None
        try:
            dump(str(path), topics, lambda kind, content: self.frames.append((kind, content)))
        except (QuorumlogError, OSError) as error:
            self.error = error

    def of(self, kind: bytes) -> list[bytes]:
        return [content for each, content in self.frames if each == kind]

    @property
    def about(self) -> Any:
        return json.loads(self.of(b"I")[0])

    @property
    def batches(self) -> list[node_pb2.MetadataBatch]:
        return [node_pb2.MetadataBatch.FromString(content) for content in self.of(b"B")]

    @property
    def features(self) -> list[int]:
        return [record.feature.level for batch in self.batches for record in batch.records.records]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


async def in_thread(path: Path, *topics: str) -> Read:
    """Dump in a thread, because `dump` runs an event loop of its own."""
    return await asyncio.to_thread(Read, path, *topics)


@pytest.mark.parametrize("form", ["quorum", "data", "database"])
async def test_a_cleanly_closed_directory_is_read(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "quorum"
    await a_log(folder)
    before = contents(tmp_path)
    with capture_logs() as logs:
        read = await in_thread({"quorum": folder, "data": tmp_path, "database": folder / DATABASE}[form])
    assert read.error is None
    assert logs == []
    assert re.fullmatch(r"[\w-]{22}", read.about["directory_id"])
    assert {**read.about, "directory_id": None} == {
        "kind": "log", "path": str(folder), "node_id": 1, "directory_id": None, "cluster_id": CLUSTER, "epoch": 1,
        "begins": 0, "end": 7, "snapshots": [],
    }  # fmt: skip
    assert [batch.control.partition(":")[0] for batch in read.batches[:2]] == ["Voters", "LeaderChange"]
    assert read.features == [2, 3, 4, 5, 6]
    assert [batch.base_offset for batch in read.batches] == list(range(7))
    assert contents(tmp_path) == before


async def test_records_in_the_write_ahead_log_are_read_and_left_there(tmp_path: Path) -> None:
    folder = await crashed_with_features(tmp_path)
    assert (folder / WAL).stat().st_size > 0
    before = contents(folder)
    read = await in_thread(folder)
    assert (read.error, read.features) == (None, list(range(2, 12)))
    assert contents(folder) == before
    store = make(folder)
    assert (await store.open(1, None)).log_end == 12, "the node starts as if its directory had not been read"
    await store.close()


async def crashed_with_features(tmp_path: Path) -> Path:
    store = await a_log(tmp_path / "live", 10, closed=False)
    shutil.copytree(tmp_path / "live", tmp_path / "left")
    await store.close()
    return tmp_path / "left"


async def test_a_directory_in_use_is_refused_with_a_next_step(tmp_path: Path) -> None:
    store = await a_log(tmp_path, closed=False)
    read = await in_thread(tmp_path)
    assert isinstance(read.error, StoreRefusedError)
    assert f"in use by process {os.getpid()}" in read.error.message
    assert "kctl metadata tail" in read.error.next_step
    assert read.frames == []
    await store.close()


async def test_a_copy_without_its_lock_file_is_read(tmp_path: Path) -> None:
    await a_log(tmp_path / "q")
    (tmp_path / "q" / LOCK).unlink()
    assert (await in_thread(tmp_path / "q")).features == [2, 3, 4, 5, 6]


async def test_the_error_about_a_damaged_write_ahead_log_names_the_original_directory(tmp_path: Path) -> None:
    """The error names the directory, not the copy that was read."""
    folder = await crashed(tmp_path)
    flip(folder / WAL, (folder / WAL).stat().st_size // 2)
    read = await in_thread(folder)
    assert isinstance(read.error, CorruptStoreError)
    assert "quorumlog-dump-" not in read.error.message
    assert (read.of(b"B"), str(folder) in read.error.message) == ([], True)


async def test_batches_before_a_damaged_one_are_returned(tmp_path: Path) -> None:
    await a_log(tmp_path / "q")
    database = tmp_path / "q" / DATABASE
    whole = database.read_bytes()
    place = whole.rindex(feature(5))
    flip(database, place + len(feature(5)) - 1)
    read = await in_thread(tmp_path / "q")
    assert read.features == [2, 3, 4]
    assert isinstance(read.error, CorruptStoreError)
    assert "offset 5" in read.error.message


async def test_missing_files_and_foreign_paths_are_reported(tmp_path: Path) -> None:
    await a_log(tmp_path / "q")
    (tmp_path / "q" / IDENTITY).unlink()
    assert "quorum.json is missing" in str((await in_thread(tmp_path / "q")).error)
    await a_log(tmp_path / "r")
    (tmp_path / "r" / DATABASE).unlink()
    assert isinstance((await in_thread(tmp_path / "r")).error, CorruptStoreError)
    (tmp_path / "empty").mkdir()
    nothing = (await in_thread(tmp_path / "empty")).error
    assert isinstance(nothing, ClusterError)
    assert nothing.code == "NOT_METADATA"
    assert isinstance((await in_thread(tmp_path / "nowhere")).error, FileNotFoundError)
    (tmp_path / "text").write_text("quite something else")
    other = (await in_thread(tmp_path / "text")).error
    assert isinstance(other, ClusterError)
    assert other.code == "NOT_METADATA"


# Snapshots


async def test_dump_of_a_snapshot_returns_the_cluster_state(tmp_path: Path) -> None:
    image = example()
    path = tmp_path / SNAPSHOT_NAME.format(image.end_offset, 1)
    path.write_bytes(image_bytes(image))
    read = await in_thread(path)
    assert read.error is None
    assert (read.about["end"], read.about["cluster_id"], len(read.about["voters"])) == (image.end_offset, CLUSTER, 3)
    state_ = node_pb2.DescribeMetadataReply.FromString(read.of(b"S")[0])
    assert (state_.offset, state_.timestamp_ms) == (image.end_offset, 1_700_000_000_000)
    assert [topic.name for topic in state_.topics] == sorted(image.topic_ids)
    assert [voter.node_id for voter in state_.voters] == [1, 2, 3]
    assert [broker.broker_id for broker in state_.brokers] == sorted(image.brokers)
    one = node_pb2.DescribeMetadataReply.FromString((await in_thread(path, "topic1")).of(b"S")[0])
    assert [topic.name for topic in one.topics] == ["topic1"]


async def test_a_damaged_or_truncated_snapshot_is_refused(tmp_path: Path) -> None:
    whole = image_bytes(example())
    path = tmp_path / "x.snapshot"
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        read = await in_thread(path)
        assert isinstance(read.error, QuorumlogError), place
        assert read.of(b"S") == []
    for size in range(0, len(whole), 11):
        path.write_bytes(whole[:size])
        assert isinstance((await in_thread(path)).error, QuorumlogError), size


async def test_a_log_after_a_snapshot_has_the_names_of_earlier_topics(tmp_path: Path) -> None:
    image = example()
    end = LogEnd(1, image.end_offset)
    store = make(tmp_path)
    await store.open(1, None)
    await store.begin_snapshot(end, resume=False)
    await store.extend_snapshot(end, 0, image_bytes(image))
    await store.finish_snapshot(end)
    after = data(end.offset, payload=feature(end.offset))
    await store.write([StoreWrite(state(end.offset + 1), None, (after,), base(end.offset))])
    await store.close()
    read = await in_thread(tmp_path)
    assert read.error is None
    assert (read.about["begins"], read.features) == (end.offset, [end.offset])
    names = node_pb2.DescribeMetadataReply.FromString(read.of(b"N")[0])
    assert {topic.name: topic.topic_id for topic in names.topics} == {
        name: topic_id.bytes for name, topic_id in image.topic_ids.items()
    }
    assert not any(topic.partitions for topic in names.topics)


# The program


def frames(output: bytes) -> Iterator[tuple[bytes, bytes]]:
    while output:
        kind, length = FRAME.unpack_from(output)
        yield kind, output[FRAME.size : FRAME.size + length]
        output = output[FRAME.size + length :]


def program(*arguments: str) -> tuple[int, list[tuple[bytes, bytes]]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "quorumlog_server.dump", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False, timeout=60)
    return done.returncode, list(frames(done.stdout))


async def test_the_dump_program_writes_its_output_and_its_error_as_frames(tmp_path: Path) -> None:
    await a_log(tmp_path)
    code, found = program(str(tmp_path))
    assert (code, [kind for kind, _ in found]) == (0, [b"I"] + [b"B"] * 7)
    code, [(kind, content)] = program(str(tmp_path / "nowhere"))
    assert (code, kind) == (1, b"E")
    assert json.loads(content) == {
        "error": "NO_SUCH_FILE", "message": f"{tmp_path}/nowhere: No such file or directory", "next": "",
    }  # fmt: skip


def test_a_quorum_directory_of_another_user_is_not_reported_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def refuse(path: Any, **options: Any) -> os.stat_result:
        if "quorum/" in str(path):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(PermissionError, match=DATABASE):
        dump(str(tmp_path), (), lambda kind, content: None)


async def test_the_copy_is_deleted_if_the_output_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kctl metadata dump DIR | head` must not fill the folder for temporary files."""
    large = "f" * 100_000  # more than the pipe and the reader's buffer hold, so the program still writes
    store = make(tmp_path / "quorum")
    await store.open(1, None)
    await store.write([StoreWrite(state(2), None, (founding(), leader_change(1)))])
    for offset in range(2, 42):
        batch = data(offset, payload=encode([Feature(large, offset)]))
        await store.write([StoreWrite(state(offset + 1), None, (batch,))])
    await store.close()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with Dump(str(tmp_path), ()) as reader:
        async for found in reader:
            if found.kind == "batch":
                break
        assert os.listdir(temporary)
    assert os.listdir(temporary) == []


@pytest.mark.parametrize("when", ["copied", "marked", "opened"])
async def test_a_full_disk_of_the_copy_is_not_reported_as_the_disk_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    await a_log(tmp_path / "quorum")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def full(source: str, target: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)  # shutil also names the source

    async def full_database(store: SqliteQuorumStore, *_: object) -> None:
        raise FatalError(f"{store.directory}/{DATABASE}: database or disk is full (SQLITE_FULL)", "check the disk")

    if when == "opened":
        monkeypatch.setattr(SqliteQuorumStore, "open", full_database)
    else:
        monkeypatch.setattr(*((shutil, "copyfile") if when == "copied" else (dumping, "write_mark")), full)
    error = (await in_thread(tmp_path)).error
    assert isinstance(error, ClusterError)
    assert (error.code, os.listdir(temporary)) == ("IO_ERROR", [])
    assert str(temporary) in error.message
    assert f"{tmp_path}/quorum/" not in error.message
    assert "TMPDIR" in error.next_step


async def test_a_machine_without_room_for_temporary_files_is_not_reported_as_a_missing_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_log(tmp_path / "quorum")

    def nowhere(**_: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", nowhere)
    error = (await in_thread(tmp_path)).error
    assert isinstance(error, ClusterError)
    assert (error.code, "TMPDIR" in error.next_step) == ("IO_ERROR", True)


class StuckProcess:
    """A process that waits for a disk that hangs, so no signal ends it."""

    returncode = None

    def __init__(self) -> None:
        self.signals: list[str] = []

    def terminate(self) -> None:
        self.signals.append("SIGTERM")

    def kill(self) -> None:
        self.signals.append("SIGKILL")

    async def communicate(self) -> None:
        await asyncio.Event().wait()


def test_kctl_does_not_wait_for_a_reader_that_no_signal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    process = StuckProcess()

    async def start(*_: object, **__: object) -> StuckProcess:
        return process

    async def stop() -> None:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
        with pytest.raises(ZeroDivisionError):
            async with asyncio.timeout(10), Dump("data", ()):
                raise ZeroDivisionError

    run(stop())
    assert process.signals == ["SIGTERM", "SIGKILL"]
