"""Writes the states of logs to their directory's facts (see `manager`), and makes changes that facts must record first.

Facts change before files below the recovery point are deleted.  So below that point, each segment that the facts name
exists, and any other segment is a leftover.  A checkpoint is written only after all records below its
recovery point are durable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from uuid import UUID

from broker.log.cleaning.job import Replacement
from broker.log.cleaning.swap import CheckedReplacement, swap_path
from broker.log.compaction import PlannedJob
from broker.log.directory import LogDirectory
from broker.log.partition_log import PartitionLog
from broker.log.state import empty_state, encode_state, folder_fact, state_fact, watermark_fact
from broker.log.types import LogKey
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.turns import Turn

_Position = tuple[int, int, int]
"""(generation, end offset, latest epoch) of a log.  An append, a truncation and a new leadership change it."""

NOTHING: Mapping[str, bytes | None] = MappingProxyType({})


class Checkpoints:
    """Writes the checkpoints of all logs.  Every coroutine raises DiskError if the directory fails and goes offline.

    directories: by id.
    logs: the logs in use, which may change during a wait.  A log may also move to another directory meanwhile.
    take_offline: called with a log that is found to be damaged.
    """

    def __init__(
        self,
        directories: Mapping[UUID, LogDirectory],
        logs: Mapping[LogKey, PartitionLog],
        take_offline: Callable[[LogKey, CorruptStoreError], None],
    ) -> None:
        self._directories = directories
        self._logs = logs
        self._take_offline = take_offline

    async def write(self, directory: LogDirectory, logs: Sequence[PartitionLog]) -> None:
        """Write the states of those `logs` that are in this directory; then delete the segments below their starts."""
        if not logs:
            return
        async with directory.changing:
            here = [log for log in logs if log.directory_id == directory.id]  # the others moved during the wait
            with directory.reported():
                await self._write(directory, here)

    @asynccontextmanager
    async def _changing(self, log: PartitionLog) -> AsyncIterator[LogDirectory]:
        """Guard the facts of the log's directory, even if the log moves to another one during the wait."""
        while True:
            directory = self._directories[log.directory_id]
            async with directory.changing:
                if log.directory_id == directory.id:
                    yield directory
                    return

    async def _write(self, directory: LogDirectory, logs: Sequence[PartitionLog]) -> None:
        turn = Turn()
        for log in logs:
            await turn.passed()
            if self._is_in_use(log):
                with self._guarded(log):
                    log.upkeep.prepare_checkpoint()
        await directory.flush.flush_all([log.durability for log in logs])
        await self._write_states(directory, logs)
        for log in logs:
            await turn.passed()
            if self._is_in_use(log):
                log.upkeep.remove_below_start()

    async def lower_truncation_floor(self, log: PartitionLog, offset: int, is_wanted: Callable[[], bool]) -> None:
        """See `LogManager.lower_truncation_floor`."""
        before = _position(log)  # taken before the wait for the directory, as in `reset_to`
        async with self._changing(log) as directory:
            if not self._is_in_use(log) or _position(log) != before or not is_wanted():
                return
            log.lower_watermark(offset)
            await self._write_states(directory, [log], {watermark_fact(log.key): None})

    async def prepare_truncation(self, log: PartitionLog, offset: int) -> None:
        """See `LogManager.prepare_truncation`."""
        async with self._changing(log) as directory:
            value = log.durability.fact_before_truncation(log.batch_start(offset))
            if value is None or not self._is_in_use(log):
                return
            with directory.reported(), log.durability.changing_fact():
                await directory.disk.facts.commit({folder_fact(log.folder): value})
                log.durability.folder_fact = value
            log.durability.request_flush()  # writes the fact again, even if no truncation follows

    async def reset_to(self, log: PartitionLog, offset: int, epoch: int, is_wanted: Callable[[], bool]) -> bool:
        """See `LogManager.reset_to`."""
        # Taken before the wait for the directory: this replica may lead and append meanwhile.
        before = _position(log)
        async with self._changing(log) as directory:
            if not self._is_in_use(log) or _position(log) != before or not is_wanted():
                return False
            empty = encode_state(empty_state(offset, epoch))
            state, folder = state_fact(log.folder), folder_fact(log.folder)
            value, taken = log.durability.folder_fact, log.marks.watermarks_taken
            with log.durability.changing_fact():
                try:
                    # Old segments may outlive a power failure.  Until the next flush, no segment in the folder proves
                    # that earlier ones must exist.
                    await self._commit(directory, [log], {state: empty, watermark_fact(log.key): None, folder: None})
                finally:
                    log.durability.folder_fact = None
                with directory.reported():
                    if _position(log) == before and log.marks.watermarks_taken == taken and is_wanted():
                        log.restart_at(offset, epoch)
                        return True
                    # The log was appended to, or this replica has another role, or the watermark was written to the
                    # facts again.  With a watermark above `offset`, the next start would treat the log as damaged.
                    old = encode_state(log.upkeep.take_state())
                    await self._commit(directory, [log], {state: old, folder: value})
                    log.durability.folder_fact = value
                    log.durability.request_flush()
                    return False

    async def swap(
        self,
        directory: LogDirectory,
        log: PartitionLog,
        planned: PlannedJob,
        replacement: Replacement,
        checked: CheckedReplacement,
    ) -> bool:
        """See `LogManager.swap_segments`.  `cleaning.swap` describes the steps."""
        segment = checked.segment
        async with directory.changing:
            if not self._is_in_use(log) or (replaced := log.compaction.replaced(planned, replacement)) is None:
                return False
            disk, folder = directory.disk, log.folder
            with directory.reported():
                file = disk.open(replacement.path)
                await disk.flush([file])
                file.close()
                swap = swap_path(folder, segment.base_offset)
                disk.rename(replacement.path, swap)
                await disk.sync_dir(folder)
            if not self._is_in_use(log) or log.compaction.replaced(planned, replacement) is None:
                with directory.reported():
                    disk.remove(swap)
                return False
            # From now on the segments do not change: they are frozen, and no truncation reaches into them, because the
            # recovery point in the state is not below their end.
            log.compaction.freeze(replaced)
            state = log.compaction.state_with(log.upkeep.take_state(), replaced, segment)
            await self._commit(directory, [log], {state_fact(folder): encode_state(state)})
            if not self._is_in_use(log):
                return False  # the log is offline now; the next start finishes the swap
            with directory.reported(), self._guarded(log):
                log.compaction.swap(replaced, checked)
                await disk.sync_dir(folder)
            await self._write_states(directory, [log])
            if self._is_in_use(log):
                with directory.reported(), self._guarded(log):
                    log.compaction.swap_done(segment)
            return True

    async def _write_states(
        self, directory: LogDirectory, logs: Sequence[PartitionLog], with_these: Mapping[str, bytes | None] = NOTHING
    ) -> None:
        states: dict[str, bytes | None] = {**with_these}
        taken: list[PartitionLog] = []
        for log in logs:
            if self._is_in_use(log):
                with self._guarded(log):
                    states[state_fact(log.folder)] = encode_state(log.upkeep.take_state())
                    taken.append(log)
        await self._commit(directory, logs, states)
        for log in taken:
            log.marks.state_written()

    async def _commit(
        self, directory: LogDirectory, logs: Iterable[PartitionLog], facts: dict[str, bytes | None]
    ) -> None:
        """Write facts that hold the states of `logs`.  If that fails or is cancelled, a later call writes them again.

        Otherwise a clean stop would leave older states, and the next start would not read beyond their end offsets.
        """
        try:
            with directory.reported():
                await directory.disk.facts.commit(facts)
        except BaseException:
            for log in logs:
                log.marks.is_changed = True
            raise

    def _is_in_use(self, log: PartitionLog) -> bool:
        """Return whether `log` is still in use.  It may have been set aside or taken offline during a wait."""
        return self._logs.get(log.key) is log

    @contextmanager
    def _guarded(self, log: PartitionLog) -> Iterator[None]:
        """Take `log` offline if the body raises CorruptStoreError, so that other logs continue."""
        try:
            yield
        except CorruptStoreError as error:
            self._take_offline(log.key, error)


def _position(log: PartitionLog) -> _Position:
    return log.durability.generation, log.end_offset, log.epochs.latest
