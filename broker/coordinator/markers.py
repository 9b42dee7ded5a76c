"""Writes the markers of decided transactions, as the leader of a partition and as a coordinator.

`MarkerWriter` appends a marker to a partition that this broker leads.  A partition of `__consumer_offsets` gets it
through its coordinator, which applies the offsets of the transaction at the same time.

`MarkerSender` takes the decisions of this broker's coordinators, and sends each marker to the leader of its partition
until the marker is committed.  A partition that no longer exists needs no marker.  The sender stops when the
coordinator of a decision ends; the next coordinator orders the markers again.  The sender also stops when the
transaction is complete, because a late marker would end the producer's next transaction, which has the same epoch if
the client's transaction version is below 2.  Markers may be late because a machine that is loaded anew orders all
markers again, even if their last reports are still in its queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.partition import Coordinator, State
from broker.core.coordinator.transaction_machine import TransactionMachine
from broker.core.coordinator.transaction_records import EPOCH_RISES, Partition
from broker.core.coordinator.transaction_requests import MarkersWritten, WriteMarkers
from broker.core.transactions import Marker
from broker.replica.replica import Replica
from broker.replica.table import ReplicaTable
from metadata.image import is_internal
from metadata.image.internal_topics import CONSUMER_OFFSETS
from quorumlog.errors import ClusterError
from quorumlog.runtime.backoff import Backoff
from quorumlog.runtime.clock import WallClock
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api

_VERSION: Final = 2
_ANSWER_MS: Final = 1_000
"""Extra time for the answer of a leader, which first waits for its replicas itself.  Even a late answer is needed,
because it names the partitions that have their markers."""
_SETTLED: Final = frozenset({KafkaCode.NONE, KafkaCode.INVALID_PRODUCER_EPOCH})
"""Results after which a partition needs no further marker.  After INVALID_PRODUCER_EPOCH, the partition already has a
later epoch of the producer than the epoch of the transaction."""

logger = get_logger("coordinator")


class MarkerWriter:
    """Appends markers to partitions that this broker leads."""

    def __init__(self, table: ReplicaTable, groups: GroupCoordinators, wall_ms: WallClock, timeout_ms: int) -> None:
        self._table = table
        self._groups = groups
        self._wall_ms = wall_ms
        self._timeout_ms = timeout_ms

    async def write(self, topic: str, index: int, marker: Marker) -> int:
        """Append a marker, and return NONE once it is committed, or an error code."""
        if topic == CONSUMER_OFFSETS:
            return int(await self._groups.write_marker(index, marker))
        if is_internal(topic):  # its coordinator could not load a marker, and would stop
            return int(KafkaCode.INVALID_TOPIC_EXCEPTION)
        replica: Replica | None = self._table.find(topic, index)
        if replica is None:
            return int(self._table.absent(topic, index)[0])
        result = await replica.append_marker(marker, self._wall_ms(), self._timeout_ms)
        return result.error_code


class MarkerSender:
    """Sends the markers that the coordinators of this broker order."""

    def __init__(
        self, table: ReplicaTable, writer: MarkerWriter, links: BrokerLinks, limits: CoordinatorLimits
    ) -> None:
        self._cluster = table.context.cluster
        self._writer = writer
        self._links = links
        self._limits = limits
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[tuple[Any, ...], asyncio.Task[None]] = {}

    def __len__(self) -> int:
        """Return the number of decisions whose markers are being written."""
        return len(self._tasks)

    def start(self, group: asyncio.TaskGroup) -> None:
        """Send markers from now on; the tasks belong to `group`."""
        self._group = group

    async def close(self) -> None:
        """End all tasks.  Idempotent."""
        self._group = None
        for task in list(self._tasks.values()):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    def order(self, coordinator: Coordinator[TransactionMachine], effect: WriteMarkers) -> None:
        """Begin to send the markers of a decision.  If they are already being sent, send all of them again.

        A coordinator that has reloaded its machine no longer knows which partitions were reported to it.
        """
        key = (id(coordinator), effect.transactional_id, effect.producer)
        if self._group is None:
            return
        if key in self._tasks:
            self._tasks[key].cancel()
        task = self._group.create_task(self._send(coordinator, effect), name="transaction-markers")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._forget(key, done))

    def _forget(self, key: tuple[Any, ...], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

    async def _send(self, coordinator: Coordinator[TransactionMachine], effect: WriteMarkers) -> None:
        left = dict.fromkeys(effect.partitions)
        backoff = Backoff(self._limits.marker_retry_min_ms / 1000, self._limits.marker_retry_max_ms / 1000)
        while coordinator.state not in (State.ENDED, State.FAILED):
            machine = coordinator.machine
            if machine is not None and not machine.awaits_markers(effect.transactional_id, effect.producer):
                return
            done = await self._round(coordinator.leader_epoch, effect, left)
            for partition in done:
                del left[partition]
            if done or not left:
                if not coordinator.tell(_report(effect, tuple(done))):
                    left.update(dict.fromkeys(done))  # the coordinator's queue is full
                elif not left:
                    return
            await asyncio.sleep(backoff.next_s())

    async def _round(self, epoch: int, effect: WriteMarkers, left: Iterable[Partition]) -> list[Partition]:
        """Send each marker once; return the partitions that need no further marker."""
        done: list[Partition] = []
        by_leader: dict[int, list[Partition]] = {}
        for partition in left:
            found = self._cluster.partition(*partition)
            if found is None:
                done.append(partition)  # it was deleted, with its records
            elif found.leader >= 0:
                by_leader.setdefault(found.leader, []).append(partition)
        raises_epoch = effect.client_version >= EPOCH_RISES
        marker = Marker(effect.producer, effect.is_commit, epoch, raises_epoch)
        sends = [self._send_to(leader, marker, effect, each) for leader, each in by_leader.items()]
        for settled in await asyncio.gather(*sends):
            done += settled
        return done

    async def _send_to(
        self, leader: int, marker: Marker, effect: WriteMarkers, partitions: list[Partition]
    ) -> list[Partition]:
        if leader == self._cluster.broker_id:
            writes = (self._writer.write(*each, marker) for each in partitions)
            codes = await asyncio.gather(*writes)
            return [each for each, code in zip(partitions, codes, strict=True) if code in _SETTLED]
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        wanted = {
            "producer_id": marker.producer.producer_id,
            "producer_epoch": marker.producer.epoch,
            "transaction_result": marker.is_commit,
            "coordinator_epoch": marker.coordinator_epoch,
            "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
            "transaction_version": effect.client_version,
        }
        timeout_s = (self._limits.marker_timeout_ms + _ANSWER_MS) / 1000
        try:
            reply = await self._links.ask(leader, Api.WRITE_TXN_MARKERS, _VERSION, {"markers": [wanted]}, timeout_s)
        except ClusterError as error:
            logger.debug(
                "markers not written", leader=leader, producer=marker.producer.producer_id, cause=error.message
            )
            return []
        return [
            (topic.name, each.partition_index)
            for result in reply.markers
            for topic in result.topics
            for each in topic.partitions
            if int(each.error_code) in _SETTLED and each.partition_index in topics.get(topic.name, ())
        ]


def _report(effect: WriteMarkers, done: tuple[Partition, ...]) -> Any:
    written = MarkersWritten(effect.transactional_id, effect.producer, done)
    return lambda machine, now_ms: machine.markers_written(written, now_ms)
