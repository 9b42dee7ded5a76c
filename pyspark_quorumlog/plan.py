"""Planning of a batch read: offset ranges of partitions, divided into tasks.  Pure: the brokers' answers are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyspark_quorumlog.options import EARLIEST, LATEST, OptionError, Partition, Positions


class DataLossError(Exception):
    """Requested records are missing; with `failOnDataLoss=false` the query continues without them."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            "; ".join(problems) + ". To read the remaining records, set the option failOnDataLoss to false."
        )
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the problems.  By default, an exception is pickled with its text as the argument."""
        return type(self), (self.problems,)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """`first <= offset < end` of one partition.  read_committed: without the records of aborted transactions."""

    topic: str
    partition: int
    first: int
    end: int
    read_committed: bool = False

    @property
    def size(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Bounds:
    """The contents of a partition: `start <= offset < end`."""

    start: int
    end: int


def check_named(positions: Positions, partitions: Iterable[Partition], default: int) -> None:
    """Check that the positions contain one for each partition that is read, and none for any other.

    Positions that are the same for all partitions always pass.

    default: the special position that the error suggests: EARLIEST for starting positions, LATEST for ending ones.

    Raises:
        OptionError
    """
    if positions.everywhere is not None:
        return
    read = set(partitions)
    named = set(positions.by_partition)
    problems = []
    if missing := sorted(read - named):
        word = "-2 for earliest" if default == EARLIEST else "-1 for latest"
        example = "ms since 1970" if positions.by_time else f"an offset, or {word}"
        problems.append(f"option {positions.option} lacks {_listed(missing)}: add {example}")
    if strange := sorted(named - read):
        problems.append(f"option {positions.option} names {_listed(strange)}, which this query does not read")
    if problems:
        raise OptionError(*problems)


def check_order(starting: Positions, ending: Positions, partitions: Iterable[Partition]) -> None:
    """Check that no end is below its start.  Times are compared with times, offsets with offsets.

    Raises:
        OptionError
    """
    if starting.by_time != ending.by_time:
        return
    problems = []
    for one in partitions:
        first, end = position_of(starting, one), position_of(ending, one)
        if 0 <= end < first:
            problems.append(f"option {ending.option}: {one[0]}-{one[1]} ends at {end}, below its start {first}")
    if problems:
        raise OptionError(*problems, next_step=f"swap them, or correct {starting.option}")


def times_asked(positions: Positions, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the times to look up, by partition."""
    if not positions.by_time:
        return {}
    return {one: position_of(positions, one) for one in partitions}


def position_of(positions: Positions, partition: Partition) -> int:
    if positions.everywhere is not None:
        return positions.everywhere
    return positions.by_partition[partition]


def resolve(positions: Positions, partition: Partition, bounds: Bounds, found_by_time: Mapping[Partition, int]) -> int:
    """Return the offset of a position.  An offset that the options name may lie outside of `bounds`.

    Raises:
        OptionError: no record is as new as the requested time.
    """
    position = position_of(positions, partition)
    if positions.by_time:
        offset = found_by_time[partition]
        if offset >= 0:
            return min(offset, bounds.end)  # exclude records that arrived after the end was fixed
        if positions.or_latest:
            return bounds.end
        where = f"{partition[0]}-{partition[1]}"
        raise OptionError(
            f"{where} has no record as new as {position}; startingOffsetsByTimestampStrategy=latest starts at its end"
        )
    if position == EARLIEST:
        return bounds.start
    if position == LATEST:
        return bounds.end
    return position


def checked_range(partition: Partition, first: int, end: int, bounds: Bounds, losses: list[str]) -> OffsetRange:
    """Return the range, limited to the existing offsets.  Add messages about missing offsets to `losses`."""
    where = f"{partition[0]}-{partition[1]}"
    holds = f"the log contains offsets from {bounds.start} to {bounds.end} (exclusive)"
    if first < bounds.start:
        losses.append(f"{where}: start offset {first} was deleted; {holds}")
    if first > bounds.end:
        losses.append(f"{where}: start offset {first} is beyond the end; {holds}")
    if end > bounds.end:
        losses.append(f"{where}: end offset {end} is beyond the end; {holds}")
    if 0 < end < bounds.start <= first:
        losses.append(f"{where}: all records below the end offset {end} were deleted; {holds}")
    first = min(max(first, bounds.start), bounds.end)
    return OffsetRange(*partition, first, max(first, min(end, bounds.end)))


def split(
    ranges: Iterable[OffsetRange], partitions_min: int | None, records_per_partition_max: int | None
) -> list[OffsetRange]:
    """Return one task per partition, or more if a limit requires it; none for empty ranges.

    As in Spark's Kafka source, ranges are first cut to at most `records_per_partition_max` offsets.  If these are fewer
    than `partitions_min`, they are cut again in proportion to their size, so that the number of tasks is about
    `partitions_min`.
    """
    tasks = sorted((one for one in ranges if one.size > 0), key=lambda one: (one.topic, one.partition))
    if records_per_partition_max is not None:
        tasks = [part for one in tasks for part in _cut(one, -(-one.size // records_per_partition_max))]
    if partitions_min is None or partitions_min <= len(tasks):
        return tasks
    total = sum(one.size for one in tasks)
    small = {one for one in tasks if _share(one, total, partitions_min) == 1}
    left_total = total - sum(one.size for one in small)
    left_min = max(partitions_min - len(small), 1)
    return [part for one in tasks for part in _cut(one, 1 if one in small else _share(one, left_total, left_min))]


def _share(one: OffsetRange, total: int, tasks: int) -> int:
    """Return the range's share of `tasks`, at least 1, rounded half up."""
    return max(1, (2 * one.size * tasks + total) // (2 * total))


def _cut(one: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into `parts`, or into single offsets if it has fewer offsets.

    The sizes differ by at most 1; the smaller parts come first.
    """
    parts = min(parts, one.size)
    small, rest = divmod(one.size, parts)
    edges = [one.first + small * part + max(0, part - (parts - rest)) for part in range(parts + 1)]
    return [replace(one, first=first, end=end) for first, end in pairwise(edges)]


def _listed(partitions: Sequence[Partition]) -> str:
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in partitions[:10])
    return shown if len(partitions) <= 10 else f"{shown} and {len(partitions) - 10} more"
