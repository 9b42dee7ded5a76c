"""Writes the rows of a task to the brokers, in an executor.  In the driver, it commits or aborts the transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_quorumlog import transactions
from pyspark_quorumlog.arrow import Columns, EncodedBatch, encode
from pyspark_quorumlog.options import OptionError, WriteOptions
from pyspark_quorumlog.shown import shown_by_spark
from pyspark_quorumlog.transactions import Attempt, Staged
from pyspark_quorumlog.warn import warn
from pyspark_quorumlog.worker import prepare_worker
from quorumlog.client.partitions import PAUSE_MAX_S, PAUSE_MIN_S, UNKNOWN_TOPIC_TIMEOUT_S
from quorumlog.client.producer import Producer
from quorumlog.client.scope_client import OpenScope, ScopeClient, StagedProducer
from quorumlog.client.sync import runner
from quorumlog.errors import ClusterError
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.clock import Sources
from quorumlog.wire.compression import CODEC_NAMES
from quorumlog.wire.errors import ApiError

CHUNK_SIZE_MAX_BYTES = 16 << 20
CHUNK_SIZE_PER_PARTITION_BYTES = 256 << 10
SPREAD_MAX_MS = 100
"""Maximum difference between the timestamps of rows that arrived in one Arrow batch."""
_PACES_PER_S = 10
_LATE_MAX_S = 1.0
"""If rows with a limited rate arrive late, the task exceeds the rate to make up for at most this many seconds."""

Int64s = npt.NDArray[np.int64]


class _Chunk(NamedTuple):
    """Rows to write.  timestamps: the time of each row, in ms since 1970."""

    rows: pa.Table
    timestamps: Int64s


def spread(asked_ms: int, arrived_ms: int, count: int) -> Int64s:
    """Return timestamps for the `count` rows of an Arrow batch, in ms since 1970.

    They are spread evenly between the request for the batch and its arrival.  If the batch took longer than
    SPREAD_MAX_MS to arrive, they cover only the last SPREAD_MAX_MS.
    """
    span_ms = min(max(arrived_ms - asked_ms, 0), SPREAD_MAX_MS)
    return arrived_ms - span_ms * np.arange(count - 1, -1, -1, dtype=np.int64) // count


class Outcome(NamedTuple):
    """The result of a task.  record_count: the number of acknowledged rows.  staged: their transaction."""

    record_count: int
    staged: Staged = Staged()


def write_rows(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], task_index: int, attempt: Attempt | None = None
) -> Outcome:
    """Write all rows, and return once every row is acknowledged.

    If the batch of `attempt` is already committed, all rows are read, and none is written.

    Args:
        task_index: determines the first partition for rows without key and partition, so that tasks begin with
            different partitions.
        attempt: the rows are written in a transaction of this attempt, unless the brokers have no scopes.  None: each
            row is visible at once.

    Raises:
        ClusterError: some rows were not acknowledged within the delivery timeout, or were refused; or the transaction
            did not begin.
        OptionError: the option atomic is true, and the brokers have no scopes.
    """
    with shown_by_spark(options.bootstrap):
        return runner().run(_Write(options, task_index).run(batches, attempt))


def open_batch(options: WriteOptions, name: str) -> OpenScope | None:
    """Open the scope of a batch write in the driver.  None: its tasks write without transactions.

    name: unique to this write.

    Raises:
        ClusterError: no coordinator has answered within the delivery timeout.
        OptionError: the option atomic is true, and the brokers have no scopes.
    """
    if options.atomic is False:
        return None
    with shown_by_spark(options.bootstrap):
        return runner().run(_open_batch(options, name))


async def _open_batch(options: WriteOptions, name: str) -> OpenScope | None:
    scopes = _scopes(options)
    if not await _has_scopes(options, scopes):
        return None
    return await transactions.open_batch(scopes, name, options.delivery_timeout_s)


async def _has_scopes(options: WriteOptions, scopes: ScopeClient) -> bool:
    if await scopes.is_served(options.delivery_timeout_s):
        return True
    if options.atomic:
        raise OptionError("option atomic is true, but these brokers have no transaction scopes; set it to false")
    return False


def commit_batch(options: WriteOptions, scope: OpenScope, staged: Sequence[Staged]) -> None:
    """Run `transactions.commit_batch` in the driver."""
    with shown_by_spark(options.bootstrap):
        scopes = _scopes(options)
        runner().run(transactions.commit_batch(scopes, scope, staged, options.delivery_timeout_s))


def commit_write(options: WriteOptions, staged: Sequence[Staged], sequence: int) -> None:
    """Run `transactions.commit` in the driver."""
    with shown_by_spark(options.bootstrap):
        scopes = _scopes(options)
        runner().run(transactions.commit(scopes, staged, sequence, options.delivery_timeout_s))


def abort_write(options: WriteOptions, staged: Sequence[Staged]) -> None:
    """Abort the batch of a stream, if any of its tasks reported a transaction.

    A failure is only a warning, as in `abort_batch`.
    """
    _try_to_abort(transactions.abort(_scopes(options), staged, _abort_timeout_s(options)))


def abort_batch(options: WriteOptions, scope: OpenScope) -> None:
    """Abort a batch write, including the tasks that reported nothing or still run.

    A failure is only a warning, because an error would hide the failure of the write.  The transactions are then
    aborted at their timeout.
    """
    _try_to_abort(_scopes(options).delete(scope, _abort_timeout_s(options)))


def _abort_timeout_s(options: WriteOptions) -> float:
    return min(options.delivery_timeout_s, options.request_timeout_s)


def _try_to_abort(work: Coroutine[Any, Any, None]) -> None:
    try:
        runner().run(work)
    except ClusterError as error:
        warn(f"the transactions of a failed write were not aborted; their timeout ends them: {error.message}")


def _scopes(options: WriteOptions) -> ScopeClient:
    return ScopeClient(runner().cluster(options.bootstrap, options.client_id))


class _Write:
    """One task's write: collects Arrow batches into chunks, encodes a record batch per partition, and sends them."""

    def __init__(self, options: WriteOptions, task_index: int) -> None:
        self._options = options
        self._cluster = runner().cluster(options.bootstrap, options.client_id)
        self._scopes = _scopes(options)
        self._sources = Sources.real()
        self._chunk_index = task_index
        self._partition_counts: dict[str, int] = {}
        self._row_count = 0
        self._due = 0.0
        """With a limited rate: the loop time from which more rows may be sent."""

    async def run(self, batches: Iterator[pa.RecordBatch], attempt: Attempt | None) -> Outcome:
        options = self._options
        if options.topic is not None:  # before any row, so that an empty write to a missing topic fails as well
            await self._know([options.topic])
        first = await self._next_chunk(batches)
        if first is None:
            return Outcome(0)
        if attempt is None or not (attempt.ready or await _has_scopes(options, self._scopes)):
            return Outcome(await self._write_all(first, batches, None))
        timeout_s = options.delivery_timeout_s
        scope = await transactions.opened(self._scopes, attempt, timeout_s)
        if scope.last_sequence >= attempt.sequence:  # the batch is committed already
            while await self._next_chunk(batches) is not None:  # Spark stores state once all rows are read
                pass
            return Outcome(0, Staged(scope))
        transaction_timeout_ms = options.transaction_timeout_ms
        producer = await transactions.begun(self._scopes, scope, attempt, timeout_s, transaction_timeout_ms)
        try:
            count = await self._write_all(first, batches, producer)
        except Exception as error:
            if isinstance(error, ClusterError):
                transactions.explain(error)
            with contextlib.suppress(ClusterError):
                await producer.abort(transactions.GIVE_UP_TIMEOUT_S)
            raise
        return Outcome(count, Staged(scope, producer.winner))

    async def _write_all(
        self, first: _Chunk, batches: Iterator[pa.RecordBatch], transaction: StagedProducer | None
    ) -> int:
        """Write `first` and all further chunks; return the number of rows once all are acknowledged."""
        options = self._options
        self._due = asyncio.get_running_loop().time()
        async with Producer(
            self._cluster,
            acks=options.acks,
            delivery_timeout_s=options.delivery_timeout_s,
            request_timeout_s=options.request_timeout_s,
            transaction=transaction,
            divides=True,
        ) as producer:
            chunk: _Chunk | None = first
            while chunk is not None:
                await self._write(chunk, producer)
                chunk = await self._next_chunk(batches)
            await producer.flush()
            assert producer.delivered_records == self._row_count, (producer.delivered_records, self._row_count)
        return self._row_count

    async def _next_chunk(self, batches: Iterator[pa.RecordBatch]) -> _Chunk | None:
        """Return enough rows for a record batch in each partition; None at the end.

        Spark's iterator blocks, so it runs in a thread: a late row must not look like a slow broker.
        """
        loop = asyncio.get_running_loop()
        partitions = sum(self._partition_counts.values()) or 1
        enough = min(CHUNK_SIZE_MAX_BYTES, CHUNK_SIZE_PER_PARTITION_BYTES * partitions)
        gathered: list[pa.RecordBatch] = []
        timestamps: list[Int64s] = []
        size = 0
        while size < enough:
            asked_ms = self._sources.wall_ms()
            batch = await loop.run_in_executor(None, next, batches, None)
            if batch is None:
                break
            if batch.num_rows:
                gathered.append(batch)
                timestamps.append(spread(asked_ms, self._sources.wall_ms(), batch.num_rows))
                size += batch.nbytes
            if self._options.records_per_second_max is not None and gathered:
                break
        return _Chunk(pa.Table.from_batches(gathered), np.concatenate(timestamps)) if gathered else None

    async def _write(self, chunk: _Chunk, producer: Producer) -> None:
        pace = self._options.records_per_second_max
        if pace is None:
            return await self._write_rows(chunk, producer)
        loop = asyncio.get_running_loop()
        step = max(1, pace // _PACES_PER_S)
        for first in range(0, chunk.rows.num_rows, step):
            await asyncio.sleep(max(0.0, self._due - loop.time()))
            rows = chunk.rows.slice(first, step)
            now = np.full(rows.num_rows, self._sources.wall_ms(), np.int64)  # rows may have waited a long time
            self._due = max(self._due, loop.time() - _LATE_MAX_S) + rows.num_rows / pace
            await self._write_rows(_Chunk(rows, now), producer)
        return None

    async def _write_rows(self, chunk: _Chunk, producer: Producer) -> None:
        prepare_worker()
        options = self._options
        columns = Columns.of(chunk.rows, chunk.timestamps, options.topic)
        await self._know(columns.topics)
        first, batches = await self._encoded(columns)
        self._chunk_index += 1
        for batch in chain(first, batches):
            await producer.send(batch.topic, batch.partition, batch.data)
        self._row_count += chunk.rows.num_rows

    async def _encoded(self, columns: Columns) -> tuple[list[EncodedBatch], Iterator[EncodedBatch]]:
        """Return the first record batch of the rows, and an iterator over the others.

        If a row names a partition that its topic does not have, two brokers are asked: the partition may be new.

        Raises:
            ClusterError: as `encode`.
        """
        options = self._options
        for left in (2, 1, 0):
            counts = [self._partition_counts[topic] for topic in columns.topics]
            sticky = [self._sticky(topic) for topic in columns.topics]
            codec = CODEC_NAMES[options.compression]
            batches = encode(columns, counts, sticky, options.batch_size_max_bytes, codec)
            try:
                return list(islice(batches, 1)), batches  # all rows are assigned to partitions before the first batch
            except ClusterError as error:
                if error.code != ApiError.UNKNOWN_TOPIC_OR_PARTITION or left == 0:
                    raise
            self._cluster.ask_another_broker()
            found = await self._cluster.partition_counts(columns.topics, options.delivery_timeout_s)
            self._partition_counts.update(
                {topic: max(count, self._partition_counts[topic]) for topic, count in found.items()}
            )
        raise AssertionError("the last attempt returns or raises")

    def _sticky(self, topic: str) -> int:
        """Return the partition for the rows of this chunk without key and partition.

        A partition whose leader is not known is skipped, because it may be offline.  If no leader is known, none is
        skipped.
        """
        indexes = range(self._partition_counts[topic])
        chosen = [index for index in indexes if self._cluster.known_leader(topic, index) is not None] or indexes
        return chosen[self._chunk_index % len(chosen)]

    async def _know(self, topics: list[str] | tuple[str, ...]) -> None:
        """Look up the number of partitions of new topics.

        A broker whose metadata is behind does not know a topic that was just created.  So a topic counts as missing
        only if the brokers still do not know it after UNKNOWN_TOPIC_TIMEOUT_S.
        """
        new = [topic for topic in topics if topic not in self._partition_counts]
        if not new:
            return
        timeout_s = self._options.delivery_timeout_s
        now = asyncio.get_running_loop().time
        deadline: float | None = None
        backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S, self._cluster.random)
        while True:
            counts = await self._cluster.partition_counts(new, timeout_s)
            self._partition_counts.update(counts)
            missing = sorted(set(new) - counts.keys())
            if not missing:
                return
            # The time counts from the first answer, because this answer may arrive late.
            deadline = deadline or now() + min(UNKNOWN_TOPIC_TIMEOUT_S, timeout_s)
            pause_s = backoff.next_s()
            if now() + pause_s >= deadline:
                raise ClusterError(
                    ApiError.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {', '.join(missing)} does not exist",
                    "kctl topics create",
                )
            self._cluster.ask_another_broker()
            await asyncio.sleep(pause_s)
