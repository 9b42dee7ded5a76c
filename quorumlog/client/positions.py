"""The position of a consumer in each of its partitions, and the records that it has fetched ahead.

The offsets of a partition are ordered: committed <= processed <= next <= fetch, unless the user or a reset has moved
the position back.  `next_offset` is the position: the next record that the user gets.  `fetch_offset` is the end of the
fetched records.  A change of the position (a seek or a reset) discards the records that were fetched ahead.  It also
raises `version`, so that the answer to an earlier fetch is recognised as stale.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator

from quorumlog.client.messages import TopicPartition
from quorumlog.client.record_codec import read_batch
from quorumlog.client.records import OFFSET_MAX, OpenBatch, UnreadableBatchError, end_offset, open_batches
from quorumlog.errors import ClusterError
from quorumlog.wire._record_scan import Record


class _Chunk:
    """The complete batches of one answer.  They are decoded one at a time."""

    __slots__ = ("batches", "end", "size")

    def __init__(self, records: memoryview, end: int, aborted: Iterable[tuple[int, int]]) -> None:
        self.batches: Iterator[OpenBatch] = open_batches(records, aborted=aborted)
        self.end = end
        self.size = len(records)


class Position:
    """One assigned partition.

    next_offset: None until it is known.  committed: the last committed offset that this consumer knows; None if it
        knows none.
    high_watermark: the end of the committed records according to the last answer; -1 before the first one.
    error: raised when the user next asks for records.
    paused_at: the loop time of the last pause.
    is_held: the position is not looked up yet, because the user's callback may set it.
    failing_since: the loop time of the first failure since the last successful fetch; None without a failure.
    retry_at: the loop time of the next attempt.
    reset_at: the loop time since which the position may be one of a new log: its partition was assigned then, or the
        position was reset because it was above the end of the log.  -inf before that.
    served: orders positions by their last answer with records; 0 before the first one.
    """

    __slots__ = (
        "buffered_bytes",
        "chunks",
        "committed",
        "error",
        "failing_since",
        "failure",
        "fetch_offset",
        "high_watermark",
        "is_held",
        "is_in_flight",
        "is_paused",
        "next_offset",
        "partition",
        "paused_at",
        "reset_at",
        "retry_at",
        "served",
        "version",
        "was_out_of_range",
    )

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.next_offset: int | None = None
        self.fetch_offset = 0
        self.committed: int | None = None
        self.version = 0
        self.is_paused = False
        self.paused_at = 0.0
        self.is_held = False
        self.is_in_flight = False
        self.was_out_of_range = False
        self.chunks: deque[_Chunk] = deque()
        self.buffered_bytes = 0
        self.high_watermark = -1
        self.error: ClusterError | None = None
        self.failure: ClusterError | None = None
        self.failing_since: float | None = None
        self.retry_at = 0.0
        self.reset_at = -math.inf
        self.served = 0

    def move(self, offset: int | None) -> None:
        """Set the position, and drop the records that were fetched ahead.  None: the position is looked up again."""
        self.next_offset = offset
        self.fetch_offset = offset or 0
        self.chunks.clear()
        self.buffered_bytes = 0
        self.version += 1
        self.error = None
        self.was_out_of_range = False
        self.succeeded()

    def failed(self, error: ClusterError, now: float, pause_s: float) -> None:
        """Note that nothing could be fetched.  The next attempt begins after `pause_s`.  now: the loop time."""
        self.failure = error
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.retry_at = now + pause_s

    def pause(self, now: float) -> None:
        """Hand out and fetch no more records.  now: the loop time."""
        if not self.is_paused:
            self.is_paused = True
            self.paused_at = now

    def resume(self, now: float) -> None:
        """End a pause, which does not count towards the time of a failure: nothing was fetched meanwhile."""
        if self.is_paused and self.failing_since is not None:
            self.failing_since += now - max(self.paused_at, self.failing_since)
        self.is_paused = False

    def succeeded(self) -> None:
        self.failure = None
        self.failing_since = None
        self.retry_at = 0.0

    def add(self, records: memoryview, high_watermark: int, aborted: Iterable[tuple[int, int]] = ()) -> bool:
        """Add the answer to a fetch at `fetch_offset`; return whether the answer had records.

        aborted: (producer id, first offset) of each aborted transaction, whose records are left out.
        The data may be damaged.  `take` reports this after the user has got the records before the damage.
        """
        self.high_watermark = high_watermark
        self.succeeded()
        if not records:
            return False
        try:
            end = end_offset(records)
        except UnreadableBatchError:
            end = self.fetch_offset  # `take` reports the damage
        if end is None:
            return False
        self.chunks.append(_Chunk(records, end, aborted))
        self.buffered_bytes += len(records)
        self.fetch_offset = max(self.fetch_offset, end)
        return True

    def take(self) -> list[Record]:
        """Return the records of the next batch that has any; empty if none is buffered.

        The position does not move past these records.

        Raises:
            ClusterError: CORRUPT_MESSAGE.  The position stays before the damage, so the same error is raised until the
                user seeks past it.
        """
        topic, index = self.partition
        assert self.next_offset is not None
        while self.chunks:
            chunk = self.chunks[0]
            try:
                for batch in chunk.batches:
                    records = read_batch(batch, topic, index, self.next_offset, OFFSET_MAX)
                    if records:
                        return records
            except UnreadableBatchError as error:
                self.move(self.next_offset)
                raise error.of(topic, index, "seek past it to continue without its records") from error
            self.chunks.popleft()
            self.buffered_bytes -= chunk.size
            self.next_offset = max(self.next_offset, chunk.end)
        return []
