"""Share groups on this broker: implements `broker.kafka.api.Shares` from the parts of share groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from broker.coordinator.dead_letters import DeadLetters, DeadLetterTopic, Produce
from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.led_share import ShareConfig
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.log_ends import LogEnds
from broker.coordinator.share_fetch import ShareFetchService
from broker.coordinator.share_group_states import ShareGroupStates
from broker.coordinator.share_partitions import SharePartitions
from broker.coordinator.share_reminders import ShareReminders
from broker.coordinator.share_states import ShareStates
from broker.core.coordinator.consumer.requests import NamedPartitions
from broker.core.coordinator.share.requests import ListShareStatesResponse
from broker.core.coordinator.share.states import ShareKey, StateRequest, StateResponse
from broker.core.fetch_session import PartitionKey
from broker.core.share.partition import ShareLimits
from broker.core.share.requests import ShareAcknowledgePlan, ShareFetchPlan, ShareReply
from broker.replica.table import ReplicaTable
from metadata.image import (
    DEAD_LETTER_COPIES,
    DEAD_LETTER_TOPIC,
    RENEW_ENABLED,
    ClusterImage,
    group_config,
    reset_duration_ms,
)
from metadata.records import Record
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.rpcs import ControllerCall


def share_config(image: ClusterImage, group: str) -> ShareConfig:
    """Return the configs of a share group."""

    def value(key: str) -> int:
        return int(group_config(image, group, f"share.{key}"))

    reset = group_config(image, group, "share.auto.offset.reset")
    dead_letter_topic = group_config(image, group, DEAD_LETTER_TOPIC)
    limits = ShareLimits(
        lock_ms=value("record.lock.duration.ms"),
        delivery_count_max=value("delivery.count.limit"),
        max_in_flight=value("partition.max.record.locks"),
        may_renew=group_config(image, group, RENEW_ENABLED) == "true",
        has_dead_letters=bool(dead_letter_topic),
    )
    return ShareConfig(
        limits,
        max_age_ms=None if reset == "earliest" else reset_duration_ms(reset) or 0,
        read_committed=group_config(image, group, "share.isolation.level") == "read_committed",
        dead_letters=DeadLetterTopic(dead_letter_topic, group_config(image, group, DEAD_LETTER_COPIES) == "true")
        if dead_letter_topic
        else None,
    )


class ShareGroups:
    """Starts and closes the parts, gives them their configs, and passes requests on to them.

    resolve: returns the address of a broker's inter-broker listener; None while the broker is not registered.
    produce: appends dead letters to a partition that this broker leads.
    """

    def __init__(
        self,
        table: ReplicaTable,
        groups: GroupCoordinators,
        call: ControllerCall,
        wait_applied: Callable[[int], Awaitable[object]],
        resolve: Callable[[int], tuple[str, int] | None],
        sources: Sources,
        produce: Produce,
        limits: CoordinatorLimits | None = None,
    ) -> None:
        self._limits = limits or CoordinatorLimits()
        cluster = table.context.cluster
        self.states = ShareStates(table, call, wait_applied, resolve, sources, self._limits)
        self.letters = DeadLetters(table, call, wait_applied, resolve, produce, sources.wall_ms, self._limits)
        self.partitions = SharePartitions(table, self.states, self.letters, self._limits, sources.wall_ms)
        self.fetches = ShareFetchService(self.partitions, self._limits)
        self._reminders = ShareReminders(self.states.shell, cluster, resolve, self.write_dead_letters, self._limits)
        self._group_states = ShareGroupStates(groups, self.states, cluster)
        # `LogEnds` drops a connection after its timeout.  A save may take longer than this timeout, so `LogEnds` does
        # not share the connections of `ShareStates`.
        self._log_end_links = BrokerLinks(resolve)
        self._log_ends = LogEnds(table, self._log_end_links, self._limits)
        self._reminding: asyncio.Task[None] | None = None

    # -- life

    def start(self, group: asyncio.TaskGroup, image: ClusterImage) -> None:
        """Serve from now on; the tasks belong to `group`.  image: the metadata replayed so far."""
        self._configure(image)
        self._group_states.start(group)
        self.states.start(group)
        self.letters.start(group)
        self.partitions.start(group)
        self._reminding = group.create_task(self._reminders.run(), name="share-reminders")

    async def close(self) -> None:
        """Refuse all calls, and end all tasks.  Idempotent."""
        self.partitions.close()
        self._group_states.close()
        if self._reminding is not None:
            self._reminding.cancel()
        await self._reminders.close()
        await self._log_end_links.close()
        await self.letters.close()
        await self.states.close()

    def on_batch(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
        """Follow changes of configs and of dead-letter topics; subscribed to `MetadataReplay`."""
        if old.configs is not new.configs or old.group_configs is not new.group_configs:
            self._configure(new)
        if self.letters.failing:
            is_reconfigured = old.configs is not new.configs
            may_succeed = [
                key
                for key, each in self.letters.failing.items()
                if is_reconfigured or old.topic(each.topic) is not new.topic(each.topic)
            ]
            self.partitions.retry_letters(may_succeed)

    def _configure(self, image: ClusterImage) -> None:
        # A copy without topics, so that `partitions` keeps no old topics in memory.
        configs = ClusterImage(configs=image.configs, group_configs=image.group_configs)
        self.fetches.sessions_max = int(configs.cluster_config("group.share.max.share.sessions"))
        self.partitions.configure(partial(share_config, configs))

    # -- the share coordinator

    async def prepare(self) -> str:
        return await self.states.prepare()

    def partition(self, key: str) -> int:
        return self.states.shell.partition(key)

    def led(self) -> Sequence[int]:
        return self.states.shell.led()

    def call(self, request: StateRequest) -> asyncio.Future[Any]:
        return self.states.call(request)

    # -- the leader of partitions

    def lock_ms(self, group: str) -> int:
        return self.partitions.config_of(group).limits.lock_ms

    async def fetch(self, plan: ShareFetchPlan) -> ShareReply:
        return await self.fetches.fetch(plan)

    async def acknowledge(self, plan: ShareAcknowledgePlan) -> ShareReply:
        return await self.fetches.acknowledge(plan)

    def disconnected(self, peer: str) -> None:
        self.fetches.disconnected(peer)

    def write_dead_letters(self, keys: Sequence[ShareKey]) -> None:
        for key in keys[: self._limits.share_reminders_max]:
            self.partitions.remind(key)

    # -- the states of groups

    async def clear_group(self, group: str) -> KafkaCode:
        return await self._group_states.clear_group(group)

    async def describe_offsets(
        self, group: str, wanted: Sequence[NamedPartitions] | None
    ) -> tuple[ListShareStatesResponse, list[tuple[NamedPartitions, list[StateResponse]]]]:
        return await self._group_states.describe_offsets(group, wanted)

    async def log_ends(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        return await self._log_ends.of(partitions)

    async def alter_offsets(
        self, group: str, offsets: Sequence[tuple[NamedPartitions, Sequence[int]]]
    ) -> tuple[ListShareStatesResponse, list[StateResponse]]:
        return await self._group_states.alter_offsets(group, offsets)

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, KafkaCode] | ListShareStatesResponse:
        return await self._group_states.delete_offsets(group, topics)
