"""The figures of a quorum node that metrics report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """The figures at one moment.  Counters count since the start; durations are the latest ones (None: none yet)."""

    epoch: int
    leader_id: int | None
    role: str
    is_leader: bool
    high_watermark: int
    log_end_offset: int
    applied_offset: int
    commit_latency_s: float | None
    fsync_s: float | None
    appends: int
    fsyncs: int
    role_changes: int
    failed_requests: int
    requests_in_progress: int
