"""Serves Produce requests: checks their records, then appends them.  Each producer's batches keep their order.

`start_produce` immediately refuses batches that cannot be appended.  The records of a batch with compression may have
to be checked in a thread first; `RecordChecks` keeps the order of arrival meanwhile.  Then the replica appends
(`Replica.append`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from broker.core.coordinator.transaction_requests import TransactionSupport
from broker.core.transactions import ProducerKey
from broker.kafka.api import ProduceResult
from broker.log import LogConfig, Refused
from broker.log.produced import check_produced
from broker.replica.record_checks import Produce, RecordChecks
from broker.replica.replica import Replica, refused_produce
from broker.replica.table import ReplicaTable
from metadata.image import is_internal
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import HEADER_SIZE, parse_header

Verify = Callable[[str, ProducerKey, tuple[str, int], TransactionSupport], Coroutine[Any, Any, KafkaCode]]
"""Asks the coordinator of a transactional id whether a partition is in the transaction of a producer (id and epoch).
Adds the partition if the client expects that."""


class ProduceService:
    """Checks and appends the records of clients.

    verify: asks the coordinator of transactions; see `broker.coordinator.transactions`.
    """

    def __init__(self, table: ReplicaTable) -> None:
        self.verify: Verify | None = None
        self._table = table
        self._context = table.context
        self._checks = RecordChecks(self._context.limits, self._append, self._note_refusal)

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
        """See `broker.kafka.api.Replicas`."""
        future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
        found = self._accepting(topic, index, acks)
        if isinstance(found, ProduceResult):
            self._refuse(topic, index, batches, future, found)
            return future
        replica, config = found
        checked = check_produced(batches, config, self._context.wall_ms())
        produce = Produce(topic, index, acks, timeout_ms, future, checked)
        try:
            self._verify(produce, replica, transactional_id, support or TransactionSupport.OLDEST)
        except (DiskError, CorruptStoreError) as error:
            replica.take_offline(error)
            refused = refused_produce(KafkaCode.KAFKA_STORAGE_ERROR, replica.offline)
            self._refuse(topic, index, batches, future, refused)
            return future
        if self._checks.admit(produce, config):
            replica.append(produce.batches, acks, timeout_ms, future, produce.verification)
            self._note_refusal(produce)
        return future

    def _accepting(self, topic: str, index: int, acks: int) -> tuple[Replica, LogConfig] | ProduceResult:
        """Return the replica that accepts batches of this partition now, and its config; or the refusal."""
        replica = self._table.find(topic, index)
        if is_internal(topic):
            return refused_produce(KafkaCode.INVALID_TOPIC_EXCEPTION, f"{topic} is internal")
        if replica is None:
            code, known = self._table.absent(topic, index)
            return refused_produce(code, partition=known)
        if replica.log is None:
            return refused_produce(KafkaCode.KAFKA_STORAGE_ERROR, replica.offline)
        if replica.serving() is None:
            return refused_produce(KafkaCode.NOT_LEADER_OR_FOLLOWER, partition=replica.image)
        if self._waiting(acks) >= self._context.limits.parked_produces:
            return refused_produce(KafkaCode.REQUEST_TIMED_OUT, "too many writes wait for replication")
        return replica, replica.log.config

    def _refuse(
        self, topic: str, index: int, batches: memoryview, future: asyncio.Future[ProduceResult], result: ProduceResult
    ) -> None:
        """Refuse a produce for a reason that lies outside its batches."""
        future.set_result(result)
        if len(batches) >= HEADER_SIZE:
            first = parse_header(batches)
            self._context.refused_batches.note(topic, index, first, result.error_code, now_ms())

    def _note_refusal(self, produce: Produce) -> None:
        """Remember a produce that was refused, since its client may send it again."""
        future, batch = produce.future, produce.first_batch
        if batch is not None and future.done() and not future.cancelled():
            code = future.result().error_code
            self._context.refused_batches.note(produce.topic, produce.index, batch, code, now_ms())

    def _verify(
        self, produce: Produce, replica: Replica, transactional_id: str | None, support: TransactionSupport
    ) -> None:
        """Have the coordinator confirm the transaction that a batch begins, before the batch is appended (KIP-890).

        Raises: CorruptStoreError, DiskError: the state of the producers could not be read.
        """
        batches = produce.batches
        if isinstance(batches, Refused) or not batches.headers[0].is_transactional:
            return
        if transactional_id is None or self.verify is None or replica.log is None:
            return  # the log refuses a batch that begins a transaction without a confirmation
        header, producers = batches.headers[0], replica.log.producers
        token = produce.verification = producers.start_verification(
            header.producer_id, header.producer_epoch, header.base_sequence
        )
        if token is None or token.is_confirmed:
            return
        producer = ProducerKey(header.producer_id, header.producer_epoch)
        asking = self.verify(transactional_id, producer, (produce.topic, produce.index), support)
        produce.verifying = asyncio.ensure_future(asking)

        def answered(done: asyncio.Future[KafkaCode]) -> None:
            code = KafkaCode.UNKNOWN_SERVER_ERROR
            if not done.cancelled() and done.exception() is None:
                code = done.result()
            token.is_confirmed = token.is_confirmed or code is KafkaCode.NONE
            if not token.is_confirmed:
                produce.batches = Refused(int(code), "the coordinator has not confirmed the transaction")
            produce.verifying = None
            self._checks.verified(produce)
            if not done.cancelled() and (error := done.exception()) is not None:
                raise error  # a bug: the loop's exception handler reports it

        produce.verifying.add_done_callback(answered)

    @property
    def waiting(self) -> int:
        """Return the number of produces that are not appended yet.

        They wait for a check or recompression of their records, for a coordinator, or for earlier produces.
        """
        return self._checks.produces

    @property
    def recompressed_bytes(self) -> int:
        """Return the size, as received, of all batches that were recompressed so far."""
        return self._checks.recompressed_total

    def close(self) -> None:
        """Refuse the produces that are not appended yet."""
        self._checks.refuse_all(KafkaCode.NOT_LEADER_OR_FOLLOWER)

    def _waiting(self, acks: int) -> int:
        return self._checks.produces + (self._context.parked_produces if acks else 0)

    def _append(self, produce: Produce) -> None:
        # Everything about the partition may have changed during the check: even another topic may have this name now.
        replica = self._table.find(produce.topic, produce.index)
        if replica is None:
            code, known = self._table.absent(produce.topic, produce.index)
            produce.future.set_result(refused_produce(code, partition=known))
        else:
            replica.append(produce.batches, produce.acks, produce.timeout_ms, produce.future, produce.verification)
        self._note_refusal(produce)
