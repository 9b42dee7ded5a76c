"""The leader's side of fetches: sessions, reading, long polls.

Theory of operation
-------------------
Every fetch has a session object: a kept one (KIP-227), or one that lives as long as the request.  A fetch is served
from the session's `ready` set only, so an incremental fetch costs what changed, not what the session holds.  A
partition that has nothing to say leaves `ready`; it comes back when it is touched (`Replica.touch`), and who touches
decides whether that is worth waking the parked fetch.

A request is answered when one partition has something that cannot wait (records, when min_bytes of them are there; an
error or divergence that was not told yet), when its time is up, or when the next request of its session comes: the
fetcher has changed its mind, and will not be kept waiting.

Positions are taken from the request before anything is read: a follower's fetch is first of all an acknowledgement.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from broker.core.errors import Code
from broker.core.fetch_session import NO_SESSION, SessionCache, SessionPartition
from broker.core.partition import Divergence, LeaderState, check_leader_epoch, check_position
from broker.kafka.api import CONSUMER, FetchPartition, FetchPlan, FetchReply, FetchResult, ForgottenPartition
from broker.log import PartitionLog
from broker.replica.replica import AskedKey, AskedPartition, Replica, Session
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import DiskError

if TYPE_CHECKING:
    from broker.replica.replica_manager import ReplicaManager

_MAX_SESSION_ID = 2**31 - 2


class FetchService:
    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._limits = replicas.limits
        random = replicas.sources.random
        self._sessions: SessionCache[AskedKey] = SessionCache(
            self._limits.sessions,
            self._limits.session_idle_ms,
            lambda: random.randint(1, _MAX_SESSION_ID),
            self._unwatch,
        )
        self._parked: dict[Session, asyncio.Future[None]] = {}
        self._closed = False

    @property
    def parked(self) -> int:
        return len(self._parked)

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    def wake(self, session: Session) -> None:
        """Have the parked fetch of this session, if there is one, look again."""
        future = self._parked.get(session)
        if future is not None and not future.done():
            future.set_result(None)

    def close(self) -> None:
        """Answer everything that is parked, with what there is."""
        self._closed = True
        for session in list(self._parked):
            self.wake(session)

    def close_sessions_of(self, broker_id: int) -> None:
        """A new incarnation of a broker has nothing to do with the sessions of the one before."""
        self._sessions.close_replica(broker_id)

    async def fetch(self, plan: FetchPlan) -> FetchReply:
        """Serve one request; never longer than its (bounded) wait."""
        loop = asyncio.get_running_loop()
        begun = self._sessions.begin(plan.session_id, plan.session_epoch, plan.replica_id, now_ms())
        if isinstance(begun, Code):
            return FetchReply(int(begun))
        session = begun
        self.wake(session)  # this request is newer than the one that may be parked
        self._take_request(session, plan)
        deadline = loop.time() + min(max(plan.max_wait_ms, 0), self._limits.max_wait_ms) / 1000
        try:
            while True:
                last_chance = self._closed or loop.time() >= deadline or plan.min_bytes <= 0
                last_chance = last_chance or len(self._parked) >= self._limits.parked_fetches
                if last_chance or self._may_be_enough(session, plan):
                    results, enough = self._collect(session, plan)
                    if enough or last_chance:
                        return self._reply(session, results)
                self._watch(session)
                if not await self._park(session, deadline):
                    return FetchReply(int(Code.NONE), session.session_id)
        finally:
            if session.session_id == NO_SESSION:
                self._unwatch(session)

    async def _park(self, session: Session, deadline: float) -> bool:
        """Wait for news, or until the time is up.  False: a newer request of this session has taken over."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._parked[session] = future
        epoch = session.next_epoch
        timer = loop.call_at(deadline, _complete, future)
        try:
            await future
        finally:
            timer.cancel()
            if self._parked.get(session) is future:
                del self._parked[session]
        return session.next_epoch == epoch

    # -- the request

    def _take_request(self, session: Session, plan: FetchPlan) -> None:
        for gone in plan.forgotten:
            self._forget(session, _asked(gone))
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
                self._watch_one(session, key)
            if plan.replica_id != CONSUMER:
                self._acknowledge(session, session.entries[key], plan)

    def _acknowledge(self, session: Session, entry: AskedPartition, plan: FetchPlan) -> None:
        """Take a follower's position as its acknowledgement, if everything about it fits."""
        found = self._serving(entry, plan.replica_id)
        if isinstance(found, Code):
            return
        hosted, leader, partition_log = found
        if self._check(entry, plan.replica_id, partition_log) is not Code.NONE:
            return
        contact = session.contact if session.session_id != NO_SESSION else None
        if leader.on_fetch(plan.replica_id, plan.broker_epoch, entry.fetch_offset, now_ms(), contact):
            self._replicas.on_watermark(hosted)
        if plan.replica_id not in leader.isr and entry.fetch_offset >= leader.high_watermark:
            self._replicas.on_isr_candidate(hosted)

    # -- watching

    def _watch(self, session: Session) -> None:
        if session.session_id == NO_SESSION:
            for key in session.entries:
                self._watch_one(session, key)

    def _watch_one(self, session: Session, key: AskedKey) -> None:
        hosted = self._replicas.find(*key)
        if hosted is not None:
            hosted.sessions[session] = key

    def _unwatch(self, session: Session) -> None:
        for key in session.entries:
            self._unwatch_one(session, key)
        self.wake(session)

    def _unwatch_one(self, session: Session, key: AskedKey) -> None:
        hosted = self._replicas.find(*key)
        if hosted is not None and hosted.sessions.pop(session, None) is not None and hosted.leader is not None:
            hosted.leader.on_fetch_stopped(session.replica_id, session.contact)

    def _forget(self, session: Session, key: AskedKey) -> None:
        if session.remove(key):
            self._unwatch_one(session, key)

    # -- the reply

    def _may_be_enough(self, session: Session, plan: FetchPlan) -> bool:
        """Whether it is worth reading: a consumer that wants much at a time is woken by every little write."""
        if plan.min_bytes <= 1 or session.session_id != NO_SESSION:
            return True
        size = 0
        for key in list(session.ready):
            entry = session.entries[key]
            found = self._serving(entry, plan.replica_id)
            if isinstance(found, Code):
                return True
            _, leader, partition_log = found
            if self._check(entry, plan.replica_id, partition_log) is not Code.NONE:
                return True
            try:
                there = partition_log.size_between(entry.fetch_offset, leader.high_watermark)
            except (DiskError, CorruptStoreError):
                return True  # whoever reads will say it
            if there == 0:
                del session.ready[key]
            size += min(there, max(entry.max_bytes, 0))
        return size >= self._wanted_bytes(plan)

    def _wanted_bytes(self, plan: FetchPlan) -> int:
        return max(1, min(plan.min_bytes, plan.max_bytes, self._limits.fetch_response_max_bytes))

    def _collect(self, session: Session, plan: FetchPlan) -> tuple[dict[AskedKey, FetchResult], bool]:
        """What the ready partitions have to say, and whether that is enough to answer now."""
        budget = min(plan.max_bytes, self._limits.fetch_response_max_bytes)
        results: dict[AskedKey, FetchResult] = {}
        size = 0
        urgent = False
        for key in list(session.ready):
            entry = session.entries[key]
            result = self._evaluate(entry, plan, max(budget - size, 0), at_least_one=size == 0)
            code = result.error_code
            if code != Code.NONE:
                urgent = urgent or code != entry.sent_code
                results[key] = result
            elif result.diverging_epoch >= 0:
                urgent = True
                results[key] = result
            elif len(result.records):
                size += len(result.records)
                results[key] = result
            elif size < budget:  # else it was not read
                told = (entry.sent_high_watermark, entry.sent_log_start)
                if told != (result.high_watermark, result.log_start_offset):
                    results[key] = result
                else:
                    del session.ready[key]
        return results, urgent or size >= self._wanted_bytes(plan)

    def _reply(self, session: Session, results: dict[AskedKey, FetchResult]) -> FetchReply:
        """Note what is told, and complete a full fetch with the partitions that have nothing to say."""
        for key, result in results.items():
            # What had records stays ready: there may be more.  So does an error: the cause may pass unnoticed.
            if result.error_code == Code.NONE and not len(result.records):
                session.ready.pop(key, None)
        if session.full:
            # Also those that have records for which there was no room; they stay ready.
            for key, entry in session.entries.items():
                if key not in results:
                    results[key] = self._silent(entry, session.replica_id)
            results = {key: results[key] for key in session.entries}
        for key, result in results.items():
            entry = session.entries[key]
            entry.sent_high_watermark = result.high_watermark
            entry.sent_log_start = result.log_start_offset
            entry.sent_code = result.error_code
            self._count(session, key, len(result.records))
        session.full = False
        return FetchReply(int(Code.NONE), session.session_id, tuple(results.values()))

    def _count(self, session: Session, key: AskedKey, size: int) -> None:
        self._replicas.counters.fetched_bytes += size
        if size and session.replica_id != CONSUMER:
            hosted = self._replicas.find(*key)
            if hosted is not None and hosted.leader is not None and hosted.leader.is_joining(session.replica_id):
                self._replicas.counters.reassignment_out_bytes += size

    def _silent(self, entry: AskedPartition, replica_id: int) -> FetchResult:
        found = self._serving(entry, replica_id)
        if isinstance(found, Code):
            return self._error(entry, found)
        _, leader, partition_log = found
        return self._result(entry, leader, partition_log)

    def _evaluate(self, entry: AskedPartition, plan: FetchPlan, budget: int, at_least_one: bool) -> FetchResult:
        found = self._serving(entry, plan.replica_id)
        if isinstance(found, Code):
            return self._error(entry, found)
        hosted, leader, partition_log = found
        try:
            verdict = self._check(entry, plan.replica_id, partition_log)
            if isinstance(verdict, Divergence):
                result = self._result(entry, leader, partition_log)
                return replace(result, diverging_epoch=verdict.epoch, diverging_end=verdict.end)
            if verdict is not Code.NONE:
                result = self._result(entry, leader, partition_log)
                if plan.replica_id != CONSUMER:  # it starts over, with a position that can be compared from then on
                    start = partition_log.start_offset
                    epoch = partition_log.epochs.epoch_of(start - 1)
                    result = replace(result, diverging_epoch=epoch, diverging_end=start if epoch >= 0 else -1)
                return replace(
                    result, error_code=int(verdict), leader_id=hosted.image.leader, leader_epoch=leader.leader_epoch
                )
            end = leader.high_watermark if plan.replica_id == CONSUMER else partition_log.end_offset
            most = min(entry.max_bytes, budget)
            records = b""
            if entry.fetch_offset < end and (most > 0 or at_least_one):
                records = partition_log.read(entry.fetch_offset, max(most, 0), end)
            return self._result(entry, leader, partition_log, records)
        except (DiskError, CorruptStoreError) as error:
            self._replicas.take_offline(hosted, error)
            return self._error(entry, Code.KAFKA_STORAGE_ERROR)

    def _serving(self, entry: AskedPartition, replica_id: int) -> tuple[Replica, LeaderState, PartitionLog] | Code:
        """The leader that may answer for this partition; KAFKA-14078: the epoch is judged before the membership."""
        hosted = self._replicas.find(*entry.key)
        if hosted is None:
            if self._replicas.known_partition(*entry.key) is not None:
                return Code.NOT_LEADER_OR_FOLLOWER
            return Code.UNKNOWN_TOPIC_OR_PARTITION if isinstance(entry.key[0], str) else Code.UNKNOWN_TOPIC_ID
        if hosted.log is None:
            return Code.KAFKA_STORAGE_ERROR
        leader = self._replicas.leads(hosted)
        if leader is None:
            return Code.NOT_LEADER_OR_FOLLOWER
        code = check_leader_epoch(entry.current_leader_epoch, leader.leader_epoch)
        if code is not Code.NONE:
            return code
        if replica_id != CONSUMER and replica_id not in leader.followers:
            return Code.UNKNOWN_LEADER_EPOCH
        if replica_id != CONSUMER and entry.current_leader_epoch < 0:
            return Code.FENCED_LEADER_EPOCH  # a position counts only under the leader epoch that it names
        return hosted, leader, hosted.log

    def _check(self, entry: AskedPartition, replica_id: int, partition_log: PartitionLog) -> Divergence | Code:
        return check_position(
            entry.fetch_offset,
            entry.last_fetched_epoch,
            partition_log.start_offset,
            partition_log.epochs,
            is_replica=replica_id != CONSUMER,
        )

    def _result(
        self,
        entry: AskedPartition,
        leader: LeaderState,
        partition_log: PartitionLog,
        records: bytes | memoryview = b"",
    ) -> FetchResult:
        topic_id, topic = self._names(entry.key)
        return FetchResult(
            topic_id,
            topic,
            entry.key[1],
            int(Code.NONE),
            leader.high_watermark,
            leader.high_watermark,
            partition_log.start_offset,
            records,
        )

    def _error(self, entry: AskedPartition, code: Code) -> FetchResult:
        topic_id, topic = self._names(entry.key)
        leader, epoch = -1, -1
        if code in (Code.NOT_LEADER_OR_FOLLOWER, Code.FENCED_LEADER_EPOCH):
            known = self._replicas.known_partition(*entry.key)
            if known is not None:
                leader, epoch = known.leader, known.leader_epoch
        return FetchResult(topic_id, topic, entry.key[1], int(code), leader_id=leader, leader_epoch=epoch)

    def _names(self, key: AskedKey) -> tuple[UUID | None, str | None]:
        asked = key[0]
        if isinstance(asked, str):
            return self._replicas.image.topic_ids.get(asked), asked
        topic = self._replicas.image.topics.get(asked)
        return asked, None if topic is None else topic.name


def _asked(partition: FetchPartition | ForgottenPartition) -> AskedKey:
    name = partition.topic_id if partition.topic_id is not None else partition.topic
    assert name is not None, partition
    return (name, partition.index)


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
