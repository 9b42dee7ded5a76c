"""Writes the dead letters of share groups (KIP-1191) for the partitions that this broker leads.

A dead letter names a record that a share group has given up.  It is appended to the group's dead-letter topic with
acks=all.  If another broker leads the chosen partition of that topic, this broker sends that broker a Produce request.
All letters for one partition's records are appended to the same partition.  They keep their order unless a write is
repeated.

Theory of operation.  `write` makes one attempt for the records of one share partition, and writes one batch at most.
It reads the records from the log even if letters contain no copies of them: an offset without a record, or with a
control record, gets no letter.  `LedShare` repeats a failed attempt after growing pauses, and notes which records have
their letters.  An attempt whose outcome is unknown is repeated, so a record may have more than one letter.

Bounds: at most `share_letter_writes` attempts run at a time, and at most `share_letter_reads` of them decode records.
Each attempt holds the data of one read of the log, and one batch.  The leader ends a request after
`share_letter_timeout_ms`, and this broker stops waiting for the answer after `share_letter_answer_ms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from broker.coordinator.creation import TopicCreation
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.core.coordinator.share.states import ShareKey
from broker.core.partition import LeaderState
from broker.core.share.partition import DeadRecords, SharePartition
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from metadata.image import (
    DEAD_LETTER_CREATION,
    DEAD_LETTERS_ADMITTED,
    TopicImage,
    dead_letter_problem,
    is_internal,
)
from quorumlog.client.record_codec import NewRecord, build_batch, read_batch
from quorumlog.client.records import Headers, UnreadableBatchError, open_batches
from quorumlog.errors import ClusterError, CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import LineBudget, get_logger
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import HEADER_SIZE, BatchHeader, Codec, iter_headers
from quorumlog.wire.rpcs import ControllerCall

if TYPE_CHECKING:
    from broker.kafka.api import ProduceResult

logger = get_logger("share")

TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
GROUP: Final = "__dlq.errors.group"
DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
MESSAGE: Final = "__dlq.errors.message"
"""The headers of a dead letter, with values as text.  They name the record's topic, partition and offset, the group,
the number of deliveries, and the reason why the group gave the record up."""

_ACKS_ALL: Final = -1
_CODES: Final = frozenset(int(each) for each in KafkaCode)
_RECORD_BYTES: Final = 31
_HEADER_BYTES: Final = 10
"""Largest number of bytes that the format adds to the contents of a record, and of a header."""


class DeadLetterTopic(msgspec.Struct, frozen=True):
    """The dead-letter topic of a share group.  copies: whether a letter has its record's key, value and headers."""

    name: str
    copies: bool = False


class Failing(NamedTuple):
    """Dead letters that cannot be written.  since_ms: the wall time at which they first counted as failing."""

    topic: str
    cause: str
    since_ms: int


class Attempt(NamedTuple):
    """The result of an attempt to write letters.

    done: ranges of offsets whose records have their letters, or need none.
    next_offset: where the next attempt continues; None if nothing is left, or if a problem prevented all letters.
    problem: why some letters are missing; empty if no letter is missing.
    """

    done: Sequence[tuple[int, int]] = ()
    next_offset: int | None = None
    problem: str = ""


class _Target(NamedTuple):
    """A partition that gets letters.  max_bytes: the largest permitted size of a batch."""

    topic: str
    partition: int
    leader: int
    max_bytes: int


class _Built(NamedTuple):
    """Letters for records below `end`.

    batch: None if there are no letters.  letters: their number.  too_large: the offsets of records whose letters
    exceed the limit of the topic.
    """

    batch: bytearray | None
    letters: int
    end: int
    too_large: list[int]


class Produce(Protocol):
    """`Replicas.start_produce` of `broker.kafka.api`, without transactions."""

    def __call__(
        self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int
    ) -> asyncio.Future[ProduceResult]: ...


class DeadLetters:
    """Writes dead letters.

    resolve: returns the address of a broker's inter-broker listener.  produce: appends to a partition that this broker
    leads.
    failing: the share partitions whose letters cannot be written now.
    """

    def __init__(
        self,
        table: ReplicaTable,
        call: ControllerCall,
        wait_applied: Callable[[int], Awaitable[object]],
        resolve: Callable[[int], tuple[str, int] | None],
        produce: Produce,
        wall_ms: Callable[[], int],
        limits: CoordinatorLimits,
    ) -> None:
        self.limits: Final = limits
        self.failing: dict[ShareKey, Failing] = {}
        self.written = 0
        """Number of letters that were written."""
        self._cluster = table.context.cluster
        self._call = call
        self._wait_applied = wait_applied
        self._produce = produce
        self._wall_ms = wall_ms
        # Coordinators use other connections: a write that waits for replicas delays later requests on its connection.
        self._links = BrokerLinks(resolve)
        self._writes = asyncio.Semaphore(limits.share_letter_writes)
        self._reads = asyncio.Semaphore(limits.share_letter_reads)
        self._creations: dict[str, TopicCreation] = {}
        self._group: asyncio.TaskGroup | None = None
        self._lines: LineBudget | None = None

    def start(self, group: asyncio.TaskGroup) -> None:
        """Write letters from now on; the tasks belong to `group`."""
        self._group = group
        self._lines = LineBudget(logger, asyncio.get_running_loop().time)

    async def close(self) -> None:
        """End creations of topics, and close all connections.  No attempt may be in progress.  Idempotent."""
        self._group = None
        creations, self._creations = self._creations, {}
        for creation in creations.values():
            await creation.close()
        await self._links.close()

    # -- letters that cannot be written

    def failed(self, key: ShareKey, topic: str, cause: str) -> None:
        """Note that letters of a share partition cannot be written."""
        known = self.failing.get(key)
        self.failing[key] = Failing(topic, cause, self._wall_ms() if known is None else known.since_ms)
        if self._lines is not None and (known is None or known.cause != cause):
            self._lines.warning("dead letters not written", key=key.text, topic=topic, cause=cause)

    def settled(self, key: ShareKey, *, are_written: bool) -> None:
        """Note that all letters of a share partition are written, or that this broker no longer writes them.

        are_written: whether all letters are written.  If so, the end of earlier failures is logged.
        """
        if self.failing.pop(key, None) is not None and are_written:
            logger.info("dead letters written after failures", key=key.text)

    # -- one attempt

    async def write(
        self,
        key: ShareKey,
        replica: Replica,
        leader: LeaderState,
        core: SharePartition,
        letters: DeadLetterTopic,
        first: int,
    ) -> Attempt:
        """Write the missing letters of records from offset `first` on.

        The caller cancels this when the leadership ends.
        """
        async with self._writes:
            if replica.log is not None:
                core.follow_log_start(replica.log.start_offset)
            if not core.letters(first):
                return Attempt()  # no record waits any more, so a missing topic is no problem
            target = await self._target(letters.name, key.partition)
            if isinstance(target, str):
                return Attempt(problem=target)
            async with self._reads:
                found = await self._read(key, replica, leader, core, letters, target, first)
            if isinstance(found, Attempt):
                return found
            dead, built = found
            if built.batch is not None:
                problem = await self._append(target, built.batch)
                if problem:
                    return Attempt(problem=problem)
                self.written += built.letters
        done = list(_without(dead, built.end, built.too_large))
        problem = ""
        if built.too_large:
            offset = built.too_large[0]
            problem = f"the letter of offset {offset} exceeds max.message.bytes ({target.max_bytes}) of {target.topic}"
        return Attempt(done, built.end, problem)

    async def _target(self, name: str, source: int) -> _Target | str:
        """Return the partition that gets the letters of partition `source`, or the problem that prevents writing.

        As in Kafka, the index of that partition is `source` modulo the number of partitions.
        """
        image = self._cluster.newest
        problem = dead_letter_problem(image, name)
        if problem is not None or is_internal(name):
            return problem or f"{name} is an internal topic"
        topic = image.topic(name)
        if topic is None:
            if image.cluster_config(DEAD_LETTER_CREATION) != "true":
                return f"topic {name} does not exist"
            problem = await self._create(name)
            image = self._cluster.newest
            topic = image.topic(name)
            if problem or topic is None:
                return problem or f"topic {name} was deleted"
        if image.topic_config(topic.topic_id, DEAD_LETTERS_ADMITTED) != "true":
            return f"topic {name} does not admit dead letters ({DEAD_LETTERS_ADMITTED} is false)"
        return self._partition(topic, source, int(image.topic_config(topic.topic_id, "max.message.bytes")))

    @staticmethod
    def _partition(topic: TopicImage, source: int, max_bytes: int) -> _Target | str:
        partitions = [each for each in topic.partitions if each is not None]
        if not partitions:
            return f"topic {topic.name} has no partitions"
        chosen = partitions[source % len(partitions)]
        if chosen.leader < 0:
            return f"{topic.name}-{chosen.index} has no leader"
        return _Target(topic.name, chosen.index, chosen.leader, max_bytes)

    async def _create(self, name: str) -> str:
        """Create a dead-letter topic; return an empty string, or the reason why it does not exist."""
        creation = self._creations.get(name)
        if creation is None:
            if self._group is None:
                return "the broker is stopping"
            if len(self._creations) >= self.limits.share_letter_creations_max and not self._drop_creation():
                return f"topic {name} does not exist, and too many others are being created"
            configs = {DEAD_LETTERS_ADMITTED: "true"}
            creation = TopicCreation(name, self._cluster, self._call, self._wait_applied, self.limits, configs)
            creation.start(self._group)
            self._creations[name] = creation
        problem = await creation.ensure()
        if not problem and self._creations.get(name) is creation:
            del self._creations[name]
        return problem

    def _drop_creation(self) -> bool:
        """Drop a creation that is not in progress, and return whether there was one.

        Such a creation has failed, and its topic may not be needed any more.
        """
        idle = next((name for name, each in self._creations.items() if not each.is_running), None)
        if idle is not None:
            del self._creations[idle]
        return idle is not None

    async def _read(
        self,
        key: ShareKey,
        replica: Replica,
        leader: LeaderState,
        core: SharePartition,
        letters: DeadLetterTopic,
        target: _Target,
        first: int,
    ) -> tuple[list[DeadRecords], _Built] | Attempt:
        """Return records that wait for letters, and their letters.

        If no letter can be made, or no letter is missing, return the result of the attempt instead.
        """
        log = replica.log
        if log is None or replica.leader is not leader:
            return Attempt(problem="this broker does not lead the partition any more")
        core.follow_log_start(log.start_offset)
        dead = core.letters(first)
        if not dead:
            return Attempt()
        first, end = dead[0].first, leader.high_watermark
        if first >= end:  # a new leader does not know the high watermark at first
            return Attempt(problem=f"offset {first} is not committed yet")
        try:
            data = await replica.read(first, self.limits.share_letter_bytes, end)
        except (DiskError, CorruptStoreError) as error:
            replica.take_offline(error)
            return Attempt(problem=str(error))
        headers = list(iter_headers(data))
        if not headers:
            return Attempt(problem=f"offset {first} is not committed yet")
        work = _Work(key.group, replica.topic, key.partition, letters, core.limits.delivery_count_max, self._wall_ms())
        size = min(target.max_bytes, max(self.limits.share_letter_bytes, HEADER_SIZE + 1))
        if any(each.codec is not Codec.NONE for _, each in headers):
            loop = asyncio.get_running_loop()
            built = await loop.run_in_executor(None, work.build, data, headers, dead, size, target.max_bytes)
        else:
            built = work.build(data, headers, dead, size, target.max_bytes)
        return dead, built

    async def _append(self, target: _Target, batch: bytearray) -> str:
        """Append a batch.  Return an empty string, or the reason for a failure.

        After a failure, the batch may have been appended already, or may be appended later.
        """
        timeout_ms = self.limits.share_letter_timeout_ms
        where = f"{target.topic}-{target.partition}"
        if target.leader == self._cluster.broker_id:
            pending = self._produce(target.topic, target.partition, memoryview(batch), _ACKS_ALL, timeout_ms)
            await asyncio.wait({pending}, timeout=self.limits.share_letter_answer_ms / 1000)
            if not pending.done():
                return f"{where}: no answer in time"
            code, message = pending.result().error_code, pending.result().error_message
        else:
            try:
                reply = await self._links.produce(
                    target.leader,
                    (target.topic, target.partition, batch),
                    timeout_ms,
                    self.limits.share_letter_answer_ms / 1000,
                )
            except ClusterError as error:
                return f"{where}: {error.message}"
            code, message = reply.error_code, reply.error_message or ""
        if code == KafkaCode.NONE:
            return ""
        name = KafkaCode(code).name if code in _CODES else f"error {code}"
        return f"{where}: {name}" + (f" ({message})" if message else "")


class _Work(NamedTuple):
    """Makes the letters of one read.  It changes no shared state, so it may run in a thread."""

    group: str
    topic: str
    partition: int
    letters: DeadLetterTopic
    delivery_count_max: int
    now_ms: int

    def build(
        self,
        data: bytes | memoryview,
        headers: Sequence[tuple[int, BatchHeader]],
        dead: Sequence[DeadRecords],
        size: int,
        max_bytes: int,
    ) -> _Built:
        """Return letters of up to about `size` bytes in total.  The first letter may be larger.

        A letter that exceeds `max_bytes` is left out, and its offset is noted in `too_large`.
        """
        rows: list[NewRecord] = []
        too_large: list[int] = []
        total, end = HEADER_SIZE, headers[-1][1].end_offset
        for offset, row in self._rows(data, headers, dead):
            length = _size_of(row)
            if rows and total + length > size:
                end = offset
                break
            if HEADER_SIZE + length > max_bytes and len(build_batch([row])) > max_bytes:
                too_large.append(offset)
                continue
            rows.append(row)
            total += length
        return _Built(build_batch(rows) if rows else None, len(rows), end, too_large)

    def _rows(
        self, data: bytes | memoryview, headers: Sequence[tuple[int, BatchHeader]], dead: Sequence[DeadRecords]
    ) -> Iterator[tuple[int, NewRecord]]:
        """Yield the letters of all records that exist, each with the offset of its record, ascending."""
        view = memoryview(data)
        for position, header in headers:
            if header.is_control or header.record_count == 0:
                continue
            within = [each for each in dead if each.first < header.end_offset and each.end > header.base_offset]
            if within:
                yield from self._of_batch(view[position : position + header.size], header, within)

    def _of_batch(
        self, batch: memoryview, header: BatchHeader, dead: Sequence[DeadRecords]
    ) -> Iterator[tuple[int, NewRecord]]:
        try:
            [opened] = open_batches(batch)
            found = [(each, read_batch(opened, self.topic, self.partition, each.first, each.end)) for each in dead]
        except UnreadableBatchError:
            # A consumer cannot read this batch either, so its letters contain only the offsets.
            for each in dead:
                for offset in range(max(each.first, header.base_offset), min(each.end, header.end_offset)):
                    yield offset, self._letter(each, offset, None, None, ())
            return
        for each, records in found:
            for record in records:
                if self.letters.copies:
                    yield record.offset, self._letter(each, record.offset, record.key, record.value, record.headers)
                else:
                    yield record.offset, self._letter(each, record.offset, None, None, ())

    def _letter(
        self, dead: DeadRecords, offset: int, key: bytes | None, value: bytes | None, headers: Headers
    ) -> NewRecord:
        if dead.is_rejected or dead.deliveries < self.delivery_count_max:
            cause = "a member of the group rejected the record"
        else:
            cause = f"the record was delivered {dead.deliveries} times, the limit of the group"
        context = {
            TOPIC: self.topic,
            PARTITION: self.partition,
            OFFSET: offset,
            GROUP: self.group,
            DELIVERY_COUNT: dead.deliveries,
            MESSAGE: cause,
        }
        added = tuple([(name, str(text).encode()) for name, text in context.items()])
        return self.now_ms, key, value, headers + added


def _size_of(row: NewRecord) -> int:
    """Return the largest number of bytes that a record can occupy in a batch."""
    _, key, value, headers = row
    size = _RECORD_BYTES + len(key or b"") + len(value or b"")
    return size + sum(_HEADER_BYTES + len(name.encode()) + len(text or b"") for name, text in headers)


def _without(dead: Sequence[DeadRecords], end: int, left_out: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of dead records below `end`, without the offsets in `left_out`, which are ascending."""
    for each in dead:
        first, last = each.first, min(each.end, end)
        for offset in left_out:
            if first <= offset < last:
                if first < offset:
                    yield first, offset
                first = offset + 1
        if first < last:
            yield first, last
