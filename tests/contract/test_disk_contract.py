"""The contract of `Disk`, for the real and the simulated implementation.

A kind is a factory in `DISK_KINDS`.  `reopen` is the next process on the same disk after the last one was killed, `cut`
the same after a power cut; `cut` is None for a kind that cannot lose power.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest

from quorumlog.runtime.disk import Disk
from quorumlog.runtime.file_disk import FileDisk
from simulation.kernel.disk import SimulatedDisk
from tests.contract.conftest import run_simulated


class DiskKind(Protocol):
    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        """Run a scenario to its end on this kind's loop."""

    def disk(self) -> Disk:
        """The disk, formatted at the first call."""

    def reopen(self) -> Disk: ...

    def cut(self) -> Disk | None: ...


class RealDisks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "disk"
        self._open: FileDisk | None = None

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            try:
                await scenario()
            finally:
                if self._open is not None:
                    self._open.close()

        asyncio.run(whole())

    def disk(self) -> Disk:
        if self._open is None:
            self._open = FileDisk.acquire(self._folder, 1, "cluster", uuid4)
        return self._open

    def reopen(self) -> Disk:
        assert self._open is not None
        self._open.close()  # flushes nothing: the page cache stays, as after a kill
        self._open = None
        return self.disk()

    def cut(self) -> Disk | None:
        return None


class SimulatedDisks:
    def __init__(self, folder: Path) -> None:
        self._disk = SimulatedDisk(Random(1))

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        run_simulated(scenario)

    def disk(self) -> Disk:
        return self._disk

    def reopen(self) -> Disk:
        return self._disk

    def cut(self) -> Disk | None:
        self._disk.crash()
        return self._disk


DISK_KINDS: dict[str, Callable[[Path], Any]] = {"real": RealDisks, "simulated": SimulatedDisks}


@pytest.fixture(params=sorted(DISK_KINDS))
def disks(request: pytest.FixtureRequest, tmp_path: Path) -> DiskKind:
    kind: DiskKind = DISK_KINDS[request.param](tmp_path)
    return kind


def test_a_disk_keeps_its_directory_id(disks: DiskKind) -> None:
    async def scenario() -> None:
        name = disks.disk().directory_id
        assert isinstance(name, UUID)
        assert disks.reopen().directory_id == name

    disks.run(scenario)


def test_appended_data_is_read_back_and_survives_a_kill(disks: DiskKind) -> None:
    async def scenario() -> None:
        file = disks.disk().open("a", create=True)
        assert file.append(b"hello ") == 0
        assert file.append(memoryview(b"world")) == 6
        assert file.size == 11
        assert file.pread(0, 5) == b"hello"
        assert file.pread(6, 100) == b"world"
        assert file.pread(11, 1) == b""
        assert disks.disk().open("a") is file
        assert disks.reopen().open("a").pread(0, 100) == b"hello world"

    disks.run(scenario)


def test_an_append_after_a_truncation_begins_at_the_new_end(disks: DiskKind) -> None:
    async def scenario() -> None:
        file = disks.disk().open("a", create=True)
        file.append(b"0123456789")
        file.truncate(4)
        assert file.size == 4
        assert file.append(b"xy") == 4
        assert file.pread(0, 100) == b"0123xy"

    disks.run(scenario)


def test_opening_a_missing_file_does_not_create_it(disks: DiskKind) -> None:
    async def scenario() -> None:
        disk = disks.disk()
        with pytest.raises(FileNotFoundError):
            disk.open("missing")
        assert not disk.exists("missing")
        assert disk.list("nowhere") == []

    disks.run(scenario)


def test_a_rename_replaces_a_file_that_is_open(disks: DiskKind) -> None:
    async def scenario() -> None:
        disk = disks.disk()
        disk.open("old", create=True).append(b"old")
        disk.open("new", create=True).append(b"new")
        disk.rename("new", "old")
        assert disk.open("old").pread(0, 9) == b"new"

    disks.run(scenario)


def test_folders_are_listed_renamed_and_removed(disks: DiskKind) -> None:
    async def scenario() -> None:
        disk = disks.disk()
        disk.make_dir("logs")
        disk.make_dir("logs")
        disk.make_dir("logs/b")
        disk.make_dir("logs/a")
        disk.open("logs/b/2", create=True).append(b"two")
        disk.open("logs/b/1", create=True)
        assert disk.list("logs") == ["a", "b"]
        assert disk.list("logs/b") == ["1", "2"]
        disk.rename("logs/b", "logs/c")
        assert not disk.exists("logs/b")
        assert disk.exists("logs/c/2")
        assert disk.open("logs/c/2").pread(0, 9) == b"two"
        disk.remove("logs/c/1")
        disk.remove("logs/c/1")
        assert disk.list("logs/c") == ["2"]
        disk.open("logs/c/2").close()
        disk.remove_tree("logs/c")
        disk.remove_tree("logs/c")
        assert disk.list("logs") == ["a"]

    disks.run(scenario)


def test_facts_are_durable_and_listed_in_order(disks: DiskKind) -> None:
    async def scenario() -> None:
        facts = disks.disk().facts
        assert facts.load() == {}
        await facts.commit({"b/2": b"two", "b/1": b"", "a%": b"\0\xff"})
        assert list(facts.load().items()) == [("a%", b"\0\xff"), ("b/1", b""), ("b/2", b"two")]
        assert list(facts.load("b/")) == ["b/1", "b/2"]
        await facts.commit({"b/1": None, "missing": None, "b/2": b"new"})
        await facts.commit({})
        assert disks.reopen().facts.load("b") == {"b/2": b"new"}

    disks.run(scenario)


def test_concurrent_commits_take_effect_in_the_order_of_the_calls(disks: DiskKind) -> None:
    async def scenario() -> None:
        facts = disks.disk().facts
        await asyncio.gather(*(facts.commit({"key": None if number % 2 else b"set"}) for number in range(20)))
        assert facts.load() == {}
        await asyncio.gather(*(facts.commit({"key": b"%d" % number}) for number in range(20)))
        assert facts.load() == {"key": b"19"}

    disks.run(scenario)


@pytest.mark.parametrize("disks", ["simulated"], indirect=True)  # no test cuts the power of a real disk
def test_flushed_data_survive_a_power_cut(disks: DiskKind) -> None:
    async def scenario() -> None:
        disk = disks.disk()
        disk.make_dir("logs")
        file = disk.open("logs/a", create=True)
        file.append(b"flushed")
        await disk.flush([file], ["", "logs"])
        file.append(b", not flushed")
        disk.open("logs/b", create=True).append(b"no name")
        await disk.facts.commit({"fact": b"1"})
        after = disks.cut()
        assert after is not None
        assert after.open("logs/a").pread(0, 100) == b"flushed"
        assert after.list("logs") == ["a"]
        assert after.facts.load() == {"fact": b"1"}

    disks.run(scenario)


def test_one_flush_covers_many_files(disks: DiskKind) -> None:
    async def scenario() -> None:
        disk = disks.disk()
        disk.make_dir("logs")
        files = [disk.open(f"logs/{number:02}", create=True) for number in range(40)]
        for file in files:
            file.append(b"x" * 100)
        await disk.flush(files, ["", "logs"])
        await disk.flush([], [])
        await disk.sync_dir("logs")
        after = disks.cut() or disks.reopen()
        assert [after.open(f"logs/{name}").size for name in after.list("logs")] == [100] * 40

    disks.run(scenario)


def test_data_is_read_and_written_outside_the_loop(disks: DiskKind) -> None:
    async def scenario() -> None:
        disk = disks.disk()
        disk.make_dir("logs")
        file = disk.open("logs/a", create=True)
        file.append(b"one ")
        await disk.write(file, b"two ")
        assert (file.append(b"three"), file.size) == (8, 13)
        assert (await disk.read(file, 4, 6), await disk.read(file, 8, 100)) == (b"two th", b"three")
        assert await disk.free_bytes() > 0
        await disk.flush([file], ["", "logs"])
        after = disks.cut() or disks.reopen()
        assert after.open("logs/a").pread(0, 100) == b"one two three"

    disks.run(scenario)


def test_a_flush_during_a_write_leaves_the_file_to_the_next_flush(disks: DiskKind) -> None:
    async def scenario() -> None:
        disk = disks.disk()
        disk.make_dir("logs")
        file = disk.open("logs/a", create=True)
        await asyncio.gather(disk.write(file, b"x" * 1_000_000), disk.flush([file], ["", "logs"]))
        assert file.size == 1_000_000
        await disk.flush([file])
        after = disks.cut() or disks.reopen()
        assert after.open("logs/a").size == 1_000_000

    disks.run(scenario)
