"""The reserve of producer ids, with and without a controller, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from broker.server.producer_ids import RETRY_MAX_S, ProducerIdPool
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.metadata.fake_node import run, settle

BLOCK = 10
LOW_WATER = 10


class Controller:
    def __init__(self) -> None:
        self.away = False
        self.given = 0
        self.asked: list[float] = []
        self.epoch = 5

    async def call(self, rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        loop = asyncio.get_running_loop()
        self.asked.append(loop.time())
        assert (rpc, request.broker_id) == (rpcs.ALLOCATE_PRODUCER_IDS, 1)
        if self.away:
            await asyncio.sleep(timeout_ms / 3000)
            return pb.AllocateProducerIdsReply(result=pb.Result(error="NOT_CONTROLLER", retriable=True))
        if request.broker_epoch != self.epoch:
            return pb.AllocateProducerIdsReply(result=pb.Result(error="STALE_BROKER_EPOCH"))
        first, self.given = self.given, self.given + BLOCK
        return pb.AllocateProducerIdsReply(result=pb.Result(error="NONE"), first_producer_id=first, count=BLOCK)


class Broker:
    def __init__(self) -> None:
        self.controller = Controller()
        self.epoch = 5
        self.pool = ProducerIdPool(1, lambda: self.epoch, self.controller.call, low_water=LOW_WATER, timeout_ms=3000)


def tried(body: Callable[[Broker], Awaitable[None]]) -> None:
    async def test() -> None:
        broker = Broker()
        running = asyncio.ensure_future(broker.pool.run())
        await settle()
        await body(broker)
        assert not running.done()
        running.cancel()

    run(test())


def test_a_registered_broker_fills_its_reserve_of_producer_ids_in_advance() -> None:
    async def body(broker: Broker) -> None:
        assert (broker.pool.left(), broker.controller.asked) == (0, [])
        broker.pool.refill()
        await settle()
        assert broker.pool.left() == LOW_WATER
        assert len(broker.controller.asked) == 1

    tried(body)


def test_a_broker_without_a_controller_serves_its_whole_reserve_of_producer_ids() -> None:
    async def body(broker: Broker) -> None:
        broker.pool.refill()
        await settle()
        assert await broker.pool.take() == 0
        await settle()  # one block in use and one in reserve
        broker.controller.away = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        found = [await broker.pool.take() for _ in range(2 * BLOCK - 1)]
        assert found == list(range(1, 2 * BLOCK))
        assert loop.time() == began, "the reserve is served without waiting"
        assert await broker.pool.take() is None
        assert loop.time() - began == 3.0, "refused within the timeout"
        broker.controller.away = False
        await asyncio.sleep(3 * RETRY_MAX_S)
        assert broker.pool.left() >= LOW_WATER
        assert await broker.pool.take() == 2 * BLOCK

    tried(body)


def test_waiting_callers_are_served_when_a_block_of_producer_ids_arrives() -> None:
    async def body(broker: Broker) -> None:
        broker.controller.away = True
        waiting = [asyncio.ensure_future(broker.pool.take()) for _ in range(BLOCK + 3)]
        await settle()
        broker.controller.away = False
        assert sorted([await each or 0 for each in waiting]) == list(range(BLOCK + 3))

    tried(body)


def test_an_unregistered_broker_requests_no_producer_ids() -> None:
    async def body(broker: Broker) -> None:
        broker.epoch = -1
        broker.pool.refill()
        await asyncio.sleep(10)
        assert broker.controller.asked == []
        broker.epoch = 5
        await asyncio.sleep(RETRY_MAX_S)
        assert broker.pool.left() == LOW_WATER

    tried(body)


def test_requests_back_off_while_the_controller_refuses() -> None:
    async def body(broker: Broker) -> None:
        broker.epoch = 4  # the controller knows a later registration
        broker.pool.refill()
        await asyncio.sleep(60)
        asked = broker.controller.asked
        pauses = [after - before for before, after in pairwise(asked)]
        assert pauses == sorted(pauses)
        assert (len(asked) < 70, max(pauses)) == (True, RETRY_MAX_S)

    tried(body)
