"""Changes of the start offsets of share groups, which the group coordinator and the share coordinators apply."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.coordinator.groups import GroupCoordinators
from broker.coordinator.partition import Operation
from broker.coordinator.share_group_states import ShareGroupStates
from broker.coordinator.share_states import ShareStates
from broker.coordinator.shares import ShareGroups
from broker.core.coordinator.consumer.requests import NamedPartitions
from broker.core.coordinator.group_machine import GroupMachine
from broker.core.coordinator.group_requests import GroupRequest
from broker.core.coordinator.share.requests import (
    DeleteShareStates,
    InitializeShareStates,
    ListShareStates,
    NoteShareStates,
)
from broker.core.coordinator.share.states import DeleteState, InitializeState, StateRequest, StateResponse
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.driver import Cluster, Coordinator, topic_id
from tests.unit.broker.replica.rig import TOPIC, Rig

ORDERS = topic_id("orders")
BOTH = NamedPartitions(ORDERS, "orders", (0, 1))


class Place:
    """A group coordinator, and fake share coordinators.

    failing: partitions whose states cannot be initialized or deleted.
    refusal: the group coordinator's answer to requests that record states.
    """

    def __init__(self, rig: Rig) -> None:
        self.machine = Coordinator(cluster=Cluster(orders=2))
        self.failing: set[int] = set()
        self.refusal: KafkaCode | None = None
        self.asked: list[StateRequest] = []
        self.on_share_effect: Any = None
        self.states = ShareGroupStates(cast(GroupCoordinators, self), cast(ShareStates, self), rig.context.cluster)

    async def ask_all(self, requests: Sequence[StateRequest]) -> list[StateResponse]:
        self.asked += requests
        bad = StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE)
        return [bad if each.key.partition in self.failing else StateResponse(KafkaCode.NONE) for each in requests]

    # -- the group's coordinator

    def partition(self, group: str) -> int:
        return 0

    def call(self, partition: int, request: GroupRequest, size: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        is_refused = self.refusal is not None and isinstance(request, NoteShareStates)
        future.set_result(self.refusal if is_refused else self.machine.ask(request))
        return future

    def tell(self, group: str, operation: Operation[GroupMachine]) -> None:
        self.machine.take(operation(self.machine.machine, self.machine.now_ms))

    def listed(self) -> list[tuple[int, ...]]:
        return [each.partitions for each in self.machine.ask(ListShareStates("work")).partitions]


@pytest.fixture
async def place(rig: Rig) -> Place:
    return Place(rig)


async def test_altering_the_offsets_of_a_missing_group_creates_the_group(place: Place) -> None:
    reset, states = await place.states.alter_offsets("work", [(BOTH, [5, 7])])
    assert (reset.error, [each.error for each in states]) == (KafkaCode.NONE, [KafkaCode.NONE] * 2)
    assert [(type(each), each.key.partition) for each in place.asked] == [(InitializeState, 0), (InitializeState, 1)]
    assert [each.start_offset for each in place.asked if isinstance(each, InitializeState)] == [5, 7]
    assert place.listed() == [(0, 1)]


async def test_the_group_does_not_list_a_share_partition_whose_state_could_not_be_initialized(place: Place) -> None:
    place.failing.add(1)
    reset, states = await place.states.alter_offsets("work", [(BOTH, [5, 7])])
    assert reset.error is KafkaCode.NONE
    assert [each.error for each in states] == [KafkaCode.NONE, KafkaCode.COORDINATOR_NOT_AVAILABLE]
    assert place.listed() == [(0,)]


async def test_altering_offsets_fails_if_the_group_coordinator_refuses_to_record_the_states(place: Place) -> None:
    place.refusal = KafkaCode.NOT_COORDINATOR
    reset, states = await place.states.alter_offsets("work", [(BOTH, [5, 7])])
    assert (reset.error, states) == (KafkaCode.NOT_COORDINATOR, [])


async def test_the_group_lists_a_state_of_a_deleted_topic_until_its_deletion_succeeds(place: Place) -> None:
    await place.states.alter_offsets("work", [(BOTH, [5, 7])])
    place.failing.add(1)
    await place.states._delete(DeleteShareStates("work", (BOTH,)))
    assert [type(each) for each in place.asked[-2:]] == [DeleteState, DeleteState]
    assert place.listed() == [(1,)]


async def test_altering_no_offsets_creates_no_group_and_no_state(place: Place) -> None:
    reset, states = await place.states.alter_offsets("work", [])
    assert (reset.error, states, place.asked, place.machine.log) == (KafkaCode.NONE, [], [], [])


@pytest.mark.parametrize("effect", [InitializeShareStates("work", 1, (BOTH,)), DeleteShareStates("work", (BOTH,))])
async def test_a_group_does_not_repeat_requests_to_share_coordinators_before_they_are_answered(
    place: Place, monkeypatch: pytest.MonkeyPatch, effect: InitializeShareStates | DeleteShareStates
) -> None:
    """Every 10 s, the group requests the states of all its partitions again.  Thousands of requests take longer."""
    answers = asyncio.Event()
    asked: list[StateRequest] = []

    async def ask_all(requests: Sequence[StateRequest]) -> list[StateResponse]:
        asked.extend(requests)
        await answers.wait()
        return [StateResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE)] * len(requests)

    monkeypatch.setattr(place, "ask_all", ask_all)
    async with asyncio.TaskGroup() as group:
        place.states.start(group)
        for _ in range(3):
            place.on_share_effect(effect)
            await asyncio.sleep(0)
        assert len(asked) == 2
        place.on_share_effect(replace(effect, group="other"))
        await asyncio.sleep(0)
        assert len(asked) == 4
        answers.set()
    async with asyncio.TaskGroup() as group:
        place.states.start(group)
        place.on_share_effect(effect)
    assert len(asked) == 6


async def test_closing_the_share_groups_ends_requests_that_are_not_answered(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing, groups = cast(Any, None), cast(Any, SimpleNamespace())
    shares = ShareGroups(rig.role.table, groups, nothing, nothing, nothing, Sources.real(), nothing)

    async def ask_all(requests: Sequence[StateRequest]) -> list[StateResponse]:
        await asyncio.Event().wait()
        raise AssertionError("nothing answers")

    monkeypatch.setattr(shares.states, "ask_all", ask_all)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        shares._group_states.start(group)
        groups.on_share_effect(DeleteShareStates("work", (BOTH,)))
        await asyncio.sleep(0)
        await shares.close()


async def former_topics(place: Place, topic: NamedPartitions) -> None:
    """Record states of a topic, and of two deleted topics of the same name whose states are not deleted yet."""
    for each in (UUID(int=1), topic.topic_id, UUID(int=2**128 - 1)):
        await place.states.alter_offsets("work", [(topic._replace(topic_id=each), [5] * len(topic.partitions))])
    assert place.listed() == [topic.partitions] * 3


async def test_deleting_the_offsets_of_a_topic_also_deletes_those_of_deleted_topics_of_that_name(place: Place) -> None:
    await former_topics(place, BOTH)
    assert await place.states.delete_offsets("work", ["orders"]) == {"orders": KafkaCode.NONE}
    assert place.listed() == []


async def test_describing_offsets_shows_the_existing_topic_not_deleted_topics_of_that_name(
    rig: Rig, place: Place
) -> None:
    """A client identifies the offsets by the name of their topic."""
    await rig.create((1,))
    topic = NamedPartitions(rig.hosted().topic_id, TOPIC, (0,))
    await former_topics(place, topic)
    _, described = await place.states.describe_offsets("work", None)
    assert [each for each, _ in described] == [topic]
