"""Planning of a batch read: offset ranges of partitions, divided into tasks.  Pure: the brokers' answers are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark_quorumlog.options import EARLIEST, LATEST, OptionError, Partition, Positions


class DataLossError(Exception):
    """Requested records are missing; with `failOnDataLoss=false` the query continues without them."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            "; ".join(problems) + ". To read the remaining records, set the option failOnDataLoss to false."
        )


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """`first <= offset < end` of one partition."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Bounds:
    """The contents of a partition: `start <= offset < end`."""

    start: int
    end: int


def check_named(positions: Positions, partitions: Iterable[Partition], default: int) -> None:
    """Check that positions by partition name every partition that is read, and no other.

    default: EARLIEST for starting positions, LATEST for ending ones: the special value of a partition's position.

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
    """Return the offset of a position; an offset in the query may lie outside of `bounds`.

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
    """Return the range, limited to the existing offsets; add missing ones to `losses`."""
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

    `partitions_min` is distributed in proportion to size.  If both limits apply, the larger number of tasks is used.
    """
    filled = sorted((one for one in ranges if one.size > 0), key=lambda one: (one.topic, one.partition))
    total = sum(one.size for one in filled)
    tasks: list[OffsetRange] = []
    for one in filled:
        parts = 1
        if partitions_min is not None and partitions_min > len(filled):
            parts = max(parts, round(one.size * partitions_min / total))
        if records_per_partition_max is not None:
            parts = max(parts, -(-one.size // records_per_partition_max))
        parts = min(parts, one.size)
        edges = [one.first + one.size * part // parts for part in range(parts + 1)]
        tasks += [OffsetRange(one.topic, one.partition, first, end) for first, end in pairwise(edges)]
    return tasks


def _listed(partitions: Sequence[Partition]) -> str:
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in partitions[:10])
    return shown if len(partitions) <= 10 else f"{shown} and {len(partitions) - 10} more"
