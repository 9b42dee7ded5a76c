"""The interface for the Kafka listener: implements `broker.kafka.api.Replicas` from the parts of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Protocol

from broker.core.coordinator.transaction_requests import TransactionSupport
from broker.kafka.api import (
    NO_EPOCH,
    NO_OFFSET,
    ActiveProducer,
    DeletedRecords,
    EpochEndResult,
    FetchPlan,
    FetchReply,
    HostedLog,
    ListOffsetResult,
    ProduceResult,
    ProducerIdResult,
    RequestedMove,
)
from broker.replica.deletions import DeletionService
from broker.replica.fetch import FetchService
from broker.replica.moves import ReplicaMoves
from broker.replica.offsets import OffsetService
from broker.replica.produce import ProduceService
from broker.replica.table import ReplicaTable
from metadata.image import ClusterImage
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode


class ProducerIds(Protocol):
    async def next(self) -> ProducerIdResult: ...


class ReplicaService:
    """Passes requests on to the parts that answer them; answers questions about logs and producers itself."""

    def __init__(self, table: ReplicaTable, random: Random, producer_ids: ProducerIds) -> None:
        """random: draws the ids of fetch sessions."""
        self.table = table
        self.context = table.context
        self.fetches = FetchService(table, random)
        self.produces = ProduceService(table)
        self.deletions = DeletionService(table)
        self.moves = ReplicaMoves(table)
        self._offsets = OffsetService(table)
        self._producer_ids = producer_ids

    @property
    def image(self) -> ClusterImage:
        return self.context.cluster.applied

    def start_produce(
        self,
        topic: str,
        index: int,
        batches: memoryview,
        acks: int,
        timeout_ms: int,
        transactional_id: str | None = None,
        support: TransactionSupport | None = None,
    ) -> asyncio.Future[ProduceResult]:
        return self.produces.start_produce(topic, index, batches, acks, timeout_ms, transactional_id, support)

    async def produce(self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int) -> ProduceResult:
        return await self.produces.start_produce(topic, index, batches, acks, timeout_ms)

    async def fetch(self, request: FetchPlan) -> FetchReply:
        return await self.fetches.fetch(request)

    def start_delete(self, topic: str, index: int, offset: int, timeout_ms: int) -> asyncio.Future[DeletedRecords]:
        return self.deletions.start_delete(topic, index, offset, timeout_ms)

    async def list_offset(
        self,
        topic: str,
        index: int,
        timestamp: int,
        current_leader_epoch: int = NO_EPOCH,
        *,
        read_committed: bool = False,
    ) -> ListOffsetResult:
        return await self._offsets.list_offset(
            topic, index, timestamp, current_leader_epoch, read_committed=read_committed
        )

    def epoch_end(
        self, topic: str, index: int, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> EpochEndResult:
        return self._offsets.epoch_end(topic, index, leader_epoch, current_leader_epoch)

    def hosted_logs(self) -> list[HostedLog]:
        return [
            HostedLog(
                log.directory_id,
                replica.topic,
                replica.key.index,
                log.size,
                max(0, log.high_watermark - log.end_offset),
            )
            for replica in self.table
            if (log := replica.log) is not None
        ] + self.moves.futures()

    async def move_replicas(self, moves: Sequence[RequestedMove]) -> list[KafkaCode]:
        return await self.moves.request(moves)

    def active_producers(self, topic: str, index: int) -> list[ActiveProducer] | int:
        replica = self.table.find(topic, index)
        if replica is None:
            return int(self.table.absent(topic, index)[0])
        found = replica.in_sync_log()
        if isinstance(found, KafkaCode):
            return int(found)
        try:
            producers = found.producers
        except (DiskError, CorruptStoreError) as error:
            replica.take_offline(error)
            return int(KafkaCode.KAFKA_STORAGE_ERROR)
        opened = producers.transactions.open
        return [
            ActiveProducer(
                id_,
                each.epoch,
                each.last_sequence,
                each.last_timestamp_ms,
                each.coordinator_epoch,
                opened.get(id_, NO_OFFSET),
            )
            for id_, each in producers
        ]

    async def allocate_producer_id(self) -> ProducerIdResult:
        return await self._producer_ids.next()

    def close(self) -> None:
        """Stop serving: answer everything that is parked."""
        self.context.is_closed = True
        self.produces.close()
        self.deletions.close()
        self.table.close()
        self.fetches.close()
