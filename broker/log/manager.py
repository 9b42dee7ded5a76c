"""All logs of a broker: opening and recovery, creation, strays, group flush, checkpoints, retention.

**Facts** of a directory, kept by its `Disk`:

    opened                the directory has been used before; without `clean`, the last stop was not clean
    clean                 the last stop was clean: every `log/` fact is exact, and no file has to be read
    log/<folder>          the log's state (`state.py`), written at checkpoints
    folder/<folder>       the folder exists; the value names its newest flushed segment, or states write.caching
    damaged/<folder>      the damage that was found in the folder, and the end of the records that were durable then;
                          the next start reads the whole folder before it uses the log
    broker/clean_epoch    nothing was written since the last clean stop (written by `broker.server.marks`)
    watermark/<log>       everything below it was durable and committed (written by `broker.replica.watermarks`)
    moving/<folder>       the log moves to another directory; see `move_facts`
    future/<folder>       this directory has a complete copy of a log that is moving to it
    copied/<folder>       the move that made this copy, until a start uses it
    undone/<move>         the move's decision was undone: the copy in its target does not count
    stray/<name>          a folder that was set aside: the time, and whether it is among the strays yet
    clock                 the wall time that retention used recently

**Doubles.**  A replica may be moved to another directory while its own directory is offline.  Once that directory works
again, both directories hold a copy of the replica.  The copy in the directory that the metadata names is used, even if
another copy is damaged.  Until `settle` is called, the copies are in `doubles`, except damaged ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import TypeVar
from uuid import UUID

import msgspec

from broker.log.checkpoints import Checkpoints
from broker.log.cleaning.job import Replacement
from broker.log.cleaning.swap import CheckedReplacement, finish_swaps
from broker.log.compaction import PlannedJob
from broker.log.directory import LogDirectory
from broker.log.directory_facts import NEXT_STEP, DirectoryFacts
from broker.log.durability import Durability
from broker.log.events import LogEvents
from broker.log.loading import check_whole, load_log
from broker.log.move_facts import COPIED, FUTURES, UndoneMove, is_copy_of, settle_futures, undone_moves
from broker.log.moves import LogMoves
from broker.log.partition_log import PartitionLog
from broker.log.recent import RecentAppends
from broker.log.recovery import DamagedLogError
from broker.log.retention_clock import RetentionClock
from broker.log.state import DAMAGED, UNSYNCED, damage_note, empty_state, encode_state, state_fact
from broker.log.strays import STRAYS, Stray, StrayFolders
from broker.log.types import LOGS, LogConfig, LogKey, folder_name, parse_folder_name
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import Disk, DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn

CLEAN = "clean"
OPENED = "opened"
INDEX_MEMORY_MAX = 64 << 20  # bytes of the indexes of sealed segments, over all logs

logger = get_logger("log")

_T = TypeVar("_T")


class LogManager:
    """All logs of a broker.

    events: reports failed directories, damaged logs and moved logs.
    moves: moves logs to other directories.
    clean_start: every directory is new, or was stopped cleanly before this start.
    clean_stop: `close` has stopped every directory cleanly.
    """

    def __init__(self, disks: Sequence[Disk], checkpoint_bytes: int = 8 << 20) -> None:
        """checkpoint_bytes: bytes of a log between two checkpoints; recovery reads about as many bytes of each log."""
        self.events = LogEvents()
        self.clean_start = True
        self.clean_stop = False
        self._directories = {disk.directory_id: LogDirectory(disk, self.events) for disk in disks}
        self._logs: dict[LogKey, PartitionLog] = {}
        self._doubles: dict[LogKey, dict[UUID, PartitionLog]] = {}
        self._left_over: list[PartitionLog] = []  # doubles that were not chosen
        self._damaged_left_over: list[tuple[LogDirectory, str]] = []  # damaged doubles that were not chosen
        self._undecided: list[PartitionLog] = []  # doubles of replicas in `failures`, closed
        self._failures: dict[LogKey, CorruptStoreError] = {}
        self._failed_folders: dict[LogKey, list[tuple[LogDirectory, str]]] = {}
        self._outdated: list[UUID] = []  # directories with facts about logs that are no longer in `logs`
        self._moved_to: dict[tuple[LogKey, UUID], UUID] = {}  # the new directory, by log and former directory
        self._early_topics: set[UUID] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._notes: set[asyncio.Task[None]] = set()
        self._clock = RetentionClock()
        self._checkpoints = Checkpoints(self._directories, self._logs, self.take_offline)
        self.moves = LogMoves(self._directories, self._logs, self._checkpoints, self.events, self.take_offline)
        self._checkpoint_bytes = checkpoint_bytes
        self._recent = RecentAppends()

    @property
    def logs(self) -> Mapping[LogKey, PartitionLog]:
        """All hosted logs.  The logs of a directory that failed while in use stay, and must not be used."""
        return MappingProxyType(self._logs)

    @property
    def failures(self) -> Mapping[LogKey, CorruptStoreError]:
        """The damaged replicas, which are offline, and the damage."""
        return MappingProxyType(self._failures)

    @property
    def doubles(self) -> Mapping[LogKey, Mapping[UUID, PartitionLog]]:
        """The good copies of replicas that are in several directories.  None of them is in `logs`.

        A replica is also in `failures` if one of its copies is damaged.
        """
        return MappingProxyType(self._doubles)

    @property
    def early_topics(self) -> frozenset[UUID]:
        """The topics with logs that had write caching when the last process ended, as `LogKey.topic_id`.

        If that process did not stop cleanly, these logs may lack records that it acknowledged before they were flushed.
        """
        return frozenset(self._early_topics)

    @property
    def failed_disks(self) -> Mapping[UUID, DiskError]:
        """The data directories that are offline, by id, and the errors."""
        return {one.id: one.failure for one in self._directories.values() if one.failure is not None}

    def moved_away(self, key: LogKey, directory_id: UUID) -> UUID | None:
        """Return the failed or missing directory to which the log moved from `directory_id`.

        None: the log did not move, or the directory to which it moved works.

        The strays that this start found show the move.  A log that moved several times has a stray in each former
        directory.
        """
        passed = set()
        while directory_id not in passed and (target := self._moved_to.get((key, directory_id))) is not None:
            passed.add(directory_id)
            if (found := self._directories.get(target)) is None or found.failure is not None:
                return target
            directory_id = target
        return None

    def get(self, key: LogKey) -> PartitionLog | None:
        return self._logs.get(key)

    # -- start and stop

    async def open(self) -> None:
        """Load every log, with recovery if the last stop was not clean.  A directory that fails becomes offline.

        Raises:
            CorruptStoreError: the facts of a directory are damaged.
        """
        undone = [move for directory in self._working() for move in undone_moves(directory.disk)]
        for directory in self._directories.values():
            try:
                await self._open_directory(directory, undone)
            except DiskError as error:
                self._drop_directory(directory.id)
                directory.fail(error)
        for key in self._failures:
            if (log := self._logs.pop(key, None)) is not None:
                self._doubles[key] = {log.directory_id: log}
        await self.moves.resume()
        self._find_moved()
        for directory in self._directories.values():
            self._tasks.append(directory.flush.start())
        for log in self._logs.values():
            if log.durability.is_dirty:
                self._directories[log.directory_id].flush.mark(log.durability)

    def _find_moved(self) -> None:
        for directory in self._working():
            for folder, target in directory.strays.continued():
                if (identity := parse_folder_name(folder)) is not None:
                    self._moved_to[identity[0], directory.id] = target

    def _drop_directory(self, directory_id: UUID) -> None:
        """Drop the logs of a directory that failed while it was opened."""
        for log in [one for one in self._logs.values() if one.directory_id == directory_id]:
            del self._logs[log.key]
            log.close()
        for key, copies in list(self._doubles.items()):
            if (dropped := copies.pop(directory_id, None)) is not None:
                dropped.close()
                if len(copies) == 1:
                    (self._logs[key],) = copies.values()
                    del self._doubles[key]

    async def _open_directory(self, directory: LogDirectory, undone: Sequence[UndoneMove]) -> None:
        disk = directory.disk
        for folder in (LOGS, STRAYS, FUTURES):
            disk.make_dir(folder)
        await disk.sync_dir("")
        was_clean = CLEAN in disk.facts.load(CLEAN)
        is_new = OPENED not in disk.facts.load(OPENED)
        if was_clean or is_new:
            await disk.facts.commit({CLEAN: None, OPENED: b""})
        self.clean_start = self.clean_start and (was_clean or is_new)
        self._clock.load(disk)
        await directory.strays.load()
        for move in undone:
            if is_copy_of(disk, move):
                await directory.strays.finish(await directory.strays.intend([move.folder], move.undone_ms, keep=False))
        moved_here = await settle_futures(disk, self._working_disk)
        facts = DirectoryFacts(disk)
        notes: dict[str, bytes | None] = dict.fromkeys(disk.facts.load(COPIED))
        turn = Turn()
        for folder in facts.names():
            if (identity := parse_folder_name(folder)) is None:
                logger.warning("folder ignored", directory_id=disk.directory_id, folder=folder)
                continue
            key, topic = identity
            if facts.folder_fact(folder) == UNSYNCED:
                self._early_topics.add(key.topic_id)
            durable = None
            try:
                state = facts.state(folder)
                if state is not None and state.swapping:
                    finish_swaps(disk, folder, state)
                    await disk.sync_dir(f"{LOGS}/{folder}")
                    # Write the state before the next swap, which may leave an undecided `.swap` of the same name.
                    state = msgspec.structs.replace(state, swapping=[])
                    notes[state_fact(folder)] = encode_state(state)
                durable = facts.durable(key, folder, state)
                if folder in facts.damaged:
                    await turn.through(check_whole(disk, f"{LOGS}/{folder}", state, facts.damaged[folder]))
                    notes[DAMAGED + folder] = None
                is_exact = was_clean and folder not in facts.damaged and folder not in moved_here
                self._adopt(
                    await load_log(disk, key, topic, folder, state, facts, self._recent, turn, is_exact=is_exact)
                )
            except CorruptStoreError as error:
                self._offline(directory, key, folder, error)
                if durable is not None and isinstance(error, DamagedLogError):
                    durable = max(durable, error.durable)
                notes[DAMAGED + folder] = damage_note(str(error), durable)
        if notes:
            await disk.facts.commit(notes)

    def _working_disk(self, directory_id: UUID) -> Disk | None:
        """Return the disk of a directory, None if it has failed.

        Raises: LookupError: this broker has no such directory.
        """
        directory = self._directories[directory_id]
        return directory.disk if directory.failure is None else None

    def _adopt(self, log: PartitionLog) -> None:
        log.durability.mark_dirty = self._directories[log.directory_id].flush.mark
        if (first := self._logs.pop(log.key, None)) is not None:
            self._doubles[log.key] = {first.directory_id: first}
        if log.key in self._doubles:
            self._doubles[log.key][log.directory_id] = log
        else:
            self._logs[log.key] = log

    async def close(self) -> None:
        """Make everything durable and mark the stop as clean; `clean_stop` is True if that succeeded.  Idempotent."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        try:
            await self.moves.close()
            await asyncio.gather(*self._notes)
            marked = 0
            for directory in self._working():
                mine = self._logs_in(directory)
                try:
                    await self._checkpoints.write(directory, [log for log in mine if log.upkeep.needs_final_checkpoint])
                    await directory.flush.flush_all([log.durability for log in mine])
                    # Unsettled logs have no checkpoint.
                    undecided = [log for log in self._undecided if log.key in self._failures]  # not set aside yet
                    unsettled = {log.directory_id for log in (*self._unsettled(), *undecided)}
                    if directory.id not in unsettled.union(self._outdated):
                        await directory.disk.facts.commit({CLEAN: b""})
                        marked += 1
                except DiskError as error:
                    directory.fail(error)
            self.clean_stop = marked == len(self._directories)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for log in (*self._logs.values(), *self._unsettled()):
                log.close()

    def _working(self) -> Iterator[LogDirectory]:
        """Yield each directory that has not failed when its turn comes."""
        return (directory for directory in self._directories.values() if directory.failure is None)

    def _logs_in(self, directory: LogDirectory) -> list[PartitionLog]:
        return [log for log in self._logs.values() if log.directory_id == directory.id]

    def _unsettled(self) -> list[PartitionLog]:
        return [*self._left_over, *(log for copies in self._doubles.values() for log in copies.values())]

    # -- single logs

    def create(self, key: LogKey, topic: str, directory_id: UUID, config: LogConfig) -> PartitionLog:
        """Return a new, empty log.  Its folder is created at the first append.

        Raises: DiskError: the directory is offline.
        """
        assert key not in self._logs, f"{key} exists"
        assert key not in self._failures, f"{key} is damaged"
        assert key not in self._doubles, f"{key} exists twice"
        directory = self._directories[directory_id]
        if directory.failure is not None:
            raise directory.failure
        log = PartitionLog(directory.disk, key, topic, folder_name(key, topic), config, empty_state(), self._recent)
        self._adopt(log)
        return log

    def settle(self, key: LogKey, directory_id: UUID) -> None:
        """Move the copy of `key` in `directory_id` from `doubles` to `logs`; `set_doubles_aside` sets the others aside.

        If that directory has no copy, or a damaged one, put the replica in `failures`, because it is unknown which copy
        could be used.
        """
        copies = self._doubles.pop(key)
        log = copies.pop(directory_id, None)
        if log is None:
            count = len(copies) + len(self._failed_folders.get(key, ()))
            for one in copies.values():
                one.close()
                self._undecided.append(one)
                problem = f"{one.folder_name} is in {count} data directories, and none of them is the assigned one"
                failure = self._failures.get(key) or CorruptStoreError(problem, NEXT_STEP)
                self._offline(self._directories[one.directory_id], key, one.folder_name, failure)
            return
        self._left_over += copies.values()
        self._damaged_left_over += self._failed_folders.pop(key, ())
        self._failures.pop(key, None)
        self._logs[key] = log
        if log.durability.is_dirty:
            self._directories[directory_id].flush.mark(log.durability)
        logger.warning(
            "several data directories hold the replica; this one is used", directory_id=directory_id, folder=log.folder
        )

    def take_offline(self, key: LogKey, error: CorruptStoreError) -> None:
        """Move a damaged log from `logs` to `failures`, and report it."""
        log = self._logs.pop(key)
        log.close()
        directory, folder = self._directories[log.directory_id], log.folder_name
        self._offline(directory, key, folder, error)
        note = asyncio.get_running_loop().create_task(
            self._note_damage(directory, key, folder, damage_note(str(error), log.marks.durable_offset))
        )
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)
        self.events.log_failed(key, error)

    async def _note_damage(self, directory: LogDirectory, key: LogKey, folder: str, note: bytes) -> None:
        if key not in self._failures:
            return  # the log was set aside already, and a new replica may use a folder of the same name
        try:
            await directory.disk.facts.commit({DAMAGED + folder: note})
        except DiskError as failure:
            directory.fail(failure)

    async def flush_all(self, logs: Iterable[PartitionLog]) -> None:
        """Make everything appended to `logs` durable, with one barrier for each directory.

        The caller sets the deadline.

        Raises:
            DiskError: a directory failed; the logs in other directories are durable nevertheless.
        """
        by_directory: dict[UUID, list[Durability]] = {}
        for log in logs:
            by_directory.setdefault(log.directory_id, []).append(log.durability)
        # All flushes begin in this turn.  During a wait a log may move, and then a flush of its former directory proves
        # nothing.
        barriers = [self._directories[directory_id].flush.begin(mine) for directory_id, mine in by_directory.items()]
        if len(barriers) == 1:
            await barriers[0]  # unlike `gather`, needs no extra turn of the loop in each round of a follower
            return
        for outcome in await asyncio.gather(*barriers, return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def lower_truncation_floor(
        self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Allow `truncate_to(offset)` below the watermark, by removing the watermark from the facts first.

        Do nothing if, during the wait for its directory, the log was removed, appended to or truncated, or has begun
        another epoch.

        is_wanted: called before the watermark is lowered; if it returns False, nothing is done.
        """
        await self._checkpoints.lower_truncation_floor(log, offset, is_wanted)

    async def prepare_truncation(self, log: PartitionLog, offset: int) -> None:
        """Change the facts so that a power failure may undo any part of `truncate_to(offset)`, such as deletions.

        Without this, recovery would treat a later segment that still exists as proof that the segment before it is
        damaged.
        """
        await self._checkpoints.prepare_truncation(log, offset)

    async def reset_to(
        self, log: PartitionLog, offset: int, epoch: int = -1, is_wanted: Callable[[], bool] = lambda: True
    ) -> bool:
        """Drop all records and continue at `offset`.  Return False, with nothing done, if the log changed meanwhile.

        Return False also if the watermark was written to the facts meanwhile.  After False, the caller tries again.

        epoch: epoch of the record before `offset`; -1 if it is unknown.
        is_wanted: called before the records are dropped, in the same turn of the event loop; if it returns False,
            nothing is done.
        """
        return await self._checkpoints.reset_to(log, offset, epoch, is_wanted)

    # -- upkeep

    async def maintain(self, now_ms: Callable[[], int], wall_ms: int) -> None:
        """Apply retention, expire producers, write recovery points, begin to flush logs with write caching.

        Call it about every minute.  A directory that fails becomes offline.

        now_ms: returns the time of the loop's clock, for the ages of segments and producers.  It is read for each log,
            because a directory that hangs delays the logs of the next directory.  With an older time, the silence of a
            producer would begin before its last batch.
        wall_ms: retention compares it with the timestamps of records, after `RetentionClock` has checked it.
        """
        wall_ms = self._clock.read(wall_ms, now_ms())
        turn = Turn()
        for directory in self._working():
            due = []
            for log in self._logs_in(directory):
                await turn.passed()
                if self._logs.get(log.key) is not log:
                    continue  # its folder may have been set aside during the wait
                log.durability.flush_cached()
                log_ms = now_ms()
                log.upkeep.expire_producers(log.config, log_ms)
                self._roll_aged(log, log_ms)
                if (start_offset := log.upkeep.retained_start(log.config, log_ms, wall_ms)) > log.start_offset:
                    log.advance_start_offset(start_offset)
                if log.upkeep.is_checkpoint_due(self._checkpoint_bytes):
                    due.append(log)
            try:
                await self._clock.save(directory.disk, wall_ms)
                await self._checkpoints.write(directory, due)
            except DiskError as error:
                directory.fail(error)
        self._free_indexes()

    def _roll_aged(self, log: PartitionLog, now_ms: int) -> None:
        try:
            log.roll_aged(now_ms)
        except CorruptStoreError as error:
            self.take_offline(log.key, error)
        except DiskError as error:
            self.disk_failed(log.directory_id, error)

    # -- compaction

    def cautious_ms(self, wall_ms: int, now_ms: int) -> int:
        """Return the wall time to compare with timestamps of records; see `RetentionClock`."""
        return self._clock.read(wall_ms, now_ms)

    def disk_of(self, log: PartitionLog) -> Disk:
        return self._directories[log.directory_id].disk

    async def swap_segments(self, log: PartitionLog, planned: PlannedJob, replacement: Replacement) -> bool:
        """Check a compacted segment, and replace sealed segments by it.

        Return False, and change nothing, if the log has changed since the job was planned.  In either case, the file
        of the replacement was renamed or deleted.

        Raises:
            BadReplacementError: the replacement must not be used.
            DiskError: the directory failed.
        """
        directory = self._directories[log.directory_id]
        replaced = log.compaction.replaced(planned, replacement) if self._logs.get(log.key) is log else None
        try:
            if replaced is None:
                return False
            check = log.compaction.check(planned, replacement, replaced, log.config.index_interval)
            if (checked := await self._check(log, check)) is None:
                return False
            is_swapped = await self._checkpoints.swap(directory, log, planned, replacement, checked)
            if not is_swapped:
                checked.segment.close()
            return is_swapped
        finally:
            if directory.failure is None:
                directory.disk.remove(replacement.path)

    async def _check(
        self, log: PartitionLog, check: Generator[None, None, CheckedReplacement]
    ) -> CheckedReplacement | None:
        """Run a check in turns; return None if the log was removed or has moved meanwhile.

        The check cannot go on then.  The folder may have been renamed, which closes the file of the replacement.
        """
        turn, directory_id = Turn(), log.directory_id
        with closing(check):
            while self._logs.get(log.key) is log and log.directory_id == directory_id:
                try:
                    next(check)
                except StopIteration as stop:
                    checked: CheckedReplacement = stop.value
                    return checked
                await turn.passed()
        return None

    async def checkpoint(self, logs: Iterable[PartitionLog]) -> None:
        """Write the states of `logs` now: start offsets, recovery points.

        Raises:
            DiskError: a directory failed.
        """
        chosen = list(logs)
        for directory in self._directories.values():
            await self._checkpoints.write(directory, [log for log in chosen if log.directory_id == directory.id])

    def _free_indexes(self) -> None:
        failed = self.failed_disks
        loaded = [(log, segment) for log in self._logs.values() for segment in log.upkeep.loaded_indexes()]
        memory = sum(segment.loaded_index_size for _, segment in loaded)
        for log, segment in loaded:
            if memory <= INDEX_MEMORY_MAX:
                return
            memory -= segment.loaded_index_size
            if log.directory_id in failed:
                segment.forget_index()  # that directory is offline: nothing is stored in it or read from it
                continue
            try:
                log.upkeep.free_index(segment)
            except DiskError as error:
                self.disk_failed(log.directory_id, error)
                return

    # -- strays

    async def set_aside(self, keys: Iterable[LogKey], wall_ms: int, keep: bool = False) -> None:
        """Remove `keys` from `logs` and `failures`, and set the folders of these logs aside.

        `delete_strays` deletes them later; with `keep`, only `purge_strays` deletes them.  On an offline directory the
        folders stay where they are, and the next start finds them.

        Raises:
            DiskError: a directory failed; the folders in other directories are set aside nevertheless.
        """
        rest = list(keys)
        turn = Turn()
        failure: DiskError | None = None
        while rest:
            by_directory: dict[UUID, list[LogKey]] = {}
            for key in rest:
                await turn.passed()
                if (log := self._logs.get(key)) is not None:
                    by_directory.setdefault(log.directory_id, []).append(key)
                for directory, _ in self._failed_folders.get(key, ()):
                    by_directory.setdefault(directory.id, []).append(key)
            failure = await self._set_folders_aside(by_directory, self._take_out, wall_ms, keep) or failure
            rest = [key for key in rest if key in self._logs]  # those that moved during the wait
        if failure is not None:
            raise failure

    async def set_doubles_aside(self, wall_ms: int, keep: bool = False) -> None:
        """Set aside the doubles that `settle` did not choose, and the doubles that were never settled.

        wall_ms, keep, Raises: as in `set_aside`.
        """
        by_directory: dict[UUID, list[str]] = {}
        for log in self._unsettled():
            log.close()
            by_directory.setdefault(log.directory_id, []).append(log.folder_name)
        for directory, folder in self._damaged_left_over:
            by_directory.setdefault(directory.id, []).append(folder)
        failure = await self._set_folders_aside(by_directory, lambda folder, _: folder, wall_ms, keep)
        # Clear them only now.  After a cancellation they are still known, so the stop is not marked as clean.
        self._doubles.clear()
        self._left_over.clear()
        self._damaged_left_over.clear()
        if failure is not None:
            raise failure

    async def _set_folders_aside(
        self,
        by_directory: Mapping[UUID, list[_T]],
        take_out: Callable[[_T, UUID], str | None],
        wall_ms: int,
        keep: bool,
    ) -> DiskError | None:
        """Set folders aside; return the error of a directory that failed, or None."""
        turn = Turn()
        failure: DiskError | None = None
        for directory_id, mine in by_directory.items():
            directory = self._directories[directory_id]
            async with directory.changing:
                folders = []
                self._outdated.append(directory_id)  # a cancellation of the following steps leaves it there
                for one in mine:
                    await turn.passed()
                    if (folder := take_out(one, directory_id)) is not None:
                        folders.append(folder)
                if not folders or directory.failure is not None:
                    self._outdated.remove(directory_id)
                    continue
                try:
                    named = await directory.strays.intend(folders, wall_ms, keep)
                    self._outdated.remove(directory_id)
                    await directory.strays.finish(named)
                except DiskError as error:
                    directory.fail(error)
                    failure = error
        return failure

    def _take_out(self, key: LogKey, directory_id: UUID) -> str | None:
        """Remove `key` from `logs` or `failures`; return its folder's name, None if the log is in another directory."""
        if (log := self._logs.get(key)) is not None:
            if log.directory_id != directory_id:
                return None
            del self._logs[key]
            log.close()
            return log.folder_name
        folders = self._failed_folders.get(key, [])
        found = next((one for one in folders if one[0].id == directory_id), None)
        if found is None:
            return None
        folders.remove(found)
        if not folders:
            del self._failures[key], self._failed_folders[key]
        return found[1]

    def strays(self) -> list[Stray]:
        """Return the strays that still exist, on the directories that work."""
        working = sorted(self._working(), key=lambda directory: directory.id)
        return [stray for directory in working for stray in directory.strays.all()]

    async def keep_strays(self) -> None:
        """Exempt all current strays from `delete_strays`; durable on return.

        Raises:
            DiskError: a directory failed.
        """
        for directory in self._working():
            with directory.reported():
                await directory.strays.keep(directory.changing)

    async def delete_strays(self, now_ms: int, kept_ms: int, unreported: Collection[LogKey] = ()) -> int:
        """Delete strays that an earlier call saw at least `kept_ms` ago, unless they are exempt; return their number.

        now_ms: time of the loop's clock.
        unreported: logs that may be in other directories than the metadata names.  After a move, only the stray in the
            former directory shows where such a log is, so that stray is kept.

        Raises:
            DiskError: a directory failed.
        """
        return await self._in_each(lambda strays: strays.delete_old(now_ms, kept_ms, unreported))

    async def purge_strays(self) -> int:
        """Delete all strays, even those that `delete_strays` keeps; return their number.

        Raises:
            DiskError: a directory failed.
        """
        return await self._in_each(StrayFolders.purge)

    async def _in_each(self, delete: Callable[[StrayFolders], Awaitable[int]]) -> int:
        count = 0
        for directory in self._working():
            with directory.reported():
                count += await delete(directory.strays)
        return count

    # -- failure

    def _offline(self, directory: LogDirectory, key: LogKey, folder: str, error: CorruptStoreError) -> None:
        self._failures[key] = error
        self._failed_folders.setdefault(key, []).append((directory, folder))
        logger.error("log offline", directory_id=directory.id, folder=folder, error=str(error))

    def disk_failed(self, directory_id: UUID, error: DiskError) -> None:
        """Treat the directory as offline from now on, because it failed; report it once."""
        self._directories[directory_id].fail(error)
