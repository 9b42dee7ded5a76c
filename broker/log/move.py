"""Moves one log to another data directory, while the log is read and written.

`move_facts` lists the steps of a move, and which copy counts after a crash.  A move copies the log in pieces, at a
limited rate, until little is missing.  Then the move is decided in these steps.  Meanwhile the guards of both
directories are held, so that the log is not truncated or compacted, and no segment is deleted.

- `Durability.hold`: the log continues, but flushes do not count any more.  So a record that is durable only in the
  source is not acknowledged.
- The rest up to the current end is copied, and the copy is made durable.
- The source records the decision.
- The records appended meanwhile are copied without waiting.  In the same turn of the event loop the log begins to use
  the target (`PartitionLog.move_to`).  These records may be acknowledged after the next flush of the target.

Appends and reads never wait for a move.  Only acknowledgements wait, for a few flushes.  Before the decision, a target
that fails ends the move, and one that hangs delays it.  If the target fails between the decision and the last step, the
source records that the move is undecided again: the source still has every record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from broker.core.throttle import Throttle
from broker.log.checkpoints import Checkpoints
from broker.log.copying import FLUSH_BYTES, PIECE, LogCopy
from broker.log.directory import LogDirectory
from broker.log.move_facts import (
    FutureFact,
    MoveFact,
    UndoneMove,
    copied_fact,
    encode_fact,
    facts_after,
    finish_future,
    future_fact,
    moving_fact,
    undone_fact,
)
from broker.log.partition_log import PartitionLog
from broker.log.state import LogState, encode_state, folder_fact, state_fact, watermark_fact
from broker.log.strays import StrayState
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger

NEARLY_DONE = PIECE
"""Missing bytes that are few enough to be copied without waiting, on the event loop."""
HELD_BYTES_MAX = FLUSH_BYTES
"""Missing bytes at which a move may be decided.  They are copied while acknowledgements wait."""
HOLD_S = 5.0
"""Time that acknowledgements wait for the target before the decision.  After this time, the move is put off."""
SPARE_BYTES = 64 << 20
"""Bytes that a move leaves free in the target's file system.  A move that needs more is given up: a full file system
would take all replicas of the target offline."""
THROTTLE_LOOK_S = 1.0
"""Interval at which a move that waits because of the rate limit checks whether the limit has changed."""

logger = get_logger("log")


class _Prepared(NamedTuple):
    """A complete copy.

    fact: the target's fact about the copy.  undone: the source's fact if the decision is undone.
    """

    state: LogState
    watermark: int
    folder_fact: bytes
    fact: FutureFact
    undone: UndoneMove


class LogMove:
    """The move of one log from its directory, the source, to another one, the target.

    `LogMoves` calls `begin`, then `copy_most` and `decide` until the move is decided or ends, then `clean_up` or
    `discard`.  The steps up to `decide` report a failed directory and raise DiskError, or CorruptStoreError if the log
    is damaged.

    is_wanted: returns whether the log still exists, and is still to be moved to this target.
    copied_bytes: bytes of segments that were copied, including those that were copied again.
    obstacle: why the move is not possible now, so that it ends.
    may_be_decided: the source may have recorded that the copy counts.
    """

    def __init__(
        self,
        log: PartitionLog,
        source: LogDirectory,
        target: LogDirectory,
        is_wanted: Callable[[], bool],
        checkpoints: Checkpoints,
        throttle: Throttle,
    ) -> None:
        self.log = log
        self.source = source
        self.target = target
        self.is_wanted = is_wanted
        self.copy = LogCopy(log, source, target)
        self.copied_bytes = 0
        self.obstacle: str | None = None
        self.may_be_decided = False
        self._checkpoints = checkpoints
        self._throttle = throttle
        self._folder = log.folder_name
        self._stray: dict[str, StrayState] = {}  # the source's folder, from the decision on

    def goes_on(self) -> bool:
        """Return whether the move is still wanted and possible."""
        return self.obstacle is None and self.is_wanted() and not self.directory_failed()

    def directory_failed(self) -> bool:
        """Return whether one of the two directories is offline."""
        return self.source.failure is not None or self.target.failure is not None

    def is_moved(self) -> bool:
        """Return whether the log uses the target."""
        return self.log.directory_id == self.target.id

    # -- before the decision

    async def begin(self) -> bool:
        """Create an empty copy; return False if that is not possible."""
        if not await self.copy.begin():
            self.obstacle = "the target has another folder of this name, which must be deleted first"
        return self.obstacle is None

    async def copy_most(self) -> bool:
        """Copy and flush the log, until little is missing.  Return False if the move does not go on."""
        if not await self._has_room():
            return False
        await self._copy_segments()
        if not self.goes_on():
            return False
        await self._checkpoints.write(self.source, [self.log])  # writes indexes and a producer snapshot to copy
        await self.copy.copy_state()
        await self.copy.flush()
        await self._copy_segments()
        return True

    async def _has_room(self) -> bool:
        with self.target.reported():
            has_room = await self.target.disk.free_bytes() >= self.copy.missing + SPARE_BYTES
        if not has_room:
            self.obstacle = "the file system does not have enough space"
        return has_room

    async def _copy_segments(self) -> None:
        """Copy everything that exists now, and continue until little is missing or the move ends."""
        copy = self.copy
        ends = copy.ends()
        while self.goes_on():
            before = copy.size
            if not await copy.step(ends):
                if copy.missing <= NEARLY_DONE:
                    return
                ends = copy.ends()
            if copy.unflushed_bytes >= FLUSH_BYTES:
                await copy.flush()
                if copy.missing > NEARLY_DONE and not await self._has_room():
                    return
            copied = max(0, copy.size - before)
            self.copied_bytes += copied
            await self._spend(copied)

    async def _spend(self, size: int) -> None:
        """Wait as long as the rate limit demands after `size` bytes."""
        loop = asyncio.get_running_loop()
        self._throttle.spend(size, loop.time())
        while self.goes_on():
            wait_s = self._throttle.wait_s(loop.time())
            if wait_s == 0.0:
                return
            await asyncio.sleep(THROTTLE_LOOK_S if wait_s is None else min(wait_s, THROTTLE_LOOK_S))

    # -- the decision

    async def decide(self, now_ms: int) -> bool:
        """Decide the move, and let the log use the target; return False if the move ends, or is put off.

        The caller holds the guards of both directories until `clean_up` has ended.  If the log is offline by then, it
        stays in the source, and the next start finds it in the target.

        now_ms: wall time.
        """
        durability = self.log.durability
        if not self.goes_on() or durability.is_truncating or self.copy.missing > HELD_BYTES_MAX:
            return False
        durability.hold()
        try:
            if (prepared := await self._prepare(now_ms)) is None:
                return False
            await self._record(now_ms)
            return await self._finish(prepared)
        finally:
            if not self.may_be_decided:
                durability.release()

    async def _prepare(self, now_ms: int) -> _Prepared | None:
        """Complete the copy up to the current end, and make it durable.  None: the move ends, or is put off."""
        log, copy, folder = self.log, self.copy, self._folder
        state = log.upkeep.state_after_move(self.source.id, self.target.id)
        watermark = min(log.high_watermark, log.marks.durable_offset)
        fact = log.durability.wanted_fact()
        ends = copy.ends()
        # A move that was undone does not go to this target again before a start has set the copy aside.  So an earlier
        # move of this log to this target differs in its source or in the log's end.
        move = f"{self.source.id}/{self.target.id}/{folder}/{log.end_offset}/{now_ms}"
        facts = {
            copied_fact(folder): move.encode(),
            state_fact(folder): encode_state(state),
            folder_fact(folder): fact,
            watermark_fact(log.key): b"%d" % watermark,
        }
        undone = UndoneMove(move, folder, self.target.id, now_ms)
        prepared = _Prepared(state, watermark, fact, FutureFact(self.source.id, facts), undone)
        try:
            async with asyncio.timeout(HOLD_S):
                while await copy.step(ends):
                    if not self.goes_on():
                        return None
                await copy.copy_state()
                await copy.flush()
                with self.target.reported():
                    await self.target.disk.facts.commit({future_fact(folder): encode_fact(prepared.fact)})
        except TimeoutError:
            logger.warning("move of a replica put off: the target is slow", folder=log.folder, target=self.target.id)
            return None
        return prepared if self.goes_on() else None

    async def _record(self, now_ms: int) -> None:
        """Record the decision in the source."""
        facts: dict[str, bytes | None] = {}
        self._stray = await self.source.strays.plan(self._folder, self.target.id, now_ms, facts)
        facts[moving_fact(self._folder)] = encode_fact(MoveFact(self.target.id, is_decided=True))
        self.may_be_decided = True
        with self.source.reported():
            await self.source.disk.facts.commit(facts)

    async def _finish(self, prepared: _Prepared) -> bool:
        """Let the log use the target, after the decision.  Return False if the decision was undone."""
        log, copy, target = self.log, self.copy, self.target
        try:
            with target.reported():
                await finish_future(target.disk, self._folder, prepared.fact)
            copy.renamed()
            while copy.missing > NEARLY_DONE and self.goes_on():
                await copy.step(copy.ends())
            if not self.is_wanted() or self.source.failure is not None:
                return True
            unflushed = copy.copy_rest()
        except DiskError:
            if target.failure is None:
                return True
            await self._take_back(prepared.undone)
            return False
        self.source.flush.forget(log.durability)
        log.durability.mark_dirty = target.flush.mark
        log.move_to(target.disk, prepared.state, prepared.watermark, prepared.folder_fact, unflushed)
        return True

    async def _take_back(self, undone: UndoneMove) -> None:
        """Undo the decision, because the target has failed.  The source still has every record."""
        log, source, folder = self.log, self.source, self._folder
        facts = source.strays.give_up(self._stray)
        facts[moving_fact(folder)] = encode_fact(MoveFact(self.target.id))
        facts[undone_fact(undone.move)] = encode_fact(undone)  # the target may have its facts of the log already
        facts[state_fact(folder)] = encode_state(log.upkeep.take_state())
        facts[folder_fact(folder)] = log.durability.folder_fact
        facts[watermark_fact(log.key)] = b"%d" % log.marks.take_watermark()
        log.marks.is_changed = True
        with source.reported():
            await source.disk.facts.commit(facts)
        self.may_be_decided = False

    # -- the end

    async def clean_up(self) -> None:
        """Set the source's folder aside.  If that fails, the source is offline, and the next start does the rest."""
        source = self.source
        try:
            with source.reported():
                await source.strays.finish(self._stray)
                await source.disk.facts.commit(facts_after(self.log.key, self._folder))
        except DiskError as error:
            logger.error("moved replica not set aside", folder=self._folder, source=source.id, cause=str(error))

    async def discard(self) -> None:
        """Delete the copy of a move that was not decided."""
        try:
            await self.copy.discard()
        except DiskError as error:
            logger.error("copy of a replica not deleted", folder=self.log.folder, cause=str(error))
