"""Several brokers in one process over one shared log: for tests of clients.

Every partition has one log that all brokers see, so a new leader has all records of the old one; a broker can be
killed, before or after it has answered an append.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from uuid import UUID

from broker.core.epochs import EpochCache
from broker.kafka import api
from broker.kafka.api import Groups, Shares, Transactions
from broker.kafka.listener import KafkaServer
from metadata.image import ClusterImage
from metadata.records import Endpoint, Partition, PartitionChange, Reason, RemovePartition, RenewTopic, Replica, Topic
from quorumlog.client.cluster import Cluster
from quorumlog.client.records import Record, decode_batches
from tests.unit.broker.kafka.fake import FakeController, FakeLog, FakeNode, FakeReplicas

T = TypeVar("T")


class _Shared:
    def __init__(self) -> None:
        self.image = ClusterImage()
        self.logs: dict[tuple[str, int], FakeLog] = defaultdict(FakeLog)
        self.epochs: dict[tuple[str, int], EpochCache] = {}
        self.opened: dict[tuple[str, int], list[api.ActiveProducer]] = {}
        self.next_producer_id = 1000


class _Replicas(FakeReplicas):
    """A broker's data plane over the shared logs."""

    def __init__(self, node_id: int, shared: _Shared) -> None:
        self.shared = shared
        self.behind: ClusterImage | None = None
        super().__init__(node_id)
        self.logs = shared.logs

    @property
    def image(self) -> ClusterImage:
        return self.behind or self.shared.image

    @image.setter
    def image(self, image: ClusterImage) -> None:
        if image.end_offset:  # replaces the empty one of the base class
            self.shared.image = image

    async def list_offset(
        self, topic: str, index: int, timestamp: int, current_leader_epoch: int = -1, *, read_committed: bool = False
    ) -> api.ListOffsetResult:
        found = await super().list_offset(topic, index, timestamp, current_leader_epoch)
        opened = self.shared.opened.get((topic, index))
        if opened and read_committed and timestamp == api.LATEST_TIMESTAMP and not found.error_code:
            return api.ListOffsetResult(0, min(each.transaction_start for each in opened), -1, 0)
        return found

    def epoch_end(
        self, topic: str, index: int, leader_epoch: int, current_leader_epoch: int = -1
    ) -> api.EpochEndResult:
        if (refusal := self._refusal(topic, index)) is not None:
            return api.EpochEndResult(int(refusal))
        epochs = self.shared.epochs[topic, index]
        epochs.end_offset = self.logs[topic, index].end_offset
        return api.EpochEndResult(0, *epochs.end_of(leader_epoch))

    def active_producers(self, topic: str, index: int) -> list[api.ActiveProducer] | int:
        found = super().active_producers(topic, index)
        return found if isinstance(found, int) else [*found, *self.shared.opened.get((topic, index), ())]

    async def allocate_producer_id(self) -> Any:
        self.shared.next_producer_id += 1
        self._next_producer_id = self.shared.next_producer_id
        return await super().allocate_producer_id()


class FakeBrokers:
    """Brokers 1 to n on the running loop.

    groups_of: makes the coordinators of one broker; None: the brokers coordinate no groups.
    shares: the share groups of the brokers that start from now on; None: they serve none.
    transactions: the coordinators of transactions of brokers that start from now on, by broker id.
    """

    def __init__(self, groups_of: Callable[[int, FakeReplicas], Groups] | None = None) -> None:
        self._groups_of = groups_of
        self.shares: Shares | None = None
        self.transactions: dict[int, Transactions] = {}
        self.shared = _Shared()
        self.replicas: dict[int, _Replicas] = {}
        self.servers: dict[int, KafkaServer] = {}
        self._mute: list[asyncio.Server] = []
        self.addresses: dict[int, tuple[str, int]] = {}

    async def start(self, node_id: int) -> None:
        replicas = _Replicas(node_id, self.shared)
        controller = FakeController(replicas)
        port = self.addresses.get(node_id, ("", 0))[1]
        server = KafkaServer(
            replicas,
            controller.call,
            [f"127.0.0.1:{port}"],
            node=FakeNode(),
            node_id=node_id,
            cluster_id="fake",
            groups=None if self._groups_of is None else self._groups_of(node_id, replicas),
            shares=self.shares,
            transactions=self.transactions.get(node_id),
        )
        await server.start()
        if node_id not in self.addresses:  # otherwise it restarts unchanged
            replicas.register(Endpoint(server.endpoints[0].name, "127.0.0.1", server.endpoints[0].port))
        self.replicas[node_id], self.servers[node_id] = replicas, server
        self.addresses[node_id] = ("127.0.0.1", server.endpoints[0].port)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.addresses.values())

    @property
    def _any(self) -> _Replicas:
        return next(each for each in self.replicas.values() if each.behind is None)

    async def create(self, topic: str, leaders: list[int], *, first_epoch: int | None = None) -> None:
        """Create a topic with one partition for each named leader.

        first_epoch: the first leader epoch, 0 in Apache Kafka; None: the epochs of an earlier topic continue.
        """
        topic_id = UUID(int=(self.shared.image.end_offset << 64) + 5)
        nodes = tuple(self.addresses)
        replicas = tuple(Replica(node) for node in nodes)
        image = self.shared.image
        made = [
            Partition(
                topic_id,
                index,
                replicas,
                nodes,
                leader,
                image.first_leader_epoch(topic, index) if first_epoch is None else first_epoch,
            )
            for index, leader in enumerate(leaders)
        ]
        self._any.apply(Topic(topic_id, topic), *made)
        for each in made:
            self.shared.epochs[topic, each.index] = EpochCache([(each.leader_epoch, 0)])

    async def add_partition(self, topic: str, leader: int) -> None:
        image = self.shared.image
        state = image.topic(topic)
        assert state is not None
        index = len(state.partitions)
        nodes = tuple(self.addresses)
        epoch = image.first_leader_epoch(topic, index)
        self._any.apply(Partition(state.topic_id, index, tuple(Replica(node) for node in nodes), nodes, leader, epoch))
        self.shared.epochs[topic, index] = EpochCache([(epoch, 0)])

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
        now = self.shared.image.partition(topic_id, index)
        assert now is not None
        self.shared.epochs[topic, index].assign(now.leader_epoch, self.shared.logs[topic, index].end_offset)

    async def kill(self, node_id: int) -> None:
        """End the broker as SIGKILL would: connections break, and waiting requests get no answer."""
        server = self.servers.pop(node_id)
        for connection in list(server._connections):
            connection.abort()
        del self.replicas[node_id]
        await server.close()

    async def hold_back(self, node_id: int) -> None:
        """Let the broker learn no new metadata from now on."""
        self.replicas[node_id].behind = self.shared.image

    async def renew(self, topic: str) -> None:
        """Continue the topic under another id."""
        topic_id = self.shared.image.topic_ids[topic]
        self._any.apply(RenewTopic(topic_id, UUID(int=topic_id.int + 1)))

    async def remove_last_partition(self, topic: str) -> None:
        """Continue the topic with fewer partitions, and so under another id."""
        state = self.shared.image.topic(topic)
        assert state is not None
        index = len(state.partitions) - 1
        self._any.apply(RemovePartition(state.topic_id, index))
        await self.renew(topic)
        self.shared.logs.pop((topic, index), None)

    async def freeze(self, node_id: int) -> None:
        """Stop the broker as SIGSTOP would: connections stay open, but nothing is read from them."""
        for connection in list(self.servers[node_id]._connections):
            assert connection._transport is not None
            connection._transport.pause_reading()

    async def mute(self, node_id: int) -> None:
        """Let the broker accept connections, and answer no request on them."""
        await self.kill(node_id)

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(65_536):
                pass
            writer.close()

        self._mute.append(await asyncio.start_server(read, *self.addresses[node_id]))

    def open_transaction(self, topic: str, index: int, start_offset: int, producer_id: int) -> None:
        """Let a transaction be open in the log of a partition."""
        producer = api.ActiveProducer(producer_id, 0, -1, transaction_start=start_offset)
        self.shared.opened.setdefault((topic, index), []).append(producer)

    async def fill(self, topic: str, index: int, *batches: bytes | bytearray) -> None:
        for batch in batches:
            result = self.replicas[self._leader(topic, index)]._append(topic, index, memoryview(batch))
            assert result.error_code == 0, result

    async def cut_front(self, topic: str, index: int, batches: int) -> None:
        """Delete the oldest batches, as retention does."""
        log = self.shared.logs[topic, index]
        log.start_offset = log.batches[batches][0]
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
        for listener in self._mute:
            listener.close()


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
    """Run the cluster on a loop in its own thread, for clients that block."""

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
