"""The data directories of replicas: opens each log in its directory, and reports the directory to the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.log import LogConfig, LogKey, PartitionLog
from broker.replica.moves import ReplicaMoves
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from broker.replica.watermarks import Watermarks
from metadata.image import PartitionImage
from metadata.records import LOST, UNASSIGNED
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.logging import get_logger
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import ControllerCall
from quorumlog.wire.v1 import controller_pb2 as pb

logger = get_logger("broker")

REQUEST_TIMEOUT_MS = 5_000
RETRY_S = 1.0
"""Time before a report that was not accepted is repeated.  It does not grow, because one request has many reports."""
ITEMS_MAX = 5_000
"""Maximum number of replicas in one request."""


class Directories:
    """Opens and reports the directories of replicas.

    directory_ids: all data directories of this broker, including failed ones.
    """

    def __init__(
        self,
        table: ReplicaTable,
        directory_ids: Sequence[UUID],
        watermarks: Watermarks,
        moves: ReplicaMoves,
        call: ControllerCall,
    ) -> None:
        self._table = table
        self._context = table.context
        self._directory_ids = tuple(directory_ids)
        self._watermarks = watermarks
        self._moves = moves
        self._call = call
        self._unreported: dict[PartitionKey, UUID] = {}
        self._news = asyncio.Event()
        self._context.logs.events.log_moved.subscribe(self._on_moved)

    def open(self, replica: Replica, config: LogConfig, strays_known: bool) -> None:
        """Give a new replica its log: the one that was found on disk, or an empty one.

        If the log is damaged, or may be in a directory that has failed or is missing, the replica stays offline.

        strays_known: every log that was found on disk at the start has been matched with the metadata.
        """
        logs, key = self._context.logs, replica.key
        assigned = self._assigned(replica.image)
        if key in logs.doubles:
            logs.settle(key, assigned)
        failure = logs.failures.get(key)
        if failure is not None:
            replica.offline = str(failure)
            logger.error("replica offline", topic=replica.topic, partition=key.index, cause=replica.offline)
            self.report_changed(replica)
            return
        found = logs.get(key)
        if found is not None and found.directory_id in logs.failed_disks:
            replica.offline = f"its directory {found.directory_id} is offline"
            if found.directory_id != assigned:  # otherwise the controller would not know that the replica is offline
                self.report(replica.partition, found.directory_id)
            return
        if found is None:
            absent = None if strays_known else self._may_be_in_absent(replica, assigned)
            if absent is not None:
                self._keep_offline(replica, absent)
                return
            found = self._create(replica, assigned, config)
            if found is None:
                replica.offline = f"its directory {assigned} is offline"
                return
        elif assigned in logs.failed_disks and assigned not in found.moved_from:
            # The controller may not know yet that the assigned directory has failed.  It would treat an older copy as
            # the replica that is in the ISR.
            replica.offline = f"its directory {assigned} is offline, and {found.directory_id} holds an older copy"
            return
        else:
            found.config = config
        found.advance_high_watermark(self._watermarks.restored(key, found.directory_id))
        replica.open(found)
        self.report_changed(replica)

    def _create(self, replica: Replica, assigned: UUID, config: LogConfig) -> PartitionLog | None:
        """Create the replica's log in the directory that `_choose` returns.  Return None if `_choose` returns None.

        If creating the log fails, the directory goes offline, and the choice is repeated.
        """
        logs, preferred = self._context.logs, self._moves.take_preferred(replica)
        while (directory_id := self._choose(assigned, preferred)) is not None:
            try:
                return logs.create(replica.key, replica.topic, directory_id, config)
            except DiskError as error:
                logs.disk_failed(directory_id, error)
        return None

    def was_assigned_again(self, replica: Replica, partition: PartitionImage) -> bool:
        """Return whether an offline replica was removed from this broker and assigned to it again since the last pass.

        A new assignment replaces `LOST` or a failed directory in the metadata, and a late report of this broker does
        the same.  But only a replica that was assigned again is being added.
        """
        if replica.log is not None or self._context.broker_id not in partition.adding:
            return False
        logs, before, now = self._context.logs, self._assigned(replica.image), self._assigned(partition)
        if before == LOST or replica.key in logs.failures:
            return before == LOST != now
        return before in logs.failed_disks and now not in logs.failed_disks

    def _on_moved(self, key: LogKey) -> None:
        """Report the new directory of a replica that has moved, and its log start if that is not durable yet."""
        replica = self._table.with_log(key)
        if replica is None or replica.log is None:
            return
        # Report it even if the metadata names it: an earlier report of another directory may be applied later.
        self.report(replica.partition, replica.log.directory_id)
        if replica.log.durable_start_offset < replica.log.start_offset:
            self._context.events.start_moved(replica)

    def report_changed(self, replica: Replica) -> None:
        """Report the directory of this replica if the metadata names another one."""
        if replica.log is not None:
            directory_id = replica.log.directory_id
        elif replica.key in self._context.logs.failures:
            directory_id = LOST
        else:
            return
        if self._assigned(replica.image) != directory_id:
            self.report(replica.partition, directory_id)
        else:
            self._note_known(replica)

    def _note_known(self, replica: Replica) -> None:
        """Let the log forget the directories that it has left, because the metadata names its current directory."""
        # While a report is under way, an earlier report of another directory may still be applied.
        if replica.log is not None and replica.partition not in self._unreported:
            replica.log.move_known()

    def report(self, key: PartitionKey, directory_id: UUID) -> None:
        """Make `run` report to the controller that this replica is in `directory_id`, or `LOST`."""
        self._unreported[key] = directory_id
        self._news.set()

    async def run(self) -> None:
        """Send reports until cancelled.  Each is repeated until it is accepted or the replica is removed."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._unreported:
                if not await self._send(list(self._unreported.items())[:ITEMS_MAX]):
                    self._drop_removed()
                    await asyncio.sleep(RETRY_S)

    async def _send(self, batch: list[tuple[PartitionKey, UUID]]) -> bool:
        request = pb.AssignDirectoriesRequest(
            broker_id=self._context.broker_id, broker_epoch=self._context.cluster.own_epoch
        )
        for key, directory_id in batch:
            request.items.add(
                topic_id=key.topic_id.bytes,
                index=key.partition_index,
                directory_id=directory_id.bytes,
                moved_from=self._moved_from(key, directory_id),
            )
        reply = await self._call(rpcs.ASSIGN_DIRECTORIES, request, REQUEST_TIMEOUT_MS)
        if reply.result.error != ApiError.NONE:
            return False
        for key, directory_id in batch:
            if self._unreported.get(key) == directory_id:
                del self._unreported[key]
                if (replica := self._table.get(key)) is not None and self._assigned(replica.image) == directory_id:
                    self._note_known(replica)
        return True

    def _moved_from(self, key: PartitionKey, directory_id: UUID) -> bytes:
        """Return the id of the directory from which the replica moved to `directory_id`, or nothing.

        The controller may learn first that the old directory has failed, and must not treat that as the loss of the
        replica.  If the controller missed several moves, the report names the directory that the controller knows.
        """
        replica = self._table.get(key)
        log = None if replica is None else replica.log
        if replica is None or log is None or log.directory_id != directory_id or not log.moved_from:
            return b""
        known = self._assigned(replica.image)
        return (known if known in log.moved_from else log.moved_from[-1]).bytes

    def _drop_removed(self) -> None:
        for key in list(self._unreported):
            if key not in self._table:
                del self._unreported[key]

    def _assigned(self, partition: PartitionImage) -> UUID:
        replica = partition.replica(self._context.broker_id)
        assert replica is not None, partition
        return replica.directory_id

    def _keep_offline(self, replica: Replica, absent: UUID) -> None:
        """Keep the replica offline.  Report `absent`, or `LOST` if the broker no longer has this directory."""
        if absent in self._directory_ids:
            replica.offline = f"its log may be in directory {absent}, which is offline"
            self.report(replica.partition, absent)
            return
        if absent == LOST:
            replica.offline = "its log may be in one of several directories that are offline"
            step = "repair these directories and restart the broker"
        else:
            # The broker has registered without that directory, so the controller accepts only a report of `LOST`.
            replica.offline = f"its log moved to directory {absent}, which this broker no longer has"
            step = "add that directory to data.dirs and restart the broker; if it is lost, only restart the broker"
        logger.error(
            "replica offline", topic=replica.topic, partition=replica.key.index, cause=replica.offline, next=step
        )
        self.report(replica.partition, LOST)

    def _may_be_in_absent(self, replica: Replica, assigned: UUID) -> UUID | None:
        """Return a failed or missing directory that may hold this replica, if it is in the ISR or ELR.

        The controller may not know that the replica is in that directory.  It would treat an empty replica in another
        directory as the one with the records.  So the result is `LOST` if several directories may hold the replica: a
        wrong guess would make an empty replica in that directory count as this one, once the directory works again.
        """
        partition, logs = replica.image, self._context.logs
        if self._context.broker_id not in (*partition.isr, *partition.elr):
            return None
        if assigned != UNASSIGNED:
            return logs.moved_away(replica.key, assigned)
        failed = [each for each in self._directory_ids if each in logs.failed_disks]
        return LOST if len(failed) > 1 else next(iter(failed), None)

    def _choose(self, assigned: UUID, preferred: UUID | None) -> UUID | None:
        """Return the assigned directory, or None if it has failed.

        If the broker does not have the assigned directory, return the preferred one if it works.  Otherwise return the
        working directory with the fewest replicas, or None if no directory works.

        An assigned directory that this broker does not have is a disk that was replaced.  The registration without that
        directory has removed the replica from the ISR, so an empty replica elsewhere is safe.
        """
        offline = self._context.logs.failed_disks
        working = [each for each in self._directory_ids if each not in offline]
        if assigned in self._directory_ids:
            return assigned if assigned in working else None
        if preferred in working:
            return preferred
        if len(working) <= 1:
            return working[0] if working else None
        counts = dict.fromkeys(working, 0)
        for replica in self._table:
            if replica.log is not None and replica.log.directory_id in counts:
                counts[replica.log.directory_id] += 1
        return min(working, key=lambda each: (counts[each], each))
