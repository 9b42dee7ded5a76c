"""The topics to which a consumer subscribes, by name or by pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer_settings import CALL_TIMEOUT_S


class Subscription:
    """The topics of a consumer.

    names, pattern: at most one of them is set.  Without either, the subscription is empty, and `found` is not called.
    """

    def __init__(self, cluster: Cluster, names: frozenset[str] | None, pattern: str | None) -> None:
        self._cluster = cluster
        self._names = names
        self._pattern = None if pattern is None else re.compile(pattern)

    async def found(self, timeout_s: float = CALL_TIMEOUT_S) -> tuple[frozenset[str], dict[str, int]]:
        """Return the subscribed topics, and the number of partitions of each that exists.  Raises: ClusterError."""
        if self._names is not None:
            return self._names, await self._cluster.partition_counts(self._names, timeout_s)
        assert self._pattern is not None
        states = await self._cluster.topic_states(None, timeout_s)
        counts = {
            name: len(state.leader_epochs)
            for name, state in states.items()
            if not state.is_internal and self._pattern.fullmatch(name)
        }
        return frozenset(counts), counts

    async def partition_counts(self, timeout_s: float = CALL_TIMEOUT_S) -> Mapping[str, int]:
        """Return the number of partitions of each topic that exists.  Raises: ClusterError."""
        _, counts = await self.found(timeout_s)
        return counts
