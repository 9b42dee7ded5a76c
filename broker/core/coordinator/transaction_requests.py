"""Requests to the coordinator of transactions, their responses, its effects, and its limits.

Each request concerns one transactional id, except ListTransactions, DescribeTransactions, FindOutcome and the requests
about scopes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

import msgspec

from broker.core.coordinator.scope_requests import ScopeLimits, ScopeRequest
from broker.core.coordinator.transaction_records import Partition
from broker.core.transactions import NO_PRODUCER, ProducerKey
from quorumlog.wire.errors import KafkaCode


class TransactionSupport(IntEnum):
    """The part of the transaction protocol that a client supports, according to the version of its request to a leader.

    OLDEST: the client does not know the error TRANSACTION_ABORTABLE, and gets INVALID_TXN_STATE instead.
    ABORTABLE: the client knows the error TRANSACTION_ABORTABLE.
    ADDS: the client does not add partitions; the leader adds its partition with the first record (KIP-890).
    """

    OLDEST = 0
    ABORTABLE = 1
    ADDS = 2


class KnownPartitions(Protocol):
    """Answers a coordinator's question about topics from the image."""

    def may_commit(self, topic: str, partition: int) -> bool:
        """Return whether this and every later coordinator knows the partition, unless it is deleted in between."""
        ...


class TransactionLimits(msgspec.Struct, frozen=True):
    """The limits of a coordinator of transactions.  Times in ms.

    timeout_max_ms: the longest timeout of a transaction; a longer one gets INVALID_TRANSACTION_TIMEOUT.
    expiration_ms: an id without an open transaction is deleted when it has not changed for this long.
    sweep_interval_ms: time between two searches for ids that have expired.
    ids_max: ids of one coordinator; further ids get POLICY_VIOLATION.
    partitions_max: partitions of one transaction; a request for more gets INVALID_REQUEST.
    name_max_bytes: bytes of a transactional id; a longer id gets INVALID_REQUEST.
    batch_max_bytes: bytes of the records of one tick; the rest follows in the next tick.
    scopes: the limits of transaction scopes.
    """

    timeout_max_ms: int = 900_000
    expiration_ms: int = 7 * 86_400_000
    sweep_interval_ms: int = 600_000
    ids_max: int = 500_000
    partitions_max: int = 10_000
    name_max_bytes: int = 10_000
    batch_max_bytes: int = 500_000
    scopes: ScopeLimits = msgspec.field(default_factory=ScopeLimits)


class InitProducer(msgspec.Struct, frozen=True):
    """Make a client the producer of a transactional id: abort the open transaction, and fence earlier producers.

    fresh_id: an unused producer id; None if the caller has none yet.
    producer: the client's current id and epoch; NO_PRODUCER for a new client.
    """

    transactional_id: str
    timeout_ms: int
    producer: ProducerKey = NO_PRODUCER
    fresh_id: int | None = None


class InitProducerResponse(msgspec.Struct, frozen=True):
    """needs_id: nothing was done; repeat the request with a fresh id."""

    error: KafkaCode
    producer: ProducerKey = NO_PRODUCER
    needs_id: bool = False


class AddPartitions(msgspec.Struct, frozen=True):
    """Add partitions to the transaction of a producer.

    verify_only: add nothing; check that the partitions are part of the transaction.
    client_version: the transaction version that the client uses.
    """

    transactional_id: str
    producer: ProducerKey
    partitions: tuple[Partition, ...]
    verify_only: bool = False
    client_version: int = 0


class AddPartitionsResponse(msgspec.Struct, frozen=True):
    """errors: one for each partition of the request, in its order."""

    errors: tuple[KafkaCode, ...]


class EndTransaction(msgspec.Struct, frozen=True):
    """Commit or abort the transaction of a producer.

    client_version: the transaction version that the client uses.  From 2 on, the end raises the epoch.
    fresh_id: an unused producer id, for a producer whose epoch is exhausted; None if the caller has none yet.
    """

    transactional_id: str
    producer: ProducerKey
    is_commit: bool
    client_version: int = 0
    fresh_id: int | None = None


class EndTransactionResponse(msgspec.Struct, frozen=True):
    """producer: the client's next id and epoch.  needs_id: nothing was done; repeat the request with a fresh id."""

    error: KafkaCode
    producer: ProducerKey = NO_PRODUCER
    needs_id: bool = False


class MarkersWritten(msgspec.Struct, frozen=True):
    """Report that these partitions have the marker of the transaction, or do not exist any more."""

    transactional_id: str
    producer: ProducerKey
    partitions: tuple[Partition, ...]


class DescribeTransactions(msgspec.Struct, frozen=True):
    transactional_ids: tuple[str, ...]


class DescribedTransaction(msgspec.Struct, frozen=True):
    """The state of one id.  started_ms: ms since the epoch; -1 without a transaction."""

    transactional_id: str
    error: KafkaCode
    state: str = ""
    timeout_ms: int = 0
    started_ms: int = -1
    producer: ProducerKey = NO_PRODUCER
    partitions: tuple[Partition, ...] = ()


class DescribeTransactionsResponse(msgspec.Struct, frozen=True):
    groups: tuple[DescribedTransaction, ...]


class ListTransactions(msgspec.Struct, frozen=True):
    """List transactional ids.  Empty filters match everything.

    longer_than_ms: only ids whose transaction, open or decided, began longer ago; negative: all ids.
    """

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = -1


class ListedTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(msgspec.Struct, frozen=True):
    transactions: tuple[ListedTransaction, ...]


class Outcome(IntEnum):
    """UNKNOWN: no transactional id has the producer.  OPEN: the coordinator will end the transaction.

    COMMITTED: the transaction was committed.  ABORTED: it was aborted, or the coordinator no longer knows its outcome.
    """

    UNKNOWN = 0
    OPEN = 1
    COMMITTED = 2
    ABORTED = 3


class FindOutcome(msgspec.Struct, frozen=True):
    """Find the outcome of a transaction.

    producer: its id, and the epoch in the batches of the transaction.
    partition: the partition in which the transaction is open.
    """

    producer: ProducerKey
    partition: Partition


class FindOutcomeResponse(msgspec.Struct, frozen=True):
    outcome: Outcome


TransactionRequest = (
    InitProducer | AddPartitions | EndTransaction | DescribeTransactions | ListTransactions | FindOutcome | ScopeRequest
)


class WriteMarkers(msgspec.Struct, frozen=True):
    """An effect: write the marker of a decided transaction to each of its partitions, and report each success.

    client_version: the transaction version that the client uses.
    """

    transactional_id: str
    producer: ProducerKey
    is_commit: bool
    partitions: tuple[Partition, ...]
    client_version: int = 0
