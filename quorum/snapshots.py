"""`Snapshotter`: takes, retains, sends and receives the snapshots of one node.

Theory of operation.  There are four tasks, and no commit waits for any of them:

- The taker waits until enough has been applied since the last snapshot, or enough time has passed.  It then writes a
  snapshot of the state machine's immutable state, one piece at a time.  It yields to other tasks after each piece, and
  every write runs in the executor.  At the end it reports the snapshot to the core and applies retention.
- The receiver executes, in order, the core's requests while this node fetches a snapshot.
- The sender reads parts of this node's snapshots for other nodes.
- The checker reads a whole snapshot when another node begins to fetch it, because the file may have been damaged since
  it was written.  If it is damaged, the checker logs its name and has another snapshot taken immediately.  The damaged
  file is set aside only after that, so that the node always has a snapshot to start from, even a damaged one.

A received snapshot is read and decoded in full before it is reported to the core.  The decoded state stays in memory
until the log starts at the snapshot's end; then the applier installs it.

At startup the newest snapshot is loaded.  If it is damaged, this is logged, and older snapshots are tried in turn.  The
log alone is tried last, if it starts at 0.  Damaged snapshots are set aside once the state is restored.  If neither a
snapshot nor the whole log is usable, the node refuses to start, and the log and all snapshots remain as they are.  A
partly received snapshot survives a restart, so that a large download completes eventually.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from quorum.codec import MalformedError
from quorum.core.events import (
    Event,
    LoadSnapshot,
    ReadSnapshot,
    ReceiveSnapshot,
    SnapshotFailed,
    SnapshotLoaded,
    SnapshotPart,
    SnapshotRead,
    SnapshotTaken,
    StoreSnapshotPart,
    TrimLog,
)
from quorum.core.types import Batch, LogBase, LogEnd, StoredQuorum
from quorum.ports import BadSnapshotError, QuorumStore, SnapshotMissingError
from quorum.snapshot_file import SnapshotHeader, SnapshotInfo, SnapshotParser, SnapshotWriter, snapshot_name
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import CautiousClock, Sources, now_ms
from quorumlog.runtime.garbage import made_to_last
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn

PIECE_BYTES = 256 << 10
"""Size of one write of a snapshot, and of one read when it is loaded."""
CHECK_EVERY_S = 60.0
"""Minimum time between two checks of a snapshot that other nodes fetch repeatedly."""

logger = get_logger("quorum")


class Loader(Protocol):
    """Decodes the chunks of a snapshot, in order; `finish` returns the state that they encode.

    Both methods raise CorruptStoreError if the chunks are not in the format of this version.
    """

    def feed(self, chunk: bytes) -> None: ...

    def finish(self) -> Any: ...


class SnapshotMachine(Protocol):
    """The methods of a state machine for snapshots."""

    def snapshot(self) -> Iterator[bytes]:
        """Return an iterator over the state at the time of this call, in chunks.  Later changes do not affect it.

        An empty chunk is not part of the state: it only lets other tasks run.
        """
        ...

    def loader(self, source: str) -> Loader:
        """Return a loader for one snapshot.  source: its name in errors."""
        ...

    def load_snapshot(self, state: Any) -> None:
        """Replace the state by one that a loader returned, instead of applying the batches up to its end."""
        ...


class SnapshotPolicy(msgspec.Struct, frozen=True):
    """When to take snapshots, and which to keep.

    A snapshot is taken when `log_bytes` were applied since the last snapshot, or when anything was applied and
    `interval_ms` have passed.  Snapshots and the log between them are kept for `retain_ms` and up to `retain_bytes` in
    total, which counts `log_bytes` of log per snapshot.  The newest snapshot and the log after it are always kept.  The
    cluster configs metadata.retention.ms and metadata.retention.bytes override this policy.
    """

    log_bytes: int = 20 << 20
    interval_ms: int = 60 * 60 * 1000
    retain_ms: int = 7 * 24 * 60 * 60 * 1000
    retain_bytes: int = 1 << 30

    def oldest_kept(self, snapshots: tuple[SnapshotInfo, ...], now_ms: int) -> int:
        """Return the index of the oldest snapshot to keep.  `snapshots` are in ascending order."""
        index = len(snapshots) - 1
        size = snapshots[index].size
        while index > 0:
            older = snapshots[index - 1]
            size += older.size + self.log_bytes
            if size > self.retain_bytes or now_ms - older.header.timestamp_ms > self.retain_ms:
                break
            index -= 1
        return index

    def keeps_beginning(self, snapshots: tuple[SnapshotInfo, ...], now_ms: int) -> bool:
        """Return whether to keep the log before the very first snapshot as well.  The same limits apply to it."""
        size = sum(info.size + self.log_bytes for info in snapshots)
        return size <= self.retain_bytes and now_ms - snapshots[0].header.timestamp_ms <= self.retain_ms


class Snapshotter:
    """The snapshots of one node.

    post: queues an event for the core.
    restored_end: end offset of the state that `restore` has loaded; 0 if it has loaded none.
    """

    def __init__(
        self,
        store: QuorumStore,
        machine: SnapshotMachine,
        sources: Sources,
        post: Callable[[Event], None],
        policy: SnapshotPolicy,
    ) -> None:
        self._store = store
        self._machine = machine
        self._sources = sources
        self._clock = CautiousClock()
        self._post = post
        self._configured = self._policy = policy
        self.restored_end = 0
        self._bad: set[LogEnd] = set()  # damaged snapshots that are not set aside yet
        self._applied_bytes = 0
        self._taken = 0  # end offset of the snapshot taken last
        self._due = asyncio.Event()
        self._incoming: deque[ReceiveSnapshot | StoreSnapshotPart | LoadSnapshot] = deque()
        self._incoming_wake = asyncio.Event()
        self._reads: deque[ReadSnapshot] = deque()
        self._read_wake = asyncio.Event()
        self._loaded: tuple[LogEnd, Any] | None = None
        self._to_check: LogEnd | None = None
        self._checked_at: tuple[LogEnd, float] | None = None  # the snapshot checked last, and the loop time
        self._check_wake = asyncio.Event()

    def tasks(self, base: Callable[[], LogBase | None]) -> list[tuple[str, Coroutine[None, None, None]]]:
        """Return the named tasks to run until the node stops.

        base: returns the part of the log that a snapshot taken now would replace.
        """
        return [
            ("snapshot taker", self._run_taker(base)),
            ("snapshot receiver", self._run_receiver()),
            ("snapshot sender", self._run_sender()),
            ("snapshot checker", self._run_checker()),
        ]

    def submit(self, effect: ReadSnapshot | ReceiveSnapshot | StoreSnapshotPart | LoadSnapshot) -> None:
        """Queue an effect of the core.  At most one receiving effect is open at a time, and one read per request."""
        if isinstance(effect, ReadSnapshot):
            self._reads.append(effect)
            self._read_wake.set()
        else:
            self._incoming.append(effect)
            self._incoming_wake.set()

    def keep_history(self, retain_ms: int | None, retain_bytes: int | None) -> None:
        """Set how much history is kept, from the next snapshot on.  None: the value of the configured policy."""
        policy = self._configured
        self._policy = replace(
            policy,
            retain_ms=policy.retain_ms if retain_ms is None else retain_ms,
            retain_bytes=policy.retain_bytes if retain_bytes is None else retain_bytes,
        )

    def applied(self, batch: Batch) -> None:
        """Count a batch that was applied.  After `log_bytes` of batches, a snapshot is taken."""
        self._applied_bytes += batch.size
        if self._applied_bytes >= self._policy.log_bytes:
            self._due.set()

    def install(self, offset: int) -> None:
        """Hand the received state to the state machine.  The log now starts at `offset`, the snapshot's end."""
        loaded, self._loaded = self._loaded, None
        assert loaded is not None, f"the log starts at {offset}, and no snapshot was loaded"
        assert loaded[0].offset == offset, f"the log starts at {offset}, the snapshot ends at {loaded[0]}"
        self._machine.load_snapshot(loaded[1])
        self._applied_bytes = 0

    # The start

    async def restore(self, stored: StoredQuorum, *, read_only: bool = False) -> StoredQuorum:
        """Load the newest intact snapshot, and return `stored` without newer, damaged snapshots.

        read_only: the damaged snapshots keep their names; otherwise they are set aside.

        Raises:
            CorruptStoreError: the log starts above 0, and no snapshot is intact.
        """
        ends = stored.snapshots
        for count in range(len(ends), 0, -1):
            end = ends[count - 1]
            try:
                state = await self._read_state(end)
            except (MalformedError, CorruptStoreError, SnapshotMissingError) as error:
                self._bad.add(end)
                logger.error("snapshot not used: damaged", snapshot=snapshot_name(end), cause=str(error))
                continue
            self._machine.load_snapshot(state)
            self.restored_end = end.offset
            if not read_only:
                await self._set_bad_aside()
            return replace(stored, snapshots=ends[:count])
        if stored.log_start > 0:
            raise CorruptStoreError(
                f"the log starts at {stored.log_start}, and no snapshot of the earlier records is intact: "
                f"{', '.join(snapshot_name(end) for end in sorted(self._bad))}",
                next_step="replace this disk, or restore the directory; nothing was changed",
            )
        if not read_only:
            await self._set_bad_aside()
        return replace(stored, snapshots=())

    async def _set_bad_aside(self) -> None:
        for end in sorted(self._bad):
            await self._store.set_snapshot_aside(end)
            self._bad.discard(end)

    async def _read_state(self, end: LogEnd) -> Any:
        loader = self._machine.loader(snapshot_name(end))
        with made_to_last():
            await self._read_through(end, loader.feed)
            return loader.finish()

    async def _read_through(self, end: LogEnd, feed: Callable[[bytes], object]) -> None:
        """Pass all chunks of a snapshot to `feed`, and check that the snapshot is complete."""
        parser = SnapshotParser()
        turn = Turn()
        position, size = 0, 1
        while position < size:
            size, data = await self._store.read_snapshot(end, position, PIECE_BYTES)
            position += len(data)
            for chunk in parser.feed(data):
                feed(chunk)
                await turn.passed()
        header = parser.finish()
        if header.base.end != end:
            raise MalformedError(f"it ends at {header.base.end}, not {end}")

    async def state_below(self, offset: int) -> tuple[int, Any] | None:
        """Return (end, state) of the newest intact snapshot that ends at or below `offset`, if one exists."""
        for info in reversed(await self._store.snapshots()):
            if info.end.offset <= offset and info.end not in self._bad:
                try:
                    return info.end.offset, await self._read_state(info.end)
                except SnapshotMissingError:
                    continue  # retention has deleted it meanwhile
                except (MalformedError, CorruptStoreError) as error:  # an older snapshot may be intact
                    self._note_rotten(info.end, str(error))
        return None

    # Taking

    async def _run_taker(self, base: Callable[[], LogBase | None]) -> None:
        self._taken = self.restored_end
        self._read_clock()
        while True:
            try:
                async with asyncio.timeout(self._policy.interval_ms / 1000):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            now = base()
            if now is not None and now.end.offset > self._taken:
                self._applied_bytes, self._taken = 0, now.end.offset
                await self._take(now)
                await self._set_bad_aside()

    async def _take(self, base: LogBase) -> None:
        loop = asyncio.get_running_loop()
        began, end = loop.time(), base.end
        writer = SnapshotWriter()
        pending = bytearray(writer.header(SnapshotHeader(base, self._sources.wall_ms())))
        chunks = self._machine.snapshot()
        position = await self._store.begin_snapshot(end, resume=False)
        for chunk in chunks:
            if chunk:
                pending += writer.chunk(chunk)
            if len(pending) >= PIECE_BYTES:
                await self._store.extend_snapshot(end, position, bytes(pending))
                position += len(pending)
                pending.clear()
            await asyncio.sleep(0)
        pending += writer.footer()
        await self._store.extend_snapshot(end, position, bytes(pending))
        try:
            info = await self._store.finish_snapshot(end)
        except BadSnapshotError as error:
            raise CorruptStoreError(f"the snapshot cannot be read back as it was written: {error}") from error
        logger.info(
            "snapshot taken", end_offset=end.offset, epoch=end.epoch, bytes=info.size, seconds=loop.time() - began
        )
        self._bad.discard(end)
        self._post(SnapshotTaken(end))
        await self._retain(end)

    async def _retain(self, newest: LogEnd) -> None:
        """Apply retention, first to the log and then to the snapshots."""
        there = await self._store.snapshots()
        # A snapshot that was received but is not installed yet ends above `newest`, so it does not count.
        kept = tuple(info for info in there if info.end not in self._bad and info.end.offset <= newest.offset)
        if not kept:
            return
        wall_ms = self._read_clock()
        oldest = self._policy.oldest_kept(kept, wall_ms)
        if oldest == 0 and self._policy.keeps_beginning(kept, wall_ms):
            return
        self._post(TrimLog(kept[oldest].end))
        for info in kept[:oldest]:
            await self._store.delete_snapshot(info.end)

    def _read_clock(self) -> int:
        """Return the wall time for retention."""
        return self._clock.read(self._sources.wall_ms(), now_ms())

    # Receiving

    async def _run_receiver(self) -> None:
        while True:
            await self._incoming_wake.wait()
            self._incoming_wake.clear()
            while self._incoming:
                match self._incoming.popleft():
                    case ReceiveSnapshot(end):
                        have = await self._store.begin_snapshot(end, resume=True)
                        logger.info("receiving snapshot", snapshot=snapshot_name(end), from_position=have)
                        self._post(SnapshotPart(end, have))
                    case StoreSnapshotPart(end, position, data):
                        have = await self._store.begin_snapshot(end, resume=True)
                        if have == position:  # otherwise the part was requested twice and is stored already
                            await self._store.extend_snapshot(end, position, data)
                            have += len(data)
                        self._post(SnapshotPart(end, have))
                    case LoadSnapshot(end):
                        self._post(await self._load(end))

    async def _load(self, end: LogEnd) -> Event:
        try:
            info = await self._store.finish_snapshot(end)
        except BadSnapshotError as error:
            logger.warning("snapshot received is damaged", snapshot=snapshot_name(end), cause=str(error))
            return SnapshotFailed(end, str(error))
        try:
            self._loaded = (end, await self._read_state(end))
        except (MalformedError, SnapshotMissingError) as error:
            raise CorruptStoreError(f"{snapshot_name(end)}: {error}, although it was intact before") from error
        logger.info("snapshot received", end_offset=end.offset, epoch=end.epoch, bytes=info.size)
        self._bad.discard(end)
        return SnapshotLoaded(info.header.base)

    # Sending

    async def _run_sender(self) -> None:
        while True:
            await self._read_wake.wait()
            self._read_wake.clear()
            while self._reads:
                read = self._reads.popleft()
                size, data = 0, None
                if read.position == 0:
                    self._to_check = read.snapshot
                    self._check_wake.set()
                if read.snapshot not in self._bad:
                    try:
                        size, data = await self._store.read_snapshot(read.snapshot, read.position, read.max_bytes)
                    except SnapshotMissingError as error:
                        logger.warning("the requested snapshot does not exist", cause=str(error))
                self._post(SnapshotRead(read.read_id, size, data))

    async def _run_checker(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._check_wake.wait()
            self._check_wake.clear()
            end, before = self._to_check, self._checked_at
            assert end is not None, "woken without a snapshot to check"
            lately = before is not None and before[0] == end and loop.time() - before[1] < CHECK_EVERY_S
            if lately or end in self._bad:
                continue
            self._checked_at = (end, loop.time())
            try:
                await self._read_through(end, _ignore)
            except MalformedError as error:
                self._note_rotten(end, str(error))
            except SnapshotMissingError:
                continue  # retention has deleted it; the sender reports that to the fetching node

    def _note_rotten(self, end: LogEnd, cause: str) -> None:
        """Stop sending a snapshot that was damaged after it was written or received; have another snapshot taken."""
        logger.error("snapshot damaged: another one is taken in its place", snapshot=snapshot_name(end), cause=cause)
        self._bad.add(end)
        self._taken = 0
        self._due.set()


def _ignore(chunk: bytes) -> None:
    pass
