"""The simulated `QuorumStore`: durable data survives a kill; data that is being written may survive or be lost.

Writes that were submitted together are one transaction, which SQLite keeps as a whole or not at all.  After a crash
during the write, or a failed fsync, the whole transaction or nothing of it remains, and the process does not know
which.  In both cases the write was never acknowledged.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from msgspec.structs import replace

from quorum.codec import MalformedError
from quorum.core.types import Batch, LogBase, LogEnd, QuorumState
from quorum.ports import BadSnapshotError, QuorumStore, SnapshotMissingError, StoredQuorum, StoreWrite
from quorum.snapshot_file import SnapshotInfo, SnapshotParser
from quorumlog.errors import CorruptStoreError, FatalError, StoreRefusedError
from quorumlog_server.standing import MemoryStanding
from simulation.kernel.loop import device_wait

HANG_LOOK_S = 0.02
LATENCY_MAX_P99S = 3.0
"""The longest time of a write, as a multiple of the 99th percentile."""


@dataclass(frozen=True, slots=True)
class Latency:
    """The durations of a slow disk's writes: log-normal, given by two percentiles."""

    p50_ms: float
    p99_ms: float

    def draw_ms(self, random: Random) -> float:
        sigma = math.log(self.p99_ms / self.p50_ms) / 2.326
        return min(random.lognormvariate(math.log(self.p50_ms), sigma), LATENCY_MAX_P99S * self.p99_ms)


@dataclass
class QuorumDisk:
    """The durable part of a simulated store, which survives kills.  A wiped disk is a new `QuorumDisk`."""

    random: Random
    node_id: int | None = None
    directory_id: UUID | None = None
    state: QuorumState = field(default_factory=QuorumState)
    batches: list[Batch] = field(default_factory=list)
    locked_by: object | None = None
    fsync_ms: tuple[float, float] = (0.2, 2.0)  # uniform
    usual: Latency | None = None  # of a permanently slow disk; a fault may make it slower
    slowest_ms: float = 0.0  # the longest sync so far, by the clock of its process
    hangs: bool = False  # no write ends
    full: bool = False  # each write fails, and none of it is kept
    fails: bool = False  # the next write fails; chance decides whether it is kept
    has_failed: bool = False  # in the current process
    watch: Callable[[StoreWrite], None] | None = None  # called with each write that has become durable
    in_flight: Sequence[StoreWrite] = ()
    on_write: Callable[[], None] | None = None  # called when a write begins
    on_part: Callable[[], None] | None = None  # called when a snapshot has grown
    torn: Counter[str] = field(default_factory=Counter)  # outcomes of writes that a crash interrupted
    standing: MemoryStanding = field(default_factory=MemoryStanding)
    watch_snapshot: Callable[[LogEnd, bytes], None] | None = None  # called with each finished snapshot
    base: LogBase | None = None
    snapshots: dict[LogEnd, bytes] = field(default_factory=dict)
    parts: dict[LogEnd, bytes] = field(default_factory=dict)  # of snapshots that are being written

    @property
    def log_start(self) -> int:
        return 0 if self.base is None else self.base.end.offset

    @property
    def log_end(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.log_start

    def crash(self) -> None:
        """End the process.  The transaction that was being written is kept or lost as a whole."""
        writes, self.in_flight = self.in_flight, ()
        if writes:
            kept = self.random.random() < 0.5
            self.torn["torn write kept" if kept else "torn write lost"] += 1
            if kept:
                self.apply_all(writes)
        self.locked_by = None
        self.fails = False

    def store(self) -> QuorumStore:
        """Return a store for one process."""
        return SimulatedStore(self)

    async def wait(self) -> None:
        """Wait for as long as a sync takes."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        took_ms = self.random.uniform(*self.fsync_ms)
        if self.usual is not None:
            took_ms = max(took_ms, self.usual.draw_ms(self.random))
        await device_wait(took_ms / 1000)
        while self.hangs:  # noqa: ASYNC110
            await asyncio.sleep(HANG_LOOK_S)
        self.slowest_ms = max(self.slowest_ms, 1000 * (loop.time() - began))

    def lose_power(self) -> None:
        """Lose or zero the end of each unfinished snapshot, because it was not synced."""
        for end, part in sorted(self.parts.items()):
            kept = self.random.randrange(len(part) + 1)
            zeros = self.random.randrange(len(part) - kept + 1)
            self.parts[end] = part[:kept] + bytes(zeros)
            self.torn["torn download" if end.offset > self.log_end else "torn snapshot"] += 1

    def apply_all(self, writes: Sequence[StoreWrite]) -> None:
        for write in writes:
            self.apply(write)
            if self.watch is not None:
                self.watch(write)

    def apply(self, write: StoreWrite) -> None:
        """Make a write durable at once.  Its batches must continue the log without a gap."""
        if write.truncate_to is not None:
            self.batches = [batch for batch in self.batches if batch.end_offset <= write.truncate_to]
        if write.base is not None:
            self.base = write.base
            self.batches = [batch for batch in self.batches if batch.base_offset >= self.log_start]
        for batch in write.batches:
            end = self.log_end
            assert batch.base_offset == end, f"gap: batch at {batch.base_offset}, log end {end}"
            self.batches.append(batch)
        self.state = write.state


class SimulatedStore:
    """Implements `quorum.ports.QuorumStore` on a `QuorumDisk`.

    A write takes `fsync_ms`.  If the process is killed meanwhile, the write is kept or lost.
    """

    def __init__(self, disk: QuorumDisk) -> None:
        self._disk = disk

    async def open(self, node_id: int, cluster_id: str | None) -> StoredQuorum:
        disk = self._disk
        if disk.directory_id is None:
            disk.node_id, disk.directory_id = node_id, UUID(int=disk.random.getrandbits(128), version=4)
        if disk.node_id != node_id:
            raise StoreRefusedError(f"the disk belongs to node {disk.node_id}, not to node {node_id}")
        if cluster_id is not None and disk.state.cluster_id not in (None, cluster_id):
            raise StoreRefusedError(f"the disk belongs to cluster {disk.state.cluster_id}, not to {cluster_id}")
        disk.locked_by, disk.has_failed = self, False
        kept = max(disk.parts, key=lambda end: end.offset, default=None)
        disk.parts = {kept: disk.parts[kept]} if kept is not None and kept.offset > disk.log_end else {}
        epochs: list[tuple[int, int]] = []
        for batch in disk.batches:
            if not epochs or epochs[-1][0] != batch.epoch:
                epochs.append((batch.epoch, batch.base_offset))
        stored = StoredQuorum(
            node_id=node_id,
            directory_id=disk.directory_id,
            state=disk.state,
            log_start=disk.log_start,
            log_end=disk.log_end,
            epochs=tuple(epochs),
            controls=tuple(batch for batch in disk.batches if batch.control is not None),
            base=disk.base,
        )
        return replace(stored, snapshots=self._usable_snapshots(stored))

    def _usable_snapshots(self, stored: StoredQuorum) -> tuple[LogEnd, ...]:
        disk = self._disk
        ends = sorted(disk.snapshots, key=lambda end: end.offset)
        usable = tuple(end for end in ends if stored.goes_on_from(end))
        if disk.log_start > 0 and not usable:
            raise CorruptStoreError(f"the log starts at {disk.log_start}, and no snapshot holds the earlier records")
        return usable

    async def write(self, writes: Sequence[StoreWrite]) -> None:
        """Make the writes durable when the sync ends.  After a kill during the sync, all or none of them are kept."""
        disk = self._disk
        assert disk.locked_by is self, "two processes on one disk"
        assert not disk.in_flight, "two transactions at once"
        disk.in_flight = writes
        if disk.on_write is not None:
            disk.on_write()
        await disk.wait()
        disk.in_flight = ()
        fails = self._outcome()
        if not fails or disk.random.random() < 0.5:
            disk.apply_all(writes)
        if fails:
            raise FatalError("fsync failed")

    def _outcome(self) -> bool:
        """Return whether this sync fails.

        Raises:
            FatalError: the disk is full, so nothing was written that could be synced.
        """
        disk = self._disk
        if disk.full:
            disk.has_failed = True
            raise FatalError("the disk is full")
        fails, disk.fails = disk.fails, False
        disk.has_failed = disk.has_failed or fails
        return fails

    async def read(self, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        found: list[Batch] = []
        size = 0
        for batch in self._disk.batches:
            if batch.end_offset <= start or batch.base_offset >= end:
                continue
            if found and size + batch.size > max_bytes:
                break
            found.append(batch)
            size += batch.size
        return tuple(found)

    # Snapshots.  A restart keeps all finished snapshots, and the unfinished file of the newest download.

    async def begin_snapshot(self, end: LogEnd, *, resume: bool) -> int:
        disk = self._disk
        have = disk.parts.get(end, disk.snapshots.get(end, b"")) if resume else b""
        if resume:  # one download at a time
            disk.parts = {other: part for other, part in disk.parts.items() if other.offset <= disk.log_end}
        disk.parts[end] = have
        return len(have)

    async def extend_snapshot(self, end: LogEnd, position: int, data: bytes) -> None:
        part = self._disk.parts[end]
        assert len(part) == position, f"{len(data)} bytes at {position} of a snapshot of {len(part)} bytes so far"
        if self._disk.full:
            self._disk.has_failed = True
            raise FatalError("the disk is full")
        self._disk.parts[end] = part + data
        if self._disk.on_part is not None:
            self._disk.on_part()

    async def finish_snapshot(self, end: LogEnd) -> SnapshotInfo:
        disk = self._disk
        await disk.wait()
        if self._outcome():
            raise FatalError("fsync failed")
        data = disk.parts.pop(end)
        try:
            info = _look(data)
            if info.end != end:
                raise MalformedError(f"it ends at {info.end}, not {end}")
        except MalformedError as error:
            if end in disk.snapshots and data.startswith(disk.snapshots[end]):
                del disk.snapshots[end]  # the download resumed from this snapshot
            disk.torn["download refused as damaged"] += 1
            raise BadSnapshotError(str(error)) from error
        disk.snapshots[end] = data
        if disk.watch_snapshot is not None:
            disk.watch_snapshot(end, data)
        return info

    async def set_snapshot_aside(self, end: LogEnd) -> None:
        self._disk.snapshots.pop(end, None)

    async def snapshots(self) -> tuple[SnapshotInfo, ...]:
        kept = self._disk.snapshots
        return tuple(
            info for end in sorted(kept, key=lambda end: end.offset) if (info := _intact(kept[end])) is not None
        )

    async def read_snapshot(self, end: LogEnd, position: int, max_bytes: int) -> tuple[int, bytes]:
        data = self._disk.snapshots.get(end)
        if data is None:
            raise SnapshotMissingError(f"no snapshot {end}")
        return len(data), data[position : position + max_bytes]

    async def delete_snapshot(self, end: LogEnd) -> None:
        self._disk.snapshots.pop(end, None)

    async def close(self, *, leave_files: bool = False) -> None:
        if self._disk.locked_by is self:
            self._disk.crash()  # the disk may still be executing a cancelled write


def _look(data: bytes) -> SnapshotInfo:
    parser = SnapshotParser()
    for _ in parser.feed(data):
        pass  # only checked
    return SnapshotInfo(parser.finish(), len(data))


def _intact(data: bytes) -> SnapshotInfo | None:
    try:
        return _look(data)
    except MalformedError:
        return None
