"""The topics of a producer, with the lanes of their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from quorumlog.client.cluster import Cluster, TopicState
from quorumlog.client.delivery import Sequence as Numbers
from quorumlog.client.lanes import Lane, Topic
from quorumlog.client.partitions import UNKNOWN_TOPIC_TIMEOUT_S
from quorumlog.client.producer_buffer import ProducerBuffer
from quorumlog.client.producer_settings import ProducerSettings
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from quorumlog.words import about

METADATA_AGE_MAX_S: Final = 60.0
FORMER_TOPICS_MAX: Final = 1000
"""Maximum number of dropped topics whose ended lanes are kept.  Above it, the lanes of the topic that was dropped first
are no longer kept, and all later lanes request producer ids of their own.  A transactional producer gets its next epoch
instead, at the end of a transaction, and keeps none.  A producer of a scope keeps all of them."""
_PAUSE_S: Final = 0.1


class ProducerTopics:
    """The topics to which records were sent.  Only this object adds and removes lanes.

    known: the topics by name.
    identity: producer id and epoch of new lanes; None: the producer is not idempotent or was not started, or each new
        lane requests its own.
    stale: set when a topic may have been deleted.
    begin: starts to deliver the batches of a new lane.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        buffer: ProducerBuffer,
        stale: asyncio.Event,
        begin: Callable[[Topic, Lane], None],
    ) -> None:
        self.known: dict[str, Topic] = {}
        self.identity: tuple[int, int] | None = None
        self._cluster = cluster
        self._batch_size_max = settings.batch_size_max_bytes
        self._max_block_s = settings.max_block_s
        self._buffer = buffer
        self._stale = stale
        self._begin = begin
        self._look_ups: dict[str, asyncio.Task[Topic]] = {}
        self._former: dict[str, dict[int, Lane]] = {}
        """The last lanes of topics that were dropped, by name and partition; the topic that was dropped first is first.
        A new lane of the partition must not use their sequence numbers again."""
        self._ending: list[Lane] = []
        """The lanes of dropped topics that may still have batches."""
        self._has_fixed_identity = settings.transactional_id is not None or settings.is_staged

    def lanes(self) -> list[Lane]:
        """Return the lanes of all topics, and the lanes of dropped topics that still have batches."""
        self._ending = [lane for lane in self._ending if not lane.ended.is_set()]
        return [*self._ending, *(lane for topic in self.known.values() for lane in topic.lanes)]

    def renumber(self, identity: tuple[int, int]) -> None:
        """Restart the sequence numbers of all lanes under a later identity."""
        self.identity = identity
        for name in self._ended_topics():
            del self._former[name]
        for lane in self.lanes():
            lane.sequence = Numbers(lane.sequence.topic, lane.sequence.index, identity)

    @property
    def needs_identity(self) -> bool:
        """Return whether too many dropped topics are kept, because their lanes had the current identity."""
        return len(self._former) > FORMER_TOPICS_MAX and bool(self._ended_topics())

    def clear(self) -> None:
        """Drop all batches that are not being sent."""
        for lane in self.lanes():
            lane.queue.clear()

    def cancel(self) -> list[asyncio.Task[Topic]]:
        """Cancel the look-ups, and return them."""
        look_ups = list(self._look_ups.values())
        for look_up in look_ups:
            look_up.cancel()
        return look_ups

    async def get(self, name: str) -> Topic:
        """Return a topic; ask the brokers if it is not known yet.  Calls for one topic share one look-up.

        Raises: ClusterError, as `Producer.send`.
        """
        while (known := self.known.get(name)) is None:
            if self._buffer.closed is not None:
                raise self._buffer.closed.again()
            look_up = self._look_ups.get(name)
            if look_up is None:
                look_up = self._look_ups[name] = asyncio.ensure_future(self._look_up(name))
                look_up.add_done_callback(lambda done: self._looked_up(name, done))
            await asyncio.wait({look_up})
            if look_up.cancelled():
                closed = self._buffer.closed or ClusterError(ApiError.CLIENT_CLOSED, "the client was closed")
                raise closed.again()
            known = look_up.result()
            break
        return known

    async def grown(self, name: str, index: int) -> Topic:
        """Look for new partitions of a topic, because partition `index` is not known, and return the topic.

        Raises: ClusterError, as `Producer.send`.
        """
        deadline = asyncio.get_running_loop().time() + self._max_block_s
        topic = await self.get(name)
        for _ in range(2):  # the first broker may be behind
            if index < len(topic.lanes):
                break
            left_s = max(deadline - asyncio.get_running_loop().time(), _PAUSE_S)
            state = (await self._cluster.topic_states([name], left_s)).get(name)
            topic = await self.get(name)
            if state is not None and state.topic_id == topic.topic_id:
                self._grow(topic, state)
            self._cluster.ask_another_broker()
        return topic

    def _looked_up(self, name: str, done: asyncio.Task[Topic]) -> None:
        del self._look_ups[name]
        if not done.cancelled():
            done.exception()  # mark as retrieved: the waiting calls raise it

    async def _look_up(self, name: str) -> Topic:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._max_block_s
        unknown_until: float | None = None
        while True:
            states = await self._cluster.topic_states([name], max(deadline - loop.time(), _PAUSE_S))
            state = states.get(name)
            if state is not None and state.leader_epochs:
                topic = self.known[name] = Topic(name, state.topic_id)
                self._grow(topic, state)
                return topic
            now = loop.time()
            # The time counts from the first answer, because this answer may arrive late.
            unknown_until = unknown_until or min(now + UNKNOWN_TOPIC_TIMEOUT_S, deadline)
            if now >= unknown_until:
                message = f"topic {name} does not exist, and was not created automatically"
                next_step = about("kctl topics create", name)
                raise ClusterError(ApiError.UNKNOWN_TOPIC_OR_PARTITION, message, next_step)
            self._cluster.ask_another_broker()
            await asyncio.sleep(_PAUSE_S)

    def _grow(self, topic: Topic, state: TopicState) -> None:
        for index in range(len(topic.lanes), len(state.leader_epochs)):
            lane = Lane(topic.name, index, self._batch_size_max)
            lane.sequence.identity = self.identity
            lane.former = self._former.get(topic.name, {}).get(index)
            topic.lanes.append(lane)
            self._begin(topic, lane)

    async def keep_up(self) -> None:
        """Notice new partitions, and topics that were deleted or created again, until cancelled."""
        while True:
            self._stale.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(METADATA_AGE_MAX_S):
                    await self._stale.wait()
            await asyncio.sleep(_PAUSE_S)
            if not self.known:
                continue
            topics = dict(self.known)  # others may be added meanwhile
            try:
                states = await self._states(topics)
            except ClusterError:
                continue  # the deliveries report that no broker answers
            for name, topic in topics.items():
                if _is_gone(topic, states):
                    self._forget(topic)
                else:
                    self._grow(topic, states[name])

    async def _states(self, topics: Mapping[str, Topic]) -> dict[str, TopicState]:
        """Return the states of topics that exist.  If a topic seems to be deleted, ask a second broker as well.

        The first broker may be behind.  If an existing topic were dropped, it would get new lanes, and their records
        could overtake those of the old lanes.
        """
        states = await self._cluster.topic_states(topics, METADATA_AGE_MAX_S)
        gone = [name for name, topic in topics.items() if _is_gone(topic, states)]
        if gone:
            self._cluster.ask_another_broker()
            states |= await self._cluster.topic_states(gone, METADATA_AGE_MAX_S)
        return states

    def _forget(self, topic: Topic) -> None:
        """Drop a topic, so that the next `send` looks it up.

        The topic may have been created again, or may continue under another id.  The new lanes handle both.
        """
        if self.known.get(topic.name) is topic:
            del self.known[topic.name]
        topic.is_deleted = True
        self._former[topic.name] = self._former.pop(topic.name, {}) | dict(enumerate(topic.lanes))
        self._ending += topic.lanes
        for lane in topic.lanes:
            lane.changed.set()
        excess = len(self._former) - FORMER_TOPICS_MAX
        if excess > 0 and not self._has_fixed_identity:
            for name in self._ended_topics()[:excess]:
                del self._former[name]
                self.identity = None  # a later lane of the topic would use the numbers again

    def _ended_topics(self) -> list[str]:
        """Return the names of the dropped topics whose lanes have all ended, the topic that was dropped first first."""
        return [name for name, lanes in self._former.items() if all(lane.ended.is_set() for lane in lanes.values())]


def _is_gone(topic: Topic, states: Mapping[str, TopicState]) -> bool:
    """Return whether no topic of this name exists, or only one with another id."""
    state = states.get(topic.name)
    return state is None or state.topic_id != topic.topic_id
