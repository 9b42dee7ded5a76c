"""Planning of a stream: the offsets at which its micro-batches end.

Theory of operation.  Spark asks for the end of the next batch, logs it in its checkpoint, and asks for the tasks from
the last end to this end.  After a restart, it asks for the tasks of a logged batch again, but not for the end.  If the
start offsets of a batch lack a partition, the partition is read from the start of its log.

`StreamPlanner` is pure: the ends and starts of the logs, and the time, are given.  It has these special cases:

- **The first batch of a new query is empty.**  Spark does not log the initial offset: it asks again if the first batch
  is repeated after a restart.  The answer could then be a later offset, because the latest offset advanced or because
  old records were deleted, and the records in between would be skipped silently.  Spark logs the end of an empty batch,
  which preserves the position.  A query of only one batch (`Trigger.Once`) would then read nothing.  Therefore the
  batch of such a query has records, unless the query begins at the latest offsets, where no records exist yet.  If a
  first batch from the latest offsets is repeated, it is empty whatever the new initial offsets are: they may lack a
  partition, because a broker does not know it yet.
- **A log that ends below the start** lost its records, or its topic was created again.  If the query permits losses,
  one batch moves the position back to the start of the log, and reads nothing of this partition.  The same applies to a
  topic that was created again and already grew beyond the position, as long as the caller knows of the new topic.
- **A partition that does not exist any more** is removed from the offsets one batch after the planner has noticed this.
  If the partition is created again, it counts as new.
- **A partition that exists, but is not part of the query any more,** keeps its position and is not read.
- **Records that were deleted before they were read** do not count for the limits of a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark_quorumlog.options import OptionError, Partition, TriggerLimits
from pyspark_quorumlog.plan import Bounds, OffsetRange, checked_range

Offsets = Mapping[Partition, int]
"""The first offset that is not yet read, by partition."""

JsonOffsets = dict[str, dict[str, int]]


def to_json(offsets: Offsets) -> JsonOffsets:
    """Return offsets in the form of Spark's Kafka source.

    Topics and partitions are in order, since Spark compares the text.
    """
    found: JsonOffsets = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(value: object) -> dict[Partition, int]:
    """Read offsets from a checkpoint of this source or of Spark's Kafka source.

    Raises:
        OptionError: the offsets have another form.
    """
    found: dict[Partition, int] = {}
    try:
        assert isinstance(value, dict)
        for topic, partitions in value.items():
            for partition, offset in partitions.items():
                if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0 or int(partition) < 0:
                    raise ValueError
                found[topic, int(partition)] = offset
    except (AssertionError, AttributeError, ValueError):
        raise OptionError(
            f"the checkpoint contains {str(value)[:80]!r}, which is not a map of offsets by topic and partition; "
            "it belongs to another data source",
            next_step="use another checkpointLocation",
        ) from None
    return found


class BatchEnd(NamedTuple):
    """The end of a batch.

    losses: one message for each loss.  If there are any, `offsets` is valid only if the query permits losses.
    """

    offsets: Offsets
    losses: list[str]


class StreamPlanner:
    """Decides the end of each micro-batch.  A restart may lose this object: Spark's checkpoint has all needed state."""

    def __init__(self, limits: TriggerLimits) -> None:
        self._offsets_min = limits.offsets_min
        self._delay_max_s = limits.delay_max_s
        self._held: Offsets | None = None
        self._holds_single_batch = False
        self._pinned: Offsets | None = None
        self._missing: frozenset[Partition] = frozenset()
        """Partitions that did not exist at the last call.  The next end drops each partition that still does not
        exist."""
        self._ended_at_s: float | None = None
        """The time at which the end of the last batch with records was decided; None before the first such batch."""

    def hold(self, initial: Offsets, *, may_move: bool) -> None:
        """Make the first batch from `initial` empty.

        may_move: the position depends on the time at which it is looked up, so a single batch is empty as well.
        """
        self._held, self._holds_single_batch = initial, may_move

    def release(self) -> bool:
        """Note that Spark has logged the end of the first batch, so that further batches need not be empty.

        Return whether the first batch is repeated and has no records, although the initial offsets may differ now.
        """
        held, self._held = self._held, None
        return held is not None and self._holds_single_batch

    def pin(self, ends: Offsets) -> None:
        """Read only the partitions in `ends`, and only up to these offsets."""
        self._pinned = ends

    def needs_start(
        self, start: Offsets, ends: Offsets, offsets_max: int | None, renewed: Collection[Partition] = ()
    ) -> list[Partition]:
        """Return the partitions whose log start `next_end` needs.

        `next_end` needs the log start of a partition that is new, that ends below the start, or whose topic was created
        again.  If a limit applies, it needs the log start of every partition with unread offsets, because deleted
        offsets do not count.
        """
        unread = {one: end - start.get(one, 0) for one, end in ends.items() if end > start.get(one, 0)}
        is_limited = offsets_max is not None and (self._offsets_min is not None or sum(unread.values()) > offsets_max)
        return sorted(
            one
            for one, end in ends.items()
            if start.get(one, end + 1) > end or one in renewed or (is_limited and one in unread)
        )

    def next_end(
        self,
        start: Offsets,
        ends: Offsets,
        starts: Offsets,
        now_s: float,
        offsets_max: int | None,
        *,
        left: Collection[Partition] = (),
        renewed: Collection[Partition] = (),
    ) -> BatchEnd:
        """Return the end of the batch that begins at `start`; the start itself if there is nothing to read yet.

        Args:
            ends: the log ends of all partitions that the query reads.
            starts: the log starts of at least the partitions in `needs_start`.
            offsets_max: the maximum number of offsets in this batch; every partition with records advances by at least
            1.  None if this is the only batch of its query: no limit applies.
            left: partitions that exist, but are not part of the query any more.
            renewed: partitions whose topic was deleted and created again since the last batch.
        """
        held, self._held = self._held, None
        if held == start and (offsets_max is not None or self._holds_single_batch):
            return BatchEnd(start, [])
        losses: list[str] = []
        found = dict(start)
        backlogs: dict[Partition, int] = {}
        for one in sorted(start.keys() | ends.keys()):
            name = f"{one[0]}-{one[1]}"
            if one not in ends:
                if one in left:
                    losses.append(f"{name} is not part of the query any more; it was read up to {start[one]}")
                else:
                    losses.append(f"{name} does not exist any more; it was read up to {start[one]}")
                    if one in self._missing:
                        del found[one]
            elif one in renewed and start[one] > starts[one]:
                losses.append(
                    f"topic {one[0]} was deleted and created again after {name} was read up to {start[one]}; a restart "
                    "cannot notice this, so read the new topic with another checkpointLocation"
                )
                found[one] = starts[one]
            elif one in start and start[one] > ends[one]:
                losses.append(f"{name}: start offset {start[one]} is beyond the end {ends[one]} of the log")
                found[one] = starts[one]
            elif self._pinned is None or one in self._pinned:
                if one not in start:
                    found[one] = starts[one]
                    if starts[one] > 0:
                        losses.append(
                            f"{name} is new to the query and begins at offset {starts[one]}: older records were deleted"
                        )
                goal = ends[one] if self._pinned is None else min(ends[one], self._pinned[one])
                first = min(max(found[one], starts.get(one, 0)), goal)  # `ranges_of` reports deleted offsets
                if goal > found[one]:
                    found[one] = first
                if goal > first:
                    backlogs[one] = goal - first
        self._missing = frozenset(start.keys() - ends.keys()).difference(left)
        total = sum(backlogs.values())
        if offsets_max is not None and self._waits(total, now_s):
            return BatchEnd(start, losses)
        if total:
            self._ended_at_s = now_s
        for one, backlog in backlogs.items():
            found[one] += backlog if offsets_max is None else min(backlog, max(1, offsets_max * backlog // total))
        return BatchEnd(found, losses)

    def _waits(self, total: int, now_s: float) -> bool:
        """Return whether the batch waits for more records.  A query with pinned ends never waits."""
        if self._offsets_min is None or self._pinned is not None or not 0 < total < self._offsets_min:
            return False
        return self._ended_at_s is not None and now_s - self._ended_at_s < self._delay_max_s


def with_records(start: Offsets, end: Offsets) -> list[Partition]:
    """Return the partitions of a batch that may have records to read, in order."""
    return sorted(one for one, offset in end.items() if offset > start.get(one, 0))


def ranges_of(start: Offsets, end: Offsets, bounds: Mapping[Partition, Bounds]) -> tuple[list[OffsetRange], list[str]]:
    """Return the ranges of a batch and its losses.  bounds: the bounds of each existing partition of `with_records`."""
    ranges, losses = [], list[str]()
    for one in with_records(start, end):
        if one not in bounds:
            losses.append(f"{one[0]}-{one[1]} does not exist any more; the batch ends at its offset {end[one]}")
            continue
        first = start.get(one, bounds[one].start)
        if one not in start and first > 0:
            name = f"{one[0]}-{one[1]}"
            losses.append(f"{name} is new to the query and begins at offset {first}: older records were deleted")
        ranges.append(checked_range(one, first, end[one], bounds[one], losses))
    return [one for one in ranges if one.size > 0], losses
