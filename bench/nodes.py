"""Real processes for benches, and fake brokers that replace data nodes if only metadata is measured."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

from quorumlog.client.controller import ControllerClient
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import ClusterError
from quorumlog.kctl import dev_cluster, processes
from quorumlog.kctl.dev_cluster import DevCluster, Node
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2 as records_pb
from quorumlog.wire.v1 import node_pb2

TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0
"""Time for a node to stop in order."""
HEARTBEAT_S = 0.5
HEARTBEATS_AT_ONCE = 32
"""Maximum number of heartbeats that fake brokers have in flight.  A broker whose turn comes later sends later."""
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


async def stop(node: Node) -> None:
    """End the process in order, as SIGTERM does, and wait until it has ended."""
    processes.send(node.pid, signal.SIGTERM)
    has_ended = await processes.gone(node.pid, node.mark, STOP_TIMEOUT_S)
    assert has_ended, f"{node.name} did not stop within {STOP_TIMEOUT_S:g} s"


async def start(cluster: DevCluster, timeout_s: float = TIMEOUT_S) -> float:
    """Start the nodes that do not run; return the seconds until all nodes are ready."""
    began = time.perf_counter()
    await dev_cluster.start(cluster, timeout_s, lambda line: None)
    return time.perf_counter() - began


async def has_applied(client: ControllerClient, node: Node, end_offset: int) -> bool:
    """Return whether a broker has applied all metadata before this offset, so that its replicas exist."""
    reply = await client.ask_node(node.control, rpcs.DESCRIBE_NODE, node_pb2.DescribeNodeRequest(), TIMEOUT_S)
    return bool(reply.broker_applied_offset >= end_offset)


async def until(holds: Callable[[], Awaitable[bool]], timeout_s: float = TIMEOUT_S) -> None:
    """Return when the condition holds; it is checked every 0.2 s."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await holds():
                return
            await asyncio.sleep(LOOK_S)  # polls, because no event reports it


async def create_partitions(client: ControllerClient, count: int, replication_factor: int, first_topic: int) -> int:
    """Create topics with `count` partitions in total, up to 1,000 in each.

    first_topic: the number in the name of the first topic.  Return the number for the next one.
    """
    topics: list[pb.NewTopic] = []
    waiting = 0
    while count > 0 or topics:
        if count > 0:
            size = min(count, PARTITIONS_A_TOPIC)
            name = f"bench-{first_topic}"
            topics.append(pb.NewTopic(name=name, partitions=size, replication_factor=replication_factor))
            first_topic += 1
            count -= size
            waiting += size
        if topics and (count <= 0 or waiting + PARTITIONS_A_TOPIC > PARTITIONS_A_REQUEST):
            reply = await client.call(rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=topics), TIMEOUT_S)
            for topic in reply.topics:
                if topic.result.error != NO_ERROR:
                    raise RuntimeError(f"{topic.name}: {topic.result.message}")
            topics, waiting = [], 0
    return first_topic


class FakeBrokers:
    """Brokers that only register and send heartbeats; an async context manager.

    epochs: broker epoch by id; a broker that is removed from it sends no more heartbeats.
    sent: the number of heartbeats that were answered.  fenced: the number of these answers that reported a fenced
    broker.  interval_s: the time between two heartbeats of one broker, if the controller answers quickly enough.

    The brokers are divided among up to HEARTBEATS_AT_ONCE senders.  Each sender has one heartbeat in flight, and
    spreads those of its brokers evenly over the interval.
    """

    def __init__(
        self,
        client: ControllerClient,
        count: int,
        *,
        first_id: int = FIRST_FAKE_ID,
        interval_s: float = HEARTBEAT_S,
    ) -> None:
        self.epochs: dict[int, int] = {}
        self.sent = 0
        self.fenced = 0
        self._client = client
        self._ids = range(first_id, first_id + count)
        self._interval_s = interval_s
        self._senders: list[asyncio.Task[None]] = []
        self._next_topic = 0

    async def __aenter__(self) -> FakeBrokers:
        shares = [self._ids[first::HEARTBEATS_AT_ONCE] for first in range(min(HEARTBEATS_AT_ONCE, len(self._ids)))]
        await asyncio.gather(*(self._register(ids) for ids in shares))
        self.epochs = dict(sorted(self.epochs.items()))
        await asyncio.gather(*(self._beat(ids, 0.0) for ids in shares))
        spacing_s = self._interval_s / len(shares)
        self._senders = [asyncio.create_task(self._go_on(ids, spacing_s * number)) for number, ids in enumerate(shares)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    async def _register(self, ids: Sequence[int]) -> None:
        for broker_id in ids:
            reply = await self._client.call(rpcs.REGISTER_BROKER, registration(broker_id), TIMEOUT_S)
            self.epochs[broker_id] = reply.broker_epoch

    async def _beat(self, ids: Sequence[int], pause_s: float) -> None:
        """Send a heartbeat of each of these brokers that reports all metadata as applied, so that none stays fenced.

        pause_s: the time between two of them.
        """
        offset = (await self._client.describe_quorum(TIMEOUT_S)).high_watermark
        loop = asyncio.get_running_loop()
        due = loop.time()
        for broker_id in ids:
            epoch = self.epochs.get(broker_id)
            if epoch is None:
                continue
            await asyncio.sleep(max(0.0, due - loop.time()))
            due += pause_s
            request = pb.BrokerHeartbeatRequest(
                broker_id=broker_id, broker_epoch=epoch, applied_offset=offset, received_offset=offset
            )
            reply = await self._client.call(rpcs.BROKER_HEARTBEAT, request, TIMEOUT_S)
            self.sent += 1
            self.fenced += reply.fenced

    async def _go_on(self, ids: Sequence[int], after_s: float) -> None:
        """Send heartbeats of these brokers until this task is cancelled, beginning after `after_s` seconds."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(after_s)
        while True:
            next_round = loop.time() + self._interval_s
            with contextlib.suppress(ClusterError):
                await self._beat(ids, self._interval_s / len(ids))
            await asyncio.sleep(max(0.0, next_round - loop.time()))

    async def create_partitions(self, count: int) -> None:
        """Create topics with `count` partitions in total: up to 1,000 in each, with up to 3 replicas."""
        factor = min(3, len(self._ids))
        self._next_topic = await create_partitions(self._client, count, factor, self._next_topic)


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


def one_record() -> bytearray:
    """Return a batch of one small record."""
    return build_batch([NewRecord(None, b"value", int(time.time() * 1000))])
