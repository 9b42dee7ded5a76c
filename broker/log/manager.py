"""All logs of a broker: opening and recovery, creation, strays, group flush, checkpoints, retention.

**Facts** of a directory, kept by its `Disk`:

    opened                the directory has been used before; without `clean`, the last stop was not clean
    clean                 the last stop was clean: every `log/` fact is exact, and no file has to be read
    log/<folder>          the log's state (`state.py`), written at checkpoints
    folder/<folder>       the folder exists, and whether its topic has write.caching
    damaged/<folder>      the damage that was found in the folder, which is read in full before it is trusted again
    watermark/<log>       everything below it was durable and committed (written by `broker.replica.watermarks`)
    stray/<name>          a folder that was set aside: when, and whether it has been moved yet
    clock                 the wall time that retention used recently

**Order.**  Facts change before files are deleted.  So a segment that the facts name always exists, and a segment that
they do not name is a leftover.  A checkpoint is written only after its contents are durable.

**Doubles.**  A replica may be moved to another directory while its own directory is offline.  Once that directory works
again, both hold the replica.  The copy in the directory that the metadata names is the one that counts.  Until
`settle`, both are in `doubles`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar
from uuid import UUID

import msgspec

from broker.log.flush import GroupFlush
from broker.log.loading import check_whole, recover_log
from broker.log.partition_log import LOGS, PartitionLog
from broker.log.retention_clock import RetentionClock
from broker.log.state import (
    FOLDER,
    UNSYNCED,
    WATERMARK,
    LogState,
    decode_state,
    empty_state,
    encode_state,
    folder_fact,
    watermark_fact,
)
from broker.log.turns import Turn
from broker.log.types import LogConfig, LogKey, folder_name, parse_folder_name
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import Disk, DiskError

STRAYS = "strays"
CLEAN = "clean"
DAMAGED = "damaged/"
OPENED = "opened"
NAMES_LOGGED_MAX = 5
INDEX_MEMORY_MAX = 64 << 20  # bytes of the indexes of sealed segments, over all logs

NEXT_STEP = (
    "restore it, or have the replica made anew from its leader: reassign it to another broker and back "
    "(`kctl reassign start`); what is left of it is set aside then"
)

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class StrayState(msgspec.Struct, frozen=True):
    """The fact of a stray.  set_aside_ms: wall time, for people.  is_kept: deleted only by `purge_strays`."""

    folder: str
    set_aside_ms: int
    is_moved: bool
    is_kept: bool = False


class Stray(NamedTuple):
    """A folder that was set aside.  name: its name among the strays; folder: its name before."""

    directory_id: UUID
    name: str
    folder: str
    set_aside_ms: int
    is_kept: bool


class LogManager:
    """All logs of a broker.  The package's docstring describes the interface."""

    def __init__(self, disks: Sequence[Disk], checkpoint_bytes: int = 8 << 20) -> None:
        """checkpoint_bytes: bytes of a log between two checkpoints; a start after an unclean stop reads that much."""
        self.on_failure: Callable[[UUID, DiskError], None] | None = None
        self.on_log_failure: Callable[[LogKey, CorruptStoreError], None] | None = None
        self.clean_start = True
        self._disks = {disk.directory_id: disk for disk in disks}
        self._logs: dict[LogKey, PartitionLog] = {}
        self._doubles: dict[LogKey, dict[UUID, PartitionLog]] = {}
        self._left_over: list[PartitionLog] = []  # doubles that do not count
        self._failures: dict[LogKey, CorruptStoreError] = {}
        self._failed_folders: dict[LogKey, tuple[Disk, str]] = {}
        self._failed_disks: dict[UUID, DiskError] = {}
        self._strays: dict[UUID, dict[str, StrayState]] = {}
        self._flushes: dict[UUID, GroupFlush] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._notes: set[asyncio.Task[None]] = set()
        self._changing = {disk.directory_id: asyncio.Lock() for disk in disks}  # guards the facts about logs
        self._deleting = asyncio.Lock()  # of strays: both maintenance and operators delete them
        self._stray_since: dict[tuple[UUID, str], int] = {}  # when `delete_strays` first saw it
        self._clock = RetentionClock()
        self._checkpoint_bytes = checkpoint_bytes

    @property
    def logs(self) -> Mapping[LogKey, PartitionLog]:
        return MappingProxyType(self._logs)

    @property
    def failures(self) -> Mapping[LogKey, CorruptStoreError]:
        return MappingProxyType(self._failures)

    @property
    def doubles(self) -> Mapping[LogKey, Mapping[UUID, PartitionLog]]:
        """The copies of replicas that are in several directories; they are neither in `logs` nor in `failures`."""
        return MappingProxyType(self._doubles)

    @property
    def failed_disks(self) -> Mapping[UUID, DiskError]:
        return MappingProxyType(self._failed_disks)

    def get(self, key: LogKey) -> PartitionLog | None:
        return self._logs.get(key)

    # -- start and stop

    async def open(self) -> None:
        """Load every log, with recovery if the last stop was not clean.  A directory that fails becomes offline.

        Raises:
            CorruptStoreError: the facts of a directory are damaged.
        """
        for directory_id, disk in self._disks.items():
            self._flushes[directory_id] = GroupFlush(disk, partial(self.disk_failed, directory_id))
            try:
                await self._open_disk(disk)
            except DiskError as error:
                self._drop_directory(directory_id)
                self.disk_failed(directory_id, error)
        for flush in self._flushes.values():
            self._tasks.append(asyncio.get_running_loop().create_task(flush.run()))
        for log in self._logs.values():
            if log.is_dirty:
                self._flushes[log.directory_id].mark(log)

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

    async def _open_disk(self, disk: Disk) -> None:
        for folder in (LOGS, STRAYS):
            disk.make_dir(folder)
        await disk.sync_dir("")
        states = {name.removeprefix("log/"): value for name, value in disk.facts.load("log/").items()}
        was_clean = CLEAN in disk.facts.load(CLEAN)
        is_new = OPENED not in disk.facts.load(OPENED)
        if was_clean or is_new:
            await disk.facts.commit({CLEAN: None, OPENED: b""})
        self.clean_start = self.clean_start and (was_clean or is_new)
        self._clock.load(disk)
        await self._finish_strays(disk)
        known = {name.removeprefix(FOLDER): value for name, value in disk.facts.load(FOLDER).items()}
        watermarks = disk.facts.load(WATERMARK)
        damaged = {name.removeprefix(DAMAGED) for name in disk.facts.load(DAMAGED)}
        there = set(disk.list(LOGS))
        notes: dict[str, bytes | None] = {}
        turn = Turn()
        for folder in sorted({*there, *states, *known}):
            if (identity := parse_folder_name(folder)) is None:
                logger.warning("folder ignored directory_id=%s folder=%s", disk.directory_id, folder)
                continue
            key, topic = identity
            fact = states.get(folder)
            try:
                state = None if fact is None else decode_state(f"log/{folder}", fact)
                if folder not in there and (folder in known or (state is not None and state.segments)):
                    raise CorruptStoreError(f"{LOGS}/{folder} is missing, although it held a replica", NEXT_STEP)
                if folder in damaged:
                    await turn.through(check_whole(disk, f"{LOGS}/{folder}", state))
                    notes[DAMAGED + folder] = None
                if key in self._failures:
                    raise CorruptStoreError(f"{folder} is in two data directories, and damaged in one")
                config = LogConfig(write_caching=known.get(folder) == UNSYNCED)
                if was_clean and state is not None and folder not in damaged:
                    log = PartitionLog(disk, key, topic, folder, config, state)
                    await turn.passed()
                else:
                    watermark = watermarks.get(watermark_fact(key), b"")
                    committed = int(watermark) if watermark.isdigit() else 0
                    log = await self._recover(disk, key, topic, folder, config, state, committed, turn)
                log.folder_fact = known.get(folder)
                self._adopt(log)
            except CorruptStoreError as error:
                self._offline(disk, key, folder, error)
                notes[DAMAGED + folder] = str(error).encode()
        if notes:
            await disk.facts.commit(notes)

    async def _recover(
        self,
        disk: Disk,
        key: LogKey,
        topic: str,
        folder: str,
        config: LogConfig,
        state: LogState | None,
        committed: int,
        turn: Turn,
    ) -> PartitionLog:
        log, torn = await turn.through(recover_log(disk, key, topic, folder, config, state, committed))
        if torn is not None:
            logger.warning(
                "torn tail cut file=%s position=%d bytes=%d end_offset=%d reason=%s",
                torn.path,
                torn.position,
                torn.size,
                torn.end_offset,
                torn.reason,
            )
        return log

    def _adopt(self, log: PartitionLog) -> None:
        flush = self._flushes[log.directory_id]
        log.notify_dirty = lambda one: None if _is_unsynced(one) else flush.mark(one)
        if (first := self._logs.pop(log.key, None)) is not None:
            self._doubles[log.key] = {first.directory_id: first}
        if log.key in self._doubles:
            self._doubles[log.key][log.directory_id] = log
        else:
            self._logs[log.key] = log

    async def close(self) -> None:
        """Make everything durable and mark the stop as clean.  Idempotent."""
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        try:
            await asyncio.gather(*self._notes)
            for directory_id, disk in self._disks.items():
                if directory_id in self._failed_disks:
                    continue
                mine = [log for log in self._logs.values() if log.directory_id == directory_id]
                try:
                    await self._checkpoint(disk, [log for log in mine if log.is_changed])
                    await self._flushes[directory_id].flush_all(mine)
                    if not any(log.directory_id == directory_id for log in self._unsettled()):  # they have no facts
                        await disk.facts.commit({CLEAN: b""})
                except DiskError as error:
                    self.disk_failed(directory_id, error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for log in (*self._logs.values(), *self._unsettled()):
                log.close()

    def _unsettled(self) -> list[PartitionLog]:
        return [*self._left_over, *(log for copies in self._doubles.values() for log in copies.values())]

    # -- single logs

    def create(self, key: LogKey, topic: str, directory_id: UUID, config: LogConfig) -> PartitionLog:
        """Return a new, empty log.  Its folder is created at the first append."""
        assert key not in self._logs, f"{key} exists"
        assert key not in self._failures, f"{key} is damaged"
        assert key not in self._doubles, f"{key} exists twice"
        disk = self._disks[directory_id]
        if (error := self._failed_disks.get(directory_id)) is not None:
            raise error
        log = PartitionLog(disk, key, topic, folder_name(key, topic), config, empty_state())
        self._adopt(log)
        return log

    def settle(self, key: LogKey, directory_id: UUID) -> None:
        """Move the copy of `key` in `directory_id` from `doubles` to `logs`; `set_doubles_aside` sets the others aside.

        If that directory has no copy, the replica is in `failures`, because the copy in use is not known.
        """
        copies = self._doubles.pop(key)
        log = copies.pop(directory_id, None)
        if log is None:
            for one in copies.values():
                one.close()
            first = next(iter(copies.values()))
            folder = first.folder.removeprefix(f"{LOGS}/")
            problem = f"{folder} is in {len(copies)} data directories, and none of them is the assigned one"
            self._offline(self._disks[first.directory_id], key, folder, CorruptStoreError(problem, NEXT_STEP))
            return
        self._left_over += copies.values()
        self._logs[key] = log
        if log.is_dirty:
            self._flushes[directory_id].mark(log)
        logger.warning("in several data directories, one counts directory_id=%s folder=%s", directory_id, log.folder)

    def take_offline(self, key: LogKey, error: CorruptStoreError) -> None:
        """Move a damaged log from `logs` to `failures`, and call `on_log_failure`."""
        log = self._logs.pop(key)
        log.close()
        folder = log.folder.removeprefix(f"{LOGS}/")
        self._offline(self._disks[log.directory_id], key, folder, error)
        note = asyncio.get_running_loop().create_task(self._note_damage(log.directory_id, folder, error))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)
        if self.on_log_failure is not None:
            self.on_log_failure(key, error)

    async def _note_damage(self, directory_id: UUID, folder: str, error: CorruptStoreError) -> None:
        try:
            await self._disks[directory_id].facts.commit({DAMAGED + folder: str(error).encode()})
        except DiskError as failure:
            self.disk_failed(directory_id, failure)

    async def flush_all(self, logs: Iterable[PartitionLog]) -> None:
        """Make everything appended to `logs` durable, with one barrier for each directory.

        Raises:
            DiskError: a directory failed; the logs on the others are durable nevertheless.
        """
        by_directory: dict[UUID, list[PartitionLog]] = {}
        for log in logs:
            by_directory.setdefault(log.directory_id, []).append(log)
        barriers = (self._flushes[directory_id].flush_all(mine) for directory_id, mine in by_directory.items())
        outcomes = await asyncio.gather(*barriers, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def lower_truncation_floor(self, log: PartitionLog, offset: int) -> None:
        """Allow `truncate_to(offset)` below the watermark, by removing the watermark from the facts first."""
        async with self._changing[log.directory_id]:
            log.lower_watermark(offset)
            await self._write_states(self._disks[log.directory_id], [log], {watermark_fact(log.key): None})

    async def reset_to(self, log: PartitionLog, offset: int, epoch: int = -1) -> bool:
        """Drop all records and continue at `offset`.  Return False, with nothing done, if the log changed meanwhile.

        epoch: epoch of the record before `offset`; -1 if it is unknown.
        """
        async with self._changing[log.directory_id]:
            if not self._is_here(log):
                return False
            before = (log.generation, log.end_offset, log.epochs.latest)
            disk = self._disks[log.directory_id]
            empty = encode_state(empty_state(offset, epoch))
            await self._commit_states(disk, [log], {_fact(log): empty, watermark_fact(log.key): None})
            with self._reported(disk):
                if (log.generation, log.end_offset, log.epochs.latest) != before:  # appended to, or made a leader's
                    await self._commit_states(disk, [log], {_fact(log): encode_state(log.take_state())})
                    return False
                log.restart_at(offset, epoch)
                return True

    # -- upkeep

    async def maintain(self, now_ms: int, wall_ms: int) -> None:
        """Apply retention, expire producers, write recovery points.  `on_failure` reports a failed directory.

        now_ms: time of the loop's clock, for the ages of segments and producers.
        wall_ms: retention compares it with the timestamps of records, after `RetentionClock` has checked it.
        """
        wall_ms = self._clock.read(wall_ms, now_ms)
        turn = Turn()
        for directory_id, disk in self._disks.items():
            if directory_id in self._failed_disks:
                continue
            due = []
            for log in [one for one in self._logs.values() if one.directory_id == directory_id]:
                await turn.passed()
                log.expire_producers(now_ms)
                if (start_offset := log.retained_start(now_ms, wall_ms)) > log.start_offset:
                    log.advance_start_offset(start_offset)
                if (
                    log.start_offset != log.written_start_offset
                    or log.appended_since_checkpoint >= self._checkpoint_bytes
                ):
                    due.append(log)
            try:
                await self._clock.save(disk, wall_ms)
                await self._checkpoint(disk, due)
            except DiskError as error:
                self.disk_failed(directory_id, error)
        self._free_indexes()

    async def checkpoint(self, logs: Iterable[PartitionLog]) -> None:
        """Write the states of `logs` now: start offsets, recovery points.

        Raises:
            DiskError: a directory failed.
        """
        chosen = list(logs)
        for directory_id, disk in self._disks.items():
            await self._checkpoint(disk, [log for log in chosen if log.directory_id == directory_id])

    async def _checkpoint(self, disk: Disk, logs: list[PartitionLog]) -> None:
        if not logs:
            return
        async with self._changing[disk.directory_id]:
            turn = Turn()
            for log in logs:
                await turn.passed()
                if self._is_here(log):
                    with self._guarded(log):
                        log.prepare_checkpoint()
            await self._flushes[disk.directory_id].flush_all(logs)
            await self._write_states(disk, logs)
            for log in logs:
                await turn.passed()
                if self._is_here(log):
                    log.remove_below_start()

    async def _write_states(
        self, disk: Disk, logs: list[PartitionLog], with_these: Mapping[str, bytes | None] = MappingProxyType({})
    ) -> None:
        states: dict[str, bytes | None] = {**with_these}
        for log in logs:
            if self._is_here(log):
                with self._guarded(log):
                    states[_fact(log)] = encode_state(log.take_state())
        await self._commit_states(disk, logs, states)

    async def _commit_states(self, disk: Disk, logs: Iterable[PartitionLog], facts: Mapping[str, bytes | None]) -> None:
        """Write facts that hold the states of `logs`.  After a failure or cancel, a later call writes the states again.

        Otherwise a clean stop would leave older states, and the next start would not read beyond their end offsets.
        """
        try:
            with self._reported(disk):
                await disk.facts.commit(dict(facts))
        except BaseException:
            for log in logs:
                log.is_changed = True
            raise

    def _is_here(self, log: PartitionLog) -> bool:
        """Return whether `log` is still in `logs`.  It may have been set aside or taken offline during a wait."""
        return self._logs.get(log.key) is log

    @contextmanager
    def _reported(self, disk: Disk) -> Iterator[None]:
        """Take the directory offline if the body raises DiskError, and raise it again."""
        try:
            yield
        except DiskError as error:
            self.disk_failed(disk.directory_id, error)
            raise

    @contextmanager
    def _guarded(self, log: PartitionLog) -> Iterator[None]:
        """Take `log` offline if the body raises CorruptStoreError, so that other logs continue."""
        try:
            yield
        except CorruptStoreError as error:
            self.take_offline(log.key, error)

    def _free_indexes(self) -> None:
        loaded = [segment for log in self._logs.values() for segment in log.loaded_indexes()]
        memory = sum(segment.loaded_index_size for segment in loaded)
        for segment in loaded:
            if memory <= INDEX_MEMORY_MAX:
                return
            memory -= segment.loaded_index_size
            segment.unload_index()

    # -- strays

    async def set_aside(self, keys: Iterable[LogKey], wall_ms: int, keep: bool = False) -> None:
        """Remove these from `logs` and `failures`, and move their folders to the strays.

        `delete_strays` deletes them later; with `keep`, only `purge_strays` does.  On an offline directory the folders
        stay where they are, and the next start finds them.

        Raises:
            DiskError: a directory failed; the folders on the others are set aside nevertheless.
        """
        by_directory: dict[UUID, list[LogKey]] = {}
        turn = Turn()
        for key in keys:
            await turn.passed()
            if (log := self._logs.get(key)) is not None:
                by_directory.setdefault(log.directory_id, []).append(key)
            elif key in self._failures:
                by_directory.setdefault(self._failed_folders[key][0].directory_id, []).append(key)
        await self._set_aside(by_directory, self._take_out, wall_ms, keep)

    async def set_doubles_aside(self, wall_ms: int, keep: bool = False) -> None:
        """Set aside, as `set_aside`, the doubles that `settle` did not choose, and those never settled.

        Raises: as `set_aside`.
        """
        unsettled = self._unsettled()
        self._doubles.clear()
        self._left_over.clear()
        by_directory: dict[UUID, list[PartitionLog]] = {}
        for log in unsettled:
            log.close()
            by_directory.setdefault(log.directory_id, []).append(log)
        await self._set_aside(by_directory, lambda log: log.folder.removeprefix(f"{LOGS}/"), wall_ms, keep)

    async def _set_aside(
        self, by_directory: Mapping[UUID, list[_T]], take_out: Callable[[_T], str | None], wall_ms: int, keep: bool
    ) -> None:
        turn = Turn()
        failure: DiskError | None = None
        for directory_id, mine in by_directory.items():
            async with self._changing[directory_id]:
                strays = []
                for one in mine:
                    await turn.passed()
                    if (folder := take_out(one)) is not None:
                        strays.append(StrayState(folder, wall_ms, is_moved=False, is_kept=keep))
                if not strays or directory_id in self._failed_disks:
                    continue
                try:
                    await self._move_strays(self._disks[directory_id], strays, {})
                except DiskError as error:
                    self.disk_failed(directory_id, error)
                    failure = error
        if failure is not None:
            raise failure

    def _take_out(self, key: LogKey) -> str | None:
        """Remove `key` from `logs` or `failures`; return the name of its folder, None if it was in neither."""
        if (log := self._logs.pop(key, None)) is not None:
            log.close()
            return log.folder.removeprefix(f"{LOGS}/")
        if self._failures.pop(key, None) is not None:
            return self._failed_folders.pop(key)[1]
        return None

    async def _finish_strays(self, disk: Disk) -> None:
        """Finish the moves of strays that a crash interrupted."""
        known = {key.removeprefix("stray/"): _stray(key, value) for key, value in disk.facts.load("stray/").items()}
        self._strays[disk.directory_id] = {name: stray for name, stray in known.items() if stray.is_moved}
        changes: dict[str, bytes | None] = {}
        pending = []
        for name, stray in known.items():
            if stray.is_moved:
                continue
            if disk.exists(f"{STRAYS}/{name}"):
                moved = self._strays[disk.directory_id][name] = msgspec.structs.replace(stray, is_moved=True)
                changes[f"stray/{name}"] = msgspec.json.encode(moved)
            else:
                changes[f"stray/{name}"] = None
                pending.append(stray)
        if changes:
            await self._move_strays(disk, pending, changes)

    async def _move_strays(self, disk: Disk, strays: list[StrayState], changes: dict[str, bytes | None]) -> None:
        """Write the intent, move the folders, write that it is done.  The next start finishes an interrupted move."""
        known = self._strays.setdefault(disk.directory_id, {})
        named: dict[str, StrayState] = {}
        turn = Turn()
        for stray in strays:
            await turn.passed()
            number = 0
            while (name := f"{stray.folder}.{stray.set_aside_ms}.{number}") in known or disk.exists(f"{STRAYS}/{name}"):
                number += 1
            known[name] = stray
            named[name] = msgspec.structs.replace(stray, is_moved=True)
            changes[f"stray/{name}"] = msgspec.json.encode(stray)
            changes[f"log/{stray.folder}"] = changes[folder_fact(stray.folder)] = None
            changes[DAMAGED + stray.folder] = None
            if (identity := parse_folder_name(stray.folder)) is not None:
                changes[watermark_fact(identity[0])] = None
        await disk.facts.commit(changes)
        moved = []
        for name, stray in named.items():
            await turn.passed()
            if disk.exists(f"{LOGS}/{stray.folder}"):
                disk.rename(f"{LOGS}/{stray.folder}", f"{STRAYS}/{name}")
                moved.append(stray.folder)
        _log_many("logs set aside", disk, moved)
        await disk.flush((), (LOGS, STRAYS))
        await disk.facts.commit({f"stray/{name}": msgspec.json.encode(stray) for name, stray in named.items()})
        known.update(named)  # from now on it may be deleted

    def strays(self) -> list[Stray]:
        """Return the strays that still exist, on the directories that work."""
        return [
            Stray(directory_id, name, stray.folder, stray.set_aside_ms, stray.is_kept)
            for directory_id, strays in sorted(self._strays.items())
            if directory_id not in self._failed_disks
            for name, stray in sorted(strays.items())
        ]

    async def keep_strays(self) -> None:
        """Exempt all present strays from `delete_strays`; durable on return.

        Raises:
            DiskError: a directory failed.
        """
        async with self._deleting:
            for directory_id, strays in self._strays.items():
                kept = {name: msgspec.structs.replace(stray, is_kept=True) for name, stray in strays.items()}
                if kept and directory_id not in self._failed_disks:
                    facts: dict[str, bytes | None] = {
                        f"stray/{name}": msgspec.json.encode(stray) for name, stray in kept.items()
                    }
                    with self._reported(self._disks[directory_id]):
                        await self._disks[directory_id].facts.commit(facts)
                    strays.update(kept)

    async def delete_strays(self, now_ms: int, kept_ms: int) -> int:
        """Delete the strays that an earlier call saw `kept_ms` ago, unless they are kept; return their number.

        now_ms: time of the loop's clock.

        Raises:
            DiskError: a directory failed.
        """

        def is_due(directory_id: UUID, name: str, stray: StrayState) -> bool:
            return not stray.is_kept and now_ms - self._stray_since.setdefault((directory_id, name), now_ms) >= kept_ms

        return await self._delete_strays(is_due)

    async def purge_strays(self) -> int:
        """Delete all strays; return their number.

        Raises:
            DiskError: a directory failed.
        """
        return await self._delete_strays(lambda *_: True)

    async def _delete_strays(self, is_due: Callable[[UUID, str, StrayState], bool]) -> int:
        loop = asyncio.get_running_loop()
        count = 0
        async with self._deleting:
            for directory_id, strays in self._strays.items():
                if directory_id in self._failed_disks:
                    continue
                disk = self._disks[directory_id]
                due = [name for name, stray in strays.items() if stray.is_moved and is_due(directory_id, name, stray)]
                with self._reported(disk):
                    for name in due:
                        await loop.run_in_executor(None, disk.remove_tree, f"{STRAYS}/{name}")
                    _log_many("strays deleted", disk, due)
                    if due:
                        await disk.sync_dir(STRAYS)
                        await disk.facts.commit(dict.fromkeys(f"stray/{name}" for name in due))
                for name in due:
                    del strays[name]
                    self._stray_since.pop((directory_id, name), None)
                count += len(due)
        return count

    # -- failure

    def _offline(self, disk: Disk, key: LogKey, folder: str, error: CorruptStoreError) -> None:
        self._failures[key] = error
        self._failed_folders[key] = (disk, folder)
        logger.error("log offline directory_id=%s folder=%s error=%s", disk.directory_id, folder, error)

    def disk_failed(self, directory_id: UUID, error: DiskError) -> None:
        """Treat the directory as offline from now on, because it failed; call `on_failure` once."""
        if directory_id in self._failed_disks:
            return
        self._failed_disks[directory_id] = error
        if self.on_failure is not None:
            self.on_failure(directory_id, error)


def _stray(key: str, fact: bytes) -> StrayState:
    """Return the state in the fact of a stray.

    Raises: CorruptStoreError: it is not a stray's state.
    """
    try:
        return msgspec.json.decode(fact, type=StrayState)
    except msgspec.DecodeError as error:
        raise CorruptStoreError(f"fact {key} is damaged: {error}") from error


def _is_unsynced(log: PartitionLog) -> bool:
    """Return whether nothing waits for flushes of `log`, and its fact says so to a recovery."""
    return log.config.write_caching and log.folder_fact == UNSYNCED


def _fact(log: PartitionLog) -> str:
    return "log/" + log.folder.removeprefix(f"{LOGS}/")


def _log_many(event: str, disk: Disk, names: list[str]) -> None:
    """Log one line, however many names there are; a topic may have thousands of partitions."""
    if names:
        shown = ",".join(sorted(names)[:NAMES_LOGGED_MAX])
        logger.info("%s directory_id=%s count=%d first=%s", event, disk.directory_id, len(names), shown)
