"""The records that a producer has accepted, until the outcome of their batches is known."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from quorumlog.client.lanes import Batch, Piece
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.words import counted

FAILURES_KEPT_MAX: Final = 1000
"""Maximum number of failed batches, without their data, that `flush` can still report.  Beyond this number, the oldest
is dropped."""


class ProducerBuffer:
    """The batches without an outcome, and the failures that were not reported to the user yet.

    size: the bytes of all records.  `Producer` adds the size of each record; `decide` and `discard` subtract the sizes
    of batches.  size_max: the limit of `size`.
    closed: the reason why the producer accepts no records; None while it accepts them.
    """

    def __init__(self, size_max: int, closed: ClusterError) -> None:
        self.size = 0
        self.size_max = size_max
        self.closed: ClusterError | None = closed
        self._outstanding: dict[Batch, None] = {}
        """The batches without an outcome, in the order of their first records."""
        self._failed: deque[Batch] = deque(maxlen=FAILURES_KEPT_MAX)
        self._moved = asyncio.Event()
        """Set when a batch was decided."""

    @property
    def is_empty(self) -> bool:
        return not self._outstanding

    def add(self, batch: Batch) -> None:
        """Add a new batch, which has no records yet."""
        self._outstanding[batch] = None

    def decide(self, batch: Batch, pieces: list[Piece]) -> None:
        """Set the outcome of a batch, once no record of it will be sent any more."""
        self._settle(batch, pieces)
        if batch.first_error() is not None:
            batch.drop_data()
            self._failed.append(batch)

    def _settle(self, batch: Batch, pieces: list[Piece]) -> None:
        self._outstanding.pop(batch, None)
        self.size -= batch.size
        if not batch.pieces.done():
            batch.pieces.set_result(pieces)
        self._moved.set()

    def discard(self, error: ClusterError) -> None:
        """Fail all batches without an outcome with this error.  After that, `flush` reports no failed deliveries."""
        for batch in list(self._outstanding):
            self._settle(batch, [(0, error)])
        self._failed.clear()

    async def decided_all(self) -> None:
        """Return once all batches that are in the buffer now are decided."""
        waiting = [batch.pieces for batch in self._outstanding]
        if waiting:
            await asyncio.wait(waiting)

    async def decided_one(self) -> None:
        """Return once the next batch is decided."""
        self._moved.clear()
        await self._moved.wait()

    def forget_failures(self) -> None:
        """Drop the failures, so that they are not reported."""
        self._failed.clear()

    def raise_failures(self) -> None:
        """Report failed deliveries whose outcome the user has not read.  Each failure is reported once.

        Raises:
            ClusterError: the reason why the producer is closed; otherwise the first failure, with the number of records
                that failed.
        """
        failed = [batch for batch in self._failed if len(batch.observed) < batch.failed_records()]
        self._failed.clear()
        if self.closed is not None:
            raise self.closed.again()
        if failed:
            count = sum(batch.failed_records() - len(batch.observed) for batch in failed)
            first = failed[0].first_error()
            assert first is not None
            message = f"{counted(count, 'record')} not delivered; the first error: {first.message}"
            raise ClusterError(first.code, message, first.next_step, retriable=first.retriable) from first

    def no_room(self, waited_s: float) -> ClusterError:
        """Return the error of a record for which there was no room in time."""
        message = (
            f"no room for the record within {waited_s:g} s: "
            f"{self.size} of {self.size_max} bytes wait for their delivery"
        )
        return ClusterError(ApiError.TIMED_OUT, message, "send more slowly, or check the brokers", retriable=True)

    def too_large(self, size: int) -> ClusterError:
        """Return the error of a record of `size` bytes that is larger than the whole buffer."""
        message = f"a record of {size} bytes does not fit into the buffer of {self.size_max} bytes"
        return ClusterError(ApiError.MESSAGE_TOO_LARGE, message, "raise buffer_size_max_bytes, or send smaller records")
