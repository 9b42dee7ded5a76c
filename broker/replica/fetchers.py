"""The fetchers of a broker, one for each leader that the broker follows.

When the role of a replica changes, the replica is assigned to the fetcher of its leader.

All replicas that a reassignment is adding to this broker share one throttle.  Copied bytes are counted when they
arrive.  While they exceed the rate, the partitions of these replicas are left out of the fetch.  Partitions that have
caught up are not left out: they are in the ISR or about to join it, and writes would wait for them.
"""

from __future__ import annotations

import asyncio

from broker.core.fetch_session import PartitionKey
from broker.replica.context import ReplicaContext
from broker.replica.fetcher import Fetcher, Resolve
from broker.replica.replica import Replica
from broker.replica.throttle import ReplicationThrottle


class Fetchers:
    """The fetchers of this broker, by leader.  Their tasks belong to the group given to `start`."""

    def __init__(self, context: ReplicaContext, resolve: Resolve) -> None:
        self.throttle = ReplicationThrottle(self._release)
        self._context = context
        self._resolve = resolve
        self._fetchers: dict[int, Fetcher] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._leaders: dict[PartitionKey, int] = {}
        self._group: asyncio.TaskGroup | None = None
        self._closed = False
        context.events.role_changed.subscribe(self.assign)
        context.events.flushed.subscribe(self.assign)
        context.events.assignment_changed.subscribe(self._reconsider)

    def start(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def assign(self, replica: Replica) -> None:
        """Copy from the leader that this replica follows, and from no other.  If it does not follow, stop copying."""
        follower = replica.follower
        key = replica.partition
        leader_id = follower.leader_id if follower is not None and replica.log is not None else -1
        before = self._leaders.get(key, -1)
        if before not in (-1, leader_id):
            self._fetchers[before].remove(key)
        if leader_id < 0 or self._closed:
            self._leaders.pop(key, None)
            return
        self._leaders[key] = leader_id
        self._fetcher(leader_id).add(replica)

    def _reconsider(self, replica: Replica) -> None:
        leader_id = self._leaders.get(replica.partition, -1)
        if leader_id >= 0:
            self._fetchers[leader_id].reconsider(replica.partition)

    def _release(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.release()

    def counts(self) -> dict[int, int]:
        """Return for each leader the number of partitions copied from it."""
        return {leader_id: len(fetcher) for leader_id, fetcher in self._fetchers.items()}

    def _fetcher(self, leader_id: int) -> Fetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            assert self._group is not None, "start() comes first"
            fetcher = Fetcher(leader_id, self._context, self._resolve, self.throttle)
            self._fetchers[leader_id] = fetcher
            self._tasks[leader_id] = self._group.create_task(fetcher.run(), name=f"fetcher-{leader_id}")
        return fetcher

    async def close(self) -> None:
        """Stop all fetchers permanently."""
        self._closed = True
        await self.stop()

    async def stop(self) -> None:
        """Stop all fetchers.  A replica that is assigned later starts a new one."""
        self.throttle.stop()
        for fetcher in self._fetchers.values():
            await fetcher.stop()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks)
        self._fetchers.clear()
        self._tasks.clear()
        self._leaders.clear()
