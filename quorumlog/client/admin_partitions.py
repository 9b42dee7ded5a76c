"""Requests of `Admin` about partitions: descriptions of their topics, offsets, and deletions of records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from quorumlog.client.admin_values import TopicDescription, done_or_raise, refused, topic_description
from quorumlog.client.broker_calls import VERSIONS, BrokerCalls, broker_timeout_ms, final_if_missing
from quorumlog.client.cluster import REQUEST_TIMEOUT_S, Cluster
from quorumlog.client.coordinators import AT_ONCE_MAX
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.log_offsets import list_offsets
from quorumlog.client.messages import TopicPartition, check_texts
from quorumlog.client.partitions import PAUSE_MIN_S, PartitionCalls
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api

Partitions = str | Iterable[str | tuple[str, int]]
"""A topic's name, which means all its partitions; or several names and (topic, partition) pairs."""


def named_partitions(partitions: Partitions) -> list[str | tuple[str, int]]:
    """Return the given names and pairs.  Raises: ConfigError: nothing is named, or a name is not valid text."""
    given: list[str | tuple[str, int]] = [partitions] if isinstance(partitions, str) else list(partitions)
    if not given:
        raise ConfigError("partitions is empty")
    check_texts("topic", (each if isinstance(each, str) else each[0] for each in given))
    return given


class PartitionLooks:
    """Sends the requests of `Admin` about existing partitions.

    All methods have the argument `left_s`: a function that returns the seconds that remain for the whole call.
    All methods raise ClusterError, or `RefusalsError` if several partitions or topics are named and some are refused.
    """

    def __init__(self, cluster: Cluster, brokers: BrokerCalls) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._leaders = PartitionCalls(cluster)

    async def described(self, names: Collection[str], left_s: Callable[[], float]) -> dict[str, TopicDescription]:
        """Return topics by name.  If a topic is missing, ask a second broker, because the first one may be behind."""

        async def look(left_s: float) -> dict[str, TopicDescription | ClusterError]:
            found = {str(each.name): each for each in (await self._brokers.metadata(names, left_s)).topics}
            states: dict[str, TopicDescription | ClusterError] = {}
            for name in names:
                topic = found.get(name)
                code = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else int(topic.error_code)
                states[name] = final_if_missing(refused(code, f"topic {name}")) if code else topic_description(topic)
            for state in states.values():
                if isinstance(state, ClusterError) and state.retriable:  # for example, Kafka is still creating it
                    raise state
            return states

        states = await self._cluster.retrying("topics", left_s(), look)
        if any(isinstance(each, ClusterError) for each in states.values()):
            self._cluster.ask_another_broker()
            states = await self._cluster.retrying("topics", left_s(), look)
        return done_or_raise(states)

    async def delete_before(
        self, wanted: Mapping[TopicPartition, int], left_s: Callable[[], float]
    ) -> dict[TopicPartition, int]:
        """Delete the records of existing partitions before the given offsets; return the new log start offsets.

        At most AT_ONCE_MAX partitions of one leader are served at a time, so a leader that hangs delays only its own.
        wanted: -1 stands for the high watermark.
        """
        await self._cluster.look_up({key.topic for key in wanted}, left_s())
        # A partition without a leader has a slot of its own: it waits for a leader, and sends nothing meanwhile.
        slots = {self._cluster.known_leader(*key) or key: asyncio.Semaphore(AT_ONCE_MAX) for key in wanted}
        found = await asyncio.gather(
            *(
                self._delete_in_turn(key, offset, slots[self._cluster.known_leader(*key) or key], left_s)
                for key, offset in wanted.items()
            )
        )
        return done_or_raise(dict(zip(wanted, found, strict=True)))

    async def _delete_in_turn(
        self, key: TopicPartition, offset: int, slots: asyncio.Semaphore, left_s: Callable[[], float]
    ) -> int | ClusterError:
        """Return the new log start offset, or an error, before the time of the whole call is up.

        Otherwise the call would end without the results of the other partitions.
        """
        try:
            async with asyncio.timeout(left_s()):
                await slots.acquire()
        except TimeoutError:
            return _not_tried(key)
        try:
            async with asyncio.timeout(left_s()):
                if left_s() <= PAUSE_MIN_S:  # the slot is free only because the time of others is up
                    return _not_tried(key)
                return await self._delete_before(key, offset, left_s() - PAUSE_MIN_S)
        except TimeoutError:
            return ClusterError(ApiError.TIMED_OUT, f"{key}: no answer to the deletion of its records", retriable=True)
        except ClusterError as error:
            return error
        finally:
            slots.release()

    async def _delete_before(self, key: TopicPartition, offset: int, timeout_s: float) -> int:
        async def attempt(connection: KafkaConnection, left_s: float) -> int:
            limit_s = min(left_s, REQUEST_TIMEOUT_S)
            partition = {"partition_index": key.partition, "offset": offset}
            values = {"topics": [{"name": key.topic, "partitions": [partition]}], "timeout": broker_timeout_ms(limit_s)}
            version = VERSIONS[Api.DELETE_RECORDS]
            reply = await self._cluster.ask(connection, Api.DELETE_RECORDS, version, values, limit_s)
            answers = [each for topic in reply.topics for each in topic.partitions]
            code = int(answers[0].error_code) if answers else int(KafkaCode.UNKNOWN_SERVER_ERROR)
            if code:
                raise refused(code, f"{key}: the deletion of its records before {offset}")
            return int(answers[0].low_watermark)

        return await self._leaders.call(key.topic, key.partition, timeout_s, attempt)

    async def listed(
        self, wanted: Mapping[TopicPartition, int], left_s: Callable[[], float]
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition for a time (ms since 1970) or a special value; see `list_offsets`."""
        found = await list_offsets(self._cluster, {(*key,): offset for key, offset in wanted.items()}, left_s())
        return done_or_raise({key: found[key] for key in wanted})

    async def resolved(self, partitions: Partitions, left_s: Callable[[], float]) -> list[TopicPartition]:
        """Return the named partitions, ascending.

        Raises:
            ConfigError: no partition is named, or a name is not valid text.
            ClusterError: a topic or partition does not exist, or no broker answers in time.
        """
        given = named_partitions(partitions)
        names = {each if isinstance(each, str) else each[0] for each in given}
        topics = await self.described(names, left_s)
        pairs = [each for each in given if not isinstance(each, str)]
        if any(index >= len(topics[name].partitions) for name, index in pairs):  # the first broker may be behind
            self._cluster.ask_another_broker()
            topics = await self.described(names, left_s)
        found: dict[TopicPartition, ClusterError | None] = {}
        for each in given:
            if isinstance(each, str):
                found.update({TopicPartition(each, one.partition): None for one in topics[each].partitions})
            elif 0 <= each[1] < len(topics[each[0]].partitions):
                found[TopicPartition(*each)] = None
            else:
                message = (
                    f"{each[0]}-{each[1]} does not exist; the topic has {len(topics[each[0]].partitions)} partitions"
                )
                found[TopicPartition(*each)] = ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, message)
        return sorted(done_or_raise(found))


def _not_tried(key: TopicPartition) -> ClusterError:
    message = f"{key}: nothing was deleted, because earlier requests to its leader got no answer in time"
    return ClusterError(ApiError.TIMED_OUT, message, retriable=True)
