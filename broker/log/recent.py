"""Keeps the last appends of leaders in memory, because most reads are of records that have just been appended.

Theory of operation.  A leader's followers, and consumers that keep up, read each append soon after it was made, and
usually as a whole.  So `RecentAppends` keeps whole appends, in the memory in which they arrived.  It serves a read that
begins where an append begins.  Every other read takes its bytes from the file, usually from the page cache.

One instance serves all logs of a broker.  It drops the oldest append when it is full.  Segments are distinguished by
object identity: a segment that replaces another one is a new object.  `LogSegments` calls `forget` for bytes that it
truncates, replaces or removes.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Hashable
from typing import Final

SIZE_MAX: Final = 32 << 20
"""Bytes of memory of all logs together: two seconds of appends at 16 MB/s."""


class RecentAppends:
    """The last appends of all leaders, up to `size_max` bytes of memory; 0 keeps none."""

    def __init__(self, size_max: int = SIZE_MAX) -> None:
        self._size_max = size_max
        self._size = 0
        self._appends = OrderedDict[tuple[Hashable, int], memoryview]()
        """From the oldest to the newest.  In a dict, each search for the first key would step over all deleted ones."""
        self._positions = defaultdict[Hashable, deque[int]](deque)
        """By segment, ascending, because a segment only grows at its end."""

    @property
    def size(self) -> int:
        """Bytes of memory that the kept appends hold."""
        return self._size

    def keep(self, segment: Hashable, position: int, data: memoryview) -> None:
        """Keep `data`, which was appended to `segment` at `position`.  The caller does not change it any more."""
        size = _memory_of(data)
        if size > self._size_max:
            return
        self._appends[segment, position] = data.toreadonly()
        self._positions[segment].append(position)
        self._size += size
        while self._size > self._size_max:
            oldest, _ = next(iter(self._appends))
            self._drop(oldest, self._positions[oldest].popleft())

    def find(self, segment: Hashable, start: int, end: int) -> memoryview | None:
        """Return the bytes from `start` to `end` (exclusive) if one kept append begins with them; None otherwise."""
        data = self._appends.get((segment, start))
        return data[: end - start] if data is not None and len(data) >= end - start else None

    def forget(self, segment: Hashable, position: int = 0) -> None:
        """Drop the appends to `segment` that reach beyond `position`."""
        positions = self._positions.get(segment)
        while positions and positions[-1] + len(self._appends[segment, positions[-1]]) > position:
            self._drop(segment, positions.pop())

    def _drop(self, segment: Hashable, position: int) -> None:
        """Drop an append whose position has been taken from `_positions`."""
        self._size -= _memory_of(self._appends.pop((segment, position)))
        if not self._positions[segment]:
            del self._positions[segment]


def _memory_of(data: memoryview) -> int:
    """Return the size of the buffer that `data` keeps alive: a slice of a frame holds all of the frame.

    A frame counts once for each of its slices, so the bound is never exceeded.
    """
    return memoryview(data.obj).nbytes
