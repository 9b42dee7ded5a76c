"""Finds the high watermarks of partitions on any broker, for the lag of share groups.

This broker knows the high watermarks of the partitions that it leads.  All other leaders are asked at the same time,
each with one ListOffsets request for all of its partitions.  If a leader does not answer, the result lacks only its
partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker.coordinator.limits import CoordinatorLimits
from broker.coordinator.links import BrokerLinks
from broker.core.fetch_session import PartitionKey
from broker.replica.table import ReplicaTable
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.kafka.fetch import READ_UNCOMMITTED

_VERSION: Final = 7
_CONSUMER: Final = -1
_ANY_EPOCH: Final = -1
_LATEST: Final = -1


class LogEnds:
    """Looks up the high watermarks of partitions.  links: connections to the other brokers."""

    def __init__(self, table: ReplicaTable, links: BrokerLinks, limits: CoordinatorLimits) -> None:
        self._table = table
        self._cluster = table.context.cluster
        self._links = links
        self._timeout_s = limits.share_log_end_timeout_ms / 1000

    async def of(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        """Return the high watermarks of partitions, within `share_log_end_timeout_ms`.

        A partition is missing from the result if it does not exist, or if no leader reports its high watermark in time.
        """
        found: dict[PartitionKey, int] = {}
        elsewhere: dict[int, dict[PartitionKey, str]] = {}
        for key in partitions:
            topic = self._cluster.newest.topics.get(key.topic_id)
            partition = None if topic is None else topic.partition(key.partition_index)
            if topic is None or partition is None or partition.leader < 0:
                continue
            if partition.leader != self._cluster.broker_id:
                elsewhere.setdefault(partition.leader, {})[key] = topic.name
            elif (end := self._own(key)) is not None:
                found[key] = end
        asking = [self._ask(leader, names) for leader, names in sorted(elsewhere.items())]
        for ends in await asyncio.gather(*asking):
            found.update(ends)
        return found

    def _own(self, key: PartitionKey) -> int | None:
        """Return the high watermark of a partition; None if this broker does not lead it, or does not know it yet."""
        replica = self._table.find(*key)
        leading = None if replica is None else replica.leading(_ANY_EPOCH)
        if leading is None or isinstance(leading, KafkaCode) or not leading.leader.latest_known():
            return None
        return leading.leader.high_watermark

    async def _ask(self, leader: int, names: Mapping[PartitionKey, str]) -> dict[PartitionKey, int]:
        """Ask one leader, and return the high watermarks that it reports.

        A failed request is not repeated: an administrator who needs a missing lag repeats the command.
        """
        values = {"replica_id": _CONSUMER, "isolation_level": READ_UNCOMMITTED, "topics": _topics(names)}
        try:
            reply = await self._links.ask(leader, Api.LIST_OFFSETS, _VERSION, values, self._timeout_s)
        except ClusterError:
            return {}
        ends = {
            (topic.name, each.partition_index): int(each.offset)
            for topic in reply.topics
            for each in topic.partitions
            if each.error_code == KafkaCode.NONE
        }
        answered = {key: ends.get((name, key.partition_index)) for key, name in names.items()}
        return {key: end for key, end in answered.items() if end is not None}


def _topics(names: Mapping[PartitionKey, str]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for key, name in names.items():
        partition = {"partition_index": key.partition_index, "current_leader_epoch": _ANY_EPOCH, "timestamp": _LATEST}
        by_topic.setdefault(name, []).append(partition)
    return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
