"""The reason why a process ended, stored in its directories."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from quorumlog.runtime import last_end
from quorumlog.runtime.last_end import FAILED, FILE, RUNNING, SIZE, STOPPED, End, LastEnd


def process(folders: Sequence[Path], now_ms: int = 5) -> LastEnd:
    """Return the record of a process that has begun."""
    one = LastEnd([str(folder) for folder in folders], lambda: now_ms)
    assert one.begin()
    return one


def finish(one: LastEnd, status: int, cause: str = "", next_step: str = "") -> None:
    asyncio.run(one.write(one.ended(status, cause, next_step)))


def test_a_process_reads_how_the_previous_process_ended(tmp_path: Path) -> None:
    first = process([tmp_path], 1)
    assert first.before is None
    finish(first, 7, "the disk\nis full", "make room")
    second = process([tmp_path], 2)
    assert second.before == End(FAILED, 1, 7, "the disk is full", "make room")
    finish(second, 0)
    third = process([tmp_path], 3)
    assert third.before == End(STOPPED, 2)
    assert process([tmp_path], 4).before == End(RUNNING, 3)  # the third was killed


def test_a_second_begin_in_one_process_changes_nothing(tmp_path: Path) -> None:
    one = process([tmp_path])
    assert not one.begin()
    assert one.before is None


def test_the_end_of_a_process_is_written_into_the_existing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk has no room for a new file, and a process at its limits cannot open one."""
    one = process([tmp_path])
    assert (tmp_path / FILE).stat().st_size == SIZE
    inode = (tmp_path / FILE).stat().st_ino

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "open", refuse)
    finish(one, 1, "x" * 10_000, "ä" * 10_000)
    monkeypatch.undo()
    assert ((tmp_path / FILE).stat().st_size, (tmp_path / FILE).stat().st_ino) == (SIZE, inode)
    before = process([tmp_path]).before
    assert before is not None
    assert before.cause == "x" * (last_end.TEXT_MAX - 1) + "…"
    assert before.next_step.startswith("ä")


def test_any_cause_fits_into_the_note_of_the_end(tmp_path: Path) -> None:
    for text in ("\U0001f600" * 5_000, "\x01" * 5_000, "\ud800\udfff" * 5_000, '"\\' * 5_000):
        finish(process([tmp_path]), 7, text, text)
        before = process([tmp_path]).before
        assert before is not None
        assert (before.state, before.exit_status) == (FAILED, 7)
        assert before.cause


def test_the_latest_note_of_several_directories_counts(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    finish(process(folders, 1), 7, "old")
    finish(process(folders[1:], 2), 1, "new")
    assert process(folders, 3).before == End(FAILED, 2, 1, "new")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"state": "failed"}',
        b'{"state": 3, "at_ms": 5}',
        b'{"state": "failed", "at_ms": -1}',
        b'{"state": "failed", "at_ms": 253402300800000}',
        b"[" * 4000,
        b"\xff" * 9000,
    ],
)
def test_a_damaged_note_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert process([tmp_path]).before is None
    assert process([tmp_path]).before == End(RUNNING, 5)


def test_a_directory_that_cannot_store_the_note_does_not_fail_the_process(tmp_path: Path) -> None:
    finish(process([tmp_path / "missing", tmp_path]), 7, "odd")
    assert process([tmp_path]).before == End(FAILED, 5, 7, "odd")
    finish(process([tmp_path / "missing"]), 7, "odd")


def test_a_process_that_fails_before_it_has_begun_stores_the_reason(tmp_path: Path) -> None:
    finish(LastEnd([str(tmp_path)], lambda: 9), 7, "damaged")
    assert process([tmp_path]).before == End(FAILED, 9, 7, "damaged")


def test_a_hanging_directory_does_not_delay_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    one = process(folders)
    released, real, hanging = threading.Event(), os.pwrite, (folders[0] / FILE).stat().st_ino

    def pwrite(file: int, data: bytes, position: int) -> int:
        if os.fstat(file).st_ino == hanging:
            released.wait()
        return real(file, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)

    async def end() -> None:
        writing = asyncio.ensure_future(one.write(one.ended(7, "slow", "")))
        while b"slow" not in (folders[1] / FILE).read_bytes():  # noqa: ASYNC110
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        released.set()

    asyncio.run(end())
    assert process(folders[1:]).before == End(FAILED, 5, 7, "slow")
