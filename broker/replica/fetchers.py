"""The follower's side: copies from leaders, with one fetcher for each leader and one session for all its partitions.

Theory of operation
-------------------
A fetcher's round: send what changed in the session, wait (long poll), append the records, flush all of them under one
barrier.  The offsets of the next fetch then tell the leader what is on this disk.  So a fetch offset is a *flushed* end
(with write.caching the log counts as flushed when it is appended), and no other acknowledgement is needed.

`FollowerState.on_reply` judges each partition of a reply against the question that it answers.  A late reply, or one
about another leader epoch or position, changes nothing.

When a partition is added, or its position changes, while a fetch is parked at the leader, the session's next request is
sent at once on the fetcher's other connection, and the leader answers the parked one.  So a new leader hears from its
followers within a round trip, not within the long poll.

All replicas of this broker that a reassignment is adding share the cluster's throttle.  Copied bytes are counted when
they arrive; while they exceed the rate, such partitions are left out of the fetch.  Partitions that have caught up are
not left out: they are in the ISR or about to join it, and writes would wait for them.

Failures: a partition that its leader refuses is left out for a short while.  A connection that fails, or a session that
the leader does not know, leads to a full fetch after a back-off that doubles up to a bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from broker.core.fetch_session import NO_SESSION, FetcherSession, FetchTarget, PartitionKey, SessionRequest
from broker.core.partition import (
    UNKNOWN_END,
    AppendRecords,
    Divergence,
    FollowerState,
    LeaderReply,
    RestartAt,
    SentPosition,
    StandBack,
    TruncateTo,
)
from broker.kafka.api import FetchPartition, ForgottenPartition
from broker.log import PartitionLog, Refused
from broker.log.turns import Turn
from broker.replica.context import ReplicaContext
from broker.replica.replica import Replica
from broker.replica.throttle import ReplicationThrottle
from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError, CorruptStoreError, RemoteProtocolError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import fetch as wire
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import parse_header

log = get_logger("broker")

Resolve = Callable[[int], "tuple[str, int] | None"]
"""Broker id → host and port of its inter-broker listener; None while it is not registered."""

FLUSH_WAIT_S = 1.0
"""How long a round waits for its flush: a directory that hangs must not delay replicas in the others."""

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
    """A request under way; `line` is its connection."""

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
        self._standing_back: dict[PartitionKey, asyncio.TimerHandle] = {}
        self._held: dict[PartitionKey, None] = {}
        """Joining replicas that are left out until the throttle allows more."""
        self._in_step: set[PartitionKey] = set()
        """Joining replicas that have reached the leader's watermark."""
        self._news = asyncio.Event()
        self._lines: list[KafkaConnection | None] = [None, None]
        self._address: tuple[str, int] | None = None
        self._rounds: deque[_Round] = deque()
        self._failures = 0
        self._refusals: dict[PartitionKey, int] = {}
        """How often in a row each partition was refused."""
        self._refused_session = False
        self._stopping = False

    def __len__(self) -> int:
        return len(self._replicas)

    # -- what to copy

    def add(self, replica: Replica) -> None:
        """Copy this partition from its flushed end; also when its position or leader epoch has changed."""
        key = replica.partition
        self._replicas[key] = replica
        timer = self._standing_back.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._want(key, replica)

    def remove(self, key: PartitionKey) -> None:
        if self._replicas.pop(key, None) is None:
            return
        timer = self._standing_back.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._refusals.pop(key, None)
        self._held.pop(key, None)
        self._in_step.discard(key)
        self._session.drop(key)
        self._news.set()

    def reconsider(self, key: PartitionKey) -> None:
        """Check again whether the throttle applies to this replica, because it may have begun or ended joining."""
        if key in self._held:
            self._want(key, self._replicas[key])

    def release(self) -> None:
        """Fetch the replicas that the throttle held, because it allows more or its rate changed."""
        held, self._held = list(self._held), {}
        for key in held:
            if key not in self._standing_back:
                self._want(key, self._replicas[key])

    def _want(self, key: PartitionKey, replica: Replica) -> None:
        partition_log, follower = replica.log, replica.follower
        if partition_log is None or follower is None:
            return
        if partition_log.flushed_offset < partition_log.end_offset:
            self._session.drop(key)
            replica.ensure_flush()  # which calls `add` when it is done
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
        target = FetchTarget(follower.leader_epoch, end, epoch, partition_log.start_offset, size_max)
        if self._session.target(key) != target:
            self._session.want(key, target)
            self._news.set()

    # -- the loop

    async def run(self) -> None:
        """Copy until `stop`.  Raises only when cancelled."""
        while not self._stopping:
            try:
                await self._copy()
                self._failures = 0
            except (ClusterError, RemoteProtocolError) as error:
                await self._abandon()
                self._failures += 1
                if self._failures == 1:
                    log.info("fetching stopped", leader=self.leader_id, cause=error.message)
                await self._back_off()
        await self._abandon()

    async def stop(self) -> None:
        """End after the round that is being processed."""
        self._stopping = True
        self._news.set()
        for timer in self._standing_back.values():
            timer.cancel()
        await self._drop_connections()

    async def _copy(self) -> None:
        """Run rounds until something fails."""
        while not self._stopping:
            if not self._replicas and not self._rounds:
                self._news.clear()
                await self._drop_connections()
                self._session.reset()
                await self._news.wait()
                continue
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
            self._failures = 0

    async def _reply_or_news(self, reply: asyncio.Task[memoryview]) -> None:
        self._news.clear()
        if self._session.has_news:
            return
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({reply, news}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    async def _send(self) -> None:
        """Send the session's next request on the free connection."""
        line = 1 - self._rounds[0].line if self._rounds else 0
        connection = await self._connection(line)
        session = self._session
        request = session.build()
        # Nothing else may be sent until a full fetch is answered, so it does not wait.  If the leader has no room for a
        # session, each fetch is a full one and must wait.
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
        work = connection.call(int(Api.FETCH), wire.FOLLOWER_VERSION, body, timeout)
        self._rounds.append(_Round(request, asyncio.ensure_future(work), line))

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
                self._refusals.pop(key, None)
                if len(records):
                    outcome = partition_log.append_as_follower(records, follower.leader_epoch, now_ms())
                    if isinstance(outcome, Refused):
                        if key not in self._refusals:
                            log.warning("batches refused", replica=repr(replica), cause=outcome.reason)
                        self._stand_back(key)
                        return
                    self._context.counters.replicated_bytes += len(records)
                    if replica.is_joining:
                        self._context.counters.reassignment_in_bytes += len(records)
                        self._throttle.spend(len(records))
                    appended.append((key, replica, partition_log))
                if partition_log.end_offset < watermark:
                    self._in_step.discard(key)
                elif replica.is_joining:
                    self._in_step.add(key)
                if part.log_start_offset > partition_log.start_offset:
                    partition_log.advance_start_offset(min(part.log_start_offset, partition_log.end_offset))
                replica.follow_watermark(watermark)
            case TruncateTo(end):
                await self._truncate(replica, partition_log, follower, end)
                self._want(key, replica)
            case RestartAt(start, epoch):
                log.warning("log restarts", replica=repr(replica), end=partition_log.end_offset, start=start)
                if await self._context.logs.reset_to(partition_log, start, epoch) and replica.follower is not None:
                    replica.follower.on_truncated(start)  # its leader epoch may have changed meanwhile
                self._want(key, replica)
            case StandBack(code):
                if code not in _PASSING and key not in self._refusals:
                    log.warning("leader refuses", replica=repr(replica), leader=self.leader_id, code=code)
                self._stand_back(key)

    async def _truncate(self, replica: Replica, partition_log: PartitionLog, follower: FollowerState, end: int) -> None:
        before = partition_log.end_offset
        if end < partition_log.truncation_floor:
            log.warning("truncation below the watermark", replica=repr(replica), end=end)
            await self._context.logs.lower_truncation_floor(partition_log, end)
            if replica.follower is not follower or replica.log is not partition_log:
                return  # the role changed meanwhile
        partition_log.truncate_to(end)
        follower.on_truncated(partition_log.end_offset)
        self._context.counters.truncations += 1
        log.info("log truncated", replica=repr(replica), before=before, end=partition_log.end_offset)

    async def _flush(self, appended: list[tuple[PartitionKey, Replica, PartitionLog]]) -> None:
        """Make the appended records durable, under one barrier per directory; then fetch what comes next."""
        failure: DiskError | None = None
        unflushed = [each for _, _, each in appended if each.flushed_offset < each.end_offset]
        try:
            async with asyncio.timeout(FLUSH_WAIT_S):
                await self._context.logs.flush_all(unflushed)
        except TimeoutError:
            pass  # the flush goes on; `_want` leaves out the logs that wait for it
        except DiskError as error:
            failure = error
        for key, replica, partition_log in appended:
            if replica.log is not partition_log or self._replicas.get(key) is not replica:
                continue
            if failure is not None and partition_log.flushed_offset < partition_log.end_offset:
                replica.take_offline(failure)
            else:
                self._want(key, replica)

    # -- failures

    def _stand_back(self, key: PartitionKey) -> None:
        """Leave a partition out for a while, longer each time up to a bound, until a reply for it is accepted."""
        self._session.drop(key)
        refusals = self._refusals[key] = self._refusals.get(key, 0) + 1
        loop = asyncio.get_running_loop()
        timer = self._standing_back.pop(key, None)
        if timer is not None:
            timer.cancel()
        delay = self._delay(refusals)
        self._standing_back[key] = loop.call_later(delay, self._come_back, key)

    def _come_back(self, key: PartitionKey) -> None:
        self._standing_back.pop(key, None)
        replica = self._replicas.get(key)
        if replica is not None:
            self._want(key, replica)

    async def _back_off(self) -> None:
        """Wait, doubling up to the bound.  Only a stop or another address of the leader shortens the wait."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._delay(self._failures)
        while not self._stopping and loop.time() < deadline:
            self._news.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                return
            if self._resolve(self.leader_id) != self._address:
                return  # it restarted at another address

    def _delay(self, failures: int) -> float:
        low, high = self._limits.fetcher_backoff_min_ms, self._limits.fetcher_backoff_max_ms
        return min(high, low << min(failures - 1, 10)) / 1000

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


class Fetchers:
    """The fetchers of this broker, by leader.  Their tasks belong to the group given to `start`."""

    def __init__(self, context: ReplicaContext, resolve: Resolve) -> None:
        self.throttle = ReplicationThrottle(self._release)
        self._context = context
        self._resolve = resolve
        self._fetchers: dict[int, Fetcher] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._leaders: dict[PartitionKey, int] = {}
        self._group: asyncio.TaskGroup | None = None
        self._closed = False
        context.events.role_changed.subscribe(self.assign)
        context.events.flushed.subscribe(self.assign)
        context.events.assignment_changed.subscribe(self._reconsider)

    def start(self, group: asyncio.TaskGroup) -> None:
        self._group = group

    def assign(self, replica: Replica) -> None:
        """Copy from the leader that this replica follows, and from no other; from none if it does not follow."""
        follower = replica.follower
        key = replica.partition
        leader_id = follower.leader_id if follower is not None and replica.log is not None else -1
        before = self._leaders.get(key, -1)
        if before not in (-1, leader_id):
            self._fetchers[before].remove(key)
        if leader_id < 0 or self._closed:
            self._leaders.pop(key, None)
            return
        self._leaders[key] = leader_id
        self._fetcher(leader_id).add(replica)

    def _reconsider(self, replica: Replica) -> None:
        leader_id = self._leaders.get(replica.partition, -1)
        if leader_id >= 0:
            self._fetchers[leader_id].reconsider(replica.partition)

    def _release(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.release()

    def counts(self) -> dict[int, int]:
        """Return for each leader the number of partitions copied from it."""
        return {leader_id: len(fetcher) for leader_id, fetcher in self._fetchers.items()}

    def _fetcher(self, leader_id: int) -> Fetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            assert self._group is not None, "start() comes first"
            fetcher = Fetcher(leader_id, self._context, self._resolve, self.throttle)
            self._fetchers[leader_id] = fetcher
            self._tasks[leader_id] = self._group.create_task(fetcher.run(), name=f"fetcher-{leader_id}")
        return fetcher

    async def close(self) -> None:
        """Stop all fetchers, and start none any more."""
        self._closed = True
        await self.stop()

    async def stop(self) -> None:
        """Stop all fetchers.  A replica that is assigned later starts one again."""
        self.throttle.stop()
        for fetcher in self._fetchers.values():
            await fetcher.stop()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks)
        self._fetchers.clear()
        self._tasks.clear()
        self._leaders.clear()


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
