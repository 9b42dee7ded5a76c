"""The port of the Kafka listener: the interface that its handlers call, with the requests and results of these calls.

`broker.replica.service.ReplicaService` implements `Replicas`; `broker.coordinator.groups.GroupCoordinators` implements
`Groups`.  Handlers convert a frame into a request, and a result into a frame; they decide nothing.  Error codes are the
protocol's numbers (`KafkaCode`); 0 is success.  End offsets are exclusive.

Rules for handlers:

- `start_produce` appends the batches of one producer to a partition in the order of its calls.  So handlers call it in
  the order in which requests arrived on a connection.  They await the futures afterwards.
- `Replicas` keeps the fetch sessions.  A handler passes `session_id` and `session_epoch` on unchanged, and answers with
  the `session_id` and exactly the `results` of the reply, in their order.
- A batch in `FetchResult.records` is shared memory of the log: read it, never write it, and do not keep it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import msgspec

from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import RecordError

if TYPE_CHECKING:
    from broker.core.coordinator.consumer.requests import NamedPartitions
    from broker.core.coordinator.group_requests import GroupRequest, TxnOffsetCommit
    from broker.core.coordinator.scope_requests import InitScopeProducer, InitScopeProducerResponse
    from broker.core.coordinator.share.requests import ListShareStatesResponse
    from broker.core.coordinator.share.states import ShareKey, StateRequest, StateResponse
    from broker.core.coordinator.transaction_requests import (
        EndTransaction,
        EndTransactionResponse,
        InitProducer,
        InitProducerResponse,
        TransactionRequest,
        TransactionSupport,
    )
    from broker.core.fetch_session import PartitionKey
    from broker.core.share.requests import ShareAcknowledgePlan, ShareFetchPlan, ShareReply
    from broker.core.transactions import AbortedTransaction, Marker
    from metadata.image import ClusterImage

CONSUMER = -1
"""`replica_id` of a fetch that does not come from a broker."""

NO_EPOCH = -1
NO_OFFSET = -1
NO_SESSION = 0
"""`session_id` of a fetch outside any session."""
FULL_FETCH_NO_SESSION = -1
"""`session_epoch` of a full fetch that opens no session, and closes the session that it names."""
FULL_FETCH_NEW_SESSION = 0
"""`session_epoch` of a full fetch that opens a session for the partitions that it lists."""

LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
EARLIEST_PENDING_UPLOAD_TIMESTAMP = -6
"""Without remote storage, -4 is the log start.  -5 and -6 find nothing, because no record is or will be remote."""

UP_TO_WATERMARK = -1
"""`offset` of a request that deletes all committed records."""


class ProduceResult(msgspec.Struct, frozen=True):
    """The answer for one partition.

    base_offset: offset of the first record, or, for a duplicate, of the original's first record; -1 if nothing was
        appended.  If an error comes with an offset, the records were appended, and may stay in the log.
    error_message: for protocol versions that contain it; empty is sent as null.
    record_errors: the invalid records, if the error is about single records.
    leader_id, leader_epoch: the leader to ask instead, with NOT_LEADER_OR_FOLLOWER; -1 = unknown.
    """

    error_code: int
    base_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    log_append_time_ms: int = -1
    error_message: str = ""
    leader_id: int = -1
    leader_epoch: int = NO_EPOCH
    record_errors: tuple[RecordError, ...] = ()


class FetchPartition(msgspec.Struct, frozen=True):
    """One partition of a fetch.  The topic has a name (versions below 13) or an id (13 and above); the other is None.

    current_leader_epoch: the leader epoch that the fetcher knows; -1 = not stated.
    last_fetched_epoch: leader epoch of the record before `fetch_offset`; -1 = no such record, or not stated.
    log_start_offset: a follower's log start; -1 for consumers.
    """

    topic_id: UUID | None
    topic: str | None
    index: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    log_start_offset: int = NO_OFFSET


class ForgottenPartition(msgspec.Struct, frozen=True):
    topic_id: UUID | None
    topic: str | None
    index: int


class FetchPlan(msgspec.Struct, frozen=True):
    """A whole fetch request.

    replica_id: `CONSUMER`, or the fetching broker's id with its broker epoch.
    max_wait_ms: bounded by `ReplicaLimits.max_wait_ms`.
    min_bytes: bytes of records for which the fetch waits; 0 or less = do not wait.
    session_id, session_epoch: as in the request (KIP-227); the defaults mean a full fetch with no session.
    by_id: the request names topics by id.  A session cannot mix names and ids.
    read_committed: read up to the last stable offset, and report the aborted transactions; only for consumers.
    rack: the rack of a consumer that may be referred to another replica (KIP-392); empty = not stated.
    listener: the name of the listener; a consumer is referred only to brokers that have this listener.
    """

    partitions: tuple[FetchPartition, ...]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    replica_id: int = CONSUMER
    broker_epoch: int = NO_EPOCH
    session_id: int = NO_SESSION
    session_epoch: int = FULL_FETCH_NO_SESSION
    forgotten: tuple[ForgottenPartition, ...] = ()
    by_id: bool = False
    read_committed: bool = False
    rack: str = ""
    listener: str = ""


class FetchResult(msgspec.Struct, frozen=True):
    """The answer for one partition.

    topic_id, topic: as in the request; the other one is filled in if the image has the topic.
    records: whole batches, of which only the first may exceed max_bytes; empty = nothing new.
    last_stable_offset: with `read_committed`, the last stable offset; otherwise the high watermark.
    aborted: with `read_committed`, the aborted transactions with records in `records`, in the order of their markers.
    diverging_epoch, diverging_end: not -1 if the fetcher must truncate before it continues (KIP-595).  In a follower's
        OFFSET_OUT_OF_RANGE: the epoch before `log_start_offset`, and that offset; -1 if the leader does not know it.
    preferred_replica: the broker from which the consumer should read instead; -1 = this one.
    """

    topic_id: UUID | None
    topic: str | None
    index: int
    error_code: int
    high_watermark: int = NO_OFFSET
    last_stable_offset: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET
    records: bytes | memoryview = b""
    diverging_epoch: int = NO_EPOCH
    diverging_end: int = NO_OFFSET
    leader_id: int = -1
    leader_epoch: int = NO_EPOCH
    aborted: Sequence[AbortedTransaction] = ()
    preferred_replica: int = -1


class FetchReply(msgspec.Struct, frozen=True):
    """The answer to a fetch.  error_code: for the request as a whole (session errors); `results` is empty then."""

    error_code: int
    session_id: int = NO_SESSION
    results: tuple[FetchResult, ...] = ()


class ListOffsetResult(msgspec.Struct, frozen=True):
    """The answer for one partition.  offset, timestamp: -1 if no record is at or after the requested timestamp."""

    error_code: int
    offset: int = NO_OFFSET
    timestamp: int = -1
    leader_epoch: int = NO_EPOCH


class DeletedRecords(msgspec.Struct, frozen=True):
    """The answer for one partition.

    low_watermark: the lowest durable log start of all replicas that are in the ISR or on an active broker; -1 with an
        error.
    """

    error_code: int
    low_watermark: int = NO_OFFSET


class EpochEndResult(msgspec.Struct, frozen=True):
    """The largest epoch at or below the requested one, with its end offset; both -1 if unknown."""

    error_code: int
    leader_epoch: int = NO_EPOCH
    end_offset: int = NO_OFFSET


class ProducerIdResult(msgspec.Struct, frozen=True):
    error_code: int
    producer_id: int = -1
    producer_epoch: int = -1


class Groups(Protocol):
    """The coordinators of consumer groups on this broker."""

    async def prepare(self) -> str:
        """Wait until the topic that holds the groups exists; create it if necessary.

        Return the reason if it cannot be created, otherwise an empty string.
        """
        ...

    def partition(self, group: str) -> int:
        """Return the partition that holds the state of a group; -1 while the topic does not exist."""
        ...

    def led(self) -> Sequence[int]:
        """Return the partitions whose groups this broker coordinates."""
        ...

    def call(self, partition: int, request: GroupRequest, size: int) -> asyncio.Future[Any]:
        """Send a request to the coordinator of this partition, which holds all groups of the request.

        The future gets the response, or the `KafkaCode` of a refusal; it never raises.  The caller cancels the future
        when the client disconnects.

        size: bytes of the client's request.
        """
        ...


class Transactions(Protocol):
    """The coordinators of transactions on this broker.  `prepare`, `partition`, `led` and `call` as in `Groups`."""

    async def prepare(self) -> str: ...

    def partition(self, transactional_id: str) -> int: ...

    def led(self) -> Sequence[int]: ...

    def call(self, partition: int, request: TransactionRequest, size: int) -> asyncio.Future[Any]: ...

    async def init_producer(self, request: InitProducer, size: int) -> InitProducerResponse:
        """Begin or continue as the producer of a transactional id."""
        ...

    async def end_transaction(self, request: EndTransaction, size: int) -> EndTransactionResponse:
        """Commit or abort the transaction of a producer."""
        ...

    async def init_scope_producer(self, request: InitScopeProducer, size: int) -> InitScopeProducerResponse | KafkaCode:
        """Begin as a producer of a scope; return a `KafkaCode` if the coordinator cannot serve now."""
        ...

    async def write_marker(self, topic: str, index: int, marker: Marker) -> int:
        """Write a marker to a partition that this broker leads; return an error code, or NONE once it is committed."""
        ...

    async def commit_offsets(
        self, transactional_id: str, request: TxnOffsetCommit, support: TransactionSupport, size: int
    ) -> Any:
        """Commit offsets within a transaction; return an OffsetCommitResponse, or the `KafkaCode` of a refusal."""
        ...


class Shares(Protocol):
    """Share groups on this broker.  `prepare`, `partition` and `led` as in `Groups`, for the share coordinator."""

    async def prepare(self) -> str: ...

    def partition(self, key: str) -> int: ...

    def led(self) -> Sequence[int]: ...

    def call(self, request: StateRequest) -> asyncio.Future[Any]:
        """Send a request to the share coordinator on this broker; see `Groups.call`."""
        ...

    def lock_ms(self, group: str) -> int:
        """Return the duration of a group's acquisition locks: how long a member may hold a record."""
        ...

    async def fetch(self, plan: ShareFetchPlan) -> ShareReply:
        """Apply the acknowledgements of a member, then acquire records for it; may wait (long poll)."""
        ...

    async def acknowledge(self, plan: ShareAcknowledgePlan) -> ShareReply:
        """Apply the acknowledgements of a member; return once they are durable or refused."""
        ...

    def disconnected(self, peer: str) -> None:
        """End the sessions of a client whose connection is lost, and release its records."""
        ...

    def write_dead_letters(self, keys: Sequence[ShareKey]) -> None:
        """Begin to write the dead letters of share partitions whose partitions this broker leads.

        A share coordinator repeats the call until all letters are written, so keys above a limit are ignored.
        """
        ...

    async def clear_group(self, group: str) -> KafkaCode:
        """Delete the states of an empty share group before its deletion.  Return NONE for a group of another kind."""
        ...

    async def describe_offsets(
        self, group: str, wanted: Sequence[NamedPartitions] | None
    ) -> tuple[ListShareStatesResponse, list[tuple[NamedPartitions, list[StateResponse]]]]:
        """Return the states of a group, by topic.  wanted: None means all states."""
        ...

    async def log_ends(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the high watermarks of partitions, even if other brokers lead them, within a deadline.

        A partition whose high watermark cannot be found is missing from the result.
        """
        ...

    async def alter_offsets(
        self, group: str, offsets: Sequence[tuple[NamedPartitions, Sequence[int]]]
    ) -> tuple[ListShareStatesResponse, list[StateResponse]]:
        """Reset the states of an empty group to the given start offsets.  A missing group is created."""
        ...

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, KafkaCode] | ListShareStatesResponse:
        """Delete the states of topics in an empty group.  Return the error of each topic, or of the group."""
        ...


class HostedLog(msgspec.Struct, frozen=True):
    """The log of one replica of this broker.  size: bytes of its segments.

    offset_lag: number of offsets between the end of this log and the watermark.  For a copy: between the end of the
        copy and the end of the current log.
    is_future: it is a copy in the directory to which the replica moves.
    """

    directory_id: UUID
    topic: str
    index: int
    size: int
    offset_lag: int
    is_future: bool = False


class RequestedMove(msgspec.Struct, frozen=True):
    """A request to move a replica to a data directory of this broker."""

    topic: str
    index: int
    directory_id: UUID


class ActiveProducer(msgspec.Struct, frozen=True):
    """The state of a producer in a partition.

    last_sequence: -1 if none of its records is known.
    last_timestamp_ms: the newest timestamp in its last batch; -1 if it is not known.
    coordinator_epoch: the coordinator epoch in its last marker; -1 if there is none.
    transaction_start: the first offset of its open transaction; -1 if none is open.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = NO_OFFSET


class DataDirectory(msgspec.Struct, frozen=True):
    """A data directory of this broker.  total_bytes, free_bytes: the size of its file system; -1 if unknown."""

    directory_id: UUID
    path: str
    is_failed: bool
    total_bytes: int
    free_bytes: int


class SettingType(Enum):
    BOOLEAN = "boolean"
    INTEGER = "integer"
    TEXT = "text"
    LIST = "list"


class NodeSetting(msgspec.Struct, frozen=True):
    """A setting with which this process was started.  value, default: None if there is none."""

    name: str
    type: SettingType
    value: str | None
    default: str | None
    is_set: bool
    documentation: str


class QuorumReplica(msgspec.Struct, frozen=True):
    """A voter or observer of the metadata quorum.

    address: its control address, host:port.
    last_fetch_at_ms, last_caught_up_at_ms: wall time; -1 = never, or not known.
    """

    node_id: int
    directory_id: UUID
    address: str
    end_offset: int
    last_fetch_at_ms: int
    last_caught_up_at_ms: int


class QuorumState(msgspec.Struct, frozen=True):
    """The metadata quorum as its leader knows it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


class Node(Protocol):
    """Data about the process of this broker, for tools.  `broker.server.kafka_node.KafkaNode` implements it."""

    def directories(self) -> list[DataDirectory]:
        """Return the data directories, in the configured order."""
        ...

    def settings(self) -> Sequence[NodeSetting]:
        """Return the settings of this process, which only a restart can change."""
        ...

    async def quorum(self, timeout_ms: int) -> QuorumState | None:
        """Ask the leader of the metadata quorum for its state; None if it does not answer in time."""
        ...


class Replicas(Protocol):
    """The calls of the handlers.  `broker.replica.service.ReplicaService` implements them."""

    @property
    def image(self) -> ClusterImage:
        """The metadata that this broker has applied."""
        ...

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
        """Check and append, for each producer in the order of the calls.  The future is done when `acks` is satisfied.

        The future never raises, and only its caller may cancel it.  Batches with compression may be appended after this
        call has returned.  The memory of `batches` belongs to the log from now on: the log writes offsets into it, and
        may serve reads from it (`RecentAppends`).

        transactional_id: the transaction to which the records belong, if any.
        support: how far the client supports transactions.
        """
        ...

    async def produce(self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int) -> ProduceResult:
        """Call `start_produce` and wait for its result."""
        ...

    async def fetch(self, request: FetchPlan) -> FetchReply:
        """Answer a fetch of a consumer or follower; may wait (long poll).  A cancellation leaves nothing behind."""
        ...

    def start_delete(self, topic: str, index: int, offset: int, timeout_ms: int) -> asyncio.Future[DeletedRecords]:
        """Delete the records below `offset`.

        The future is done when every replica that is in the ISR or on an active broker has made the new log start
        durable, or after `timeout_ms`.  It never raises, and only its caller may cancel it.
        """
        ...

    async def list_offset(
        self,
        topic: str,
        index: int,
        timestamp: int,
        current_leader_epoch: int = NO_EPOCH,
        *,
        read_committed: bool = False,
    ) -> ListOffsetResult:
        """Return the first offset whose record is at or after `timestamp`, or the offset of a special timestamp.

        read_committed: only records below the last stable offset count.
        """
        ...

    def epoch_end(
        self, topic: str, index: int, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> EpochEndResult:
        """Return the largest epoch up to `leader_epoch` in the leader's log, and its end offset."""
        ...

    def hosted_logs(self) -> list[HostedLog]:
        """Return the logs of all replicas that are not offline, and the copies of moving replicas."""
        ...

    async def move_replicas(self, moves: Sequence[RequestedMove]) -> list[KafkaCode]:
        """Move replicas to working directories, in the background; return the outcome of each request.

        REPLICA_NOT_AVAILABLE means that this broker has no replica of the partition.  UNKNOWN_TOPIC_OR_PARTITION means
        that the partition does not exist.  If the replica is created later, it may be created in the requested
        directory.
        """
        ...

    def active_producers(self, topic: str, index: int) -> list[ActiveProducer] | int:
        """Return the producers in the log of a leader or of a follower in the ISR, or an error code."""
        ...

    async def allocate_producer_id(self) -> ProducerIdResult:
        """Return a new producer id with epoch 0, or COORDINATOR_LOAD_IN_PROGRESS (retriable) if none is left."""
        ...
