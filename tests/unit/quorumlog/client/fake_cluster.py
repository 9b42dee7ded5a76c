"""Several brokers in one process over one shared log: what clients are tested against.

Every partition has one log that all brokers see, so a new leader holds what the old one had; a broker can be killed,
with or without having answered what it appended.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from uuid import UUID

from broker.kafka.listener import KafkaServer
from metadata.image import ClusterImage
from metadata.records import Endpoint, Partition, PartitionChange, Reason, RenewTopic, Replica, Topic
from quorumlog.client.cluster import Cluster
from quorumlog.client.records import Record, decode_batches
from tests.unit.broker.kafka.fake import FakeController, FakeLog, FakeReplicas

T = TypeVar("T")


class _Shared:
    def __init__(self) -> None:
        self.image = ClusterImage()
        self.logs: dict[tuple[str, int], FakeLog] = defaultdict(FakeLog)
        self.next_producer_id = 1000


class _Replicas(FakeReplicas):
    """A broker's data plane over the shared logs."""

    def __init__(self, node_id: int, shared: _Shared) -> None:
        self.shared = shared
        self.behind: ClusterImage | None = None
        super().__init__(node_id)
        self.logs = shared.logs

    @property
    def image(self) -> ClusterImage:  # type: ignore[override]
        return self.behind or self.shared.image

    @image.setter
    def image(self, image: ClusterImage) -> None:
        if image.end_offset:  # not the empty one that the base class begins with
            self.shared.image = image

    async def allocate_producer_id(self) -> Any:
        self.shared.next_producer_id += 1
        self._next_producer_id = self.shared.next_producer_id
        return await super().allocate_producer_id()


class FakeBrokers:
    """Brokers 1 to n on the running loop."""

    def __init__(self) -> None:
        self.shared = _Shared()
        self.replicas: dict[int, _Replicas] = {}
        self.servers: dict[int, KafkaServer] = {}
        self.addresses: dict[int, tuple[str, int]] = {}

    async def start(self, node_id: int) -> None:
        replicas = _Replicas(node_id, self.shared)
        controller = FakeController(replicas)
        port = self.addresses.get(node_id, ("", 0))[1]
        server = KafkaServer(
            replicas, controller.call, [f"127.0.0.1:{port}"], node_id=node_id, cluster_id="fake", limits=None
        )
        await server.start()
        if node_id not in self.addresses:  # else it comes back as it was
            replicas.register(Endpoint(server.endpoints[0].name, "127.0.0.1", server.endpoints[0].port))
        self.replicas[node_id], self.servers[node_id] = replicas, server
        self.addresses[node_id] = ("127.0.0.1", server.endpoints[0].port)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses.values())

    @property
    def _any(self) -> _Replicas:
        return next(each for each in self.replicas.values() if each.behind is None)

    async def create(self, topic: str, leaders: list[int]) -> None:
        """One partition for each leader named."""
        topic_id = UUID(int=(self.shared.image.end_offset << 64) + 5)
        nodes = tuple(self.addresses)
        made = [
            Partition(topic_id, index, tuple(Replica(node) for node in nodes), nodes, leader, 0)
            for index, leader in enumerate(leaders)
        ]
        self._any.apply(Topic(topic_id, topic), *made)

    async def delete(self, topic: str) -> None:
        self._any.delete(topic)

    async def move(self, topic: str, index: int, leader: int) -> None:
        image = self.shared.image
        topic_id = image.topic_ids[topic]
        partition = image.partition(topic_id, index)
        assert partition is not None
        change = PartitionChange(
            topic_id, index, Reason.BROKER_FENCED, image.end_offset, partition.last_offset, leader=leader
        )
        self._any.apply(change)

    async def kill(self, node_id: int) -> None:
        """End it as SIGKILL would: connections break, nothing held is answered."""
        server = self.servers.pop(node_id)
        for connection in list(server._connections):
            connection.abort()
        del self.replicas[node_id]
        await server.close()

    async def hold_back(self, node_id: int) -> None:
        """From now on it knows no news."""
        self.replicas[node_id].behind = self.shared.image

    async def renew(self, topic: str) -> None:
        """The topic goes on under another id."""
        topic_id = self.shared.image.topic_ids[topic]
        self._any.apply(RenewTopic(topic_id, UUID(int=topic_id.int + 1)))

    async def freeze(self, node_id: int) -> None:
        """Stop it as SIGSTOP would: connections stay open, and what is sent on them is not read."""
        for connection in list(self.servers[node_id]._connections):
            assert connection._transport is not None
            connection._transport.pause_reading()  # type: ignore[attr-defined]

    async def fill(self, topic: str, index: int, *batches: bytes | bytearray) -> None:
        for batch in batches:
            result = self.replicas[self._leader(topic, index)]._append(topic, index, memoryview(batch))
            assert result.error_code == 0, result

    async def cut_front(self, topic: str, index: int, batches: int) -> None:
        """Delete the oldest batches, as retention does."""
        log = self.shared.logs[topic, index]
        del log.batches[:batches]

    def _leader(self, topic: str, index: int) -> int:
        partition = self.shared.image.partition(self.shared.image.topic_ids[topic], index)
        assert partition is not None
        return int(partition.leader)

    async def records(self, topic: str, index: int) -> list[Record]:
        log = self.shared.logs[topic, index]
        return [record for batch in log.batches for record in decode_batches(batch[3])]

    async def close(self) -> None:
        for server in self.servers.values():
            await server.close()


@asynccontextmanager
async def fake_brokers(count: int = 2) -> AsyncIterator[FakeBrokers]:
    brokers = FakeBrokers()
    for node_id in range(1, count + 1):
        await brokers.start(node_id)
    try:
        yield brokers
    finally:
        await brokers.close()


@asynccontextmanager
async def client_of(brokers: FakeBrokers) -> AsyncIterator[Cluster]:
    async with Cluster(brokers.bootstrap) as cluster:
        yield cluster


class ThreadedBrokers:
    """The same, on a loop in a thread of its own, for clients that block."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.brokers = FakeBrokers()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


@contextmanager
def threaded_brokers(count: int = 2) -> Iterator[ThreadedBrokers]:
    threaded = ThreadedBrokers()
    threaded._thread.start()
    try:
        for node_id in range(1, count + 1):
            threaded.run(threaded.brokers.start(node_id))
        yield threaded
    finally:
        threaded.run(threaded.brokers.close())
        threaded.loop.call_soon_threadsafe(threaded.loop.stop)
        threaded._thread.join(10)
        threaded.loop.close()
