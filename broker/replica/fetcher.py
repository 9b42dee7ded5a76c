"""Copies the partitions that one broker leads: one fetch loop with one session for all of them.

Theory of operation
-------------------
A round of a fetcher sends the changes of the session, waits (long poll), appends the records, and flushes all of them
under one barrier for each directory.  The offsets of the next fetch then report to the leader which records are on this
disk.  So a fetch offset is a *flushed* end, and no other acknowledgement is needed.  With write.caching, appended
records count as flushed (`PartitionLog.flushed_offset`).

`FollowerState.on_reply` compares each partition of a reply with the request that it answers.  A late reply, or one
about another leader epoch or position, changes nothing.

A partition may be added, or its position may change, while a fetch is parked at the leader.  Then the session's next
request is sent immediately on the fetcher's other connection, and the leader answers the parked one.  A new leader
therefore gets the positions of its followers within a round trip, not within the long poll.

While a log is being truncated, its partition is left out of the rounds.  So a directory that hangs delays only the
replicas that it holds.

A position counts only under the broker epoch that its fetch names.  So the session also starts over when this process
has registered again.

Failures: a partition that its leader refuses is left out for a short while.  A session that the leader does not know
leads to a full fetch immediately.  A connection that fails leads to a full fetch after a back-off that doubles up to a
bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from broker.core.fetch_session import NO_SESSION, FetcherSession, FetchTarget, PartitionKey, SessionRequest
from broker.core.partition import (
    UNKNOWN_END,
    AppendRecords,
    DelayFetch,
    Divergence,
    FollowerState,
    LeaderReply,
    RestartAt,
    SentPosition,
    TruncateTo,
)
from broker.kafka.api import NO_EPOCH, FetchPartition, ForgottenPartition
from broker.log import PartitionLog, Refused
from broker.replica.context import ReplicaContext
from broker.replica.replica import Replica
from broker.replica.throttle import ReplicationThrottle
from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError, CorruptStoreError, RemoteProtocolError
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import fetch as wire
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import parse_header

logger = get_logger("broker")

Resolve = Callable[[int], "tuple[str, int] | None"]
"""Broker id → host and port of its inter-broker listener; None while it is not registered."""

FLUSH_WAIT_S = 1.0
"""Maximum time that a round waits for its flush, or for a truncation.  It is short, because a directory that hangs must
not delay replicas in other directories."""

_PASSING = frozenset(
    {
        KafkaCode.NOT_LEADER_OR_FOLLOWER,
        KafkaCode.FENCED_LEADER_EPOCH,
        KafkaCode.UNKNOWN_LEADER_EPOCH,
        KafkaCode.UNKNOWN_TOPIC_ID,
    }
)
"""Refusals that only mean that one side has newer metadata."""


@dataclass(slots=True)
class _Round:
    """A request under way.  line: the number of its connection, 0 or 1."""

    request: SessionRequest
    reply: asyncio.Task[memoryview]
    line: int


class Fetcher:
    """Copies from one leader broker; owned by `Fetchers`."""

    def __init__(
        self, leader_id: int, context: ReplicaContext, resolve: Resolve, throttle: ReplicationThrottle
    ) -> None:
        self.leader_id = leader_id
        self._context = context
        self._throttle = throttle
        self._limits = context.limits
        self._resolve = resolve
        self._session = FetcherSession()
        self._replicas: dict[PartitionKey, Replica] = {}
        self._delayed: dict[PartitionKey, asyncio.TimerHandle] = {}
        self._held: dict[PartitionKey, None] = {}
        """Joining replicas that are left out until the throttle allows more."""
        self._in_step: set[PartitionKey] = set()
        """Joining replicas that have reached the leader's watermark."""
        self._news = asyncio.Event()
        """Set when there may be something to send, and when a reply has arrived."""
        self._lines: list[KafkaConnection | None] = [None, None]
        self._address: tuple[str, int] | None = None
        self._rounds: deque[_Round] = deque()
        self._failing: Backoff | None = None
        """Set while requests to the leader fail."""
        self._refusals: dict[PartitionKey, Backoff] = {}
        """The back-offs of partitions that the leader refused, or whose batches this broker refused."""
        self._truncations: dict[PartitionKey, asyncio.Task[None]] = {}
        """Logs that are being truncated or started over; they are left out of the fetch meanwhile."""
        self._bug: BaseException | None = None
        """The unexpected failure of a truncation, which `run` raises."""
        self._refused_session = False
        self._broker_epoch = NO_EPOCH
        """The registration of this broker under which the session began."""
        self._stopping = False

    def __len__(self) -> int:
        return len(self._replicas)

    # -- the partitions to copy

    def add(self, replica: Replica) -> None:
        """Copy this partition from its flushed end.  Call it again when its position or leader epoch has changed."""
        key = replica.partition
        self._replicas[key] = replica
        timer = self._delayed.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._want(key, replica)

    def remove(self, key: PartitionKey) -> None:
        """Stop copying this partition, if it is being copied."""
        if self._replicas.pop(key, None) is None:
            return
        timer = self._delayed.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._refusals.pop(key, None)
        self._held.pop(key, None)
        self._in_step.discard(key)
        self._session.drop(key)
        self._news.set()

    def reconsider(self, key: PartitionKey) -> None:
        """Fetch a replica that the throttle held, unless it must still wait: it may no longer be joining."""
        if key in self._held:
            self._want(key, self._replicas[key])

    def release(self) -> None:
        """Fetch the replicas that the throttle held, because the throttle allows more, or its rate has changed."""
        held, self._held = list(self._held), {}
        for key in held:
            if key not in self._delayed:
                self._want(key, self._replicas[key])

    def _want(self, key: PartitionKey, replica: Replica) -> None:
        if self._replicas.get(key) is not replica:
            return  # the replica was removed while its log was truncated or flushed
        if key in self._truncations:
            self._session.drop(key)
            return  # `_on_truncated` continues
        partition_log, follower = replica.log, replica.follower
        if partition_log is None or follower is None:
            return
        if not partition_log.is_settled:
            self._session.drop(key)
            replica.report_when_flushed()  # the report calls `add`
            return
        size_max = self._limits.fetch_partition_bytes
        self._held.pop(key, None)
        if replica.is_joining and key not in self._in_step:
            if self._throttle.must_wait():
                self._held[key] = None
                self._session.drop(key)
                self._news.set()
                return
            size_max = self._throttle.portion(size_max)
        end = partition_log.end_offset
        epoch = partition_log.epochs.last_epoch
        target = FetchTarget(follower.leader_epoch, end, epoch, partition_log.durable_start_offset, size_max)
        if self._session.target(key) != target:
            self._session.want(key, target)
            self._news.set()

    # -- the loop

    async def run(self) -> None:
        """Copy until `stop`.

        Failures of the leader or of a disk do not end it.  It raises only the unexpected failure of a truncation.
        """
        try:
            while not self._stopping:
                try:
                    await self._copy()
                    self._failing = None
                except (ClusterError, RemoteProtocolError) as error:
                    await self._abandon()
                    if self._failing is None:
                        self._failing = self._new_backoff()
                        logger.info("fetching stopped", leader=self.leader_id, cause=error.message)
                    await self._back_off(self._failing.next_s())
            await self._abandon()
            if self._truncations:
                await asyncio.wait(self._truncations.values())
        finally:
            for truncation in self._truncations.values():
                truncation.cancel()

    async def stop(self) -> None:
        """End after the round that is being processed."""
        self._stopping = True
        self._news.set()
        for timer in self._delayed.values():
            timer.cancel()
        await self._drop_connections()

    async def _copy(self) -> None:
        """Run rounds until something fails, or until `stop`."""
        while not self._stopping:
            if self._bug is not None:
                raise self._bug
            if not self._replicas and not self._rounds:
                self._news.clear()
                await self._drop_connections()
                self._session.reset()
                await self._news.wait()
                continue
            await self._renew_session()
            if not self._rounds:
                await self._send()
            first = self._rounds[0]
            if len(self._rounds) == 1 and self._session.may_build:
                await self._reply_or_news(first.reply)
                if not first.reply.done():
                    if self._session.has_news and not self._stopping:
                        await self._send()
                    continue
            body = await first.reply
            self._rounds.popleft()
            await self._on_reply(first.request, wire.decode_response(body, wire.FOLLOWER_VERSION))
            self._failing = None

    async def _renew_session(self) -> None:
        """Start over with a full fetch if this process has registered again.

        A position counts only under the newest registration, and an incremental fetch does not name partitions whose
        position is unchanged.  Without a full fetch, a replica to which nobody writes would never join the ISR again.
        """
        epoch = self._context.cluster.own_epoch
        if epoch != self._broker_epoch:
            self._broker_epoch = epoch
            await self._abandon_rounds()
            self._session.reset()

    async def _reply_or_news(self, reply: asyncio.Future[memoryview]) -> None:
        self._news.clear()
        if not self._session.has_news and not reply.done():
            await self._news.wait()  # the end of the reply also sets this event

    async def _send(self) -> None:
        """Send the session's next request on the free connection."""
        line = 1 - self._rounds[0].line if self._rounds else 0
        connection = await self._connection(line)
        session = self._session
        request = session.build()
        # Until a full fetch is answered, nothing else may be sent, so a full fetch does not wait.  If the leader has no
        # room for a session, each fetch is a full one and must wait.
        wait_ms = 0 if request.is_full and not self._refused_session else self._limits.fetcher_wait_ms
        body = wire.encode_request(
            wire.FOLLOWER_VERSION,
            [_partition(key, target) for key, target in request.targets],
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=self._limits.fetcher_response_bytes,
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            forgotten=[ForgottenPartition(key.topic_id, None, key.partition_index) for key in request.forgotten],
            replica_id=self._context.broker_id,
            broker_epoch=self._context.cluster.own_epoch,
        )
        timeout = (wait_ms + self._limits.fetcher_timeout_ms) / 1000
        reply = asyncio.ensure_future(connection.call(int(Api.FETCH), wire.FOLLOWER_VERSION, body, timeout))
        reply.add_done_callback(self._on_end_of_reply)
        self._rounds.append(_Round(request, reply, line))

    def _on_end_of_reply(self, reply: asyncio.Future[memoryview]) -> None:
        if not reply.cancelled():
            reply.exception()  # read it: nobody awaits a reply whose connection breaks after `run` was cancelled
        self._news.set()

    # -- replies

    async def _on_reply(self, request: SessionRequest, reply: wire.FetchedReply) -> None:
        if reply.error_code != KafkaCode.NONE:
            # The leader does not know the session or its epoch: requests under way will also fail.
            await self._abandon_rounds()
            self._session.reset()
            return
        self._session.on_reply(request, reply.session_id)
        if request.is_full:
            self._refused_session = reply.session_id == NO_SESSION
        appended: list[tuple[PartitionKey, Replica, PartitionLog]] = []
        turn = Turn()
        for part in reply.partitions:
            await turn.passed()
            if part.topic_id is None:
                continue
            key = PartitionKey(part.topic_id, part.index)
            replica = self._replicas.get(key)
            target = self._target_of_reply(key)
            if replica is None or target is None or replica.log is None or replica.follower is None:
                continue
            if key in self._truncations:
                continue
            try:
                await self._apply(key, replica, replica.log, replica.follower, target, part, appended)
            except (DiskError, CorruptStoreError) as error:
                replica.take_offline(error)
        await self._flush(appended)

    def _target_of_reply(self, key: PartitionKey) -> FetchTarget | None:
        """Return the target that the leader knew when it made the reply that is being processed."""
        if self._rounds and key in self._rounds[0].request.before:
            return self._rounds[0].request.before[key]
        return self._session.sent_target(key)

    async def _apply(
        self,
        key: PartitionKey,
        replica: Replica,
        partition_log: PartitionLog,
        follower: FollowerState,
        target: FetchTarget,
        part: wire.FetchedPartition,
        appended: list[tuple[PartitionKey, Replica, PartitionLog]],
    ) -> None:
        records = part.records
        answer = LeaderReply(
            part.error_code,
            part.high_watermark,
            part.log_start_offset,
            Divergence(part.diverging_epoch, part.diverging_end) if part.diverging_epoch >= 0 else None,
            parse_header(records).base_offset if len(records) >= 61 else UNKNOWN_END,
        )
        sent = SentPosition(target.leader_epoch, target.offset, target.last_fetched_epoch)
        step = follower.on_reply(sent, answer, partition_log.start_offset, partition_log.epochs)
        match step:
            case AppendRecords(watermark):
                if len(records):
                    outcome = partition_log.append_as_follower(records, follower.leader_epoch, now_ms())
                    if isinstance(outcome, Refused):
                        if key not in self._refusals:
                            logger.warning("batches refused", replica=repr(replica), cause=outcome.reason)
                        self._delay_partition(key)
                        return
                    self._context.counters.replicated_bytes += len(records)
                    if replica.is_joining:
                        self._context.counters.reassignment_in_bytes += len(records)
                        self._throttle.spend(len(records))
                    appended.append((key, replica, partition_log))
                self._refusals.pop(key, None)
                if partition_log.end_offset < watermark:
                    self._in_step.discard(key)
                elif replica.is_joining:
                    self._in_step.add(key)
                replica.follow_watermark(watermark)  # first, because the start never exceeds the watermark
                replica.advance_start(part.log_start_offset)
                if target.log_start < partition_log.durable_start_offset and not len(records):
                    self._want(key, replica)  # the leader does not know that retention moved the start on this broker
            case TruncateTo(end):
                await self._begin_truncation(key, self._truncate(replica, partition_log, follower, end))
            case RestartAt(start, epoch):
                logger.warning("log restarts", replica=repr(replica), end=partition_log.end_offset, start=start)
                await self._begin_truncation(key, self._restart(replica, partition_log, follower, start, epoch))
            case DelayFetch(code):
                if code not in _PASSING and key not in self._refusals:
                    logger.warning("leader refuses", replica=repr(replica), leader=self.leader_id, code=code)
                self._delay_partition(key)

    async def _begin_truncation(self, key: PartitionKey, work: Coroutine[Any, Any, None]) -> None:
        """Begin to truncate a log, and wait briefly for the end.  The log is fetched again once it is truncated."""
        truncation = self._truncations[key] = asyncio.get_running_loop().create_task(work)
        truncation.add_done_callback(partial(self._on_truncated, key, self._replicas[key]))
        if len(self._truncations) == 1:  # if others still run, a directory hangs, and more waits would delay the round
            await asyncio.wait([truncation], timeout=FLUSH_WAIT_S)
        if not truncation.done():
            self._session.drop(key)

    def _on_truncated(self, key: PartitionKey, replica: Replica, truncation: asyncio.Task[None]) -> None:
        del self._truncations[key]
        error = None if truncation.cancelled() else truncation.exception()
        if isinstance(error, DiskError | CorruptStoreError):
            replica.take_offline(error)
        elif error is not None:
            self._bug = error
            self._news.set()
        if (newest := self._replicas.get(key)) is not None:
            self._session.refused(key)  # if the log has not changed, the leader must answer the same position again
            self._want(key, newest)

    async def _restart(
        self, replica: Replica, partition_log: PartitionLog, follower: FollowerState, start: int, epoch: int
    ) -> None:
        # The replica may follow another leader by now.  Another fetcher has then sent the position of the log to that
        # leader.  If the log restarted at another position, that fetcher would drop the replies.
        is_wanted = partial(_follows, replica, follower)
        if await self._context.logs.reset_to(partition_log, start, epoch, is_wanted):
            replica.on_truncated()

    async def _truncate(self, replica: Replica, partition_log: PartitionLog, follower: FollowerState, end: int) -> None:
        before = partition_log.end_offset
        if end < partition_log.truncation_floor:
            logger.warning("truncation below the watermark", replica=repr(replica), end=end)
            is_wanted = partial(_follows, replica, follower)
            await self._context.logs.lower_truncation_floor(partition_log, end, is_wanted)
        await self._context.logs.prepare_truncation(partition_log, end)
        if replica.follower is not follower or replica.log is not partition_log:
            return  # the role changed meanwhile
        if end < max(partition_log.truncation_floor, partition_log.start_offset):
            return  # the saved watermark or retention has passed `end` meanwhile; the next reply diverges again
        partition_log.truncate_to(end)
        replica.on_truncated()
        self._context.counters.truncations += 1
        logger.info("log truncated", replica=repr(replica), before=before, end=partition_log.end_offset)

    async def _flush(self, appended: list[tuple[PartitionKey, Replica, PartitionLog]]) -> None:
        """Make the appended records durable, under one barrier per directory; then fetch the next records."""
        if unflushed := [each for _, _, each in appended if each.flushed_offset < each.end_offset]:
            try:
                async with asyncio.timeout(FLUSH_WAIT_S):
                    await self._context.logs.flush_all(unflushed)
            except TimeoutError:
                pass  # the flush continues; `_want` leaves out the logs that wait for it
            except DiskError:
                pass  # reported: the replicas of that directory are offline now, and the others continue
        for key, replica, partition_log in appended:
            if replica.log is partition_log:
                self._want(key, replica)

    # -- failures

    def _delay_partition(self, key: PartitionKey) -> None:
        """Leave a partition out for a back-off, which grows up to a bound until one of its replies is accepted."""
        self._session.refused(key)
        if (backoff := self._refusals.get(key)) is None:
            backoff = self._refusals[key] = self._new_backoff()
        loop = asyncio.get_running_loop()
        timer = self._delayed.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._delayed[key] = loop.call_later(backoff.next_s(), self._end_delay, key)

    def _end_delay(self, key: PartitionKey) -> None:
        self._delayed.pop(key, None)
        replica = self._replicas.get(key)
        if replica is not None:
            self._want(key, replica)

    async def _back_off(self, pause_s: float) -> None:
        """Wait.  Only a stop or another address of the leader shortens the wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + pause_s
        while not self._stopping and loop.time() < deadline:
            self._news.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                return
            if self._resolve(self.leader_id) != self._address:
                return  # the leader restarted at another address

    def _new_backoff(self) -> Backoff:
        return Backoff(self._limits.fetcher_backoff_min_ms / 1000, self._limits.fetcher_backoff_max_ms / 1000)

    async def _connection(self, line: int) -> KafkaConnection:
        address = self._resolve(self.leader_id)
        if address is None:
            raise ClusterError(
                ApiError.BROKER_UNAVAILABLE, f"broker {self.leader_id} is not registered", retriable=True
            )
        if address != self._address:
            await self._drop_connections()
            self._address = address
        connection = self._lines[line]
        if connection is None or not connection.is_open:
            connection = KafkaConnection(*address, client_id="quorumlog-replica")
            self._lines[line] = connection
            await connection.connect(self._limits.fetcher_timeout_ms / 1000)
        return connection

    async def _abandon_rounds(self) -> None:
        while self._rounds:
            reply = self._rounds.popleft().reply
            reply.cancel()
            await asyncio.wait({reply})
            if not reply.cancelled():
                reply.exception()  # read it, or asyncio logs it

    async def _abandon(self) -> None:
        await self._abandon_rounds()
        await self._drop_connections()
        self._session.reset()

    async def _drop_connections(self) -> None:
        for line, connection in enumerate(self._lines):
            self._lines[line] = None
            if connection is not None and connection.is_open:
                await connection.close()


def _follows(replica: Replica, follower: FollowerState) -> bool:
    """Return whether the replica still follows the leader for which it has this state."""
    return replica.follower is follower


def _partition(key: PartitionKey, target: FetchTarget) -> FetchPartition:
    return FetchPartition(
        topic_id=key.topic_id,
        topic=None,
        index=key.partition_index,
        fetch_offset=target.offset,
        max_bytes=target.max_bytes,
        current_leader_epoch=target.leader_epoch,
        last_fetched_epoch=target.last_fetched_epoch,
        log_start_offset=target.log_start,
    )
