"""Applies committed batches to the state machine: in order, each batch once, in short turns on the loop."""

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
from quorumlog.runtime.turns import Turn

READ_MAX_BYTES = 1 << 20
"""Approximate maximum size of one read from the store."""

logger = get_logger("quorum")


class StateMachine(SnapshotMachine, Protocol):
    """The state machine that the metadata log feeds.  No method waits, and none may call `append`."""

    def apply(self, batch: Batch) -> None:
        """Apply a committed batch, data or control.  Batches arrive in order, each once per process."""

    def leadership(self, epoch: int, leader_id: int | None, is_leader: bool) -> None:
        """Note the leader, as far as this node knows it."""


class Applier:
    """Applies the committed batches of one node.

    offset: end offset of the applied records.  applying: true while the state machine applies a batch.
    changed: called after each batch and after each snapshot.
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
        """Note that everything below `offset` is committed and can be read back."""
        self._committed = offset
        self._wake.set()

    async def reached(self, offset: int) -> None:
        """Wait until everything below `offset` is applied.  The caller sets the deadline.

        Raises the error that was passed to `fail`.
        """
        if offset > self.offset:
            await self._waiters.wait(offset)

    def fail(self, error: Exception) -> None:
        """End every current wait with `error`, because the node stops and applies nothing more."""
        self._waiters.fail(error)

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            turn = Turn()
            while self.offset < self._committed:
                if self._is_behind_start():
                    self._install_snapshot()
                    continue
                batches = await self._disk.read(self.offset, self._committed, READ_MAX_BYTES)
                assert batches or self._is_behind_start(), f"nothing at {self.offset}, below {self._committed}"
                for batch in batches:
                    if self._is_behind_start():
                        # A snapshot moved the log's start during the read.  The batch is in the snapshot, or was
                        # never committed.
                        break
                    self._apply(batch)
                    await turn.passed()

    def _is_behind_start(self) -> bool:
        return self.offset < self._core.log.start

    def _install_snapshot(self) -> None:
        """Install the received snapshot, which replaces batches that the log no longer holds."""
        start = self._core.log.start
        self._snapshots.install(start)
        logger.info("snapshot loaded", node_id=self._core.key.node_id, before=self.offset, end_offset=start)
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
        """Return the part of the log that a snapshot taken now would replace, or None."""
        core, offset = self._core, self.offset
        epoch = core.log.base_epoch if offset == core.log.start > 0 else core.log.epoch_at(offset - 1)
        if epoch is None or core.history.record is None:
            return None
        voters, target = core.history.in_force_below(offset)
        return LogBase(LogEnd(epoch, offset), voters, target)
