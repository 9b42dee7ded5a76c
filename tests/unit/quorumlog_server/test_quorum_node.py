"""The command line of `quorum-node`: the directories that count as formatted, and output that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quorumlog.runtime import server_cli
from quorumlog.runtime.config import NodeConfig
from quorumlog_server import quorum_node
from quorumlog_server.control_plane import QUORUM_FOLDER
from quorumlog_server.quorum_node import _is_formatted, run


def formatted(data_dir: Path) -> bool:
    return _is_formatted(cast(NodeConfig, SimpleNamespace(data_dirs=(str(data_dir),))))


def test_a_directory_of_another_user_counts_as_formatted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node then opens the directory and reports the real problem; "is not formatted" would be wrong advice."""

    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    (tmp_path / QUORUM_FOLDER).mkdir()
    monkeypatch.setattr(os, "listdir", refuse)
    assert formatted(tmp_path)


def test_ids_and_directories_may_begin_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["format", "--data-dir=-d", "--node-id", "1", "--cluster-id=-c"], {}) == 0
    assert (tmp_path / "-d" / QUORUM_FOLDER).is_dir()


def test_commands_that_succeeded_report_a_full_disk_of_their_output_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(quorum_node, "print", fail, raising=False)
    monkeypatch.setattr(server_cli, "discard_output", lambda: None)
    data_dir = f"--data-dir={tmp_path / 'data'}"
    for arguments, line in (
        (["new-id"], ""),
        (["format", data_dir, "--node-id=1", "--cluster-id=c"], f"formatted {tmp_path / 'data'} for node 1"),
        (["set-aside", data_dir], f"the quorum directory is now {tmp_path / 'data' / QUORUM_FOLDER}.set-aside"),
    ):
        assert run(arguments, {}) == 1
        reported = capsys.readouterr().err
        assert f"the output cannot be written: No space left on device; the line was: {line}" in reported
        assert reported.endswith("(next: check where the output goes; the command itself succeeded)\n")


def test_a_directory_without_files_is_not_formatted(tmp_path: Path) -> None:
    assert not formatted(tmp_path / "missing")
    (tmp_path / QUORUM_FOLDER).mkdir()
    assert not formatted(tmp_path)
    (tmp_path / QUORUM_FOLDER / "file").touch()
    assert formatted(tmp_path)
    assert not formatted(tmp_path / QUORUM_FOLDER / "file"), "opening it reports that it is no directory"
