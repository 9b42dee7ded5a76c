"""Snapshot files that several threads use: one method runs while another one is not finished."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from quorum.core.types import LogEnd
from quorum.ports import BadSnapshotError
from quorum.snapshot_file import SnapshotInfo, snapshot_name
from quorum.store.snapshots import SnapshotFiles
from tests.contract.samples import snapshot_bytes

OWN = LogEnd(1, 10)
NEWER = LogEnd(1, 20)
FROM_LEADER = LogEnd(2, 30)


def write(files: SnapshotFiles, end: LogEnd, content: bytes) -> None:
    files.begin(end, resume=False)
    files.extend(end, 0, content)


def taken(files: SnapshotFiles, end: LogEnd) -> None:
    write(files, end, snapshot_bytes(end.offset, b"one", epoch=end.epoch))
    assert files.finish(end).end == end


def before(monkeypatch: pytest.MonkeyPatch, name: str, event: Callable[[], object]) -> None:
    """Let `event` happen in another thread just before the next call of `os.<name>`."""
    call = getattr(os, name)

    def patched(*arguments: object) -> object:
        monkeypatch.setattr(os, name, call)
        event()
        return call(*arguments)

    monkeypatch.setattr(os, name, patched)


def test_a_new_download_does_not_remove_a_snapshot_that_is_being_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every part of a download removes the files of other downloads, also while a snapshot of this node is synced."""
    files = SnapshotFiles(os.fspath(tmp_path))
    write(files, OWN, snapshot_bytes(OWN.offset, b"one"))
    before(monkeypatch, "fsync", lambda: files.begin(FROM_LEADER, resume=True))
    assert files.finish(OWN).end == OWN
    assert [info.end for info in files.all()] == [OWN]


def test_a_durable_snapshot_stays_whole_while_another_one_with_its_end_is_taken(tmp_path: Path) -> None:
    """A leader offered it again, but lost its leadership before the follower found that it already has all bytes."""
    files = SnapshotFiles(os.fspath(tmp_path))
    taken(files, OWN)
    before_it = (tmp_path / snapshot_name(OWN)).read_bytes()
    assert files.begin(OWN, resume=True) == len(before_it)
    assert files.begin(OWN, resume=False) == 0
    assert (tmp_path / snapshot_name(OWN)).read_bytes() == before_it
    files.extend(OWN, 0, before_it)
    assert files.finish(OWN).size == len(before_it)
    assert os.listdir(tmp_path) == [snapshot_name(OWN)]


def test_a_snapshot_that_retention_deletes_during_a_listing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SnapshotFiles(os.fspath(tmp_path))
    taken(files, OWN)
    taken(files, NEWER)
    look = files._look

    def deleted_first(path: str, end: LogEnd) -> SnapshotInfo:
        if end == OWN:
            files.delete(end)
        return look(path, end)

    monkeypatch.setattr(files, "_look", deleted_first)
    assert [info.end for info in files.all()] == [NEWER]


def test_a_snapshot_with_a_damaged_header_is_reported_once_and_set_aside_after_the_next_one(tmp_path: Path) -> None:
    """The damaged file stays until then, because a node that cannot start changes no file."""
    files = SnapshotFiles(os.fspath(tmp_path))
    taken(files, OWN)
    (tmp_path / snapshot_name(OWN)).write_bytes(b"damage")
    with capture_logs() as lines:
        assert files.all() == files.all() == ()
    assert [line["event"] for line in lines] == ["snapshot not used: damaged"]
    taken(files, NEWER)
    assert [info.end for info in files.all()] == [NEWER]
    assert sorted(os.listdir(tmp_path)) == [f"{snapshot_name(OWN)}.damaged", snapshot_name(NEWER)]


def test_a_snapshot_with_a_damaged_header_is_replaced_by_one_with_the_same_end(tmp_path: Path) -> None:
    files = SnapshotFiles(os.fspath(tmp_path))
    (tmp_path / snapshot_name(OWN)).write_bytes(b"damage")
    assert files.all() == ()
    taken(files, OWN)
    assert [info.end for info in files.all()] == [OWN]
    assert os.listdir(tmp_path) == [snapshot_name(OWN)]


def test_a_snapshot_that_is_replaced_during_a_listing_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = SnapshotFiles(os.fspath(tmp_path))
    (tmp_path / snapshot_name(OWN)).write_bytes(b"damage")
    look = files._look

    def replaced_afterwards(path: str, end: LogEnd) -> SnapshotInfo:
        try:
            return look(path, end)
        finally:
            monkeypatch.setattr(files, "_look", look)
            taken(files, OWN)

    monkeypatch.setattr(files, "_look", replaced_afterwards)
    assert files.all() == (), "the listing found the damaged snapshot"
    taken(files, NEWER)
    assert [info.end for info in files.all()] == [OWN, NEWER]


def test_a_damaged_snapshot_that_an_operator_removes_does_not_fail_the_next_one(tmp_path: Path) -> None:
    files = SnapshotFiles(os.fspath(tmp_path))
    (tmp_path / snapshot_name(OWN)).write_bytes(b"damage")
    assert files.all() == ()
    os.unlink(tmp_path / snapshot_name(OWN))
    taken(files, NEWER)
    assert os.listdir(tmp_path) == [snapshot_name(NEWER)]


@pytest.mark.parametrize("content", [snapshot_bytes(OWN.offset, b"one"), b"damage"])
def test_a_new_download_removes_the_partial_file_of_a_snapshot_that_was_finished_or_failed(
    tmp_path: Path, content: bytes
) -> None:
    files = SnapshotFiles(os.fspath(tmp_path))
    write(files, OWN, content)
    try:
        files.finish(OWN)
    except BadSnapshotError:
        assert content == b"damage"
    (tmp_path / f"{snapshot_name(OWN)}.part").touch()
    files.begin(FROM_LEADER, resume=True)
    assert not (tmp_path / f"{snapshot_name(OWN)}.part").exists()
