"""DeleteRecords: raises the log start of a partition, and waits until every active replica has followed.

Theory of operation.  The leader raises its log start at once, so its consumers do not see the records any more.
`LogStarts` makes the new start durable.  Followers receive it with the reply to their next fetch, make it durable, and
report it in the fetch after that.  The deletion is answered when the lowest of these starts has reached the offset.
From then on, no member of the ISR can show the records again.  As in Kafka, the deletion does not wait for a replica
outside the ISR whose broker is not active.  Such a replica receives the start when it fetches again, and joins the ISR
once that start is durable (`LeaderState`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from broker.core.partition import LeaderState
from broker.kafka.api import NO_EPOCH, UP_TO_WATERMARK, DeletedRecords
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from metadata.image import is_internal
from metadata.image.internal_topics import CLEANUP_POLICY, COMPACT
from quorumlog.wire.errors import KafkaCode


@dataclass(slots=True, eq=False)
class _Waiting:
    """A deletion that waits for replicas.  leader: the leadership under which it began."""

    leader: LeaderState
    offset: int
    future: asyncio.Future[DeletedRecords]
    timer: asyncio.TimerHandle


class DeletionService:
    """The deletions of one broker."""

    def __init__(self, table: ReplicaTable) -> None:
        self._table = table
        self._context = table.context
        self._waiting: dict[Replica, list[_Waiting]] = {}
        self._count = 0
        events = self._context.events
        events.low_watermark_moved.subscribe(self._settle)
        events.role_changed.subscribe(self._settle)
        events.brokers_changed.subscribe(self._settle_all)

    @property
    def waiting(self) -> int:
        """Number of deletions that wait."""
        return self._count

    def start_delete(self, topic: str, index: int, offset: int, timeout_ms: int) -> asyncio.Future[DeletedRecords]:
        """See `broker.kafka.api.Replicas`."""
        future: asyncio.Future[DeletedRecords] = asyncio.get_running_loop().create_future()
        code = self._begin(topic, index, offset, timeout_ms, future)
        if code is not KafkaCode.NONE:
            future.set_result(DeletedRecords(int(code)))
        return future

    def _begin(
        self, topic: str, index: int, offset: int, timeout_ms: int, future: asyncio.Future[DeletedRecords]
    ) -> KafkaCode:
        """Delete the records and wait, or return a refusal."""
        replica = self._table.find(topic, index)
        if replica is None:
            return self._table.absent(topic, index)[0]
        image = self._context.cluster.applied
        if is_internal(topic) or image.topic_config(replica.topic_id, CLEANUP_POLICY) == COMPACT:
            return KafkaCode.POLICY_VIOLATION
        found = replica.leading(NO_EPOCH)
        if isinstance(found, KafkaCode):
            return found
        leader, log = found
        if offset == UP_TO_WATERMARK:
            offset = leader.high_watermark
        if not 0 <= offset <= leader.high_watermark:
            return KafkaCode.OFFSET_OUT_OF_RANGE
        if self._count >= self._context.limits.parked_deletions:
            return KafkaCode.REQUEST_TIMED_OUT
        timeout_ms = max(0, min(timeout_ms, self._context.limits.produce_timeout_max_ms))
        loop = asyncio.get_running_loop()
        waiting = _Waiting(leader, offset, future, loop.call_later(timeout_ms / 1000, self._settle, replica, future))
        self._waiting.setdefault(replica, []).append(waiting)
        self._count += 1
        replica.advance_start(min(offset, log.end_offset))
        self._settle(replica)
        return KafkaCode.NONE

    def close(self) -> None:
        """Refuse the deletions that wait, because the broker stops."""
        for waiting in [each for of_one in self._waiting.values() for each in of_one]:
            _answer(waiting, DeletedRecords(int(KafkaCode.NOT_LEADER_OR_FOLLOWER)))
        self._waiting.clear()
        self._count = 0

    def _settle_all(self) -> None:
        for replica in list(self._waiting):
            self._settle(replica)

    def _settle(self, replica: Replica, timed_out: asyncio.Future[DeletedRecords] | None = None) -> None:
        """Answer the deletions of this replica that are decided.  timed_out: the deletion whose time is up."""
        left = []
        for waiting in self._waiting.pop(replica, ()):
            answer = self._verdict(replica, waiting)
            if answer is None and waiting.future is timed_out:
                answer = DeletedRecords(int(KafkaCode.REQUEST_TIMED_OUT))
            if answer is None and not waiting.future.done():
                left.append(waiting)
                continue
            self._count -= 1
            _answer(waiting, answer)
        if left:
            self._waiting[replica] = left

    def _verdict(self, replica: Replica, waiting: _Waiting) -> DeletedRecords | None:
        if replica.log is None and self._table.get(replica.partition) is replica:
            return DeletedRecords(int(KafkaCode.KAFKA_STORAGE_ERROR))
        if replica.log is None or replica.leader is not waiting.leader:
            return DeletedRecords(int(KafkaCode.NOT_LEADER_OR_FOLLOWER))
        low = waiting.leader.low_watermark(replica.log.durable_start_offset)
        if low < waiting.offset:
            return None
        waiting.leader.on_deleted(waiting.offset)
        return DeletedRecords(int(KafkaCode.NONE), low)


def _answer(waiting: _Waiting, answer: DeletedRecords | None) -> None:
    waiting.timer.cancel()
    if answer is not None and not waiting.future.done():
        waiting.future.set_result(answer)
