"""Bases of fake stores and state machines for tests that take no snapshots: a call of a snapshot method fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from quorum.core.types import LogEnd
from quorum.snapshots import Loader


class StoreWithoutSnapshots:
    """The snapshot methods of a `QuorumStore`."""

    async def begin_snapshot(self, end: LogEnd, *, resume: bool) -> NoReturn:
        raise AssertionError(f"a snapshot is begun at {end}")

    async def extend_snapshot(self, end: LogEnd, position: int, data: bytes) -> NoReturn:
        raise AssertionError(f"the snapshot at {end} is extended")

    async def finish_snapshot(self, end: LogEnd) -> NoReturn:
        raise AssertionError(f"the snapshot at {end} is finished")

    async def set_snapshot_aside(self, end: LogEnd) -> NoReturn:
        raise AssertionError(f"the snapshot at {end} is set aside")

    async def snapshots(self) -> NoReturn:
        raise AssertionError("the snapshots are listed")

    async def read_snapshot(self, end: LogEnd, position: int, max_bytes: int) -> NoReturn:
        raise AssertionError(f"the snapshot at {end} is read")

    async def delete_snapshot(self, end: LogEnd) -> NoReturn:
        raise AssertionError(f"the snapshot at {end} is deleted")


class MachineWithoutSnapshots:
    """The snapshot methods of a `StateMachine`."""

    def snapshot(self) -> Iterator[bytes]:
        raise AssertionError("a snapshot is taken")

    def loader(self, source: str) -> Loader:
        raise AssertionError(f"{source} is read")

    def load_snapshot(self, state: object) -> None:
        raise AssertionError("a snapshot is loaded")
