"""Looks up offsets of many partitions by time or by leader epoch, at their leaders (`leader_calls`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from quorumlog.client.cluster import Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.leader_calls import Partition, ask_leaders, by_topic
from quorumlog.client.partitions import refusal
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.kafka.fetch import READ_COMMITTED, READ_UNCOMMITTED

_LIST_OFFSETS_VERSION: Final = 7
_EPOCH_ENDS_VERSION: Final = 4

Found = dict[Partition, int | ClusterError]


async def list_offsets(
    cluster: Cluster, wanted: Mapping[Partition, int], timeout_s: float, *, committed_only: bool = False
) -> Found:
    """Return, for each partition, the offset of the first record that is not older than a timestamp, or an error.

    An offset of -1 means that all records are older.
    wanted: by partition, a timestamp in ms since 1970, `consumer.EARLIEST` (the log start offset), or `consumer.LATEST`
        (the high watermark).
    committed_only: look up offsets for readers of committed records; for them, LATEST is the last stable offset.

    Raises:
        ClusterError: as `ask_leaders`.
    """

    async def ask(leader: KafkaConnection, keys: list[Partition], left_s: float) -> Found:
        topics = [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": index, "current_leader_epoch": -1, "timestamp": wanted[topic, index]}
                    for index in indexes
                ],
            }
            for topic, indexes in by_topic(keys).items()
        ]
        level = READ_COMMITTED if committed_only else READ_UNCOMMITTED
        values = {"replica_id": -1, "isolation_level": level, "topics": topics}
        reply = await cluster.ask(leader, Api.LIST_OFFSETS, _LIST_OFFSETS_VERSION, values, left_s)
        answered = {(topic.name, each.partition_index): each for topic in reply.topics for each in topic.partitions}
        return {key: _outcome(answered.get(key), *key) for key in keys}

    return await ask_leaders(cluster, wanted, timeout_s, ask)


async def epoch_ends(cluster: Cluster, wanted: Mapping[Partition, tuple[int, int]], timeout_s: float) -> Found:
    """Return, for each partition, the end offset of the records up to a leader epoch, or an error.

    If the log has a later epoch only, this is the start offset of its first epoch: 0 in a new log.  -1: the log knows
    no epoch.
    wanted: by partition, the leader epoch, and the current leader epoch, so that a former leader refuses.

    Raises:
        ClusterError: as `ask_leaders`.
    """

    async def ask(leader: KafkaConnection, keys: list[Partition], left_s: float) -> Found:
        topics = [
            {
                "topic": topic,
                "partitions": [
                    {"partition": index, "leader_epoch": epoch, "current_leader_epoch": current}
                    for index in indexes
                    for epoch, current in (wanted[topic, index],)
                ],
            }
            for topic, indexes in by_topic(keys).items()
        ]
        values = {"replica_id": -1, "topics": topics}
        reply = await cluster.ask(leader, Api.OFFSET_FOR_LEADER_EPOCH, _EPOCH_ENDS_VERSION, values, left_s)
        answered = {(topic.topic, each.partition): each for topic in reply.topics for each in topic.partitions}
        return {key: _end(answered.get(key), *key) for key in keys}

    return await ask_leaders(cluster, wanted, timeout_s, ask)


def _end(answer: Any, topic: str, index: int) -> int | ClusterError:
    code = int(KafkaCode.UNKNOWN_SERVER_ERROR) if answer is None else int(answer.error_code)
    return refusal(code, topic, index, "the request for the end of an epoch") if code else int(answer.end_offset)


def _outcome(answer: Any, topic: str, index: int) -> int | ClusterError:
    code = int(KafkaCode.UNKNOWN_SERVER_ERROR) if answer is None else int(answer.error_code)
    return refusal(code, topic, index, "the request for its offsets") if code else int(answer.offset)
