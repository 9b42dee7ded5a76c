"""The data directories of brokers, for administrators: which replicas they hold, and moves of replicas between them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from quorumlog.client.admin_values import refused
from quorumlog.client.cluster import Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.errors import ClusterError, RemoteProtocolError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

_DESCRIBE_VERSION: Final = 3
_ALTER_VERSION: Final = 2
_LEFT_MIN_S: Final = 0.05
"""Each step of a call has at least this much time, so that it can report its error."""

Partition = tuple[str, int]
"""Topic and index."""


class HeldReplica(NamedTuple):
    """A replica in a directory.  size: in bytes.  lag: the number of missing records.  is_future: a copy for a move."""

    topic: str
    partition: int
    size: int
    lag: int
    is_future: bool


class DataDirectory(NamedTuple):
    """A data directory of a broker.  is_failed: the directory is offline, so its replicas are unknown."""

    path: str
    is_failed: bool
    replicas: tuple[HeldReplica, ...]


class LogDirClient:
    """Sends requests about data directories to single brokers.  Every call may raise ClusterError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def describe(self, broker_id: int, timeout_s: float) -> list[DataDirectory]:
        """Return the data directories of a broker, with all their replicas."""
        _, reply = await self._ask(broker_id, Api.DESCRIBE_LOG_DIRS, _DESCRIBE_VERSION, {"topics": None}, timeout_s)
        if reply.error_code:
            raise refused(reply.error_code, f"the directories of broker {broker_id}")
        return [_directory(each) for each in reply.results]

    async def move(
        self, broker_id: int, wanted: Mapping[Partition, str], timeout_s: float
    ) -> dict[Partition, KafkaCode]:
        """Request a directory for each of these replicas of a broker; return the outcome for each.

        wanted: the path of the directory, by partition.
        NONE: the move was requested, but may not have begun.  REPLICA_NOT_AVAILABLE: the broker has no replica of the
        partition.  UNKNOWN_TOPIC_OR_PARTITION: the broker knows no such partition.  In the last two cases, the broker
        remembers the directory for a replica that it gets later.
        """
        by_path: dict[str, dict[str, list[int]]] = {}
        for (topic, index), path in wanted.items():
            by_path.setdefault(path, {}).setdefault(topic, []).append(index)
        dirs = [
            {"path": path, "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()]}
            for path, topics in by_path.items()
        ]
        broker, reply = await self._ask(
            broker_id, Api.ALTER_REPLICA_LOG_DIRS, _ALTER_VERSION, {"dirs": dirs}, timeout_s
        )
        codes = {
            (name, index): _code(int(each.error_code), f"{name}-{index}: the directory on broker {broker_id}")
            for topic in reply.results
            for each in topic.partitions
            for name, index in [(str(topic.topic_name), int(each.partition_index))]
        }
        with broker.judged():
            if codes.keys() != wanted.keys():
                raise RemoteProtocolError("the answer is about other replicas than the request")
        return codes

    async def _ask(
        self, broker_id: int, api: Api, version: int, values: dict[str, Any], timeout_s: float
    ) -> tuple[KafkaConnection, Any]:
        """Return a broker's answer, and its connection."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        addresses = await self._cluster.brokers(timeout_s)
        if broker_id not in addresses:
            text = f"broker {broker_id} is not registered, or does not run"
            raise ClusterError(ApiError.BROKER_NOT_AVAILABLE, text, "kctl brokers list", retriable=True)
        broker = await self._cluster.connection(addresses[broker_id], max(end_s - loop.time(), _LEFT_MIN_S))
        return broker, await self._cluster.ask(broker, api, version, values, max(end_s - loop.time(), _LEFT_MIN_S))


def _code(number: int, subject: str) -> KafkaCode:
    """Return an error code.  Raises: ClusterError: Kafka defines this code, but quorumlog does not send it."""
    try:
        return KafkaCode(number)
    except ValueError:
        raise refused(number, subject) from None


def _directory(result: Any) -> DataDirectory:
    replicas = (
        HeldReplica(
            str(topic.name),
            int(each.partition_index),
            int(each.partition_size),
            int(each.offset_lag),
            bool(each.is_future_key),
        )
        for topic in result.topics
        for each in topic.partitions
    )
    return DataDirectory(str(result.log_dir), bool(result.error_code), tuple(replicas))
