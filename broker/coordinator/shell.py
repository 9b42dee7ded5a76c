"""The coordinators of one internal topic on this broker: one for each partition that the broker leads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic

from broker.coordinator.limits import CoordinatorCounters, CoordinatorLimits
from broker.coordinator.partition import Coordinator, M, OnEffect, Operation, State
from broker.core.coordinator.machine import Machine, Step
from broker.core.coordinator.placement import partition_of
from broker.core.fetch_session import PartitionKey
from broker.core.producer_state import ProducerState
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from quorumlog.runtime.clock import WallClock
from quorumlog.wire.errors import KafkaCode

NO_PARTITION = -1


class CoordinatorShell(Generic[M]):
    """Begins a coordinator when this broker is elected leader of a partition, and ends it when the broker resigns."""

    def __init__(
        self,
        topic: str,
        table: ReplicaTable,
        make_machine: Callable[[], M],
        wall_ms: WallClock,
        limits: CoordinatorLimits | None = None,
        on_effect: OnEffect[M] | None = None,
    ) -> None:
        """on_effect: see `Coordinator`."""
        self._on_effect = on_effect
        self.topic = topic
        self.counters = CoordinatorCounters()
        self.limits = limits or CoordinatorLimits()
        self._table = table
        self._make_machine = make_machine
        self._wall_ms = wall_ms
        self._group: asyncio.TaskGroup | None = None
        self._by_key: dict[PartitionKey, Coordinator[M]] = {}
        self._by_index: dict[int, Coordinator[M]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        events = table.context.events
        events.elected.subscribe(self._on_elected)
        events.resigned.subscribe(self._on_resigned)
        events.watermark_moved.subscribe(self._on_watermark)

    def __iter__(self) -> Iterator[Coordinator[M]]:
        """Yield the coordinators, by ascending partition."""
        return iter([self._by_index[index] for index in sorted(self._by_index)])

    # -- life

    def start(self, group: asyncio.TaskGroup) -> None:
        """Coordinate from now on; the tasks belong to `group`."""
        self._group = group

    async def close(self) -> None:
        """Refuse all calls, and end all tasks.  Idempotent."""
        self._group = None
        for key in list(self._by_key):
            self._end(key)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _on_elected(self, key: PartitionKey, leader_epoch: int) -> None:
        replica = self._table.get(key)
        if replica is None or replica.topic != self.topic or replica.leader is None or self._group is None:
            return
        assert replica.leader.leader_epoch == leader_epoch, (replica, leader_epoch)
        self._end(key)
        made = Coordinator(
            replica, replica.leader, self._make_machine, self.limits, self.counters, self._wall_ms, self._on_effect
        )
        self._by_key[key] = self._by_index[key.partition_index] = made
        made.task = self._group.create_task(made.run(), name=f"coordinator-{self.topic}-{key.partition_index}")
        self._tasks.add(made.task)
        made.task.add_done_callback(self._tasks.discard)

    def _on_resigned(self, key: PartitionKey, leader_epoch: int) -> None:
        if key in self._by_key:
            assert self._by_key[key].leader_epoch == leader_epoch, (self._by_key[key], leader_epoch)
            self._end(key)

    def _end(self, key: PartitionKey) -> None:
        ended = self._by_key.pop(key, None)
        if ended is not None:
            del self._by_index[key.partition_index]
            ended.end()

    def _on_watermark(self, replica: Replica) -> None:
        if replica.topic == self.topic and (found := self._by_key.get(replica.partition)) is not None:
            found.on_watermark()

    # -- calls

    def partition(self, key: str) -> int:
        """Return the partition that holds the state of a key; NO_PARTITION while the topic does not exist."""
        topic = self._table.context.cluster.applied.topic(self.topic)
        return NO_PARTITION if topic is None else partition_of(key, len(topic.partitions))

    def led(self) -> list[int]:
        """Return the partitions that this broker coordinates, ascending."""
        return sorted(self._by_index)

    def call(
        self,
        partition: int,
        operation: Callable[[M, int, int], Step],
        size: int,
        *,
        is_read: bool,
        needs_log: bool = False,
    ) -> asyncio.Future[Any]:
        """Begin a call at the coordinator of a partition; see `Coordinator.call`.

        If this broker does not coordinate the partition, the result of the future is NOT_COORDINATOR.
        """
        found = self._by_index.get(partition)
        if found is None:
            self.counters.refused += 1
            refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            refused.set_result(KafkaCode.NOT_COORDINATOR)
            return refused
        return found.call(operation, size, is_read=is_read, needs_log=needs_log)

    def request(self, partition: int, request: Any, size: int, *, is_read: bool) -> asyncio.Future[Any]:
        """Begin a call that applies a request of the machine; see `call`."""
        return self.call(partition, partial(_apply, request), size, is_read=is_read)

    def producers(self, partition: int) -> ProducerState | None:
        """Return the producers in the log of a partition; None if this broker does not coordinate it.

        Raises: CorruptStoreError, DiskError.
        """
        found = self._by_index.get(partition)
        log = None if found is None else found.log
        return None if log is None else log.producers

    def take_offline(self, partition: int, error: Exception) -> None:
        """Stop reading and writing the log of a partition, because it failed with `error`."""
        if (found := self._by_index.get(partition)) is not None:
            found.take_offline(error)

    def tell(self, partition: int, operation: Operation[M]) -> None:
        """Queue an operation in a partition, as `Coordinator.tell` does, if this broker coordinates it."""
        found = self._by_index.get(partition)
        if found is not None:
            found.tell(operation)

    def tell_all(self, operation: Operation[M]) -> None:
        """Queue an operation in every partition that this broker coordinates, as `Coordinator.tell` does."""
        for each in self:
            each.tell(operation)

    def count(self, state: State) -> int:
        """Return the number of coordinators in this state, for the metrics."""
        return sum(each.state is state for each in self._by_key.values())


def _apply(request: Any, machine: Machine[Any, Any], call: int, now_ms: int) -> Step:
    return machine.request(call, request, now_ms)
