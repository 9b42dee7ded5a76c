from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from broker.kafka.limits import KafkaLimits
from broker.kafka.listener import KafkaServer
from metadata.records import Endpoint
from tests.unit.broker.kafka.fake import FakeController, FakeNode, FakeReplicas


class Served:
    """A running listener over a fake data plane."""

    def __init__(self, server: KafkaServer, replicas: FakeReplicas, controller: FakeController, node: FakeNode) -> None:
        self.server = server
        self.replicas = replicas
        self.controller = controller
        self.node = node
        self.host = "127.0.0.1"
        self.port = server.endpoints[0].port

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@asynccontextmanager
async def serving(
    limits: KafkaLimits | None = None,
    listeners: tuple[str, ...] = ("127.0.0.1:0",),
    inter_broker_listener: str | None = None,
) -> AsyncIterator[Served]:
    replicas = FakeReplicas()
    controller = FakeController(replicas)
    node = FakeNode()
    server = KafkaServer(
        replicas,
        controller.call,
        listeners,
        node=node,
        node_id=1,
        cluster_id="test-cluster",
        limits=limits,
        inter_broker_listener=inter_broker_listener,
    )
    await server.start()
    try:
        replicas.register(*(Endpoint(bound.name, "127.0.0.1", bound.port) for bound in server.endpoints))
        yield Served(server, replicas, controller, node)
    finally:
        await server.close()
        assert server.budget.held == 0, "all held memory is released"


@pytest.fixture
def serve() -> Serve:
    return serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as one:
        yield one
