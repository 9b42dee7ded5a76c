"""The transactions of a `quorumlog.client.Producer`: its identity at the coordinator, and the open transaction.

Theory of operation.  A transactional id has one producer id with an epoch, which fences earlier producers of the id.  A
transaction begins without a request.  Before the first batch of a partition, the partition is added to the transaction,
together with all other partitions that wait at that time.  One request ends the transaction; the coordinator then
writes the markers.

After a failure, a batch may or may not be in a log, so the next sequence number is unknown, and the transaction can
only be aborted.  After the abort, the producer gets its next epoch: leaders then refuse every batch of the old epoch
that is still in transit, and sequence numbers restart.  No transaction begins before that, because its first batch
could have the number of an aborted batch, and leaders would drop it as a duplicate.  A fenced producer is refused
permanently, because another producer uses its transactional id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import CoordinatorCalls, Kind, refused
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.leader_calls import Partition, by_topic
from quorumlog.client.partitions import PAUSE_MIN_S
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

_OF_TRANSACTIONS: Final = {
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 3,
    Api.ADD_OFFSETS_TO_TXN: 3,
    Api.END_TXN: 3,
}
"""With these versions, the end of a transaction does not raise the epoch.  Apache Kafka serves them from 3.0 on."""
_OF_GROUPS: Final = {Api.TXN_OFFSET_COMMIT: 3}
_NOT_STARTED: Final = (-1, -1)
_FENCED: Final = (ApiError.PRODUCER_FENCED, ApiError.INVALID_PRODUCER_EPOCH, ApiError.INVALID_PRODUCER_ID_MAPPING)


class GroupMetadata(NamedTuple):
    """A consumer's membership, which the coordinator checks before it accepts offsets.

    generation: -1 for a consumer that is not a member.
    """

    group: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


class _State(Enum):
    """The state of the transaction.

    COMMITTING: the commit waits until all records are delivered; no more records are added.
    ENDING: the commit was sent and has no answer yet.  Only a repeated commit returns the outcome.
    """

    NONE = auto()
    OPEN = auto()
    COMMITTING = auto()
    FAILED = auto()
    ENDING = auto()


class ProducerTransactions:
    """Implements `delivery.RecordsTransaction`.  Every request ends within the `timeout_s` of its call."""

    def __init__(self, cluster: Cluster, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id: Final = transactional_id
        self.identity: tuple[int, int] = _NOT_STARTED
        self._timeout_ms = timeout_ms
        self._calls = CoordinatorCalls(cluster, Kind.TRANSACTIONAL_ID, _OF_TRANSACTIONS)
        self._groups = CoordinatorCalls(cluster, Kind.GROUP, _OF_GROUPS)
        self._state = _State.NONE
        self._failure: ClusterError | None = None
        """The reason why the open transaction can only be aborted."""
        self._fenced: ClusterError | None = None
        self._enlisted: set[Partition] = set()
        self._waiting: dict[Partition, None] = {}
        self._has_begun = False
        """Whether the coordinator may know the open transaction."""
        self.is_aborting = False
        """Whether an abort or a renewal has begun, and is not complete yet."""
        self.is_renewing = False
        """Whether the next epoch was requested after a commit, and has not arrived yet."""
        self._abort_runs = False
        self._commit_runs = False
        self._enlisting = asyncio.Lock()
        self._sending_offsets = asyncio.Lock()

    # -- state

    @property
    def refusal(self) -> ClusterError | None:
        """Return the reason why no record may be added now; None if the transaction is open."""
        return None if self._state is _State.OPEN else self._refusal()

    @property
    def send_refusal(self) -> ClusterError | None:
        """Return the reason why the records that were added may not be sent now.

        None: the transaction is open, or its commit waits until they are delivered.
        """
        return None if self._state in (_State.OPEN, _State.COMMITTING) else self._refusal()

    def _refusal(self) -> ClusterError:
        name = f"transactional id {self.transactional_id}"
        if self._fenced is not None:
            return self._fenced.again()
        match self._state:
            case _State.FAILED if self.is_renewing:
                text = f"{name}: its last transaction was committed, but the next epoch of its producer got no answer"
                return ClusterError(
                    ApiError.INVALID_TXN_STATE, text, "call abort_transaction(), which requests it again"
                )
            case _State.FAILED if self.is_aborting:
                text = f"{name}: the abort of its last transaction is not complete"
                return ClusterError(ApiError.TRANSACTION_ABORTABLE, text, "repeat abort_transaction()")
            case _State.FAILED:
                assert self._failure is not None
                text = f"{name}: its transaction can only be aborted, because: {self._failure.message}"
                error = ClusterError(ApiError.TRANSACTION_ABORTABLE, text, "abort it, then repeat all of its work")
                error.__cause__ = self._failure
                return error
            case _State.ENDING:
                text = f"{name}: the commit of its last transaction got no answer"
                return ClusterError(ApiError.INVALID_TXN_STATE, text, "repeat commit_transaction()")
            case _State.COMMITTING:
                return self._commit_in_progress()
            case _State.OPEN:
                return ClusterError(ApiError.INVALID_TXN_STATE, f"{name}: a transaction is open", "end it first")
        text = f"{name}: no transaction is open"
        return ClusterError(ApiError.INVALID_TXN_STATE, text, "use `async with producer.transaction()`")

    @property
    def can_abort(self) -> bool:
        """Return whether a transaction has begun, its commit was not sent, and its producer is not fenced."""
        return self._state in (_State.OPEN, _State.COMMITTING, _State.FAILED) and self._fenced is None

    @property
    def must_end(self) -> bool:
        """Return whether the coordinator may know an open transaction whose commit was not sent."""
        return self._has_begun and self.can_abort

    @property
    def has_failed(self) -> bool:
        return self._state is _State.FAILED

    def begin(self) -> None:
        """Begin a transaction.  Raises: ClusterError: PRODUCER_FENCED; INVALID_TXN_STATE: a transaction is open."""
        if self._state is not _State.NONE or self._fenced is not None:
            raise self._refusal()
        self._state = _State.OPEN

    def begin_commit(self) -> None:
        """Stop accepting records.  A record that is sent while the transaction ends could arrive after its end.

        If this succeeds, call `end_commit` at the end of the commit.

        Raises:
            ClusterError: INVALID_TXN_STATE: another call commits the transaction already.
        """
        if self._commit_runs:  # a second request could commit the next transaction, which begins after the first answer
            raise self._commit_in_progress()
        self._commit_runs = True
        if self._state is _State.OPEN:
            self._state = _State.COMMITTING

    def end_commit(self) -> None:
        """Accept records again if the commit was not sent."""
        self._commit_runs = False
        if self._state is _State.COMMITTING:
            self._state = _State.OPEN

    def _commit_in_progress(self) -> ClusterError:
        text = f"transactional id {self.transactional_id}: the commit of its transaction is in progress"
        return ClusterError(ApiError.INVALID_TXN_STATE, text, "begin the next transaction after it")

    def failed(self, error: ClusterError) -> None:
        """Note that a part of the open transaction failed, so that the transaction can only be aborted."""
        if error.code in _FENCED and self._fenced is None:
            cause = "another producer uses it now, or its transaction was aborted"
            text = f"transactional id {self.transactional_id}: {cause}"
            self._fenced = ClusterError(
                ApiError.PRODUCER_FENCED, text, "close this producer; run one producer for each transactional id"
            )
            self._fenced.__cause__ = error
        if self._state is not _State.NONE:
            self._state = _State.FAILED
            self._failure = self._failure or error

    def _done(self) -> None:
        self._state = _State.NONE
        self._failure = None
        self._enlisted.clear()
        self._waiting.clear()
        self._has_begun = self.is_aborting = self.is_renewing = False

    # -- requests

    async def start(self, timeout_s: float) -> None:
        """Get the first identity, or the next epoch after a failed transaction was aborted.

        The first request fences earlier producers of this id, and aborts their open transaction.

        Raises:
            ClusterError: PRODUCER_FENCED, INVALID_TRANSACTION_TIMEOUT, TIMED_OUT.
        """

        async def attempt(connection: KafkaConnection, left_s: float) -> tuple[int, int]:
            values = {
                "transactional_id": self.transactional_id,
                "transaction_timeout": self._timeout_ms,
                "producer_id": self.identity[0],
                "producer_epoch": self.identity[1],
            }
            reply = await self._calls.ask(connection, Api.INIT_PRODUCER_ID, values, left_s)
            self._check(reply.error_code, "its producer")
            return int(reply.producer_id), int(reply.producer_epoch)

        self.identity = await self._noted(self._calls.call(self.transactional_id, timeout_s, attempt))
        self._done()

    async def enlist(self, topic: str, index: int, timeout_s: float) -> None:
        """Add a partition to the open transaction; requests that wait at the same time are sent as one.

        Raises:
            ClusterError: the transaction can only be aborted, or PRODUCER_FENCED.
        """
        key = (topic, index)
        if self.send_refusal is not None:
            raise self.send_refusal
        if key in self._enlisted:
            return
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s
        self._waiting[key] = None
        async with self._turn(self._enlisting, deadline, f"{topic}-{index}"):
            if key in self._enlisted:
                return
            if self.send_refusal is not None:
                raise self.send_refusal
            wanted, self._waiting = list(self._waiting), {}
            self._has_begun = True
            await self._noted(self._add(wanted, max(deadline - now(), 0.0)))
            self._enlisted.update(wanted)

    async def _add(self, partitions: list[Partition], timeout_s: float) -> None:
        values = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.identity[0],
            "v3_and_below_producer_epoch": self.identity[1],
            "v3_and_below_topics": [
                {"name": name, "partitions": indexes} for name, indexes in by_topic(partitions).items()
            ],
        }

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            reply = await self._calls.ask(connection, Api.ADD_PARTITIONS_TO_TXN, values, left_s)
            codes = {
                (topic.name, each.partition_index): int(each.partition_error_code)
                for topic in reply.results_by_topic_v3_and_below
                for each in topic.results_by_partition
            }
            with connection.judged():
                if codes.keys() != set(partitions):
                    raise RemoteProtocolError("the answer is about other partitions than the request")
            for key, code in sorted(codes.items()):
                if code != KafkaCode.OPERATION_NOT_ATTEMPTED:  # sent if another partition was refused
                    self._check(code, f"{key[0]}-{key[1]}")

        await self._calls.call(self.transactional_id, timeout_s, attempt)

    async def send_offsets(self, group: GroupMetadata, offsets: Mapping[Partition, int], timeout_s: float) -> None:
        """Add offsets of a consumer group to the open transaction, which commits them at its end.

        Raises:
            ClusterError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID: the consumer is out of its group;
                or an error of `enlist`.  After each of these, the transaction can only be aborted.
        """
        if self.refusal is not None:
            raise self.refusal
        deadline = asyncio.get_running_loop().time() + timeout_s
        async with self._turn(self._sending_offsets, deadline, f"offsets of group {group.group}"):
            if self.refusal is not None:  # the transaction has ended meanwhile
                raise self.refusal
            await self._send_offsets(group, offsets, deadline)

    async def offsets_sent(self) -> None:
        """Wait for calls of `send_offsets`: their offsets must not arrive after the end of the transaction."""
        async with self._sending_offsets:
            pass

    @property
    def sends_offsets(self) -> bool:
        """Return whether a call of `send_offsets` is in progress."""
        return self._sending_offsets.locked()

    async def _send_offsets(self, group: GroupMetadata, offsets: Mapping[Partition, int], deadline: float) -> None:
        now = asyncio.get_running_loop().time
        producer = {"producer_id": self.identity[0], "producer_epoch": self.identity[1]}
        named = {"transactional_id": self.transactional_id, "group_id": group.group, **producer}
        topics = [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offsets[name, index],
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                    for index in indexes
                ],
            }
            for name, indexes in by_topic(sorted(offsets)).items()
        ]
        values = {
            **named,
            "generation_id": group.generation,
            "member_id": group.member_id,
            "group_instance_id": group.instance_id,
            "topics": topics,
        }

        async def add(connection: KafkaConnection, left_s: float) -> None:
            reply = await self._calls.ask(connection, Api.ADD_OFFSETS_TO_TXN, named, left_s)
            self._check(reply.error_code, f"offsets of group {group.group}")

        async def commit(connection: KafkaConnection, left_s: float) -> None:
            reply = await self._groups.ask(connection, Api.TXN_OFFSET_COMMIT, values, left_s)
            for topic in reply.topics:
                for each in topic.partitions:
                    what = f"the offset of group {group.group} in {topic.name}-{each.partition_index}"
                    self._check(each.error_code, what)

        self._has_begun = True
        await self._noted(self._calls.call(self.transactional_id, max(deadline - now(), 0.0), add))
        await self._noted(self._groups.call(group.group, max(deadline - now(), 0.0), commit))

    async def end(self, timeout_s: float, *, commit: bool) -> None:
        """Commit or abort the open transaction; return once the decision is durable.

        Raises:
            ClusterError: PRODUCER_FENCED; TRANSACTION_ABORTABLE: the transaction cannot be committed;
                INVALID_TXN_STATE: no transaction is open; TIMED_OUT: the outcome of a commit is unknown until `end` is
                repeated.
        """
        if self._state is _State.NONE or self._fenced is not None or (commit and self._state is _State.FAILED):
            raise self._refusal()
        if not commit and self._state is _State.ENDING:
            raise self._refusal()
        if not self._has_begun:
            return self._ended()
        values = {
            "transactional_id": self.transactional_id,
            "producer_id": self.identity[0],
            "producer_epoch": self.identity[1],
            "committed": commit,
        }

        async def attempt(connection: KafkaConnection, left_s: float) -> None:
            reply = await self._calls.ask(connection, Api.END_TXN, values, left_s)
            if commit or reply.error_code != KafkaCode.INVALID_TXN_STATE:  # else there is nothing to abort
                self._check(reply.error_code, "the commit" if commit else "the abort")

        if commit:
            self._state = _State.ENDING
        try:
            await self._calls.call(self.transactional_id, timeout_s, attempt)
        except ClusterError as error:
            if not error.retriable:
                self.failed(error)
            if self._fenced is None:
                raise
            raise self._fenced.again() from error
        return self._ended()

    def _ended(self) -> None:
        """Note that the coordinator has no open transaction.

        After a failure, a new transaction needs the next epoch.
        """
        self._has_begun = False
        if self._state is not _State.FAILED:
            self._done()

    async def abort(self, timeout_s: float, *, keeps_epoch: bool) -> None:
        """Abort a transaction that is marked as failed; return once the abort is durable and the next one may begin.

        keeps_epoch: True if no batch of the transaction can arrive later; otherwise the producer gets its next epoch.

        Raises:
            ClusterError: an error of `end` or `start`.  After TIMED_OUT or a cancellation, repeat the call.
        """
        self.is_aborting = True
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.end(timeout_s, commit=False)
        if keeps_epoch:
            self._done()
        else:
            await self.start(max(deadline - asyncio.get_running_loop().time(), PAUSE_MIN_S))

    async def renew(self, timeout_s: float) -> None:
        """Get the next epoch after a commit, so that sequence numbers can begin again.

        Raises:
            ClusterError: an error of `start`.  The coordinator may have raised the epoch nevertheless, so no
                transaction begins until `renew` or `abort` has got it.
        """
        self._state = _State.FAILED
        self._failure = ClusterError(ApiError.OUTCOME_UNKNOWN, "the next epoch of the producer got no answer")
        self._abort_runs = self.is_aborting = self.is_renewing = True
        try:
            await self.start(timeout_s)
        finally:
            self._abort_runs = False

    @contextmanager
    def failing(self, cause: ClusterError) -> Iterator[None]:
        """Mark the open transaction as failed, and refuse other calls that would abort it during the block.

        Another abort could be sent under the old epoch, or could abort the next transaction.

        Raises:
            ClusterError: TRANSACTION_ABORTABLE: another call aborts the transaction now.
        """
        if self._abort_runs:
            raise self._refusal()
        self._abort_runs = self.is_aborting = True
        self.failed(cause)
        try:
            yield
        finally:
            self._abort_runs = False

    @asynccontextmanager
    async def _turn(self, lock: asyncio.Lock, deadline: float, what: str) -> AsyncIterator[None]:
        """Hold a lock during the block.  what: the subject of the block, for messages.

        Raises:
            ClusterError: TIMED_OUT: the lock was not free by the deadline, so the transaction can only be aborted.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await lock.acquire()
        except TimeoutError as cause:
            text = f"transactional id {self.transactional_id}: {what}: earlier requests got no answer in time"
            error = ClusterError(ApiError.TIMED_OUT, text, retriable=True)
            self.failed(error)
            raise error from cause
        try:
            yield
        finally:
            lock.release()

    def _check(self, code: int, what: str) -> None:
        if code:
            raise refused(code, f"transactional id {self.transactional_id}: {what}")

    async def _noted(self, work: Any) -> Any:
        """Await a request and return its result.

        After a failure or a cancellation, the transaction can only be aborted.
        """
        try:
            return await work
        except asyncio.CancelledError:
            text = f"transactional id {self.transactional_id}: a request of its transaction was cancelled"
            self.failed(ClusterError(ApiError.OUTCOME_UNKNOWN, text))
            raise
        except ClusterError as error:
            self.failed(error)
            if self._fenced is None:
                raise
            raise self._fenced.again() from error
