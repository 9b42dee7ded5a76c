"""Checks of deletions: of records, against the records themselves, and of replicas that were set aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from broker.log import PartitionLog
from broker.log.strays import STRAYS
from quorumlog.errors import CorruptStoreError
from quorumlog.wire.record_batch import iter_headers
from simulation.cluster.history import peek
from simulation.cluster.metadata import Check
from simulation.kernel.disk import SimulatedDisk


class Kept(NamedTuple):
    """A topic's retention.  -1: no limit."""

    for_ms: int = -1
    size: int = -1


class Retention:
    """topics: the topics with a limit.  exact_clocks: no clock jumps or is skewed, so ages can be checked."""

    def __init__(self, topics: Mapping[str, Kept], exact_clocks: bool = True) -> None:
        self._topics = topics
        self._exact_clocks = exact_clocks

    def problem(self, topic: str, log: PartitionLog, offset: int, now_ms: int) -> str | None:
        """Return why the records of `log` below `offset` must not be deleted now, or None."""
        kept = self._topics.get(topic, Kept())
        remaining = log.size
        for segment in log.segments:
            if segment.base_offset >= offset:
                break
            remaining -= segment.size
            if segment.end_offset > offset:
                return f"offset {offset} is within the segment at {segment.base_offset}"
            if segment.end_offset <= log.start_offset or 0 <= kept.size <= remaining:
                continue
            try:
                newest_ms = _newest_ms(log, max(segment.base_offset, log.start_offset), segment.end_offset)
            except CorruptStoreError:  # its age is unknown
                continue
            if kept.for_ms < 0 or (self._exact_clocks and now_ms - newest_ms <= kept.for_ms):
                age = f"its newest record is {now_ms - newest_ms} ms old"
                return f"the segment at {segment.base_offset}: {age}, {remaining} bytes would be left, {kept}"
        return None


class StrayWatch:
    """I25: a replica that was set aside is kept for at least the configured time.

    clock: true time, in seconds.  kept_s: the configured time, measured by the fastest clock of a run.
    """

    def __init__(self, check: Check, clock: Callable[[], float], kept_s: float) -> None:
        self._check = check
        self._clock = clock
        self._kept_s = kept_s

    def attach(self, disk: SimulatedDisk) -> None:
        rename, remove_tree = disk.rename, disk.remove_tree
        since: dict[str, float] = {}

        def renamed(old: str, new: str) -> None:
            rename(old, new)
            since[new] = self._clock()

        def removed(path: str) -> None:
            if path.startswith(f"{STRAYS}/"):  # not the copy of a replica whose move was interrupted
                age_s = self._clock() - since.get(path, 0.0)
                self._check(age_s >= self._kept_s, lambda: f"I25: {path} is deleted at an age of {age_s:.3f} s")
            remove_tree(path)

        disk.rename = renamed  # type: ignore[method-assign]
        disk.remove_tree = removed  # type: ignore[method-assign]


def _newest_ms(log: PartitionLog, offset: int, end: int) -> int:
    return max(header.max_timestamp for _, header in iter_headers(peek(log, offset, end)))
