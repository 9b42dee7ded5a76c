"""Metrics of the unavailable partitions, and of the time for which each was unavailable.

Theory of operation.  A partition is `leaderless` (reads and writes fail), or `under_min_isr` (it has a leader, but
writes with acks=all are refused), or neither.  The state follows from the image alone and changes only with records
that name the partition, so the cost of a batch depends only on the partitions in it.  All partitions are examined when
this node has caught up (earlier events are not counted), when a snapshot replaces batches, and when the cluster's
min.insync.replicas changes.  The examination runs in pieces with pauses: a million partitions take about 0.3 s, during
which the loop and the log's writer thread would hardly run, since they share a GIL.  A batch that arrives in between is
examined immediately.  Later pieces use an image that includes it, so examining a partition twice is harmless.

Every node measures by its own clock, but only the active controller reports.  So each partition is reported once, and
after a change of controllers, the new controller reports its own measurements since it started.  A query with
`increase` over such a change returns one result for each of the two instances.

A series for each of 100,000 partitions would be useless.  So only partitions that are unavailable, or have been since
this process started, have a series, and each metric has at most `SERIES_MAX` series.  The partitions that are
unavailable now come first, in the order in which they became unavailable; then come the partitions with the longest
total time.  The counts are exact even if series are omitted.  The series of a deleted partition is deleted as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, cast
from uuid import UUID

from metadata.control.election import min_isr_of
from metadata.controller.replay import MetadataReplay
from metadata.image import ClusterImage, PartitionImage, TopicImage
from metadata.records import (
    NO_LEADER,
    Config,
    ConfigScope,
    Partition,
    PartitionChange,
    Record,
    RemovePartition,
    RemoveTopic,
    RenewTopic,
)
from quorumlog.runtime.metrics import Metrics

LEADERLESS = "leaderless"
UNDER_MIN_ISR = "under_min_isr"
STATES = (LEADERLESS, UNDER_MIN_ISR)
PIECE = 2_000
"""Partitions examined in one piece, in less than a millisecond."""
PAUSE_S = 0.005
SERIES_MAX = 1_000
"""Maximum number of series in each metric.  A partition that was unavailable in both states has two series."""

LABELS = ("topic", "partition", "state")

Key = tuple[str, int]
"""Topic name and index.  A name, not an id, since a topic that continues under another id is the same for people."""
Labels = tuple[str, ...]


class _Down(NamedTuple):
    state: str
    since: float  # loop time


def state_of(partition: PartitionImage, min_isr: int) -> str | None:
    """Return the state, or None if the partition is available.

    min_isr: as configured.  The effective value is at most the number of replicas that no reassignment is adding.
    """
    if partition.leader == NO_LEADER:
        return LEADERLESS
    return UNDER_MIN_ISR if len(partition.isr) < min(min_isr, partition.settled_count) else None


class Availability:
    """The unavailable partitions, as measured by this node.

    is_active: whether this node reports.  is_caught_up: whether the applied metadata is current; called until true.
    """

    def __init__(self, replay: MetadataReplay, is_active: Callable[[], bool], is_caught_up: Callable[[], bool]) -> None:
        self._replay = replay
        self._is_active = is_active
        self._is_caught_up = is_caught_up
        self._following = False
        self._complete = False  # whether all partitions have been examined
        self._left: Iterator[UUID] = iter(())  # topics still to be examined
        self._look_on_soon: asyncio.Handle | None = None
        self._down: dict[Key, _Down] = {}  # in the order in which they became unavailable
        self._past: dict[tuple[str, int, str], float] = {}  # seconds of past periods
        self._counts = dict.fromkeys(STATES, 0)
        replay.subscribe(self._on_batch)

    # Metrics

    def counts(self) -> dict[str, int] | None:
        """Return the number of unavailable partitions by state; None if another node reports."""
        return dict(self._counts) if self._reports() else None

    def unavailable(self) -> dict[Labels, int] | None:
        """Return 1 for unavailable partitions, 0 for partitions that were unavailable; None if another node reports."""
        return {labels: int(is_now) for labels, is_now, _ in self._series()} if self._reports() else None

    def seconds(self) -> dict[Labels, float] | None:
        """Return the total time in seconds for which each partition was unavailable; None if another node reports."""
        return {labels: round(seconds, 3) for labels, _, seconds in self._series()} if self._reports() else None

    def _reports(self) -> bool:
        self._begin(self._replay.image)
        return self._complete and self._is_active()

    def _series(self) -> Iterator[tuple[Labels, bool, float]]:
        now = asyncio.get_running_loop().time()
        shown: set[tuple[str, int, str]] = set()
        for key, down in islice(self._down.items(), SERIES_MAX):
            name = (*key, down.state)
            shown.add(name)
            yield _labels(name), True, self._past.get(name, 0.0) + now - down.since
        for name, seconds in nlargest(SERIES_MAX, self._past.items(), key=itemgetter(1)):
            if len(shown) >= SERIES_MAX:
                return
            if name not in shown:
                shown.add(name)
                yield _labels(name), False, seconds

    # Events

    def _on_batch(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record] | None) -> None:
        if not self._following:
            self._begin(new)
        elif records is None or _cluster_default(old) != _cluster_default(new):
            self._look_through(new)
        elif all(type(record) is PartitionChange for record in records):  # most batches, and all batches of a failover
            self._check(new, cast(Sequence[PartitionChange], records))
        else:
            self._on_other(old, new, records)

    def _begin(self, image: ClusterImage) -> None:
        if not self._following and self._is_caught_up():
            self._following = True
            self._look_through(image)

    def _look_through(self, image: ClusterImage) -> None:
        for name, index in [key for key in self._down if not _is_there(image, key)]:
            self._forget(name, index, index + 1)
        for key in [key for key in self._past if not _is_there(image, key[:2])]:
            del self._past[key]
        self._left = iter(image.topics)
        if self._look_on_soon is not None:
            self._look_on_soon.cancel()
        self._look_on(image)

    def _look_on(self, image: ClusterImage) -> None:
        """Examine one piece of the remaining topics.  Topics deleted meanwhile were handled with their batch."""
        looked = 0
        for topic in filter(None, map(image.topics.get, self._left)):
            self._check_topic(image, topic)
            looked += len(topic.partitions)
            if looked >= PIECE:
                loop = asyncio.get_running_loop()
                self._look_on_soon = loop.call_later(PAUSE_S, lambda: self._look_on(self._replay.image))
                return
        self._look_on_soon = None
        self._complete = True

    def _on_other(self, old: ClusterImage, new: ClusterImage, records: Sequence[Record]) -> None:
        """Examine topics that are created, deleted, reduced or continued under another id, as a whole."""
        named: dict[str, None] = {}
        for record in records:
            topic_id = _topic_of(record)
            topic = None if topic_id is None else new.topics.get(topic_id) or old.topics.get(topic_id)
            if topic is not None:
                named[topic.name] = None
        for name in named:
            before, after = old.topic(name), new.topic(name)
            count = 0 if after is None else len(after.partitions)
            self._forget(name, count, 0 if before is None else len(before.partitions))
            if after is not None:
                self._check_topic(new, after)

    def _forget(self, name: str, start: int, end: int) -> None:
        """Drop deleted partitions of a topic."""
        for index in range(start, end):
            down = self._down.pop((name, index), None)
            if down is not None:
                self._counts[down.state] -= 1
            for state in STATES:
                self._past.pop((name, index, state), None)

    def _check_topic(self, image: ClusterImage, topic: TopicImage) -> None:
        min_isr = min_isr_of(image, topic.topic_id)
        for partition in topic.partitions:
            if partition is not None:
                self._judge((topic.name, partition.index), state_of(partition, min_isr))

    def _check(self, image: ClusterImage, changes: Iterable[PartitionChange]) -> None:
        topic, min_isr = None, 1
        for change in changes:
            if topic is None or topic.topic_id != change.topic_id:
                topic, min_isr = image.topics[change.topic_id], min_isr_of(image, change.topic_id)
            partition = topic.partition(change.index)
            if partition is not None:
                self._judge((topic.name, change.index), state_of(partition, min_isr))

    def _judge(self, key: Key, state: str | None) -> None:
        down = self._down.get(key)
        if down is None:
            if state is None:
                return
        elif down.state == state:
            return
        else:
            self._end(key, down)
        if state is not None:
            self._down[key] = _Down(state, asyncio.get_running_loop().time())
            self._counts[state] += 1

    def _end(self, key: Key, down: _Down) -> None:
        del self._down[key]
        self._counts[down.state] -= 1
        name = (*key, down.state)
        self._past[name] = self._past.get(name, 0.0) + asyncio.get_running_loop().time() - down.since
        if len(self._past) > 2 * SERIES_MAX:
            self._past = dict(nlargest(SERIES_MAX, self._past.items(), key=itemgetter(1)))


def _topic_of(record: Record) -> UUID | None:
    """Return the topic whose availability a record may change."""
    match record:
        case PartitionChange() | Partition() | RemovePartition() | RemoveTopic() | RenewTopic():
            return record.topic_id
        case Config(scope=ConfigScope.TOPIC, resource=resource):
            return UUID(resource)
    return None


def _cluster_default(image: ClusterImage) -> str | None:
    return image.config(ConfigScope.CLUSTER, "").get("min.insync.replicas")


def _is_there(image: ClusterImage, key: Key) -> bool:
    topic = image.topic(key[0])
    return topic is not None and topic.partition(key[1]) is not None


def _labels(name: tuple[str, int, str]) -> Labels:
    return name[0], str(name[1]), name[2]


def register_availability(metrics: Metrics, availability: Availability) -> None:
    """Register the metrics, once per process."""
    metrics.gauges(
        "controller_partitions_unavailable",
        "Partitions without a leader, and partitions that refuse writes with acks=all (under min.insync.replicas).",
        "state",
        availability.counts,
    )
    metrics.gauges(
        "controller_partition_unavailable",
        "Whether a partition is unavailable; only partitions that are, or have been, have a series.",
        LABELS,
        availability.unavailable,
    )
    metrics.counters(
        "controller_partition_unavailable_seconds",
        "How long a partition was unavailable, as far as this process has seen.",
        LABELS,
        availability.seconds,
    )
