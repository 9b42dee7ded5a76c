"""The creation of an internal topic at its first use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.coordinator.creation import TopicCreation
from broker.coordinator.limits import CoordinatorLimits
from broker.replica.cluster_view import ClusterView
from metadata.control.topics import NewTopic, create_topics
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.builders import Cluster

TOPIC = "__consumer_offsets"


class Controller:
    """Decides with the production code; the broker applies the result at `apply`, or immediately."""

    def __init__(self, brokers: int = 3) -> None:
        self.cluster = Cluster()
        self.cluster.start(*range(1, brokers + 1))
        self.view = ClusterView(1)
        self.view.applied = self.cluster.image
        self.requests = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def call(self, rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        assert rpc is rpcs.CREATE_TOPICS
        self.requests += 1
        await self.answers.wait()
        [new] = request.topics
        topic = NewTopic(new.name, new.partitions, new.replication_factor)
        decision = create_topics(self.cluster.image, [topic], self.cluster.new_id)
        self.cluster.apply(decision.records)
        outcome = decision.reply[0].outcome
        result = pb.Result(error=outcome.error, message=outcome.message, next=outcome.next_step)
        created = pb.CreatedTopic(name=new.name, result=result, offset=self.cluster.image.end_offset)
        return pb.CreateTopicsReply(topics=[created])

    async def wait_applied(self, offset: int) -> None:
        assert offset <= self.cluster.image.end_offset
        self.view.applied = self.cluster.image


@asynccontextmanager
async def creating(controller: Controller, limits: CoordinatorLimits | None = None) -> AsyncIterator[TopicCreation]:
    limits = limits or CoordinatorLimits()
    creation = TopicCreation(TOPIC, controller.view, controller.call, controller.wait_applied, limits)
    async with asyncio.TaskGroup() as group:
        creation.start(group)
        try:
            yield creation
        finally:
            await creation.close()


async def test_a_thousand_concurrent_first_uses_create_the_topic_once() -> None:
    controller = Controller()
    controller.answers.clear()
    async with creating(controller) as creation:
        callers = [asyncio.ensure_future(creation.ensure()) for _ in range(1000)]
        await asyncio.sleep(0)
        controller.answers.set()
        assert await asyncio.gather(*callers) == [""] * 1000
        assert await creation.ensure() == ""
    assert controller.requests == 1
    topic = controller.view.applied.topic(TOPIC)
    assert topic is not None
    assert len(topic.partitions) == 50


async def test_a_caller_that_gives_up_does_not_stop_the_creation() -> None:
    controller = Controller()
    controller.answers.clear()
    async with creating(controller) as creation:
        first, second = asyncio.ensure_future(creation.ensure()), asyncio.ensure_future(creation.ensure())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        controller.answers.set()
        assert await second == ""


async def test_a_refused_creation_names_its_cause_and_is_not_requested_again_during_the_pause() -> None:
    controller = Controller(brokers=2)
    async with creating(controller) as creation:
        problem = await creation.ensure()
        assert "replication factor 3" in problem
        assert "start more brokers" in problem
        assert await creation.ensure() == problem
    assert controller.requests == 1


async def test_a_refused_creation_is_requested_again_after_the_pause() -> None:
    controller = Controller(brokers=2)
    async with creating(controller, CoordinatorLimits(creation_pause_ms=0)) as creation:
        assert await creation.ensure()
        controller.cluster.start(3)
        assert await creation.ensure() == ""


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_topic_created_by_another_broker_is_usable_once_this_broker_has_applied_its_creation(
    is_known: bool,
) -> None:
    controller = Controller()
    controller.cluster.create(TOPIC, (1, 2, 3))
    async with creating(controller) as creation:
        if is_known:
            controller.view.applied = controller.cluster.image
        assert await creation.ensure() == (
            "" if is_known else f"this broker has not applied the creation of {TOPIC} yet"
        )


async def test_the_creation_fails_at_its_timeout_if_the_controller_does_not_answer() -> None:
    controller = Controller()
    controller.answers.clear()
    async with creating(controller, CoordinatorLimits(creation_timeout_ms=20)) as creation:
        assert await creation.ensure() == f"the controller has not created {TOPIC} in time"
