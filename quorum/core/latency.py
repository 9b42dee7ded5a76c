"""The write latency of a node's own disk: the longest of its recent writes.

Theory of operation.  Leadership should not stay on a slow disk while a faster one is available, and moving it between
disks that are all slow costs an election each time.  So each node measures how long its writes take until they are
durable, and keeps the maximum, which halves every `HALVING_MS`.  A write that is still under way counts with its age.
A disk is slow from a quarter of the election timeout on; only then do these rules apply.

- A voter with a slow disk lets the others become candidates first: for 1.25 fetch timeouts after it has lost the leader
  it only grants pre-votes, like any follower without contact with a leader.  If no other node is elected by then, it
  begins an election.
- This voter extends its elections by twice its write time, but by at most two fetch timeouts.  A candidate that no
  voter has refused waits for the missing votes, even if its own disk is fast: a voter with a slow disk may be writing
  its vote.
- Every fetch reports the write time of the fetcher's disk.  A leader whose disk stalls resigns after four times the
  write time of the fastest other live voter.  It waits for at least one and at most `STALL_TIMEOUTS_MAX` fetch
  timeouts.  If no other voter is live, it waits for this maximum.  It names slow voters last among its successors.
- A leader does not hand over to a preferred voter with a slow disk, even if all are slow.  Otherwise leadership
  would return at once to a voter whose disk has just stalled.  The next leader also knows which disks are slow, because
  every voter reports its own write time.

Nodes that do not report a write time count as fast."""

from __future__ import annotations

HALVING_MS = 30_000
STALL_TIMEOUTS_MAX = 4
"""A leader resigns after its disk has stalled for this many fetch timeouts, however slow the other disks are."""


class WriteLatency:
    """The write times of one disk."""

    def __init__(self, now_ms: int) -> None:
        self._peak_ms = 0
        self._peak_at_ms = now_ms
        self._steady_since_ms = now_ms

    def held_up(self, now_ms: int) -> None:
        """Note that the process was stalled until now, so that the stall does not count as write time."""
        self._steady_since_ms = now_ms

    def note(self, submitted_ms: int, now_ms: int) -> None:
        """Note that a write submitted at `submitted_ms` is durable now."""
        took_ms = now_ms - max(submitted_ms, self._steady_since_ms)
        if took_ms >= self._decayed(now_ms):
            self._peak_ms, self._peak_at_ms = took_ms, now_ms

    def peak_ms(self, oldest_submitted_ms: int | None, now_ms: int) -> int:
        """Return the longest recent write time; `oldest_submitted_ms`: when the oldest write under way began."""
        if oldest_submitted_ms is None:
            return self._decayed(now_ms)
        return max(self._decayed(now_ms), now_ms - max(oldest_submitted_ms, self._steady_since_ms))

    def _decayed(self, now_ms: int) -> int:
        return self._peak_ms >> (now_ms - self._peak_at_ms) // HALVING_MS
