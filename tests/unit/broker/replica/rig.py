"""Broker 1 of a cluster: real logs on real disks, but no connections, and nothing happens by itself.

The metadata changes by the controller's own decisions (`rig.cluster`); `learn` has the broker carry it out.  Other
brokers' fetches come from `fetch`, replies to the broker's own fetches from `reply`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from broker.core.fetch_session import FetchTarget
from broker.core.partition import LeaderState
from broker.kafka.api import FetchPartition, FetchPlan, FetchResult, ProduceResult
from broker.log import PartitionLog
from broker.replica.context import ReplicaContext
from broker.replica.fetchers import Fetcher
from broker.replica.replica import Replica
from broker.replica.service import ReplicaService
from broker.server.role import BrokerRole, RoleConfig
from metadata.image import ClusterImage
from metadata.records import NO_OFFSET, PartitionChange, Reason
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.fetch import FetchedPartition, FetchedReply
from tests.unit.broker.log.batches import make_batch
from tests.unit.metadata.builders import Cluster

TOPIC = "t"


class _NoTasks:
    """Stands for the task group: what would run by itself never does."""

    def create_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Future[None]:
        work.close()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future


class Rig:
    def __init__(self, folders: list[Path]) -> None:
        self.cluster = Cluster()
        self._disks = [FileDisk.acquire(folder, 1, "cluster", uuid4) for folder in folders]
        self._known = ClusterImage()

        async def nobody(*_: object) -> Any:
            raise AssertionError("the controller is not asked")

        self.role = BrokerRole(RoleConfig(1), Sources.real(), self._disks, self.cluster, nobody)  # type: ignore[arg-type]
        self.role.follower._on_applied = lambda _: None  # nobody heartbeats

    @property
    def unreported(self) -> list[tuple[int, UUID]]:
        """Partition indexes and directories that the controller is not told yet."""
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

    async def register(self, number: int = 0) -> None:
        """As the incarnation `number`, unfenced, and with all metadata up to there carried out."""
        assert self.cluster.register(1, number, directory_ids=self.directories).outcome.ok
        assert not self.cluster.beat(1).fenced
        self.role.follower.activate(self.cluster.epoch(1))
        await self.learn()

    async def learn(self) -> None:
        """Carry out all metadata that there is."""
        old, self._known = self._known, self.cluster.image
        follower = self.role.follower
        records = tuple(self.cluster.log[-(self._known.end_offset - old.end_offset) :])
        if self._known.end_offset > old.end_offset:
            follower.on_batch(old, self._known, records, old.end_offset, self._known.end_offset, 0)
        if not follower._active:
            follower._active = True
            await follower._touch_everything()
        await follower._apply()

    async def create(self, *rows: tuple[int, ...], min_isr: int = 1) -> None:
        """The topic, with this assignment."""
        self.cluster.create(TOPIC, *rows, configs=(("min.insync.replicas", str(min_isr)),))
        await self.learn()

    async def change(self, **fields: Any) -> None:
        """Partition 0 changes: its leader (which begins another leader epoch), its isr, …"""
        partition = self.hosted().image
        self.cluster.apply(
            [PartitionChange(self.hosted().topic_id, 0, Reason.ISR_SHRINK, NO_OFFSET, partition.last_offset, **fields)]
        )
        await self.learn()

    # -- as a leader

    def produce(self, *values: bytes, acks: int = -1, timeout_ms: int = 60_000) -> asyncio.Future[ProduceResult]:
        return self.replicas.start_produce(TOPIC, 0, memoryview(make_batch(values)), acks, timeout_ms)

    async def write(self, *values: bytes) -> None:
        """Append and make durable one batch of the leader's."""
        self.produce(*values)
        await self.role.logs.flush_all([self.log])

    async def fetch(
        self, broker_id: int, offset: int, last_epoch: int, *, leader_epoch: int | None = None, **plan: Any
    ) -> FetchResult:
        """Broker `broker_id` fetches from its position; the answer comes at once."""
        partition = FetchPartition(
            self.hosted().topic_id,
            None,
            0,
            offset,
            1 << 20,
            self.hosted().image.leader_epoch if leader_epoch is None else leader_epoch,
            last_epoch,
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
        """What the next fetch from this leader says of partition 0."""
        return self.fetcher(leader_id)._session.target(self.hosted().partition)

    async def reply(self, leader_id: int, records: bytes = b"", **fields: Any) -> None:
        """This leader is asked for partition 0, and answers."""
        fetcher = self.fetcher(leader_id)
        request = fetcher._session.build()
        said: dict[str, Any] = {
            "error_code": 0,
            "high_watermark": 0,
            "log_start_offset": 0,
            "diverging_epoch": -1,
            "diverging_end": -1,
            **fields,
        }
        part = FetchedPartition(
            topic_id=self.hosted().topic_id,
            topic=None,
            index=0,
            last_stable_offset=said["high_watermark"],
            records=memoryview(records),
            leader_id=-1,
            leader_epoch=-1,
            **said,
        )
        await fetcher._on_reply(request, FetchedReply(0, 77, [part]))


@asynccontextmanager
async def running(folder: Path, directories: int = 1) -> AsyncIterator[Rig]:
    """Broker 1, whose logs are open and which is not registered yet; brokers 2 and 3 are."""
    rig = Rig([folder / f"disk{number}" for number in range(directories)])
    rig.role.fetchers.start(_NoTasks())  # type: ignore[arg-type]
    await rig.role.__aenter__()
    rig.cluster.start(2, 3)
    try:
        yield rig
    finally:
        await rig.role.close(clean=False)
        for disk in rig._disks:
            disk.close()
