"""The leader-epoch history of one log: the start offset of each epoch.  Pure.

Every batch carries its leader epoch, so the history follows from the log.  A new leader may add its epoch before its
first batch.  Truncation relies on `end_of` (KIP-101, KIP-279): it finds the largest epoch that is not above a given
epoch, and returns the end of that epoch.  Both sides compare these results, never offsets alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

UNKNOWN_EPOCH = (-1, -1)


class EpochCache:
    """Epochs ascending, with their start offsets, and the log end.

    If the start offset of an epoch is below the log's start, the epoch may have begun before that offset.
    """

    __slots__ = ("_epochs", "_starts", "end_offset")

    def __init__(self, entries: Iterable[tuple[int, int]] = (), end_offset: int = 0) -> None:
        """entries: pairs of epoch and start offset; both ascend."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.end_offset = end_offset
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The latest epoch; -1 if none is known."""
        return self._epochs[-1] if self._epochs else -1

    @property
    def last_epoch(self) -> int:
        """Epoch of the record before the end, even if retention has deleted that record; -1 if unknown.

        This epoch and the end offset are the position of the log.  Two logs with equal positions have the same history.
        """
        return self.epoch_of(self.end_offset - 1)

    def assign(self, epoch: int, start: int) -> None:
        """Begin `epoch` at `start`, unless it is the latest epoch already.

        If the previous epoch began at the same offset, it has no records, and is removed.
        """
        if epoch == self.latest:
            return
        assert epoch > self.latest, f"epoch {epoch} after {self.latest}"
        assert epoch >= 0, epoch
        while self._starts and self._starts[-1] >= start:
            assert self._starts[-1] == start, f"epoch {epoch} starts at {start}, before {self._starts[-1]}"
            del self._epochs[-1], self._starts[-1]
        self._epochs.append(epoch)
        self._starts.append(start)

    def advance(self, epoch: int, base_offset: int, end_offset: int) -> None:
        """Record an appended batch of `epoch`, from `base_offset` to `end_offset`."""
        if epoch != self.latest:
            self.assign(epoch, base_offset)
        self.end_offset = end_offset

    def end_of(self, epoch: int) -> tuple[int, int]:
        """Return the largest known epoch that is not above `epoch`, and its end offset.
        Returns `UNKNOWN_EPOCH` for a negative epoch and for an epoch above the latest.  For an epoch below the first
        known one, returns `epoch` itself, and the start of the first known epoch as its end.
        """
        if epoch < 0 or epoch > self.latest:
            return UNKNOWN_EPOCH
        index = bisect_right(self._epochs, epoch) - 1
        if index < 0:
            return epoch, self._starts[0]
        end = self._starts[index + 1] if index + 1 < len(self._starts) else self.end_offset
        return self._epochs[index], end

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of the record at `offset`; -1 if the offset is below the first known epoch."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else -1

    def truncate_to(self, end_offset: int) -> None:
        """Drop the epochs that begin at or after `end_offset`, the new log end."""
        self.end_offset = end_offset
        while self._starts and self._starts[-1] >= end_offset:
            del self._epochs[-1], self._starts[-1]

    def drop_before(self, start_offset: int) -> None:
        """Drop the epochs that end before `start_offset`, the new log start.

        The epoch of the record before the start stays, even if a later epoch begins exactly at the start.  So the
        position is still known when no record is left.
        """
        index = bisect_left(self._starts, start_offset) - 1
        if index > 0:
            del self._epochs[:index], self._starts[:index]
