"""A log manager on two simulated disks, which stops at a chosen operation and starts again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from broker.log import LogConfig, LogManager, PartitionLog
from broker.log.types import folder_name
from simulation.kernel.disk import SimulatedDisk
from tests.unit.broker.log.rig import KEY, SMALL, append, batches_of, end_of

FOLDER = folder_name(KEY, "topic")
OPERATIONS = ("flush", "sync_dir", "rename", "remove", "remove_tree", "make_dir", "write", "read", "free_bytes")
DELETION_TURNS = 100
"""A copy that still exists after this number of turns will not be deleted."""


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 -- nothing reports it
        await asyncio.sleep(0.001)


class StoppedError(Exception):
    """The process has been stopped."""


class MoveRig:
    """The log KEY is on the first disk, and moves to the second one.

    acknowledged: the end of the records that a client may rely on.
    on_operation: called before each operation of a disk.
    stop_at: number of the operation before which the process is stopped.
    """

    def __init__(self, seed: int = 1, *, torn: bool = False) -> None:
        self.disks = [SimulatedDisk(Random(seed * 2 + number), torn=torn) for number in (0, 1)]
        self.operations: list[str] = []
        self.acknowledged = 0
        self.appended: list[bytes] = []
        self.on_operation: Callable[[], None] = lambda: None
        self.stop_at = -1
        self.is_stopped = False
        self._may_append = True
        self._in_turn = False
        self.runner: asyncio.Task[None] | None = None
        for number, disk in enumerate(self.disks):
            disk.sync_ms = (0.0, 0.0)
            for name in OPERATIONS:
                self._watch(disk, name, number)
            self._watch(disk.facts, "commit", number)

    def _watch(self, owner: Any, name: str, number: int) -> None:
        original = getattr(owner, name)

        def before(*, waits: bool) -> None:
            if not self.is_stopped and len(self.operations) == self.stop_at:
                self.is_stopped = True
            if self.is_stopped:
                raise StoppedError
            self.operations.append(f"{name} {number}")
            if self._may_append:  # otherwise `on_operation` is running, and performs this operation
                self._may_append = False
                self._in_turn = not waits
                self.on_operation()
                self._may_append, self._in_turn = True, False
            if self.is_stopped:
                raise StoppedError

        def sync(*arguments: Any, **options: Any) -> Any:
            before(waits=False)
            return original(*arguments, **options)

        async def waiting(*arguments: Any, **options: Any) -> Any:
            before(waits=True)
            result = await original(*arguments, **options)
            if self.is_stopped:
                raise StoppedError
            return result

        setattr(owner, name, waiting if asyncio.iscoroutinefunction(original) else sync)

    @property
    def ids(self) -> tuple[UUID, UUID]:
        return self.disks[0].directory_id, self.disks[1].directory_id

    @property
    def log(self) -> PartitionLog:
        return self.logs.logs[KEY]

    async def start(self) -> None:
        self.logs = LogManager(self.disks)
        await self.logs.open()
        if KEY in self.logs.logs:
            self.follow_acknowledgements()

    def create(self, config: LogConfig = SMALL) -> PartitionLog:
        log = self.logs.create(KEY, "topic", self.ids[0], config)
        self.follow_acknowledgements()
        return log

    def follow_acknowledgements(self) -> None:
        log = self.log

        def flushed() -> None:
            end = log.marks.durable_offset
            if not self.is_stopped:
                assert end >= self.acknowledged, (end, self.acknowledged)
                self.acknowledged = end

        log.durability.on_flushed = flushed

    def append(self, *values: bytes) -> None:
        """Append one batch, if the log is open, and other work can run now."""
        if not self._in_turn and (log := self.logs.get(KEY)) is not None:
            before = log.end_offset
            append(log, list(values), max(0, log.epochs.latest))
            kept = [each for each in self.appended if log.start_offset < end_of(each) <= before]
            self.appended = [*kept, bytes(log.read(before, 1, log.end_offset))]

    async def fill(self, count: int) -> None:
        """Append batches; then everything is durable and committed."""
        for number in range(count):
            self.append(*[b"%05d" % number] * (1 + number % 3))
        await self.settle()

    async def settle(self) -> None:
        await self.logs.flush_all([self.log])
        self.log.advance_high_watermark(self.log.end_offset)

    async def move(self, to: int = 1) -> None:
        """Move the log, until nothing is left to move."""
        await self.logs.moves.request({KEY: self.ids[to]})
        await self.run()

    def begin(self) -> asyncio.Task[None]:
        self.runner = asyncio.create_task(self.logs.moves.run(lambda: 5_000))
        return self.runner

    async def run(self) -> None:
        """Run the moves until none is left, or the process has stopped."""
        task = self.begin()
        await until(lambda: not self.logs.moves.targets or task.done() or self.is_stopped)
        for _ in range(DELETION_TURNS):  # a move that was given up deletes its copy afterwards
            working = [disk for disk in self.disks if disk.directory_id not in self.logs.failed_disks]
            if self.is_stopped or not any(disk.list("futures") for disk in working):
                break
            await asyncio.sleep(0.005)
        await self.end_runner()

    async def end_runner(self) -> None:
        if self.runner is not None:
            self.runner.cancel()
            await asyncio.gather(self.runner, return_exceptions=True)
            self.runner = None
        if self.logs.moves._deciding is not None:
            await asyncio.wait([self.logs.moves._deciding])
            if self.logs.moves._deciding.done() and not self.logs.moves._deciding.cancelled():
                self.logs.moves._deciding.exception()

    async def end(self) -> None:
        """End the process, without a clean stop."""
        self.is_stopped = True
        await self.end_runner()
        for task in self.logs._tasks:
            task.cancel()
        await asyncio.gather(*self.logs._tasks, return_exceptions=True)

    async def restart(self, *, power_cut: bool = False) -> None:
        await self.end()
        for disk in self.disks:
            if power_cut:
                disk.crash()
            else:
                disk.process_ends()
            disk.repaired()
        self.is_stopped, self.stop_at, self.on_operation = False, -1, lambda: None
        self._may_append, self._in_turn = True, False
        await self.start()

    def check(self) -> None:
        """Check that the log exists once, has all acknowledged records, and has only records that were appended."""
        assert not self.logs.failures
        assert not self.logs.doubles
        assert self.log.end_offset >= self.acknowledged
        found = batches_of(self.log)
        assert found == self.appended[: len(found)]

    def check_moved(self, at: int = 1) -> None:
        """Check that the log is in this directory, and that nothing remains of a move."""
        self.check()
        assert self.log.directory_id == self.ids[at]
        for number, disk in enumerate(self.disks):
            assert disk.list("futures") == []
            assert (FOLDER in disk.list("logs")) == (number == at)
            assert disk.facts.load("moving/") == disk.facts.load("future/") == {}
        other = self.disks[1 - at]
        assert other.facts.load("log/") == other.facts.load("folder/") == other.facts.load("watermark/") == {}
