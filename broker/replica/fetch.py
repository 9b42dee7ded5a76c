"""The leader's side of fetches: sessions, reads, long polls.

Theory of operation
-------------------
Every fetch has a session object: one that is kept (KIP-227), or one that lives as long as the request.  Only the
session's `ready` partitions are visited, so the cost of an incremental fetch depends on the changes, not on the size of
the session.  A partition without news leaves `ready`.  It returns when its replica touches the session, and the replica
decides whether that wakes the parked fetch (`Replica._touch`).  Answers also depend on values that touch no replica,
such as the isolation level.  If such a value changes, all partitions of the session return to `ready`
(`LeaderSession.take_stance`).  So a session reports the same changes as full fetches would, with one exception: if only
retention has moved a log start, the new start is reported together with the next other change.

A follower that truncates its log, or whose position has changed meanwhile, ignores the watermark and the log start in a
reply.  So the first reply to each position that it sends repeats both, at the latest when the wait ends.

A request is answered when `min_bytes` of records are available, or when a partition has a result that cannot wait.
Such a result is a new error, a divergence, a preferred replica, or news for which clients wait (`_is_awaited`).  The
request is also answered when its time is up, and when the session's next request arrives: the fetcher then waits for
the reply to the next request.

Positions are noted before anything is read: a follower's fetch is first of all an acknowledgement.

Reads may be awaited.  After each read the replica must still have the same role (`_Served.has_ended`), and the request
must still be the newest of its session.  Otherwise the records are not sent.

With `replica.selector=rack-aware`, a leader refers a consumer that states its rack to a follower in that rack
(KIP-392).  Followers serve such consumers up to the watermark that they know.  Only leaders serve other consumers.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from broker.core.fetch_session import NO_SESSION, SessionCache, SessionPartition, never_parked
from broker.core.nearest import ReadReplica, nearest_replica
from broker.core.partition import Divergence, FollowerState, LeaderState, check_position
from broker.kafka.api import CONSUMER, FetchPartition, FetchPlan, FetchReply, FetchResult, ForgottenPartition
from broker.log import PartitionLog
from broker.replica.replica import AskedKey, AskedPartition, Replica, Session
from broker.replica.table import ReplicaTable
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode

_SESSION_ID_MAX = 2**31 - 2


class _Served(NamedTuple):
    """The replica that answers for a partition, and its state as the leader or as a follower."""

    replica: Replica
    role: LeaderState | FollowerState
    log: PartitionLog

    def has_ended(self) -> bool:
        """Return whether the role has ended meanwhile, or the leader must confirm the follower's log again."""
        if isinstance(self.role, FollowerState):
            return self.replica.follower is not self.role or not self.role.agrees
        return self.replica.leader is not self.role


class _Look(NamedTuple):
    """The result of looking at the ready partitions of a fetch without a read.

    is_read_worthwhile: the partitions may have a result that ends the wait.
    has_enough: the partitions have `min_bytes` of records.  False for followers, and for a `min_bytes` of 0 or 1: then
        only a read decides.
    """

    is_read_worthwhile: bool
    has_enough: bool


class FetchService:
    """Serves the fetches of consumers and followers.  random: draws the ids of sessions."""

    def __init__(self, table: ReplicaTable, random: Random) -> None:
        self._table = table
        self._cluster = table.context.cluster
        self._counters = table.context.counters
        self._limits = table.context.limits
        self._sessions: SessionCache[AskedKey] = SessionCache(
            self._limits.sessions,
            self._limits.session_idle_ms,
            lambda: random.randint(1, _SESSION_ID_MAX),
            self._on_session_closed,
            self._limits.session_partitions,
        )
        self._parked: dict[Session, asyncio.Future[None]] = {}
        self._closed = False
        table.context.events.broker_left.subscribe(self._sessions.close_replica)

    @property
    def parked(self) -> int:
        """Number of parked fetches."""
        return len(self._parked)

    @property
    def sessions(self) -> SessionCache[AskedKey]:
        return self._sessions

    def close(self) -> None:
        """Answer every parked fetch with the available records."""
        self._closed = True
        for session in list(self._parked):
            session.wake()

    async def fetch(self, plan: FetchPlan) -> FetchReply:
        """Serve one request, within its bounded wait.  A cancellation leaves nothing behind."""
        loop = asyncio.get_running_loop()
        session = self._sessions.begin(
            plan.session_id, plan.session_epoch, plan.replica_id, now_ms(), len(plan.partitions), by_id=plan.by_id
        )
        if isinstance(session, KafkaCode):
            return FetchReply(int(session))
        session.wake()  # an older request of the session may be parked
        epoch = session.next_epoch
        self._take_request(session, plan)
        if not self._sessions.count(session):
            return FetchReply(int(KafkaCode.FETCH_SESSION_ID_NOT_FOUND))  # the session lists too many partitions now
        if plan.replica_id == CONSUMER and not session.full and not session.entries:
            self._sessions.close(session.session_id, CONSUMER)
            return FetchReply(int(KafkaCode.NONE))  # the consumer forgot its last partition, and needs no session
        deadline = loop.time() + min(max(plan.max_wait_ms, 0), self._limits.max_wait_ms) / 1000
        try:
            while session.next_epoch == epoch:
                last_chance = self._closed or loop.time() >= deadline or plan.min_bytes <= 0
                last_chance = last_chance or len(self._parked) >= self._limits.parked_fetches
                look = self._look(session, plan)
                if last_chance or look.is_read_worthwhile:
                    results, enough = await self._collect(session, plan)
                    if session.next_epoch != epoch:
                        break
                    if enough or look.has_enough or last_chance:
                        return self._reply(session, plan, results)
                if session.session_id == NO_SESSION:
                    self._watch_all(session)
                await self._park(session, deadline)
            return FetchReply(int(KafkaCode.NONE), session.session_id)  # a newer request of the session took over
        finally:
            if session.session_id == NO_SESSION:
                self._unwatch_all(session)
            elif session.full:
                self._sessions.close(session.session_id, session.replica_id)  # the client has not received the id

    async def _park(self, session: Session, deadline: float) -> None:
        """Wait until the session is woken, or until the time is up."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._parked[session] = future
        session.wake = partial(_complete, future)
        timer = loop.call_at(deadline, _complete, future)
        try:
            await future
        finally:
            timer.cancel()
            if self._parked.get(session) is future:
                del self._parked[session]
                session.wake = never_parked

    # -- the request

    def _take_request(self, session: Session, plan: FetchPlan) -> None:
        for forgotten in plan.forgotten:
            key = _asked(forgotten)
            if session.remove(key):
                self._unwatch(session, key)
        for partition in plan.partitions:
            key = _asked(partition)
            session.put(
                SessionPartition(
                    key,
                    partition.fetch_offset,
                    partition.max_bytes,
                    partition.current_leader_epoch,
                    partition.last_fetched_epoch,
                    partition.log_start_offset,
                )
            )
            if session.session_id != NO_SESSION:
                self._watch(session, key)
            if plan.replica_id != CONSUMER:
                self._acknowledge(session, session.entries[key], plan)

    def _acknowledge(self, session: Session, entry: AskedPartition, plan: FetchPlan) -> None:
        """Count a follower's position as its acknowledgement, if it agrees with the leader's epoch and history."""
        found = self._serving(entry, plan.replica_id)
        if isinstance(found, KafkaCode):
            return
        if self._check(entry, plan.replica_id, found) is not KafkaCode.NONE:
            return
        contact = session.contact if session.session_id != NO_SESSION else None
        found.replica.on_fetch(plan.replica_id, plan.broker_epoch, entry.fetch_offset, contact)
        found.replica.on_log_start(plan.replica_id, plan.broker_epoch, entry.log_start_offset)

    def _watch_all(self, session: Session) -> None:
        for key in session.entries:
            self._watch(session, key)

    def _watch(self, session: Session, key: AskedKey) -> None:
        replica = self._table.find(*key)
        if replica is not None:
            replica.sessions[session] = key

    def _on_session_closed(self, session: Session) -> None:
        """Let a fetch that waits in the session look at every partition again, and continue without the session."""
        session.ready.update(dict.fromkeys(session.entries))  # until the fetch continues no replica touches the session
        self._unwatch_all(session)

    def _unwatch_all(self, session: Session) -> None:
        for key in session.entries:
            self._unwatch(session, key)
        session.wake()

    def _unwatch(self, session: Session, key: AskedKey) -> None:
        replica = self._table.find(*key)
        if replica is not None:
            replica.unwatch(session)

    # -- the reply

    def _look(self, session: Session, plan: FetchPlan) -> _Look:
        """Look at the ready partitions without a read: a small append also wakes a consumer that waits for many bytes.

        As in Kafka, a partition counts with the bytes that the consumer accepts of it, even if a reply holds fewer
        because the next batch does not fit, or is in another segment.
        """
        if plan.min_bytes <= 1 or plan.replica_id != CONSUMER:
            return _Look(is_read_worthwhile=True, has_enough=False)
        size = 0
        has_other_news = False
        for key in list(session.ready):
            entry = session.entries[key]
            found = self._serving(entry, plan.replica_id, plan.rack)
            verdict = found if isinstance(found, KafkaCode) else self._check(entry, plan.replica_id, found)
            if isinstance(found, KafkaCode) or verdict is not KafkaCode.NONE:
                has_other_news = has_other_news or verdict != entry.sent_code
                continue
            if self._nearest(entry, plan, found) is not None:
                has_other_news = True
                continue
            try:
                there = found.log.size_between(entry.fetch_offset, _readable_end(found, plan))
            except (DiskError, CorruptStoreError):
                has_other_news = True  # the read reports the error
                continue
            if there == 0 and session.session_id == NO_SESSION:
                del session.ready[key]
            size += min(there, max(entry.max_bytes, 0))
        has_enough = size >= self._wanted_bytes(plan)
        return _Look(has_other_news or has_enough, has_enough)

    def _wanted_bytes(self, plan: FetchPlan) -> int:
        return max(1, min(plan.min_bytes, plan.max_bytes, self._limits.fetch_response_max_bytes))

    async def _collect(self, session: Session, plan: FetchPlan) -> tuple[dict[AskedKey, FetchResult], bool]:
        """Return the results of the ready partitions, and whether they are enough to answer now.

        The caller drops the results if a newer request of the session arrived during a read.
        """
        epoch = session.next_epoch
        session.take_stance(self._stance(plan))
        budget = min(plan.max_bytes, self._limits.fetch_response_max_bytes)
        results: dict[AskedKey, FetchResult] = {}
        size = 0
        urgent = False
        for key in list(session.ready):
            entry = session.entries[key]
            result = await self._evaluate(session, entry, plan, max(budget - size, 0), at_least_one=size == 0)
            if session.next_epoch != epoch:
                break
            code = result.error_code
            if code != KafkaCode.NONE:
                urgent = urgent or code != entry.sent_code
                results[key] = result
            elif result.diverging_epoch >= 0 or result.preferred_replica >= 0:
                urgent = True
                results[key] = result
            elif len(result.records):
                size += len(result.records)
                results[key] = result
            elif size < budget and (size == 0 or entry.max_bytes > 0):  # otherwise it was not read
                is_follower = plan.replica_id != CONSUMER
                said = (entry.sent_high_watermark, entry.sent_log_start)
                is_news = said != (result.high_watermark, result.log_start_offset)
                if is_news or (is_follower and entry.is_named_again):
                    results[key] = result
                    urgent = urgent or (is_follower and self._is_awaited(entry, result))
                else:
                    session.ready.pop(key, None)
        return results, urgent or size >= self._wanted_bytes(plan)

    def _stance(self, plan: FetchPlan) -> tuple[object, ...]:
        context = self._table.context
        return (
            context.is_serving(),
            context.reads_from_followers,
            self._cluster.own_epoch,
            plan.read_committed,
            plan.rack,
        )

    def _is_awaited(self, entry: AskedPartition, result: FetchResult) -> bool:
        """Return whether clients may be waiting until this follower receives this result.

        A deletion waits until every active replica has the new log start.  A consumer of this follower waits for the
        records that the new watermark commits.
        """
        if 0 <= entry.sent_log_start < result.log_start_offset:
            return True
        return self._table.context.reads_from_followers and 0 <= entry.sent_high_watermark < result.high_watermark

    def _reply(self, session: Session, plan: FetchPlan, results: dict[AskedKey, FetchResult]) -> FetchReply:
        """Make the reply, and note the values that it sends.  A full fetch also gets partitions without news."""
        for key, result in results.items():
            # A partition with records stays ready, because more records may follow.  A partition with an error or a
            # preferred replica also stays ready: nothing informs the session when the error or the preference ends.
            if result.error_code == KafkaCode.NONE and not len(result.records) and result.preferred_replica < 0:
                session.ready.pop(key, None)
        if session.full:
            # Partitions whose records had no room are answered without records, and stay ready.
            for key, entry in session.entries.items():
                if key not in results:
                    results[key] = self._without_records(entry, plan)
            results = {key: results[key] for key in session.entries}
        for key, result in results.items():
            entry = session.entries[key]
            entry.sent(result.error_code, result.high_watermark, result.log_start_offset)
            self._count(session, key, len(result.records))
        session.full = False
        return FetchReply(int(KafkaCode.NONE), session.session_id, tuple(results.values()))

    def _count(self, session: Session, key: AskedKey, size: int) -> None:
        self._counters.fetched_bytes += size
        if size and session.replica_id != CONSUMER:
            replica = self._table.find(*key)
            if replica is not None and replica.leader is not None and replica.leader.is_joining(session.replica_id):
                self._counters.reassignment_out_bytes += size

    def _without_records(self, entry: AskedPartition, plan: FetchPlan) -> FetchResult:
        found = self._serving(entry, plan.replica_id, plan.rack)
        if isinstance(found, KafkaCode):
            return self._error(entry, found)
        try:
            end = _readable_end(found, plan)
        except (DiskError, CorruptStoreError) as error:
            found.replica.take_offline(error)
            return self._error(entry, KafkaCode.KAFKA_STORAGE_ERROR)
        return replace(self._result(entry, found), last_stable_offset=end)

    async def _evaluate(
        self, session: Session, entry: AskedPartition, plan: FetchPlan, budget: int, at_least_one: bool
    ) -> FetchResult:
        found = self._serving(entry, plan.replica_id, plan.rack)
        if isinstance(found, KafkaCode):
            return self._error(entry, found)
        replica, _, partition_log = found
        if session.session_id != NO_SESSION:
            replica.sessions[session] = entry.key  # the replica may be newer than the request that listed it
        try:
            verdict = self._check(entry, plan.replica_id, found)
            if isinstance(verdict, Divergence):
                result = self._result(entry, found)
                return replace(result, diverging_epoch=verdict.epoch, diverging_end=verdict.end)
            if verdict is not KafkaCode.NONE:
                return self._out_of_range(entry, found, verdict, plan.replica_id)
            if (nearest := self._nearest(entry, plan, found)) is not None:
                return replace(self._result(entry, found), preferred_replica=nearest)
            end = partition_log.end_offset if plan.replica_id != CONSUMER else _readable_end(found, plan)
            most = min(entry.max_bytes, budget)
            if entry.fetch_offset >= end or (most <= 0 and not at_least_one):
                result = self._result(entry, found)
                return replace(result, last_stable_offset=end) if plan.read_committed else result
            records = await replica.read(entry.fetch_offset, max(most, 0), end)
            if plan.read_committed:
                return self._committed(entry, found, records, end)
        except (DiskError, CorruptStoreError) as error:
            replica.take_offline(error)
            return self._error(entry, KafkaCode.KAFKA_STORAGE_ERROR)
        if found.has_ended():
            return self._error(entry, KafkaCode.NOT_LEADER_OR_FOLLOWER)  # the role ended during the read
        return self._result(entry, found, records)

    def _committed(
        self, entry: AskedPartition, found: _Served, records: bytes | memoryview, stable_offset: int
    ) -> FetchResult:
        """Return records up to the last stable offset, with the aborted transactions in them."""
        if found.has_ended():
            return self._error(entry, KafkaCode.NOT_LEADER_OR_FOLLOWER)  # the role ended during the read
        if entry.fetch_offset < found.log.start_offset:
            # Retention deleted the list of aborted transactions together with the records, during the read.
            return self._out_of_range(entry, found, KafkaCode.OFFSET_OUT_OF_RANGE, CONSUMER)
        aborted = found.log.aborted_in(records, entry.fetch_offset)
        return replace(self._result(entry, found, records), last_stable_offset=stable_offset, aborted=aborted)

    def _out_of_range(self, entry: AskedPartition, found: _Served, code: KafkaCode, replica_id: int) -> FetchResult:
        result = replace(
            self._result(entry, found),
            error_code=int(code),
            leader_id=found.replica.image.leader,
            leader_epoch=found.role.leader_epoch,
        )
        if replica_id == CONSUMER:
            return result
        # A follower restarts its log at `start`, and sends the epoch before `start` with that position.
        start = _first_position(found.log)
        epoch = found.log.epochs.epoch_of(start - 1)
        diverging_end = start if epoch >= 0 else -1
        return replace(result, log_start_offset=start, diverging_epoch=epoch, diverging_end=diverging_end)

    def _serving(self, entry: AskedPartition, replica_id: int, rack: str = "") -> _Served | KafkaCode:
        """Return the replica that may answer: the leader, or a follower for a consumer that states its rack.

        The leader epoch that a fetching follower names is checked before its membership (KAFKA-14078).
        """
        replica = self._table.find(*entry.key)
        if replica is None:
            if self._cluster.partition(*entry.key) is not None:
                return KafkaCode.NOT_LEADER_OR_FOLLOWER
            return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(entry.key[0], str) else KafkaCode.UNKNOWN_TOPIC_ID
        if replica.follower is not None and replica_id == CONSUMER and rack:
            following = replica.following(entry.current_leader_epoch)
            return following if isinstance(following, KafkaCode) else _Served(replica, *following)
        found = replica.leading(entry.current_leader_epoch)
        if isinstance(found, KafkaCode):
            return found
        if replica_id != CONSUMER and replica_id not in found.leader.followers:
            return KafkaCode.UNKNOWN_LEADER_EPOCH
        if replica_id != CONSUMER and entry.current_leader_epoch < 0:
            return KafkaCode.FENCED_LEADER_EPOCH  # a position counts only under the leader epoch that it names
        return _Served(replica, *found)

    def _nearest(self, entry: AskedPartition, plan: FetchPlan, found: _Served) -> int | None:
        """Return the broker that should serve this consumer instead of the leader; None if the leader should."""
        leader = found.role
        if not plan.rack or not self._table.context.reads_from_followers or not isinstance(leader, LeaderState):
            return None
        brokers = self._cluster.newest.brokers
        own = brokers.get(leader.broker_id)
        reachable = [
            ReadReplica(id_, broker.rack, follower.log_start, follower.end)
            for id_, follower in leader.followers.items()
            if id_ in leader.isr
            and (broker := brokers.get(id_)) is not None
            and broker.active
            and broker.endpoint(plan.listener) is not None
        ]
        return nearest_replica(plan.rack, None if own is None else own.rack, entry.fetch_offset, reachable)

    def _check(self, entry: AskedPartition, replica_id: int, found: _Served) -> Divergence | KafkaCode:
        partition_log = found.log
        if isinstance(found.role, FollowerState):
            missing = found.role.missing(entry.fetch_offset, partition_log.end_offset)
            if missing is not KafkaCode.NONE:
                return missing
        is_replica, start = replica_id != CONSUMER, partition_log.start_offset
        if is_replica and entry.fetch_offset < start:
            start = _first_position(partition_log)
        return check_position(
            entry.fetch_offset, entry.last_fetched_epoch, start, partition_log.epochs, is_replica=is_replica
        )

    def _result(self, entry: AskedPartition, found: _Served, records: bytes | memoryview = b"") -> FetchResult:
        topic_id, topic = self._names(entry.key)
        return FetchResult(
            topic_id,
            topic,
            entry.key[1],
            int(KafkaCode.NONE),
            found.role.high_watermark,
            found.role.high_watermark,
            found.log.start_offset,
            records,
        )

    def _error(self, entry: AskedPartition, code: KafkaCode) -> FetchResult:
        topic_id, topic = self._names(entry.key)
        leader, epoch = -1, -1
        if code in (KafkaCode.NOT_LEADER_OR_FOLLOWER, KafkaCode.FENCED_LEADER_EPOCH):
            known = self._cluster.partition(*entry.key)
            if known is not None:
                leader, epoch = known.leader, known.leader_epoch
        return FetchResult(topic_id, topic, entry.key[1], int(code), leader_id=leader, leader_epoch=epoch)

    def _names(self, key: AskedKey) -> tuple[UUID | None, str | None]:
        asked, image = key[0], self._cluster.applied
        if isinstance(asked, str):
            return image.topic_ids.get(asked), asked
        topic = image.topics.get(asked)
        return asked, None if topic is None else topic.name


def _asked(partition: FetchPartition | ForgottenPartition) -> AskedKey:
    name = partition.topic_id if partition.topic_id is not None else partition.topic
    assert name is not None, partition
    return (name, partition.index)


def _first_position(partition_log: PartitionLog) -> int:
    """Return the first offset at which a replica's log may end: the beginning of the batch with the log start.

    A client may have deleted only some records of that batch (DeleteRecords; KAFKA-6975).  A log that ends within the
    batch could not append that batch.
    """
    try:
        return partition_log.batch_start(partition_log.start_offset)
    except (DiskError, CorruptStoreError):
        return partition_log.start_offset  # unknown; the damage is reported by the next read


def _readable_end(found: _Served, plan: FetchPlan) -> int:
    """Return the end of the records that a consumer may see.

    Raises: CorruptStoreError, DiskError.
    """
    return found.log.last_stable_offset if plan.read_committed else found.role.high_watermark


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
