"""A log manager on a real directory that can be stopped, killed and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from broker.log import Appended, LogConfig, LogKey, LogManager, PartitionLog
from quorumlog.runtime.file_disk import FileDisk
from tests.unit.broker.log.batches import make_batch

KEY = LogKey(UUID(int=7), 3, 42)
OTHER = LogKey(UUID(int=7), 3, 43)
SMALL = LogConfig(segment_size_max=500, index_interval=100)
ONE_SEGMENT = LogConfig(index_interval=100)
CACHING = LogConfig(segment_size_max=500, index_interval=100, write_caching=True)


def stopped_at(now_ms: int) -> Callable[[], int]:
    """Return a clock that stands still."""
    return lambda: now_ms


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk: FileDisk
        self.logs: LogManager
        self.running = False

    async def start(self) -> None:
        self.disk = FileDisk.acquire(self.folder, 1, "cluster", uuid4)
        self.logs = LogManager([self.disk])
        await self.logs.open()
        self.running = True

    async def stop(self) -> None:
        """Stop the manager cleanly."""
        await self.logs.close()
        self.disk.close()
        self.running = False

    async def kill(self) -> None:
        """End the manager as kill -9 does: written data stays in the page cache, and nothing is cleaned up."""
        if not self.running:
            return
        self.running = False
        for task in self.logs._tasks:
            task.cancel()
        await asyncio.gather(*self.logs._tasks, return_exceptions=True)
        self.disk.close()

    async def restart(self, *, clean: bool) -> None:
        await (self.stop() if clean else self.kill())
        await self.start()

    def create(self, config: LogConfig = SMALL, key: LogKey = KEY) -> PartitionLog:
        return self.logs.create(key, "topic", self.disk.directory_id, config)

    @property
    def log(self) -> PartitionLog:
        return self.logs.logs[KEY]

    async def settle(self, log: PartitionLog) -> None:
        """Make everything durable and committed."""
        await self.logs.flush_all([log])
        log.advance_high_watermark(log.end_offset)

    def path(self, log: PartitionLog, name: str) -> Path:
        return self.folder / log.folder / name

    def files(self, log: PartitionLog, kind: str = "log") -> list[Path]:
        return sorted((self.folder / log.folder).glob(f"*.{kind}"))


class HeldCommits:
    """Facts are written to the disk only after `release`."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self._may_end = asyncio.Event()
        self._commit = rig.disk.facts.commit
        monkeypatch.setattr(rig.disk.facts, "commit", self._held)

    async def _held(self, changes: dict[str, bytes | None]) -> None:
        self.begun.set()
        await self._may_end.wait()
        await self._commit(changes)

    def release(self) -> None:
        self._may_end.set()


def append(log: PartitionLog, values: list[bytes], epoch: int = 0, now_ms: int = 0, **options: Any) -> Appended:
    appended = log.append_as_leader(make_batch(values, **options), epoch, now_ms)
    assert isinstance(appended, Appended), appended
    return appended


def fill(log: PartitionLog, count: int, epoch: int = 0) -> list[bytes]:
    """Append `count` batches of one to three records; return them as they are in the log."""
    for number in range(count):
        append(log, [b"%05d" % number] * (1 + number % 3), epoch)
    return batches_of(log)


def batches_of(log: PartitionLog) -> list[bytes]:
    """Return every batch in the log."""
    batches = []
    offset = log.start_offset
    while offset < log.end_offset:
        batch = bytes(log.read(offset, 1, log.end_offset))
        assert batch, offset
        batches.append(batch)
        offset = end_of(batch)
    return batches


def end_of(batch: bytes) -> int:
    """Return the offset after the last record."""
    return int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1


def two_disks(tmp_path: Path) -> list[FileDisk]:
    return [FileDisk.acquire(tmp_path / name, 1, "cluster", uuid4) for name in "ab"]


async def restart_with(rig: Rig, path: Path, content: bytes) -> None:
    """Kill the manager, replace a file's content, and start a manager again."""
    await rig.kill()
    path.write_bytes(content)  # noqa: ASYNC240 -- nothing else runs
    await rig.start()
