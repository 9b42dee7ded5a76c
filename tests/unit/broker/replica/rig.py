"""Broker 1 of a cluster: real logs on real disks, without connections and without background work.

The controller's real decisions change the metadata (`rig.cluster`), and so does `alter`; `learn` makes the broker apply
the metadata.  `fetch` sends a fetch of another broker or of a consumer; `reply` answers a fetch of this broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from broker.core.fetch_session import FetchTarget
from broker.core.partition import LeaderState
from broker.kafka.api import FetchPartition, FetchPlan, FetchResult, ProduceResult
from broker.log import PartitionLog
from broker.replica.context import ReplicaContext
from broker.replica.fetcher import Fetcher
from broker.replica.replica import Replica
from broker.replica.service import ReplicaService
from broker.server.role import BrokerRole, Replay, RoleConfig
from metadata.image import ClusterImage
from metadata.records import NO_OFFSET, PartitionChange, Reason
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.fetch import FetchedPartition, FetchedReply
from tests.unit.broker.log.batches import make_batch
from tests.unit.metadata.builders import Cluster

TOPIC = "t"


class NoTasks:
    """A task group whose tasks never run."""

    def create_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Future[None]:
        work.close()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future


def hanging_commits(patches: pytest.MonkeyPatch, disk: FileDisk) -> asyncio.Event:
    """Let the commits of the facts of this disk wait until the returned event is set."""
    commit, works_again = disk.facts.commit, asyncio.Event()

    async def hangs(changes: dict[str, bytes | None]) -> None:
        await works_again.wait()
        await commit(changes)

    patches.setattr(disk.facts, "commit", hangs)
    return works_again


class Rig:
    def __init__(self, folders: list[Path]) -> None:
        self.cluster = Cluster()
        self._disks = [FileDisk.acquire(folder, 1, "cluster", uuid4) for folder in folders]
        self._known = ClusterImage()

        async def nobody(*_: object) -> Any:
            raise AssertionError("the controller is not asked")

        replay = cast(Replay, self.cluster)  # before its start, the role reads only the image of the replay
        self.role = BrokerRole(RoleConfig(1), Sources.real(), self._disks, replay, nobody)
        self.role.follower._on_applied = lambda _: None  # no heartbeats are sent

    @property
    def unreported(self) -> list[tuple[int, UUID]]:
        """Partition indexes and directories that were not reported to the controller yet."""
        return [(key.partition_index, each) for key, each in self.role.directories._unreported.items()]

    @property
    def replicas(self) -> ReplicaService:
        return self.role.replicas

    @property
    def context(self) -> ReplicaContext:
        return self.role.context

    @property
    def directories(self) -> tuple[UUID, ...]:
        return tuple(disk.directory_id for disk in self._disks)

    def hosted(self, index: int = 0) -> Replica:
        found = self.role.table.find(TOPIC, index)
        assert found is not None
        return found

    @property
    def log(self) -> PartitionLog:
        log = self.hosted().log
        assert log is not None, self.hosted().offline
        return log

    @property
    def leader(self) -> LeaderState:
        leader = self.hosted().leader
        assert leader is not None, self.hosted()
        return leader

    # -- metadata

    async def register(self, number: int = 0, **changes: Any) -> None:
        """Register incarnation `number`, have it unfenced, and apply all existing metadata."""
        assert self.cluster.register(1, number, directory_ids=self.directories, **changes).outcome.ok
        assert not self.cluster.beat(1).fenced
        self.role.follower.activate(self.cluster.epoch(1))
        await self.learn()

    async def learn(self) -> None:
        """Apply all existing metadata."""
        old, self._known = self._known, self.cluster.image
        follower = self.role.follower
        records = tuple(self.cluster.log[-(self._known.end_offset - old.end_offset) :])
        if self._known.end_offset > old.end_offset:
            follower.on_batch(old, self._known, records)
        if not follower._active:
            follower._active = True
            await follower._touch_everything()
        await follower._apply()

    async def create(self, *rows: tuple[int, ...], min_isr: int = 1) -> None:
        """Create the topic with this assignment."""
        self.cluster.create(TOPIC, *rows, configs=(("min.insync.replicas", str(min_isr)),))
        await self.learn()

    async def change(self, **fields: Any) -> None:
        """Change partition 0: its leader (which begins another leader epoch), its isr, …"""
        self.alter(**fields)
        await self.learn()

    def alter(self, **fields: Any) -> None:
        """Change partition 0 in the metadata, without the broker's knowledge."""
        topic_id = self.hosted().topic_id
        last_offset = self.cluster.partition(topic_id).last_offset
        self.cluster.apply([PartitionChange(topic_id, 0, Reason.ISR_SHRINK, NO_OFFSET, last_offset, **fields)])

    # -- as a leader

    def produce(self, *values: bytes, acks: int = -1, timeout_ms: int = 60_000) -> asyncio.Future[ProduceResult]:
        return self.replicas.start_produce(TOPIC, 0, memoryview(make_batch(values)), acks, timeout_ms)

    async def write(self, *values: bytes) -> None:
        """Append one batch as the leader, and make it durable."""
        self.produce(*values)
        await self.role.logs.flush_all([self.log])

    async def fetch(
        self,
        broker_id: int,
        offset: int,
        last_epoch: int,
        *,
        leader_epoch: int | None = None,
        log_start: int = 0,
        **plan: Any,
    ) -> FetchResult:
        """Fetch as broker `broker_id` from its position; return the immediate answer."""
        partition = FetchPartition(
            self.hosted().topic_id,
            None,
            0,
            offset,
            1 << 20,
            self.hosted().image.leader_epoch if leader_epoch is None else leader_epoch,
            last_epoch,
            log_start,
        )
        epoch = self.cluster.epoch(broker_id) if broker_id >= 0 else -1
        fields = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "broker_epoch": epoch, **plan}
        reply = await self.replicas.fetch(FetchPlan((partition,), replica_id=broker_id, **fields))
        assert reply.error_code == KafkaCode.NONE
        return reply.results[0]

    # -- as a follower

    def fetcher(self, leader_id: int) -> Fetcher:
        return self.role.fetchers._fetchers[leader_id]

    def target(self, leader_id: int) -> FetchTarget | None:
        """Return the entry for partition 0 in the next fetch from this leader."""
        return self.fetcher(leader_id)._session.target(self.hosted().partition)

    def part(self, index: int, records: bytes = b"", **fields: Any) -> FetchedPartition:
        """Return the answer of a leader for this partition."""
        said: dict[str, Any] = {
            "error_code": 0,
            "high_watermark": 0,
            "log_start_offset": 0,
            "diverging_epoch": -1,
            "diverging_end": -1,
            **fields,
        }
        return FetchedPartition(
            topic_id=self.hosted(index).topic_id,
            topic=None,
            index=index,
            last_stable_offset=said["high_watermark"],
            records=memoryview(records),
            leader_id=-1,
            leader_epoch=-1,
            **said,
        )

    async def reply(self, leader_id: int, records: bytes = b"", *, flush: bool = True, **fields: Any) -> None:
        """Request partition 0 from this leader, and process its answer.  flush: a truncation also becomes durable."""
        fetcher = self.fetcher(leader_id)
        request = fetcher._session.build()
        await fetcher._on_reply(request, FetchedReply(0, 77, [self.part(0, records, **fields)]))
        if flush and (log := self.hosted().log) is not None and log.durability.is_truncating:
            await self.role.logs.flush_all([log])
        if fetcher._bug is not None:
            raise fetcher._bug


@asynccontextmanager
async def running(folder: Path, directories: int = 1) -> AsyncIterator[Rig]:
    """Broker 1 with open logs, not registered yet; brokers 2 and 3 are registered."""
    rig = Rig([folder / f"disk{number}" for number in range(directories)])
    rig.role.fetchers.start(cast(asyncio.TaskGroup, NoTasks()))
    await rig.role.__aenter__()
    rig.cluster.start(2, 3)
    try:
        yield rig
    finally:
        await rig.role.close(clean=False)
        for disk in rig._disks:
            disk.close()
