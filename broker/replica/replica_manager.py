"""The replicas of this broker, and what clients and other brokers ask of them.

Theory of operation
-------------------
One event loop, no locks: everything that reads a role and acts on it does so without an await between.

A produce is checked and appended at once, synchronously, so that the order in which a connection's requests came is
the order in the log.  `record_checks` keeps that order where the records of a batch with compression must be checked
first, in a thread.  Then it is parked: for acks=1 until this disk has flushed past its end, for acks=all until the
watermark has.  Parked produces and fetches are completed by the event that decides them (flush, fetch, metadata), never
by looking again and again; each has a deadline, and their number has a bound.

Every append leaves a mark for the group flush of its directory, which joins all logs under one barrier; what arrives
during one flush shares the next.  Each log then tells its replica (`attach`): no task, and no waiting, for each.

Who decides: roles, watermarks and ISR proposals are `broker.core.partition`'s, metadata is the controller's.  This
object only connects events to them.  `image_follower` changes roles, `fetch_service` answers fetches, `fetchers` copies
from leaders, `isr` carries proposals to the controller.

**Serving.**  A leader serves only while this process's own registration is the one in force and it is not fenced, and
only by a leadership that is younger than that registration (design §5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol
from uuid import UUID

from broker.core.errors import Code
from broker.core.fetch_session import PartitionKey
from broker.core.partition import LeaderState, check_leader_epoch
from broker.kafka.api import (
    EARLIEST_TIMESTAMP,
    LAST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_EPOCH,
    EpochEndResult,
    FetchPlan,
    FetchReply,
    ListOffsetResult,
    ProduceResult,
    ProducerIdResult,
)
from broker.log import LogManager, PartitionLog, Refused, TimestampOffset
from broker.log.produced import Produced, check_produced
from broker.replica.fetch import FetchService
from broker.replica.limits import ReplicaCounters, ReplicaLimits
from broker.replica.record_checks import Produce, RecordChecks
from broker.replica.replica import ParkedProduce, Replica
from metadata.image import ClusterImage, PartitionImage
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import Sources, now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.record_batch import RecordError

log = get_logger("broker")


class ProducerIds(Protocol):
    async def next(self) -> ProducerIdResult: ...


class Brokers:
    """What a leader asks about other brokers: always the newest image (see `broker.core.partition.Cluster`)."""

    def __init__(self) -> None:
        self.image = ClusterImage()

    def broker_epoch(self, broker_id: int) -> int:
        broker = self.image.brokers.get(broker_id)
        return NO_EPOCH if broker is None else broker.epoch

    def may_join(self, broker_id: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.active


class ReplicaManager:
    """What `broker.kafka.api.Replicas` promises to handlers, and what the other parts of the broker role share.

    on_isr_candidate: told of a leader whose ISR may have to change.
    on_follower_flushed: told of a follower whose flushed end has caught up with its log.
    on_offline: told of a replica that can be neither read nor written any more.
    """

    def __init__(
        self,
        broker_id: int,
        logs: LogManager,
        sources: Sources,
        limits: ReplicaLimits | None = None,
        producer_ids: ProducerIds | None = None,
    ) -> None:
        self.broker_id = broker_id
        self.logs = logs
        self.sources = sources
        self.limits = limits or ReplicaLimits()
        self.counters = ReplicaCounters()
        self.brokers = Brokers()
        self.broker_epoch = NO_EPOCH
        """Of this process's registration; -1 until it is known."""
        self.hosted: dict[PartitionKey, Replica] = {}
        self.by_name: dict[tuple[str, int], Replica] = {}
        self.unsaved_watermarks: dict[PartitionKey, None] = {}
        self.on_isr_candidate: Callable[[Replica], None] = lambda _: None
        self.on_follower_flushed: Callable[[Replica], None] = lambda _: None
        self.on_offline: Callable[[Replica], None] = lambda _: None
        self.is_awake: Callable[[], bool] = lambda: True
        """Whether what this process knows of its leaderships may be relied upon (`StallDetector`)."""
        self.on_disk_failure: Callable[[UUID, DiskError], None] = lambda *_: None
        self.image = ClusterImage()
        """The metadata that this broker has carried out."""
        self._parked_produces = 0
        self._producer_ids = producer_ids
        self._checks = RecordChecks(self.limits, self._append)
        self._time_lookups = asyncio.Semaphore(self.limits.time_lookups)
        self._closed = False
        self.fetch_service = FetchService(self)

    @property
    def parked_produces(self) -> int:
        return self._parked_produces

    # -- what may be served

    @property
    def serving(self) -> bool:
        """Whether this process may serve as leader at all: see the theory of operation."""
        own = self.brokers.image.brokers.get(self.broker_id)
        if own is None or own.epoch != self.broker_epoch or own.fenced or self._closed:
            return False
        return self.is_awake()

    def leads(self, hosted: Replica) -> LeaderState | None:
        """The leader's state if this replica may serve as leader now."""
        if hosted.leader is None or hosted.log is None or not self.serving:
            return None
        return hosted.leader if hosted.image.last_offset > self.broker_epoch else None

    def known_partition(self, topic: UUID | str, index: int) -> PartitionImage | None:
        """A partition of the newest image, hosted here or not, carried out or not."""
        image = self.brokers.image
        found = image.topic(topic) if isinstance(topic, str) else image.topics.get(topic)
        return None if found is None else found.partition(index)

    def find(self, topic: UUID | str, index: int) -> Replica | None:
        if isinstance(topic, str):
            return self.by_name.get((topic, index))
        return self.hosted.get(PartitionKey(topic, index))

    # -- produce

    def start_produce(
        self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int
    ) -> asyncio.Future[ProduceResult]:
        """See `broker.kafka.api.Replicas`."""
        future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
        hosted = self.by_name.get((topic, index))
        if hosted is None:
            return self._refuse(future, *self._absent(topic, index))
        if hosted.log is None:
            return self._refuse(future, Code.KAFKA_STORAGE_ERROR, hosted.offline)
        if self.leads(hosted) is None:
            return self._refuse(future, Code.NOT_LEADER_OR_FOLLOWER, "", hosted.image)
        if self._checks.produces + (self._parked_produces if acks else 0) >= self.limits.parked_produces:
            return self._refuse(future, Code.REQUEST_TIMED_OUT, "too many writes wait for replication")
        checked = check_produced(batches, hosted.log.config)
        produce = Produce(topic, index, acks, timeout_ms, future, checked)
        if self._checks.admit(produce, hosted.log.config):
            self._append(produce)
        return future

    def _append(self, produce: Produce) -> None:
        """Append what has been checked, and answer it or park it.

        Everything else about the partition may have changed since `start_produce`.
        """
        future, acks, batches = produce.future, produce.acks, produce.batches
        hosted = self.by_name.get((produce.topic, produce.index))
        if hosted is None:
            self._refuse(future, *self._absent(produce.topic, produce.index))
            return
        leader, partition_log = self.leads(hosted), hosted.log
        if partition_log is None:
            self._refuse(future, Code.KAFKA_STORAGE_ERROR, hosted.offline)
        elif leader is None:
            self._refuse(future, Code.NOT_LEADER_OR_FOLLOWER, "", hosted.image)
        elif (refusal := leader.admits(acks)) is not Code.NONE:
            self._refuse(future, refusal, _admission_text(refusal, leader, acks))
        elif isinstance(batches, Refused):
            self._refuse(future, batches.code, batches.reason, record_errors=batches.record_errors)
        else:
            self._append_as_leader(hosted, leader, partition_log, produce, batches)

    def _append_as_leader(
        self, hosted: Replica, leader: LeaderState, partition_log: PartitionLog, produce: Produce, batches: Produced
    ) -> None:
        future, acks = produce.future, produce.acks
        try:
            appended = partition_log.append_as_leader(batches, leader.leader_epoch, now_ms())
        except (DiskError, CorruptStoreError) as error:
            self.take_offline(hosted, error)
            self._refuse(future, Code.KAFKA_STORAGE_ERROR, str(error))
            return
        if isinstance(appended, Refused):
            self._refuse(future, appended.code, appended.reason, record_errors=appended.record_errors)
            return
        if not appended.duplicate:
            self.counters.produced_bytes += len(batches.data)
            self.counters.produced_batches += 1
            self._on_appended(hosted, leader, partition_log)
        parked = ParkedProduce(future, acks, appended.first_offset, appended.end_offset)
        if hosted.leader is not leader:
            self._answer(hosted, parked, Code.NOT_LEADER_OR_FOLLOWER)
        elif (verdict := leader.verdict(acks, appended.end_offset)) is not None:
            self._answer(hosted, parked, verdict)
        else:
            self._park(hosted, parked, produce.timeout_ms)

    async def produce(self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int) -> ProduceResult:
        """`start_produce`, awaited."""
        return await self.start_produce(topic, index, batches, acks, timeout_ms)

    def _absent(self, topic: str, index: int) -> tuple[Code, str, PartitionImage | None]:
        known = self.known_partition(topic, index)
        if known is None:
            return Code.UNKNOWN_TOPIC_OR_PARTITION, "", None
        return Code.NOT_LEADER_OR_FOLLOWER, "", known

    def _refuse(
        self,
        future: asyncio.Future[ProduceResult],
        code: int,
        message: str = "",
        partition: PartitionImage | None = None,
        record_errors: tuple[RecordError, ...] = (),
    ) -> asyncio.Future[ProduceResult]:
        leader, epoch = (-1, NO_EPOCH) if partition is None else (partition.leader, partition.leader_epoch)
        result = ProduceResult(
            int(code), error_message=message, leader_id=leader, leader_epoch=epoch, record_errors=record_errors
        )
        future.set_result(result)
        return future

    def _on_appended(self, hosted: Replica, leader: LeaderState, partition_log: PartitionLog) -> None:
        leader.on_appended(partition_log.end_offset)
        hosted.touch(self.fetch_service.wake, consumers=False, followers=True)
        self.ensure_flush(hosted)

    def _park(self, hosted: Replica, produce: ParkedProduce, timeout_ms: int) -> None:
        timeout_ms = max(0, min(timeout_ms, self.limits.produce_timeout_max_ms))
        produce.timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._on_timeout, hosted, produce)
        self._parked_produces += 1
        hosted.park(produce)

    def _on_timeout(self, hosted: Replica, produce: ParkedProduce) -> None:
        produce.timer = None
        if not produce.future.done():
            self._answer(hosted, produce, Code.REQUEST_TIMED_OUT)
            self._parked_produces -= 1
            hosted.forget(produce)

    def _answer(self, hosted: Replica, produce: ParkedProduce, code: int) -> None:
        if produce.timer is not None:
            produce.timer.cancel()
        if produce.future.done():
            return  # the caller went away
        leader, epoch = -1, NO_EPOCH
        if code == Code.NOT_LEADER_OR_FOLLOWER:
            leader, epoch = hosted.image.leader, hosted.image.leader_epoch
        start = -1 if hosted.log is None else hosted.log.start_offset
        produce.future.set_result(
            ProduceResult(int(code), produce.base_offset, start, leader_id=leader, leader_epoch=epoch)
        )

    def answer_parked(self, hosted: Replica) -> None:
        """Answer the parked produces that are decided by now."""
        for produce, code in hosted.take_decided():
            self._parked_produces -= 1
            self._answer(hosted, produce, code)

    def refuse_parked(self, hosted: Replica, code: int) -> None:
        for produce in hosted.take_all():
            self._parked_produces -= 1
            self._answer(hosted, produce, code)

    # -- flush and watermark

    def attach(self, hosted: Replica, partition_log: PartitionLog) -> None:
        """This replica's log, which tells it of each flush from now on."""
        hosted.log = partition_log
        partition_log.on_flushed = lambda _: self._on_flushed(hosted, partition_log)

    def ensure_flush(self, hosted: Replica) -> None:
        """Have this replica's role told once everything appended is flushed; at once, if it is."""
        hosted.awaits_flush = True
        if hosted.log is not None and hosted.log.flushed_offset >= hosted.log.end_offset:
            self._on_flushed(hosted, hosted.log)

    def _on_flushed(self, hosted: Replica, partition_log: PartitionLog) -> None:
        if hosted.log is not partition_log or self._closed:
            return
        if hosted.leader is not None:
            self.on_leader_changed(hosted, hosted.leader.on_flushed(partition_log.flushed_offset))
        elif hosted.awaits_flush and partition_log.flushed_offset >= partition_log.end_offset:
            hosted.awaits_flush = False
            if hosted.follower is not None:
                self.on_follower_flushed(hosted)

    def on_leader_changed(self, hosted: Replica, watermark_moved: bool) -> None:
        """What a leader knows has changed: parked produces may be decided by it, whether its watermark moved or not."""
        if watermark_moved:
            self.on_watermark(hosted)
        else:
            self.answer_parked(hosted)

    def on_watermark(self, hosted: Replica) -> None:
        """The watermark of a replica moved: tell the log, the waiting and the checkpoint."""
        role = hosted.leader or hosted.follower
        assert role is not None, hosted
        if hosted.log is not None:
            hosted.log.advance_high_watermark(role.high_watermark)
        self.unsaved_watermarks[hosted.partition] = None
        if hosted.leader is not None:
            self.answer_parked(hosted)
            hosted.touch(self.fetch_service.wake, consumers=True, followers=False)

    def on_role_changed(self, hosted: Replica) -> None:
        """Whoever waits for this replica looks again."""
        if hosted.leader is None:
            self.refuse_parked(hosted, Code.NOT_LEADER_OR_FOLLOWER)
        else:
            self.answer_parked(hosted)
        hosted.touch(self.fetch_service.wake, consumers=True, followers=True)

    def take_offline(self, hosted: Replica, error: Exception) -> None:
        """This replica can be neither read nor written any more."""
        if hosted.log is None:
            return
        log.error("replica offline", topic=hosted.topic, partition=hosted.key.index, cause=str(error))
        directory_id = hosted.log.directory_id
        hosted.log = None
        hosted.offline = str(error)
        hosted.leader = hosted.follower = None
        self.on_offline(hosted)
        self.refuse_parked(hosted, Code.KAFKA_STORAGE_ERROR)
        hosted.touch(self.fetch_service.wake, consumers=True, followers=True)
        if isinstance(error, DiskError):
            self.on_disk_failure(directory_id, error)
        elif isinstance(error, CorruptStoreError) and hosted.key in self.logs.logs:
            self.logs.take_offline(hosted.key, error)

    # -- fetch and offsets

    async def fetch(self, request: FetchPlan) -> FetchReply:
        """Long poll, for consumers and followers.  A cancel leaves nothing behind."""
        return await self.fetch_service.fetch(request)

    async def list_offset(
        self, topic: str, index: int, timestamp: int, current_leader_epoch: int = NO_EPOCH
    ) -> ListOffsetResult:
        """The first offset at or after `timestamp`, or one of the named places of `broker.kafka.api`."""
        found = self._readable(topic, index, current_leader_epoch)
        if isinstance(found, Code):
            return ListOffsetResult(int(found))
        leader, partition_log, hosted = found
        watermark = leader.high_watermark
        try:
            if timestamp == LATEST_TIMESTAMP:
                if not leader.latest_known():
                    return ListOffsetResult(int(Code.OFFSET_NOT_AVAILABLE))
                return ListOffsetResult(int(Code.NONE), watermark, -1, leader.leader_epoch)
            if timestamp == EARLIEST_TIMESTAMP or timestamp < LAST_TIERED_TIMESTAMP:
                start = partition_log.start_offset
                return ListOffsetResult(int(Code.NONE), start, -1, _epoch_at(partition_log, start, leader))
            if timestamp == MAX_TIMESTAMP:
                place = await self._look_up(partition_log.max_timestamp_offset, watermark)
            elif timestamp < 0:
                return ListOffsetResult(int(Code.NONE))
            else:
                place = await self._look_up(partition_log.offset_for_timestamp, timestamp, watermark)
        except (DiskError, CorruptStoreError) as error:
            self.take_offline(hosted, error)
            return ListOffsetResult(int(Code.KAFKA_STORAGE_ERROR))
        if place is None:
            # Nothing that is committed is so late; but an older leader may have shown more.
            return ListOffsetResult(int(Code.NONE if leader.latest_known() else Code.OFFSET_NOT_AVAILABLE))
        return ListOffsetResult(int(Code.NONE), place.offset, place.timestamp, place.leader_epoch)

    async def _look_up(
        self, find: Callable[..., Coroutine[Any, Any, TimestampOffset | None]], *arguments: int
    ) -> TimestampOffset | None:
        """In its turn.  A cancel while it runs keeps the turn until it has ended: its thread goes on, too."""
        await self._time_lookups.acquire()
        work = asyncio.ensure_future(find(*arguments))
        work.add_done_callback(self._looked_up)
        return await asyncio.shield(work)

    def _looked_up(self, work: asyncio.Future[TimestampOffset | None]) -> None:
        self._time_lookups.release()
        if not work.cancelled():
            work.exception()  # read: whoever asked may have gone

    def epoch_end(
        self, topic: str, index: int, leader_epoch: int, current_leader_epoch: int = NO_EPOCH
    ) -> EpochEndResult:
        found = self._readable(topic, index, current_leader_epoch)
        if isinstance(found, Code):
            return EpochEndResult(int(found))
        epoch, end = found[1].epochs.end_of(leader_epoch)
        return EpochEndResult(int(Code.NONE), epoch, end)

    def _readable(
        self, topic: str, index: int, current_leader_epoch: int
    ) -> tuple[LeaderState, PartitionLog, Replica] | Code:
        hosted = self.by_name.get((topic, index))
        if hosted is None:
            return self._absent(topic, index)[0]
        if hosted.log is None:
            return Code.KAFKA_STORAGE_ERROR
        leader = self.leads(hosted)
        if leader is None:
            return Code.NOT_LEADER_OR_FOLLOWER
        code = check_leader_epoch(current_leader_epoch, leader.leader_epoch)
        return (leader, hosted.log, hosted) if code is Code.NONE else code

    async def allocate_producer_id(self) -> ProducerIdResult:
        if self._producer_ids is None:
            return ProducerIdResult(int(Code.COORDINATOR_NOT_AVAILABLE))
        return await self._producer_ids.next()

    # -- life

    def close(self) -> None:
        """Serve nobody any more: everything parked is answered."""
        self._closed = True
        self._checks.refuse_all(Code.NOT_LEADER_OR_FOLLOWER)
        for hosted in list(self.hosted.values()):
            self.refuse_parked(hosted, Code.NOT_LEADER_OR_FOLLOWER)
        self.fetch_service.close()


def _epoch_at(partition_log: PartitionLog, offset: int, leader: LeaderState) -> int:
    if offset >= partition_log.end_offset:
        return leader.leader_epoch
    return partition_log.epochs.epoch_of(offset)


def _admission_text(refusal: Code, leader: LeaderState, acks: int) -> str:
    if refusal is Code.NOT_ENOUGH_REPLICAS:
        return f"{len(leader.isr)} replicas are in sync, {leader.min_isr} are needed"
    return f"acks={acks} is none of -1, 0, 1"
