"""Share groups on this broker: implements `broker.kafka.api.Shares`.

As the leader of partitions, the broker serves ShareFetch and ShareAcknowledge.  As the coordinator of groups, it
initializes and deletes the states of their share partitions at the share coordinators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

from broker.coordinator.dead_letters import DeadLetters, DeadLetterTopic, Produce
from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.led_share import ShareConfig
from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.coordinator.log_ends import LogEnds
from broker.coordinator.share_fetch import ShareFetchService
from broker.coordinator.share_partitions import SharePartitions
from broker.coordinator.share_reminders import ShareReminders
from broker.coordinator.share_states import ShareStates
from broker.core.coordinator.consumer.requests import NamedPartitions
from broker.core.coordinator.share.requests import (
    DeleteShareStates,
    ForgetShareStates,
    InitializeShareStates,
    ListShareStates,
    ListShareStatesResponse,
    NoteShareStates,
    ResetShareStates,
)
from broker.core.coordinator.share.states import (
    NO_START,
    DeleteState,
    InitializeState,
    ShareKey,
    StateRequest,
    StateResponse,
    SummarizeState,
)
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

_GROUP_BYTES: Final = 100
"""The size in bytes that a coordinator assumes for a request of this broker."""


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
    """The leaders of share partitions, the share coordinators, and the clients of group coordinators, on this broker.

    resolve: returns the address of a broker's inter-broker listener; None while it is not registered.
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
        self._cluster = table.context.cluster
        self._groups = groups
        self.states = ShareStates(table, call, wait_applied, resolve, sources, self._limits)
        self.letters = DeadLetters(table, call, wait_applied, resolve, produce, sources.wall_ms, self._limits)
        self.partitions = SharePartitions(table, self.states, self.letters, self._limits, sources.wall_ms)
        self.fetches = ShareFetchService(self.partitions, self._limits)
        self._reminders = ShareReminders(
            self.states.shell, self._cluster, resolve, self.write_dead_letters, self._limits
        )
        # `LogEnds` drops a connection after its timeout, and a save may take longer.  So it has its own connections.
        self._log_end_links = BrokerLinks(resolve)
        self._log_ends = LogEnds(table, self._log_end_links, self._limits)
        self._asking: set[tuple[str, type[Any]]] = set()
        """The group and the kind of each effect in progress."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        groups.on_share_effect = self._on_effect

    # -- life

    def start(self, group: asyncio.TaskGroup, image: ClusterImage) -> None:
        """Serve from now on; the tasks belong to `group`.  image: the metadata replayed so far."""
        self._group = group
        self._configure(image)
        self.states.start(group)
        self.letters.start(group)
        self.partitions.start(group)
        self._own(group.create_task(self._reminders.run(), name="share-reminders"))

    async def close(self) -> None:
        """Refuse all calls, and end all tasks.  Idempotent."""
        self._group = None
        self.partitions.close()
        for task in self._tasks:
            task.cancel()
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

    def _own(self, task: asyncio.Task[None]) -> None:
        """Keep a task, so that `close` cancels it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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

    # -- the coordinator of groups

    def _on_effect(self, effect: Any) -> None:
        """Perform an effect of the group coordinator.  The records before the effect are committed.

        While an earlier effect of the same kind is in progress for the group, drop the new one: the group orders it
        again.  Effects overlap if a share coordinator does not answer, because requests about thousands of states then
        take longer than the group waits.
        """
        kind = (effect.group, type(effect))
        if self._group is None or kind in self._asking:
            return
        self._asking.add(kind)
        work = self._initialize(effect) if isinstance(effect, InitializeShareStates) else self._delete(effect)
        self._own(self._group.create_task(work, name=f"share-states-{effect.group}"))

    async def _ask_for(
        self, effect: InitializeShareStates | DeleteShareStates, requests: Sequence[StateRequest]
    ) -> list[StateResponse]:
        try:
            return await self.states.ask_all(requests)
        finally:
            self._asking.discard((effect.group, type(effect)))

    async def _initialize(self, effect: InitializeShareStates) -> None:
        """Initialize states, and report the initialized ones to the group.  The group requests the others again."""
        keys = _keys(effect.group, effect.partitions)
        found = await self._ask_for(effect, [InitializeState(key, effect.state_epoch, NO_START) for key in keys])
        # FENCED_STATE_EPOCH shows that a state with a later epoch exists, so this partition is initialized, too.
        good = (KafkaCode.NONE, KafkaCode.FENCED_STATE_EPOCH)
        done = {key for key, response in zip(keys, found, strict=True) if response.error in good}
        initialized = _of(effect.group, effect.partitions, done)
        if initialized:
            self._groups.tell(
                effect.group, lambda machine, now: machine.share_initialized(effect.group, initialized, now)
            )

    async def _delete(self, effect: DeleteShareStates) -> None:
        """Delete states, and report the deleted ones to the group.  The group requests the others again."""
        keys = _keys(effect.group, effect.partitions)
        found = await self._ask_for(effect, [DeleteState(key) for key in keys])
        done = {key for key, response in zip(keys, found, strict=True) if response.error is KafkaCode.NONE}
        if deleted := _of(effect.group, effect.partitions, done):
            self._groups.tell(effect.group, lambda machine, now: machine.share_deleted(effect.group, deleted, now))

    async def clear_group(self, group: str) -> KafkaCode:
        """Delete the states of a share group that will be deleted.  A group of another type is not changed."""
        listed = await self._ask_group(group, ListShareStates(group, must_be_empty=True))
        if listed.error is KafkaCode.GROUP_ID_NOT_FOUND:
            return KafkaCode.NONE
        if listed.error is not KafkaCode.NONE or not listed.partitions:
            return listed.error
        return await self._forget(group, listed.partitions)

    async def _forget(self, group: str, partitions: tuple[NamedPartitions, ...]) -> KafkaCode:
        """Delete states, and report the deletion to the group.  A leader can no longer save such a state."""
        responses = await self.states.ask_all([DeleteState(key) for key in _keys(group, partitions)])
        failed = [each.error for each in responses if each.error is not KafkaCode.NONE]
        if failed:
            return failed[0]
        return (await self._ask_group(group, ForgetShareStates(group, partitions))).error

    async def describe_offsets(
        self, group: str, wanted: Sequence[NamedPartitions] | None
    ) -> tuple[ListShareStatesResponse, list[tuple[NamedPartitions, list[StateResponse]]]]:
        """Return the group's list of states, and the states by topic; no states if the list has an error.

        wanted: the partitions to describe; None: all that have a state.
        If a topic was deleted and another topic has its name now, the states of the deleted topic are left out: clients
        would treat them as states of the new topic.
        """
        listed = await self._ask_group(group, ListShareStates(group))
        if listed.error is not KafkaCode.NONE:
            return listed, []
        ids = self._cluster.newest.topic_ids
        known = [each for each in listed.partitions if ids.get(each.topic, each.topic_id) == each.topic_id]
        topics = known if wanted is None else list(wanted)
        found = iter(await self.states.ask_all([SummarizeState(key) for key in _keys(group, topics)]))
        return listed, [(topic, [next(found) for _ in topic.partitions]) for topic in topics]

    async def log_ends(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        return await self._log_ends.of(partitions)

    async def alter_offsets(
        self, group: str, offsets: Sequence[tuple[NamedPartitions, Sequence[int]]]
    ) -> tuple[ListShareStatesResponse, list[StateResponse]]:
        """Initialize states again, at the given offsets.  The group must be empty; a missing group is created.

        Return the answer of the group, and one response for each partition, in order.  If the group refuses, there are
        no responses.

        The group notes the share partitions after their states were written.  If the group's coordinator fails before
        that, the states remain, and are added to the group when the next member subscribes to the topics.
        """
        reset = await self._ask_group(group, ResetShareStates(group, tuple(topic for topic, _ in offsets)))
        if reset.error is not KafkaCode.NONE:
            return reset, []
        starts = [start for _, each in offsets for start in each]
        keys = _keys(group, [topic for topic, _ in offsets])
        requests = [InitializeState(key, reset.epoch, start) for key, start in zip(keys, starts, strict=True)]
        found = await self.states.ask_all(requests)
        done = {key for key, response in zip(keys, found, strict=True) if response.error is KafkaCode.NONE}
        partitions = _of(group, [topic for topic, _ in offsets], done)
        if partitions:
            noted = await self._ask_group(group, NoteShareStates(group, partitions))
            if noted.error is not KafkaCode.NONE:
                return noted, []
        return reset, found

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, KafkaCode] | ListShareStatesResponse:
        """Delete the states of topics.  The group must be empty.  Return the error of each topic, or of the group."""
        listed = await self._ask_group(group, ListShareStates(group, must_be_empty=True))
        if listed.error is not KafkaCode.NONE:
            return listed
        known: dict[str, list[NamedPartitions]] = {}
        for each in listed.partitions:  # states of a deleted topic with the same name may still exist
            known.setdefault(each.topic, []).append(each)
        results = {}
        for topic in topics:
            if topic in known:
                results[topic] = await self._forget(group, tuple(known[topic]))
            else:
                results[topic] = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        return results

    async def _ask_group(
        self, group: str, request: ListShareStates | ForgetShareStates | ResetShareStates | NoteShareStates
    ) -> ListShareStatesResponse:
        found = await self._groups.call(self._groups.partition(group), request, _GROUP_BYTES)
        return ListShareStatesResponse(found) if isinstance(found, KafkaCode) else found


def _of(group: str, topics: Sequence[NamedPartitions], keys: Collection[ShareKey]) -> tuple[NamedPartitions, ...]:
    """Return the partitions of topics that `keys` contains."""
    chosen = [
        NamedPartitions(topic_id, name, tuple(index for index in indexes if ShareKey(group, topic_id, index) in keys))
        for topic_id, name, indexes in topics
    ]
    return tuple(each for each in chosen if each.partitions)


def _keys(group: str, topics: Sequence[NamedPartitions]) -> list[ShareKey]:
    return [ShareKey(group, topic.topic_id, index) for topic in topics for index in topic.partitions]
