"""Produces of clients: checked, then appended in the order in which they arrived.

`start_produce` immediately refuses batches that cannot be appended.  The records of a batch with compression may have
to be checked in a thread first; `RecordChecks` keeps the order of arrival meanwhile.  Then the replica appends
(`Replica.append`).
"""

from __future__ import annotations

import asyncio

from broker.kafka.api import ProduceResult
from broker.log.produced import check_produced
from broker.replica.record_checks import Produce, RecordChecks
from broker.replica.replica import refused_produce
from broker.replica.table import ReplicaTable
from metadata.image import is_internal
from quorumlog.wire.errors import KafkaCode


class ProduceService:
    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._context = table.context
        self._checks = RecordChecks(self._context.limits, self._append)

    def start_produce(
        self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int
    ) -> asyncio.Future[ProduceResult]:
        """See `broker.kafka.api.Replicas`."""
        future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
        replica = self._table.find(topic, index)
        if is_internal(topic):
            future.set_result(refused_produce(KafkaCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal"))
        elif replica is None:
            code, known = self._table.absent(topic, index)
            future.set_result(refused_produce(code, partition=known))
        elif replica.log is None:
            future.set_result(refused_produce(KafkaCode.KAFKA_STORAGE_ERROR, replica.offline))
        elif replica.serving() is None:
            future.set_result(refused_produce(KafkaCode.NOT_LEADER_OR_FOLLOWER, partition=replica.image))
        elif self._waiting(acks) >= self._context.limits.parked_produces:
            future.set_result(refused_produce(KafkaCode.REQUEST_TIMED_OUT, "too many writes wait for replication"))
        else:
            config = replica.log.config
            checked = check_produced(batches, config, self._context.wall_ms())
            produce = Produce(topic, index, acks, timeout_ms, future, checked)
            if self._checks.admit(produce, config):
                replica.append(produce.batches, acks, timeout_ms, future)
        return future

    def close(self) -> None:
        """Refuse the produces whose records are still to be checked."""
        self._checks.refuse_all(KafkaCode.NOT_LEADER_OR_FOLLOWER)

    def _waiting(self, acks: int) -> int:
        return self._checks.produces + (self._context.parked_produces if acks else 0)

    def _append(self, produce: Produce) -> None:
        # Everything about the partition may have changed during the check, also which topic has this name.
        replica = self._table.find(produce.topic, produce.index)
        if replica is None:
            code, known = self._table.absent(produce.topic, produce.index)
            produce.future.set_result(refused_produce(code, partition=known))
        else:
            replica.append(produce.batches, produce.acks, produce.timeout_ms, produce.future)
