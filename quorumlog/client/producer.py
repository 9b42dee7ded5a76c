"""An idempotent producer of encoded record batches, for tools; `quorumlog.client.Producer` sends records.

Theory of operation.  Each partition has a lane: a queue of batches, and one task that sends them one at a time.  With
only one batch in flight, a sequence number is sufficient: either the broker has the batch or not.  The broker, and each
later leader, recognises a batch that is sent again.  Lanes do not wait for each other, the requests of many lanes share
a connection, and batches are large.  So the limit of one batch in flight costs less than the fsync of a batch.

`BatchDelivery` numbers a batch when its turn comes, and sends it until the delivery timeout.  The timeout counts from
the batch's turn, not from `send`, so batches that waited in the queue during a failover do not expire.

The first failure ends the lane and the producer, because later batches would leave a gap in the order.  Waiting batches
fail, and `send` and `flush` raise the error.  No batch is dropped silently.

With `divides`, a batch that a broker refuses as too large is no failure: it is replaced by two batches of half its
records, under the same sequence numbers.  If the broker had appended the whole batch before, it would refuse the first
half because of its numbers.  Later batches of the lane with the refused size or more are divided before they are sent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from quorumlog.client.delivery import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    DELIVERY_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    BatchDelivery,
    ProducerLeaders,
    Sequence,
    Transaction,
)
from quorumlog.client.partitions import PAUSE_MAX_S
from quorumlog.client.records import open_batches
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.wire.record_batch import parse_header

__all__ = ["ACKS_ALL", "ACKS_LEADER", "ACKS_NONE", "Producer"]

BUFFER_SIZE_MAX_BYTES: Final = 32 << 20
_TOO_LARGE: Final = (ApiError.MESSAGE_TOO_LARGE, ApiError.RECORD_LIST_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class _Pending:
    batch: bytearray
    record_count: int
    delivered: asyncio.Future[int]


@dataclass(slots=True)
class _Lane:
    """refused_bytes: the size of the smallest batch that was refused as too large; None if none was."""

    sequence: Sequence
    queue: deque[_Pending] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    refused_bytes: int | None = None


class Producer:
    """Send batches: `async with Producer(cluster) as producer:`.  Leaving the block without an error flushes.

    Args:
        acks: ACKS_ALL (acknowledged by the whole ISR), ACKS_LEADER, or ACKS_NONE (not idempotent, and without any
        acknowledgement).
        delivery_timeout_s: how long one batch is retried.
        request_timeout_s: how long one request may take before it is sent again.
        buffer_size_max_bytes: above this, `send` waits for acknowledgements.
        retry_pause_max_s: the maximum of the growing pause between retries of a batch.
        transaction: the transaction to which all batches belong; requires ACKS_ALL.  Its owner ends it, after `flush`.
        divides: send a batch that a broker refuses as too large in parts.  The future of `send` then returns the base
        offset of the first part; the others need not follow it directly.
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
        transaction: Transaction | None = None,
        divides: bool = False,
    ) -> None:
        self._cluster = cluster
        self._divides = divides
        self._transaction = transaction
        self._delivery = BatchDelivery(
            cluster,
            acks=acks,
            request_timeout_s=request_timeout_s,
            retry_pause_max_s=retry_pause_max_s,
            transaction=transaction,
        )
        self._acks = acks
        self._delivery_timeout_s = delivery_timeout_s
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
        if self._transaction is not None:
            self._identity = self._transaction.identity
        elif self._acks != ACKS_NONE:
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

        Returns once there is room.  The future returns the batch's base offset: -1 with ACKS_NONE, or if the broker no
        longer knows it.  The future need not be awaited, because `flush` raises its error.

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
            lane = self._lanes[topic, index] = _Lane(Sequence(topic, index, self._identity))
            self._running.append(self._tasks.create_task(self._run(lane)))
        return lane

    async def _run(self, lane: _Lane) -> None:
        while self._failure is None:
            if not lane.queue:
                lane.changed.clear()
                await lane.changed.wait()
                continue
            pending = lane.queue[0]
            if pending.record_count > 1 and lane.refused_bytes is not None and len(pending.batch) >= lane.refused_bytes:
                self._divide(lane)
                continue
            try:
                delivered = await self._delivery.deliver(
                    lane.sequence, pending.batch, pending.record_count, self._delivery_timeout_s
                )
            except ClusterError as error:
                if not self._divides or error.code not in _TOO_LARGE or pending.record_count == 1:
                    return self._fail(error)
                lane.refused_bytes = len(pending.batch)
                continue
            if self._failure is not None:  # another lane failed, and this batch with it
                return None
            lane.queue.popleft()
            self._buffered_bytes -= len(pending.batch)
            self.delivered_records += pending.record_count
            if not pending.delivered.done():
                pending.delivered.set_result(delivered.base_offset)
            self._moved.set()
        return None

    def _divide(self, lane: _Lane) -> None:
        """Replace the first batch of a lane by two, each with half its records."""
        from quorumlog.client.record_codec import build_batch, read_batch  # needs the extension, which starts slowly

        pending = lane.queue.popleft()
        (opened,) = open_batches(pending.batch)
        records = [
            (each.timestamp_ms, each.key, each.value, each.headers)
            for each in read_batch(opened, lane.sequence.topic, lane.sequence.index, 0, opened.header.end_offset)
        ]
        middle = len(records) // 2
        first, second = (build_batch(part, opened.header.codec) for part in (records[:middle], records[middle:]))
        unobserved: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        lane.queue.appendleft(_Pending(second, len(records) - middle, unobserved))
        lane.queue.appendleft(_Pending(first, middle, pending.delivered))
        self._buffered_bytes += len(first) + len(second) - len(pending.batch)

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
