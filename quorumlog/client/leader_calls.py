"""Requests about many partitions: one request for each leader, and an answer or an error for each partition.

A partition whose leader does not answer, or whose topic is refused, must not hide the others.  So the result contains
an error for this partition.  A retriable error is reported only once the time is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import TypeVar

from quorumlog.client.cluster import HURRY_S, Cluster
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import PAUSE_MAX_S, PAUSE_MIN_S
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.backoff import Backoff

Partition = tuple[str, int]
"""Topic and index."""
T = TypeVar("T")
Ask = Callable[[KafkaConnection, list[Partition], float], Coroutine[None, None, dict[Partition, T | ClusterError]]]
"""Asks one leader, within the given seconds, and returns an answer or an error for each of the partitions."""


async def ask_leaders(
    cluster: Cluster, partitions: Iterable[Partition], timeout_s: float, ask: Ask[T]
) -> dict[Partition, T | ClusterError]:
    """Return, for each partition, the answer of its leader, after retries if necessary, or an error.

    Raises:
        ClusterError: no broker answers at all.
    """
    wanted = list(dict.fromkeys(partitions))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    backoff = Backoff(PAUSE_MIN_S, PAUSE_MAX_S, cluster.random)
    if wanted:  # one request, so that the look-ups of leaders below find all topics in the cache
        await cluster.look_up({topic for topic, _ in wanted}, timeout_s)
    found: dict[Partition, T | ClusterError] = {}
    left = wanted
    while left:
        answers = await _ask_once(cluster, left, lambda: max(deadline - loop.time(), PAUSE_MIN_S), ask)
        found.update(answers)
        left = [key for key, answer in answers.items() if _is_retriable(answer)]
        pause_s = backoff.next_s()
        if loop.time() + pause_s >= deadline:
            break
        if left:
            await asyncio.sleep(pause_s)
    return {key: found[key] for key in wanted}


def _is_retriable(answer: object) -> bool:
    return isinstance(answer, ClusterError) and answer.retriable


async def _ask_once(
    cluster: Cluster, wanted: list[Partition], left_s: Callable[[], float], ask: Ask[T]
) -> dict[Partition, T | ClusterError]:
    """Ask each leader once.  left_s: returns the seconds left."""
    limit_s = left_s()
    leaders = await asyncio.gather(
        *(cluster.find_leader(topic, index, limit_s) for topic, index in wanted), return_exceptions=True
    )
    found: dict[Partition, T | ClusterError] = {}
    by_leader: dict[Address, list[Partition]] = {}
    for key, leader in zip(wanted, leaders, strict=True):
        if isinstance(leader, ClusterError):
            found[key] = leader
        elif isinstance(leader, BaseException):
            raise leader
        else:
            by_leader.setdefault(leader, []).append(key)
    parts = await asyncio.gather(
        *(_ask_leader(cluster, leader, keys, left_s, ask) for leader, keys in by_leader.items())
    )
    for part in parts:
        found.update(part)
    return found


async def _ask_leader(
    cluster: Cluster, address: Address, keys: list[Partition], left_s: Callable[[], float], ask: Ask[T]
) -> dict[Partition, T | ClusterError]:
    """Connect and ask, so that a leader that hangs in either step delays only its own partitions."""
    try:
        leader = await cluster.connection(address, min(left_s(), HURRY_S))
    except ClusterError as error:
        for topic, index in keys:
            cluster.forget_leader(topic, index)
        return dict.fromkeys(keys, error)
    try:
        found = await ask(leader, keys, min(left_s(), HURRY_S))
    except ClusterError as error:
        await _leader_lost(cluster, leader, keys)
        return dict.fromkeys(keys, error)
    await _leader_lost(cluster, leader, [key for key, answer in found.items() if _is_retriable(answer)])
    return found


async def _leader_lost(cluster: Cluster, leader: KafkaConnection, partitions: Collection[Partition]) -> None:
    for topic, index in partitions:
        await cluster.leader_lost(topic, index, leader)


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Return the indexes of partitions by topic, in their order."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics
