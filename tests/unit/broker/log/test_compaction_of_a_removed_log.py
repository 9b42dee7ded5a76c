"""A log may be removed or move at any moment of its compaction.

It is removed because its topic was deleted or its replica was reassigned; it moves to another data directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from broker.log import LogManager, recovery
from broker.log.compaction import LogCompaction
from quorumlog.runtime import turns
from quorumlog.runtime.file_disk import FileDisk
from tests.unit.broker.log.compaction_rig import KEY, CompactionRig


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CompactionRig]:
    """A log on a real disk.  Each batch of a replacement is checked in its own turn on the loop."""
    monkeypatch.setattr(turns, "YIELD_MS", 0)
    monkeypatch.setattr(recovery, "CHUNK", 100)
    rig = CompactionRig(1)
    rig.disk = FileDisk.acquire(tmp_path / "data", 1, "cluster", uuid4)  # type: ignore[assignment]
    other = FileDisk.acquire(tmp_path / "other", 1, "cluster", uuid4)
    rig.others.append(other)
    await rig.start()
    for number in range(40):
        rig.append((b"%d" % (number % 3), bytes(100)))
    await rig.settle()
    yield rig
    await rig.logs.close()
    rig.disk.close()  # type: ignore[attr-defined]
    other.close()


def leftovers(tmp_path: Path) -> list[Path]:
    return [one for kind in ("cleaned", "swap") for one in tmp_path.rglob(f"*.{kind}")]


async def test_a_cleaning_ends_if_its_log_is_removed_while_a_replacement_is_checked(
    rig: CompactionRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removals: list[asyncio.Task[None]] = []
    check, folder = LogCompaction.check, rig.log.folder

    def removed_meanwhile(*args: Any) -> Generator[None, None, Any]:
        checking = check(*args)
        yield next(checking)
        removals.append(asyncio.create_task(rig.logs.set_aside([KEY], 0)))
        while rig.disk.exists(folder):
            yield
        return (yield from checking)

    monkeypatch.setattr(LogCompaction, "check", removed_meanwhile)
    assert await rig.cleaner.clean_next()
    await asyncio.gather(*removals)
    assert len(removals) == 1
    assert rig.cleaner.uncleanable[KEY].cause == "the log changed while it was cleaned"
    assert not await rig.cleaner.clean_next()
    assert not rig.cleaner.uncleanable, "the entry is removed with the log"


async def test_a_cleaning_ends_if_its_log_is_removed_after_a_replacement_was_swapped_in(
    rig: CompactionRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap, swapped = LogManager.swap_segments, []

    async def then_removed(self: LogManager, *args: Any) -> bool:
        swapped.append(await swap(self, *args))
        await self.set_aside([KEY], 0)
        return swapped[-1]

    rig.config = rig.log.config
    monkeypatch.setattr(LogManager, "swap_segments", then_removed)
    assert await rig.cleaner.clean_next()
    assert swapped == [True]
    assert rig.cleaner.uncleanable[KEY].cause == "the log changed while it was cleaned"
    assert leftovers(tmp_path) == []


async def test_a_cleaning_ends_if_its_log_moves_while_a_replacement_is_checked(
    rig: CompactionRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = rig.others[0].directory_id
    await rig.logs.moves.request({KEY: target})
    check, folder, runners = LogCompaction.check, rig.log.folder, []

    def moved_meanwhile(*args: Any) -> Generator[None, None, Any]:
        checking = check(*args)
        yield next(checking)
        runners.append(asyncio.create_task(rig.logs.moves.run(lambda: 5_000)))
        while rig.disk.exists(folder):  # it is renamed once the log is in the target
            yield
        return (yield from checking)

    monkeypatch.setattr(LogCompaction, "check", moved_meanwhile)
    assert await rig.cleaner.clean_next()
    runners[0].cancel()
    await asyncio.gather(*runners, return_exceptions=True)
    assert rig.log.directory_id == target
    assert rig.cleaner.uncleanable[KEY].cause == "the log changed while it was cleaned"
    monkeypatch.undo()
    rig.cleaner.uncleanable.clear()
    assert await rig.clean()
    rig.check()
    assert leftovers(tmp_path / "data" / "logs") == leftovers(tmp_path / "other") == []
