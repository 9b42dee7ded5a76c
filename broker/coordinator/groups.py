"""The coordinators of consumer groups on this broker: implements `broker.kafka.api.Groups`.

The limits of groups are configs of the cluster.  When limits change or topics are deleted, the machines of all
partitions that this broker coordinates are informed.  Machines look up the configs of a single group at each use.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from broker.coordinator.creation import TopicCreation
from broker.coordinator.group_configs import ImageGroupConfigs
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.partition import Operation
from broker.coordinator.shell import CoordinatorShell
from broker.coordinator.topics import ImageTopics
from broker.core.coordinator.consumer.requests import ConsumerLimits, DescribeConsumerGroups
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.group_requests import (
    DescribeGroups,
    EndOffsetTransaction,
    ExplainGroups,
    GroupLimits,
    GroupRequest,
    GroupState,
    Heartbeat,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
    TxnOffsetCommit,
)
from broker.core.coordinator.machine import Answer, Step
from broker.core.coordinator.share.requests import DescribeShareGroups, ListShareStates, ShareGroupLimits
from broker.core.coordinator.transaction_requests import TransactionSupport
from broker.core.producer_state import NO_SEQUENCE, Duplicate, ProducerState, Refuse
from broker.core.transactions import Marker
from broker.replica.produce import Verify
from broker.replica.table import ReplicaTable
from metadata.image import ClusterImage, TopicImage
from metadata.image.internal_topics import CONSUMER_OFFSETS
from metadata.records import Partition, Record, RemovePartition, RemoveTopic, RenewTopic, Topic
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.clock import Sources, now_ms
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import HEADER_SIZE
from quorumlog.wire.rpcs import ControllerCall

READS: Final = (
    DescribeConsumerGroups,
    DescribeGroups,
    DescribeShareGroups,
    ExplainGroups,
    Heartbeat,
    ListGroups,
    ListShareStates,
    OffsetFetch,
)
"""Requests that make no records."""

_MINUTE_MS: Final = 60_000

_TOPOLOGY: Final = (Topic, Partition, RemovePartition, RemoveTopic, RenewTopic)
"""Records that change which topics exist, their ids, or their numbers of partitions."""


def group_limits(image: ClusterImage) -> GroupLimits:
    """Return the limits of groups from the cluster's configs.  A maximum below its minimum is raised."""

    def value(key: str) -> int:
        return int(image.cluster_config(key))

    session_min_ms = value("group.min.session.timeout.ms")
    return GroupLimits(
        session_timeout_min_ms=session_min_ms,
        session_timeout_max_ms=max(session_min_ms, value("group.max.session.timeout.ms")),
        members_max=value("group.max.size"),
        initial_rebalance_delay_ms=value("group.initial.rebalance.delay.ms"),
        offset_metadata_max_bytes=value("offset.metadata.max.bytes"),
        offsets_retention_ms=value("offsets.retention.minutes") * _MINUTE_MS,
        expiry_interval_ms=value("offsets.retention.check.interval.ms"),
        consumer=_consumer_limits(image),
        share=ShareGroupLimits(
            session_timeout_ms=value("group.share.session.timeout.ms"),
            heartbeat_interval_ms=value("group.share.heartbeat.interval.ms"),
            members_max=value("group.share.max.size"),
        ),
    )


def _consumer_limits(image: ClusterImage) -> ConsumerLimits:
    """Return the limits of groups of the newer protocol.  A value out of range is replaced by the nearest bound."""

    def bounded(name: str) -> int:
        low, value, high = (
            int(image.cluster_config(f"group.consumer.{key}.ms")) for key in (f"min.{name}", name, f"max.{name}")
        )
        return max(low, min(value, high))

    policy = image.cluster_config("group.consumer.migration.policy")
    return ConsumerLimits(
        session_timeout_ms=bounded("session.timeout"),
        heartbeat_interval_ms=bounded("heartbeat.interval"),
        assignment_interval_ms=bounded("assignment.interval"),
        members_max=int(image.cluster_config("group.consumer.max.size")),
        assignors=tuple(image.cluster_config("group.consumer.assignors").split(",")),
        may_upgrade=policy in ("bidirectional", "upgrade"),
        may_downgrade=policy in ("bidirectional", "downgrade"),
    )


def _continues(topic: TopicImage, image: ClusterImage) -> bool:
    """Return whether a topic exists in a later image, perhaps under another id."""
    now = image.topic(topic.name)
    return now is not None and now.origin == topic.origin


class GroupCoordinators:
    """The coordinators of groups of one broker.

    wait_applied: returns once this broker has applied the metadata below an offset.
    commits: number of OffsetCommit requests, including refused ones, for the metrics.
    """

    def __init__(
        self,
        table: ReplicaTable,
        call: ControllerCall,
        wait_applied: Callable[[int], Awaitable[object]],
        sources: Sources,
        limits: CoordinatorLimits | None = None,
    ) -> None:
        limits = limits or CoordinatorLimits()
        cluster = table.context.cluster
        self._sources = sources
        self._logs = table.context.logs
        self._topics = ImageTopics(cluster)
        self._configs = ImageGroupConfigs(cluster)
        self._group_limits = GroupLimits()
        self._creation = TopicCreation(CONSUMER_OFFSETS, cluster, call, wait_applied, limits)
        self.on_share_effect: Callable[[Any], None] = lambda effect: None
        """Called with each effect of the machines.  All their effects concern share groups."""
        self.shell: CoordinatorShell[GroupMachine] = CoordinatorShell(
            CONSUMER_OFFSETS,
            table,
            self._machine,
            sources.wall_ms,
            limits,
            lambda coordinator, effect: self.on_share_effect(effect),
        )
        self.commits = 0

    def _machine(self) -> GroupMachine:
        sources = self._sources
        return GroupMachine(
            self._group_limits, self._topics, sources.random, sources.wall_ms, self._configs, self._cautious_ms
        )

    def _cautious_ms(self) -> int:
        return self._logs.cautious_ms(self._sources.wall_ms(), now_ms())

    # -- life

    def start(self, group: asyncio.TaskGroup, image: ClusterImage) -> None:
        """Begin to coordinate; the tasks belong to `group`.  image: the metadata replayed so far."""
        self._group_limits = group_limits(image)
        self._creation.start(group)
        self.shell.start(group)

    async def close(self) -> None:
        """Refuse all calls, and end all tasks.  Idempotent."""
        await self._creation.close()
        await self.shell.close()

    def on_batch(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
        """Report changed limits and topics to the machines; subscribed to `MetadataReplay`."""
        if old.configs is not new.configs and (limits := group_limits(new)) != self._group_limits:
            self._group_limits = limits
            self.shell.tell_all(lambda machine, now: machine.configure(limits, now))
        self._follow_topics(old, new, records)
        if records is None:
            gone = [topic for topic in old.topics.values() if not _continues(topic, new)]
        else:
            found = [old.topics.get(each.topic_id) for each in records if isinstance(each, RemoveTopic)]
            gone = [topic for topic in found if topic is not None]
        if gone:
            names = sorted({topic.name for topic in gone})
            self.shell.tell_all(lambda machine, now: machine.topics_deleted(names, now))
        if records is None or any(isinstance(each, RemovePartition | RenewTopic) for each in records):
            self.shell.tell_all(lambda machine, now: machine.partitions_removed(now))

    def _follow_topics(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
        """Report changes of topics to the machines, whose consumer groups assign the partitions of these topics."""
        names: list[str] | None = None
        if records is not None:
            ids = {each.topic_id for each in records if isinstance(each, _TOPOLOGY)}
            found = [image.topics.get(topic_id) for topic_id in ids for image in (old, new)]
            names = sorted({topic.name for topic in found if topic is not None})
        if names != []:
            self._topics.changed()
            self.shell.tell_all(lambda machine, now: machine.topics_changed(names, now))

    # -- `broker.kafka.api.Groups`

    async def prepare(self) -> str:
        return await self._creation.ensure()

    def partition(self, group: str) -> int:
        return self.shell.partition(group)

    def led(self) -> Sequence[int]:
        return self.shell.led()

    def call(self, partition: int, request: GroupRequest, size: int) -> asyncio.Future[Any]:
        self.commits += isinstance(request, OffsetCommit)
        return self.shell.request(partition, request, size, is_read=isinstance(request, READS))

    def tell(self, group: str, operation: Operation[GroupMachine]) -> None:
        """Queue an operation at the coordinator of a group, if this broker still coordinates the group."""
        self.shell.tell(self.partition(group), operation)

    # -- transactions

    async def write_marker(
        self, partition: int, marker: Marker, *, only_if: Callable[[ProducerState], bool] | None = None
    ) -> KafkaCode:
        """Write a marker to a partition, and apply the offsets of its transaction.

        Return NONE once the marker is committed, or the error code.

        only_if: a condition on the producers in the log, evaluated just before the marker is appended.  If it is false,
            nothing is appended and INVALID_TXN_STATE is returned.
        """

        def operation(machine: GroupMachine, call: int, now_ms: int) -> Step:
            producers = self.shell.producers(partition)
            if only_if is not None and (producers is None or not only_if(producers)):
                return Step(answers=(Answer(call, KafkaCode.INVALID_TXN_STATE),))
            verdict = None if producers is None else producers.check_marker(marker)
            if isinstance(verdict, Refuse):
                return Step(answers=(Answer(call, verdict.code),))
            if isinstance(verdict, Duplicate):
                return Step(answers=(Answer(call, None),))  # sent once everything in the log is committed
            if producers is not None and not marker.raises_epoch:
                producers.void_verification(*marker.producer)
            return machine.request(call, EndOffsetTransaction(marker), now_ms)

        needs_log = only_if is not None
        found = await self.shell.call(partition, operation, HEADER_SIZE, is_read=False, needs_log=needs_log)
        return KafkaCode.NONE if found is None else KafkaCode(found)

    async def commit_in_transaction(
        self, transactional_id: str, request: TxnOffsetCommit, verify: Verify, support: TransactionSupport, size: int
    ) -> Any:
        """Commit offsets within a transaction, once the coordinator has confirmed that this partition is part of it.

        Return an OffsetCommitResponse, or the `KafkaCode` of a refusal.
        """
        partition, (producer_id, epoch) = self.partition(request.group), request.producer
        try:
            producers = self.shell.producers(partition)
        except (DiskError, CorruptStoreError) as error:
            self.shell.take_offline(partition, error)
            producers = None
        if producers is None:
            return KafkaCode.NOT_COORDINATOR
        token = producers.start_verification(producer_id, epoch, NO_SEQUENCE)
        if token is not None and not token.is_confirmed:
            code = KafkaCode.COORDINATOR_NOT_AVAILABLE
            token.waiting += 1
            try:
                code = await verify(transactional_id, request.producer, (CONSUMER_OFFSETS, partition), support)
                token.is_confirmed = token.is_confirmed or code is KafkaCode.NONE
            finally:
                token.waiting -= 1
                if not (token.is_confirmed or token.waiting):  # a repeated request may still wait with this token
                    producers.end_verification(producer_id, token)
            if not token.is_confirmed:
                is_unavailable = code is KafkaCode.NOT_ENOUGH_REPLICAS
                return KafkaCode.COORDINATOR_NOT_AVAILABLE if is_unavailable else code

        def operation(machine: GroupMachine, call: int, now_ms: int) -> Step:
            now = self.shell.producers(partition)
            if now is None or not now.is_verified(producer_id, epoch, token):
                return Step(answers=(Answer(call, KafkaCode.INVALID_TXN_STATE),))
            if producer_id in now.transactions.open and not now.has_open(producer_id, epoch):
                # The marker of an earlier transaction is missing in this partition.
                return Step(answers=(Answer(call, KafkaCode.COORDINATOR_NOT_AVAILABLE),))
            verdict = now.check_coordinated(producer_id, epoch)
            if isinstance(verdict, Refuse):
                return Step(answers=(Answer(call, verdict.code),))
            return machine.request(call, request, now_ms)

        return await self.shell.call(partition, operation, size, is_read=False)

    # -- metrics

    def count_by_state(self) -> dict[str, int]:
        """Return the number of groups in each state."""
        counts: Counter[GroupState] = Counter()
        for each in self.shell:
            if each.machine is not None:
                counts.update(each.machine.states())
        return {state.value: counts[state] for state in GroupState}
