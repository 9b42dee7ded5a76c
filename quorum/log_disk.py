"""Connects the core to its store: merges waiting writes into one transaction, reads batches for lagging replicas.

All waiting writes go into one `store.write`, so that one fsync serves them all (group commit).  Batches that are not
durable yet, and many before them, are kept in memory.  Older batches are read from the store.  The reads for lagging
replicas run one at a time, which bounds the memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from quorum.core.events import Event, LogRead, ReadLog, Write, Written
from quorum.core.types import Batch
from quorum.ports import QuorumStore, StoreWrite
from quorum.recent import RecentBatches

RECENT_MAX_BYTES = 16 << 20
"""Maximum size of the batches near the log's end that are kept in memory for the applier and lagging replicas."""


class LogDisk:
    """The log of one node, in memory and in the store.

    post: queues an event for the core.  linger_ms: returns how long a write of data alone may now wait for further
    writes.  fsynced: called with the duration of each transaction in seconds.
    """

    def __init__(
        self,
        store: QuorumStore,
        log_end: int,
        post: Callable[[Event], None],
        linger_ms: Callable[[], int],
        fsynced: Callable[[float], None],
    ) -> None:
        self._store = store
        self._recent = RecentBatches(log_end, RECENT_MAX_BYTES)
        self._post = post
        self._linger_ms = linger_ms
        self._fsynced = fsynced
        self._writes: deque[Write] = deque()
        self._write_wake = asyncio.Event()
        self._reads: deque[ReadLog] = deque()
        self._read_wake = asyncio.Event()

    def submit(self, effect: Write | ReadLog) -> None:
        """Queue a write or a read.  Never waits: the result is the event `Written` or `LogRead`."""
        match effect:
            case Write():
                self._recent.add(effect)
                self._writes.append(effect)
                self._write_wake.set()
            case ReadLog():
                self._reads.append(effect)
                self._read_wake.set()

    def written(self, write_id: int) -> None:
        """Note that all writes up to this write are durable, so the copies in memory may be dropped."""
        self._recent.written(write_id)

    async def read(self, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        """Return batches from `start` on, below `end`: about `max_bytes`, but at least one batch if one exists."""
        if start >= self._recent.start:
            return self._recent.read(start, end, max_bytes)
        return await self._store.read(start, min(end, self._recent.start), max_bytes)

    async def run_writer(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._write_wake.wait()
            self._write_wake.clear()
            while self._writes:
                linger_ms = self._linger_ms()
                if linger_ms and all(map(_is_data, self._writes)):
                    await asyncio.sleep(linger_ms / 1000)  # let further writes share the fsync
                writes = list(self._writes)
                self._writes.clear()
                began = loop.time()
                await self._store.write(
                    [StoreWrite(one.state, one.truncate_to, one.batches, one.base) for one in writes]
                )
                self._fsynced(loop.time() - began)
                self._post(Written(writes[-1].id))

    async def run_reader(self) -> None:
        """Read batches that are no longer in memory, for lagging replicas."""
        while True:
            await self._read_wake.wait()
            self._read_wake.clear()
            while self._reads:
                read = self._reads.popleft()
                batches = await self.read(read.start, read.end, read.max_bytes)
                self._post(LogRead(read.read_id, batches))


def _is_data(write: Write) -> bool:
    """Return whether a write holds only data batches.  Votes, truncations and control records never linger."""
    return bool(write.batches) and write.truncate_to is None and all(one.control is None for one in write.batches)
