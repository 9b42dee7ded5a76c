"""The topics to which a consumer subscribes, by name or pattern, and the partitions of a consumer without a group.

A warning about missing topics uses the standard logging module, because the user's program configures its own logging.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from quorumlog.client.cluster import Cluster, TopicState
from quorumlog.client.consumer_reading import Reading
from quorumlog.client.consumer_settings import CALL_TIMEOUT_S
from quorumlog.client.log_offsets import epoch_ends
from quorumlog.client.messages import TopicPartition
from quorumlog.errors import ClusterError
from quorumlog.words import listed

logger = logging.getLogger("quorumlog.client")
EPOCHS_TIMEOUT_S: Final = 10.0
"""Time limit of questions to leaders whether logs were replaced.  After it, the next look asks again."""
CREATION_S: Final = 0.3
"""The pause before a second look for missing topics, in seconds: the brokers may create them meanwhile."""
NAMES_SHOWN_MAX: Final = 10
"""Number of missing topics that a warning names; the others are only counted."""


class Subscription:
    """The topics of a consumer.

    names, pattern: at most one of them is set.  Without either, the subscription is empty, and `states` is not called.
    """

    def __init__(self, cluster: Cluster, names: frozenset[str] | None, pattern: str | None) -> None:
        self._cluster = cluster
        self._names = names
        self._pattern = None if pattern is None else re.compile(pattern)
        self._has_looked = False

    def topics(self, states: Collection[str]) -> frozenset[str]:
        """Return the subscribed topics.  states: those that exist."""
        return frozenset(states) if self._names is None else self._names

    async def states(self, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, TopicState]:
        """Return the state of each subscribed topic that exists.  Raises: ClusterError.

        The first call logs a warning if a topic that is subscribed to by its name does not exist.
        """
        if self._names is not None:
            if self._has_looked:
                return await self._cluster.topic_states(self._names, timeout_s)
            states = await first_states(self._cluster, self._names, timeout_s)
            self._has_looked = True
            return states
        assert self._pattern is not None
        states = await self._cluster.topic_states(None, timeout_s)
        return {
            name: state for name, state in states.items() if not state.is_internal and self._pattern.fullmatch(name)
        }


async def first_states(cluster: Cluster, topics: Collection[str], timeout_s: float) -> dict[str, TopicState]:
    """Return the states of the topics that exist, and log a warning if others are missing.  Raises: ClusterError."""
    states = await cluster.topic_states(topics, timeout_s)
    if len(states) < len(topics):  # the first broker may be behind, or the request made the brokers create the topics
        await asyncio.sleep(CREATION_S)
        cluster.ask_another_broker()
        states |= await cluster.topic_states(topics, timeout_s)
        _warn_of_missing(set(topics) - states.keys())
    return states


def _warn_of_missing(topics: Collection[str]) -> None:
    """Log a warning that names these topics; they do not exist."""
    if not topics:
        return
    shown = sorted(topics)[:NAMES_SHOWN_MAX]
    if len(topics) > len(shown):
        shown.append(f"{len(topics) - len(shown)} more")
    one = f"topic {shown[0]} does not exist; the consumer waits until it is created"
    several = f"topics {listed(shown)} do not exist; the consumer waits until they are created"
    logger.warning("%s: check the spelling", one if len(topics) == 1 else several)


class SubscribedLogs:
    """Notices that logs of the subscribed topics were deleted or replaced.

    The position of a partition has no meaning in a later log of the same name, so the consumer begins anew there.
    """

    def __init__(self, cluster: Cluster, subscription: Subscription, reading: Reading) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._reading = reading
        self._known: dict[str, TopicState] = {}
        self._asked_at = 0.0
        """The loop time at which these states were requested."""
        self._deleted = set[TopicPartition]()
        """Deleted partitions that are still assigned: a group takes a while to revoke them, and they may be created
        again meanwhile."""

    async def found(self, timeout_s: float) -> tuple[frozenset[str], dict[str, int]]:
        """Look as `look` does; return the subscribed topics, and the number of partitions of each that exists.

        Raises: ClusterError.
        """
        asked_at = asyncio.get_running_loop().time()
        states = await self._subscription.states(timeout_s)
        # A leader that does not answer must not hide changed numbers of partitions.  The next look asks it again.
        with suppress(ClusterError):
            states, _ = await self._compare(states, asked_at, timeout_s)
        return self._subscription.topics(states), {name: len(state.leader_epochs) for name, state in states.items()}

    async def look(self, timeout_s: float) -> tuple[dict[str, TopicState], set[TopicPartition]]:
        """Begin anew in the partitions whose logs were replaced.

        Return the state of each topic that exists, and the former partitions that do not exist any more.
        timeout_s: time limit of one request.  Raises: ClusterError: nothing was changed.
        """
        asked_at = asyncio.get_running_loop().time()
        return await self._compare(await self._subscription.states(timeout_s), asked_at, timeout_s)

    async def _compare(
        self, states: dict[str, TopicState], asked_at: float, timeout_s: float
    ) -> tuple[dict[str, TopicState], set[TopicPartition]]:
        """Compare the states of topics, which were requested at `asked_at`, with those of the last look; see `look`."""
        lost = await self._lost(states, timeout_s)
        if lost:  # the first broker may be behind
            self._cluster.ask_another_broker()
            asked_at = asyncio.get_running_loop().time()
            states = await self._subscription.states(timeout_s)
            lost = await self._lost(states, timeout_s)
        lost |= self._deleted
        existing = partitions_of(states)
        self._reading.restart(lost & existing, self._asked_at)
        self._deleted = (lost - existing) & self._reading.positions.keys()
        self._known, self._asked_at = states, asked_at
        return states, lost - existing

    async def _lost(self, states: Mapping[str, TopicState], timeout_s: float) -> set[TopicPartition]:
        """Return the partitions that were known, and that do not exist any more or have another log now."""
        found = set[TopicPartition]()
        for name, before in self._known.items():
            now = states.get(name)
            kept = set[int]() if now is None else before.leader_epochs.keys() & now.leader_epochs.keys()
            if now is not None and None not in (before.topic_id, now.topic_id) and before.topic_id != now.topic_id:
                kept = await self._continued(name, before, now, timeout_s)
            found |= {TopicPartition(name, index) for index in before.leader_epochs.keys() - kept}
        return found

    async def _continued(self, name: str, before: TopicState, now: TopicState, timeout_s: float) -> set[int]:
        """Return the partitions with the same log under another topic id.

        A topic of quorumlog gets another id when its highest-numbered partitions are removed.  The others keep their
        logs, and their leader epochs until the next election.  A partition that is created again has a later epoch, as
        after an election.  So a partition continues if its epoch, or that of a higher-numbered one, is the same.  If
        it has a later epoch, its leader is asked for the records of the former one, which a new log does not have.  In
        Apache Kafka, another id means that the whole topic was created again.
        """
        if not await self._cluster.is_of_quorumlog(timeout_s):
            return set()
        same = [index for index, epoch in before.leader_epochs.items() if now.leader_epochs.get(index) == epoch]
        kept = max(same, default=-1) + 1
        wanted = {
            (name, index): (epoch, now.leader_epochs[index])
            for index, epoch in before.leader_epochs.items()
            if index >= kept and index in now.leader_epochs
        }
        for (_, index), end in (await epoch_ends(self._cluster, wanted, min(timeout_s, EPOCHS_TIMEOUT_S))).items():
            if isinstance(end, ClusterError):
                raise end
            if end > 0:
                kept = max(kept, index + 1)
        return set(range(kept))


class AllPartitions:
    """Lets a consumer without a group read all partitions of its topics."""

    def __init__(self, logs: SubscribedLogs, reading: Reading) -> None:
        self._logs = logs
        self._reading = reading

    async def look(self, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Read new partitions, stop reading deleted ones, and begin anew in those that were created again.

        timeout_s: time limit of one request.  Raises: ClusterError: nothing was changed.
        """
        states, deleted = await self._logs.look(timeout_s)
        self._reading.remove(deleted)
        self._reading.add(partitions_of(states))


def partitions_of(states: Mapping[str, TopicState]) -> set[TopicPartition]:
    return {TopicPartition(name, index) for name, state in states.items() for index in state.leader_epochs}
