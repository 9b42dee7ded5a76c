"""Follows the metadata image: decides which replicas this broker hosts, and in which role.

Theory of operation
-------------------
The replay reports each committed batch synchronously, and `on_batch` only notes which partitions it touched.  A task
then brings these partitions to the state of the newest image.  It compares states and replays no changes, so one pass
covers any number of batches, the number of partitions bounds the queue, and applying a record twice changes nothing.
The task yields to the event loop every 10 ms.

Nothing is applied before this process's own registration has been replayed (`activate`).  A leadership counts only if
the last change of its partition is later than the registration, because an earlier leadership was meant for an earlier
process.  Once the registration has been replayed, the image is complete for this broker.  A log on disk that the image
does not assign to this broker is then a stray.

A change of leadership writes no file: the new epoch is kept in memory until the first batch brings it into the log.

A removed replica stops serving at once.  The pass then waits only briefly until the replica's folder is set aside,
because a directory that hangs must not delay replicas in other directories.  If the replica is assigned again
meanwhile, it is opened once its former folder is set aside.

A topic gets another id when its number of partitions is reduced.  It keeps its replicas, and their folders keep the id
with which the topic was created.  Under the new id the roles of the replicas start over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.log import LogKey
from broker.replica.configs import TopicConfigs
from broker.replica.directories import Directories
from broker.replica.progress import AppliedBatches, Progress
from broker.replica.strays import Strays
from broker.replica.table import ReplicaTable
from broker.replica.throttle import ReplicationThrottle
from broker.replica.watermarks import Watermarks
from metadata.image import ClusterImage, PartitionImage, delta, indexes
from metadata.records import ConfigScope, Record
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn

logger = get_logger("broker")

REMOVAL_WAIT_S = 1.0
"""Longest time that a pass, or a stop, waits until the folders of removed replicas are set aside."""


class ImageFollower:
    """Applies the metadata to the replicas of this broker.

    on_applied: called after each pass with the end offset of the applied metadata.
    """

    def __init__(
        self,
        table: ReplicaTable,
        configs: TopicConfigs,
        directories: Directories,
        watermarks: Watermarks,
        strays: Strays,
        throttle: ReplicationThrottle,
        progress: Progress,
        applied: AppliedBatches,
        *,
        wall_ms: Callable[[], int],
        on_applied: Callable[[int], None],
    ) -> None:
        self._table = table
        self._context = table.context
        self._cluster = table.context.cluster
        self._configs = configs
        self._directories = directories
        self._watermarks = watermarks
        self._strays = strays
        self._throttle = throttle
        self._progress = progress
        self._applied = applied
        self._wall_ms = wall_ms
        self._on_applied = on_applied
        self._touched: dict[PartitionKey, None] = {}
        self._touched_brokers: set[int] = set()
        self._touched_configs: set[UUID] = set()
        self._all_configs_touched = False
        self._active = False
        self._everything_touched = False
        self._wait_for = -1
        self._news = asyncio.Event()
        self._strays_done = False
        self._removals: dict[asyncio.Task[None], frozenset[LogKey]] = {}
        """The replicas whose folders are being set aside."""
        self._put_off: dict[PartitionKey, None] = {}
        """Partitions whose replicas are opened once their former folders are set aside."""

    # -- the replay

    def on_batch(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
        """Note a committed batch; `MetadataReplay` calls this.  records: None if a snapshot replaced the batches."""
        # Fencing and registrations take effect now, even while other changes wait to be applied.
        self._cluster.newest = new
        self._progress.received_offset = new.end_offset
        if records:
            self._applied.received(new.end_offset)
        elif records is None:
            self._applied.begin(new.end_offset)
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
        self._touched_brokers.update(change.brokers)
        self._touched_configs.update(change.topics_removed, change.topics_renewed)  # no config record reports these
        for scope, resource in change.configs:
            if scope is ConfigScope.TOPIC:
                self._touched_configs.add(UUID(resource))
            elif scope is ConfigScope.CLUSTER:
                self._all_configs_touched = True
        self._progress.pending_changes = len(self._touched)

    def _note_everything(self, old: ClusterImage, new: ClusterImage) -> None:
        """Note that anything may have changed, because a snapshot replaced the batches."""
        self._everything_touched = True
        self._touched_brokers.update(old.brokers, new.brokers)
        self._all_configs_touched = True
        self._progress.pending_changes = new.replica_count(self._context.broker_id)

    def start_at(self, image: ClusterImage) -> None:
        """Begin with an image that was replayed before `on_batch` was subscribed."""
        self._cluster.newest = image
        self._progress.received_offset = image.end_offset
        self._applied.begin(image.end_offset)
        self._news.set()

    def activate(self, broker_epoch: int) -> None:
        """Apply the metadata once it includes this process's registration, `broker_epoch`."""
        self._cluster.own_epoch = broker_epoch
        self._wait_for = broker_epoch
        self._news.set()

    # -- applying the metadata

    async def run(self) -> None:
        """Apply the metadata until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._wait_for < 0 or self._cluster.newest.end_offset <= self._wait_for:
                continue
            if not self._active:
                self._active = self._everything_touched = True
            if self._everything_touched:
                await self._touch_everything()
            await self._apply()

    async def close(self) -> None:
        """Wait briefly until the folders of removed replicas are set aside.  Call it once `run` has been cancelled.

        A start after a clean stop trusts the facts about each log.  The facts about the logs of removed replicas are
        outdated.
        """
        try:
            if self._removals:
                await asyncio.wait(self._removals, timeout=REMOVAL_WAIT_S)
        finally:
            for removal in self._removals:
                removal.cancel()

    async def _touch_everything(self) -> None:
        """Touch every replica that this broker hosts, or that the newest image assigns to it."""
        self._everything_touched = False
        turn = Turn()
        for replica in list(self._table):
            self._touched[replica.partition] = None
            await turn.passed()
        for topic_id, mask in self._cluster.newest.hostings(self._context.broker_id).items():
            for index in indexes(mask):
                self._touched[PartitionKey(topic_id, index)] = None
                await turn.passed()

    async def _apply(self) -> None:
        image = self._cluster.newest
        self._end_removals()
        touched = sorted(self._touched)
        self._touched.clear()
        brokers, self._touched_brokers = self._touched_brokers, set()
        await self._refresh_configs(image)
        self._throttle.set_rate(image.copy_rate(self._context.broker_id))
        self._context.logs.moves.set_rate(image.move_rate(self._context.broker_id))
        self._context.reads_from_followers = image.cluster_config("replica.selector") == "rack-aware"
        await self._renew(touched, image)
        # Replicas are removed before others are added: a recreated topic has the name of a deleted one.
        turn = Turn()
        gone: list[PartitionKey] = []
        for key in touched:
            if self._is_deleted(key, image):
                gone.append(key)
            await turn.passed()
        if gone:
            await self._remove(gone)
        for done, key in enumerate(touched):
            self._update(key, image)
            self._progress.pending_changes = len(touched) - done + len(self._touched)
            await turn.passed()
        self._cluster.applied = image
        self._progress.pending_changes = len(self._touched)
        if brokers:
            self._report_brokers(brokers, image)
        if not self._strays_done:
            self._strays_done = True
            await self._strays.set_aside()
        self._applied.completed(image.end_offset)
        self._on_applied(image.end_offset)

    def _assigned_here(self, key: PartitionKey, image: ClusterImage) -> PartitionImage | None:
        partition = image.partition(*key)
        if partition is None or partition.replica(self._context.broker_id) is None:
            return None
        return partition

    def _is_deleted(self, key: PartitionKey, image: ClusterImage) -> bool:
        replica = self._table.get(key)
        if replica is None:
            return False
        partition = self._assigned_here(key, image)
        return (
            partition is None
            or partition.created != replica.key.created
            or self._directories.was_assigned_again(replica, partition)
        )

    async def _renew(self, touched: list[PartitionKey], image: ClusterImage) -> None:
        """Move replicas to the new id of their topic, if the topic has one."""
        turn = Turn()
        for key in touched:
            await turn.passed()
            replica = self._table.get(key)
            topic = None if replica is None else image.topic(replica.topic)
            if replica is None or topic is None or topic.topic_id == key.topic_id:
                continue
            partition = self._assigned_here(PartitionKey(topic.topic_id, key.partition_index), image)
            if partition is None or (topic.origin, partition.created) != (replica.key.topic_id, replica.key.created):
                continue
            moved = self._table.renew(key, topic.topic_id, partition)
            if moved.log is not None:
                # A change of the configs may have been noted under the old id.
                moved.log.config = self._configs.of_log(topic.topic_id, image)
                moved.report_when_flushed()
            self._directories.report_changed(moved)

    async def _remove(self, keys: list[PartitionKey]) -> None:
        """Stop serving these replicas and set their folders aside; the folders are deleted later."""
        removed: list[LogKey] = []
        turn = Turn()
        for key in keys:
            await turn.passed()
            replica = self._table.remove(key)
            removed.append(replica.key)
            self._watermarks.forget(replica.key)
        removal = asyncio.get_running_loop().create_task(self._set_logs_aside(removed))
        removal.add_done_callback(lambda _: self._news.set())
        self._removals[removal] = frozenset(removed)
        await asyncio.wait([removal], timeout=REMOVAL_WAIT_S)
        self._end_removals()

    async def _set_logs_aside(self, removed: list[LogKey]) -> None:
        try:
            await self._context.logs.set_aside(removed, self._wall_ms())
        except DiskError as error:
            logger.error("replicas not set aside", count=len(removed), cause=str(error))

    def _end_removals(self) -> None:
        """Touch the partitions whose replicas waited until their former folders were set aside."""
        for removal in [each for each in self._removals if each.done()]:
            del self._removals[removal]
            self._touched.update(self._put_off)
            self._put_off.clear()
            removal.result()

    def _update(self, key: PartitionKey, image: ClusterImage) -> None:
        """Bring one replica to the state of the image."""
        partition = self._assigned_here(key, image)
        if partition is None:
            return
        replica = self._table.get(key)
        if replica is None:
            topic = image.topics[key.topic_id]
            log_key = LogKey(topic.origin, key.partition_index, partition.created)
            if any(log_key in removed for removed in self._removals.values()):
                self._put_off[key] = None
                return
            replica = self._table.add(log_key, key.topic_id, topic.name, partition)
            config = self._configs.of_log(key.topic_id, image)
            self._directories.open(replica, config, strays_known=self._strays_done)
        replica.image = partition
        self._directories.report_changed(replica)  # an earlier report of another directory may have arrived late
        if replica.log is None:
            return
        # A change of role only changes memory, so it cannot fail.
        if partition.leader != self._context.broker_id:
            replica.follow()
        elif partition.last_offset > self._cluster.own_epoch:
            replica.lead(self._configs.of_leader(key.topic_id, image))

    def _report_brokers(self, broker_ids: set[int], image: ClusterImage) -> None:
        events = self._context.events
        for broker_id in sorted(broker_ids):
            broker = image.brokers.get(broker_id)
            if broker is None or broker.fenced:
                events.broker_left(broker_id)
        events.brokers_changed()

    async def _refresh_configs(self, image: ClusterImage) -> None:
        if self._all_configs_touched:
            changed = {replica.topic_id for replica in self._table}
            self._configs.forget_all()
        else:
            changed = self._touched_configs
        self._touched_configs, self._all_configs_touched = set(), False
        turn = Turn()
        for topic_id in sorted(changed):
            self._configs.forget(topic_id)
            topic = image.topics.get(topic_id)
            if topic is None:
                continue
            for index in range(len(topic.partitions)):
                await turn.passed()
                replica = self._table.get(PartitionKey(topic_id, index))
                if replica is not None and replica.log is not None:
                    replica.log.config = self._configs.of_log(topic_id, image)
                    replica.set_limits(self._configs.of_leader(topic_id, image))
