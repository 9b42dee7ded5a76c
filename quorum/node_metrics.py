"""Measurements of a quorum node, for metrics."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from quorumlog.runtime.clock import now_ms

FSYNCS_KEPT = 256
FSYNC_RECENT_MS = 600_000
"""Maximum number and age of the durations of transactions that are kept for a p99.  Older durations do not describe
the current state of the disk."""


class NodeMeter:
    """Measures the commits and the store's transactions of one node, and counts them and the changes of role.

    `on_commit` and `on_fsync` are called with durations in seconds, for histograms.
    commit_s: the duration of the latest commit; None before the first one.
    """

    def __init__(self) -> None:
        self.on_commit: Callable[[float], None] = _ignore
        self.on_fsync: Callable[[float], None] = _ignore
        self.commit_s: float | None = None
        self.appends = self.fsyncs = self.role_changes = 0
        self._appended_at: deque[tuple[int, float]] = deque()  # (end offset, when), not committed yet
        self._latest_fsyncs: deque[tuple[int, float]] = deque(maxlen=FSYNCS_KEPT)  # (when, how long)

    def appended(self, end_offset: int) -> None:
        """Begin to measure the commit of a batch of this leader."""
        self.appends += 1
        self._appended_at.append((end_offset, asyncio.get_running_loop().time()))

    def committed(self, offset: int) -> None:
        """Note that everything below `offset` is committed."""
        now = asyncio.get_running_loop().time()
        while self._appended_at and self._appended_at[0][0] <= offset:
            self.commit_s = now - self._appended_at.popleft()[1]
            self.on_commit(self.commit_s)

    def role_changed(self) -> None:
        """Count a change of role or leader, and drop the batches that this leader has not committed."""
        self.role_changes += 1
        self._appended_at.clear()

    def fsynced(self, seconds: float) -> None:
        """Note the duration of a transaction of the store."""
        self._latest_fsyncs.append((now_ms(), seconds))
        self.fsyncs += 1
        self.on_fsync(seconds)

    def recent_fsyncs_s(self) -> list[float]:
        """Return the durations of the store's latest transactions: at most `FSYNCS_KEPT`, from the last 10 minutes."""
        oldest = now_ms() - FSYNC_RECENT_MS
        return [seconds for at, seconds in self._latest_fsyncs if at >= oldest]


def _ignore(_: float) -> None:
    pass
