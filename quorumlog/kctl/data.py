"""kctl produce and consume: records as lines, over the Kafka protocol."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quorumlog.errors import ClusterError, QuorumlogError
from quorumlog.kctl.context import Command, Context, with_loop
from quorumlog.kctl.inputs import STANDARD_INPUT, chunks
from quorumlog.kctl.numbers import IntRange
from quorumlog.kctl.output import OutputClosedError, bytes_value
from quorumlog.kctl.reads import Reads
from quorumlog.runtime.addresses import client_addresses
from quorumlog.wire.errors import ApiError
from quorumlog.words import about, counted

if TYPE_CHECKING:
    from quorumlog.client.cluster import Cluster
    from quorumlog.client.records import NewRecord, Record, UnreadableBatchError

T = TypeVar("T")

LINE_MAX_BYTES = 16 << 20
BATCH_RECORDS_MAX = 2000
BATCH_BYTES_MAX = 512 * 1024
IN_FLIGHT_MAX = 64
QUEUE_MAX = 8
"""Number of fetched pieces, each of at most FETCH_SIZE_MAX_BYTES, that may wait to be printed."""
FETCH_SIZE_MAX_BYTES = 1 << 20
LEADERS_AGE_S = 30.0
"""The interval at which leaders are looked up: a former leader that is cut off from the other brokers still answers."""
NO_TIMESTAMP = -1
"""The value for a record without a timestamp.  `quorumlog.wire.record_batch` defines the same value, but imports
slowly."""


@asynccontextmanager
async def open_cluster(
    context: Context, topic: str, partition: int | None = None
) -> AsyncIterator[tuple[Cluster, int]]:
    """Yield a Kafka client, and the topic's number of partitions; close the client afterwards.

    Any node may report the brokers and the topic, so no active controller is needed.  That node may be behind.  Before
    a topic or partition is reported as missing, the active controller is asked, if there is one.

    Raises:
        ClusterError: the topic or partition does not exist; no broker is registered; or no node answers.
    """
    from quorumlog.client.cluster import Cluster

    async with context.client() as client:
        reads = Reads(context, client)
        count = await _partition_count(reads, topic, partition)
        addresses = await broker_addresses(reads)
    async with Cluster(addresses, client_id="kctl") as cluster:
        yield cluster, count


async def _partition_count(reads: Reads, topic: str, partition: int | None) -> int:
    """Raises: ClusterError: the topic or partition does not exist."""
    from quorumlog.kctl.refusals import refusal
    from quorumlog.kctl.topic_reads import with_nearest
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    request = controller_pb2.DescribeTopicsRequest(names=[topic])
    (described,) = (await reads.ask_anywhere(rpcs.DESCRIBE_TOPICS, request)).topics
    if described.result.error not in (ApiError.NONE, "") or (partition or 0) >= len(described.partitions):
        (described,) = (await reads.ask(rpcs.DESCRIBE_TOPICS, request)).topics
    if described.result.error not in (ApiError.NONE, ""):
        raise reads.refused(await with_nearest(reads, refusal(described.result), topic))
    count = len(described.partitions)
    if (partition or 0) >= count:
        text = f"{topic} has no partition {partition}; it has {count} partitions"
        next_step = about("kctl topics describe", topic)
        raise reads.refused(ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, text, next_step))
    return count


async def broker_addresses(reads: Reads) -> list[str]:
    """Return bootstrap addresses for Kafka clients: of all listeners, and for each listener unfenced brokers first.

    Raises:
        ClusterError: BROKER_UNAVAILABLE: no broker is registered; or no node answers.
    """
    from quorumlog.wire import rpcs
    from quorumlog.wire.v1 import controller_pb2

    request = controller_pb2.DescribeBrokersRequest()
    reply = await reads.ask_anywhere(rpcs.DESCRIBE_BROKERS, request)
    if not any(broker.endpoints for broker in reply.brokers):
        reply = await reads.ask(rpcs.DESCRIBE_BROKERS, request)
    brokers = sorted(reply.brokers, key=lambda broker: (broker.state != "unfenced", broker.broker_id))
    addresses = client_addresses(broker.endpoints for broker in brokers)
    if not addresses:
        raise ClusterError(ApiError.BROKER_UNAVAILABLE, "no broker is registered", "kctl brokers list", retriable=True)
    return addresses


# Produce


@dataclass(frozen=True, slots=True)
class _Target:
    topic: str
    partition: int | None
    count: int


@click.command("produce", cls=Command)
@click.argument("topic")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True))
@click.option("--key", help="The key of every record.")
@click.option("--key-separator", metavar="S", help="Each line is KEY S VALUE.")
@click.option(
    "--partition",
    type=IntRange(0, 2**31 - 1),
    help="The partition (default: by the key; each 2000 records without a key go to the next partition).",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="Replicas that must have a record before it counts as written: none, the leader, or all in sync.",
)
@with_loop
async def produce(
    context: Context,
    topic: str,
    file: str | None,
    key: str | None,
    key_separator: str | None,
    partition: int | None,
    acks: str,
) -> None:
    """Write each line of FILE, or standard input, as one record.

    --timeout limits the search for the brokers, and the delivery of each batch.
    """
    from quorumlog.client.producer import Producer

    if key is not None and key_separator is not None:
        raise click.UsageError("give only one of --key and --key-separator")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty")
    parse = _LineParser(
        None if key is None else os.fsencode(key), None if key_separator is None else os.fsencode(key_separator)
    )
    timeout_s = context.deadline_s
    context.interrupted = "records whose offsets were not shown may not have been written"
    context.lift_limit()
    written = 0
    async with open_cluster(context, topic, partition) as (cluster, count):
        target = _Target(topic, partition, count)
        level = {"0": 0, "1": 1, "all": -1}[acks]
        async with Producer(cluster, acks=level, delivery_timeout_s=timeout_s) as producer:
            sent = _Sent(context, topic)
            source = _pairs(file, parse)
            failure: ClusterError | None = None
            try:
                while (pairs := await sent.until(_next(source))) is not None:
                    for index, records in _split(target, pairs, written):
                        sent.add(index, len(records), await _send(producer, topic, index, records))
                    written += len(pairs)
                    await sent.print_acknowledged(IN_FLIGHT_MAX)
            except ClusterError as error:
                failure = error
            await sent.print_acknowledged(0)
    if failure is not None:
        raise failure
    context.output.message(f"{counted(written, 'record')} written to {topic}")


class MalformedLineError(ClusterError):
    """A line of the input is not a valid record; all earlier lines were written, but no later line."""

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(
            ApiError.INVALID_LINE,
            f"line {number} {problem}; the lines before it were written",
            f"correct it, and continue from line {number}",
        )


class UnreadableInputError(ClusterError):
    """The input cannot be read after `count` complete lines, which were written."""

    def __init__(self, count: int, cause: OSError) -> None:
        where, before = (f"after line {count}", "; the lines up to it were written") if count else ("at line 1", "")
        super().__init__(
            ApiError.IO_ERROR,
            f"the input cannot be read {where}: {cause.strerror or cause}{before}",
            f"check the input, and continue from line {count + 1}",
        )


Pair = tuple[bytes | None, bytes]


async def _pairs(file: str | None, parse: _LineParser) -> AsyncIterator[list[Pair]]:
    """Yield the keys and values of the lines as they arrive.

    Raises:
        MalformedLineError, UnreadableInputError: after all earlier lines have been yielded.
    """
    try:
        async for lines in _lines(file):
            pairs: list[Pair] = []
            for line in lines:
                try:
                    pairs.append(parse(line))
                except MalformedLineError:
                    yield pairs
                    raise
            yield pairs
    except OSError as error:
        raise UnreadableInputError(parse.count, error) from error


class _LineParser:
    """Splits a line into key and value."""

    def __init__(self, key: bytes | None, separator: bytes | None) -> None:
        self._key = key
        self._separator = separator
        self.count = 0
        """The number of lines that were split."""

    def __call__(self, line: bytes) -> Pair:
        self.count += 1
        if self._separator is None:
            return self._key, line
        key, found, value = line.partition(self._separator)
        if not found:
            raise MalformedLineError(self.count, f"has no {self._separator.decode(errors='backslashreplace')!r}")
        return key, value


def _split(target: _Target, pairs: list[Pair], first_number: int) -> list[tuple[int, list[NewRecord]]]:
    """Return batches with their partition, in the order of the lines within each partition.

    first_number: the number of records before `pairs`, on which the partition of a record without a key depends.
    """
    from quorumlog.client.partitioner import partition_of
    from quorumlog.client.records import NewRecord
    from quorumlog.runtime.clock import Sources

    now_ms = Sources.real().wall_ms()
    batches: list[tuple[int, list[NewRecord]]] = []
    open_batches: dict[int, tuple[list[NewRecord], int]] = {}
    for number, (key, value) in enumerate(pairs, first_number):
        index = target.partition
        if index is None:
            index = number // BATCH_RECORDS_MAX % target.count if key is None else partition_of(key, target.count)
        records, size = open_batches.get(index, ([], 0))
        size += len(value) + len(key or b"") + 64
        if not records or len(records) >= BATCH_RECORDS_MAX or (size > BATCH_BYTES_MAX):
            records, size = [], len(value) + len(key or b"") + 64
            batches.append((index, records))
        records.append(NewRecord(key, value, now_ms))
        open_batches[index] = (records, size)
    return batches


async def _send(producer: Any, topic: str, index: int, records: list[NewRecord]) -> asyncio.Future[int]:
    from quorumlog.client.records import build_batch

    future: asyncio.Future[int] = await producer.send(topic, index, build_batch(records))
    return future


class _Sent:
    """The batches whose offsets are not printed yet, in the order in which they were sent."""

    def __init__(self, context: Context, topic: str) -> None:
        self._context = context
        self._topic = topic
        self._batches: deque[tuple[int, int, asyncio.Future[int]]] = deque()

    def add(self, index: int, count: int, delivered: asyncio.Future[int]) -> None:
        """Add a batch of `count` records for a partition.  delivered: its base offset."""
        self._batches.append((index, count, delivered))

    async def until(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work`, and meanwhile print each offset once it is acknowledged, since the next line may never arrive.

        Raises:
            ClusterError: as `print_acknowledged`; `work` is then cancelled.
        """
        working = asyncio.ensure_future(work)
        try:
            while not working.done():
                awaited: set[asyncio.Future[Any]] = {working}
                if self._batches:
                    awaited.add(self._batches[0][2])
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                await self.print_acknowledged(len(self._batches))
            return await working
        finally:
            working.cancel()
            if working.done() and not working.cancelled():
                working.exception()  # mark as retrieved: the failure of a batch came first

    async def print_acknowledged(self, left_max: int) -> None:
        """Print acknowledged offsets in order, and wait until at most `left_max` batches are unacknowledged.

        Raises:
            ClusterError: the first failure of a batch.  It is raised once all other batches have been acknowledged or
                have failed, and the offsets of acknowledged batches are printed.
        """
        failure: ClusterError | None = None
        while self._batches and (failure is not None or len(self._batches) > left_max or self._batches[0][2].done()):
            index, count, delivered = self._batches.popleft()
            try:
                base = await delivered
            except ClusterError as error:
                failure = failure or error
                continue
            for number in range(count):
                self._print(index, base + number if base >= 0 else None)
        if failure is not None:
            raise failure

    def _print(self, index: int, offset: int | None) -> None:
        if self._context.output.is_json:
            self._context.output.line({"topic": self._topic, "partition": index, "offset": offset})
        else:
            self._context.output.text(f"{self._topic}-{index} {'-' if offset is None else offset}")


async def _next(source: AsyncIterator[T]) -> T | None:
    """Return the next item; None at the end."""
    return await anext(source, None)


async def _lines(file: str | None) -> AsyncIterator[list[bytes]]:
    """Yield lines as they arrive, all available lines together; the last line needs no newline.

    Raises:
        MalformedLineError: a line is longer than LINE_MAX_BYTES.
    """
    rest = b""
    count = 0
    async for chunk in chunks(file or STANDARD_INPUT, "the records"):
        *lines, rest = (rest + chunk).split(b"\n")
        count += len(lines)
        if lines:
            yield lines
        if len(rest) > LINE_MAX_BYTES:
            raise MalformedLineError(count + 1, f"is longer than {LINE_MAX_BYTES} bytes")
    if rest:
        yield [rest]


# Consume


def _parse_from(_context: click.Context, _parameter: click.Parameter, text: str) -> str | int:
    if text in ("beginning", "end"):
        return text
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise click.BadParameter(f"{text!r} is neither beginning, end nor an offset")


@click.command("consume", cls=Command)
@click.argument("topic")
@click.option("--partition", type=IntRange(0, 2**31 - 1), help="Read only this partition.")
@click.option(
    "--from",
    "start",
    default="end",
    callback=_parse_from,
    metavar="beginning|end|OFFSET",
    help="Where to begin (default end).",
)
@click.option("--max-messages", type=IntRange(1), help="Stop after this many records.")
@click.option("--exit-at-end", is_flag=True, help="Stop after the last record that exists when the command starts.")
@with_loop
async def consume(
    context: Context, topic: str, partition: int | None, start: str | int, max_messages: int | None, exit_at_end: bool
) -> None:
    """Print records as they arrive, until Ctrl-C.

    --timeout, if given, limits the whole command; its default limits only each request.
    """
    context.interrupted, context.ends_with_output = "", True
    context.lift_limit()
    try:
        async with asyncio.timeout(context.follow_s):
            await _consume(context, topic, partition, start, max_messages, exit_at_end)
    except TimeoutError:
        raise ClusterError(
            ApiError.TIMED_OUT, f"the requested records did not arrive within {context.deadline_s:g} s", retriable=True
        ) from None
    except BaseExceptionGroup as failures:  # not `except*`, which raises a group again in Python 3.11.2
        if failures.split(OutputClosedError)[0] is not None:
            raise OutputClosedError from None
        foreseen, others = failures.split((QuorumlogError, OSError))
        if foreseen is None or others is not None:
            raise
        raise _first(foreseen) from None


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


async def _consume(
    context: Context, topic: str, partition: int | None, start: str | int, max_messages: int | None, exit_at_end: bool
) -> None:
    from quorumlog.client.consumer import EARLIEST, LATEST, Consumer, OffsetOutOfRangeError

    async with open_cluster(context, topic, partition) as (cluster, count):
        indexes = range(count) if partition is None else [partition]
        consumer = Consumer(cluster, timeout_s=context.deadline_s if context.timeout_s is None else context.left_s)
        keys = [(topic, index) for index in indexes]
        offsets = {index: start for index in indexes if isinstance(start, int)}
        ends: dict[int, int] = {}
        if not isinstance(start, int):
            where = EARLIEST if start == "beginning" else LATEST
            listed = await consumer.list_offsets(dict.fromkeys(keys, where))
            offsets = {index: listed[topic, index].offset for index in indexes}
        if exit_at_end:
            listed = await consumer.list_offsets(dict.fromkeys(keys, LATEST))
            ends = {index: listed[topic, index].offset for index in indexes}
        for index, end in ends.items():
            if offsets[index] > end:  # nothing would be read, and the fetch would not report this
                first = (await consumer.list_offset(topic, index, EARLIEST)).offset
                raise OffsetOutOfRangeError(topic, index, offsets[index], first, end)
        pieces: asyncio.Queue[list[Record] | None] = asyncio.Queue(QUEUE_MAX)
        async with asyncio.TaskGroup() as tasks:
            readers = [
                tasks.create_task(_read(consumer, topic, index, offsets[index], ends.get(index), pieces))
                for index in indexes
            ]
            watching = tasks.create_task(_watch_leaders(cluster, topic))
            await _print(context, topic, pieces, len(readers), max_messages)
            for task in (*readers, watching):
                task.cancel()


async def _watch_leaders(cluster: Cluster, topic: str) -> None:
    """Look up the leaders at intervals; the fetches use the cluster's cache."""
    while True:
        await asyncio.sleep(LEADERS_AGE_S)
        with suppress(ClusterError):  # fetches report this error
            await cluster.topic_states([topic], LEADERS_AGE_S)


async def _read(
    consumer: Any,
    topic: str,
    index: int,
    offset: int,
    end: int | None,
    pieces: asyncio.Queue[Any],
) -> None:
    """Put the records of one partition below `end` into the queue, then None.  end: None means to read without end.

    The error of an unreadable batch passes through the queue after all earlier records, so that these are printed.
    """
    from quorumlog.client.records import OFFSET_MAX, UnreadableBatchError, decode_batches, end_offset

    while end is None or offset < end:
        fetched = await consumer.fetch(topic, index, offset, size_max_bytes=FETCH_SIZE_MAX_BYTES)
        records: list[Record] = []
        try:
            for record in decode_batches(fetched.records, offset, OFFSET_MAX if end is None else end):
                records.append(record)
            after = end_offset(fetched.records)
        except UnreadableBatchError as error:
            await pieces.put((index, records))
            await pieces.put(error.of(topic, index, _after_unreadable(error, topic, index)))
            return
        if records:
            await pieces.put((index, records))
        if after is not None:
            offset = after
    await pieces.put(None)


def _after_unreadable(error: UnreadableBatchError, topic: str, index: int) -> str:
    """Return the command that continues after the batch.

    If the end of the batch is unknown, return a command that explains the partition.
    """
    if error.end_offset is None:
        return about("kctl explain", f"{topic}-{index}")
    return about("kctl consume", topic, options=f" --partition {index} --from {error.end_offset}")


async def _print(
    context: Context, topic: str, pieces: asyncio.Queue[Any], readers: int, max_messages: int | None
) -> None:
    left = sys.maxsize if max_messages is None else max_messages
    while readers and left:
        piece = await pieces.get()
        if piece is None:
            readers -= 1
            continue
        if isinstance(piece, ClusterError):
            raise piece
        index, records = piece
        for record in records[:left]:
            _print_record(context, topic, index, record)
        left -= min(left, len(records))


def _print_record(context: Context, topic: str, index: int, record: Record) -> None:
    if context.output.is_json:
        context.output.line(
            {
                "topic": topic,
                "partition": index,
                "offset": record.offset,
                "timestamp": None if record.timestamp_ms == NO_TIMESTAMP else record.timestamp_ms,
                "key": bytes_value(record.key),
                "value": bytes_value(record.value),
                "headers": [{"name": name, "value": bytes_value(value)} for name, value in record.headers],
            }
        )
        return
    value = bytes_value(record.value)
    if isinstance(value, dict):
        value = f"base64:{value['base64']}"
    context.output.raw("null" if value is None else value)
