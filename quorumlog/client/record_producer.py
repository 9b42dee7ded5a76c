"""A producer of records for services: `quorumlog.client.Producer`.

Theory of operation.  `send` adds the record to the batch of its partition, which costs about a microsecond and no
request, and returns a `Delivery`.  Each partition has a lane (`lanes`) and a task that delivers the lane's batches one
at a time (`lane_sender`).  Each batch is encoded as a whole when its turn comes, in compiled code.  `ProducerTopics`
has the lanes, and `ProducerBuffer` all batches without an outcome.

The records of a partition keep the order of the calls of `send`.  With acks="all", a record is delivered exactly once,
or its delivery fails.  After a failure, a transaction can only be aborted.  Outside transactions, if the broker
certainly refused a batch because of its content or a missing permission, the next batch uses the same sequence number.
After any other failure, the partition continues with a new producer id, because the batch may or may not have been
appended, or the log may lack batches before it.

The delivery timeout counts from the `send` that began the batch, and every other wait has a limit of its own, so no
call waits forever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from quorumlog.client.cluster import Cluster
from quorumlog.client.delivery import DELIVERY_TIMEOUT_S, REQUEST_TIMEOUT_S, RecordsTransaction
from quorumlog.client.lane_sender import LaneSender
from quorumlog.client.lanes import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, Batch, Delivery, Lane, Topic
from quorumlog.client.messages import (
    HeadersLike,
    NewRecord,
    RecordMetadata,
    as_bytes,
    as_headers,
    as_offset,
    as_timestamp_ms,
    check_partitions,
)
from quorumlog.client.producer_buffer import ProducerBuffer
from quorumlog.client.producer_settings import (
    BATCH_SIZE_MAX_BYTES,
    BUFFER_SIZE_MAX_BYTES,
    MAX_BLOCK_S,
    TRANSACTION_TIMEOUT_S,
    Acks,
    Compression,
    Partitioner,
    ProducerSettings,
)
from quorumlog.client.producer_topics import ProducerTopics
from quorumlog.client.producer_transactions import ProducerTransactions
from quorumlog.client.records import Headers
from quorumlog.client.tasks import BackgroundTasks
from quorumlog.errors import ClusterError
from quorumlog.runtime.clock import Sources
from quorumlog.wire._record_scan import murmur2
from quorumlog.wire.errors import ApiError

if TYPE_CHECKING:
    from quorumlog.client.record_consumer import Consumer
    from quorumlog.client.scope_client import StagedProducer

STICKY_BYTES: Final = 16 << 10
"""After this many bytes of records without a key, another partition is drawn for such records (KIP-794)."""

ABORT_AT_CLOSE_S: Final = 10.0
"""Time limit for the abort of an open transaction by `close`."""


class Producer:
    """Send records: `async with Producer("host:9092") as producer: await producer.send("topic", b"value")`.

    Leaving the block without an error flushes; leaving it with an error discards undelivered records.  Idempotent,
    unless acks is "none": retries neither duplicate nor reorder records.  Use it from one event loop.

    Args:
        bootstrap: `HOST:PORT`, several with commas or as a list; or a `Cluster`, which stays open.
        acks: "all": a record is acknowledged by the whole ISR.  "leader": by the leader alone.  "none": records are
            only sent; they are not acknowledged, and the producer is not idempotent.
        linger_ms: how long a batch that is not full waits for more records.  Batches also grow while an earlier one
            of the partition is in flight, so 0 is not slower under load.
        compression: the codec of the batches.
        partitioner: chooses the partition of each record that names none.  None: Kafka's murmur2 of the key; records
            without a key go to a random partition with a leader.  After 16 KiB, another partition is drawn.
        batch_size_max_bytes: the maximum size of a batch before compression.  A larger record has a batch of its own.
        buffer_size_max_bytes: the maximum size of all records that wait for their delivery.  If a record does not fit,
            `send` waits.
        delivery_timeout_s: the time after which the deliveries of a batch without an acknowledgement fail.  It counts
            from the `send` of the first record of the batch.
        request_timeout_s: how long one request may take before it is sent again.
        transactional_id: the name of a transactional producer; `transaction` requires one.  A later producer of this
            id fences this one.  Requires acks="all".
        transaction_timeout_s: the coordinator aborts a transaction that is open for longer.
        staged: a producer of a transaction scope, from `ScopeClient.begin`.  All records belong to this scope.  They
            are committed only if the end of the scope names the `winner` of this object.  Use the object for one
            `Producer` only.
        max_block_s: how long `send` may wait for room or for the topic's metadata, and `start` for a broker.
        sources: sources of wall time and randomness, for tests.

    Raises:
        ConfigError: arguments are invalid; the error lists all of these.
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
        staged: StagedProducer | None = None,
        sources: Sources | None = None,
    ) -> None:
        settings = self._settings = ProducerSettings(
            client_id=client_id,
            acks=acks,
            linger_ms=linger_ms,
            compression=compression,
            partitioner=partitioner,
            batch_size_max_bytes=batch_size_max_bytes,
            buffer_size_max_bytes=buffer_size_max_bytes,
            delivery_timeout_s=delivery_timeout_s,
            request_timeout_s=request_timeout_s,
            max_block_s=max_block_s,
            transactional_id=transactional_id,
            transaction_timeout_s=transaction_timeout_s,
            is_staged=staged is not None,
        )
        self._sources = sources or Sources.real()
        self._wall_ms = self._sources.wall_ms
        self._partitioner = partitioner
        self._owns_cluster = not isinstance(bootstrap, Cluster)
        if not isinstance(bootstrap, Cluster):
            bootstrap = Cluster(bootstrap, client_id=client_id, create_topics=True, random=self._sources.random)
        self._cluster = bootstrap
        self._transactions = (
            None
            if transactional_id is None
            else ProducerTransactions(bootstrap, transactional_id, int(transaction_timeout_s * 1000))
        )
        self._transaction: RecordsTransaction | None = self._transactions if staged is None else staged
        not_started = ClusterError(
            ApiError.PRODUCER_CLOSED, "the producer was not started", "use `async with`, or await start()"
        )
        self._tasks = BackgroundTasks(self._broken)
        self._must_yield = False
        """Set when a batch begins: the next `send` lets the lanes run first.  A loop that only calls `send` would never
        let them run otherwise."""
        self._buffer = ProducerBuffer(buffer_size_max_bytes, not_started)
        stale = asyncio.Event()
        self._sender = LaneSender(bootstrap, settings, self._transaction, self._buffer, stale)
        self._topics = ProducerTopics(bootstrap, settings, self._buffer, stale, self._begin_lane)

    # --- life ---

    async def start(self) -> None:
        """Connect; `async with` calls this.

        Raises:
            ClusterError: no broker returned a producer id within `max_block_s`; with a transactional id, also
                INVALID_TRANSACTION_TIMEOUT.
        """
        if self._transactions is not None:
            await self._transactions.start(self._settings.max_block_s)
        if self._transaction is not None:
            self._topics.identity = self._transaction.identity
        elif self._settings.is_idempotent:
            self._topics.identity = await self._cluster.new_producer_id(self._settings.max_block_s)
        self._buffer.closed = None
        self._tasks.begin(self._topics.keep_up())

    async def close(self, *, flush: bool = True) -> None:
        """Flush, then stop, and close the connections, except those of a `Cluster` passed as `bootstrap`.  Idempotent.

        An open transaction is aborted, unless that takes longer than 10 s.
        flush: if False, deliveries without an outcome fail with PRODUCER_CLOSED, or in a transaction with
            TRANSACTION_ABORTABLE.

        Raises: ClusterError, as `flush`; the producer is closed nevertheless.
        """
        try:
            if self._buffer.closed is None:
                try:
                    if flush:
                        await self.flush()
                except ClusterError:
                    await self._abort_open()
                    raise
                await self._abort_open()
        finally:
            tasks: list[asyncio.Task[Any]] = [*self._tasks.cancel(), *self._topics.cancel()]
            self._stop(ClusterError(ApiError.PRODUCER_CLOSED, "the producer was closed"))
            try:  # a cancelled call closes the connections as well
                if tasks:
                    await asyncio.wait(tasks)
            finally:
                if self._owns_cluster:
                    await self._cluster.close()

    async def _abort_open(self) -> None:
        """Abort the open transaction, so that readers of committed records need not wait for its timeout."""
        if self._transactions is not None and self._transactions.must_end:
            # After a failure, the coordinator aborts the transaction when its timeout has passed.
            with suppress(ClusterError, TimeoutError):
                async with asyncio.timeout(ABORT_AT_CLOSE_S):
                    await self.abort_transaction(ABORT_AT_CLOSE_S)

    def _stop(self, why: ClusterError) -> None:
        """Accept no more records, and fail all deliveries without an outcome."""
        self._buffer.closed = why
        if self._transaction is not None and not self._buffer.is_empty:
            self._transaction.failed(why)
        self._buffer.discard(why)
        self._topics.clear()

    def _broken(self, bug: BaseException) -> None:
        """Stop sending after a task failed, which is a bug, and report the error to everyone who waits."""
        error = ClusterError(ApiError.FAILED, f"the producer failed: {bug!r}")
        error.__cause__ = bug
        self._stop(error)

    def _begin_lane(self, topic: Topic, lane: Lane) -> None:
        self._tasks.begin(self._sender.run(topic, lane))

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

        Waits only for room in the buffer, and for the metadata of a topic or partition that is new to this producer.  A
        topic that does not exist is created if the cluster permits that.  A cancelled call has added nothing.

        Raises:
            ClusterError: UNKNOWN_TOPIC_OR_PARTITION; TIMED_OUT: no room or no metadata within `max_block_s`;
                MESSAGE_TOO_LARGE: the record does not fit into the buffer; PRODUCER_CLOSED; with transactions, also
                INVALID_TXN_STATE, TRANSACTION_ABORTABLE or PRODUCER_FENCED: the transaction accepts no records.
            ConfigError: the name of the topic is not valid text.
            TypeError, ValueError: the record is malformed, or its partition does not exist.
        """
        if (value is not None and type(value) is not bytes) or (key is not None and type(key) is not bytes):
            value, key = as_bytes("value", value), as_bytes("key", key)
        pairs = as_headers(headers) if headers else ()
        timestamp_ms = self._wall_ms() if timestamp_ms is None else as_timestamp_ms(timestamp_ms)
        if self._must_yield:  # before the record is added, so that a cancelled call has added nothing
            self._must_yield = False
            await asyncio.sleep(0)
        known = self._topics.known.get(topic)
        if known is None:
            known = await self._topics.get(topic)
        if partition is not None and partition >= len(known.lanes):
            known = await self._topics.grown(topic, partition)
        delivery = self._add(known, key, value, pairs, partition, timestamp_ms)
        return delivery or await self._add_later(topic, key, value, pairs, partition, timestamp_ms)

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
        """Send values, or `NewRecord`s, in their order.

        Raises: as `send`.  The records before the failed one have been added.
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
        """Return once every record sent so far is acknowledged or has failed, at the latest after its delivery timeout.

        Raises:
            ClusterError: deliveries failed, and the user has not read their outcome.  Each such failure is raised
                only once.
        """
        self._sender.flushes += 1
        try:
            for lane in self._topics.lanes():
                lane.changed.set()
            await self._buffer.decided_all()
        finally:
            self._sender.flushes -= 1
        self._buffer.raise_failures()

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.  Raises: ClusterError, as `send`."""
        return len((await self._topics.get(topic)).lanes)

    # --- transactions ---

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """Begin a transaction; commit it at the end of the block, or abort it if the block raises an error.

        If the abort of an earlier transaction was not completed, it is completed first.

        Raises:
            ClusterError: as `begin_transaction`, `commit_transaction` and `abort_transaction`.  A transaction whose
                commit is refused with TRANSACTION_ABORTABLE is aborted.
        """
        if self._of_transactions().is_aborting:
            await self.abort_transaction()
        self.begin_transaction()
        try:
            yield self
            await self.commit_transaction()
        except BaseException:
            if self._of_transactions().can_abort:
                with suppress(ClusterError):  # the error of the block is more useful
                    await self.abort_transaction()
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction: all records that are sent until its end belong to it.  Sends no request.

        Raises:
            ClusterError: INVALID_TXN_STATE: a transaction is open, or the producer has no transactional id;
                PRODUCER_FENCED; PRODUCER_CLOSED.
        """
        transactions = self._of_transactions()
        if self._buffer.closed is not None:
            raise self._buffer.closed.again()
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
                or was out of it since these records were read, so that other members may process them; INVALID_REQUEST:
                the consumer commits automatically, or has no group; TIMED_OUT; INVALID_TXN_STATE; PRODUCER_FENCED.
                After these errors, except INVALID_REQUEST and INVALID_TXN_STATE, and after a cancellation, the
                transaction can only be aborted.
            ConfigError, TypeError, ValueError: a topic or an offset is invalid; nothing was changed.
        """
        transactions = self._of_transactions()
        if transactions.refusal is not None:
            raise transactions.refusal
        check_partitions(offsets or ())
        given = None if offsets is None else {(*key,): as_offset(each) for key, each in offsets.items()}
        try:
            group, positions = consumer.offsets_to_send()
        except ClusterError as error:
            if error.code != ApiError.INVALID_REQUEST:
                transactions.failed(error)
            raise
        wanted = {(*key,): each for key, each in positions.items()} if given is None else given
        if wanted:
            await transactions.send_offsets(group, wanted, timeout_s)

    async def commit_transaction(self, timeout_s: float = MAX_BLOCK_S) -> None:
        """Deliver all records and offsets, then commit; return once the decision is durable.

        Meanwhile neither records nor offsets are accepted.
        timeout_s: time limit of the request that commits.  Before it, records and offsets have their own time limits.

        Raises:
            ClusterError: TRANSACTION_ABORTABLE: a part failed, and the transaction can only be aborted;
                PRODUCER_FENCED: another producer uses the transactional id; TIMED_OUT: the outcome is unknown, so
                repeat the call; INVALID_TXN_STATE: no transaction is open, or another call commits it now.
        """
        transactions = self._of_transactions()
        transactions.begin_commit()
        try:
            if not transactions.is_renewing:  # else an earlier call was cancelled after the commit
                with suppress(ClusterError):  # `end` reports the failure
                    await self.flush()
                if self._buffer.closed is not None:
                    raise self._buffer.closed.again()
                await transactions.offsets_sent()
                await transactions.end(timeout_s, commit=True)
            if transactions.is_renewing or self._topics.needs_identity:
                with suppress(ClusterError):  # the transaction is committed; the next one reports the failure
                    await transactions.renew(timeout_s)
                    self._topics.renumber(transactions.identity)
        finally:
            transactions.end_commit()

    async def abort_transaction(self, timeout_s: float = MAX_BLOCK_S) -> None:
        """Abort the open transaction; return once the abort is durable.  Records that were not sent yet are dropped.

        Waits for batches and offsets that are being sent, at most until their timeouts.  If any record or offset had no
        outcome yet, or after a failure, the producer gets its next epoch, so that leaders refuse batches that arrive
        late.

        Raises:
            ClusterError: PRODUCER_FENCED; TRANSACTION_ABORTABLE: another call aborts the transaction now; TIMED_OUT:
                repeat the call, or close the producer: the coordinator aborts the transaction after its timeout;
                INVALID_TXN_STATE: no transaction is open, or its commit has no answer yet.
        """
        transactions = self._of_transactions()
        if not transactions.can_abort:
            await transactions.end(timeout_s, commit=False)  # raises the reason
        is_clean = not transactions.has_failed and self._buffer.is_empty and not transactions.sends_offsets
        keeps_epoch = is_clean and not self._topics.needs_identity
        text = f"transactional id {transactions.transactional_id}: the transaction was aborted"
        with transactions.failing(ClusterError(ApiError.TRANSACTION_ABORTABLE, text)):  # no more records are sent
            with suppress(ClusterError):
                await self.flush()
            self._buffer.forget_failures()
            await transactions.offsets_sent()
            await transactions.abort(timeout_s, keeps_epoch=keeps_epoch)
            if not keeps_epoch:
                self._topics.renumber(transactions.identity)

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
    ) -> Delivery | None:
        """Add a record to the batch of its partition, and return its delivery; None if the buffer has no room."""
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers:
            size += sum(len(name) + len(data or b"") + HEADER_OVERHEAD_BYTES for name, data in headers)
        buffer = self._buffer
        if buffer.closed is not None:
            raise buffer.closed.again()
        if self._transaction is not None and (refusal := self._transaction.refusal) is not None:
            raise refusal
        if buffer.size + size > buffer.size_max:
            if size > buffer.size_max:
                raise buffer.too_large(size)
            return None
        lane = topic.lanes[self._partition(topic, key, size) if index is None else _checked(topic, index)]
        queue = lane.queue
        if not queue or queue[-1].size + size > lane.size_max:
            self._begin_batch(lane)
        batch = queue[-1]
        batch.records.append((timestamp_ms, key, value, headers))
        batch.size += size
        buffer.size += size
        return Delivery(batch, len(batch.records) - 1)

    def _partition(self, topic: Topic, key: bytes | None, size: int) -> int:
        count = len(topic.lanes)
        if self._partitioner is not None:
            return _checked(topic, self._partitioner(key, count))
        if key is not None:
            return (murmur2(key) & 0x7FFFFFFF) % count
        if topic.sticky_left <= 0:
            topic.sticky = self._draw(topic)
            topic.sticky_left = STICKY_BYTES
        topic.sticky_left -= size
        return topic.sticky

    def _draw(self, topic: Topic) -> int:
        """Draw one of the partitions whose leader is known; if no leader is known, one of all partitions.

        If the first one has no leader, the others get equal shares of its records.
        """
        count = len(topic.lanes)
        drawn = self._sources.random.randrange(count)
        if self._cluster.known_leader(topic.name, drawn) is not None:
            return drawn
        led = [index for index in range(count) if self._cluster.known_leader(topic.name, index) is not None]
        return self._sources.random.choice(led) if led else drawn

    def _begin_batch(self, lane: Lane) -> None:
        now = asyncio.get_running_loop().time()
        numbers = lane.sequence
        settings = self._settings
        ready_at = now + settings.linger_ms / 1000
        batch = Batch(numbers.topic, numbers.index, ready_at, now + settings.delivery_timeout_s)
        self._buffer.add(batch)
        lane.queue.append(batch)
        lane.changed.set()
        self._must_yield = True

    async def _add_later(
        self, name: str, key: bytes | None, value: bytes | None, headers: Headers, index: int | None, timestamp_ms: int
    ) -> Delivery:
        """Add the record once there is room."""
        try:
            async with asyncio.timeout(self._settings.max_block_s):
                while True:
                    await self._buffer.decided_one()
                    topic = self._topics.known.get(name) or await self._topics.get(name)
                    delivery = self._add(topic, key, value, headers, index, timestamp_ms)
                    if delivery is not None:
                        return delivery
        except TimeoutError as cause:
            raise self._buffer.no_room(self._settings.max_block_s) from cause


def _checked(topic: Topic, index: int) -> int:
    if not 0 <= index < len(topic.lanes):
        raise ValueError(f"topic {topic.name} has no partition {index}, only 0 to {len(topic.lanes) - 1}")
    return index
