"""The control plane of a process: quorum, metadata and controller service together, over gRPC and SQLite."""

from __future__ import annotations

import asyncio
import socket
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import ConfigError, StoreRefusedError
from quorumlog.runtime.addresses import Address, InitialVoter
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import QUORUM_NODE, NodeConfig
from quorumlog.runtime.grpc import make_channel
from quorumlog.runtime.metrics import Metrics
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog_server.control_plane import ControlPlane, make_control_plane

SETTINGS: dict[str, Any] = {"quorum_election_timeout_ms": 300, "quorum_fetch_timeout_ms": 600}


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def configure(folder: Path, node_id: int, port: int, **changes: Any) -> NodeConfig:
    fields = {"control_listen": Address("127.0.0.1", port), **SETTINGS, **changes}
    return NodeConfig(QUORUM_NODE, node_id, (str(folder / str(node_id)),), **fields)


def plane(config: NodeConfig) -> ControlPlane:
    return make_control_plane(config, Sources.real())


async def ready(*planes: ControlPlane) -> None:
    async with asyncio.timeout(30):
        for one in planes:
            await one.ready()


async def create(one: ControlPlane, name: str) -> pb.CreatedTopic:
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=1, replication_factor=1)])
    reply = await one.service.call(rpcs.CREATE_TOPICS, request, 20_000)
    assert isinstance(reply, pb.CreateTopicsReply)
    assert reply.result.error in ("", "NONE"), reply
    return reply.topics[0]


async def register(one: ControlPlane, broker_id: int) -> int:
    registration = {
        "broker_id": broker_id,
        "incarnation_id": bytes([(100 + broker_id) % 256]) * 16,
        "directory_ids": [broker_id.to_bytes(16, "big")],
        "endpoints": [{"name": "default", "host": "127.0.0.1", "port": 9092, "security": "PLAINTEXT"}],
        "previous_broker_epoch": -1,
        "feature_min": 1,
        "feature_max": 1,
        "fenced": True,
    }
    request = pb.RegisterBrokerRequest(registration=registration)
    reply = await one.service.call(rpcs.REGISTER_BROKER, request, 20_000)
    assert isinstance(reply, pb.RegisterBrokerReply)
    assert reply.result.error == "NONE", reply
    return reply.broker_epoch


async def brokers(one: ControlPlane) -> list[int]:
    reply = await one.service.call(rpcs.DESCRIBE_BROKERS, pb.DescribeBrokersRequest(), 20_000)
    assert isinstance(reply, pb.DescribeBrokersReply)
    assert reply.result.error in ("", "NONE"), reply
    return [broker.broker_id for broker in reply.brokers]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[list[ControlPlane]]:
    ports = free_ports(3)
    voters = tuple(InitialVoter(number, Address("127.0.0.1", port)) for number, port in enumerate(ports, 1))
    async with AsyncExitStack() as stack:
        planes = [
            await stack.enter_async_context(plane(configure(tmp_path, number, port, initial_voters=voters)))
            for number, port in enumerate(ports, 1)
        ]
        await ready(*planes)
        yield planes


async def test_the_id_of_a_new_cluster_does_not_look_like_an_option(tmp_path: Path) -> None:
    def first_uuid(seed: int) -> bytes:
        return Sources.seeded(seed, lambda: 0).uuid4().bytes

    seed = next(seed for seed in range(10_000) if urlsafe_b64encode(first_uuid(seed)).startswith(b"-"))
    sources = Sources.seeded(seed, Sources.real().wall_ms)
    async with make_control_plane(configure(tmp_path, 1, 0, standalone=True), sources) as one:
        await ready(one)
        assert one.cluster_id is not None
        assert not one.cluster_id.startswith("-")


async def test_a_standalone_control_plane_keeps_its_registrations_over_a_restart(tmp_path: Path) -> None:
    config = configure(tmp_path, 1, 0, standalone=True)
    async with plane(config) as one:
        await ready(one)
        assert one.is_ready() == (True, {"cluster": "ok", "leader": "ok", "metadata": "ok"})
        epoch = await register(one, 11)
        cluster_id = one.node.cluster_id
    assert one.is_ready()[0] is False
    async with plane(config) as one:
        await ready(one)
        assert one.node.cluster_id == cluster_id
        assert await brokers(one) == [11]
        assert one.replay.image.brokers[11].epoch == epoch


async def test_every_node_accepts_a_request_and_all_nodes_apply_it(three: list[ControlPlane]) -> None:
    leader_id = three[0].node.leader_id
    for number, one in enumerate(three):
        assert one.controller.active == (one.node.node_id == leader_id)
        await register(one, 11 + number)
    for one in three:
        assert await brokers(one) == [11, 12, 13]
    end = max(one.node.high_watermark for one in three)
    async with asyncio.timeout(30):
        await asyncio.gather(*(one.replay.wait_for(end) for one in three))
    assert len({one.replay.image.digest() for one in three}) == 1


async def test_every_node_returns_the_refusal_of_an_invalid_topic_name(three: list[ControlPlane]) -> None:
    for one in three:
        topic = await create(one, "..")
        assert topic.result.error not in ("", "NONE")


async def test_grpc_health_and_metrics_report_readiness(tmp_path: Path) -> None:
    from grpc_health.v1 import health_pb2

    async def status(address: str) -> int:
        async with make_channel(address) as channel:
            call: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
            answer = await call(health_pb2.HealthCheckRequest().SerializeToString(), timeout=10)
            return health_pb2.HealthCheckResponse.FromString(answer).status

    port = free_ports(1)[0]
    absent = Address("127.0.0.1", free_ports(1)[0])
    waiting = plane(configure(tmp_path, 2, port, bootstrap=(absent,)))
    async with waiting:
        assert waiting.is_ready()[1]["cluster"] == f"has not met its cluster yet; asks {absent}"
        assert await status(waiting.address) == health_pb2.HealthCheckResponse.NOT_SERVING
    async with plane(configure(tmp_path, 1, 0, standalone=True)) as one:
        await ready(one)
        assert await status(one.address) == health_pb2.HealthCheckResponse.SERVING
        metrics = Metrics()
        one.register_metrics(metrics)
        await register(one, 11)
        text = metrics.render()[0].decode()
        assert "quorumlog_quorum_is_leader 1.0" in text
        assert "quorumlog_quorum_commit_seconds_count" in text


async def test_an_observer_reaches_the_controller(three: list[ControlPlane], tmp_path: Path) -> None:
    bootstrap = tuple(one.config.control_listen for one in three)
    async with plane(configure(tmp_path, 11, 0, bootstrap=bootstrap)) as broker:
        await ready(broker)
        await register(broker, 11)
        assert await brokers(broker) == [11]
        assert broker.node.leader_id in (1, 2, 3)


@pytest.mark.parametrize(
    ("spoil", "error", "problem"),
    [
        (lambda config, taken: {"control_listen": taken}, ConfigError, "cannot listen on"),
        (lambda config, taken: {"node_id": 2}, StoreRefusedError, "belongs to node 1, not to node 2"),
        (lambda config, taken: {"cluster_id": "another"}, StoreRefusedError, "not to cluster another"),
    ],
)
async def test_a_failed_start_names_its_cause_and_leaves_nothing_open(
    tmp_path: Path, spoil: Callable[[NodeConfig, Address], dict[str, Any]], error: type[Exception], problem: str
) -> None:
    from dataclasses import replace

    config = configure(tmp_path, 1, 0, standalone=True)
    async with plane(config) as one:
        await ready(one)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = Address("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(error, match=problem):
            async with plane(replace(config, **spoil(config, taken))):
                pytest.fail("it started")
    async with plane(config) as one:
        await ready(one)


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    config = configure(tmp_path, 1, 0, standalone=True)
    async with plane(config) as one:
        await ready(one)
        with pytest.raises(StoreRefusedError, match="in use by process"):
            async with plane(config):
                pytest.fail("it started")
        await register(one, 11)


async def test_a_node_without_a_way_to_its_cluster_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has never joined its cluster"):
        async with plane(configure(tmp_path, 1, 0)):
            pytest.fail("it started")
