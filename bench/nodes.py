"""Real processes for benches, and fake brokers that replace data nodes if only metadata is measured."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl import dev_cluster, processes
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2 as records_pb

TIMEOUT_S = 120.0
HEARTBEAT_S = 0.5
LOOK_S = 0.2
PARTITIONS_A_TOPIC = 1_000
PARTITIONS_A_REQUEST = 9_000
FIRST_FAKE_ID = 1001
NO_ERROR = ApiError.NONE


@contextlib.asynccontextmanager
async def voters(count: int, port_base: int, options: Sequence[str] = ()) -> AsyncIterator[DevCluster]:
    """Run `count` voters in a temporary folder, and delete the folder afterwards.

    options: arguments for the command line of each voter.
    """
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
        cluster = dev_cluster.plan(Path(folder) / "cluster", count, 0, port_base, made_dir=True)
        for node in cluster.nodes:
            node.command += options
        await dev_cluster.start(cluster, TIMEOUT_S, lambda line: None)
        try:
            yield cluster
        finally:
            await dev_cluster.stop_nodes(cluster.nodes, lambda line: None)


async def kill(node: Node) -> None:
    """End the process as kill -9 does, and wait until it has ended."""
    processes.send(node.pid, signal.SIGKILL)
    await processes.gone(node.pid, node.mark, TIMEOUT_S)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Return when the condition holds; it is checked every 0.2 s."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            if await holds():
                return
            await asyncio.sleep(LOOK_S)  # polls, because no event reports it


class FakeBrokers:
    """Brokers that only register and send heartbeats; an async context manager.  `epochs`: broker epoch by id."""

    def __init__(self, client: ControllerClient, count: int) -> None:
        self.epochs: dict[int, int] = {}
        self._client = client
        self._ids = range(FIRST_FAKE_ID, FIRST_FAKE_ID + count)
        self._beating: asyncio.Task[None] | None = None
        self._next_topic = 0

    async def __aenter__(self) -> FakeBrokers:
        for broker_id in self._ids:
            reply = await self._client.call(rpcs.REGISTER_BROKER, registration(broker_id), TIMEOUT_S)
            self.epochs[broker_id] = reply.broker_epoch
        await self._beat()
        self._beating = asyncio.create_task(self._go_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._beating is not None
        self._beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._beating

    async def _beat(self) -> None:
        """Send a heartbeat of each broker that reports all metadata as applied, so that no broker stays fenced."""
        for broker_id, epoch in list(self.epochs.items()):
            offset = (await self._client.describe_quorum(TIMEOUT_S)).high_watermark
            request = pb.BrokerHeartbeatRequest(
                broker_id=broker_id, broker_epoch=epoch, applied_offset=offset, received_offset=offset
            )
            await self._client.call(rpcs.BROKER_HEARTBEAT, request, TIMEOUT_S)

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with contextlib.suppress(ClusterError):
                await self._beat()

    async def create_partitions(self, count: int) -> None:
        """Create topics with `count` partitions in total: up to 1,000 in each, with up to 3 replicas."""
        topics: list[pb.NewTopic] = []
        waiting = 0
        while count > 0 or topics:
            if count > 0:
                size = min(count, PARTITIONS_A_TOPIC)
                factor = min(3, len(self._ids))
                topics.append(pb.NewTopic(name=f"bench-{self._next_topic}", partitions=size, replication_factor=factor))
                self._next_topic += 1
                count -= size
                waiting += size
            if topics and (count <= 0 or waiting + PARTITIONS_A_TOPIC > PARTITIONS_A_REQUEST):
                reply = await self._client.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=topics), TIMEOUT_S)
                for topic in reply.topics:
                    if topic.result.error != NO_ERROR:
                        raise RuntimeError(f"{topic.name}: {topic.result.message}")
                topics, waiting = [], 0


def registration(broker_id: int) -> pb.RegisterBrokerRequest:
    unique = broker_id.to_bytes(16, "big")
    return pb.RegisterBrokerRequest(
        registration=records_pb.RegisterBroker(
            broker_id=broker_id,
            incarnation_id=unique,
            endpoints=[records_pb.Endpoint(name="default", host="127.0.0.1", port=9092, security="PLAINTEXT")],
            directory_ids=[unique],
            previous_broker_epoch=-1,
            feature_min=1,
            feature_max=1,
            fenced=True,
        )
    )
