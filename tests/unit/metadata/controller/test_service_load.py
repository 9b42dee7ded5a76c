"""The Controller service under load: requests in progress, their order and their deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metadata.control import topics
from metadata.control.topics import create_topics
from metadata.controller.service import IN_PROGRESS_MAX, Load
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.controller.test_controller import beat, new_topic, started
from tests.unit.metadata.fake_node import JumpingLoop, run, settle


def test_requests_in_progress_are_limited_separately_for_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(IN_PROGRESS_MAX, Load.ADMINISTRATION, 3)

    async def test() -> None:
        plane = await started(1)
        waiting = [plane.start(rpcs.CREATE_TOPICS, new_topic(f"t{number}")) for number in range(3)]
        await settle()
        refused = await plane.call(rpcs.CREATE_TOPICS, new_topic("more"))
        assert (refused.result.error, refused.result.retriable) == ("OVERLOADED", True)
        assert (await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1))).result.error == "NONE"
        epoch = plane.replay.image.brokers[1].epoch
        ids = plane.start(rpcs.ALLOCATE_PRODUCER_IDS, pb.AllocateProducerIdsRequest(broker_id=1, broker_epoch=epoch))
        await settle()
        plane.node.commit()
        assert (await ids).result.error == "NONE", "requests of brokers have a limit of their own"
        await asyncio.gather(*waiting)
        plane.node.auto_commit = True
        assert (await plane.call(rpcs.CREATE_TOPICS, new_topic("more"))).result.error == "NONE"

    run(test())


def test_isr_changes_overtake_earlier_administrative_requests() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 1, 2))
        image = plane.replay.image
        topic = image.topic("t")
        assert topic is not None
        partition = topic.partitions[0]
        assert partition is not None
        item = pb.AlterPartitionItem(
            topic_id=topic.topic_id.bytes, index=0, leader_epoch=0, partition_epoch=0,
            isr=[pb.IsrMember(broker_id=partition.leader, broker_epoch=image.brokers[partition.leader].epoch)],
        )  # fmt: skip
        change = pb.AlterPartitionRequest(
            broker_id=partition.leader, broker_epoch=image.brokers[partition.leader].epoch, items=[item]
        )
        before = plane.node.log_end_offset
        bulk = [plane.start(rpcs.CREATE_TOPICS, new_topic(f"bulk{number}", 50)) for number in range(100)]
        reply = await plane.call(rpcs.ALTER_PARTITION, change)
        assert reply.items[0].result.error == "NONE"
        done = plane.replay.image.topic("t")
        assert done is not None
        assert done.partitions[0] is not None
        assert len(done.partitions[0].isr) == 1
        assert plane.node.log_end_offset - before < 10 * 51, "most of the bulk requests are not decided yet"
        assert {task_reply.result.error for task_reply in await asyncio.gather(*bulk)} == {"NONE"}

    run(test())


def test_a_broker_without_heartbeats_is_fenced_under_constant_administration() -> None:
    async def test() -> None:
        plane = await started(1, 2)
        plane.node.auto_commit = True
        await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 1, 2))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        bulk = [plane.start(rpcs.CREATE_TOPICS, new_topic(f"bulk{number}", 5), 600_000) for number in range(500)]
        await asyncio.sleep(0)
        loop.now += 6.1  # a session ends while all of them wait
        before = plane.node.log_end_offset
        turns = 0
        while not any(broker.fenced for broker in plane.replay.image.brokers.values()):
            turns += 1
            await asyncio.sleep(0)
        assert plane.node.log_end_offset - before < 100 * 6
        assert turns < 100
        await asyncio.gather(*bulk)

    run(test())


def test_the_time_in_the_queue_counts_against_the_deadline_of_a_request() -> None:
    async def test() -> None:
        plane = await started(1)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        first = plane.start(rpcs.CREATE_TOPICS, new_topic("a"), 2000)
        second = plane.start(rpcs.CREATE_TOPICS, new_topic("b"), 2000)
        await asyncio.sleep(0)
        begin, loop.now = loop.now, loop.now + 1.9  # the decision on the first took this long
        plane.node.auto_commit = True
        end = plane.node.log_end_offset
        assert (await second).result.error == "REQUEST_TIMED_OUT"
        assert loop.now == begin + 1.9
        assert plane.node.log_end_offset == end, "the request made no change after its deadline"
        await first

    run(test())


def test_a_request_that_queues_behind_slow_ones_is_answered_before_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        plane = await started(1)
        plane.node.auto_commit = True
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)

        def slow(*asked: Any, **options: Any) -> Any:
            loop.now += 0.01
            return create_topics(*asked, **options)

        monkeypatch.setattr(topics, "create_topics", slow)
        begin = loop.now
        earlier = [plane.start(rpcs.CREATE_TOPICS, new_topic(f"t{number}"), 10_000) for number in range(100)]
        late = await plane.start(rpcs.CREATE_TOPICS, new_topic("late"), 500)
        assert (late.result.error, late.result.retriable) == ("REQUEST_TIMED_OUT", True)
        assert loop.now <= begin + 0.5
        assert {each.result.error for each in await asyncio.gather(*earlier)} == {"NONE"}, "the queue moved on"

    run(test())
