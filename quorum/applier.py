"""The way of what is committed into the state machine: in order, each batch once, and never long at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from quorum.core.core import RaftCore
from quorum.core.types import Batch, LogBase, LogEnd
from quorum.log_disk import LogDisk
from quorum.snapshots import SnapshotMachine, Snapshotter
from quorum.waiters import OffsetWaiters
from quorumlog.runtime.logging import get_logger

READ_MAX_BYTES = 1 << 20
"""Read from the store at once."""
APPLY_SLICE_S = 0.010
"""How long batches are applied before others get their turn."""

_log = get_logger("quorum")


class StateMachine(SnapshotMachine, Protocol):
    """What the metadata log is for.  No method waits, and none may call `append`."""

    def apply(self, batch: Batch) -> None:
        """A committed batch, data or control; in order, each once per process."""

    def leadership(self, epoch: int, leader_id: int | None, leader_address: str | None, is_leader: bool) -> None:
        """Who leads, as far as this node knows."""


class Applier:
    """Of one node.  offset: end of what is applied.  changed: called after each batch, and each snapshot.

    applying: while the state machine has its turn.
    """

    def __init__(
        self,
        core: RaftCore,
        disk: LogDisk,
        machine: StateMachine,
        snapshots: Snapshotter,
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._disk = disk
        self._machine = machine
        self._snapshots = snapshots
        self._changed = changed
        self._committed = 0
        self._wake = asyncio.Event()
        self._waiters = OffsetWaiters()
        self.offset = snapshots.restored_end
        self.applying = False

    def advance(self, offset: int) -> None:
        """All below `offset` is committed, and can be read back."""
        self._committed = offset
        self._wake.set()

    async def reached(self, offset: int) -> None:
        """Wait until everything below `offset` is applied.  The caller sets the deadline; `fail` raises here."""
        if offset > self.offset:
            await self._waiters.wait(offset)

    def fail(self, error: Exception) -> None:
        """The node stops: nothing more is applied."""
        self._waiters.fail(error)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            began = loop.time()
            while self.offset < self._committed:
                if self._is_behind_start():
                    self._install_snapshot()
                    continue
                batches = await self._disk.read(self.offset, self._committed, READ_MAX_BYTES)
                assert batches or self._is_behind_start(), f"nothing at {self.offset}, below {self._committed}"
                for batch in batches:
                    if self._is_behind_start():
                        break  # the log began anew while this was read: it is in the snapshot, or never was committed
                    self._apply(batch)
                    if loop.time() - began >= APPLY_SLICE_S:
                        await asyncio.sleep(0)
                        began = loop.time()

    def _is_behind_start(self) -> bool:
        return self.offset < self._core.log.start

    def _install_snapshot(self) -> None:
        """Go on from the snapshot that was received, in place of the batches that the log does not hold any more."""
        start = self._core.log.start
        self._snapshots.install(start)
        _log.info("snapshot loaded", node_id=self._core.key.node_id, before=self.offset, end_offset=start)
        self._move_to(start)

    def _apply(self, batch: Batch) -> None:
        assert batch.base_offset == self.offset, f"batch at {batch.base_offset}, applied {self.offset}"
        assert batch.end_offset <= self._committed, f"{batch.end_offset} is above {self._committed}"
        self.applying = True
        try:
            self._machine.apply(batch)
        finally:
            self.applying = False
        self._snapshots.applied(batch)
        self._move_to(batch.end_offset)

    def _move_to(self, offset: int) -> None:
        self.offset = offset
        self._waiters.complete(offset)
        self._changed()

    def snapshot_base(self) -> LogBase | None:
        """What a snapshot of what is applied by now stands for; None when there is nothing."""
        core, offset = self._core, self.offset
        epoch = core.log.base_epoch if offset == core.log.start > 0 else core.log.epoch_at(offset - 1)
        if epoch is None or core.history.record is None:
            return None
        voters, target = core.history.in_force_below(offset)
        return LogBase(LogEnd(epoch, offset), voters, target)
