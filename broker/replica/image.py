"""Carries the metadata out: which replicas this broker has, and in which role.

Theory of operation
-------------------
The replay tells of each committed batch, synchronously; here that only notes *which* partitions it touched.  A task of
its own then brings those partitions to what the newest image says: state is compared, not replayed, so any number of
batches that came meanwhile cost one pass, what waits is bounded by the number of partitions, and carrying out one
record twice changes nothing.  The task gives the loop back every 10 ms.

Nothing is carried out before this process's own registration has been replayed (`activate`): what an earlier
incarnation led or followed is history, and a leadership counts only when its record is younger than the registration.
From that moment the image is complete as far as this broker goes, so what is on disk and not in it is a stray.

When the quorum was rebuilt by hand since a data directory was last used, the image may lack what was true before
(design §4.11): then every stray, found now or earlier, is kept until somebody says otherwise.

A leadership change touches no file: the epoch goes into memory, and into the log with the first batch.

A topic that gets another id (it has fewer partitions now) keeps its replicas: folders are named with the id that it was
created with.  Under the new id their roles begin anew, as after a short absence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.core.partition import Assignment, FollowerState, LeaderState, Limits
from broker.log import LogConfig, LogKey, PartitionLog
from broker.log.turns import Turn
from broker.replica.fetchers import Fetchers
from broker.replica.isr import IsrKeeper
from broker.replica.limits import ReplicaLimits
from broker.replica.progress import AppliedBatches, Progress
from broker.replica.replica import Replica
from broker.replica.replica_manager import ReplicaManager
from broker.replica.watermarks import Watermarks
from metadata.image import ClusterImage, PartitionImage, delta, indexes
from metadata.records import LOST, UNASSIGNED, ConfigScope, Record
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import now_ms
from quorumlog.runtime.disk import Disk, DiskError
from quorumlog.runtime.logging import get_logger

log = get_logger("broker")

GENERATION = "broker/generation"
"""Fact: the generation of the quorum under which the directory's strays were last looked for."""


class ImageFollower:
    """on_applied: told of each end offset that is carried out.  on_unassigned: replicas whose directory is to be told
    to the controller."""

    def __init__(
        self,
        replicas: ReplicaManager,
        fetchers: Fetchers,
        isr: IsrKeeper,
        watermarks: Watermarks,
        progress: Progress,
        applied: AppliedBatches,
        *,
        disks: Sequence[Disk],
        generation: Callable[[], int],
        lag_max_ms: int,
        lag_max_bytes: int,
        on_applied: Callable[[int], None],
        on_unassigned: Callable[[PartitionKey, UUID], None],
    ) -> None:
        self._replicas = replicas
        self._fetchers = fetchers
        self._isr = isr
        self._watermarks = watermarks
        self._progress = progress
        self._applied = applied
        self._disks = tuple(disks)
        self._directory_ids = tuple(disk.directory_id for disk in disks)
        self._generation = generation
        self._lag_max_ms = lag_max_ms
        self._lag_max_bytes = lag_max_bytes
        self._on_applied = on_applied
        self._on_unassigned = on_unassigned
        self._latest = ClusterImage()
        self._touched: dict[PartitionKey, None] = {}
        self._brokers: set[int] = set()
        self._configs: set[UUID] = set()
        self._all_configs = False
        self._active = False
        self._everything = False
        self._wait_for = -1
        self._news = asyncio.Event()
        self._log_configs: dict[UUID, LogConfig] = {}
        self._strays_done = False
        self.strays_known = False  # what on the disks is a stray has been found out, from a complete image

    # -- what the replay says

    def on_batch(
        self,
        old: ClusterImage,
        new: ClusterImage,
        records: Sequence[Record] | None,
        base_offset: int,
        end_offset: int,
        timestamp_ms: int,
    ) -> None:
        """A subscriber of `MetadataReplay`."""
        self._latest = new
        self._progress.received_offset = end_offset
        if records:
            self._applied.received(end_offset)
        elif records is None:
            self._applied.begin(end_offset)
        # Who is fenced, and whose registration is in force, holds from now on, whatever is still to be carried out.
        self._replicas.brokers.image = new
        if self._active:
            if records is None:
                self._note_everything(old, new)
            else:
                self._note(old, new, records)
        self._news.set()

    def _note(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record]) -> None:
        change = delta(old, new, records)
        for topic_id in change.topics_removed:
            for index in range(len(old.topics[topic_id].partitions)):
                self._touched[PartitionKey(topic_id, index)] = None
        for topic_id, new_id in change.topics_renewed.items():
            for index in range(len(old.topics[topic_id].partitions)):
                self._touched[PartitionKey(topic_id, index)] = None
                self._touched[PartitionKey(new_id, index)] = None
        for topic_id, touched in change.partitions.items():
            for index in touched:
                self._touched[PartitionKey(topic_id, index)] = None
        self._brokers.update(change.brokers)
        for scope, resource in change.configs:
            if scope is ConfigScope.TOPIC:
                self._configs.add(UUID(resource))
            elif scope is ConfigScope.CLUSTER:
                self._all_configs = True
        self._progress.pending_changes = len(self._touched)

    def _note_everything(self, old: ClusterImage, new: ClusterImage) -> None:
        """A snapshot took the place of batches: whatever this broker had, or has now, is looked at."""
        self._everything = True
        self._brokers.update(old.brokers, new.brokers)
        self._all_configs = True
        self._progress.pending_changes = new.replica_count(self._replicas.broker_id)

    def start_at(self, image: ClusterImage) -> None:
        """What was replayed before this subscribed."""
        self._latest = image
        self._replicas.brokers.image = image
        self._progress.received_offset = image.end_offset
        self._applied.begin(image.end_offset)
        self._news.set()

    def activate(self, broker_epoch: int) -> None:
        """This process is registered: carry out everything from the image that holds the registration on."""
        self._replicas.broker_epoch = broker_epoch
        self._wait_for = broker_epoch
        self._news.set()

    # -- carrying it out

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._wait_for < 0 or self._latest.end_offset <= self._wait_for:
                continue
            if not self._active:
                self._active = self._everything = True
            if self._everything:
                await self._touch_everything()
            await self._carry_out()

    async def _touch_everything(self) -> None:
        """Whatever this broker has, or has by the newest image; what changes meanwhile is noted as ever."""
        self._everything = False
        turn = Turn()
        for key in list(self._replicas.hosted):
            self._touched[key] = None
            await turn.passed()
        for topic_id, mask in self._latest.hostings(self._replicas.broker_id).items():
            for index in indexes(mask):
                self._touched[PartitionKey(topic_id, index)] = None
                await turn.passed()

    async def _carry_out(self) -> None:
        image = self._latest
        touched = sorted(self._touched)
        self._touched.clear()
        changed_brokers, self._brokers = self._brokers, set()
        await self._refresh_configs(image)
        self._fetchers.set_throttle(int(image.cluster_config("reassignment.throttle.bytes.per.second")))
        await self._renew(touched, image)
        # What goes, goes first: a topic that was made anew has the name of the one before.
        turn = Turn()
        gone: list[PartitionKey] = []
        for key in touched:
            if self._is_gone(key, image):
                gone.append(key)
            await turn.passed()
        if gone:
            await self._remove(gone)
        for done, key in enumerate(touched):
            self._bring(key, image)
            self._progress.pending_changes = len(touched) - done + len(self._touched)
            await turn.passed()
        self._replicas.image = image
        self._progress.pending_changes = len(self._touched)
        if changed_brokers:
            self._on_brokers(changed_brokers, image)
        if not self._strays_done:
            self._strays_done = True
            await self._set_strays_aside()
        self._applied.completed(image.end_offset)
        self._on_applied(image.end_offset)

    def _mine(self, key: PartitionKey, image: ClusterImage) -> PartitionImage | None:
        partition = image.partition(*key)
        if partition is None or partition.replica(self._replicas.broker_id) is None:
            return None
        return partition

    def _is_gone(self, key: PartitionKey, image: ClusterImage) -> bool:
        hosted = self._replicas.hosted.get(key)
        if hosted is None:
            return False
        partition = self._mine(key, image)
        return partition is None or partition.created != hosted.key.created

    async def _renew(self, touched: list[PartitionKey], image: ClusterImage) -> None:
        """Bring replicas of topics that have another id now under that id."""
        turn = Turn()
        for key in touched:
            await turn.passed()
            hosted = self._replicas.hosted.get(key)
            topic = None if hosted is None else image.topic(hosted.topic)
            if hosted is None or topic is None or topic.topic_id == key.topic_id:
                continue
            new_key = PartitionKey(topic.topic_id, key.partition_index)
            partition = self._mine(new_key, image)
            if partition is None or (topic.origin, partition.created) != (hosted.key.topic_id, hosted.key.created):
                continue
            self._fetchers.remove(hosted)
            partition_log = hosted.log
            moved = hosted.renewed(topic.topic_id, partition)
            if partition_log is not None:
                partition_log.config = self._config(topic.topic_id, image)  # a change was noted under the old id
                self._replicas.attach(moved, partition_log)
            del self._replicas.hosted[key]
            self._replicas.hosted[new_key] = moved
            self._replicas.by_name[(topic.name, key.partition_index)] = moved
            self._replicas.on_role_changed(hosted)
            self._replicas.ensure_flush(moved)
            self._tell_directory(moved)

    async def _remove(self, keys: list[PartitionKey]) -> None:
        """Stop serving these replicas and set their folders aside; they are deleted later."""
        removed: list[LogKey] = []
        turn = Turn()
        for key in keys:
            await turn.passed()
            hosted = self._replicas.hosted.pop(key)
            self._replicas.by_name.pop((hosted.topic, hosted.key.index), None)
            self._fetchers.remove(hosted)
            hosted.leader = hosted.follower = None
            removed.append(hosted.key)
            hosted.log = None
            hosted.offline = "deleted"
            self._replicas.on_role_changed(hosted)
            self._watermarks.forget(hosted.key)
        try:
            await self._replicas.logs.set_aside(removed, self._replicas.sources.wall_ms())
        except DiskError as error:
            log.error("replicas not set aside", count=len(removed), cause=str(error))

    def _bring(self, key: PartitionKey, image: ClusterImage) -> None:
        """Bring one replica to what the image says."""
        partition = self._mine(key, image)
        if partition is None:
            return
        hosted = self._replicas.hosted.get(key)
        if hosted is None:
            hosted = self._open(key, partition, image)
        hosted.image = partition
        if hosted.log is None:
            return
        try:
            if partition.leader == self._replicas.broker_id:
                if partition.last_offset > self._replicas.broker_epoch:
                    self._lead(hosted, partition, image)
            else:
                self._follow(hosted, partition)
        except (DiskError, CorruptStoreError) as error:
            self._replicas.take_offline(hosted, error)

    def _open(self, key: PartitionKey, partition: PartitionImage, image: ClusterImage) -> Replica:
        topic = image.topics[key.topic_id]
        log_key = LogKey(topic.origin, key.partition_index, partition.created)
        hosted = Replica(log_key, key.topic_id, topic.name, partition)
        self._replicas.hosted[key] = hosted
        self._replicas.by_name[(topic.name, key.partition_index)] = hosted
        logs = self._replicas.logs
        replica = partition.replica(self._replicas.broker_id)
        assert replica is not None, (key, partition)
        if log_key in logs.doubles:
            logs.settle(log_key, replica.directory_id)
        failure = logs.failures.get(log_key)
        if failure is not None:
            hosted.offline = str(failure)
            log.error("replica offline", topic=topic.name, partition=key.partition_index, cause=hosted.offline)
            self._tell_directory(hosted)
            return hosted
        found = logs.get(log_key)
        if found is None:
            failed = self._may_be_on_failed(partition, replica.directory_id)
            if failed is not None:
                hosted.offline = f"it may be in {failed}, which is offline"
                self._on_unassigned(key, failed)
                return hosted
            directory_id = self._choose_directory(replica.directory_id)
            if directory_id is None:
                hosted.offline = f"its directory {replica.directory_id} is offline"
                return hosted
            found = logs.create(log_key, topic.name, directory_id, self._config(key.topic_id, image))
        else:
            found.config = self._config(key.topic_id, image)
        found.advance_high_watermark(min(self._watermarks.restored(log_key), found.end_offset))
        self._replicas.attach(hosted, found)
        self._tell_directory(hosted)
        return hosted

    def _tell_directory(self, hosted: Replica) -> None:
        """Have the controller told where this replica is, if it has it elsewhere."""
        replica = hosted.image.replica(self._replicas.broker_id)
        assert replica is not None, hosted.image
        if hosted.log is not None:
            directory_id = hosted.log.directory_id
        elif hosted.key in self._replicas.logs.failures:
            directory_id = LOST
        else:
            return
        if replica.directory_id != directory_id:
            self._on_unassigned(hosted.partition, directory_id)

    def _may_be_on_failed(self, partition: PartitionImage, assigned: UUID) -> UUID | None:
        """A directory that failed as this process started, if a replica that counts may be in it: where it is was never
        told, and it is on none of the others.  Begun anew it would be taken for what it was."""
        own_id = self._replicas.broker_id
        if self._strays_done or assigned != UNASSIGNED or own_id not in (*partition.isr, *partition.elr):
            return None
        offline = self._replicas.logs.failed_disks
        return next((each for each in self._directory_ids if each in offline), None)

    def _choose_directory(self, assigned: UUID) -> UUID | None:
        """The assigned one; when none is, the one with the fewest replicas; None when the assigned one has failed.

        An assigned one that this broker does not have is a disk that was replaced: the replica begins anew on another,
        empty and outside the ISR, from which the broker's registration without that directory has taken it.
        """
        offline = self._replicas.logs.failed_disks
        working = [each for each in self._directory_ids if each not in offline]
        if assigned in self._directory_ids:
            return assigned if assigned in working else None
        if len(working) <= 1:
            return working[0] if working else None
        counts = dict.fromkeys(working, 0)
        for hosted in self._replicas.hosted.values():
            if hosted.log is not None and hosted.log.directory_id in counts:
                counts[hosted.log.directory_id] += 1
        return min(working, key=lambda each: (counts[each], each))

    # -- roles

    def _lead(self, hosted: Replica, partition: PartitionImage, image: ClusterImage) -> None:
        assert hosted.log is not None, hosted
        assignment = _assignment(partition)
        leader = hosted.leader
        if leader is not None and hosted.role_epoch == partition.leader_epoch:
            self._replicas.on_leader_changed(hosted, leader.on_assignment(assignment, now_ms()))
            if leader.under_replicated:
                self._isr.consider(hosted)
            return
        self._fetchers.remove(hosted)
        partition_log = hosted.log
        partition_log.begin_epoch(partition.leader_epoch)
        watermark = partition_log.high_watermark
        leader = LeaderState(
            self._replicas.broker_id,
            assignment,
            log_end=partition_log.end_offset,
            flushed_end=partition_log.flushed_offset,
            high_watermark=watermark,
            cluster=self._replicas.brokers,
            limits=self._limits(hosted.topic_id, image),
            now_ms=now_ms(),
            size_from=partial(_size_from, partition_log),
        )
        hosted.follower = None
        hosted.leader = leader
        hosted.role_epoch = partition.leader_epoch
        if leader.high_watermark > watermark:
            self._replicas.on_watermark(hosted)
        self._replicas.on_role_changed(hosted)
        self._replicas.ensure_flush(hosted)
        log.debug("leading", replica=repr(hosted), epoch=partition.leader_epoch, end=partition_log.end_offset)

    def _follow(self, hosted: Replica, partition: PartitionImage) -> None:
        assert hosted.log is not None, hosted
        follower = hosted.follower
        if follower is not None and hosted.role_epoch == partition.leader_epoch:
            self._fetchers.reconsider(hosted)
            return
        hosted.leader = None
        hosted.follower = FollowerState(partition.leader, partition.leader_epoch, hosted.log.high_watermark)
        hosted.role_epoch = partition.leader_epoch
        self._replicas.on_role_changed(hosted)
        self._fetchers.assign(hosted)

    def _on_brokers(self, broker_ids: set[int], image: ClusterImage) -> None:
        for broker_id in sorted(broker_ids):
            broker = image.brokers.get(broker_id)
            if broker is None or broker.fenced:
                self._replicas.fetch_service.close_sessions_of(broker_id)
        self._isr.consider_missing()

    # -- configs

    def _config(self, topic_id: UUID, image: ClusterImage) -> LogConfig:
        found = self._log_configs.get(topic_id)
        if found is None:
            found = self._log_configs[topic_id] = log_config(image, topic_id, self._replicas.limits)
        return found

    def _limits(self, topic_id: UUID, image: ClusterImage) -> Limits:
        min_isr = int(image.topic_config(topic_id, "min.insync.replicas"))
        return Limits(self._lag_max_ms, min_isr, self._lag_max_bytes)

    async def _refresh_configs(self, image: ClusterImage) -> None:
        if self._all_configs:
            changed = {hosted.topic_id for hosted in self._replicas.hosted.values()}
            self._log_configs.clear()
        else:
            changed = self._configs
        self._configs, self._all_configs = set(), False
        turn = Turn()
        for topic_id in sorted(changed):
            self._log_configs.pop(topic_id, None)
            topic = image.topics.get(topic_id)
            if topic is None:
                continue
            for index in range(len(topic.partitions)):
                await turn.passed()
                hosted = self._replicas.hosted.get(PartitionKey(topic_id, index))
                if hosted is not None and hosted.log is not None:
                    hosted.log.config = self._config(topic_id, image)
                    if hosted.leader is not None:
                        moved = hosted.leader.on_limits(self._limits(topic_id, image))
                        self._replicas.on_leader_changed(hosted, moved)

    # -- strays

    async def _set_strays_aside(self) -> None:
        """Replicas on disk that the image does not have: deleted, or moved away, while this broker was off."""
        known = {hosted.key for hosted in self._replicas.hosted.values()}
        logs = self._replicas.logs
        strays = sorted(key for key in (*logs.logs, *logs.failures) if key not in known)
        generation = self._generation()
        working = [disk for disk in self._disks if disk.directory_id not in logs.failed_disks]
        rebuilt = [disk for disk in working if _fact_number(disk, GENERATION) < generation]
        try:
            if rebuilt:
                await logs.keep_strays()
            if strays:
                self._tell_strays(strays, rebuilt=bool(rebuilt))
                for key in strays:
                    self._watermarks.forget(key)
                await logs.set_aside(strays, self._replicas.sources.wall_ms(), keep=bool(rebuilt))
            await logs.set_doubles_aside(self._replicas.sources.wall_ms(), keep=bool(rebuilt))
            for disk in rebuilt:
                await disk.facts.commit({GENERATION: b"%d" % generation})
        except DiskError as error:
            log.error("strays not set aside", count=len(strays), cause=str(error))
            return
        self.strays_known = True

    def _tell_strays(self, strays: list[LogKey], rebuilt: bool) -> None:
        if not rebuilt:
            log.warning("strays set aside", count=len(strays))
            return
        named = [each.topic for key in strays if (each := self._replicas.logs.get(key)) is not None]
        log.error(
            "the rebuilt quorum does not know these replicas: set aside, and kept",
            count=len(strays),
            topics=",".join(sorted(set(named))[:20]),
            next="look at them; `kctl brokers purge-strays` deletes them",
        )


def _fact_number(disk: Disk, name: str) -> int:
    value = disk.facts.load(name).get(name, b"")
    return int(value) if value.isdigit() else 0


def _size_from(partition_log: PartitionLog, offset: int) -> int:
    """Damage is found, and told, by who reads the records; here it only means that nothing is known."""
    try:
        return partition_log.size_from(offset)
    except (DiskError, CorruptStoreError):
        return 0


def _assignment(partition: PartitionImage) -> Assignment:
    return Assignment(
        partition.replica_ids,
        partition.isr,
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        partition.adding,
    )


def log_config(image: ClusterImage, topic_id: UUID, limits: ReplicaLimits) -> LogConfig:
    """Return a topic's settings as its log takes them."""
    value = partial(image.topic_config, topic_id)
    return LogConfig(
        segment_size_max=min(int(value("segment.bytes")), limits.segment_size_max),
        segment_age_max_ms=min(int(value("segment.ms")), limits.segment_age_max_ms),
        retention_ms=int(value("retention.ms")),
        retention_size=int(value("retention.bytes")),
        message_size_max=int(value("max.message.bytes")),
        write_caching=value("write.caching") == "true",
        compressed_records_checked=value("compression.validation.enable") == "true",
        producer_expiration_ms=limits.producer_expiration_ms,
        index_interval=limits.index_interval_bytes,
    )
