"""A producer of records for services: `quorumlog.client.Producer`.

Theory of operation.  `send` adds the record to the batch of its partition, which costs about a microsecond and no
request, and returns a `Delivery`.  Each partition has a lane (`lanes`) and a task that delivers the lane's batches one
at a time (`delivery`).  Each batch is encoded as a whole when its turn comes, in compiled code.

The order of a partition's records is that of `send`.  A record is delivered exactly once, or its delivery fails.  When
it is certain that the broker refused a batch, the next batch takes its sequence number.  After any other failure the
partition continues with a new producer id, because the batch may or may not have been appended.

The delivery timeout counts from `send`, and every other wait has a limit of its own, so nothing here lasts for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from quorumlog.client.cluster import Cluster, TopicState
from quorumlog.client.delivery import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    DELIVERY_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    BatchDelivery,
)
from quorumlog.client.delivery import Sequence as Numbers
from quorumlog.client.lanes import RECORD_OVERHEAD_BYTES, Batch, Delivery, Lane, Piece, Topic
from quorumlog.client.messages import (
    TIMESTAMP_MAX_MS,
    HeadersLike,
    NewRecord,
    RecordMetadata,
    as_bytes,
    as_headers,
)
from quorumlog.client.partitions import UNKNOWN_TOPIC_TIMEOUT_S
from quorumlog.client.producer_transactions import ProducerTransactions
from quorumlog.client.record_codec import build_batch
from quorumlog.client.records import Headers
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.runtime.clock import Sources
from quorumlog.wire._record_scan import murmur2
from quorumlog.wire.compression import CODEC_NAMES
from quorumlog.wire.errors import ApiError

if TYPE_CHECKING:
    from quorumlog.client.record_consumer import Consumer

Acks = Literal["all", "leader", "none"]
Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Partitioner = Callable[[bytes | None, int], int]
"""Returns the partition for a key and a number of partitions."""

BATCH_SIZE_MAX_BYTES: Final = 512 << 10
BUFFER_SIZE_MAX_BYTES: Final = 32 << 20
MAX_BLOCK_S: Final = 60.0
METADATA_AGE_MAX_S: Final = 60.0
TRANSACTION_TIMEOUT_S: Final = 60.0
STICKY_BYTES: Final = 16 << 10
"""Bytes of records without a key that go to one partition before another is drawn (KIP-794)."""
FAILURES_KEPT_MAX: Final = 1000
"""Failed batches that `flush` can still report; the oldest is dropped beyond that."""
_ACKS: Final = {"all": ACKS_ALL, "leader": ACKS_LEADER, "none": ACKS_NONE}
_TOO_LARGE: Final = (ApiError.MESSAGE_TOO_LARGE, ApiError.RECORD_LIST_TOO_LARGE)
_HEADER_OVERHEAD_BYTES: Final = 10
_PAUSE_S: Final = 0.1


class Producer:
    """Send records: `async with Producer("host:9092") as producer: await producer.send("topic", b"value")`.

    Leaving the block without an error flushes; leaving it with one discards what has not been delivered.  Idempotent:
    retries neither duplicate nor reorder records.  Use it from one event loop.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list; or a `Cluster`, which stays open.
        acks: "all": acknowledged by the whole ISR.  "leader": by the leader alone.  "none": sent, not acknowledged,
            and not idempotent.
        linger_ms: how long a batch that is not full waits for more records.  Batches also grow while an earlier one
            of the partition is in flight, so 0 is no slower under load.
        compression: of batches.
        partitioner: chooses the partition of each record that names none.  None: Kafka's murmur2 of the key; records
            without a key stay on a random partition for 16 KiB each time.
        batch_size_max_bytes: the size of one batch before compression.  A larger record has a batch of its own.
        buffer_size_max_bytes: above this, `send` waits.
        delivery_timeout_s: from `send` until a record must be acknowledged; else its delivery fails.
        request_timeout_s: how long one request may take before it is sent again.
        transactional_id: the name of a transactional producer, which `transaction` needs.  A later producer of this id
            fences this one.  Requires acks="all".
        transaction_timeout_s: the coordinator aborts a transaction that is open for longer.
        max_block_s: how long `send` may wait for room or for the topic's metadata, and `start` for a broker.
        sources: of wall time and randomness; for tests.

    Raises:
        ConfigError: an argument is out of range; lists all of them.
        ClusterError: `bootstrap` is malformed.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str] | Cluster,
        *,
        client_id: str = "quorumlog-producer",
        acks: Acks = "all",
        linger_ms: float = 0,
        compression: Compression = "none",
        partitioner: Partitioner | None = None,
        batch_size_max_bytes: int = BATCH_SIZE_MAX_BYTES,
        buffer_size_max_bytes: int = BUFFER_SIZE_MAX_BYTES,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        max_block_s: float = MAX_BLOCK_S,
        transactional_id: str | None = None,
        transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
        sources: Sources | None = None,
    ) -> None:
        problems = [
            text
            for text, is_bad in (
                (f"acks is {acks!r}, not one of {', '.join(_ACKS)}", acks not in _ACKS),
                (
                    f"compression is {compression!r}, not one of {', '.join(CODEC_NAMES)}",
                    compression not in CODEC_NAMES,
                ),
                (f"linger_ms is {linger_ms}, below 0", linger_ms < 0),
                (f"batch_size_max_bytes is {batch_size_max_bytes}, below 1", batch_size_max_bytes < 1),
                (f"buffer_size_max_bytes is {buffer_size_max_bytes}, below 1", buffer_size_max_bytes < 1),
                (
                    f"delivery_timeout_s is {delivery_timeout_s}, not above linger_ms",
                    delivery_timeout_s * 1000 <= linger_ms,
                ),
                (f"request_timeout_s is {request_timeout_s}, not above 0", request_timeout_s <= 0),
                (f"max_block_s is {max_block_s}, not above 0", max_block_s <= 0),
                ("transactional_id is empty", transactional_id == ""),
                (f"transactional_id requires acks='all', not {acks!r}", transactional_id is not None and acks != "all"),
                (f"transaction_timeout_s is {transaction_timeout_s}, not above 0", transaction_timeout_s <= 0),
            )
            if is_bad
        ]
        if problems:
            raise ConfigError(*problems)
        self._sources = sources or Sources.real()
        self._wall_ms = self._sources.wall_ms
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        self._cluster = (
            bootstrap
            if isinstance(bootstrap, Cluster)
            else Cluster(bootstrap, client_id=client_id, create_topics=True, random=self._sources.random)
        )
        self._transactions = (
            None
            if transactional_id is None
            else ProducerTransactions(self._cluster, transactional_id, int(transaction_timeout_s * 1000))
        )
        self._delivery = BatchDelivery(
            self._cluster,
            acks=_ACKS[acks],
            request_timeout_s=request_timeout_s,
            transaction=self._transactions,
        )
        self._is_idempotent = acks != "none"
        self._linger_s = linger_ms / 1000
        self._codec = CODEC_NAMES[compression]
        self._partitioner = partitioner
        self._batch_size_max = batch_size_max_bytes
        self._buffer_size_max = buffer_size_max_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._max_block_s = max_block_s
        self._identity: tuple[int, int] | None = None
        self._topics: dict[str, Topic] = {}
        self._lookups: dict[str, asyncio.Task[Topic]] = {}
        self._outstanding: dict[Batch, None] = {}
        """Batches without an outcome yet, in the order of their first records."""
        self._failed: deque[Batch] = deque(maxlen=FAILURES_KEPT_MAX)
        self._buffered_bytes = 0
        self._flushes = 0
        self._moved = asyncio.Event()
        """Set when a batch was decided."""
        self._stale = asyncio.Event()
        """Set when a topic may have been deleted."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed: ClusterError | None = ClusterError(
            ApiError.PRODUCER_CLOSED, "the producer was not started", "use `async with`, or await start()"
        )

    # --- life ---

    async def start(self) -> None:
        """Connect; `async with` does it.

        Raises:
            ClusterError: no broker gave a producer id within `max_block_s`.  With a transactional id also
                INVALID_TRANSACTION_TIMEOUT.
        """
        if self._transactions is not None:
            await self._transactions.start(self._max_block_s)
            self._identity = self._transactions.identity
        elif self._is_idempotent:
            self._identity = await self._cluster.new_producer_id(self._max_block_s)
        self._closed = None
        self._begin(self._keep_metadata())

    async def close(self, *, flush: bool = True) -> None:
        """Flush, then close all connections.  Idempotent.

        flush: False: deliveries that are not decided fail with PRODUCER_CLOSED.

        Raises: ClusterError, as `flush`; even then everything is closed.
        """
        try:
            if flush and self._closed is None:
                await self.flush()
        finally:
            self._closed = ClusterError(ApiError.PRODUCER_CLOSED, "the producer was closed")
            tasks = [*self._tasks, *self._lookups.values()]
            for task in tasks:
                task.cancel()
            self._discard(self._closed)
            if tasks:
                await asyncio.wait(tasks)
            if self._owns_cluster:
                await self._cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close(flush=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    # --- records ---

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Add a record to the batch of its partition, and return its future delivery.

        Waits only for room in the buffer, and for the metadata of a topic that is new to this producer.  A topic that
        does not exist is created if the cluster permits that.  A call that is cancelled has added nothing.

        Raises:
            ClusterError: UNKNOWN_TOPIC_OR_PARTITION; TIMED_OUT: no room or no metadata within `max_block_s`;
                MESSAGE_TOO_LARGE: the record does not fit into the buffer; PRODUCER_CLOSED.
            TypeError, ValueError: the record is malformed.
        """
        if (value is not None and type(value) is not bytes) or (key is not None and type(key) is not bytes):
            value, key = as_bytes("value", value), as_bytes("key", key)
        pairs = as_headers(headers) if headers else ()
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        elif not 0 <= timestamp_ms <= TIMESTAMP_MAX_MS:
            raise ValueError(f"timestamp_ms is {timestamp_ms}, not a time since 1970")
        known = self._topics.get(topic)
        if known is None:
            known = await self._topic(topic)
        delivery, is_new = self._add(known, key, value, pairs, partition, timestamp_ms)
        if delivery is None:
            return await self._add_later(topic, key, value, pairs, partition, timestamp_ms)
        if is_new:  # let the lanes run, also beside a loop that sends without a pause
            await asyncio.sleep(0)
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and return its place once it is acknowledged.  Raises: as `send` and `Delivery`."""
        delivery = await self.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return await delivery

    async def send_many(self, topic: str, records: Iterable[bytes | NewRecord]) -> list[Delivery]:
        """Send values, or `NewRecord`s, in their order; faster than as many calls of `send`.

        Raises: as `send`.  The records before the one that failed have been added.
        """
        made = []
        for record in records:
            if isinstance(record, NewRecord):
                value, key, headers, partition, timestamp_ms = record
                delivery = await self.send(
                    topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
                )
            else:
                delivery = await self.send(topic, record)
            made.append(delivery)
        return made

    async def flush(self) -> None:
        """Return once every record sent so far is acknowledged; at the latest when the last delivery timeout is over.

        Raises:
            ClusterError: deliveries failed, and the user has not read their outcome.  Each such failure is raised
            once.
        """
        self._flushes += 1
        try:
            for lane in [lane for topic in self._topics.values() for lane in topic.lanes]:
                lane.changed.set()
            waiting = [batch.pieces for batch in self._outstanding]
            if waiting:
                await asyncio.wait(waiting)
        finally:
            self._flushes -= 1
        self._raise_failures()

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.  Raises: ClusterError, as `send`."""
        return len((await self._topic(topic)).lanes)

    # --- transactions ---

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Begin a transaction; commit it at the end of the block, or abort it if the block raises an error.

        Raises:
            ClusterError: as `begin_transaction` and `commit_transaction`.  A transaction whose commit is refused with
                TRANSACTION_ABORTABLE is aborted.
        """
        self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            if self._of_transactions().can_abort:
                with suppress(ClusterError):  # the error of the block says more
                    await self.abort_transaction()
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction: all records that are sent until its end belong to it.  Sends nothing.

        Raises:
            ClusterError: INVALID_TXN_STATE: one is open; PRODUCER_FENCED; PRODUCER_CLOSED.
        """
        transactions = self._of_transactions()
        if self._closed is not None:
            raise self._closed
        transactions.begin()

    async def send_offsets(
        self, consumer: Consumer, offsets: Mapping[tuple[str, int], int] | None = None, timeout_s: float = MAX_BLOCK_S
    ) -> None:
        """Commit a consumer's offsets with the open transaction.

        consumer: a member of a group, with `auto_commit=False`.
        offsets: the offset of the next record to read, by partition.  None: the consumer's positions, after all records
            handed out so far.

        Raises:
            ClusterError: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID: the consumer is out of its group,
                or was since it read these records, and others may process them; INVALID_REQUEST: it commits on its
                own, or has no group; TIMED_OUT; INVALID_TXN_STATE; PRODUCER_FENCED.  Afterwards the transaction can
                only be aborted, except after INVALID_REQUEST and INVALID_TXN_STATE.
        """
        transactions = self._of_transactions()
        if transactions.refusal is not None:
            raise transactions.refusal
        try:
            group, positions = consumer.offsets_to_send()
        except ClusterError as error:
            if error.code != ApiError.INVALID_REQUEST:
                transactions.failed(error)
            raise
        wanted = positions if offsets is None else offsets
        if wanted:
            await transactions.send_offsets(group, {(*key,): each for key, each in wanted.items()}, timeout_s)

    async def commit_transaction(self, timeout_s: float = MAX_BLOCK_S) -> None:
        """Deliver all records, then commit; return once the decision is durable.

        Raises:
            ClusterError: TRANSACTION_ABORTABLE: a part failed, and the transaction can only be aborted;
                PRODUCER_FENCED: another producer uses the transactional id; TIMED_OUT: the outcome is unknown, repeat
                the call; INVALID_TXN_STATE: none is open.
        """
        transactions = self._of_transactions()
        with suppress(ClusterError):  # `end` reports it
            await self.flush()
        if self._closed is not None:
            raise self._closed
        await transactions.end(timeout_s, commit=True)

    async def abort_transaction(self, timeout_s: float = MAX_BLOCK_S) -> None:
        """Abort the open transaction; return once that is durable.  Records that were not sent yet are dropped.

        Waits for batches that are being sent, at most until their delivery timeout.  After a failure, the producer
        gets its next epoch, so that nothing of the transaction can arrive later.

        Raises:
            ClusterError: PRODUCER_FENCED; TIMED_OUT: the coordinator aborts it after its time-out; repeat the call;
                INVALID_TXN_STATE: none is open, or its commit was not answered.
        """
        transactions = self._of_transactions()
        if not transactions.can_abort:
            await transactions.end(timeout_s, commit=False)  # raises the reason
        is_clean = not transactions.has_failed and not self._outstanding
        text = f"transactional id {transactions.transactional_id}: the transaction was aborted"
        transactions.failed(ClusterError(ApiError.TRANSACTION_ABORTABLE, text))  # no more records are added or sent
        with suppress(ClusterError):
            await self.flush()
        self._failed.clear()
        await transactions.end(timeout_s, commit=False)
        if is_clean:
            return
        await transactions.start(timeout_s)
        self._identity = transactions.identity
        for lane in [lane for topic in self._topics.values() for lane in topic.lanes]:
            lane.sequence = Numbers(lane.sequence.topic, lane.sequence.index, self._identity)

    def _of_transactions(self) -> ProducerTransactions:
        if self._transactions is None:
            text = "this producer has no transactional_id, so it has no transactions"
            raise ClusterError(ApiError.INVALID_TXN_STATE, text, "pass transactional_id=… to Producer")
        return self._transactions

    # --- adding ---

    def _add(
        self,
        topic: Topic,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        index: int | None,
        timestamp_ms: int,
    ) -> tuple[Delivery | None, bool]:
        """Return the delivery, or None if there is no room, and whether the record began a batch."""
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += sum(len(name) + len(data or b"") + _HEADER_OVERHEAD_BYTES for name, data in headers)
        if self._closed is not None:
            raise self._closed
        if self._transactions is not None and (refusal := self._transactions.refusal) is not None:
            raise refusal
        if self._buffered_bytes + size > self._buffer_size_max:
            if size > self._buffer_size_max:
                raise _too_large(size, self._buffer_size_max)
            return None, False
        lane = topic.lanes[self._partition(topic, key, size) if index is None else _checked(topic, index)]
        queue = lane.queue
        is_new = not queue or queue[-1].size + size > lane.size_max
        if is_new:
            self._begin_batch(lane)
        batch = queue[-1]
        batch.records.append((timestamp_ms, key, value, headers))
        batch.size += size
        self._buffered_bytes += size
        return Delivery(batch, len(batch.records) - 1), is_new

    def _partition(self, topic: Topic, key: bytes | None, size: int) -> int:
        count = len(topic.lanes)
        if self._partitioner is not None:
            return _checked(topic, self._partitioner(key, count))
        if key is not None:
            return (murmur2(key) & 0x7FFFFFFF) % count
        if topic.sticky_left <= 0:
            topic.sticky = self._sources.random.randrange(count)
            topic.sticky_left = STICKY_BYTES
        topic.sticky_left -= size
        return topic.sticky

    def _begin_batch(self, lane: Lane) -> None:
        now = asyncio.get_running_loop().time()
        numbers = lane.sequence
        batch = Batch(numbers.topic, numbers.index, now + self._linger_s, now + self._delivery_timeout_s)
        self._outstanding[batch] = None
        lane.queue.append(batch)
        lane.changed.set()

    async def _add_later(
        self, name: str, key: bytes | None, value: bytes | None, headers: Headers, index: int | None, timestamp_ms: int
    ) -> Delivery:
        """Add the record once there is room."""
        try:
            async with asyncio.timeout(self._max_block_s):
                while True:
                    self._moved.clear()
                    await self._moved.wait()
                    topic = self._topics.get(name) or await self._topic(name)
                    delivery, _ = self._add(topic, key, value, headers, index, timestamp_ms)
                    if delivery is not None:
                        return delivery
        except TimeoutError as cause:
            message = (
                f"no room for the record within {self._max_block_s:g} s: "
                f"{self._buffered_bytes} of {self._buffer_size_max} bytes wait for their delivery"
            )
            raise ClusterError(
                ApiError.TIMED_OUT, message, "send more slowly, or check the brokers", retriable=True
            ) from cause

    # --- topics ---

    async def _topic(self, name: str) -> Topic:
        """Return a topic, from the brokers if it is new.  Calls for one topic share one look-up."""
        while (known := self._topics.get(name)) is None:
            if self._closed is not None:
                raise self._closed
            look_up = self._lookups.get(name)
            if look_up is None:
                look_up = self._lookups[name] = asyncio.ensure_future(self._look_up(name))
                look_up.add_done_callback(lambda done: self._looked_up(name, done))
            await asyncio.wait({look_up})
            if look_up.cancelled():
                raise self._closed or ClusterError(ApiError.CLIENT_CLOSED, "the client was closed")
            known = look_up.result()
            break
        return known

    def _looked_up(self, name: str, done: asyncio.Task[Topic]) -> None:
        del self._lookups[name]
        if not done.cancelled():
            done.exception()  # the waiting calls have seen it

    async def _look_up(self, name: str) -> Topic:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_block_s
        unknown_until = loop.time() + min(self._max_block_s, UNKNOWN_TOPIC_TIMEOUT_S)
        while True:
            states = await self._cluster.topic_states([name], max(deadline - loop.time(), _PAUSE_S))
            state = states.get(name)
            if state is not None and state.leader_epochs:
                topic = self._topics[name] = Topic(name, state.topic_id)
                self._grow(topic, state)
                return topic
            if loop.time() >= unknown_until:
                message = f"topic {name} does not exist, and was not created automatically"
                raise ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, message, f"kctl topics create {name}")
            self._cluster.ask_another_broker()
            await asyncio.sleep(_PAUSE_S)

    def _grow(self, topic: Topic, state: TopicState) -> None:
        for index in range(len(topic.lanes), len(state.leader_epochs)):
            lane = Lane(topic.name, index, self._batch_size_max)
            lane.sequence.identity = self._identity
            topic.lanes.append(lane)
            self._begin(self._run(topic, lane))

    async def _keep_metadata(self) -> None:
        """Notice new partitions, and topics that were deleted or created again."""
        while True:
            self._stale.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(METADATA_AGE_MAX_S):
                    await self._stale.wait()
            await asyncio.sleep(_PAUSE_S)
            if not self._topics:
                continue
            try:
                states = await self._cluster.topic_states(list(self._topics), METADATA_AGE_MAX_S)
            except ClusterError:
                continue  # the deliveries report that no broker answers
            for name, topic in list(self._topics.items()):
                state = states.get(name)
                if state is None or state.topic_id != topic.topic_id:
                    self._forget(topic)
                else:
                    self._grow(topic, state)

    def _forget(self, topic: Topic) -> None:
        """Look the topic up at the next `send`; a topic that was created again begins with new sequence numbers."""
        if self._topics.get(topic.name) is topic:
            del self._topics[topic.name]
        topic.is_gone = True
        for lane in topic.lanes:
            lane.changed.set()

    # --- delivering ---

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Stop sending after a task failed, which is a bug, and report the error to everyone who waits."""
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._closed = ClusterError(ApiError.FAILED, f"the producer failed: {bug!r}")
            self._closed.__cause__ = bug
            self._discard(self._closed)

    async def _run(self, topic: Topic, lane: Lane) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not lane.queue:
                if topic.is_gone:
                    return
                lane.changed.clear()
                await lane.changed.wait()
                continue
            wait_s = lane.queue[0].ready_at - loop.time()
            if wait_s > 0 and len(lane.queue) == 1 and lane.queue[0].size < lane.size_max and not self._flushes:
                await self._linger(lane, wait_s)
                continue
            batch = lane.queue.popleft()
            pieces: list[Piece] = []
            await self._deliver(topic, lane, batch, 0, len(batch.records), pieces)
            self._decide(batch, pieces)

    async def _linger(self, lane: Lane, wait_s: float) -> None:
        lane.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await lane.changed.wait()

    async def _deliver(self, topic: Topic, lane: Lane, batch: Batch, start: int, end: int, pieces: list[Piece]) -> None:
        """Deliver the records from `start` to `end`, in parts if the broker refuses them as too large together."""
        now = asyncio.get_running_loop().time
        numbers = lane.sequence
        try:
            if self._transactions is not None and (refusal := self._transactions.refusal) is not None:
                raise refusal
            if batch.deadline <= now():
                raise _expired(batch, self._delivery_timeout_s)
            if self._is_idempotent and numbers.identity is None:
                numbers.identity = await self._cluster.new_producer_id(batch.deadline - now())
            data = build_batch(batch.records[start:end], self._codec)
            left_s = max(batch.deadline - now(), 0.0)
            pieces.append((start, await self._delivery.deliver(numbers, data, end - start, left_s)))
        except ClusterError as error:
            is_refused = not error.retriable and numbers.attempts == 1
            if is_refused and error.code in _TOO_LARGE and end - start > 1:
                lane.size_max = max(lane.size_max // 2, 1)
                middle = (start + end) // 2
                await self._deliver(topic, lane, batch, start, middle, pieces)
                await self._deliver(topic, lane, batch, middle, end, pieces)
                return
            if self._transactions is not None:
                self._transactions.failed(error)
            elif not is_refused:
                lane.sequence = Numbers(numbers.topic, numbers.index)
            if error.code in (ApiError.UNKNOWN_TOPIC_OR_PARTITION, ApiError.UNKNOWN_TOPIC_ID):
                self._stale.set()
            pieces.append((start, error))

    def _decide(self, batch: Batch, pieces: list[Piece]) -> None:
        self._outstanding.pop(batch, None)
        self._buffered_bytes -= batch.size
        if not batch.pieces.done():
            batch.pieces.set_result(pieces)
        if batch.first_error() is not None:
            self._failed.append(batch)
        self._moved.set()

    def _discard(self, error: ClusterError) -> None:
        for batch in list(self._outstanding):
            self._decide(batch, [(0, error)])
        self._failed.clear()
        for topic in self._topics.values():
            for lane in topic.lanes:
                lane.queue.clear()

    def _raise_failures(self) -> None:
        failed = [batch for batch in self._failed if batch.observed < batch.failed_records()]
        self._failed.clear()
        if self._closed is not None:
            raise self._closed
        if failed:
            count = sum(batch.failed_records() - batch.observed for batch in failed)
            first = failed[0].first_error()
            assert first is not None
            message = f"{count} records were not delivered; the first error: {first.message}"
            raise ClusterError(first.code, message, first.next_step, retriable=first.retriable) from first


def _checked(topic: Topic, index: int) -> int:
    if not 0 <= index < len(topic.lanes):
        raise ValueError(f"topic {topic.name} has no partition {index}, only 0 to {len(topic.lanes) - 1}")
    return index


def _too_large(size: int, limit: int) -> ClusterError:
    message = f"a record of {size} bytes does not fit into the buffer of {limit} bytes"
    return ClusterError(ApiError.MESSAGE_TOO_LARGE, message, "raise buffer_size_max_bytes, or send smaller records")


def _expired(batch: Batch, timeout_s: float) -> ClusterError:
    message = f"{batch.topic}-{batch.index}: {len(batch.records)} records were not sent within {timeout_s:g} s"
    return ClusterError(ApiError.TIMED_OUT, message, "check the brokers, or send more slowly", retriable=True)
