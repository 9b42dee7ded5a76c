"""Makes log starts durable after DeleteRecords or a leader has moved them.

Retention moves log starts as well, but writes them itself (`LogManager.maintain`).
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.log import PartitionLog
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger

logger = get_logger("broker")


_Moved = dict[UUID, list[tuple[Replica, PartitionLog]]]
"""By data directory: the replicas whose log starts have moved."""


class LogStarts:
    """Writes the log starts that have moved, with one write for each data directory.

    A directory that hangs delays only the log starts in it.  After a write, `low_watermark_moved` is reported for each
    leader, and `flushed` for each follower.  The follower's next fetch then reports its new start to the leader.
    """

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._context = table.context
        self._moved: dict[PartitionKey, None] = {}
        self._writing: dict[UUID, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._context.events.start_moved.subscribe(self._note)

    def _note(self, replica: Replica) -> None:
        self._moved[replica.partition] = None
        self._news.set()

    async def run(self) -> None:
        """Write the starts, until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                for directory_id in [each for each, writing in self._writing.items() if writing.done()]:
                    self._writing.pop(directory_id).result()
                for directory_id, moved in self._take().items():
                    writing = self._writing[directory_id] = loop.create_task(self._write(moved))
                    writing.add_done_callback(lambda _: self._news.set())
        finally:
            for writing in self._writing.values():
                writing.cancel()

    async def write(self) -> None:
        """Write the starts that have moved.  Starts that move meanwhile wait for the next call."""
        await asyncio.gather(*map(self._write, self._take().values()))

    def _take(self) -> _Moved:
        """Return the starts to write now.  If a write to a directory is under way, the starts in it wait."""
        taken: _Moved = {}
        for key in list(self._moved):
            replica = self._table.get(key)
            if replica is not None and replica.log is not None:
                if replica.log.directory_id in self._writing:
                    continue
                taken.setdefault(replica.log.directory_id, []).append((replica, replica.log))
            del self._moved[key]
        return taken

    async def _write(self, moved: list[tuple[Replica, PartitionLog]]) -> None:
        try:
            await self._context.logs.checkpoint([log for _, log in moved])
        except DiskError as error:  # the replicas of that directory are offline now
            logger.error("log starts not written", cause=str(error))
            for replica, log in moved:
                if replica.log is log and log.durable_start_offset < log.start_offset:
                    self._note(replica)
        events = self._context.events
        for replica, log in moved:
            if replica.log is not log:
                continue
            if replica.leader is not None:
                events.low_watermark_moved(replica)
            elif replica.follower is not None:
                replica.report_when_flushed()
