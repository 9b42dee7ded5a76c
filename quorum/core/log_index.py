"""The part of the log that the core keeps in memory: start, end, epochs, and the batches near its end.

Durability is tracked by write id, never by offset alone.  A follower may append a batch, truncate it and append
another at the same offset before the disk has answered.  The completion of the first write then says nothing about the
second (etcd-io/raft calls this the append ABA race).  So the index remembers the end offset of each unwritten write,
and a truncation lowers the ends of the earlier writes: they make at most the remaining part of the log durable.

Batches stay in memory until they are durable.  Durable batches stay up to about twice a byte limit, so that
replication to nodes that keep up does not read the disk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from quorum.core.types import Batch, LogEnd


@dataclass(slots=True)
class _Unwritten:
    write_id: int
    end: int
    size: int


class LogIndex:
    """The index of one log.  `start` is inclusive, `end` and `durable_end` are exclusive, as in the log itself."""

    def __init__(
        self, start: int, end: int, epochs: Iterable[tuple[int, int]], recent_max_bytes: int, base_epoch: int = 0
    ) -> None:
        self.start = start
        self.base_epoch = base_epoch  # of the record before the start; 0 when there is none
        self.end = end
        self.durable_end = end
        self.unwritten_bytes = 0
        self._epochs = list(epochs)  # (epoch, start offset), both ascending
        self._unwritten: deque[_Unwritten] = deque()
        self._recent: list[Batch] = []  # contiguous, ends at `end`
        self._recent_bytes = 0
        self._recent_max_bytes = recent_max_bytes

    @property
    def last(self) -> LogEnd:
        """Epoch of the last batch, and the end offset."""
        return LogEnd(self._epochs[-1][0] if self._epochs else self.base_epoch, self.end)

    def append(self, batch: Batch, write_id: int) -> None:
        """Add `batch` at the end, as part of write `write_id`."""
        assert batch.base_offset == self.end, f"append at {batch.base_offset}, log ends at {self.end}"
        assert batch.epoch >= self.last.epoch, f"append of epoch {batch.epoch} after {self.last.epoch}"
        assert batch.count >= 1, f"empty batch at {batch.base_offset}"
        if not self._epochs or batch.epoch > self._epochs[-1][0]:
            self._epochs.append((batch.epoch, batch.base_offset))
        self.end = batch.end_offset
        self._recent.append(batch)
        self._recent_bytes += batch.size
        self.unwritten_bytes += batch.size
        if self._unwritten and self._unwritten[-1].write_id == write_id:
            self._unwritten[-1].end = self.end
            self._unwritten[-1].size += batch.size
        else:
            self._unwritten.append(_Unwritten(write_id, self.end, batch.size))

    def truncate(self, to: int) -> None:
        """Drop everything from offset `to` on, which must be a batch boundary (see `splits_a_batch`)."""
        assert self.start <= to <= self.end, f"truncate to {to}, log is {self.start}..{self.end}"
        assert not self.splits_a_batch(to), f"truncate to {to} is within a batch"
        kept = bisect_left(self._recent, to, key=lambda batch: batch.base_offset)
        self._recent_bytes -= sum(batch.size for batch in self._recent[kept:])
        del self._recent[kept:]
        while self._epochs and self._epochs[-1][1] >= to:
            self._epochs.pop()
        self.end = to
        self.durable_end = min(self.durable_end, to)
        for unwritten in self._unwritten:
            unwritten.end = min(unwritten.end, to)

    def trim(self, start: int) -> None:
        """Drop everything below offset `start`, which must be durable and a batch boundary."""
        assert self.start <= start <= self.durable_end, f"trim to {start}, durable is {self.start}..{self.durable_end}"
        assert not self.splits_a_batch(start), f"trim to {start} is within a batch"
        base_epoch = self.epoch_at(start - 1)
        self.base_epoch = self.base_epoch if base_epoch is None else base_epoch
        while len(self._epochs) > 1 and self._epochs[1][1] <= start:
            del self._epochs[0]
        if start == self.end:
            self._epochs.clear()
        elif self._epochs[0][1] < start:
            self._epochs[0] = (self._epochs[0][0], start)
        kept = bisect_left(self._recent, start, key=lambda batch: batch.base_offset)
        self._recent_bytes -= sum(batch.size for batch in self._recent[:kept])
        del self._recent[:kept]
        self.start = start

    def reset(self, base: LogEnd) -> None:
        """Empty the log, so that it starts at the end of a snapshot."""
        self._recent.clear()
        self._recent_bytes = 0
        self._epochs.clear()
        self.start = self.end = self.durable_end = base.offset
        self.base_epoch = base.epoch
        for unwritten in self._unwritten:
            unwritten.end = base.offset

    def written(self, write_id: int) -> None:
        """Note that write `write_id` and all writes before it are durable."""
        while self._unwritten and self._unwritten[0].write_id <= write_id:
            done = self._unwritten.popleft()
            self.durable_end = max(self.durable_end, done.end)
            self.unwritten_bytes -= done.size
        self._forget_old()

    def splits_a_batch(self, offset: int) -> bool:
        """Return whether `offset` is within a batch, according to the batches in memory."""
        if not self._recent or not self._recent[0].base_offset < offset < self.end:
            return False
        index = bisect_left(self._recent, offset, key=lambda batch: batch.base_offset)
        return index == len(self._recent) or self._recent[index].base_offset != offset

    @property
    def recent_start(self) -> int:
        """First offset whose batch is in memory; the log's end when none is."""
        return self._recent[0].base_offset if self._recent else self.end

    def recent(self, offset: int, max_bytes: int) -> tuple[Batch, ...] | None:
        """Return the batches from `offset` on: at least one, and more only up to `max_bytes` in total.

        Return None if they are not in memory.  The result is empty at the end of the log, or if `offset` is not the
        first offset of a batch.
        """
        if offset < self.recent_start:
            return None
        index = bisect_left(self._recent, offset, key=lambda batch: batch.base_offset)
        if index == len(self._recent) or self._recent[index].base_offset != offset:
            return ()
        found = [self._recent[index]]
        size = found[0].size
        for batch in self._recent[index + 1 :]:
            size += batch.size
            if size > max_bytes:
                break
            found.append(batch)
        return tuple(found)

    def end_of_epoch(self, epoch: int) -> LogEnd:
        """Return the largest epoch in the log that is not above `epoch`, and the offset at which it ends.

        The epoch of the record before the log's start also counts, and ends at the start.  If no epoch qualifies,
        return `epoch` itself and the log's start.
        """
        count = bisect_right(self._epochs, epoch, key=lambda entry: entry[0])
        if count == 0:
            return LogEnd(min(epoch, self.base_epoch) if self.start > 0 else epoch, self.start)
        end = self._epochs[count][1] if count < len(self._epochs) else self.end
        return LogEnd(self._epochs[count - 1][0], end)

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the record at `offset`; None outside the log."""
        if not self.start <= offset < self.end:
            return None
        return self._epochs[bisect_right(self._epochs, offset, key=lambda entry: entry[1]) - 1][0]

    def _forget_old(self) -> None:
        if self._recent_bytes <= 2 * self._recent_max_bytes:
            return
        kept = 0
        while (
            kept < len(self._recent)
            and self._recent_bytes > self._recent_max_bytes
            and self._recent[kept].end_offset <= self.durable_end
        ):
            self._recent_bytes -= self._recent[kept].size
            kept += 1
        del self._recent[:kept]
