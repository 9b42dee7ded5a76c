"""Looks up offsets of many partitions by time: one request for each leader, and an answer or a reason for each.

A partition whose leader does not answer must not hide the others.  So the result contains an error for it, once the
time is up, or at once if a retry would not help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

from quorumlog.client.cluster import HURRY_S, Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import PAUSE_MAX_S, PAUSE_MIN_S, refusal
from quorumlog.errors import ClusterError
from quorumlog.runtime.backoff import Backoff
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api

_LIST_OFFSETS_VERSION: Final = 7

Partition = tuple[str, int]
"""Topic and index."""
Found = dict[Partition, int | ClusterError]


async def list_offsets(cluster: Cluster, wanted: Mapping[Partition, int], timeout_s: float) -> Found:
    """Return for each partition the first offset whose record is not older than its timestamp, or an error.

    wanted: timestamps (ms), or `consumer.EARLIEST` or `consumer.LATEST` (the watermark), by partition.  An offset of -1
    means that no record is as new as that.

    Raises:
        ClusterError: no broker answers at all.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S, cluster.random)
    if wanted:  # one request, so that the look-ups of leaders below find all topics in the cache
        await cluster.topic_states({topic for topic, _ in wanted}, timeout_s)
    found: Found = {}
    left = dict(wanted)
    while left:
        answers = await _once(cluster, left, max(deadline - loop.time(), PAUSE_MIN_S))
        found.update(answers)
        left = {key: left[key] for key, answer in answers.items() if _is_retriable(answer)}
        pause_s = backoff.next_s()
        if loop.time() + pause_s >= deadline:
            break
        if left:
            await asyncio.sleep(pause_s)
    return {key: found[key] for key in wanted}


def _is_retriable(answer: int | ClusterError) -> bool:
    return isinstance(answer, ClusterError) and answer.retriable


async def _once(cluster: Cluster, wanted: Mapping[Partition, int], left_s: float) -> Found:
    """Ask each leader once."""
    keys = list(wanted)
    leaders = await asyncio.gather(
        *(cluster.leader(topic, index, left_s) for topic, index in keys), return_exceptions=True
    )
    found: Found = {}
    by_leader: dict[KafkaConnection, list[Partition]] = {}
    for key, leader in zip(keys, leaders, strict=True):
        if isinstance(leader, ClusterError):
            found[key] = leader
        elif isinstance(leader, BaseException):
            raise leader
        else:
            by_leader.setdefault(leader, []).append(key)
    parts = await asyncio.gather(
        *(_ask(cluster, leader, {key: wanted[key] for key in keys}, left_s) for leader, keys in by_leader.items())
    )
    for part in parts:
        found.update(part)
    return found


async def _ask(cluster: Cluster, leader: KafkaConnection, wanted: Mapping[Partition, int], left_s: float) -> Found:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, index), timestamp in wanted.items():
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        topics.setdefault(topic, []).append(asked)
    values = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }
    try:
        reply = await cluster.ask(leader, Api.LIST_OFFSETS, _LIST_OFFSETS_VERSION, values, min(left_s, HURRY_S))
    except ClusterError as error:
        await _leader_lost(cluster, leader, wanted)
        return dict.fromkeys(wanted, error)
    answered = {(topic.name, each.partition_index): each for topic in reply.topics for each in topic.partitions}
    found: Found = {key: _outcome(answered.get(key), *key) for key in wanted}
    await _leader_lost(cluster, leader, [key for key, answer in found.items() if _is_retriable(answer)])
    return found


def _outcome(answer: Any, topic: str, index: int) -> int | ClusterError:
    code = int(KafkaCode.UNKNOWN_SERVER_ERROR) if answer is None else int(answer.error_code)
    return refusal(code, topic, index, "the request for its offsets") if code else int(answer.offset)


async def _leader_lost(cluster: Cluster, leader: KafkaConnection, partitions: Collection[Partition]) -> None:
    for topic, index in partitions:
        await cluster.leader_lost(topic, index, leader)
