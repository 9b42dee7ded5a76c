"""The batches near the end of the log, in memory: all that are not durable yet, and earlier batches up to a limit."""

from __future__ import annotations

from collections import deque
from itertools import islice

from quorum.core.events import Write
from quorum.core.types import Batch


class RecentBatches:
    """Contiguous batches up to the log's end.

    A batch is dropped only once its write is durable, because the store cannot return it before.
    """

    def __init__(self, log_end: int, max_bytes: int) -> None:
        self._batches: deque[tuple[int, Batch]] = deque()  # (write id, batch)
        self._end = log_end
        self._size = 0
        self._max_bytes = max_bytes
        self._durable_write = 0

    @property
    def start(self) -> int:
        """Return the offset of the first batch held; the log's end if none is held."""
        return self._batches[0][1].base_offset if self._batches else self._end

    @property
    def end(self) -> int:
        return self._end

    def add(self, write: Write) -> None:
        """Apply a write of the core: truncation, a new log start, and appended batches."""
        if write.truncate_to is not None:
            while self._batches and self._batches[-1][1].base_offset >= write.truncate_to:
                self._size -= self._batches.pop()[1].size
            self._end = write.truncate_to
        if write.base is not None:
            start = write.base.end.offset
            while self._batches and self._batches[0][1].base_offset < start:
                self._size -= self._batches.popleft()[1].size
            self._end = max(self._end, start)
        for batch in write.batches:
            assert batch.base_offset == self._end, f"batch at {batch.base_offset} after end {self._end}"
            self._batches.append((write.id, batch))
            self._size += batch.size
            self._end = batch.end_offset
        self._trim()

    def written(self, write_id: int) -> None:
        """Note that everything up to this write is durable."""
        self._durable_write = write_id
        self._trim()

    def _trim(self) -> None:
        while self._size > self._max_bytes and self._batches and self._batches[0][0] <= self._durable_write:
            self._size -= self._batches.popleft()[1].size

    def read(self, start: int, end: int, max_bytes: int) -> tuple[Batch, ...]:
        """Return batches as `QuorumStore.read` does.  `start` must not be below the property `start`."""
        assert start >= self.start, f"read from {start}, held from {self.start}"
        found: list[Batch] = []
        size = 0
        for _, batch in islice(self._batches, self._position(start), None):
            if batch.base_offset >= end or (found and size + batch.size > max_bytes):
                break
            found.append(batch)
            size += batch.size
        return tuple(found)

    def _position(self, offset: int) -> int:
        """Return the index of the batch that holds `offset`.  Search from the end, where most reads are."""
        index = len(self._batches)
        for _, batch in reversed(self._batches):
            if batch.end_offset <= offset:
                break
            index -= 1
        return index
