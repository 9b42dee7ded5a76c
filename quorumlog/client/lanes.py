"""The records of a producer that wait for their delivery, by partition.

A lane is the queue of one partition.  Records are added to the lane's last batch until it is full.  The first batch is
taken from the queue when the previous one is decided.  So batches grow automatically while an earlier one is in flight.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from typing import Any, Final
from uuid import UUID

from quorumlog.client.delivery import UNKNOWN_OFFSET, Delivered, Sequence
from quorumlog.client.messages import RecordMetadata
from quorumlog.client.record_codec import NewRecord
from quorumlog.errors import ClusterError

Piece = tuple[int, Delivered | ClusterError]
"""The index of a record, and the outcome of this record and of the records before the next piece."""

RECORD_OVERHEAD_BYTES: Final = 24
"""Bytes that count for a record in addition to its key, value and headers: not less than its framing on the wire."""
HEADER_OVERHEAD_BYTES: Final = 10


def size_of(record: NewRecord) -> int:
    """Return the bytes that count for a record.  For speed, `Producer` computes the same sum inline."""
    _, key, value, headers = record
    of_headers = sum(len(name) + len(data or b"") + HEADER_OVERHEAD_BYTES for name, data in headers)
    return RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + of_headers


class Batch:
    """Records of one partition that are sent together.

    size: the sum of `size_of` its records.  pieces: the outcome, in the order of the records.
    ready_at: the loop time, in seconds, from which the batch may be sent although it is not full.
    deadline: the loop time, in seconds, at which its delivery fails.
    observed: indexes of the failed records whose outcome the user has read.
    """

    __slots__ = ("deadline", "index", "observed", "pieces", "ready_at", "records", "size", "topic")

    def __init__(self, topic: str, index: int, ready_at: float, deadline: float) -> None:
        self.topic = topic
        self.index = index
        self.records: list[NewRecord] = []
        self.size = 0
        self.ready_at = ready_at
        self.deadline = deadline
        self.observed: set[int] = set()
        self.pieces: asyncio.Future[list[Piece]] = asyncio.get_running_loop().create_future()

    def drop_data(self) -> None:
        """Keep only the timestamps of the records, because the records will not be sent again."""
        self.records = [(timestamp_ms, None, None, ()) for timestamp_ms, _, _, _ in self.records]

    def failed_records(self) -> int:
        """Return the number of records that were not delivered.  The batch must have an outcome."""
        pieces = self.pieces.result()
        ends = [start for start, _ in pieces[1:]] + [len(self.records)]
        return sum(
            end - start for (start, outcome), end in zip(pieces, ends, strict=True) if isinstance(outcome, ClusterError)
        )

    def first_error(self) -> ClusterError | None:
        """Return the error of the first record that failed; None if none did.  The batch must have an outcome."""
        return next((outcome for _, outcome in self.pieces.result() if isinstance(outcome, ClusterError)), None)


class Delivery:
    """The future delivery of one record: `await` it for the record's `RecordMetadata`.

    It need not be awaited, because `flush` raises the error of a delivery that the user has not read.  Cancelling the
    wait does not cancel the delivery.
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait for the outcome, and return the place of the record.

        Raises:
            ClusterError: the record was not delivered within the delivery timeout, or was refused.
        """
        if not self._batch.pieces.done():
            yield from asyncio.shield(self._batch.pieces).__await__()
        return self.result()

    def done(self) -> bool:
        """Return whether the delivery has succeeded or failed."""
        return self._batch.pieces.done()

    def result(self) -> RecordMetadata:
        """Return the place of the record.

        Raises:
            ClusterError: the record was not delivered.
            asyncio.InvalidStateError: its batch has no outcome yet.
        """
        batch = self._batch
        first, outcome = next(piece for piece in reversed(batch.pieces.result()) if piece[0] <= self._index)
        if isinstance(outcome, ClusterError):
            batch.observed.add(self._index)
            raise outcome.again()
        offset = outcome.base_offset
        if offset != UNKNOWN_OFFSET:
            offset += self._index - first
        timestamp_ms = batch.records[self._index][0] if outcome.append_time_ms < 0 else outcome.append_time_ms
        return RecordMetadata(batch.topic, batch.index, offset, timestamp_ms)


class Lane:
    """The queue of one partition.

    size_max: the largest size of a batch, in bytes.  It is lowered if the broker refuses a batch as too large.
    former: the lane of the same partition whose records must be decided first; None if there is none.
    """

    __slots__ = ("changed", "ended", "former", "queue", "sequence", "size_max", "task")

    def __init__(self, topic: str, index: int, size_max: int) -> None:
        self.sequence = Sequence(topic, index)
        self.size_max = size_max
        self.queue: deque[Batch] = deque()
        self.changed = asyncio.Event()
        """Set when a batch was added, or when the task of the lane must check its state again."""
        self.former: Lane | None = None
        self.ended = asyncio.Event()
        """Set once all batches of a lane of a deleted topic are decided."""
        self.task: asyncio.Task[None] | None = None


class Topic:
    """The lanes of a topic.

    sticky: the current partition of records without a key.  After `sticky_left` more bytes, another partition is drawn.
    is_deleted: the topic was deleted; its lanes end when they are empty.
    """

    __slots__ = ("is_deleted", "lanes", "name", "sticky", "sticky_left", "topic_id")

    def __init__(self, name: str, topic_id: UUID | None) -> None:
        self.name = name
        self.topic_id = topic_id
        self.lanes: list[Lane] = []
        self.sticky = 0
        self.sticky_left = 0
        self.is_deleted = False
