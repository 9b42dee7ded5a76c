"""Makes log starts durable that DeleteRecords or a leader has moved.

Retention moves log starts as well, but writes them itself (`LogManager.maintain`).
"""

from __future__ import annotations

import asyncio

from broker.core.fetch_session import PartitionKey
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger

logger = get_logger("broker")


class LogStarts:
    """Writes all log starts that have moved since its last write together.

    Afterwards `low_watermark_moved` reports each leader, and `flushed` each follower, whose next fetch reports its new
    start to the leader.
    """

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._context = table.context
        self._moved: dict[PartitionKey, None] = {}
        self._news = asyncio.Event()
        self._context.events.start_moved.subscribe(self._note)

    def _note(self, replica: Replica) -> None:
        self._moved[replica.partition] = None
        self._news.set()

    async def run(self) -> None:
        """Write the starts, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.write()

    async def write(self) -> None:
        """Write the starts that have moved.  Those that move meanwhile wait for the next call."""
        keys = list(self._moved)
        self._moved.clear()
        moved = [
            (replica, replica.log) for key in keys if (replica := self._table.get(key)) and replica.log is not None
        ]
        try:
            await self._context.logs.checkpoint([log for _, log in moved])
        except DiskError as error:
            # The replicas of that directory are offline now.  The other directories are written with the next call.
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
                replica.ensure_flush()
