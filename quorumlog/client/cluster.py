"""Who leads what, and the connections to them: a client's view of a cluster.

Theory of operation.  Any broker answers Metadata: the ones already connected are asked first, then those that were seen
before, then the bootstrap addresses, so that a client outlives the addresses that it started with.  The view is only
ever as old as the last complaint: `leader_lost` forgets one partition's leader, and the next `leader` asks again.
Refreshes are serialised, and whoever waited for one looks again before starting its own: a thousand partitions that
lose their leader at once cause one request.  A broker that failed to answer is asked last.

A broker that lags behind answers with an old leader.  Leader epochs of a partition only grow, so an answer with a lower
epoch than was seen says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError
from quorumlog.wire.kafka.codec import Api

CONNECT_TIMEOUT_S: Final = 3.0
METADATA_TIMEOUT_S: Final = 5.0
_PAUSE_MIN_S: Final = 0.05
_PAUSE_MAX_S: Final = 0.5
_METADATA_VERSION: Final = 12
_INIT_PRODUCER_ID_VERSION: Final = 4

Address = tuple[str, int]
T = TypeVar("T")


class PartitionView(NamedTuple):
    """What a broker last said about a partition.  leader None: it has none, or it must be asked for again."""

    topic_id: UUID | None
    epoch: int
    leader: int | None


class Cluster:
    """A client's view, bound to one loop; an async context manager that closes the connections."""

    def __init__(self, bootstrap: Sequence[Address], *, client_id: str = "quorumlog") -> None:
        assert bootstrap, "no bootstrap address"
        self._bootstrap = tuple(bootstrap)
        self._client_id = client_id
        self._brokers: dict[int, Address] = {}
        self._connections: dict[Address, KafkaConnection] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}
        self._partitions: dict[tuple[str, int], PartitionView] = {}
        self._refreshing = asyncio.Lock()
        self._suspects: set[Address] = set()  # failed when last asked

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            await connection.close()

    async def leader(self, topic: str, index: int, timeout_s: float) -> KafkaConnection:
        """An open connection to the partition's leader.

        Raises:
            ClusterError: retriable; nobody could be asked, the topic or partition is not known, it has no leader, or
                its leader does not answer.
        """
        view = self._partitions.get((topic, index))
        if view is None or view.leader is None:
            async with self._refreshing:
                view = self._partitions.get((topic, index))
                if view is None or view.leader is None:
                    await self._refresh([topic], timeout_s)
            view = self._partitions.get((topic, index))
        if view is None:
            raise _retriable("UNKNOWN_TOPIC_OR_PARTITION", f"{topic}-{index} is not known")
        if view.leader is None or view.leader not in self._brokers:
            raise _retriable("LEADER_NOT_AVAILABLE", f"{topic}-{index} has no leader now")
        try:
            return await self._connection(self._brokers[view.leader], timeout_s)
        except ClusterError:
            self._forget(topic, index, view.leader)
            raise

    async def leader_lost(self, topic: str, index: int, connection: KafkaConnection) -> None:
        """The connection failed, or its broker does not lead the partition: look it up before the next answer."""
        view = self._partitions.get((topic, index))
        address = (connection.host, connection.port)
        if view is not None and view.leader is not None and self._brokers.get(view.leader) == address:
            self._forget(topic, index, view.leader)
        if not connection.is_open:
            self._suspects.add(address)

    async def partition_counts(self, topics: Iterable[str] | None, timeout_s: float) -> dict[str, int]:
        """Partitions of each of the named topics (None: of all); topics that do not exist are left out.

        Raises:
            ClusterError: TIMED_OUT.
        """
        asked = None if topics is None else sorted(set(topics))

        async def attempt(left_s: float) -> dict[str, int]:
            async with self._refreshing:
                reply = await self._refresh(asked, left_s)
            counts = {}
            for topic in reply.topics:
                if topic.error_code == ErrorCode.none:
                    counts[topic.name] = len(topic.partitions)
                elif topic.error_code != ErrorCode.unknown_topic_or_partition:
                    raise _refused(topic.error_code, f"topic {topic.name}")
            return counts

        return await _until(timeout_s, "the topics' partitions", attempt)

    async def new_producer_id(self, timeout_s: float) -> tuple[int, int]:
        """A fresh (producer id, epoch).  Raises: ClusterError (TIMED_OUT)."""

        async def attempt(left_s: float) -> tuple[int, int]:
            values = {
                "transactional_id": None,
                "transaction_timeout": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            connection = await self._any_connection(left_s)
            timeout_s = min(left_s, METADATA_TIMEOUT_S)
            reply = await connection.ask(Api.INIT_PRODUCER_ID, _INIT_PRODUCER_ID_VERSION, values, timeout_s)
            if reply.error_code != ErrorCode.none:
                raise _refused(reply.error_code, "the wish for a producer id")
            return reply.producer_id, reply.producer_epoch

        return await _until(timeout_s, "a producer id", attempt)

    async def _refresh(self, topics: Sequence[str] | None, timeout_s: float) -> Any:
        """Ask one broker after the other until one answers; the caller holds `_refreshing`."""
        values = {
            "topics": None if topics is None else [{"name": name, "topic_id": None} for name in topics],
            "allow_auto_topic_creation": False,
        }
        deadline = asyncio.get_running_loop().time() + timeout_s
        problems = []
        for address in self._addresses():
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            try:
                connection = await self._connection(address, left_s)
                wait_s = min(left_s, METADATA_TIMEOUT_S)
                reply = await connection.ask(Api.METADATA, _METADATA_VERSION, values, wait_s)
            except ClusterError as error:
                self._suspects.add(address)
                problems.append(error.message)
                continue
            self._suspects.discard(address)
            self._learn(reply)
            return reply
        what = "; ".join(problems) or f"no time left to ask within {timeout_s:g} s"
        raise _retriable("BROKER_UNAVAILABLE", f"no broker answers: {what}")

    def _addresses(self) -> list[Address]:
        """Everyone who can be asked, most promising first, each once."""
        connected = [address for address, connection in self._connections.items() if connection.is_open]
        known = dict.fromkeys([*connected, *self._brokers.values(), *self._bootstrap])
        return sorted(known, key=self._suspects.__contains__)

    def _learn(self, reply: Any) -> None:
        for broker in reply.brokers:
            self._brokers[broker.node_id] = (broker.host, broker.port)
        for topic in reply.topics:
            if topic.error_code == ErrorCode.unknown_topic_or_partition:
                for key in [key for key in self._partitions if key[0] == topic.name]:
                    del self._partitions[key]
            for partition in topic.partitions:
                self._learn_partition(topic, partition)

    def _learn_partition(self, topic: Any, partition: Any) -> None:
        key = (topic.name, partition.partition_index)
        known = self._partitions.get(key)
        if known is not None and known.topic_id == topic.topic_id and partition.leader_epoch < known.epoch:
            return
        leader = partition.leader_id if partition.leader_id >= 0 else None
        self._partitions[key] = PartitionView(topic.topic_id, partition.leader_epoch, leader)

    def _forget(self, topic: str, index: int, leader: int) -> None:
        view = self._partitions.get((topic, index))
        if view is not None and view.leader == leader:
            self._partitions[topic, index] = view._replace(leader=None)

    async def _any_connection(self, timeout_s: float) -> KafkaConnection:
        problems = []
        for address in self._addresses():
            try:
                return await self._connection(address, timeout_s)
            except ClusterError as error:
                problems.append(error.message)
        raise _retriable("BROKER_UNAVAILABLE", f"no broker answers: {'; '.join(problems)}")

    async def _connection(self, address: Address, timeout_s: float) -> KafkaConnection:
        """The open connection to `address`, made if there is none."""
        async with self._connecting.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is not None and connection.is_open:
                return connection
            connection = KafkaConnection(*address, client_id=self._client_id)
            await connection.connect(min(timeout_s, CONNECT_TIMEOUT_S))
            self._connections[address] = connection
            return connection


async def _until(timeout_s: float, what: str, attempt: Callable[[float], Awaitable[T]]) -> T:
    """`attempt(seconds left)`, again while it raises a retriable ClusterError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    pause_s = _PAUSE_MIN_S
    while True:
        try:
            return await attempt(deadline - loop.time())
        except ClusterError as error:
            if not error.retriable:
                raise
            if loop.time() + pause_s >= deadline:
                message = f"{what}: given up after {timeout_s:g} s; the last answer was: {error.message}"
                raise ClusterError("TIMED_OUT", message, "kctl quorum status", retriable=True) from error
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MAX_S)


def _retriable(code: str, message: str) -> ClusterError:
    return ClusterError(code, message, retriable=True, refresh_metadata=True)


def _refused(code: ErrorCode, what: str) -> ClusterError:
    name = code.name.upper()
    return ClusterError(name, f"{what} was answered with {name}", retriable=code.retriable)
