"""Plans a read in the driver, and reads ranges of offsets in executors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from pyspark_quorumlog.arrow import decode
from pyspark_quorumlog.lookup import (
    DELETED_AFTER_S,
    before_another_ask,
    cluster_of,
    consumer_of,
    ends_at_least,
    existing_partitions,
    is_committed_only,
    is_deleted,
    list_offsets,
    list_times,
)
from pyspark_quorumlog.options import EARLIEST, LATEST, Partition, ReadOptions
from pyspark_quorumlog.plan import (
    Bounds,
    DataLossError,
    OffsetRange,
    check_named,
    check_order,
    checked_range,
    resolve,
    split,
    times_asked,
)
from pyspark_quorumlog.shown import shown_by_spark
from pyspark_quorumlog.warn import warn
from pyspark_quorumlog.worker import prepare_worker
from quorumlog.client import consumer as offsets
from quorumlog.client.consumer import Fetched, OffsetOutOfRangeError
from quorumlog.client.records import UnreadableBatchError, end_offset
from quorumlog.client.sync import runner
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.words import about

LEADER_LOOK_S = 2.0
"""While answers have no records, the leader is looked up at this interval."""
NO_PARTITION = (ApiError.UNKNOWN_TOPIC_OR_PARTITION, ApiError.UNKNOWN_TOPIC_ID)
"""Codes of errors about a partition that does not exist."""


def plan_tasks(options: ReadOptions) -> list[OffsetRange]:
    """Ask the brokers for the existing offsets, and divide them into tasks.

    Raises:
        OptionError: a topic or partition does not exist, the positions in the options do not fit the partitions that
            are read, or no record is as new as a requested time.
        DataLossError: requested records are missing.
    """
    with shown_by_spark(options.bootstrap):
        return runner().run(_plan_tasks(options))


async def _plan_tasks(options: ReadOptions) -> list[OffsetRange]:
    partitions = (await existing_partitions(options)).subscribed
    if not partitions:
        return []
    check_named(options.starting, partitions, EARLIEST)
    check_named(options.ending, partitions, LATEST)
    check_order(options.starting, options.ending, partitions)
    read_committed = await is_committed_only(options)
    consumer = consumer_of(options, read_committed)
    starts = await list_offsets(consumer, partitions, EARLIEST)
    ends = await list_offsets(consumer, partitions, LATEST)
    first_by_time = await list_times(consumer, times_asked(options.starting, partitions))
    end_by_time = await list_times(consumer, times_asked(options.ending, partitions))
    positions: dict[Partition, tuple[int, int]] = {}
    for one in partitions:
        bounds = Bounds(starts[one], ends[one])
        first = resolve(options.starting, one, bounds, first_by_time)
        positions[one] = first, resolve(options.ending, one, bounds, end_by_time)
    if read_committed:
        ends = await ends_at_least(options, ends, {one: max(each) for one, each in positions.items()})
    losses = list[str]()
    ranges = [
        replace(
            checked_range(one, *positions[one], Bounds(starts[one], ends[one]), losses), read_committed=read_committed
        )
        for one in partitions
    ]
    if losses and options.fail_on_data_loss:
        raise DataLossError(losses)
    for loss in losses:
        warn(loss)
    return split(ranges, options.partitions_min, options.records_per_partition_max)


def read_range(options: ReadOptions, task: OffsetRange) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task's range as Arrow batches.  The next records are fetched during the decoding.

    Raises:
        DataLossError: records of the range are missing.
        ClusterError: no leader answered, or the log did not reach the end of the range, within the poll timeout; or a
            batch cannot be read.
    """
    with shown_by_spark(options.bootstrap):
        yield from _read_range(options, task)


def _read_range(options: ReadOptions, task: OffsetRange) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    fetching = _RangeFetcher(options, task)
    try:
        while (fetched := fetching.next()) is not None:
            yield from decode(
                fetched.records,
                fetching.decoded_from,
                task.end,
                task.topic,
                task.partition,
                options.columns,
                fetched.aborted,
            )
    except UnreadableBatchError as error:
        raise _named(error, task) from error
    finally:
        fetching.close()


def _named(error: UnreadableBatchError, task: OffsetRange) -> ClusterError:
    """Return the error with its partition and next step in its text, since Spark shows nothing else."""
    next_step = about("kctl explain", f"{task.topic}-{task.partition}")
    named = error.of(task.topic, task.partition, next_step)
    if error.base_offset is not None and error.end_offset is not None:
        named.message += (
            f"; to read without it, read a batch up to offset {error.base_offset} (endingOffsets), "
            f"and begin again at offset {error.end_offset} (startingOffsets; a stream also needs a new "
            "checkpointLocation)"
        )
    return ClusterError(named.code, named.message, next_step)


class _RangeFetcher:
    """Fetches one range.  While the caller decodes one result, the next fetch is already in progress."""

    def __init__(self, options: ReadOptions, task: OffsetRange) -> None:
        self.decoded_from = task.first
        """First offset of interest in the last result of `next`."""
        self._options = options
        self._task = task
        self._runner = runner()
        self._consumer = consumer_of(options, task.read_committed)
        self._offset = task.first
        self._is_ahead = False
        """Whether the current fetch was started before its result was needed."""
        self._fetch = self._start()

    def next(self) -> Fetched | None:
        """Return batches from `decoded_from` on; the first may begin below it.  None at the end of the range."""
        deadline: float | None = None
        beyond_since: float | None = None
        look_at = 0.0
        while self._offset < self._task.end:
            self.decoded_from = self._offset
            try:
                fetched = self._runner.run(self._fetch)
            except OffsetOutOfRangeError as error:
                now = self._runner.loop.time()
                beyond_since = beyond_since or now
                patience_s = min(DELETED_AFTER_S, self._options.poll_timeout_s)
                if error.offset > error.end and now - beyond_since < patience_s:
                    # a new leader may not know its committed end yet
                    self._runner.run(before_another_ask(self._options))
                    self._fetch = self._start()
                else:
                    self._skip(error)
                continue
            except ClusterError as error:
                if error.code in NO_PARTITION and not error.retriable:
                    now = self._runner.loop.time()
                    deadline = deadline or now + self._options.poll_timeout_s
                    if self._runner.run(is_deleted(self._options, (self._task.topic, self._task.partition))):
                        self._give_up(error)
                    elif now >= deadline:
                        raise
                    else:  # the broker that answered the fetch did not know the partition yet
                        self._fetch = self._start()
                    continue
                if not (self._is_ahead and error.retriable):
                    raise
                # the fetch timed out while Spark processed the previous rows, so nobody read its answer
                self._fetch = self._start()
                continue
            following = end_offset(fetched.records)
            if following is not None and following > self._offset:
                self._offset = following
                if following < self._task.end:
                    self._fetch = self._start(is_ahead=True)
                return fetched
            # a new leader may not know its committed end yet
            now = self._runner.loop.time()
            deadline = deadline or now + self._options.poll_timeout_s
            if now > deadline:
                raise self._no_records(fetched)
            if now >= look_at:  # a former leader that is cut off from the other brokers may have answered
                look_at = now + LEADER_LOOK_S
                cluster_of(self._options).forget_leader(self._task.topic, self._task.partition)
            self._fetch = self._start()
        return None

    def _no_records(self, fetched: Fetched) -> ClusterError:
        task = self._task
        text = (
            f"{task.topic}-{task.partition}: no records at offset {self._offset} within "
            f"{self._options.poll_timeout_s:g} s; the range ends at {task.end}, "
            f"the high watermark is {fetched.high_watermark}"
        )
        next_step = about("kctl topics describe", task.topic)
        if self._offset < fetched.high_watermark:
            text += f"; a transaction at offset {fetched.last_stable_offset} is not decided yet"
            next_step = "wait until it ends, or set the option kafka.isolation.level to read_uncommitted"
        return ClusterError(ApiError.TIMED_OUT, text, next_step, retriable=True)

    def close(self) -> None:
        self._runner.cancel(self._fetch)

    def _start(self, is_ahead: bool = False) -> asyncio.Task[Fetched]:
        self._is_ahead = is_ahead
        task = self._task
        size_max = self._options.fetch_size_max_bytes
        wait_ms = min(
            offsets.FETCH_WAIT_MS, int(self._options.poll_timeout_s * 1000) // 2
        )  # so that an empty answer arrives before the timeout
        return self._runner.start(
            self._consumer.fetch(task.topic, task.partition, self._offset, size_max_bytes=size_max, wait_ms=wait_ms)
        )

    def _give_up(self, error: ClusterError) -> None:
        """End the range because the partition was deleted, if the query permits it."""
        if self._options.fail_on_data_loss:
            raise DataLossError([error.message]) from error
        warn(error.message)
        self._offset = self._task.end

    def _skip(self, error: OffsetOutOfRangeError) -> None:
        """Continue after missing records, if the query permits it."""
        if self._options.fail_on_data_loss:
            raise DataLossError([error.message]) from error
        warn(error.message)
        self._offset = error.start if error.start > self._offset else self._task.end
        if self._offset < self._task.end:
            self._fetch = self._start()
