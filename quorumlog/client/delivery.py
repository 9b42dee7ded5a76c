"""Delivers one record batch at a time to a partition, exactly once: the part that all producers share.

A batch gets its producer id, epoch and sequence once, and never changes afterwards.  If there is no answer, the
connection breaks or the leader changes, the batch is sent again until the time is up.  The broker, and each later
leader, recognises it by its sequence number.  This works only while the caller has a single batch of a partition in
flight.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import PAUSE_MAX_S, Leaders, PartitionCalls, refusal
from quorumlog.client.records import stamp
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import produce
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import SEQUENCE_MAX
from quorumlog.words import about, counted

DELIVERY_TIMEOUT_S: Final = 120.0
REQUEST_TIMEOUT_S: Final = 30.0
UNKNOWN_OFFSET: Final = -1
_PRODUCE_VERSION: Final = 9

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0


class ProducerLeaders(Leaders, Protocol):
    """The part of `Cluster` that a producer uses."""

    async def new_producer_id(self, timeout_s: float) -> tuple[int, int]:
        """Return a new (producer id, epoch); raises ClusterError."""


class Transaction(Protocol):
    """The transaction to which all batches of a producer belong."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def identity(self) -> tuple[int, int]:
        """Return producer id and epoch."""
        ...

    async def enlist(self, topic: str, index: int, timeout_s: float) -> None:
        """Add a partition, before its first batch.  Raises: ClusterError."""
        ...


class RecordsTransaction(Transaction, Protocol):
    """A `Transaction` that knows whether all its records were delivered."""

    @property
    def refusal(self) -> ClusterError | None:
        """Return the reason why no record may be added now; None if records may be added."""
        ...

    @property
    def send_refusal(self) -> ClusterError | None:
        """Return the reason why records that were added may not be sent now; None if they may be sent."""
        ...

    def failed(self, error: ClusterError) -> None:
        """Note that a record may or may not have been written, so that this transaction cannot be committed."""
        ...


@dataclass(slots=True)
class Sequence:
    """The numbers of a producer's batches in one partition.

    identity: producer id and epoch; None: batches have no numbers, or the lane must request a producer id first.
    attempts: the number of times that the last batch was sent.
    """

    topic: str
    index: int
    identity: tuple[int, int] | None = None
    next_sequence: int = 0
    attempts: int = 0


class Delivered(NamedTuple):
    """The place of a delivered batch.

    base_offset: UNKNOWN_OFFSET without acknowledgements, or if the broker no longer knows it.
    append_time_ms: the timestamp that the leader gave to the records; -1 if they keep their own.
    """

    base_offset: int
    append_time_ms: int = -1


class BatchDelivery:
    """Sends batches to the leaders of their partitions.

    Args:
        acks: ACKS_ALL, ACKS_LEADER or ACKS_NONE.
        request_timeout_s: how long one request may take before it is sent again.
        retry_pause_max_s: the maximum of the growing pause between retries of a batch.
        transaction: the transaction to which all batches belong; requires ACKS_ALL.
    """

    def __init__(
        self,
        cluster: Leaders,
        *,
        acks: int = ACKS_ALL,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        retry_pause_max_s: float = PAUSE_MAX_S,
        transaction: Transaction | None = None,
    ) -> None:
        assert acks in (ACKS_ALL, ACKS_LEADER, ACKS_NONE), acks
        assert transaction is None or acks == ACKS_ALL, acks
        self._transaction = transaction
        self._calls = PartitionCalls(cluster, retry_pause_max_s)
        self._acks = acks
        self._request_timeout_s = request_timeout_s

    async def deliver(self, sequence: Sequence, batch: bytearray, record_count: int, timeout_s: float) -> Delivered:
        """Send a sealed batch until it is acknowledged, and advance `sequence` by its records.

        Raises: ClusterError.  The batch may still have been appended, unless the broker refused the first attempt.
        """
        sequence.attempts = 0
        transaction = self._transaction
        if transaction is not None:
            deadline = asyncio.get_running_loop().time() + timeout_s
            await transaction.enlist(sequence.topic, sequence.index, timeout_s)
            timeout_s = max(deadline - asyncio.get_running_loop().time(), 0.0)
        if sequence.identity is not None:
            numbers = (*sequence.identity, sequence.next_sequence)
            stamp(batch, *numbers, is_transactional=transaction is not None)

        async def attempt(connection: KafkaConnection, left_s: float) -> Delivered:
            sequence.attempts += 1
            limit_s = min(left_s, self._request_timeout_s)
            return await self._attempt(sequence, batch, record_count, connection, limit_s)

        delivered = await self._calls.call(sequence.topic, sequence.index, timeout_s, attempt)
        sequence.next_sequence = (sequence.next_sequence + record_count) & SEQUENCE_MAX
        return delivered

    async def _attempt(
        self, sequence: Sequence, batch: bytearray, record_count: int, connection: KafkaConnection, timeout_s: float
    ) -> Delivered:
        topic, index = sequence.topic, sequence.index
        transactional_id = None if self._transaction is None else self._transaction.transactional_id
        body = produce.encode_request(
            _PRODUCE_VERSION, self._acks, int(timeout_s * 1000), [(topic, index, batch)], transactional_id
        )
        if self._acks == ACKS_NONE:
            await connection.post(Api.PRODUCE, _PRODUCE_VERSION, body, timeout_s)
            return Delivered(UNKNOWN_OFFSET)
        reply = await connection.call(Api.PRODUCE, _PRODUCE_VERSION, body, timeout_s)
        with connection.judged():
            results = produce.decode_response(reply, _PRODUCE_VERSION)
            if len(results) != 1 or (results[0].topic, results[0].index) != (topic, index):
                raise RemoteProtocolError("the answer to Produce contains other partitions than the request")
        result = results[0]
        match result.error_code:
            case KafkaCode.NONE:
                return Delivered(result.base_offset, result.log_append_time_ms)
            case KafkaCode.DUPLICATE_SEQUENCE_NUMBER if sequence.attempts > 1:
                return Delivered(UNKNOWN_OFFSET)  # the broker has the batch, but no longer knows its offset
            case KafkaCode.DUPLICATE_SEQUENCE_NUMBER:  # an acknowledgement would lose the batch
                raise _numbers_used(sequence)
            case KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER | KafkaCode.UNKNOWN_PRODUCER_ID:
                raise _sequence_lost(sequence, result.error_code)
        raise refusal(
            result.error_code, topic, index, f"a batch of {counted(record_count, 'record')}", result.error_message
        )


def _numbers_used(sequence: Sequence) -> ClusterError:
    """Return the error for a new batch whose numbers the broker knows."""
    what = f"sequence {sequence.next_sequence} (first attempt)"
    error = refusal(KafkaCode.DUPLICATE_SEQUENCE_NUMBER, sequence.topic, sequence.index, what)
    why = "its numbers belong to an earlier batch, so it was not stored"
    return ClusterError(error.code, f"{error.message}; {why}", "send the records again")


def _sequence_lost(sequence: Sequence, code: int) -> ClusterError:
    """Return the error for a broker that does not know the previous, acknowledged batch."""
    what = f"sequence {sequence.next_sequence} (attempt {sequence.attempts})"
    error = refusal(code, sequence.topic, sequence.index, what)
    why = "the log no longer holds this producer's last batch: acknowledged records were deleted or lost"
    next_step = about("kctl explain", f"{sequence.topic}-{sequence.index}")
    return ClusterError(error.code, f"{error.message}; {why}", next_step)
