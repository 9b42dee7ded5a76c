"""The free space of directories is sampled in a thread; a hanging mount delays nothing else."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.runtime import space
from quorumlog.runtime.space import Space, SpaceSamples

TURNS = 200


class Mounts:
    """File systems of 10 blocks of 100 bytes each; those in `hang` do not answer before `released` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = {"/a": 3, "/b": 5}
        self.hang: set[str] = set()
        self.hangs = threading.Event()
        self.released = threading.Event()
        self.asked: list[str] = []
        monkeypatch.setattr(os, "statvfs", self._statvfs)
        monkeypatch.setattr(space, "SAMPLE_S", 0)

    def _statvfs(self, path: str) -> Any:
        assert threading.current_thread() is not threading.main_thread(), "it would block the event loop"
        self.asked.append(path)
        if path in self.hang:
            self.hangs.set()
            self.released.wait()
        if path not in self.free:
            raise OSError("Stale file handle")
        return SimpleNamespace(f_bavail=self.free[path], f_blocks=10, f_frsize=100)


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    return Mounts(monkeypatch)


async def until(condition: Any, task: asyncio.Task[None]) -> None:
    while not condition():
        assert not task.done(), task.exception()
        await asyncio.sleep(0)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def test_the_latest_samples_are_in_the_order_of_the_paths(mounts: Mounts) -> None:
    async def test() -> None:
        samples = SpaceSamples(lambda: ["/b", "/gone", "/a"])
        assert samples.latest() == []
        task = asyncio.ensure_future(samples.run())
        await until(lambda: len(samples.latest()) == 2, task)
        assert samples.latest() == [Space("/b", 500, 1000), Space("/a", 300, 1000)]
        mounts.free["/b"] = 1
        await until(lambda: samples.latest()[0].free_bytes == 100, task)
        del mounts.free["/b"]
        asked = len(mounts.asked)
        await until(lambda: len(mounts.asked) > asked + 6, task)  # two rounds
        assert [each.path for each in samples.latest()] == ["/a"]
        await stop(task)

    asyncio.run(test())


def test_a_hanging_mount_blocks_one_thread_and_keeps_its_last_sample(mounts: Mounts) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        samples = SpaceSamples(lambda: ["/a", "/b"])
        task = asyncio.ensure_future(samples.run())
        await until(lambda: len(samples.latest()) == 2, task)
        mounts.hang.add("/b")
        await until(mounts.hangs.is_set, task)
        asked = len(mounts.asked)
        hung_at = loop.time()
        for _ in range(TURNS):  # the loop continues
            await asyncio.sleep(0)
        assert len(mounts.asked) == asked
        assert samples.latest() == [Space("/a", 300, 1000), Space("/b", 500, 1000)]
        assert min(samples.ages_s().values()) > loop.time() - hung_at
        mounts.hang.clear()
        mounts.released.set()
        await until(lambda: len(mounts.asked) > asked + 2, task)
        await stop(task)

    asyncio.run(test())


def test_space_of_reads_a_real_directory_and_returns_none_for_a_missing_one(tmp_path: Path) -> None:
    found = space.space_of(str(tmp_path))
    assert found is not None
    assert 0 <= found.free_bytes <= found.total_bytes
    assert space.space_of(str(tmp_path / "missing")) is None
