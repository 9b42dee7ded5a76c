"""`quorum-node recover` on a small log: its refusals, and an operator who interrupts it."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from quorum.core.types import LogEnd, StoredQuorum
from quorum.ports import StoreWrite
from quorum.snapshot_file import snapshot_name
from quorumlog_server.control_plane import QUORUM_FOLDER
from quorumlog_server.quorum_node import run
from quorumlog_server.recover import Found, Plan, choose
from tests.contract.samples import founding, leader_change, snapshot_bytes, state
from tests.unit.quorum.store.test_sqlite_store import make


async def opened(data_dir: Path, *writes: StoreWrite) -> StoredQuorum:
    store = make(data_dir / QUORUM_FOLDER)
    stored = await store.open(1, None)
    await store.write(writes)
    await store.close()
    return stored


def used(data_dir: Path) -> Path:
    """Return the data directory of a voter that has led for a moment."""
    asyncio.run(opened(data_dir, StoreWrite(state(2), None, (founding(), leader_change(1)))))
    return data_dir


def end_of(data_dir: Path) -> int:
    return asyncio.run(opened(data_dir)).log_end


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT interrupt this process, although its parent may ignore the signal."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


def interrupted_yes(prompt: str) -> str:
    signal.raise_signal(signal.SIGINT)
    return "yes"


def test_an_interrupt_at_the_confirmation_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`input` does not notice a cancelled task, so a "yes" after the Ctrl-C would have begun to write."""
    folder = used(tmp_path / "1")
    monkeypatch.setattr("builtins.input", interrupted_yes)
    assert run(["recover", "--data-dir", str(folder)], {}) == 1
    assert capsys.readouterr().out.endswith("nothing was changed\n")
    assert end_of(folder) == 2


def test_a_refused_confirmation_leaves_damaged_snapshots_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, end = used(tmp_path / "1"), LogEnd(1, 2)

    async def take_snapshot() -> None:
        store = make(folder / QUORUM_FOLDER)
        await store.open(1, None)
        await store.begin_snapshot(end, resume=False)
        await store.extend_snapshot(end, 0, snapshot_bytes(2, b"no image"))
        await store.finish_snapshot(end)
        await store.close()

    asyncio.run(take_snapshot())
    names = sorted(os.listdir(folder / QUORUM_FOLDER))
    assert snapshot_name(end) in names
    monkeypatch.setattr("builtins.input", lambda prompt: "no")
    run(["recover", "--data-dir", str(folder)], {})
    assert capsys.readouterr().out.endswith("nothing was changed\n")
    assert sorted(os.listdir(folder / QUORUM_FOLDER)) == names
    assert run(["recover", "--data-dir", str(folder), "--yes"], {}) == 0


@pytest.mark.usefixtures("interrupts")
def test_the_interrupt_handler_of_asyncio_is_active_again_after_the_confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's handler cancels the task, so that the stores are closed."""
    handlers: list[object] = []
    folder = used(tmp_path / "1")

    def confirm(prompt: str) -> str:
        handlers.append(signal.getsignal(signal.SIGINT))
        return "yes"

    def next_steps(plan: Plan) -> Iterator[str]:
        handlers.append(signal.getsignal(signal.SIGINT))
        return iter(())

    monkeypatch.setattr("builtins.input", confirm)
    monkeypatch.setattr("quorumlog_server.recover._next_steps", next_steps)
    assert run(["recover", "--data-dir", str(folder)], {}) == 0
    at_question, afterwards = handlers
    assert at_question is signal.default_int_handler is not afterwards


@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_while_directories_are_examined_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = used(tmp_path / "1")

    def interrupted(opened: Sequence[Found]) -> Found:
        signal.raise_signal(signal.SIGINT)
        return choose(opened)

    monkeypatch.setattr("quorumlog_server.recover.choose", interrupted)
    assert run(["recover", "--data-dir", str(folder), "--yes"], {}) == 1
    assert "interrupted (next: if" in capsys.readouterr().err
    assert end_of(folder) == 2


class Pipe(io.StringIO):
    """An output whose reader sees only what was flushed."""

    arrived = ""

    def flush(self) -> None:
        self.arrived = self.getvalue()


def test_recover_reports_that_it_writes_before_it_begins_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that is killed from then on must be run again."""
    folder, output = used(tmp_path / "1"), Pipe()
    arrived: list[str] = []

    async def write(best: Found, plan: Plan) -> None:
        arrived.append(output.arrived)

    monkeypatch.setattr("quorumlog_server.recover._write", write)
    monkeypatch.setattr("sys.stdout", output)
    assert run(["recover", "--data-dir", str(folder), "--yes"], {}) == 0
    assert 'writing; if this ends without "done", run it again' in arrived[0]


def test_the_error_of_a_directory_that_cannot_be_read_contains_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(["recover", "--data-dir", str(tmp_path / "file"), "--yes"], {}) == 2
    assert f"{tmp_path}/file/quorum/quorum.json: Not a directory (ENOTDIR)" in capsys.readouterr().err


def test_a_directory_that_is_given_twice_is_used_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = used(tmp_path / "1")
    (tmp_path / "link").symlink_to(folder)
    assert run(["recover", "--data-dir", str(folder), "--data-dir", str(tmp_path / "link"), "--yes"], {}) == 0
    assert capsys.readouterr().out.count("found ") == 1


def test_a_closed_output_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise the operator would not see whether the command writes: `quorum-node recover --yes | head -1`."""
    folder = used(tmp_path / "1")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert run(["recover", "--data-dir", str(folder), "--yes"], {}) == 1
    assert "the output cannot be written: Broken pipe; the line was: found " in capsys.readouterr().err
    assert end_of(folder) == 2
