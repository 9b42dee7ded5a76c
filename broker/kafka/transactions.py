"""Transactions: converts frames into requests to the coordinators of transactions, and their responses into frames."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any, Final

from broker.core.coordinator.group_requests import NO_GENERATION, OffsetCommit, OffsetToCommit, TxnOffsetCommit
from broker.core.coordinator.scope_requests import InitScopeProducer, InitScopeProducerResponse
from broker.core.coordinator.transaction_records import EPOCH_RISES, Partition, TransactionState
from broker.core.coordinator.transaction_requests import (
    AddPartitions,
    DescribedTransaction,
    DescribeTransactions,
    EndTransaction,
    EndTransactionResponse,
    FindOutcome,
    InitProducer,
    InitProducerResponse,
    ListTransactions,
    TransactionRequest,
    TransactionSupport,
)
from broker.core.transactions import Marker, ProducerKey
from broker.kafka.connection import Pending, Reply
from broker.kafka.coordinated import DecodedRequest, not_coordinator
from metadata.image import is_internal
from metadata.image.internal_topics import CONSUMER_OFFSETS
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import milliseconds

Values = dict[str, Any]

_FIRST_INIT_WITH_FENCED: Final = 4
_FIRST_ADD_WITH_FENCED: Final = 2
_FIRST_ADD_IN_BATCHES: Final = 4
_FIRST_ADD_WITH_ABORTABLE: Final = 5
_FIRST_END_WITH_FENCED: Final = 2
_FIRST_END_WITH_PRODUCER: Final = 5
_FIRST_COMMIT_WITH_LOADING: Final = 2
_FIRST_COMMIT_WITH_ABORTABLE: Final = 4
_FIRST_COMMIT_THAT_ADDS: Final = 5
_FIRST_ADD_OFFSETS_WITH_FENCED: Final = 2
_MARKERS_AT_ONCE: Final = 100
"""Markers of one request that are appended before other work may run.  Any number may wait for their replicas."""


class NoTransactions:
    """The `Transactions` of a listener without coordinators: it refuses every request."""

    async def prepare(self) -> str:
        return "this broker does not coordinate transactions"

    def partition(self, transactional_id: str) -> int:
        return -1

    def led(self) -> Sequence[int]:
        return ()

    def call(self, partition: int, request: TransactionRequest, size: int) -> asyncio.Future[Any]:
        return not_coordinator()

    async def init_producer(self, request: InitProducer, size: int) -> InitProducerResponse:
        return InitProducerResponse(KafkaCode.NOT_COORDINATOR)

    async def end_transaction(self, request: EndTransaction, size: int) -> EndTransactionResponse:
        return EndTransactionResponse(KafkaCode.NOT_COORDINATOR)

    async def init_scope_producer(self, request: InitScopeProducer, size: int) -> InitScopeProducerResponse | KafkaCode:
        return KafkaCode.NOT_COORDINATOR

    async def write_marker(self, topic: str, index: int, marker: Marker) -> int:
        return int(KafkaCode.NOT_LEADER_OR_FOLLOWER)

    async def commit_offsets(
        self, transactional_id: str, request: TxnOffsetCommit, support: TransactionSupport, size: int
    ) -> Any:
        return KafkaCode.NOT_COORDINATOR


def _for_version(code: int, version: int, first_with_fenced: int) -> int:
    """Replace PRODUCER_FENCED, which old clients do not know, by INVALID_PRODUCER_EPOCH."""
    if code == KafkaCode.PRODUCER_FENCED and version < first_with_fenced:
        return int(KafkaCode.INVALID_PRODUCER_EPOCH)
    return int(code)


async def init_producer_id(asked: DecodedRequest) -> Reply:
    """Answer an InitProducerId with a transactional id."""
    request, version = asked.request, asked.version
    producer = ProducerKey(getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1))
    if (producer.producer_id < 0) != (producer.epoch < 0):
        return asked.reply({"error_code": KafkaCode.INVALID_REQUEST, "producer_id": -1, "producer_epoch": -1})
    wanted = InitProducer(request.transactional_id, milliseconds(request.transaction_timeout), producer)
    found = await asked.transactions.init_producer(wanted, asked.size)
    given_id, epoch = found.producer
    code = _for_version(found.error, version, _FIRST_INIT_WITH_FENCED)
    return asked.reply({"error_code": code, "producer_id": given_id, "producer_epoch": epoch})


def _partitions_of(topics: Iterable[Any]) -> tuple[Partition, ...]:
    return tuple([(topic.name, index) for topic in topics for index in topic.partitions])


def add_partitions(asked: DecodedRequest) -> Pending:
    """Answer an AddPartitionsToTxn from one client or, from version 4 on, from a broker for several transactions."""
    request = asked.request
    in_batches = asked.version >= _FIRST_ADD_IN_BATCHES
    if in_batches:
        wanted = [
            (
                AddPartitions(
                    each.transactional_id,
                    ProducerKey(each.producer_id, each.producer_epoch),
                    _partitions_of(each.topics),
                    each.verify_only,
                    EPOCH_RISES,  # only a leader sends this version, for a client that does not add partitions itself
                ),
                each.topics,
            )
            for each in request.transactions
        ]
    else:
        producer = ProducerKey(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        topics = request.v3_and_below_topics
        add = AddPartitions(request.v3_and_below_transactional_id, producer, _partitions_of(topics))
        wanted = [(add, topics)]
    size = asked.size // max(1, len(wanted))
    futures = [_add(asked, add, size) for add, _ in wanted]

    def finish() -> Reply:
        results = []
        for (add, topics), future in zip(wanted, futures, strict=True):
            found = KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()
            refused = (found,) * len(add.partitions) if isinstance(found, KafkaCode) else found.errors
            codes = iter([_added(each, asked.version) for each in refused])
            topic_results = [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": index, "partition_error_code": next(codes)} for index in topic.partitions
                    ],
                }
                for topic in topics
            ]
            results.append({"transactional_id": add.transactional_id, "topic_results": topic_results})
        if in_batches:
            return asked.reply({"error_code": 0, "results_by_transaction": results})
        return asked.reply({"results_by_topic_v3_and_below": results[0]["topic_results"]})

    return Pending(futures, finish, is_owned=True)


def _added(code: KafkaCode, version: int) -> int:
    if code is KafkaCode.TRANSACTION_ABORTABLE and version < _FIRST_ADD_WITH_ABORTABLE:
        return int(KafkaCode.INVALID_TXN_STATE)
    return _for_version(code, version, _FIRST_ADD_WITH_FENCED)


def _add(asked: DecodedRequest, add: AddPartitions, size: int) -> asyncio.Future[Any]:
    # A leader may also add the partition of a group's offsets.
    by_leader = asked.version >= _FIRST_ADD_IN_BATCHES
    refused_topics = [
        name for name, _ in add.partitions if is_internal(name) and not (by_leader and name == CONSUMER_OFFSETS)
    ]
    if not add.verify_only and refused_topics:
        refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refused.set_result(KafkaCode.INVALID_TOPIC_EXCEPTION)
        return refused
    return asked.transactions.call(asked.transactions.partition(add.transactional_id), add, size)


def add_offsets(asked: DecodedRequest) -> Pending | Awaitable[Reply]:
    """Answer an AddOffsetsToTxn: add the partition that holds the offsets of a group.

    The group may never have looked for its coordinator, so the topic of offsets may have to be created first.
    """
    return _add_offsets(asked) if CONSUMER_OFFSETS in asked.replicas.image.topic_ids else _add_after_creation(asked)


async def _add_after_creation(asked: DecodedRequest) -> Reply:
    await asked.groups.prepare()
    pending = _add_offsets(asked)
    try:
        await asyncio.wait(pending.futures)
    except asyncio.CancelledError:
        pending.cancel()
        raise
    return pending.finish()


def _add_offsets(asked: DecodedRequest) -> Pending:
    request = asked.request
    partition = (CONSUMER_OFFSETS, asked.groups.partition(request.group_id))
    producer = ProducerKey(request.producer_id, request.producer_epoch)
    add = AddPartitions(request.transactional_id, producer, (partition,))
    future = asked.transactions.call(asked.transactions.partition(add.transactional_id), add, asked.size)

    def finish() -> Reply:
        found = KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()
        code = found if isinstance(found, KafkaCode) else found.errors[0]
        if code is KafkaCode.UNKNOWN_TOPIC_OR_PARTITION:  # this broker does not know the topic of offsets yet
            code = KafkaCode.COORDINATOR_NOT_AVAILABLE
        return asked.reply({"error_code": _for_version(code, asked.version, _FIRST_ADD_OFFSETS_WITH_FENCED)})

    return Pending((future,), finish, is_owned=True)


async def end_txn(asked: DecodedRequest) -> Reply:
    request, version = asked.request, asked.version
    producer = ProducerKey(request.producer_id, request.producer_epoch)
    client_version = EPOCH_RISES if version >= _FIRST_END_WITH_PRODUCER else 0
    wanted = EndTransaction(request.transactional_id, producer, request.committed, client_version)
    found = await asked.transactions.end_transaction(wanted, asked.size)
    given_id, epoch = found.producer
    code = _for_version(found.error, version, _FIRST_END_WITH_FENCED)
    return asked.reply({"error_code": code, "producer_id": given_id, "producer_epoch": epoch})


async def txn_offset_commit(asked: DecodedRequest) -> Reply:
    request = asked.request
    offsets = tuple(
        [
            OffsetToCommit(
                topic.name,
                each.partition_index,
                each.committed_offset,
                getattr(each, "committed_leader_epoch", -1),
                each.committed_metadata or "",
            )
            for topic in request.topics
            for each in topic.partitions
        ]
    )
    commit = OffsetCommit(
        request.group_id,
        asked.field("member_id") or "",
        asked.field("group_instance_id"),
        asked.field("generation_id", NO_GENERATION),
        offsets,
    )
    wanted = TxnOffsetCommit(commit, ProducerKey(request.producer_id, request.producer_epoch))
    support = TransactionSupport.OLDEST
    if asked.version >= _FIRST_COMMIT_THAT_ADDS:
        support = TransactionSupport.ADDS
    elif asked.version >= _FIRST_COMMIT_WITH_ABORTABLE:
        support = TransactionSupport.ABORTABLE
    found = await asked.transactions.commit_offsets(request.transactional_id, wanted, support, asked.size)
    codes = [found] * len(offsets) if isinstance(found, KafkaCode) else [each.error for each in found.results]
    errors = iter([_committed(code, asked.version) for code in codes])
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": each.partition_index, "error_code": next(errors)} for each in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return asked.reply({"topics": topics})


def _committed(code: KafkaCode, version: int) -> KafkaCode:
    """Replace COORDINATOR_LOAD_IN_PROGRESS, which is fatal for producers of these versions (KAFKA-7296)."""
    if code is KafkaCode.COORDINATOR_LOAD_IN_PROGRESS and version < _FIRST_COMMIT_WITH_LOADING:
        return KafkaCode.COORDINATOR_NOT_AVAILABLE
    return code


async def write_markers(asked: DecodedRequest) -> Reply:
    """Write the markers that a coordinator, or an operator, sends; answer once they are committed.

    A partition whose replicas do not answer does not delay the markers of other partitions.  The answer waits for all.
    """
    writes: list[asyncio.Task[int]] = []
    try:
        for each in asked.request.markers:
            raises_epoch = getattr(each, "transaction_version", 0) >= EPOCH_RISES
            producer = ProducerKey(each.producer_id, each.producer_epoch)
            marker = Marker(producer, each.transaction_result, each.coordinator_epoch, raises_epoch)
            for name, index in [(topic.name, index) for topic in each.topics for index in topic.partition_indexes]:
                writes.append(asyncio.ensure_future(asked.transactions.write_marker(name, index, marker)))
                if len(writes) % _MARKERS_AT_ONCE == 0:
                    await asyncio.sleep(0)  # the tasks append their markers now
        codes = iter(await asyncio.gather(*writes))
    finally:
        for task in writes:
            task.cancel()
    markers = [
        {
            "producer_id": each.producer_id,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": index, "error_code": next(codes)} for index in topic.partition_indexes
                    ],
                }
                for topic in each.topics
            ],
        }
        for each in asked.request.markers
    ]
    return asked.reply({"markers": markers})


def describe_transactions(asked: DecodedRequest) -> Pending:
    names = tuple(dict.fromkeys(asked.request.transactional_ids))
    size = asked.size // max(1, len(names))
    futures = [
        asked.transactions.call(asked.transactions.partition(name), DescribeTransactions((name,)), size)
        for name in names
    ]

    def finish() -> Reply:
        states = []
        for name, future in zip(names, futures, strict=True):
            found = KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()
            described = DescribedTransaction(name, found) if isinstance(found, KafkaCode) else found.groups[0]
            states.append(_described(described))
        return asked.reply({"transaction_states": states})

    return Pending(futures, finish, is_owned=True)


def _described(found: DescribedTransaction) -> Values:
    topics: dict[str, list[int]] = {}
    for topic, index in found.partitions:
        topics.setdefault(topic, []).append(index)
    return {
        "error_code": found.error,
        "transactional_id": found.transactional_id,
        "transaction_state": found.state,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.started_ms,
        "producer_id": found.producer.producer_id,
        "producer_epoch": found.producer.epoch,
        "topics": [{"topic": name, "partitions": indexes} for name, indexes in topics.items()],
    }


def list_transactions(asked: DecodedRequest) -> Pending:
    """List the transactional ids of all partitions that this broker coordinates."""
    request = asked.request
    known = {state.label for state in TransactionState}
    unknown = [name for name in request.state_filters if name not in known]
    states = frozenset(request.state_filters) & known
    wanted = ListTransactions(
        states if states or not request.state_filters else frozenset({""}),
        frozenset(request.producer_id_filters),
        asked.field("duration_filter", -1),
    )
    led = asked.transactions.led()
    size = asked.size // max(1, len(led))
    futures = [asked.transactions.call(partition, wanted, size) for partition in led]

    def finish() -> Reply:
        results = [KafkaCode.NOT_COORDINATOR if each.cancelled() else each.result() for each in futures]
        refusals = [each for each in results if isinstance(each, KafkaCode) and each is not KafkaCode.NOT_COORDINATOR]
        if refusals:
            return asked.reply({"error_code": refusals[0], "unknown_state_filters": unknown})
        listed = [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": each.state,
            }
            for result in results
            if not isinstance(result, KafkaCode)
            for each in result.transactions
        ]
        return asked.reply({"error_code": 0, "unknown_state_filters": unknown, "transaction_states": listed})

    return Pending(futures, finish, is_owned=True)


def find_outcome(asked: DecodedRequest) -> Pending:
    """Report to a leader how a transaction ended, according to each partition that this broker coordinates."""
    request = asked.request
    partition = (request.topic, request.partition)
    wanted = FindOutcome(ProducerKey(request.producer_id, request.producer_epoch), partition)
    led = tuple(asked.transactions.led())
    size = asked.size // max(1, len(led))
    futures = [asked.transactions.call(index, wanted, size) for index in led]

    def finish() -> Reply:
        coordinators = []
        for index, future in zip(led, futures, strict=True):
            found = KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()
            code, outcome = (found, 0) if isinstance(found, KafkaCode) else (KafkaCode.NONE, found.outcome)
            coordinators.append({"partition": index, "error_code": code, "outcome": int(outcome)})
        return asked.reply({"error_code": 0, "coordinators": coordinators})

    return Pending(futures, finish, is_owned=True)
