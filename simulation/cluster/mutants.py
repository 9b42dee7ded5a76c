"""Known mistakes of brokers and controllers, planted one at a time to show that the cluster's simulator finds them.

Most of them are bugs that other systems have had.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any
from unittest.mock import patch
from uuid import UUID

import msgspec
from msgspec.structs import replace

from broker.coordinator.partition import Coordinator
from broker.core.coordinator import offset_requests
from broker.core.fetch_session import SessionCache
from broker.core.partition import UNKNOWN_END, Answer, FollowerState, LeaderState
from broker.core.producer_state import ACCEPT, Duplicate, ProducerState
from broker.log import Appended, LogConfig, LogKey, LogManager, PartitionLog
from broker.log import manager as log_manager
from broker.log.cleaning import job as cleaning_job
from broker.log.cleaning.swap import swap_files
from broker.log.compaction import LogCompaction
from broker.log.directory import LogDirectory
from broker.log.marks import LogMarks
from broker.log.producers import LogProducers
from broker.log.segment import Segment
from broker.log.state import empty_state
from broker.log.upkeep import LogUpkeep
from broker.replica import fetch
from broker.replica.fetch import FetchService
from broker.replica.fetcher import Fetcher
from broker.replica.image import ImageFollower
from broker.replica.replica import Replica
from broker.server.role import BrokerRole
from metadata import codec
from metadata.control import brokers, features, partitions, reassign
from metadata.image import BrokerImage, ClusterImage, PartitionImage
from metadata.records import Feature, RegisterBroker
from quorum.core.types import Batch, Voters
from quorum.core.voters import VoterHistory
from quorumlog.errors import CorruptStoreError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import BatchRefusal, check_batches
from quorumlog_server import recover
from simulation.cluster import disaster as cluster_disaster
from simulation.cluster import (
    member_mutants,
    move_mutants,
    pipeline_mutants,
    recompression_mutants,
    scope_mutants,
    transaction_mutants,
    worker_mutants,
)
from simulation.cluster.offset_map_twin import OffsetMapTwin
from simulation.kernel.disk import SimulatedDisk
from simulation.kernel.loop import EPOCH_MS
from simulation.kernel.mutation import Mutant, mutant_of

MUTANTS: list[Mutant] = []

_mutant = mutant_of(MUTANTS)


# Truncation and divergence


@_mutant("a follower truncates its log to the watermark")
def _cuts_at_the_watermark() -> list[Any]:
    """As before KIP-101: the follower loses committed records above the watermark that it knows."""
    follow = Replica.follow

    def cut(self: Replica) -> None:
        log = self.log
        if log is not None and self.role_epoch != self.image.leader_epoch:
            log.truncate_to(max(log.high_watermark, log.truncation_floor, log.start_offset))
        follow(self)

    return [patch.object(Replica, "follow", cut)]


@_mutant("a leader does not check for divergence")
def _no_divergence() -> list[Any]:
    def check(fetch_offset: int, last_epoch: int, log_start: int, epochs: Any, *, is_replica: bool) -> KafkaCode:
        return KafkaCode.NONE if log_start <= fetch_offset <= epochs.end_offset else KafkaCode.OFFSET_OUT_OF_RANGE

    return [patch.object(fetch, "check_position", check)]


@_mutant("divergence is applied after the watermark")
def _watermark_first() -> list[Any]:
    """KAFKA-14704."""
    apply = Fetcher._apply

    async def watermark_first(
        self: Fetcher,
        key: Any,
        replica: Replica,
        log: PartitionLog,
        follower: FollowerState,
        target: Any,
        part: Any,
        *more: Any,
    ) -> None:
        if part.diverging_epoch >= 0:
            replica.follow_watermark(part.high_watermark)
        await apply(self, key, replica, log, follower, target, part, *more)

    return [patch.object(Fetcher, "_apply", watermark_first)]


@_mutant("producers are not rebuilt after a truncation")
def _producers_survive() -> list[Any]:
    truncated = LogProducers.truncated

    def keep(self: LogProducers, end_offset: int) -> None:
        state = self._state
        truncated(self, end_offset)
        self._state = state

    return [patch.object(LogProducers, "truncated", keep)]


# Maintenance


@_mutant("an empty log matches any position")
def _empty_logs_fit() -> list[Any]:
    """If retention has emptied a replica's log, only the bounds of the leader's log are checked, not epochs."""
    check = FetchService._check

    def by_bounds(self: FetchService, entry: Any, replica_id: int, found: Any) -> Any:
        log = found.log
        if entry.fetch_offset == entry.log_start_offset > 0 and log.start_offset <= entry.fetch_offset:
            return KafkaCode.NONE if entry.fetch_offset <= log.end_offset else KafkaCode.OFFSET_OUT_OF_RANGE
        return check(self, entry, replica_id, found)

    return [patch.object(FetchService, "_check", by_bounds)]


@_mutant("retention deletes uncommitted records")
def _deletes_uncommitted() -> list[Any]:
    def advance(self: LogMarks, offset: int) -> None:
        if offset > self.start_offset:
            self.start_offset = offset
            self.epochs.drop_before(offset)
            self.is_changed = True

    retained = LogUpkeep.retained_start

    def flushed(self: LogUpkeep, config: LogConfig, *clocks: int) -> int:
        marks = self._marks
        watermark, marks.high_watermark = marks.high_watermark, marks.end_offset
        try:
            return retained(self, config, *clocks)
        finally:
            marks.high_watermark = watermark

    return [
        patch.object(LogMarks, "advance_start_offset", advance),
        patch.object(LogUpkeep, "retained_start", flushed),
    ]


@_mutant("retention deletes one segment too many")
def _deletes_too_much() -> list[Any]:
    retained = LogUpkeep.retained_start

    def one_more(self: LogUpkeep, config: LogConfig, *clocks: int) -> int:
        start = retained(self, config, *clocks)
        ends = [one.end_offset for one in self._segments.all if one.end_offset > start]
        return ends[0] if start > self._marks.start_offset and ends else start

    return [patch.object(LogUpkeep, "retained_start", one_more)]


@_mutant("producers expire when the wall clock jumps")
def _expire_by_wall_clock() -> list[Any]:
    maintain = LogManager.maintain

    async def by_wall_clock(self: LogManager, read_ms: Callable[[], int], wall_ms: int) -> None:
        now_ms = read_ms()
        for log in self.logs.values():
            for _, producer in log.producers:
                if abs(wall_ms - now_ms - EPOCH_MS) > log.config.producer_expiration_ms // 2:
                    producer.silent_since_ms = now_ms - log.config.producer_expiration_ms - 1
        for log in self.logs.values():
            log.producers.expire(now_ms, log.config.producer_expiration_ms, log.end_offset)
        await maintain(self, read_ms, wall_ms)

    return [patch.object(LogManager, "maintain", by_wall_clock)]


@_mutant("a stray is deleted immediately")
def _strays_are_not_kept() -> list[Any]:
    delete = LogManager.delete_strays

    async def at_once(self: LogManager, now_ms: int, kept_ms: int, unreported: Collection[LogKey] = ()) -> int:
        return await delete(self, now_ms, -1, unreported)

    return [patch.object(LogManager, "delete_strays", at_once)]


# Compaction


@_mutant("the last record of a key is removed as well")
def _removes_the_last() -> list[Any]:
    class LaterMap(OffsetMapTwin):
        def latest(self, key: bytes) -> int:
            found = super().latest(key)
            return found + 1 if found >= 0 else found

    return [patch.object(cleaning_job, "OffsetMap", LaterMap)]


@_mutant("records are compacted before they are committed")
def _compacts_uncommitted() -> list[Any]:
    dirty, replaced = LogCompaction.dirty, LogCompaction.replaced

    def early(method: Any) -> Any:
        def with_all(self: LogCompaction, *about: Any) -> Any:
            marks = self._marks
            watermark, marks.high_watermark = marks.high_watermark, marks.end_offset
            try:
                return method(self, *about)
            finally:
                marks.high_watermark = watermark

        return with_all

    return [
        patch.object(LogCompaction, "dirty", early(dirty)),
        patch.object(LogCompaction, "replaced", early(replaced)),
    ]


@_mutant("tombstones are removed without waiting")
def _tombstones_vanish() -> list[Any]:
    plan = LogCompaction.plan

    def at_once(self: LogCompaction, config: LogConfig, *about: Any) -> Any:
        return plan(self, replace(config, delete_retention_ms=0), *about)

    return [patch.object(LogCompaction, "plan", at_once)]


@_mutant("min.compaction.lag.ms is ignored")
def _no_lag() -> list[Any]:
    dirty = LogCompaction.dirty

    def everything(self: LogCompaction, config: LogConfig, wall_ms: int) -> Any:
        return dirty(self, replace(config, compaction=config.compaction._replace(min_lag_ms=0)), wall_ms)

    return [patch.object(LogCompaction, "dirty", everything)]


@_mutant("keys with the same beginning count as one")
def _keys_collide() -> list[Any]:
    class CollidingMap(OffsetMapTwin):
        def put(self, key: bytes, offset: int) -> bool:
            return super().put(key[:5], offset)

        def latest(self, key: bytes) -> int:
            return super().latest(key[:5])

    return [patch.object(cleaning_job, "OffsetMap", CollidingMap)]


@_mutant("a full map of keys does not limit the cleaned part")
def _map_overflows() -> list[Any]:
    """The oldest key is dropped instead.  A key that is not in the map counts as replaced by a later record."""

    class OverflowingMap(OffsetMapTwin):
        def put(self, key: bytes, offset: int) -> bool:
            while not super().put(key, offset):
                del self.offsets[next(iter(self.offsets))]
            return True

        def latest(self, key: bytes) -> int:
            found = super().latest(key)
            return 1 << 62 if found < 0 else found

    return [patch.object(cleaning_job, "OffsetMap", OverflowingMap)]


@_mutant("a swap that a crash interrupted is not finished")
def _swaps_stay_unfinished() -> list[Any]:
    return [patch.object(log_manager, "finish_swaps", lambda *_: None)]


@_mutant("a swap is decided before its segment is durable")
def _swaps_in_the_cache() -> list[Any]:
    flush = SimulatedDisk.flush

    async def without_replacements(self: SimulatedDisk, files: Any, folders: Any = ()) -> None:
        await flush(self, [file for file in files if not file.path.endswith(".cleaned")], folders)

    return [patch.object(SimulatedDisk, "flush", without_replacements)]


@_mutant("a swap replaces the files before the facts name the segment")
def _files_first() -> list[Any]:
    freeze = LogCompaction.freeze

    def at_once(self: LogCompaction, replaced: Any) -> None:
        freeze(self, replaced)
        swap_files(self._disk, self._folder, replaced[0].base_offset, replaced[-1].end_offset)

    return [patch.object(LogCompaction, "freeze", at_once)]


@_mutant("compaction removes the last batches of producers")
def _forgets_producers() -> list[Any]:
    plan = LogCompaction.plan

    def without(self: LogCompaction, *about: Any) -> Any:
        planned = plan(self, *about)
        job = msgspec.structs.replace(planned.job, protected=[], open_producers=[])
        return planned._replace(job=job, producers={})

    return [patch.object(LogCompaction, "plan", without)]


@_mutant("a deletion of records is answered before followers have made it")
def _deletes_alone() -> list[Any]:
    return [patch.object(LeaderState, "low_watermark", lambda self, own_start: own_start)]


@_mutant("a deletion of records is answered before it is durable")
def _deletes_in_memory() -> list[Any]:
    return [patch.object(PartitionLog, "durable_start_offset", property(lambda self: self.marks.start_offset))]


@_mutant("retention deletes records of a topic that is only compacted")
def _compacted_are_deleted() -> list[Any]:
    retained = LogUpkeep.retained_start

    def always(self: LogUpkeep, config: LogConfig, *clocks: int) -> int:
        return retained(self, replace(config, deletes=True), *clocks)

    return [patch.object(LogUpkeep, "retained_start", always)]


# Acknowledgements


@_mutant("a leader counts records that it has not flushed")
def _leader_unflushed() -> list[Any]:
    on_appended = LeaderState.on_appended

    def appended(self: LeaderState, log_end: int) -> None:
        on_appended(self, log_end)
        self.flushed_end = log_end

    return [patch.object(LeaderState, "on_appended", appended)]


@_mutant("a follower fetches from an offset that it has not flushed")
def _follower_unflushed() -> list[Any]:
    return [patch.object(PartitionLog, "flushed_offset", property(lambda self: self.end_offset))]


@_mutant("writes are acknowledged below min.insync.replicas")
def _below_min_isr() -> list[Any]:
    return [patch.object(LeaderState, "min_isr", property(lambda self: 1))]


@_mutant("a leader ignores a new min.insync.replicas")
def _old_limits() -> list[Any]:
    return [patch.object(Replica, "set_limits", lambda self, limits: None)]


@_mutant("a duplicate is acknowledged before the watermark")
def _duplicates_at_once() -> list[Any]:
    append = PartitionLog.append_as_leader

    def at_once(self: PartitionLog, *arguments: Any, **options: Any) -> Any:
        outcome = append(self, *arguments, **options)
        if isinstance(outcome, Appended) and outcome.duplicate:
            return outcome._replace(end_offset=0)
        return outcome

    return [patch.object(PartitionLog, "append_as_leader", at_once)]


@_mutant("a retry is not recognised")
def _no_duplicates() -> list[Any]:
    check = ProducerState.check

    def accept(self: ProducerState, *arguments: Any) -> Any:
        verdict = check(self, *arguments)
        return ACCEPT if isinstance(verdict, Duplicate) else verdict

    return [patch.object(ProducerState, "check", accept)]


# ISR


@_mutant("a proposed shrink counts before it is committed")
def _shrinks_at_once() -> list[Any]:
    propose = LeaderState.propose

    def at_once(self: LeaderState, now_ms: int) -> Any:
        proposal = propose(self, now_ms)
        if proposal is not None:
            self.isr = tuple([each for each in self.isr if each in proposal.members])
            self.advance()
        return proposal

    return [patch.object(LeaderState, "propose", at_once)]


@_mutant("a proposal is dropped on a timeout")
def _timeouts_refuse() -> list[Any]:
    on_answer = LeaderState.on_answer

    def refused(self: LeaderState, proposal: Any, answer: Answer, now_ms: int) -> bool:
        return on_answer(self, proposal, Answer.REFUSED if answer is Answer.UNKNOWN else answer, now_ms)

    return [patch.object(LeaderState, "on_answer", refused)]


@_mutant("a follower joins the ISR without the records at the leader's epoch start")
def _joins_early() -> list[Any]:
    in_sync = LeaderState._in_sync

    def any_end(self: LeaderState, broker_id: int, now_ms: int) -> bool:
        return in_sync(self, broker_id, now_ms) or self.followers[broker_id].end > UNKNOWN_END

    return [patch.object(LeaderState, "_in_sync", any_end)]


@_mutant("a fetch by an earlier incarnation counts")
def _old_incarnations_count() -> list[Any]:
    """KAFKA-15221: neither the leader nor the controller compares broker epochs."""
    on_fetch, check = LeaderState.on_fetch, partitions._check_members

    def counts(self: LeaderState, broker_id: int, broker_epoch: int, *more: Any) -> bool:
        return on_fetch(self, broker_id, self.cluster.broker_epoch(broker_id), *more)

    def members(image: ClusterImage, name: str, change: Any, partition: PartitionImage) -> Any:
        known = [member._replace(broker_epoch=_epoch_of(image, member.broker_id)) for member in change.isr]
        return check(image, name, replace(change, isr=tuple(known)), partition)

    return [
        patch.object(LeaderState, "on_fetch", counts),
        patch.object(partitions, "_check_members", members),
        patch.object(SessionCache, "close_replica", lambda self, replica_id: None),
    ]


def _epoch_of(image: ClusterImage, broker_id: int) -> int:
    broker = image.brokers.get(broker_id)
    return -1 if broker is None else broker.epoch


@_mutant("a stale ISR change is accepted")
def _stale_changes() -> list[Any]:
    check = partitions._check_change

    def any_epoch(image: ClusterImage, broker_id: int, change: Any, partition: Any) -> Any:
        if partition is not None:
            change = replace(change, partition_epoch=partition.partition_epoch)
        return check(image, broker_id, change, partition)

    return [patch.object(partitions, "_check_change", any_epoch)]


# Brokers and their disks


@_mutant("a broker keeps its epoch after a crash")
def _epochs_are_kept() -> list[Any]:
    register = brokers.register

    def same(image: ClusterImage, request: RegisterBroker, early_topics: frozenset[UUID], *, session_live: bool) -> Any:
        old = image.brokers.get(request.broker_id)
        if old is not None and set(old.directory_ids) == set(request.directory_ids):
            request = msgspec.structs.replace(request, incarnation_id=old.incarnation_id)
        return register(image, request, early_topics, session_live=session_live)

    return [patch.object(brokers, "register", same)]


@_mutant("an emptied disk is trusted")
def _emptied_disks_are_trusted() -> list[Any]:
    """Neither the registration nor the report of a new directory marks the replicas of the old directory as lost."""
    return [
        patch.object(brokers, "_lost_by", lambda *_: lambda topic, partition, replica: False),
        patch.object(BrokerImage, "directory_online", lambda self, directory_id: True),
    ]


@_mutant("an unclean stop loses nothing with write.caching")
def _caches_survive() -> list[Any]:
    lost_by = brokers._lost_by

    def as_if_clean(
        image: ClusterImage, old: BrokerImage, request: RegisterBroker, early_topics: frozenset[UUID]
    ) -> Any:
        return lost_by(image, old, msgspec.structs.replace(request, previous_broker_epoch=old.epoch), early_topics)

    return [patch.object(brokers, "_lost_by", as_if_clean)]


@_mutant("a segment is read unchecked")
def _reads_unchecked() -> list[Any]:
    return [patch.object(Segment, "_check", lambda *_: None)]


@_mutant("a read checks only checksums")
def _reads_checksums_only() -> list[Any]:
    def check(self: Segment, data: bytes, start: int, epoch_of: Any) -> None:
        if isinstance(refusal := check_batches(data), BatchRefusal):
            raise CorruptStoreError(f"{self.path} at position {start + refusal.position}: {refusal.reason}")

    return [patch.object(Segment, "_check", check)]


@_mutant("a damaged replica is silently replaced by an empty one")
def _damage_is_dropped() -> list[Any]:
    """A log that is found to be damaged, at the start or later, is treated as an empty folder."""

    def offline(self: LogManager, directory: LogDirectory, key: Any, folder: str, error: Any) -> None:
        self._adopt(PartitionLog(directory.disk, key, "damaged", folder, LogConfig(), empty_state(), self._recent))

    return [patch.object(LogManager, "_offline", offline)]


@_mutant("a follower's position never moves back")
def _followers_never_go_back() -> list[Any]:
    """A follower whose disk was restored from a backup has a lower position than before."""
    on_fetch = LeaderState.on_fetch

    def furthest(self: LeaderState, broker_id: int, broker_epoch: int, end: int, *more: Any) -> bool:
        follower = self.followers.get(broker_id)
        return on_fetch(self, broker_id, broker_epoch, max(end, follower.end) if follower and end else end, *more)

    return [patch.object(LeaderState, "on_fetch", furthest)]


@_mutant("strays are set aside before the metadata has caught up")
def _strays_early() -> list[Any]:
    def activate(self: ImageFollower, broker_epoch: int) -> None:
        self._cluster.own_epoch = broker_epoch
        self._cluster.newest = ClusterImage(end_offset=1)
        self._wait_for = 0
        self._news.set()

    return [patch.object(ImageFollower, "activate", activate)]


@_mutant("a failed disk is not reported")
def _failures_are_kept() -> list[Any]:
    def unheard(self: BrokerRole, directory_id: Any, error: Any) -> None:
        for replica in list(self.table):
            if replica.log is not None and replica.log.directory_id == directory_id:
                replica.take_offline(error)

    return [patch.object(BrokerRole, "_on_disk_failure", unheard)]


# Reassignments, elections, topics


@_mutant("a reassignment drops the old replicas before the new ones are in sync")
def _drops_early() -> list[Any]:
    completed = reassign._completed

    def early(image: ClusterImage, topic_id: Any, partition: Any, now: PartitionImage, *more: Any) -> Any:
        return completed(image, topic_id, partition, msgspec.structs.replace(now, adding=()), *more)

    return [patch.object(reassign, "_completed", early)]


@_mutant("leader epochs start over when a topic is recreated")
def _epochs_restart() -> list[Any]:
    return [patch.object(ClusterImage, "first_leader_epoch", lambda self, name, index: 0)]


# Voters


@_mutant("a node keeps the first voters that it learned")
def _voters_never_change() -> list[Any]:
    append = VoterHistory.append

    def first_only(self: VoterHistory, batch: Batch) -> bool:
        if isinstance(batch.control, Voters) and self.record is not None:
            return False
        return append(self, batch)

    return [patch.object(VoterHistory, "append", first_only)]


# A quorum that is rebuilt


@_mutant("a rebuilt quorum keeps the generation")
def _same_generation() -> list[Any]:
    plan_rebuild = recover.plan_rebuild

    def same(*about: Any) -> Any:
        plan = plan_rebuild(*about)
        state = replace(plan.write.state, generation=plan.generation - 1)
        first = plan.write.batches[0]
        assert isinstance(first.control, Voters)
        control = replace(first.control, generation=plan.generation - 1)
        batches = (replace(first, control=control), *plan.write.batches[1:])
        return dataclasses.replace(plan, write=dataclasses.replace(plan.write, state=state, batches=batches))

    return [patch.object(cluster_disaster, "plan_rebuild", same)]


# Feature levels


@_mutant("a level is raised that brokers do not support")
def _brokers_do_not_limit() -> list[Any]:
    refuse = features._refuse

    def by_our_own(feature: Any, wanted: int) -> Any:
        return refuse(replace(feature, highest=features.SUPPORTED[feature.name][-1]), wanted)

    return [patch.object(features, "_refuse", by_our_own)]


@_mutant("a node ignores a level that it does not support")
def _levels_are_skipped() -> list[Any]:
    return [patch.object(codec._Reader, "feature", lambda self, message: Feature(message.name, message.level))]


# Answers to clients


@_mutant("consumers see uncommitted records")
def _shows_all() -> list[Any]:
    return [patch.object(fetch, "_readable_end", lambda found, plan: found.log.end_offset)]


@_mutant("a new leader reports the latest offset too early")
def _latest_unknown() -> list[Any]:
    return [patch.object(LeaderState, "latest_known", lambda self: True)]


# Consumer groups


@_mutant("a coordinator answers before its records are committed")
def _answers_early() -> list[Any]:
    on_watermark = Coordinator.on_watermark

    def answered(self: Coordinator[Any]) -> None:
        while self._held_answers:
            answer = self._held_answers.popleft().answer
            self._answer(answer.call, answer.response)
        on_watermark(self)

    return [patch.object(Coordinator, "on_watermark", answered)]


@_mutant("a new coordinator does not read its partition")
def _begins_empty() -> list[Any]:
    async def load(self: Coordinator[Any]) -> Any:
        log = self._replica.log
        assert log is not None
        self._end_offset = log.end_offset
        return self._make_machine()

    return [patch.object(Coordinator, "_load", load)]


@_mutant("a commit of an earlier generation is accepted")
def _zombies_commit() -> list[Any]:
    return [patch.object(offset_requests, "commit_error", lambda *_, **__: KafkaCode.NONE)]


for _others in (
    transaction_mutants,
    scope_mutants,
    member_mutants,
    worker_mutants,
    recompression_mutants,
    move_mutants,
    pipeline_mutants,
):
    MUTANTS += _others.MUTANTS
