"""The moves of logs to other data directories: requests, their order, and their continuation after a start.

A request is durable: the fact `moving/<folder>` of the source names the target (`move_facts`).  `LogMove` has the steps
of a move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from broker.core.throttle import Throttle
from broker.log.checkpoints import Checkpoints
from broker.log.directory import LogDirectory
from broker.log.events import LogEvents
from broker.log.move import LogMove
from broker.log.move_facts import (
    MoveFact,
    encode_fact,
    facts_after,
    found_moves,
    moving_fact,
    undone_fact,
    undone_moves,
)
from broker.log.partition_log import PartitionLog
from broker.log.types import LogKey
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger

RETRY_S = 1.0
"""Time before a move that was put off is tried again."""
TRIES_MAX = 10
"""After this number of tries, the other moves come first, and the copy starts over."""

logger = get_logger("log")


class FutureLog(NamedTuple):
    """A log that is moving.  size, end_offset: the size and the end of its copy in the directory."""

    key: LogKey
    directory_id: UUID
    size: int
    end_offset: int


class LogMoves:
    """The moves of all logs of a broker, one at a time.  `run` is their task.

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
        self._move: LogMove | None = None
        self._changing = asyncio.Lock()  # guards the facts about moves
        self._deciding: asyncio.Task[bool] | None = None
        self._news = asyncio.Event()
        self._throttle = Throttle()
        self._wall_ms: Callable[[], int]  # set by `run`
        self._copied_bytes = 0  # of moves that have ended
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
            if (move := self._move) is not None and move.log is log:
                found.append(FutureLog(key, target, move.copy.size, min(move.copy.end_offset, log.end_offset)))
            else:
                found.append(FutureLog(key, target, 0, log.start_offset))
        return found

    @property
    def copied_bytes(self) -> int:
        """Bytes of segments that were copied, including those of moves that ended early."""
        return self._copied_bytes + (0 if self._move is None else self._move.copied_bytes)

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
                fact = None  # deletes the fact, even if its target has failed
                if target != log.directory_id:
                    wanted[key], fact = target, encode_fact(MoveFact(target))
                changes.setdefault(log.directory_id, {})[moving_fact(log.folder_name)] = fact
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
            if directory.failure is None and (changes := self._resume_from(directory)):
                with suppress(DiskError), directory.reported():
                    await directory.disk.facts.commit(changes)
        if self._targets:
            self._news.set()

    def _resume_from(self, source: LogDirectory) -> dict[str, bytes | None]:
        """Continue the moves from this directory; return the facts to change."""
        changes: dict[str, bytes | None] = {}
        for undone in undone_moves(source.disk):
            target = self._directories.get(undone.target)
            if target is not None and target.failure is None:  # its copy has been set aside
                changes[undone_fact(undone.move)] = None
        for move in found_moves(source.disk):
            target = self._directories.get(move.fact.target)
            if target is not None and target.failure is not None:
                continue  # the next start with that directory continues
            log = self._logs.get(move.key)
            if move.fact.is_decided:
                changes.update(facts_after(move.key, move.folder))
            elif target is None or log is None or log.directory_id != source.id:
                changes[moving_fact(move.folder)] = None
            else:
                self._targets[move.key] = target.id
        return changes

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
            await self._run_move(*chosen)

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

    async def _run_move(self, log: PartitionLog, target: LogDirectory) -> None:
        source = self._directories[log.directory_id]

        def is_wanted() -> bool:
            return self._targets.get(log.key) == target.id and self._logs.get(log.key) is log

        move = self._move = LogMove(log, source, target, is_wanted, self._checkpoints, self._throttle)
        logger.info("move of a replica begins", folder=log.folder, source=source.id, target=target.id, bytes=log.size)
        is_decided = has_failed = False
        try:
            is_decided = await self._copy_and_decide(move)
            has_failed = move.obstacle is not None and await self._give_up(move)
        except CorruptStoreError as error:
            has_failed = True
            if self._logs.get(log.key) is log:
                self._take_offline(log.key, error)
        except DiskError as error:
            logger.warning("move of a replica ends", folder=log.folder, target=target.id, cause=str(error))
        finally:
            if self._deciding is None or self._deciding.done():  # else `run` was cancelled, and `close` waits
                self._move = None
                self._copied_bytes += move.copied_bytes
        has_failed = has_failed or move.directory_failed()
        if (is_decided or has_failed) and self._targets.get(log.key) == target.id:
            del self._targets[log.key]
        self.failed += has_failed and not move.is_moved()
        if move.is_moved():
            logger.info("replica moved", folder=log.folder, source=source.id, target=target.id)
        elif is_decided and source.failure is not None:
            logger.warning(
                "replica offline: its source failed after the move was decided; the next start uses the target",
                folder=log.folder,
                source=source.id,
                target=target.id,
            )
        elif target.failure is None and not move.may_be_decided:
            await move.discard()

    async def _copy_and_decide(self, move: LogMove) -> bool:
        """Copy the log and decide the move; return whether it is decided.

        Raises: CorruptStoreError, DiskError.
        """
        if not await move.begin():
            return False
        for _ in range(TRIES_MAX):
            if not await move.copy_most():
                return False
            self._deciding = asyncio.get_running_loop().create_task(self._decide(move))
            is_decided = await asyncio.shield(self._deciding)
            self._deciding = None
            if is_decided:
                return True
            if not move.goes_on():
                return False
            await asyncio.sleep(RETRY_S)
        if (target := self._targets.pop(move.log.key, None)) is not None:
            self._targets[move.log.key] = target  # behind the other moves
        return False

    async def _decide(self, move: LogMove) -> bool:
        """Decide the move and finish it; return whether it is decided.

        Raises: CorruptStoreError, DiskError.
        """
        first, second = sorted((move.source, move.target), key=lambda each: each.id)
        async with self._changing, first.changing, second.changing:
            is_decided = await move.decide(self._wall_ms())
            if move.is_moved():
                del self._targets[move.log.key]
                self.finished += 1
                await move.clean_up()
                self._events.log_moved(move.log.key)
            return is_decided

    async def _give_up(self, move: LogMove) -> bool:
        """Forget a move that has an obstacle.  Return False if the move has ended for another reason meanwhile."""
        logger.error("replica not moved", folder=move.log.folder, target=move.target.id, cause=move.obstacle)
        async with self._changing:
            if not move.is_wanted() or move.directory_failed():
                return False
            del self._targets[move.log.key]
            with move.source.reported():
                await move.source.disk.facts.commit({moving_fact(move.log.folder_name): None})
            return True
