"""One replica of a partition on this broker: its log, its role, and the requests that wait for it.

Theory of operation
-------------------
**One writer.**  Only the methods of a replica set its log and its role, and park produces.  Other objects read this
state and call these methods.  There is one event loop and there are no locks: a method that reads the role and acts on
it has no await in between.

**Roles.**  `ImageFollower` concludes from the metadata that a replica leads or follows, and calls `lead` or `follow`.
`LeaderState` and `FollowerState` (`broker.core.partition`) decide everything about positions, watermark and ISR; this
object connects them to the log, to the requests that wait, and to the events of `ReplicaEvents`.

**Appends.** `append` appends immediately, so the order of the calls is the order in the log.  Then the produce is
parked: with acks=1 until its records are flushed on this disk, with acks=all until the watermark has reached their end.
The event that decides a parked produce (flush, fetch, metadata) also completes it; nothing polls.  Each parked produce
has a deadline, and their number is bounded.

**Serving.**  A leader serves only while this process's own registration is in force and unfenced, and only if the last
change of its partition in the metadata is later than that registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from broker.core.fetch_session import LeaderSession, PartitionKey, SessionPartition
from broker.core.partition import (
    ACKS_ALL,
    Answer,
    Assignment,
    Contact,
    FollowerState,
    LeaderState,
    Limits,
    Proposal,
    check_leader_epoch,
)
from broker.core.producer_state import Verification
from broker.core.transactions import Marker
from broker.kafka.api import NO_EPOCH, ProduceResult
from broker.log import Appended, LogKey, PartitionLog, Refused
from broker.log.produced import Produced
from broker.replica.context import ReplicaContext
from broker.replica.parked import ParkedProduce, ParkedProduces
from metadata.image import PartitionImage
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import HEADER_SIZE, NO_TIMESTAMP, BatchHeader

logger = get_logger("broker")

AskedKey = tuple[UUID | str, int]
"""A partition as a fetcher names it: topic id or name, and index."""

Session = LeaderSession[AskedKey]
AskedPartition = SessionPartition[AskedKey]


class Leading(NamedTuple):
    """A leader that may serve now.  Valid only until the next await."""

    leader: LeaderState
    log: PartitionLog


class Following(NamedTuple):
    """A follower that may serve consumers now.  Valid only until the next await."""

    follower: FollowerState
    log: PartitionLog


class Replica:
    """One replica on this broker.  At most one of `leader` and `follower` is set; both are None while it is offline.

    key: identifies its log permanently; it contains the id with which the topic was created.
    topic_id: the id that the topic has now, by which all other nodes name the partition.
    image: the partition in the applied metadata.
    log: None while the replica is offline; `offline` is then the reason.
    role_epoch: the leader epoch for which the role was last set.
    sessions: the fetch sessions that list this partition, each with its key for the partition.
    """

    __slots__ = (
        "_awaits_flush",
        "_context",
        "_parked",
        "follower",
        "image",
        "key",
        "leader",
        "log",
        "offline",
        "role_epoch",
        "sessions",
        "topic",
        "topic_id",
    )

    def __init__(
        self, context: ReplicaContext, key: LogKey, topic_id: UUID, topic: str, image: PartitionImage, offline: str = ""
    ) -> None:
        self.key = key
        self.topic_id = topic_id
        self.topic = topic
        self.image = image
        self.log: PartitionLog | None = None
        self.offline = offline
        self.leader: LeaderState | None = None
        self.follower: FollowerState | None = None
        self.role_epoch = NO_EPOCH
        self.sessions: dict[Session, AskedKey] = {}
        self._awaits_flush = False
        self._context = context
        self._parked = ParkedProduces()

    @property
    def partition(self) -> PartitionKey:
        return PartitionKey(self.topic_id, self.key.index)

    @property
    def is_joining(self) -> bool:
        """Return whether a reassignment is adding this replica, and it is not in the ISR yet."""
        own_id = self._context.broker_id
        return own_id in self.image.adding and own_id not in self.image.isr

    def __repr__(self) -> str:
        role = "leader" if self.leader else "follower" if self.follower else "offline" if self.offline else "idle"
        return f"{self.topic}-{self.key.index} ({role})"

    def serving(self) -> LeaderState | None:
        """Return the leader's state if this replica may serve as leader now."""
        if self.leader is None or self.log is None or not self._context.is_serving():
            return None
        return self.leader if self.image.last_offset > self._context.cluster.own_epoch else None

    def leading(self, current_leader_epoch: int) -> Leading | KafkaCode:
        """Return the leader that may answer a request that was sent under `current_leader_epoch` (-1: unknown)."""
        if self.log is None:
            return KafkaCode.KAFKA_STORAGE_ERROR
        leader = self.serving()
        if leader is None:
            return KafkaCode.NOT_LEADER_OR_FOLLOWER
        code = check_leader_epoch(current_leader_epoch, leader.leader_epoch)
        return Leading(leader, self.log) if code is KafkaCode.NONE else code

    def following(self, current_leader_epoch: int) -> Following | KafkaCode:
        """Return the follower that may answer a consumer's request under `current_leader_epoch` (-1: unknown).

        The follower must be in the ISR.  Otherwise a follower that has lost its leader would keep its consumers.
        """
        if self.log is None:
            return KafkaCode.KAFKA_STORAGE_ERROR
        follower = self._in_sync_follower(self.log)
        if follower is None or not self._context.reads_from_followers:
            return KafkaCode.NOT_LEADER_OR_FOLLOWER
        code = check_leader_epoch(current_leader_epoch, follower.leader_epoch)
        return Following(follower, self.log) if code is KafkaCode.NONE else code

    def _in_sync_follower(self, partition_log: PartitionLog) -> FollowerState | None:
        context, follower = self._context, self.follower
        if follower is None or not follower.agrees or not context.is_serving():
            return None
        is_in_sync = context.broker_id in self.image.isr and not partition_log.durability.is_truncating
        return follower if is_in_sync else None

    def in_sync_log(self) -> PartitionLog | KafkaCode:
        """Return the log of this replica if the replica leads, or follows and is in the ISR; otherwise the error.

        Such a log holds every committed record.  Any other log could show a transaction as open although its marker is
        committed.
        """
        found = self.leading(NO_EPOCH)
        if isinstance(found, Leading):
            return found.log
        return self.log if self.log is not None and self._in_sync_follower(self.log) is not None else found

    # -- transitions

    def open(self, partition_log: PartitionLog) -> None:
        """Give the replica its log."""
        self.log = partition_log
        partition_log.durability.on_flushed = self._on_flushed

    def lead(self, limits: Limits) -> None:
        """Lead under the leader epoch of `image`.  If the replica already does, apply the other changes of `image`."""
        assert self.log is not None, self
        image, leader, partition_log = self.image, self.leader, self.log
        assignment = _assignment(image)
        if leader is not None and self.role_epoch == image.leader_epoch:
            self._on_leader_changed(leader.on_assignment(assignment, now_ms()))
            if leader.under_replicated:
                self._context.events.isr_candidate(self)
            self._context.events.low_watermark_moved(self)
            return
        partition_log.begin_epoch(image.leader_epoch)
        watermark = partition_log.high_watermark
        self.follower = None
        self.leader = LeaderState(
            self._context.broker_id,
            assignment,
            log_end=partition_log.end_offset,
            flushed_end=partition_log.flushed_offset,
            high_watermark=watermark,
            cluster=self._context.cluster,
            limits=limits,
            now_ms=now_ms(),
            size_from=partial(_size_from, partition_log),
            log_start=partition_log.durable_start_offset,
        )
        self.role_epoch = image.leader_epoch
        self._context.events.role_changed(self)
        if self.leader.high_watermark > watermark:
            self._on_watermark()
        self._answer_decided()
        self._touch(consumers=True, followers=True)
        self.report_when_flushed()
        logger.debug("leading", replica=repr(self), epoch=image.leader_epoch, end=partition_log.end_offset)
        self._context.events.elected(self.partition, image.leader_epoch)

    def follow(self) -> None:
        """Follow the leader of `image` under its leader epoch.

        If the replica already does, apply the other changes of `image`.
        """
        assert self.log is not None, self
        image = self.image
        if self.follower is not None and self.role_epoch == image.leader_epoch:
            self._touch(consumers=True, followers=False)  # the follower may have left the ISR
            self._context.events.assignment_changed(self)
            return
        led = self.leader
        self.leader = None
        self.follower = FollowerState(image.leader, image.leader_epoch, self.log.high_watermark)
        self.role_epoch = image.leader_epoch
        self._refuse_parked(KafkaCode.NOT_LEADER_OR_FOLLOWER)
        self._touch(consumers=True, followers=True)
        self._context.events.role_changed(self)
        self._report_end(led)

    def take_offline(self, error: Exception) -> None:
        """Stop reading and writing this replica, because its log failed with `error`."""
        if self.log is None:
            return
        logger.error("replica offline", topic=self.topic, partition=self.key.index, cause=str(error))
        directory_id, logs = self.log.directory_id, self._context.logs
        self._end(str(error), KafkaCode.KAFKA_STORAGE_ERROR)
        if isinstance(error, DiskError):
            logs.disk_failed(directory_id, error)
        elif isinstance(error, CorruptStoreError) and self.key in logs.logs:
            logs.take_offline(self.key, error)

    def remove(self) -> None:
        """Stop serving, because the replica was deleted or moved to another broker."""
        self._end("deleted", KafkaCode.NOT_LEADER_OR_FOLLOWER)

    def renewed(self, topic_id: UUID, image: PartitionImage) -> Replica:
        """Return the same replica under the topic's new id; this object stops serving.

        The role starts over, because proposals and fetches under way name the old id.  Sessions that list the topic by
        its name stay.
        """
        moved = Replica(self._context, self.key, topic_id, self.topic, image, self.offline)
        moved.sessions = {session: key for session, key in self.sessions.items() if isinstance(key[0], str)}
        partition_log = self.log
        self._end("its topic has another id now", KafkaCode.NOT_LEADER_OR_FOLLOWER)
        if partition_log is not None:
            moved.open(partition_log)
        return moved

    def close(self) -> None:
        """Refuse everything that is parked, because the broker stops."""
        self._refuse_parked(KafkaCode.NOT_LEADER_OR_FOLLOWER)

    def _end(self, reason: str, code: KafkaCode) -> None:
        led = self.leader
        self.log, self.offline = None, reason
        self.leader = self.follower = None
        self._context.events.role_changed(self)
        self._refuse_parked(code)
        self._touch(consumers=True, followers=True)
        self._report_end(led)

    def _report_end(self, led: LeaderState | None) -> None:
        if led is not None:
            self._context.events.resigned(self.partition, led.leader_epoch)

    # -- writing, as the leader

    def append(
        self,
        batches: Produced | Refused,
        acks: int,
        timeout_ms: int,
        future: asyncio.Future[ProduceResult] | None = None,
        verification: Verification | None = None,
    ) -> asyncio.Future[ProduceResult]:
        """Append checked batches; the future is answered as `acks` requires, or after `timeout_ms`.

        batches: the batches with checked records, or their refusal.
        future: the future to answer; None: create one.
        verification: see `ProducerState.check`.
        """
        if future is None:
            future = asyncio.get_running_loop().create_future()
        leader = self.serving()
        if self.log is None:
            future.set_result(refused_produce(KafkaCode.KAFKA_STORAGE_ERROR, self.offline))
        elif leader is None:
            future.set_result(refused_produce(KafkaCode.NOT_LEADER_OR_FOLLOWER, partition=self.image))
        elif (code := leader.admits(acks)) is not KafkaCode.NONE:
            future.set_result(refused_produce(code, _admission_text(code, leader, acks)))
        elif isinstance(batches, Refused):
            future.set_result(refused_by_log(batches))
        elif self.log.durability.is_truncating:  # it was elected before its truncation was durable; clients retry
            future.set_result(refused_produce(KafkaCode.NOT_LEADER_OR_FOLLOWER, _TRUNCATING, self.image))
        else:
            self._append_produce(leader, self.log, batches, acks, timeout_ms, future, verification)
        return future

    def _append_produce(
        self,
        leader: LeaderState,
        partition_log: PartitionLog,
        batches: Produced,
        acks: int,
        timeout_ms: int,
        future: asyncio.Future[ProduceResult],
        verification: Verification | None,
    ) -> None:
        append_time_ms = self._append_time_ms(partition_log)
        appended = self._append_batches(leader, partition_log, batches, append_time_ms, verification)
        if isinstance(appended, Refused):
            future.set_result(refused_by_log(self._explained(appended, partition_log, batches.headers[0])))
            return
        self._context.refused_batches.appended(self.topic, self.key.index, batches.headers[0])
        if appended.duplicate:  # the producer state does not contain the time of the first append
            append_time_ms = NO_TIMESTAMP
        self._await_acks(leader, appended, acks, timeout_ms, future, append_time_ms)

    def _explained(self, refused: Refused, partition_log: PartitionLog, batch: BatchHeader) -> Refused:
        """Return the refusal of the missing sequence, if this broker refused that sequence; otherwise `refused`."""
        if refused.code != KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            return refused
        missing = partition_log.producers.expected_sequence(batch.producer_id, batch.producer_epoch)
        cause = self._context.refused_batches.cause(self.topic, self.key.index, batch, missing, now_ms())
        if cause is None:
            return refused
        return _must_wait(missing, cause)

    def _behind_refused(self, partition_log: PartitionLog, batch: BatchHeader) -> Refused | None:
        """Refuse a batch that the log would accept, if this broker has recently refused an earlier batch."""
        producers = partition_log.producers
        if not batch.has_producer_id or not producers.accepts_any_sequence(batch, partition_log.start_offset):
            return None
        earlier = self._context.refused_batches.earlier(self.topic, self.key.index, batch, now_ms())
        return None if earlier is None else _must_wait(*earlier)

    def _await_acks(
        self,
        leader: LeaderState,
        appended: Appended,
        acks: int,
        timeout_ms: int,
        future: asyncio.Future[ProduceResult],
        append_time_ms: int = NO_TIMESTAMP,
    ) -> None:
        produce = ParkedProduce(future, acks, appended.first_offset, appended.end_offset, append_time_ms)
        if self.leader is not leader:
            self._answer(produce, KafkaCode.NOT_LEADER_OR_FOLLOWER)
        elif (verdict := leader.verdict(acks, appended.end_offset)) is not None:
            self._answer(produce, verdict)
        else:
            self._park(produce, timeout_ms)

    def append_as_coordinator(self, batch: Produced, leader_epoch: int) -> Appended | Refused:
        """Append a coordinator's batch if this replica may serve under `leader_epoch`, and its ISR permits acks=all.

        The records are committed once the watermark reaches their end.  The caller waits for that
        (`ReplicaEvents.watermark_moved`).
        """
        found = self._coordinating(leader_epoch)
        if isinstance(found, Refused):
            return found
        return self._append_batches(
            found.leader, found.log, batch, self._append_time_ms(found.log), is_coordinated=True
        )

    def append_marker_as_coordinator(
        self, marker: Marker, timestamp_ms: int, leader_epoch: int = NO_EPOCH
    ) -> Appended | Refused:
        """Append the marker that ends a transaction, under the same conditions as `append_as_coordinator`."""
        found = self._coordinating(leader_epoch)
        if isinstance(found, Refused):
            return found
        leader, partition_log = found

        def append() -> Appended | Refused:
            return partition_log.append_marker(marker, timestamp_ms, leader.leader_epoch, now_ms())

        return self._run_append(leader, partition_log, append, HEADER_SIZE)

    def append_marker(self, marker: Marker, timestamp_ms: int, timeout_ms: int) -> asyncio.Future[ProduceResult]:
        """Append a marker; the future is answered as for a produce with acks=all."""
        future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
        leader = self.leader
        appended = self.append_marker_as_coordinator(marker, timestamp_ms)
        if isinstance(appended, Refused):
            future.set_result(refused_by_log(appended))
        elif leader is not None:
            if self.log is not None and not marker.raises_epoch:
                self.log.producers.void_verification(*marker.producer)
            self._await_acks(leader, appended, ACKS_ALL, timeout_ms, future)
        return future

    def _coordinating(self, leader_epoch: int) -> Leading | Refused:
        found = self.leading(leader_epoch)
        if isinstance(found, KafkaCode):
            return Refused(int(found), f"{self!r} does not lead under epoch {leader_epoch}")
        if (code := found.leader.admits(ACKS_ALL)) is not KafkaCode.NONE:
            return Refused(int(code), _admission_text(code, found.leader, ACKS_ALL))
        if found.log.durability.is_truncating:  # see `append`
            return Refused(int(KafkaCode.NOT_LEADER_OR_FOLLOWER), _TRUNCATING)
        return found

    def _append_time_ms(self, partition_log: PartitionLog) -> int:
        """Return the timestamp that appended records get in place of their own; -1 if they keep their own."""
        return self._context.wall_ms() if partition_log.config.append_time else NO_TIMESTAMP

    def _append_batches(
        self,
        leader: LeaderState,
        partition_log: PartitionLog,
        batches: Produced,
        append_time_ms: int,
        verification: Verification | None = None,
        *,
        is_coordinated: bool = False,
    ) -> Appended | Refused:
        def append() -> Appended | Refused:
            if not is_coordinated and (refused := self._behind_refused(partition_log, batches.headers[0])) is not None:
                return refused
            return partition_log.append_as_leader(
                batches,
                leader.leader_epoch,
                now_ms(),
                verification,
                is_coordinated=is_coordinated,
                append_time_ms=append_time_ms,
            )

        return self._run_append(leader, partition_log, append, len(batches.data))

    def _run_append(
        self,
        leader: LeaderState,
        partition_log: PartitionLog,
        append: Callable[[], Appended | Refused],
        size: int,
    ) -> Appended | Refused:
        """Call `append`, and notify the role and parked fetches.  The role may have ended when this returns.

        size: the bytes to count as produced.
        """
        try:
            appended = append()
        except (DiskError, CorruptStoreError) as error:
            self.take_offline(error)
            return Refused(int(KafkaCode.KAFKA_STORAGE_ERROR), str(error))
        if isinstance(appended, Appended) and not appended.duplicate:
            counters = self._context.counters
            counters.produced_bytes += size
            counters.produced_batches += 1
            leader.on_appended(partition_log.end_offset)
            self._touch(consumers=False, followers=True)
            self.report_when_flushed()
        return appended

    def _park(self, produce: ParkedProduce, timeout_ms: int) -> None:
        timeout_ms = max(0, min(timeout_ms, self._context.limits.produce_timeout_max_ms))
        produce.timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._on_timeout, produce)
        self._context.parked_produces += 1
        self._parked.add(produce)

    def _on_timeout(self, produce: ParkedProduce) -> None:
        produce.timer = None
        self._context.parked_produces -= 1
        self._parked.forget(produce)
        self._answer(produce, KafkaCode.REQUEST_TIMED_OUT)

    def _answer_decided(self) -> None:
        if self.leader is not None:
            for produce, code in self._parked.take_decided(self.leader):
                self._context.parked_produces -= 1
                self._answer(produce, code)

    def _refuse_parked(self, code: KafkaCode) -> None:
        for produce in self._parked.take_all():
            self._context.parked_produces -= 1
            self._answer(produce, code)

    def _answer(self, produce: ParkedProduce, code: KafkaCode) -> None:
        if produce.timer is not None:
            produce.timer.cancel()
        if produce.future.done():
            return  # the caller cancelled it
        leader, epoch = -1, NO_EPOCH
        if code is KafkaCode.NOT_LEADER_OR_FOLLOWER:
            leader, epoch = self.image.leader, self.image.leader_epoch
        start = -1 if self.log is None else self.log.start_offset
        produce.future.set_result(
            ProduceResult(
                int(code), produce.base_offset, start, produce.append_time_ms, leader_id=leader, leader_epoch=epoch
            )
        )

    # -- flush and watermark

    def report_when_flushed(self) -> None:
        """Report to the role once all appends and truncations are flushed; immediately if they already are."""
        self._awaits_flush = True
        if self.log is not None and self.log.is_settled:
            self._on_flushed()

    def _on_flushed(self) -> None:
        partition_log = self.log
        if partition_log is None or self._context.is_closed:
            return
        if self.leader is not None:
            self._on_leader_changed(self.leader.on_flushed(partition_log.flushed_offset))
        elif self._awaits_flush and partition_log.is_settled:
            self._awaits_flush = False
            if self.follower is not None:
                self._context.events.flushed(self)

    def set_limits(self, limits: Limits) -> None:
        """Use other limits from now on, if this replica leads."""
        if self.leader is not None:
            self._on_leader_changed(self.leader.on_limits(limits))

    def follow_watermark(self, high_watermark: int) -> None:
        """As a follower: raise the watermark to the leader's, but not above the end of this log."""
        assert self.follower is not None, self
        assert self.log is not None, self
        if self.follower.on_leader_watermark(high_watermark, self.log.end_offset):
            self._on_watermark()

    def on_truncated(self) -> None:
        """As a follower: note that the log was shortened."""
        if self.follower is not None and self.log is not None:
            self.follower.on_truncated(self.log.end_offset)
            self._touch(consumers=True, followers=False)

    def _on_leader_changed(self, watermark_moved: bool) -> None:
        if watermark_moved:
            self._on_watermark()
        else:
            self._answer_decided()  # a smaller ISR also decides produces

    def _on_watermark(self) -> None:
        role = self.leader or self.follower
        assert role is not None, self
        if self.log is not None:
            self.log.advance_high_watermark(role.high_watermark)
        self._context.events.watermark_moved(self)
        if self.leader is not None:
            self._answer_decided()
        self._touch(consumers=True, followers=self._context.reads_from_followers)

    # -- fetches and ISR, as the leader

    async def read(self, offset: int, max_bytes: int, up_to_offset: int) -> bytes | memoryview:
        """Return whole batches, from the one with `offset` on.  None of them ends above `up_to_offset`.

        The log is read without waiting now, so nothing changes during the call.  Callers must not rely on this, because
        reads may become asynchronous or remote: they check afterwards that role, log and request are still the same.

        Raises: CorruptStoreError, DiskError.
        """
        assert self.log is not None, self
        return self.log.read(offset, max_bytes, up_to_offset)

    def on_fetch(self, broker_id: int, broker_epoch: int, end: int, contact: Contact | None) -> None:
        """Note that a follower has everything below `end` on its disk.  The caller has checked that position."""
        leader = self.leader
        assert leader is not None, self
        if leader.on_fetch(broker_id, broker_epoch, end, now_ms(), contact):
            self._on_watermark()
        if broker_id not in leader.isr and end >= leader.high_watermark:
            self._context.events.isr_candidate(self)

    def on_log_start(self, broker_id: int, broker_epoch: int, log_start: int) -> None:
        """Note that a follower has made this log start durable.  Call it after `on_fetch`."""
        leader = self.leader
        if leader is not None and leader.on_log_start(broker_id, broker_epoch, log_start):
            self._context.events.low_watermark_moved(self)
            if broker_id not in leader.isr:
                self._context.events.isr_candidate(self)

    def advance_start(self, offset: int) -> None:
        """Raise the log start to `offset`, but not above the watermark.

        Report `start_moved` if the log start is not durable yet, even if retention has moved it earlier.
        """
        assert self.log is not None, self
        before = self.log.start_offset
        self.log.advance_start_offset(offset)
        if self.log.durable_start_offset < self.log.start_offset:
            self._context.events.start_moved(self)
        if self.log.start_offset > before:
            self._touch(consumers=False, followers=True)

    def unwatch(self, session: Session) -> None:
        """Forget a session that ended, or that no longer lists this partition."""
        if self.sessions.pop(session, None) is not None and self.leader is not None:
            self.leader.on_fetch_stopped(session.replica_id, session.contact)

    def on_isr_answer(self, leader: LeaderState, proposal: Proposal, answer: Answer) -> None:
        """Process the controller's answer to a proposal that this replica made as `leader`."""
        if leader.on_answer(proposal, answer, now_ms()) and self.leader is leader:
            self._on_watermark()

    def _touch(self, *, consumers: bool, followers: bool) -> None:
        """Mark the partition in all sessions that list it, and wake the parked fetches of consumers or followers.

        A new watermark wakes followers only if they serve consumers.  Other followers learn it with their next reply.
        """
        for session, key in self.sessions.items():
            session.touch(key)
            if followers if session.replica_id >= 0 else consumers:
                session.wake()


def refused_produce(code: KafkaCode, message: str = "", partition: PartitionImage | None = None) -> ProduceResult:
    """Return the result of a refused produce.  partition: names the leader that the client should ask instead."""
    leader, epoch = (-1, NO_EPOCH) if partition is None else (partition.leader, partition.leader_epoch)
    return ProduceResult(int(code), error_message=message, leader_id=leader, leader_epoch=epoch)


def refused_by_log(refused: Refused) -> ProduceResult:
    return ProduceResult(refused.code, error_message=refused.reason, record_errors=refused.record_errors)


_TRUNCATING = "the truncation of this log is not durable yet"


def _must_wait(sequence: int, code: KafkaCode) -> Refused:
    return Refused(int(code), f"sequence {sequence} was refused, and must be appended first")


def _admission_text(refusal: KafkaCode, leader: LeaderState, acks: int) -> str:
    if refusal is KafkaCode.NOT_ENOUGH_REPLICAS:
        return f"replicas in sync: {len(leader.isr)}, needed: {leader.min_isr} (min.insync.replicas)"
    return f"acks must be -1, 0 or 1, not {acks}"


def _size_from(partition_log: PartitionLog, offset: int) -> int:
    try:
        return partition_log.size_from(offset)
    except (DiskError, CorruptStoreError):
        return 0  # unknown; the damage is reported by the next read


def _assignment(partition: PartitionImage) -> Assignment:
    return Assignment(
        partition.replica_ids,
        partition.isr,
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.adding,
    )
