"""Answers the questions of coordinators about topics, from the newest metadata of this broker."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import re2

from broker.core.coordinator.consumer.requests import Topic
from broker.replica.cluster_view import ClusterView
from metadata.image.internal_topics import is_internal

REGEXES_MAX: Final = 1_000
"""Maximum number of regular expressions whose topics are cached.  The least recently used one is dropped first."""

REGEX_MEMORY_MAX_BYTES: Final = 1 << 20
"""Maximum memory of one compiled regular expression, in bytes.  An expression that needs more is refused as invalid."""


class _Matched(NamedTuple):
    """The result for one regular expression.

    pattern: None if the expression is invalid.  version: the version of the topics that were matched.
    """

    pattern: Any
    version: int
    topics: Sequence[str] | None


class ImageTopics:
    """The `Topics` of the machines.  It uses the newest metadata, so that no offset of a deleted topic is committed.

    A coordinator deletes the offsets of partitions that its newest image lacks.  So a commit must not depend on
    metadata that the next coordinator may not have yet.  Therefore `may_commit` requires that the partition also exists
    in the metadata that this broker has applied.  The next leader is elected by a later metadata change, which this
    broker has not applied while it leads.  So the next leader has applied everything that this broker has applied.

    Regular expressions use RE2's syntax, as in Kafka.  Matching takes time linear in the text, so that no client can
    block a broker.
    """

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._version = 0
        self._matched: OrderedDict[str, _Matched] = OrderedDict()
        self._options = re2.Options()
        self._options.max_mem = REGEX_MEMORY_MAX_BYTES
        self._options.log_errors = False

    def has_partition(self, topic: str, partition: int) -> bool:
        return self._cluster.partition(topic, partition) is not None

    def may_commit(self, topic: str, partition: int) -> bool:
        applied = self._cluster.applied.topic(topic)
        is_applied = applied is not None and applied.partition(partition) is not None
        # The newest image may have another topic of this name.  A later coordinator may not know that topic yet.
        is_same = applied is not None and applied.origin == self.origin(topic)
        return is_applied and is_same and self.has_partition(topic, partition)

    def origin(self, topic: str) -> UUID | None:
        found = self._cluster.newest.topic(topic)
        return None if found is None else found.origin

    # -- `SubscribedTopics`

    @property
    def version(self) -> int:
        return self._version

    def changed(self) -> None:
        """Note that topics or their partitions have changed."""
        self._version += 1

    def topic(self, name: str) -> Topic | None:
        found = self._cluster.newest.topic(name)
        return None if found is None else Topic(found.topic_id, len(found.partitions))

    def topic_name(self, topic_id: UUID) -> str | None:
        found = self._cluster.newest.topics.get(topic_id)
        return None if found is None else found.name

    def matching(self, regex: str) -> Sequence[str] | None:
        known = self._matched.get(regex)
        if known is None or known.version != self._version:
            pattern = self._compiled(regex) if known is None else known.pattern
            known = self._matched[regex] = _Matched(pattern, self._version, self._matching(pattern))
            if len(self._matched) > REGEXES_MAX:
                self._matched.popitem(last=False)
        self._matched.move_to_end(regex)
        return known.topics

    def _compiled(self, regex: str) -> Any:
        try:
            return re2.compile(regex, self._options)
        except re2.error:
            return None

    def _matching(self, pattern: Any) -> Sequence[str] | None:
        if pattern is None:
            return None
        names = self._cluster.newest.topic_ids
        return sorted(name for name in names if not is_internal(name) and pattern.fullmatch(name) is not None)
