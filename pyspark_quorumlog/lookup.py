"""Asks the brokers, in the driver, which partitions a query reads and which offsets they have.

A broker whose metadata is behind does not know a new topic or partition yet.  So before a topic or partition counts as
missing, the driver asks again, up to `fetchOffset.numRetries` times, and each time another broker if there is one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pyspark_quorumlog.options import LATEST, OptionError, Partition, ReadOptions
from quorumlog.client.cluster import Cluster, TopicState
from quorumlog.client.consumer import Consumer
from quorumlog.client.sync import runner

DELETED_AFTER_S = 10.0
"""A partition that the query reads counts as deleted if no broker that was asked during this time knows it."""
PAUSE_MIN_S = 0.05
"""Shortest pause between two requests; a lower `fetchOffset.retryIntervalMs` is raised to it."""


@dataclass(frozen=True, slots=True)
class Found:
    """The topics in one answer of a broker.

    subscribed: the existing partitions of the query, in order.
    topics: the state of all topics that the query or the caller asked for.
    """

    subscribed: list[Partition]
    topics: Mapping[str, TopicState]

    def has(self, partition: Partition) -> bool:
        return partition[0] in self.topics and partition[1] in self.topics[partition[0]].leader_epochs


def cluster_of(options: ReadOptions) -> Cluster:
    return runner().cluster(options.bootstrap, options.client_id)


def consumer_of(options: ReadOptions, read_committed: bool) -> Consumer:
    return Consumer(
        cluster_of(options),
        timeout_s=options.poll_timeout_s,
        request_timeout_s=options.request_timeout_s,
        read_committed=read_committed,
    )


async def is_committed_only(options: ReadOptions) -> bool:
    """Return whether the query reads committed records only.

    The option of the query decides; without it, the answer is true if the brokers are those of quorumlog.
    """
    if options.read_committed is not None:
        return options.read_committed
    return await is_of_quorumlog(options)


async def is_of_quorumlog(options: ReadOptions) -> bool:
    """Return whether the brokers are those of quorumlog."""
    return await cluster_of(options).is_of_quorumlog(options.poll_timeout_s)


async def before_another_ask(options: ReadOptions) -> None:
    """Wait for the pause between two requests, and direct the next metadata request to another broker."""
    cluster_of(options).ask_another_broker()
    await asyncio.sleep(max(options.lookup_pause_s, PAUSE_MIN_S))


async def look_up(options: ReadOptions, others: Collection[str] = ()) -> Found:
    """Ask one broker for the topics of the query, and for `others`.

    As in Spark's Kafka source, a pattern matches if it occurs anywhere in the name, and never matches internal topics.
    """
    cluster, timeout_s = cluster_of(options), options.poll_timeout_s
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        topics = await cluster.topic_states(None, timeout_s)
        names = [name for name, state in topics.items() if not state.is_internal and pattern.search(name)]
        topics = {name: topics[name] for name in topics.keys() & {*names, *others}}
    else:
        names = sorted(options.topics or {topic for topic, _ in options.assigned})
        topics = await cluster.topic_states({*names, *others}, timeout_s)
    if options.assigned:
        found = Found([], topics)
        return Found([one for one in options.assigned if found.has(one)], topics)
    subscribed = [
        (name, index) for name in sorted(names) if name in topics for index in sorted(topics[name].leader_epochs)
    ]
    return Found(subscribed, topics)


def missing_names(options: ReadOptions, found: Found, known: Collection[Partition] = ()) -> OptionError | None:
    """Return the error if the query names a topic or partition that neither exists nor is in `known`."""
    asked = options.topics or sorted({topic for topic, _ in options.assigned})
    if missing := sorted(set(asked) - found.topics.keys() - {topic for topic, _ in known}):
        return OptionError(f"topic {', '.join(missing)} does not exist", next_step="kctl topics list")
    for topic, index in options.assigned:
        if not found.has((topic, index)) and (topic, index) not in known:
            count = len(found.topics[topic].leader_epochs) if topic in found.topics else 0
            return OptionError(f"option assign names {topic}-{index}, but the topic has {count} partitions")
    return None


async def existing_partitions(options: ReadOptions) -> Found:
    """Return the existing partitions of the query.

    Raises:
        OptionError: no broker that was asked knows a named topic or partition.
    """
    for left in range(options.lookup_retries, -1, -1):
        found = await look_up(options)
        problem = missing_names(options, found)
        if problem is None:
            return found
        if left == 0:
            raise problem
        await before_another_ask(options)
    raise AssertionError("the brokers are asked at least once")


async def is_deleted(options: ReadOptions, partition: Partition) -> bool:
    """Return whether no broker knows the partition for DELETED_AFTER_S; False as soon as one of them knows it.

    The time begins with the first answer, because this answer may be late.
    """
    topic, index = partition
    loop = asyncio.get_running_loop()
    deadline: float | None = None
    while True:
        states = await cluster_of(options).topic_states([topic], options.poll_timeout_s)
        if topic in states and index in states[topic].leader_epochs:
            return False
        deadline = deadline or loop.time() + DELETED_AFTER_S
        if loop.time() >= deadline:
            return True
        await before_another_ask(options)


async def list_offsets(consumer: Consumer, partitions: Iterable[Partition], position: int) -> dict[Partition, int]:
    """Return the offset of `position`, which is EARLIEST or LATEST, by partition."""
    return await list_times(consumer, dict.fromkeys(partitions, position))


async def list_times(consumer: Consumer, times: Mapping[Partition, int]) -> dict[Partition, int]:
    """Return the offset of the first record that is not older than the time, by partition; -1 if none exists.

    times: in ms since 1970, or EARLIEST or LATEST.
    """
    return {partition: listed.offset for partition, listed in (await consumer.list_offsets(times)).items()}


async def ends_at_least(
    options: ReadOptions, ends: Mapping[Partition, int], reached: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Return `ends` for a query of committed records, raised to `reached` where the high watermark is not below it.

    A position between the last stable offset and the high watermark belongs to transactions that are not decided yet.
    The records before such a position are not lost: a task waits for the decision.
    """
    beyond = [one for one, end in ends.items() if end < reached.get(one, -1)]
    watermarks = await list_offsets(consumer_of(options, read_committed=False), beyond, LATEST)
    return {**ends, **{one: reached[one] for one in beyond if watermarks[one] >= reached[one]}}
