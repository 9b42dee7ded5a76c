"""Moves logs between the data directories of a broker, while they are read and written.

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
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import NamedTuple
from uuid import UUID

from broker.core.throttle import Throttle
from broker.log.checkpoints import Checkpoints
from broker.log.copying import FLUSH_BYTES, PIECE, LogCopy
from broker.log.directory import LogDirectory
from broker.log.events import LogEvents
from broker.log.move_facts import (
    FoundMove,
    FutureFact,
    MoveFact,
    UndoneMove,
    copied_fact,
    encode_fact,
    facts_after,
    finish_future,
    found_moves,
    future_fact,
    moving_fact,
    undone_fact,
    undone_moves,
)
from broker.log.partition_log import PartitionLog
from broker.log.state import LogState, encode_state, folder_fact, state_fact, watermark_fact
from broker.log.strays import StrayState
from broker.log.types import LogKey
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger

NEARLY_DONE = PIECE
"""Missing bytes that are few enough to be copied without waiting, on the event loop."""
HELD_BYTES_MAX = FLUSH_BYTES
"""Missing bytes at which a move may be decided.  They are copied while acknowledgements wait."""
HOLD_S = 5.0
"""Time that acknowledgements wait for the target before the decision.  After this time, the move is put off."""
RETRY_S = 1.0
"""Time before a move that was put off is tried again."""
TRIES_MAX = 10
"""After this number of tries, the other moves come first, and the copy starts over."""
SPARE_BYTES = 64 << 20
"""Bytes that a move leaves free in the target's file system.  A move that needs more is given up: a full file system
would take all replicas of the target offline."""
THROTTLE_LOOK_S = 1.0
"""Interval at which a move that waits because of the rate limit checks whether the limit has changed."""

logger = get_logger("log")


class FutureLog(NamedTuple):
    """A log that is moving.  size, end_offset: the size and the end of its copy in the directory."""

    key: LogKey
    directory_id: UUID
    size: int
    end_offset: int


class _Prepared(NamedTuple):
    """A complete copy.

    move: see `UndoneMove`.  decided_ms: wall time.  fact: the target's fact about the copy.
    """

    move: str
    decided_ms: int
    state: LogState
    watermark: int
    folder_fact: bytes
    fact: FutureFact


class LogMoves:
    """The moves of all logs of a broker, one at a time.  `run` is their task.

    copied_bytes: bytes of segments that were copied, including those of moves that ended early.
    finished: number of moves that reached their target.
    failed: number of moves that did not, except moves that ended because of a request or because the log was deleted.
    """

    def __init__(
        self,
        directories: Mapping[UUID, LogDirectory],
        logs: Mapping[LogKey, PartitionLog],
        checkpoints: Checkpoints,
        events: LogEvents,
        take_offline: Callable[[LogKey, CorruptStoreError], None],
    ) -> None:
        self._directories = directories
        self._logs = logs
        self._checkpoints = checkpoints
        self._events = events
        self._take_offline = take_offline
        self._targets: dict[LogKey, UUID] = {}  # in the order of the moves
        self._copy: LogCopy | None = None
        self._changing = asyncio.Lock()  # guards the facts about moves
        self._deciding: asyncio.Task[bool] | None = None
        self._news = asyncio.Event()
        self._throttle = Throttle()
        self._wall_ms: Callable[[], int]  # set by `run`
        self.copied_bytes = 0
        self.finished = 0
        self.failed = 0

    # -- requests

    @property
    def targets(self) -> Mapping[LogKey, UUID]:
        """The directories to which logs are moving or waiting to move."""
        return self._targets

    def futures(self) -> list[FutureLog]:
        """Return the moves that have been requested and have not ended."""
        found = []
        for key, target in self._targets.items():
            if (log := self._logs.get(key)) is None:
                continue
            copy = self._copy
            if copy is not None and copy.log is log:
                found.append(FutureLog(key, target, copy.size, min(copy.end_offset, log.end_offset)))
            else:
                found.append(FutureLog(key, target, 0, log.start_offset))
        return found

    def left_bytes(self) -> int:
        """Return the bytes of segments that the requested moves still have to copy."""
        return sum(max(0, self._logs[future.key].size - future.size) for future in self.futures())

    def set_rate(self, rate: int) -> None:
        """Copy at most `rate` bytes per second; a negative rate means no limit."""
        self._throttle.set_rate(rate, asyncio.get_running_loop().time())

    async def request(self, targets: Mapping[LogKey, UUID]) -> None:
        """Move these logs to these directories, in place of earlier requests; durable on return.

        If the target is the log's current directory, the move of the log ends.  A log that does not exist is left out.

        Raises:
            DiskError: a directory failed; the moves of logs in other directories are requested nevertheless.
        """
        failure: DiskError | None = None
        async with self._changing:
            changes: dict[UUID, dict[str, bytes | None]] = {}
            wanted: dict[LogKey, UUID] = {}
            for key, target in targets.items():
                log = self._logs.get(key)
                if log is None or self._targets.get(key) == target:
                    continue
                self._targets.pop(key, None)  # ends the copy in progress
                is_move = target != log.directory_id  # else delete the fact, even if its target has failed
                fact = encode_fact(MoveFact(target)) if is_move else None
                changes.setdefault(log.directory_id, {})[moving_fact(log.folder_name)] = fact
                if is_move:
                    wanted[key] = target
            for directory_id, facts in changes.items():
                directory = self._directories[directory_id]
                try:
                    with directory.reported():
                        await directory.disk.facts.commit(facts)
                except DiskError as error:
                    failure = error
            self._targets.update((key, target) for key, target in wanted.items() if key in self._logs)
        self._news.set()
        if failure is not None:
            raise failure

    # -- start and stop

    async def resume(self) -> None:
        """Continue the moves that a stop interrupted; delete the facts of moves that are finished or not possible.

        Raises: CorruptStoreError: a fact is damaged.
        """
        for directory in self._directories.values():
            if directory.failure is not None:
                continue
            changes: dict[str, bytes | None] = {}
            for undone in undone_moves(directory.disk):
                target = self._directories.get(undone.target)
                if target is not None and target.failure is None:  # its copy has been set aside
                    changes[undone_fact(undone.move)] = None
            for move in found_moves(directory.disk):
                target = self._directories.get(move.fact.target)
                if target is not None and target.failure is not None:
                    continue  # the next start with that directory continues
                log = self._logs.get(move.key)
                if move.fact.is_decided:
                    changes.update(facts_after(move))
                elif target is None or log is None or log.directory_id != directory.id:
                    changes[moving_fact(move.folder)] = None
                else:
                    self._targets[move.key] = target.id
            if not changes:
                continue
            try:
                with directory.reported():
                    await directory.disk.facts.commit(changes)
            except DiskError:
                continue
        if self._targets:
            self._news.set()

    async def close(self) -> None:
        """Wait until a decision has ended, after `run` was cancelled.  The caller sets the deadline."""
        if self._deciding is not None:
            await asyncio.wait([self._deciding])
            try:
                self._deciding.result()
            except (CorruptStoreError, DiskError) as error:
                logger.warning("move of a replica ends", cause=str(error))

    async def run(self, wall_ms: Callable[[], int]) -> None:
        """Move the logs, one after the other, until cancelled."""
        self._wall_ms = wall_ms
        while True:
            self._news.clear()
            if (chosen := self._next()) is None:
                await self._news.wait()
                continue
            await self._move(*chosen)

    def _next(self) -> tuple[PartitionLog, LogDirectory] | None:
        """Return the first log that can be moved, and its target.

        Forget moves of missing logs, and moves from or to failed directories.
        """
        for key, target_id in list(self._targets.items()):
            log, target = self._logs.get(key), self._directories[target_id]
            if log is not None and target.failure is None and self._directories[log.directory_id].failure is None:
                return log, target
            del self._targets[key]
            self.failed += log is not None  # else the log was deleted, or taken offline by its own move
        return None

    # -- one move

    async def _move(self, log: PartitionLog, target: LogDirectory) -> None:
        source = self._directories[log.directory_id]
        copy = self._copy = LogCopy(log, source, target)
        logger.info("move of a replica begins", folder=log.folder, source=source.id, target=target.id, bytes=log.size)
        is_decided = is_damaged = False
        try:
            is_decided = await self._copy_and_decide(copy)
        except CorruptStoreError as error:
            is_damaged = True
            if self._logs.get(log.key) is log:
                self._take_offline(log.key, error)
        except DiskError as error:
            logger.warning("move of a replica ends", folder=log.folder, target=target.id, cause=str(error))
        finally:
            if self._deciding is None or self._deciding.done():  # else `run` was cancelled, and `close` waits
                self._copy = None
        has_failed = is_damaged or source.failure is not None or target.failure is not None
        if (is_decided or has_failed) and self._targets.get(log.key) == target.id:
            del self._targets[log.key]
        is_moved = is_decided and log.directory_id == target.id
        self.failed += not is_moved and (has_failed or copy.is_given_up)
        if is_moved:
            logger.info("replica moved", folder=log.folder, source=source.id, target=target.id)
        elif is_decided and source.failure is not None:
            logger.warning(
                "replica offline: its source failed after the move was decided; the next start uses the target",
                folder=log.folder,
                source=source.id,
                target=target.id,
            )
        elif target.failure is None and not copy.may_be_decided:
            try:
                await copy.discard()
            except DiskError as error:
                logger.error("copy of a replica not deleted", folder=log.folder, cause=str(error))

    async def _copy_and_decide(self, copy: LogCopy) -> bool:
        """Copy the log and decide the move; return whether it is decided.

        Raises: CorruptStoreError, DiskError.
        """
        if not await copy.begin():
            await self._give_up(copy, "the target has another folder of this name, which must be deleted first")
            return False
        for _ in range(TRIES_MAX):
            if not await self._has_room(copy):
                await self._give_up(copy, "the file system does not have enough space")
                return False
            await self._copy_most(copy)
            if not self._goes_on(copy):
                return False
            await self._checkpoints.write(copy.source, [copy.log])  # writes indexes and a producer snapshot to copy
            await copy.copy_state()
            await copy.flush()
            await self._copy_most(copy)
            self._deciding = asyncio.get_running_loop().create_task(self._decide(copy))
            is_decided = await asyncio.shield(self._deciding)
            self._deciding = None
            if is_decided:
                return True
            if not self._goes_on(copy):
                return False
            await asyncio.sleep(RETRY_S)
        if (target := self._targets.pop(copy.log.key, None)) is not None:
            self._targets[copy.log.key] = target  # behind the other moves
        return False

    def _goes_on(self, copy: LogCopy) -> bool:
        """Return whether the move is still wanted and possible."""
        key = copy.log.key
        is_wanted = self._targets.get(key) == copy.target.id and self._logs.get(key) is copy.log
        return is_wanted and copy.source.failure is None and copy.target.failure is None

    async def _has_room(self, copy: LogCopy) -> bool:
        with copy.target.reported():
            return await copy.target.disk.free_bytes() >= copy.missing + SPARE_BYTES

    async def _give_up(self, copy: LogCopy, why: str) -> None:
        """Forget a move that is not possible now."""
        logger.error("replica not moved", folder=copy.log.folder, target=copy.target.id, cause=why)
        async with self._changing:
            if self._goes_on(copy):
                del self._targets[copy.log.key]
                copy.is_given_up = True
                with copy.source.reported():
                    await copy.source.disk.facts.commit({moving_fact(copy.folder): None})

    async def _copy_most(self, copy: LogCopy) -> None:
        """Copy everything that exists now, and continue until little is missing or the move ends."""
        ends = copy.ends()
        while self._goes_on(copy):
            before = copy.size
            if not await copy.step(ends):
                if copy.missing <= NEARLY_DONE:
                    return
                ends = copy.ends()
            if copy.unflushed_bytes >= FLUSH_BYTES:
                await copy.flush()
                if copy.missing > NEARLY_DONE and not await self._has_room(copy):
                    await self._give_up(copy, "the file system does not have enough space")
                    return
            copied = max(0, copy.size - before)
            self.copied_bytes += copied
            await self._spend(copy, copied)

    async def _spend(self, copy: LogCopy, size: int) -> None:
        """Wait as long as the rate limit demands after `size` bytes."""
        loop = asyncio.get_running_loop()
        self._throttle.spend(size, loop.time())
        while self._goes_on(copy):
            wait_s = self._throttle.wait_s(loop.time())
            if wait_s == 0.0:
                return
            await asyncio.sleep(THROTTLE_LOOK_S if wait_s is None else min(wait_s, THROTTLE_LOOK_S))

    # -- the decision

    async def _decide(self, copy: LogCopy) -> bool:
        """Decide the move and finish it; return whether it is decided.

        Raises: CorruptStoreError, DiskError.
        """
        log = copy.log
        async with AsyncExitStack() as guards:
            await guards.enter_async_context(self._changing)
            for directory in sorted((copy.source, copy.target), key=lambda each: each.id):
                await guards.enter_async_context(directory.changing)
            if not self._goes_on(copy) or log.durability.is_truncating or copy.missing > HELD_BYTES_MAX:
                return False
            log.durability.hold()
            try:
                if (prepared := await self._prepare(copy, self._wall_ms())) is None:
                    return False
                facts: dict[str, bytes | None] = {}
                stray = await copy.source.strays.plan(copy.folder, copy.target.id, prepared.decided_ms, facts)
                facts[moving_fact(copy.folder)] = encode_fact(MoveFact(copy.target.id, is_decided=True))
                copy.may_be_decided = True
                with copy.source.reported():
                    await copy.source.disk.facts.commit(facts)
                return await self._finish(copy, prepared, stray)
            finally:
                if not copy.may_be_decided:
                    log.durability.release()

    async def _prepare(self, copy: LogCopy, now_ms: int) -> _Prepared | None:
        """Complete the copy up to the current end, and make it durable.  None: the move ends, or is put off."""
        log, target = copy.log, copy.target
        state = log.upkeep.state_after_move(copy.source.id, target.id)
        watermark = min(log.high_watermark, log.marks.durable_offset)
        fact = log.durability.wanted_fact()
        ends = copy.ends()
        # A move that was undone does not go to this target again before a start has set the copy aside.  So an earlier
        # move of this log to this target differs in its source or in the log's end.
        move = f"{copy.source.id}/{target.id}/{copy.folder}/{log.end_offset}/{now_ms}"
        facts = {
            copied_fact(copy.folder): move.encode(),
            state_fact(copy.folder): encode_state(state),
            folder_fact(copy.folder): fact,
            watermark_fact(log.key): b"%d" % watermark,
        }
        prepared = _Prepared(move, now_ms, state, watermark, fact, FutureFact(copy.source.id, facts))
        try:
            async with asyncio.timeout(HOLD_S):
                while await copy.step(ends):
                    if not self._goes_on(copy):
                        return None
                await copy.copy_state()
                await copy.flush()
                with target.reported():
                    await target.disk.facts.commit({future_fact(copy.folder): encode_fact(prepared.fact)})
        except TimeoutError:
            logger.warning("move of a replica put off: the target is slow", folder=log.folder, target=target.id)
            return None
        return prepared if self._goes_on(copy) else None

    async def _finish(self, copy: LogCopy, prepared: _Prepared, stray: dict[str, StrayState]) -> bool:
        """Use the target from now on, after the decision.  Return False if the decision was undone.

        If the log is offline by now, the next start finds it in the target.
        """
        log, source, target = copy.log, copy.source, copy.target
        try:
            with target.reported():
                await finish_future(target.disk, copy.folder, prepared.fact)
            copy.renamed()
            while copy.missing > NEARLY_DONE and self._goes_on(copy):
                await copy.step(copy.ends())
            if self._logs.get(log.key) is not log or source.failure is not None:
                return True
            unflushed = copy.copy_rest()
        except DiskError:
            if target.failure is None:
                return True
            await self._take_back(copy, prepared, stray)
            return False
        source.flush.forget(log.durability)
        log.durability.mark_dirty = target.flush.mark
        log.move_to(target.disk, prepared.state, prepared.watermark, prepared.folder_fact, unflushed)
        del self._targets[log.key]
        self.finished += 1
        await self._clean_up(copy, stray)
        self._events.log_moved(log.key)
        return True

    async def _take_back(self, copy: LogCopy, prepared: _Prepared, stray: dict[str, StrayState]) -> None:
        """Undo the decision, because the target has failed.  The source still has every record."""
        log, source = copy.log, copy.source
        facts = source.strays.give_up(stray)
        facts[moving_fact(copy.folder)] = encode_fact(MoveFact(copy.target.id))
        undone = UndoneMove(prepared.move, copy.folder, copy.target.id, prepared.decided_ms)
        facts[undone_fact(undone.move)] = encode_fact(undone)  # the target may have its facts of the log already
        facts[state_fact(copy.folder)] = encode_state(log.upkeep.take_state())
        facts[folder_fact(copy.folder)] = log.durability.folder_fact
        facts[watermark_fact(log.key)] = b"%d" % log.marks.take_watermark()
        log.marks.is_changed = True
        with source.reported():
            await source.disk.facts.commit(facts)
        copy.may_be_decided = False

    async def _clean_up(self, copy: LogCopy, stray: dict[str, StrayState]) -> None:
        """Set the source's folder aside.  If that fails, the source is offline, and the next start does the rest."""
        source = copy.source
        move = FoundMove(copy.log.key, copy.folder, MoveFact(copy.target.id, is_decided=True))
        try:
            with source.reported():
                await source.strays.finish(stray)
                await source.disk.facts.commit(facts_after(move))
        except DiskError as error:
            logger.error("moved replica not set aside", folder=copy.folder, source=source.id, cause=str(error))
