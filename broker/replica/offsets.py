"""ListOffsets and OffsetForLeaderEpoch: finds the offset for a timestamp, and the end of an epoch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from broker.core.partition import LeaderState
from broker.kafka.api import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    EpochEndResult,
    ListOffsetResult,
)
from broker.log import PartitionLog, TimestampOffset
from broker.replica.replica import Leading, Replica
from broker.replica.table import ReplicaTable
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode


class OffsetService:
    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._time_lookups = asyncio.Semaphore(table.context.limits.time_lookups)

    async def list_offset(
        self, topic: str, index: int, timestamp: int, current_leader_epoch: int, *, read_committed: bool
    ) -> ListOffsetResult:
        """Return the first offset whose record is at or after `timestamp`, in ms.

        timestamp: may also be one of the special timestamps of `broker.kafka.api`, such as `EARLIEST_TIMESTAMP`.
        read_committed: ignore records from the last stable offset on; otherwise, records from the watermark on.
        """
        replica = self._table.find(topic, index)
        if replica is None:
            return ListOffsetResult(int(self._table.absent(topic, index)[0]))
        found = replica.leading(current_leader_epoch)
        if isinstance(found, KafkaCode):
            return ListOffsetResult(int(found))
        try:
            end = found.log.last_stable_offset if read_committed else found.leader.high_watermark
            return await self._list_offset(replica, found, timestamp, end)
        except (DiskError, CorruptStoreError) as error:
            replica.take_offline(error)
            return ListOffsetResult(int(KafkaCode.KAFKA_STORAGE_ERROR))

    async def _list_offset(self, replica: Replica, found: Leading, timestamp: int, end: int) -> ListOffsetResult:
        leader, partition_log = found
        if timestamp == LATEST_TIMESTAMP:
            if not leader.latest_known():
                return ListOffsetResult(int(KafkaCode.OFFSET_NOT_AVAILABLE))
            return ListOffsetResult(int(KafkaCode.NONE), end, -1, leader.leader_epoch)
        if timestamp in (EARLIEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP):
            start = partition_log.start_offset
            return ListOffsetResult(int(KafkaCode.NONE), start, -1, _epoch_at(partition_log, start, leader))
        if timestamp == MAX_TIMESTAMP:
            place = await self._look_up(partition_log.max_timestamp_offset, end)
        elif timestamp < 0:  # the offsets that are, or will be, in remote storage
            return ListOffsetResult(int(KafkaCode.NONE))
        else:
            place = await self._look_up(partition_log.offset_for_timestamp, timestamp, end)
        if replica.leader is not leader:
            return ListOffsetResult(int(KafkaCode.NOT_LEADER_OR_FOLLOWER))  # the leadership ended during the look-up
        if place is None:
            # No committed record matches, but an earlier leader may have served later records.
            return ListOffsetResult(int(KafkaCode.NONE if leader.latest_known() else KafkaCode.OFFSET_NOT_AVAILABLE))
        return ListOffsetResult(int(KafkaCode.NONE), place.offset, place.timestamp, place.leader_epoch)

    def epoch_end(self, topic: str, index: int, leader_epoch: int, current_leader_epoch: int) -> EpochEndResult:
        """Return the largest epoch up to `leader_epoch` that the log has, and its end offset."""
        replica: Replica | None = self._table.find(topic, index)
        if replica is None:
            return EpochEndResult(int(self._table.absent(topic, index)[0]))
        found = replica.leading(current_leader_epoch)
        if isinstance(found, KafkaCode):
            return EpochEndResult(int(found))
        epoch, end = found.log.epochs.end_of(leader_epoch)
        return EpochEndResult(int(KafkaCode.NONE), epoch, end)

    async def _look_up(
        self, find: Callable[..., Coroutine[Any, Any, TimestampOffset | None]], *arguments: int
    ) -> TimestampOffset | None:
        """Run one of a bounded number of look-ups.  A cancelled look-up counts until its thread has ended."""
        await self._time_lookups.acquire()
        work = asyncio.ensure_future(find(*arguments))
        work.add_done_callback(self._looked_up)
        return await asyncio.shield(work)

    def _looked_up(self, work: asyncio.Future[TimestampOffset | None]) -> None:
        self._time_lookups.release()
        if not work.cancelled():
            work.exception()  # read it, or asyncio logs it: the caller may have been cancelled


def _epoch_at(partition_log: PartitionLog, offset: int, leader: LeaderState) -> int:
    if offset >= partition_log.end_offset:
        return leader.leader_epoch
    return partition_log.epochs.epoch_of(offset)
