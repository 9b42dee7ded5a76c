"""The simulated disk: the changes that it refuses after a failure, and the names that a power failure leaves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from quorumlog.runtime.disk import DiskError
from simulation.kernel.disk import SimulatedDisk
from tests.contract.conftest import run_simulated

CHANGES: dict[str, Callable[[SimulatedDisk], object]] = {
    "append": lambda disk: disk.open("a").append(b"x"),
    "truncate": lambda disk: disk.open("a").truncate(0),
    "create": lambda disk: disk.open("b", create=True),
    "make_dir": lambda disk: disk.make_dir("f"),
    "rename": lambda disk: disk.rename("a", "b"),
    "remove": lambda disk: disk.remove("a"),
    "remove_tree": lambda disk: disk.remove_tree("a"),
}


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: bytes(file.content) for path, file in disk._files.items()} | dict.fromkeys(disk._dirs, b"")


@pytest.mark.parametrize("change", CHANGES)
def test_a_disk_that_has_failed_refuses_every_change(change: str) -> None:
    """As `FileDisk` does, so that the simulated brokers meet the errors of all these calls."""
    disk = SimulatedDisk(Random(1))
    disk.open("a", create=True).append(b"a")
    before = contents(disk)

    async def fail() -> None:
        disk.fails = True
        with pytest.raises(DiskError):
            await disk.flush([disk.open("a")])

    run_simulated(fail)
    with pytest.raises(DiskError):
        CHANGES[change](disk)
    assert contents(disk) == before
    disk.repaired()
    CHANGES[change](disk)
    assert contents(disk) != before or change == "remove_tree"  # it removes only folders


@pytest.mark.parametrize("change", ["create", "make_dir", "rename"])
def test_a_full_disk_refuses_to_create_or_rename_files_and_folders(change: str) -> None:
    disk = SimulatedDisk(Random(1))
    disk.open("a", create=True)
    disk.full = True
    with pytest.raises(DiskError):
        CHANGES[change](disk)
    assert disk.is_broken


def test_a_power_failure_keeps_any_prefix_of_the_unsynced_changes_of_names() -> None:
    """A file system with a journal keeps them in their order, and a rename as a whole."""
    found = set()
    for seed in range(60):
        disk = SimulatedDisk(Random(seed), torn=True)

        async def prepare(disk: SimulatedDisk = disk) -> None:
            disk.open("a", create=True)
            await disk.sync_dir("")

        run_simulated(prepare)
        disk.rename("a", "b")
        disk.open("c", create=True)
        disk.remove("b")
        disk.crash()
        found.add("".join(disk.list("")))
    assert found == {"a", "b", "bc", "c"}


@pytest.mark.parametrize("synced", ["old", "new", "new/f"])
def test_a_rename_between_folders_is_durable_as_a_whole(synced: str) -> None:
    disk = SimulatedDisk(Random(1))

    async def change() -> None:
        for folder in ("old", "new", "old/f"):
            disk.make_dir(folder)
        disk.open("old/f/a", create=True)
        for folder in ("", "old", "new", "old/f"):
            await disk.sync_dir(folder)
        disk.rename("old/f", "new/f")
        await disk.sync_dir(synced)

    run_simulated(change)
    disk.crash()
    assert (disk.list("old"), disk.list("new"), disk.list("new/f")) == ([], ["f"], ["a"])


def test_a_power_failure_does_not_undo_a_synced_name() -> None:
    for seed in range(60):
        disk = SimulatedDisk(Random(seed), torn=True)

        async def change(disk: SimulatedDisk = disk) -> None:
            disk.make_dir("f")
            disk.open("f/a", create=True)
            disk.remove("f/a")
            disk.open("f/b", create=True)
            await disk.sync_dir("f")
            await disk.sync_dir("")
            disk.open("g", create=True)

        run_simulated(change)
        disk.crash()
        assert disk.list("f") == ["b"]
