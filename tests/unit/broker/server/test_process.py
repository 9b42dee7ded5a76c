"""A broker process wires its parts, and waits until it is ready."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

from broker.server.process import BrokerProcess
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import BROKER, KafkaListener, NodeConfig
from quorumlog.runtime.http import Check
from tests.unit.metadata.fake_node import run


async def at_once() -> None:
    pass


class Starting(BrokerProcess):
    """A broker that has served already, but does not serve now: it was fenced or stalled meanwhile."""

    def __init__(self) -> None:
        joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        joined.set_result(None)
        self._joining = cast(Any, joined)
        self.role = cast(Any, SimpleNamespace(wait_serving=at_once))
        node = SimpleNamespace(changed=asyncio.Event().wait)
        self.plane = cast(Any, SimpleNamespace(ready=at_once, node=node))
        self.serves = False
        self.looks = 0

    def checks(self) -> dict[str, Any]:
        self.looks += 1
        assert self.looks < 1_000, "nothing else runs in this process meanwhile"
        return {"broker": lambda: Check(self.serves)}


def test_a_start_waits_until_a_broker_that_was_fenced_or_stalled_serves_again() -> None:
    """The control plane is ready, so waiting for it alone would never let other tasks run."""

    async def test() -> None:
        broker = Starting()
        ready = asyncio.create_task(broker.ready())
        await asyncio.sleep(5)
        assert not ready.done()
        broker.serves = True
        await ready

    run(test())


async def test_the_inter_broker_listener_of_the_config_is_passed_to_the_kafka_server() -> None:
    listeners = tuple(KafkaListener(name, Address("127.0.0.1", 0)) for name in ("clients", "brokers"))
    config = NodeConfig(BROKER, 1, ("d",), standalone=True, kafka_listeners=listeners, inter_broker_listener="brokers")
    nothing, transport = cast(Any, None), cast(Any, MagicMock())
    broker = BrokerProcess(config, Sources.real(), [], nothing, transport)
    assert broker.kafka._inter_broker_listener == "brokers"
