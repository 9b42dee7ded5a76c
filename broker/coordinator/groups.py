"""The coordinators of consumer groups on this broker: implements `broker.kafka.api.Groups`.

The limits of groups are configs of the cluster.  A change of them, and the deletion of topics, reach the machines of
all partitions that this broker coordinates.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from broker.coordinator.creation import TopicCreation
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.shell import CoordinatorShell
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.group_requests import (
    DescribeGroups,
    GroupLimits,
    GroupRequest,
    GroupState,
    Heartbeat,
    ListGroups,
    OffsetCommit,
    OffsetFetch,
)
from broker.core.coordinator.machine import Step
from broker.replica.cluster_view import ClusterView
from broker.replica.table import ReplicaTable
from metadata.image import ClusterImage, TopicImage
from metadata.image.internal_topics import CONSUMER_OFFSETS
from metadata.records import Record, RemoveTopic
from quorumlog.runtime.clock import Sources
from quorumlog.wire.rpcs import ControllerCall

READS: Final = (DescribeGroups, Heartbeat, ListGroups, OffsetFetch)
"""Requests that make no records."""

_MINUTE_MS: Final = 60_000


def group_limits(image: ClusterImage) -> GroupLimits:
    """Return the limits of groups according to the cluster's configs.  A minimum above its maximum applies."""

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
    )


def _continues(topic: TopicImage, image: ClusterImage) -> bool:
    """Return whether a topic exists in a later image, perhaps under another id."""
    now = image.topic(topic.name)
    return now is not None and now.origin == topic.origin


class ImageTopics:
    """The `Topics` of the machines.  It uses the newest metadata, so that no offset of a deleted topic is committed.

    A coordinator deletes the offsets of partitions that its newest image lacks.  So a commit must not depend on
    metadata that the next coordinator may not have yet.  While a replica leads under an epoch, the change that ends
    this epoch is not applied here, and the next leader has it.  So the next leader knows all that is applied here.
    """

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def has_partition(self, topic: str, partition: int) -> bool:
        return self._cluster.partition(topic, partition) is not None

    def may_commit(self, topic: str, partition: int) -> bool:
        applied = self._cluster.applied.topic(topic)
        is_applied = applied is not None and applied.partition(partition) is not None
        return is_applied and self.has_partition(topic, partition)


class GroupCoordinators:
    """The coordinators of groups of one broker.

    wait_applied: returns once this broker has applied the metadata below an offset.
    commits: OffsetCommit requests that reached a coordinator, for the metrics.
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
        self._topics = ImageTopics(cluster)
        self._group_limits = GroupLimits()
        self._creation = TopicCreation(CONSUMER_OFFSETS, cluster, call, wait_applied, limits)
        self.shell = CoordinatorShell(CONSUMER_OFFSETS, table, self._machine, sources.wall_ms, limits)
        self.commits = 0

    def _machine(self) -> GroupMachine:
        return GroupMachine(self._group_limits, self._topics, self._sources.random, self._sources.wall_ms)

    # -- life

    def start(self, group: asyncio.TaskGroup, image: ClusterImage) -> None:
        """Coordinate from now on; the tasks belong to `group`.  image: the metadata replayed so far."""
        self._group_limits = group_limits(image)
        self._creation.start(group)
        self.shell.start(group)

    async def close(self) -> None:
        """Refuse all calls, and end all tasks.  Idempotent."""
        await self._creation.close()
        await self.shell.close()

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
        if old.configs is not new.configs and (limits := group_limits(new)) != self._group_limits:
            self._group_limits = limits
            self.shell.tell_all(lambda machine, now: machine.configure(limits, now))
        if records is None:
            gone = [topic for topic in old.topics.values() if not _continues(topic, new)]
        else:
            found = [old.topics.get(each.topic_id) for each in records if isinstance(each, RemoveTopic)]
            gone = [topic for topic in found if topic is not None]
        if gone:
            names = sorted({topic.name for topic in gone})
            self.shell.tell_all(lambda machine, now: machine.topics_deleted(names, now))

    # -- `broker.kafka.api.Groups`

    async def prepare(self) -> str:
        return await self._creation.ensure()

    def partition(self, group: str) -> int:
        return self.shell.partition(group)

    def led(self) -> Sequence[int]:
        return self.shell.led()

    def call(self, partition: int, request: GroupRequest, size: int) -> asyncio.Future[Any]:
        self.commits += isinstance(request, OffsetCommit)
        return self.shell.call(partition, partial(_apply, request), size, is_read=isinstance(request, READS))

    # -- metrics

    def count_by_state(self) -> dict[str, int]:
        """Return the number of groups in each state."""
        counts: Counter[GroupState] = Counter()
        for each in self.shell:
            if each.machine is not None:
                counts.update(each.machine.states())
        return {state.value: counts[state] for state in GroupState}


def _apply(request: GroupRequest, machine: GroupMachine, call: int, now_ms: int) -> Step:
    return machine.request(call, request, now_ms)
