"""An idempotent producer of encoded record batches.

Theory of operation.  Each partition has a lane: a queue of batches, and one task that sends them one at a time.  With
only one batch in flight a sequence number is sufficient: either the broker has the batch or not, and it recognises a
batch that is sent again, also to the next leader.  Lanes do not wait for each other, the requests of many lanes share
a connection, and batches are large, so a single batch in flight costs less than the fsync that it waits for.

A batch gets its producer id, epoch and sequence once, when its turn comes, and never changes afterwards.  Without an
answer, after a broken connection or after a change of leader, it is sent again until the delivery timeout.  The timeout
counts from the batch's turn, not from `send`, so batches that waited in the queue during a failover do not expire.

The first failure ends the lane and the producer, because later batches would leave a gap in the order.  Waiting batches
fail, and `send` and `flush` raise the error.  No batch is dropped silently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol, Self

from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import PAUSE_MAX_S, Leaders, PartitionCalls, refusal
from quorumlog.client.records import stamp
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import produce
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import SEQUENCE_MAX, parse_header

DELIVERY_TIMEOUT_S: Final = 120.0
REQUEST_TIMEOUT_S: Final = 30.0
BUFFER_SIZE_MAX_BYTES: Final = 32 << 20
_PRODUCE_VERSION: Final = 9
_UNKNOWN_OFFSET: Final = -1

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0


class ProducerLeaders(Leaders, Protocol):
    """The part of `Cluster` that a producer uses."""

    async def new_producer_id(self, timeout_s: float) -> tuple[int, int]:
        """Return a new (producer id, epoch); raises ClusterError."""


@dataclass(frozen=True, slots=True)
class _Pending:
    batch: bytearray
    record_count: int
    delivered: asyncio.Future[int]


@dataclass(slots=True)
class _Lane:
    topic: str
    index: int
    queue: deque[_Pending] = field(default_factory=deque)
    next_sequence: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Producer:
    """`async with Producer(cluster) as producer:`; leaving the block without an error flushes.

    Args:
        acks: ACKS_ALL (acknowledged by the whole ISR), ACKS_LEADER, or ACKS_NONE (not idempotent, and without any
        acknowledgement).
        delivery_timeout_s: how long one batch is retried.
        request_timeout_s: how long one request may take before it is sent again.
        buffer_size_max_bytes: above this, `send` waits for acknowledgements.
        retry_pause_max_s: the maximum of the growing pause between retries of a batch.
    """

    def __init__(
        self,
        cluster: ProducerLeaders,
        *,
        acks: int = ACKS_ALL,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        buffer_size_max_bytes: int = BUFFER_SIZE_MAX_BYTES,
        retry_pause_max_s: float = PAUSE_MAX_S,
    ) -> None:
        assert acks in (ACKS_ALL, ACKS_LEADER, ACKS_NONE), acks
        self._cluster = cluster
        self._calls = PartitionCalls(cluster, retry_pause_max_s)
        self._acks = acks
        self._delivery_timeout_s = delivery_timeout_s
        self._request_timeout_s = request_timeout_s
        self._buffer_size_max = buffer_size_max_bytes
        self._identity: tuple[int, int] | None = None
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._tasks = asyncio.TaskGroup()
        self._running: list[asyncio.Task[None]] = []
        self._buffered_bytes = 0
        self._failure: ClusterError | None = None
        self._moved = asyncio.Event()  # set when a batch was delivered, or failed
        self.delivered_records = 0
        """Number of acknowledged records."""

    async def __aenter__(self) -> Self:
        """Raises: ClusterError if no producer id is available within the delivery timeout."""
        if self._acks != ACKS_NONE:
            self._identity = await self._cluster.new_producer_id(self._delivery_timeout_s)
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            self._fail(ClusterError(ApiError.PRODUCER_CLOSED, "the producer was closed"))
            for task in self._running:
                task.cancel()
            if isinstance(error, asyncio.CancelledError):  # perhaps by the task group, after a bug in a lane
                await self._tasks.__aexit__(kind, error, trace)
            else:
                await self._tasks.__aexit__(None, None, None)

    async def send(self, topic: str, index: int, batch: bytearray) -> asyncio.Future[int]:
        """Queue one sealed batch (`records.seal_batch`), which belongs to the producer from now on.

        Returns once there is room.  The future returns the batch's base offset, -1 if the broker no longer knows it.
        It need not be awaited, because `flush` raises its error.

        Raises: ClusterError, the producer's first failure.
        """
        while (
            self._failure is None and self._buffered_bytes + len(batch) > self._buffer_size_max and self._buffered_bytes
        ):
            self._moved.clear()
            await self._moved.wait()
        if self._failure is not None:
            raise self._failure
        delivered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        pending = _Pending(batch, parse_header(batch).record_count, delivered)
        self._buffered_bytes += len(batch)
        lane = self._lane(topic, index)
        lane.queue.append(pending)
        lane.changed.set()
        return delivered

    async def flush(self) -> None:
        """Return once every batch is acknowledged.  Raises: ClusterError, the producer's first failure."""
        while self._failure is None and self._buffered_bytes:
            self._moved.clear()
            await self._moved.wait()
        if self._failure is not None:
            raise self._failure

    def _lane(self, topic: str, index: int) -> _Lane:
        lane = self._lanes.get((topic, index))
        if lane is None:
            lane = self._lanes[topic, index] = _Lane(topic, index)
            self._running.append(self._tasks.create_task(self._run(lane)))
        return lane

    async def _run(self, lane: _Lane) -> None:
        while self._failure is None:
            if not lane.queue:
                lane.changed.clear()
                await lane.changed.wait()
                continue
            pending = lane.queue[0]
            try:
                offset = await self._deliver(lane, pending)
            except ClusterError as error:
                return self._fail(error)
            if self._failure is not None:  # another lane failed, and this batch with it
                return None
            lane.queue.popleft()
            lane.next_sequence = (lane.next_sequence + pending.record_count) & SEQUENCE_MAX
            self._buffered_bytes -= len(pending.batch)
            self.delivered_records += pending.record_count
            if not pending.delivered.done():
                pending.delivered.set_result(offset)
            self._moved.set()
        return None

    def _fail(self, error: ClusterError) -> None:
        if self._failure is None:
            self._failure = error
        for lane in self._lanes.values():
            for pending in lane.queue:
                if not pending.delivered.done():
                    pending.delivered.set_exception(self._failure)
                    pending.delivered.exception()  # mark as retrieved: flush raises it
            lane.queue.clear()
        self._buffered_bytes = 0
        self._moved.set()

    async def _deliver(self, lane: _Lane, pending: _Pending) -> int:
        if self._identity is not None:
            stamp(pending.batch, *self._identity, lane.next_sequence)
        attempts = 0

        async def attempt(connection: KafkaConnection, left_s: float) -> int:
            nonlocal attempts
            attempts += 1
            return await self._attempt(lane, pending, connection, min(left_s, self._request_timeout_s), attempts)

        return await self._calls.call(lane.topic, lane.index, self._delivery_timeout_s, attempt)

    async def _attempt(
        self, lane: _Lane, pending: _Pending, connection: KafkaConnection, timeout_s: float, attempts: int
    ) -> int:
        body = produce.encode_request(
            _PRODUCE_VERSION, self._acks, int(timeout_s * 1000), [(lane.topic, lane.index, pending.batch)]
        )
        if self._acks == ACKS_NONE:
            await connection.post(Api.PRODUCE, _PRODUCE_VERSION, body, timeout_s)
            return _UNKNOWN_OFFSET
        reply = await connection.call(Api.PRODUCE, _PRODUCE_VERSION, body, timeout_s)
        with connection.judged():
            results = produce.decode_response(reply, _PRODUCE_VERSION)
            if len(results) != 1 or (results[0].topic, results[0].index) != (lane.topic, lane.index):
                raise RemoteProtocolError("the answer to Produce contains other partitions than the request")
        result = results[0]
        match result.error_code:
            case KafkaCode.NONE:
                return result.base_offset
            case KafkaCode.DUPLICATE_SEQUENCE_NUMBER:  # the broker has the batch, but no longer knows its offset
                return _UNKNOWN_OFFSET
            case KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER | KafkaCode.UNKNOWN_PRODUCER_ID:
                raise _sequence_lost(lane, result.error_code, attempts)
        error = refusal(result.error_code, lane.topic, lane.index, f"a batch of {pending.record_count} records")
        if result.error_message:
            error.message += f" ({result.error_message})"
        raise error


def _sequence_lost(lane: _Lane, code: int, attempts: int) -> ClusterError:
    """The broker does not know the previous batch, although it had acknowledged it."""
    what = f"sequence {lane.next_sequence} (attempt {attempts})"
    error = refusal(code, lane.topic, lane.index, what)
    why = "the log no longer holds this producer's last batch: acknowledged records were deleted or lost"
    return ClusterError(error.code, f"{error.message}; {why}", f"kctl explain {lane.topic}-{lane.index}")
