"""Sends the batches of a producer's lanes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from quorumlog.client.cluster import Cluster
from quorumlog.client.delivery import BatchDelivery, RecordsTransaction
from quorumlog.client.delivery import Sequence as Numbers
from quorumlog.client.lanes import Batch, Lane, Piece, Topic, size_of
from quorumlog.client.producer_buffer import ProducerBuffer
from quorumlog.client.producer_settings import ACKS, ProducerSettings
from quorumlog.client.record_codec import build_batch
from quorumlog.errors import ClusterError
from quorumlog.wire.compression import CODEC_NAMES
from quorumlog.wire.errors import ApiError

_TOO_LARGE: Final = (ApiError.MESSAGE_TOO_LARGE, ApiError.RECORD_LIST_TOO_LARGE)
_NOT_APPENDED: Final = (
    *_TOO_LARGE,
    ApiError.INVALID_RECORD,
    ApiError.INVALID_TIMESTAMP,
    ApiError.UNSUPPORTED_COMPRESSION_TYPE,
    ApiError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ApiError.POLICY_VIOLATION,
    "TOPIC_AUTHORIZATION_FAILED",
)
"""Refusals of a batch because of its content or of missing permission.  The next batch uses the same sequence number.
After any other refusal, the log may already have this number, or may lack the batches before it."""


class LaneSender:
    """Delivers the batches of each lane, one at a time, and sets their outcomes.

    transaction: the transaction to which all records belong; None if there is none.
    flushes: the number of calls of `flush` that wait now; meanwhile no batch waits for more records.
    stale: set when a broker does not know a topic.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        transaction: RecordsTransaction | None,
        buffer: ProducerBuffer,
        stale: asyncio.Event,
    ) -> None:
        self.flushes = 0
        self._cluster = cluster
        self._transaction = transaction
        self._buffer = buffer
        self._stale = stale
        self._is_idempotent = settings.is_idempotent
        self._codec = CODEC_NAMES[settings.compression]
        self._delivery_timeout_s = settings.delivery_timeout_s
        self._delivery = BatchDelivery(
            cluster,
            acks=ACKS[settings.acks],
            request_timeout_s=settings.request_timeout_s,
            transaction=transaction,
        )

    async def run(self, topic: Topic, lane: Lane) -> None:
        """Deliver the batches of a lane, until its topic is deleted and the lane is empty, or until cancelled."""
        loop = asyncio.get_running_loop()
        await self._succeed(lane)
        while True:
            if not lane.queue:
                if topic.is_deleted:
                    lane.ended.set()
                    return
                lane.changed.clear()
                await lane.changed.wait()
                continue
            wait_s = lane.queue[0].ready_at - loop.time()
            if wait_s > 0 and len(lane.queue) == 1 and lane.queue[0].size < lane.size_max and not self.flushes:
                await self._linger(lane, wait_s)
                continue
            batch = lane.queue.popleft()
            pieces: list[Piece] = []
            await self._deliver(topic, lane, batch, 0, len(batch.records), pieces)
            self._buffer.decide(batch, pieces)

    async def _succeed(self, lane: Lane) -> None:
        """Wait for the former lane of the partition, so that its records come first, and choose the first number.

        The log may be the same as before, and would treat a batch with a number that it knows as a duplicate.  So in a
        transaction, whose producer is fixed, the numbers continue.  Otherwise they begin again with a new producer id.
        """
        former, lane.former = lane.former, None
        if former is None:
            return
        await former.ended.wait()
        if self._transaction is None:
            lane.sequence.identity = None
        elif lane.sequence.identity == former.sequence.identity:  # else the producer has a later epoch
            lane.sequence = former.sequence

    async def _linger(self, lane: Lane, wait_s: float) -> None:
        lane.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await lane.changed.wait()

    async def _deliver(
        self,
        topic: Topic,
        lane: Lane,
        batch: Batch,
        start: int,
        end: int,
        pieces: list[Piece],
        *,
        was_resent: bool = False,
    ) -> None:
        """Deliver the records from `start` to `end`, in parts if the broker refuses the batch as too large.

        was_resent: the records may already have been appended in a larger batch whose answer was lost.  In this case,
            the broker refuses the first part because of its sequence number, and no other part may be sent under a new
            number.
        """
        now = asyncio.get_running_loop().time
        numbers = lane.sequence
        try:
            if self._transaction is not None and (refusal := self._transaction.send_refusal) is not None:
                raise refusal
            if batch.deadline <= now():
                raise _expired(batch, self._delivery_timeout_s)
            if self._is_idempotent and numbers.identity is None:
                numbers.identity = await self._cluster.new_producer_id(batch.deadline - now())
            data = build_batch(batch.records[start:end], self._codec)
            left_s = max(batch.deadline - now(), 0.0)
            pieces.append((start, await self._delivery.deliver(numbers, data, end - start, left_s)))
        except ClusterError as error:
            if error.code in _TOO_LARGE and end - start > 1:
                refused_bytes = sum(map(size_of, batch.records[start:end]))
                lane.size_max = min(lane.size_max, max(refused_bytes // 2, 1))
                middle = (start + end) // 2
                was_resent = was_resent or numbers.attempts > 1
                await self._deliver(topic, lane, batch, start, middle, pieces, was_resent=was_resent)
                if was_resent and lane.sequence is not numbers:
                    pieces.append((middle, pieces[-1][1]))  # the first part failed, so this part fails as well
                else:
                    await self._deliver(topic, lane, batch, middle, end, pieces, was_resent=was_resent)
                return
            if self._transaction is not None:
                self._transaction.failed(error)
            elif numbers.attempts > 1 or error.code not in _NOT_APPENDED:
                lane.sequence = Numbers(numbers.topic, numbers.index)
            if error.code in (ApiError.UNKNOWN_TOPIC_OR_PARTITION, ApiError.UNKNOWN_TOPIC_ID):
                self._stale.set()
            pieces.append((start, error))


def _expired(batch: Batch, timeout_s: float) -> ClusterError:
    message = f"{batch.topic}-{batch.index}: {len(batch.records)} records were not sent within {timeout_s:g} s"
    return ClusterError(ApiError.TIMED_OUT, message, "check the brokers, or send more slowly", retriable=True)
