"""Whole clusters in one test process: voters and brokers as they run, over gRPC, SQLite and real directories."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import TracebackType
from typing import Any

from broker.server.process import BrokerProcess, make_broker_process
from metadata.image import PartitionImage
from quorumlog.runtime.addresses import Address, InitialVoter
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import KafkaListener, NodeConfig
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog_server.control_plane import ControlPlane, make_control_plane

WAIT_S = 30.0
ANY_PORT = Address("127.0.0.1", 0)


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Node:
    """A voter or broker in a task of its own, so that it can be stopped, or abandoned, while the others run."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.Future[bool] | None = None
        self.process: Any = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        entered: asyncio.Future[None] = loop.create_future()
        self._end = loop.create_future()
        self._task = asyncio.create_task(self._run(entered, self._end))
        await asyncio.wait({self._task, entered}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task

    async def _run(self, entered: asyncio.Future[None], end: asyncio.Future[bool]) -> None:
        try:
            async with self._make() as self.process:
                entered.set_result(None)
                if not await end:
                    raise _AbandonedError
        except _AbandonedError:
            pass

    async def stop(self, graceful: bool = True) -> None:
        assert self._task is not None
        assert self._end is not None
        if not self._end.done():
            self._end.set_result(graceful)
        async with asyncio.timeout(WAIT_S):
            await self._task


class _AbandonedError(Exception):
    """Ends a process without a handover."""


class WholeCluster:
    """3 voters (1 to 3) and 3 brokers (11 to 13)."""

    def __init__(self, root: Path, **settings: int) -> None:
        ports = free_ports(3)
        voters = tuple(
            InitialVoter(id_, Address("127.0.0.1", port)) for id_, port in zip((1, 2, 3), ports, strict=True)
        )
        addresses = tuple(voter.address for voter in voters)
        fast: dict[str, Any] = {"broker_heartbeat_interval_ms": 200, "broker_session_timeout_ms": 1_500, **settings}
        self.configs: dict[int, NodeConfig] = {}
        for voter in voters:
            self.configs[voter.node_id] = NodeConfig(
                role="quorum-node",
                node_id=voter.node_id,
                data_dirs=(str(root / str(voter.node_id)),),
                initial_voters=voters,
                control_listen=voter.address,
                **fast,
            )
        for broker_id in (11, 12, 13):
            self.configs[broker_id] = NodeConfig(
                role="broker",
                node_id=broker_id,
                data_dirs=(str(root / str(broker_id)),),
                bootstrap=addresses,
                control_listen=ANY_PORT,
                kafka_listeners=(KafkaListener("default", ANY_PORT),),
                **fast,
            )
        self.nodes = {id_: Node(lambda id_=id_: self._make(id_)) for id_ in self.configs}

    def _make(self, node_id: int) -> ControlPlane | BrokerProcess:
        config = self.configs[node_id]
        sources = Sources.real()
        if config.role == "broker":
            return make_broker_process(config, sources)
        return make_control_plane(config, sources)

    async def __aenter__(self) -> WholeCluster:
        for node in self.nodes.values():
            await node.start()
        await self.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node_id in sorted(self.nodes, reverse=True):
            if self.nodes[node_id].running:
                await self.nodes[node_id].stop(graceful=False)

    async def ready(self, *node_ids: int) -> None:
        async with asyncio.timeout(WAIT_S):
            for node_id in node_ids or self.nodes:
                if self.nodes[node_id].running:
                    await self.nodes[node_id].process.ready()

    def broker(self, broker_id: int) -> BrokerProcess:
        process = self.nodes[broker_id].process
        assert isinstance(process, BrokerProcess)
        return process

    @property
    def brokers(self) -> list[BrokerProcess]:
        return [self.broker(id_) for id_ in (11, 12, 13) if self.nodes[id_].running]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.kafka_endpoints[0].port}" for broker in self.brokers)

    def active_controller(self) -> int:
        """Return the node id of the leader, according to a running voter."""
        known = {self.nodes[id_].process.node.leader_id for id_ in (1, 2, 3) if self.nodes[id_].running}
        found = known - {None}
        assert found, "no leader is known"
        return int(max(found))

    async def create(self, name: str, partitions: int = 1, replication: int = 3) -> None:
        request = pb.CreateTopicsRequest()
        request.topics.add(name=name, partitions=partitions, replication_factor=replication)
        reply = await self.brokers[0].plane.service.call(rpcs.CREATE_TOPICS, request, 20_000)
        assert reply.topics[0].result.error == "NONE", reply
        for broker in self.brokers:
            async with asyncio.timeout(WAIT_S):
                await broker.role.wait_applied(reply.topics[0].offset)

    def leader(self, topic: str, index: int = 0) -> int:
        """Return the broker id of the leader, according to the brokers; -1 without a leader."""
        return self._partition(topic, index).leader

    def isr(self, topic: str, index: int = 0) -> tuple[int, ...]:
        """Return it according to the brokers."""
        return tuple(self._partition(topic, index).isr)

    def _partition(self, topic: str, index: int) -> PartitionImage:
        image = max((broker.plane.replay.image for broker in self.brokers), key=lambda image: image.end_offset)
        found = image.topic(topic)
        assert found is not None
        partition = found.partition(index)
        assert partition is not None
        return partition
