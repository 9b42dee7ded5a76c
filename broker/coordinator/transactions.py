"""The coordinators of transactions on this broker: implements `broker.kafka.api.Transactions`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from broker.coordinator.creation import TopicCreation
from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.hanging import HangingTransactions
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.markers import MarkerSender, MarkerWriter
from broker.coordinator.shell import NO_PARTITION, CoordinatorShell
from broker.coordinator.topics import ImageTopics
from broker.core.coordinator.group_requests import TxnOffsetCommit
from broker.core.coordinator.scope_requests import DescribeScopes, InitScopeProducer, InitScopeProducerResponse
from broker.core.coordinator.transaction_machine import TransactionMachine
from broker.core.coordinator.transaction_records import EPOCH_RISES, Partition
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    DescribeTransactions,
    EndTransaction,
    EndTransactionResponse,
    FindOutcome,
    InitProducer,
    InitProducerResponse,
    ListTransactions,
    TransactionLimits,
    TransactionRequest,
    TransactionSupport,
)
from broker.core.transactions import Marker, ProducerKey
from broker.replica.table import ReplicaTable
from metadata.image import ClusterImage
from metadata.image.internal_topics import TRANSACTION_STATE
from metadata.records import Record
from quorumlog.errors import ClusterError
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.clock import Sources, now_ms
from quorumlog.wire.errors import KafkaCode, kafka_code
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.scope_names import coordinator_key, placement_key

READS: Final = (DescribeScopes, DescribeTransactions, FindOutcome, ListTransactions)
_VERIFY_VERSION: Final = 5
_UNAVAILABLE: Final = frozenset(
    {
        KafkaCode.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaCode.COORDINATOR_NOT_AVAILABLE,
        KafkaCode.NOT_COORDINATOR,
        KafkaCode.CONCURRENT_TRANSACTIONS,
    }
)


def transaction_limits(image: ClusterImage) -> TransactionLimits:
    """Return the limits of transactions according to the cluster's configs."""
    return TransactionLimits(
        timeout_max_ms=int(image.cluster_config("transaction.max.timeout.ms")),
        expiration_ms=int(image.cluster_config("transactional.id.expiration.ms")),
    )


class TransactionCoordinators:
    """The coordinators of transactions of one broker.

    take_id: returns an unused producer id; None if none is available now.
    resolve: returns the address of a broker's inter-broker listener; None while it is not registered.
    """

    def __init__(
        self,
        table: ReplicaTable,
        groups: GroupCoordinators,
        call: ControllerCall,
        wait_applied: Callable[[int], Awaitable[object]],
        take_id: Callable[[], Awaitable[int | None]],
        resolve: Callable[[int], tuple[str, int] | None],
        sources: Sources,
        limits: CoordinatorLimits | None = None,
    ) -> None:
        limits = limits or CoordinatorLimits()
        self._cluster = table.context.cluster
        self._groups = groups
        self._logs = table.context.logs
        self._sources = sources
        self._limits = limits
        self._take_id = take_id
        self._topics = ImageTopics(self._cluster)
        self._transaction_limits = TransactionLimits()
        self._creation = TopicCreation(TRANSACTION_STATE, self._cluster, call, wait_applied, limits)
        self._links = BrokerLinks(resolve)
        self._writer = MarkerWriter(table, groups, sources.wall_ms, limits.marker_timeout_ms)
        # Markers have connections of their own: a connection answers in order, and a marker, which may wait for
        # replicas, must not delay verifications.
        self._marker_links = BrokerLinks(resolve)
        self._hanging = HangingTransactions(table, groups, self._links, sources.wall_ms, limits)
        self._looking: asyncio.Future[None] | None = None
        self.sender = MarkerSender(table, self._writer, self._marker_links, limits)
        self.shell = CoordinatorShell(
            TRANSACTION_STATE, table, self._machine, sources.wall_ms, limits, self.sender.order
        )

    def _machine(self) -> TransactionMachine:
        return TransactionMachine(self._transaction_limits, self._topics, self._sources.wall_ms, self._cautious_ms)

    def _cautious_ms(self) -> int:
        return self._logs.cautious_ms(self._sources.wall_ms(), now_ms())

    # -- life

    def start(self, group: asyncio.TaskGroup, image: ClusterImage) -> None:
        """Coordinate from now on; the tasks belong to `group`.  image: the metadata replayed so far."""
        self._transaction_limits = transaction_limits(image)
        self._creation.start(group)
        self.sender.start(group)
        self.shell.start(group)
        self._looking = group.create_task(self._hanging.run(), name="hanging-transactions")

    async def close(self) -> None:
        """Refuse all calls, and end all tasks.  Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])
            self._looking = None
        await self._creation.close()
        await self.shell.close()
        await self.sender.close()
        await self._links.close()
        await self._marker_links.close()

    def on_batch(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
        """Report changed limits to the machines; subscribed to `MetadataReplay`."""
        if old.configs is not new.configs and (limits := transaction_limits(new)) != self._transaction_limits:
            self._transaction_limits = limits
            self.shell.tell_all(lambda machine, now: machine.configure(limits, now))

    # -- `broker.kafka.api.Transactions`

    async def prepare(self) -> str:
        return await self._creation.ensure()

    def partition(self, transactional_id: str) -> int:
        """Return the partition of a transactional id.  An id in a scope is in the scope's partition (`scope_names`)."""
        return self.shell.partition(placement_key(transactional_id))

    def led(self) -> Sequence[int]:
        return self.shell.led()

    def call(self, partition: int, request: TransactionRequest, size: int) -> asyncio.Future[Any]:
        return self.shell.request(partition, request, size, is_read=isinstance(request, READS))

    async def init_producer(self, request: InitProducer, size: int) -> InitProducerResponse:
        """Begin or continue as a producer, with a fresh producer id if one is needed."""
        found = await self._call_with_id(self.partition(request.transactional_id), request, size)
        return InitProducerResponse(found) if isinstance(found, KafkaCode) else found

    async def end_transaction(self, request: EndTransaction, size: int) -> EndTransactionResponse:
        """Commit or abort, with a fresh producer id if the epoch is exhausted."""
        found = await self._call_with_id(self.partition(request.transactional_id), request, size)
        return EndTransactionResponse(found) if isinstance(found, KafkaCode) else found

    async def init_scope_producer(self, request: InitScopeProducer, size: int) -> InitScopeProducerResponse | KafkaCode:
        """Begin as a producer of a scope, with a fresh producer id if one is needed."""
        partition = self.partition(coordinator_key(request.scope))
        found: InitScopeProducerResponse | KafkaCode = await self._call_with_id(partition, request, size)
        return found

    async def _call_with_id(
        self, partition: int, request: InitProducer | EndTransaction | InitScopeProducer, size: int
    ) -> Any:
        """Call a coordinator, and repeat the call with a fresh producer id if the machine needs one.

        Return the response, or the `KafkaCode` of a refusal.
        """
        found = await self.call(partition, request, size)
        if isinstance(found, KafkaCode) or not found.needs_id:
            return found
        fresh_id = await self._take_id()
        if fresh_id is None:
            return KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
        return await self.call(partition, replace(request, fresh_id=fresh_id), size)

    async def write_marker(self, topic: str, index: int, marker: Marker) -> int:
        return await self._writer.write(topic, index, marker)

    async def commit_offsets(
        self, transactional_id: str, request: TxnOffsetCommit, support: TransactionSupport, size: int
    ) -> Any:
        return await self._groups.commit_in_transaction(transactional_id, request, self.verify, support, size)

    async def verify(
        self, transactional_id: str, producer: ProducerKey, partition: Partition, support: TransactionSupport
    ) -> KafkaCode:
        """Ask the coordinator to confirm that a partition is part of a producer's transaction, or to add it (KIP-890).

        A partition can be added once the markers of the producer's previous transaction are written.  This call waits
        for that, for about `addition_wait_ms`.  Return NONE, or the error code for the Produce request.
        """
        limits = self._limits
        backoff = Backoff(limits.addition_retry_min_ms / 1000, limits.addition_retry_max_ms / 1000)
        deadline_ms = now_ms() + limits.addition_wait_ms
        adds = support is TransactionSupport.ADDS
        while True:
            try:
                code = await self._verify(transactional_id, producer, partition, adds=adds)
            except ClusterError:
                code = KafkaCode.COORDINATOR_NOT_AVAILABLE
            if not adds or code is not KafkaCode.CONCURRENT_TRANSACTIONS or now_ms() >= deadline_ms:
                break
            await asyncio.sleep(backoff.next_s())
        if code in _UNAVAILABLE:
            return KafkaCode.NOT_ENOUGH_REPLICAS  # every producer retries after this error
        if code is KafkaCode.TRANSACTION_ABORTABLE and support is TransactionSupport.OLDEST:
            return KafkaCode.INVALID_TXN_STATE
        return KafkaCode.INVALID_PRODUCER_EPOCH if code is KafkaCode.PRODUCER_FENCED else code

    async def _verify(
        self, transactional_id: str, producer: ProducerKey, partition: Partition, *, adds: bool
    ) -> KafkaCode:
        index = self.partition(transactional_id)
        if index == NO_PARTITION:
            return KafkaCode.INVALID_PRODUCER_ID_MAPPING
        state = self._cluster.partition(TRANSACTION_STATE, index)
        if state is None or state.leader < 0:
            return KafkaCode.COORDINATOR_NOT_AVAILABLE
        if state.leader == self._cluster.broker_id:
            version = EPOCH_RISES if adds else 0
            request = AddPartitions(transactional_id, producer, (partition,), not adds, version)
            found = await self.call(index, request, 0)
            return found if isinstance(found, KafkaCode) else found.errors[0]
        wanted = {
            "transactional_id": transactional_id,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "verify_only": not adds,
            "topics": [{"name": partition[0], "partitions": [partition[1]]}],
        }
        timeout_s = self._limits.verification_timeout_ms / 1000
        reply = await self._links.ask(
            state.leader, Api.ADD_PARTITIONS_TO_TXN, _VERIFY_VERSION, {"transactions": [wanted]}, timeout_s
        )
        codes = [
            int(each.partition_error_code)
            for result in reply.results_by_transaction
            for topic in result.topic_results
            for each in topic.results_by_partition
        ]
        return kafka_code(codes[0]) if codes else KafkaCode.COORDINATOR_NOT_AVAILABLE

    # -- metrics

    def count_by_state(self) -> Counter[str]:
        """Return the number of transactional ids in each state."""
        counts: Counter[str] = Counter()
        for each in self.shell:
            if each.machine is not None:
                counts.update(each.machine.states())
        return counts
