"""Writes rows in an executor's task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]

from pyspark_quorumlog.options import WriteOptions
from quorumlog.client.producer import Producer
from quorumlog.client.sync import runner
from quorumlog.errors import ClusterError
from quorumlog.runtime.clock import Sources
from quorumlog.wire.compression import CODEC_NAMES
from quorumlog.wire.errors import ApiError

CHUNK_SIZE_MAX_BYTES = 16 << 20
CHUNK_SIZE_PER_PARTITION_BYTES = 256 << 10
_PACES_PER_S = 10


def write_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch], task_index: int) -> int:
    """Write all rows and return their number, once every one is acknowledged.

    Args:
        task_index: determines the first partition for rows without key and partition, so that tasks begin with
        different ones.

    Raises:
        ClusterError: some were not acknowledged within the delivery timeout, or were refused.
    """
    return runner().run(_Write(options, task_index).run(batches))


class _Write:
    """One task's write: collects Arrow batches into chunks, encodes a record batch per partition, and sends them."""

    def __init__(self, options: WriteOptions, task_index: int) -> None:
        self._options = options
        self._cluster = runner().cluster(options.bootstrap, options.client_id)
        self._sources = Sources.real()
        self._chunk_index = task_index
        self._partition_counts: dict[str, int] = {}
        self._row_count = 0
        self._begun = 0.0

    async def run(self, batches: Iterator[pa.RecordBatch]) -> int:
        self._begun = asyncio.get_running_loop().time()
        options = self._options
        if options.topic is not None:  # before any row, so that an empty write to a missing topic fails as well
            await self._know([options.topic])
        async with Producer(
            self._cluster,
            acks=options.acks,
            delivery_timeout_s=options.delivery_timeout_s,
            request_timeout_s=options.request_timeout_s,
        ) as producer:
            while (chunk := await self._next_chunk(batches)) is not None:
                await self._write(chunk, producer)
            await producer.flush()
            assert producer.delivered_records == self._row_count, (producer.delivered_records, self._row_count)
        return self._row_count

    async def _next_chunk(self, batches: Iterator[pa.RecordBatch]) -> pa.Table | None:
        """Return enough rows for a record batch in each partition; None at the end.

        Spark's iterator blocks, so it runs beside the loop: a late row must not look like a slow broker.
        """
        loop = asyncio.get_running_loop()
        partitions = sum(self._partition_counts.values()) or 1
        enough = min(CHUNK_SIZE_MAX_BYTES, CHUNK_SIZE_PER_PARTITION_BYTES * partitions)
        gathered: list[pa.RecordBatch] = []
        size = 0
        while size < enough:
            batch = await loop.run_in_executor(None, next, batches, None)
            if batch is None:
                break
            if batch.num_rows:
                gathered.append(batch)
                size += batch.nbytes
            if self._options.records_per_second_max is not None and gathered:
                break
        return pa.Table.from_batches(gathered) if gathered else None

    async def _write(self, chunk: pa.Table, producer: Producer) -> None:
        pace = self._options.records_per_second_max
        step = chunk.num_rows if pace is None else max(1, pace // _PACES_PER_S)
        for first in range(0, chunk.num_rows, step):
            await self._write_paced(chunk.slice(first, step), producer)
            if pace is not None:
                due = self._begun + self._row_count / pace
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    async def _write_paced(self, rows: pa.Table, producer: Producer) -> None:
        from pyspark_quorumlog.arrow import Columns, encode  # numba: half a second, once per worker

        options = self._options
        columns = Columns.of(rows, options.topic)
        await self._know(columns.topics)
        counts = [self._partition_counts[topic] for topic in columns.topics]
        sticky = [self._chunk_index % count for count in counts]
        self._chunk_index += 1
        codec = CODEC_NAMES[options.compression]
        for batch in encode(columns, counts, sticky, self._sources.wall_ms(), options.batch_size_max_bytes, codec):
            await producer.send(batch.topic, batch.partition, batch.data)
        self._row_count += rows.num_rows

    async def _know(self, topics: list[str] | tuple[str, ...]) -> None:
        """Look up the number of partitions of new topics."""
        new = [topic for topic in topics if topic not in self._partition_counts]
        if not new:
            return
        counts = await self._cluster.partition_counts(new, self._options.delivery_timeout_s)
        if missing := sorted(set(new) - counts.keys()):
            raise ClusterError(
                ApiError.UNKNOWN_TOPIC_OR_PARTITION, f"topic {', '.join(missing)} does not exist", "kctl topics create"
            )
        self._partition_counts.update(counts)
