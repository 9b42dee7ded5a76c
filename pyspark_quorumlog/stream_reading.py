"""Runs a stream's planner in the driver: asks the brokers, and passes their answers to the planner.

Spark keeps one process for each query, and calls one hook after another.  An exception in a hook ends the query, so
each request is retried until the poll timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from pyspark_quorumlog.lookup import (
    DELETED_AFTER_S,
    Found,
    before_another_ask,
    consumer_of,
    ends_at_least,
    existing_partitions,
    is_committed_only,
    is_of_quorumlog,
    list_offsets,
    list_times,
    look_up,
    missing_names,
)
from pyspark_quorumlog.options import EARLIEST, LATEST, Partition, ReadOptions
from pyspark_quorumlog.plan import Bounds, DataLossError, OffsetRange, check_named, resolve, split, times_asked
from pyspark_quorumlog.reading import NO_PARTITION
from pyspark_quorumlog.shown import shown_by_spark
from pyspark_quorumlog.stream_plan import Offsets, StreamPlanner, ranges_of, with_records
from pyspark_quorumlog.warn import warn_once
from quorumlog.client.cluster import TopicState
from quorumlog.client.consumer import Consumer
from quorumlog.client.sync import runner
from quorumlog.errors import ClusterError

T = TypeVar("T")


class StreamDriver:
    """The driver's side of one query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._planner = StreamPlanner(options.trigger)
        self._runner = runner()
        self._read_committed: bool | None = options.read_committed
        """None: the options do not set it, and no broker has been asked yet."""
        self._initial: Offsets | None = None
        self._ends: Offsets = {}
        self._topics: Mapping[str, TopicState] = {}
        """The topics when the last batch was planned.  A deleted topic stays until it leaves the offsets."""
        self._pins = False
        self._missing: set[Partition] = set()
        """Missing partitions of the last start offsets.  The brokers are not asked repeatedly for them any more."""
        self._refused: str | None = None
        """The error about missing names in the options, for which the brokers are not asked repeatedly any more."""

    @property
    def latest(self) -> Offsets:
        """The log ends that were seen last; empty before the first batch."""
        return self._ends

    def initial(self) -> Offsets:
        """Return the offsets at which a new query begins, the same each time.

        Raises:
            OptionError: a topic does not exist, or the starting positions do not match the partitions.
        """
        if self._initial is None:
            self._initial = self._run(self._find_initial)
            self._planner.hold(self._initial, may_move=self._options.starting.may_move)
        return self._initial

    def pin(self) -> None:
        """Read only the records that exist at the next call of `next_end`."""
        self._pins = True

    def next_end(self, start: Offsets, offsets_max: int | None) -> Offsets:
        """Return the end of the next batch.

        Raises:
            DataLossError: records were lost, and the query does not permit it.
            OptionError: a topic or partition in the options is missing, and the query does not permit losses.
        """
        return self._run(lambda: self._next_end(start, offsets_max))

    def tasks(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Return the tasks of a batch.

        Raises:
            DataLossError: records of the batch were lost, and the query does not permit it.
        """
        if self._planner.release() or not with_records(start, end):
            return []
        found = self._run(lambda: self._ranges(start, end))
        ranges = [replace(one, read_committed=bool(self._read_committed)) for one in found]
        return split(ranges, self._options.partitions_min, self._options.records_per_partition_max)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of `work`, which is repeated if a partition was deleted after the partitions were listed.

        A request notices a deletion after UNKNOWN_TOPIC_TIMEOUT_S or at its deadline, so repetitions are rare.
        """
        with shown_by_spark(self._options.bootstrap):
            return self._run_repeatedly(work)

    def _run_repeatedly(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        deadline: float | None = None
        while True:
            try:
                return self._runner.run(work())
            except ClusterError as error:
                now = self._runner.loop.time()
                if error.code not in NO_PARTITION or (deadline is not None and now >= deadline):
                    raise
                deadline = deadline or now + self._options.poll_timeout_s
                self._ends = {}  # they contain the deleted partition

    async def _consumer(self) -> Consumer:
        if self._read_committed is None:
            self._read_committed = await is_committed_only(self._options)
        return consumer_of(self._options, self._read_committed)

    async def _find_initial(self) -> Offsets:
        starting = self._options.starting
        found = await existing_partitions(self._options)
        partitions = found.subscribed
        check_named(starting, partitions, EARLIEST)
        consumer = await self._consumer()
        starts = await list_offsets(consumer, partitions, EARLIEST)
        ends = await list_offsets(consumer, partitions, LATEST)
        by_time = await list_times(consumer, times_asked(starting, partitions))
        self._topics = found.topics
        return {one: resolve(starting, one, Bounds(starts[one], ends[one]), by_time) for one in partitions}

    async def _next_end(self, start: Offsets, offsets_max: int | None) -> Offsets:
        found, ends = await self._look(start)
        if (problem := missing_names(self._options, found, start.keys())) is not None:
            if self._options.fail_on_data_loss:
                raise problem
            warn_once(problem.message)  # the topic may have been deleted; the offsets do not show that
        self._ends = ends
        if self._pins:
            self._planner.pin(ends)
            self._pins = False
        left = {one for one in start if found.has(one)} - ends.keys()
        loses_partitions = await is_of_quorumlog(self._options)
        renewed = renewed_topics(self._topics, found.topics, loses_partitions=loses_partitions)
        again = {one for one in start.keys() & ends.keys() if one[0] in renewed}
        needed = self._planner.needs_start(start, ends, offsets_max, again)
        starts = await list_offsets(await self._consumer(), needed, EARLIEST)
        now_s = self._runner.loop.time()
        planned = self._planner.next_end(start, ends, starts, now_s, offsets_max, left=left, renewed=again)
        self._report(planned.losses)
        if not again or planned.offsets != start:  # otherwise the next call has to notice the new topic
            read = {topic for topic, _ in planned.offsets}
            deleted = {name: state for name, state in self._topics.items() if name in read - found.topics.keys()}
            self._topics = {**deleted, **found.topics}
        return planned.offsets

    async def _ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        wanted = with_records(start, end)
        ends = self._ends
        if any(ends.get(one, -1) < end[one] for one in wanted):  # a batch is repeated after a restart
            _, ends = await self._look({one: end[one] for one in wanted}, reads_all=True)
        starts = await list_offsets(await self._consumer(), [one for one in wanted if one in ends], EARLIEST)
        ranges, losses = ranges_of(start, end, {one: Bounds(starts[one], ends[one]) for one in starts})
        self._report(losses)
        return ranges

    async def _look(self, reached: Offsets, *, reads_all: bool = False) -> tuple[Found, dict[Partition, int]]:
        """Return the topics, and the log ends of all existing partitions of the query.

        reads_all: return also the log ends of the other partitions of `reached`.  Otherwise nothing is read from them,
        so their leaders are not asked: a partition that left the query may be offline, or may have been created again.

        A broker that has just started may not know a topic yet, and a new leader may not know its watermark.  So the
        brokers are asked again before a partition of the query or of `reached` counts as missing, and before an end
        counts as lower than in `reached`.

        A partition of `reached` counts as missing once all answers have lacked it for DELETED_AFTER_S.  This period
        begins with the first such answer, because this answer may be late.  An answer that contains the partition
        ends the period: a later answer that lacks it may come from a broker that is behind, and begins a new period.
        """
        options = self._options
        loop = self._runner.loop
        missing_since: dict[Partition, float] = {}
        asked_until: float | None = None
        left = options.lookup_retries
        while True:
            found = await look_up(options, {topic for topic, _ in reached})
            existing = {one for one in reached if found.has(one)}
            missing = reached.keys() - existing
            read = {*found.subscribed, *(existing if reads_all else ())}
            ends = await list_offsets(await self._consumer(), sorted(read), LATEST)
            if self._read_committed:
                ends = await ends_at_least(options, ends, reached)
            is_lower = any(ends[one] < reached[one] for one in existing & read)
            problem = missing_names(options, found, reached.keys())
            is_refused = problem is not None and problem.message != self._refused
            now = loop.time()
            # The answers of two brokers may differ permanently.
            asked_until = asked_until or now + max(options.poll_timeout_s, 2 * DELETED_AFTER_S)
            missing_since = {one: missing_since.get(one, now) for one in missing - self._missing}
            is_unclear = now < asked_until and any(now - since < DELETED_AFTER_S for since in missing_since.values())
            if not is_unclear and (left <= 0 or not (is_lower or is_refused)):
                break
            left -= 1
            await before_another_ask(options)
        self._missing, self._refused = set(missing), None if problem is None else problem.message
        return found, ends

    def _report(self, losses: list[str]) -> None:
        if losses and self._options.fail_on_data_loss:
            raise DataLossError(losses)
        for loss in losses:
            warn_once(loss)


def renewed_topics(
    before: Mapping[str, TopicState], now: Mapping[str, TopicState], *, loses_partitions: bool
) -> set[str]:
    """Return the topics that were deleted and created again: their id changed.

    A topic of quorumlog whose partitions were removed gets another id as well, and its remaining partitions keep their
    records and leader epochs.  A topic that was created again within a day has other leader epochs, or at least as many
    partitions.

    loses_partitions: partitions can be removed from a topic, as in quorumlog, but not in Apache Kafka.
    """
    found = set[str]()
    for name in before.keys() & now.keys():
        old, new = before[name], now[name]
        if None in (old.topic_id, new.topic_id) or old.topic_id == new.topic_id:
            continue
        lost_partitions = loses_partitions and len(new.leader_epochs) < len(old.leader_epochs)
        if not (lost_partitions and new.leader_epochs.items() <= old.leader_epochs.items()):
            found.add(name)
    return found
