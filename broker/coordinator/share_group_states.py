"""The states of share groups: share coordinators store them, and the coordinator of each group lists its states.

A change is made at the share coordinators first, and then in the list.  The coordinator of a group orders the changes
for topics to which members subscribe, and for deleted topics.  Administrators order the other changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

from broker.coordinator.groups import GroupCoordinators
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
from broker.replica.cluster_view import ClusterView
from quorumlog.wire.errors import KafkaCode

_GROUP_BYTES: Final = 100
"""The size in bytes that a coordinator assumes for a request of this broker."""


class ShareGroupStates:
    """Creates, describes, resets and deletes the states of share groups, and reports changes to their coordinators."""

    def __init__(self, groups: GroupCoordinators, states: ShareStates, cluster: ClusterView) -> None:
        self._groups = groups
        self._states = states
        self._cluster = cluster
        self._asking: set[tuple[str, type[Any]]] = set()
        """The group and the kind of each effect in progress."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        groups.on_share_effect = self._on_effect

    def start(self, group: asyncio.TaskGroup) -> None:
        """Perform effects from now on; the tasks belong to `group`."""
        self._group = group

    def close(self) -> None:
        """End all tasks.  Idempotent."""
        self._group = None
        for task in self._tasks:
            task.cancel()

    # -- effects of the group coordinator

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
        task = self._group.create_task(work, name=f"share-states-{effect.group}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask_for(
        self, effect: InitializeShareStates | DeleteShareStates, requests: Sequence[StateRequest]
    ) -> list[StateResponse]:
        try:
            return await self._states.ask_all(requests)
        finally:
            self._asking.discard((effect.group, type(effect)))

    async def _initialize(self, effect: InitializeShareStates) -> None:
        """Initialize states, and report the initialized ones to the group.  The group requests the others again."""
        keys = _keys(effect.group, effect.partitions)
        found = await self._ask_for(effect, [InitializeState(key, effect.state_epoch, NO_START) for key in keys])
        # FENCED_STATE_EPOCH means that a state of a later epoch exists.  Then the partition is initialized as well.
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

    # -- requests of administrators

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
        responses = await self._states.ask_all([DeleteState(key) for key in _keys(group, partitions)])
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
        found = iter(await self._states.ask_all([SummarizeState(key) for key in _keys(group, topics)]))
        return listed, [(topic, [next(found) for _ in topic.partitions]) for topic in topics]

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
        found = await self._states.ask_all(requests)
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
