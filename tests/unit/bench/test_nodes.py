"""Fake brokers in virtual time: each one sends its heartbeats, even if there are a thousand and answers take time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

from bench.nodes import FIRST_FAKE_ID, HEARTBEATS_AT_ONCE, FakeBrokers, create_partitions
from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import quorum_pb2
from tests.unit.metadata.fake_node import run

ANSWER_S = 0.01
OFFSET = 77


class _Controller:
    """Answers after ANSWER_S.  heard: (loop time, broker id) of each heartbeat.  at_once: most calls in progress."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, int]] = []
        self.topics: list[pb.NewTopic] = []
        self.requests: list[int] = []
        self.at_once = 0
        self.reports_fenced = 0
        self.refuses = False
        self._open = 0

    async def describe_quorum(self, timeout_s: float) -> quorum_pb2.DescribeQuorumReply:
        return quorum_pb2.DescribeQuorumReply(high_watermark=OFFSET)

    async def call(self, rpc: Any, request: Any, timeout_s: float) -> Any:
        self._open += 1
        self.at_once = max(self.at_once, self._open)
        await asyncio.sleep(ANSWER_S)
        self._open -= 1
        if self.refuses:
            raise ClusterError(ApiError.UNAVAILABLE, "refused", retriable=True)
        if rpc is rpcs.REGISTER_BROKER:
            return pb.RegisterBrokerReply(broker_epoch=request.registration.broker_id * 10)
        if rpc is rpcs.CREATE_TOPICS:
            self.topics += request.topics
            self.requests.append(sum(topic.partitions for topic in request.topics))
            return pb.CreateTopicsReply(topics=[_created(topic.name) for topic in request.topics])
        assert rpc is rpcs.BROKER_HEARTBEAT
        assert request.broker_epoch == request.broker_id * 10
        assert request.applied_offset == OFFSET
        self.reports_fenced += request.broker_id == FIRST_FAKE_ID
        self.heard.append((asyncio.get_running_loop().time(), request.broker_id))
        return pb.BrokerHeartbeatReply(fenced=request.broker_id == FIRST_FAKE_ID)


def _created(name: str) -> pb.CreatedTopic:
    return pb.CreatedTopic(name=name, result=pb.Result(error=ApiError.NONE))


def _fakes(controller: _Controller, count: int, interval_s: float) -> FakeBrokers:
    return FakeBrokers(cast(ControllerClient, controller), count, interval_s=interval_s)


@pytest.mark.parametrize("count", [1, 3, 40, 500])
def test_every_broker_sends_its_heartbeats_in_time(count: int) -> None:
    controller = _Controller()

    async def test() -> None:
        async with _fakes(controller, count, 1.0) as fakes:
            assert list(fakes.epochs) == list(range(FIRST_FAKE_ID, FIRST_FAKE_ID + count))
            controller.heard.clear()
            await asyncio.sleep(10.5)
            sent = fakes.sent
        await asyncio.sleep(5)
        assert fakes.sent == sent, "none after the end"
        assert fakes.fenced == controller.reports_fenced > 0

    run(test())
    beats = Counter(broker_id for _, broker_id in controller.heard)
    assert len(beats) == count
    assert min(beats.values()) >= 9
    assert max(beats.values()) <= 11
    assert controller.at_once <= HEARTBEATS_AT_ONCE


def test_the_heartbeats_of_many_brokers_are_spread_over_the_interval() -> None:
    controller = _Controller()

    async def test() -> None:
        async with _fakes(controller, 1000, 1.0):
            await asyncio.sleep(2)
            controller.heard.clear()
            await asyncio.sleep(1)

    run(test())
    first = controller.heard[0][0]
    tenths = Counter(int((at - first) * 10) for at, _ in controller.heard)
    assert max(tenths.values()) < 200, "a fifth of all in a tenth of the interval"


def test_a_removed_broker_sends_no_more_heartbeats() -> None:
    controller = _Controller()

    async def test() -> None:
        async with _fakes(controller, 3, 0.5) as fakes:
            del fakes.epochs[FIRST_FAKE_ID]
            controller.heard.clear()
            await asyncio.sleep(5)

    run(test())
    assert {broker_id for _, broker_id in controller.heard} == {FIRST_FAKE_ID + 1, FIRST_FAKE_ID + 2}


def test_heartbeats_go_on_after_the_controller_was_unavailable() -> None:
    controller = _Controller()

    async def test() -> None:
        async with _fakes(controller, 3, 0.5):
            controller.refuses = True
            await asyncio.sleep(2)
            controller.refuses = False
            controller.heard.clear()
            await asyncio.sleep(2)

    run(test())
    assert len({broker_id for _, broker_id in controller.heard}) == 3


def test_partitions_are_created_in_topics_and_requests_of_limited_size() -> None:
    controller = _Controller()
    next_topic = run(create_partitions(cast(ControllerClient, controller), 12_500, 2, 7))
    assert next_topic == 20
    assert [topic.name for topic in controller.topics] == [f"bench-{number}" for number in range(7, 20)]
    assert {topic.replication_factor for topic in controller.topics} == {2}
    assert controller.requests == [9_000, 3_500]
