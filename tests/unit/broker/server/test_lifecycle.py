"""The registration of a broker, and the confirmation that a broker needs after a stall before it serves again."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from broker.replica.progress import Progress
from broker.server.lifecycle import Identity, LifecycleRunner
from broker.server.stall_detector import StallDetector
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.server.test_stall_detector import pass_unnoticed
from tests.unit.metadata.fake_node import run


class Controller:
    """Answers immediately.  refusals: the errors of its answers until the broker registers, by RPC."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.registration: pb.RegisterBrokerRequest | None = None
        self.refusals: dict[AnyRpc, str] = {}

    async def call(self, rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        self.asked.append(rpc.name)
        result = pb.Result(error=self.refusals.get(rpc, ApiError.NONE))
        if rpc is rpcs.REGISTER_BROKER:
            self.refusals.clear()
            self.registration = request
            return pb.RegisterBrokerReply(result=result, broker_epoch=5)
        return rpc.reply(result=result)


class Started:
    """A broker that is running."""

    def __init__(self) -> None:
        async def on_registered(_: int) -> None:
            pass

        self.controller = Controller()
        self.detector = StallDetector(3.0)
        self.runner = LifecycleRunner(
            Identity(1, UUID(int=1), (), (), early_topics=frozenset({UUID(int=8), UUID(int=7)})),
            self.controller.call,
            Progress(),
            self.detector,
            heartbeat_interval_ms=1_000,
            on_registered=on_registered,
        )

    async def __aenter__(self) -> Started:
        self._task = asyncio.create_task(self.runner.run())
        await self.runner.wait_unfenced()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    def stall(self) -> None:
        """Let the process be suspended."""
        pass_unnoticed(10.0)
        assert not self.detector.is_awake()
        self.controller.asked.clear()


def test_a_registration_names_the_topics_that_had_write_caching() -> None:
    async def test() -> None:
        async with Started() as broker:
            request = broker.controller.registration
            assert request is not None
            assert list(request.early_topic_ids) == [UUID(int=7).bytes, UUID(int=8).bytes]

    run(test())


def test_a_stalled_broker_waits_for_a_controller_that_a_majority_confirms() -> None:
    """A heartbeat alone may be answered by a controller that was suspended as well, and has been replaced."""

    async def test() -> None:
        async with Started() as broker:
            controller = broker.controller
            broker.stall()
            controller.refusals[rpcs.ASSIGN_DIRECTORIES] = ApiError.NOT_CONTROLLER
            await asyncio.sleep(1.5)
            assert not broker.detector.is_awake()
            assert set(controller.asked) == {rpcs.ASSIGN_DIRECTORIES.name}
            controller.refusals.clear()
            await asyncio.sleep(1.5)
            assert broker.detector.is_awake()
            asked = controller.asked.index(rpcs.BROKER_HEARTBEAT.name)
            assert controller.asked[asked - 1] == rpcs.ASSIGN_DIRECTORIES.name
            assert rpcs.ASSIGN_DIRECTORIES.name not in controller.asked[asked:]

    run(test())


@pytest.mark.parametrize("rpc", [rpcs.ASSIGN_DIRECTORIES, rpcs.BROKER_HEARTBEAT])
def test_a_stalled_broker_serves_again_if_no_active_controller_answers_within_a_request_timeout(rpc: AnyRpc) -> None:
    async def test() -> None:
        async with Started() as broker:
            broker.stall()
            broker.controller.refusals[rpc] = ApiError.NOT_CONTROLLER
            await asyncio.sleep(1.9)
            assert not broker.detector.is_awake(), "a refusal that arrives immediately does not end the stall"
            await asyncio.sleep(1.5)
            assert broker.detector.is_awake()

    run(test())


def test_a_stalled_broker_whose_registration_has_ended_registers_again_at_once() -> None:
    """The voters have confirmed the controller that refuses its epoch."""

    async def test() -> None:
        async with Started() as broker:
            broker.stall()
            for rpc in (rpcs.ASSIGN_DIRECTORIES, rpcs.BROKER_HEARTBEAT):
                broker.controller.refusals[rpc] = ApiError.STALE_BROKER_EPOCH
            await asyncio.sleep(1.2)
            assert rpcs.REGISTER_BROKER.name in broker.controller.asked

    run(test())
