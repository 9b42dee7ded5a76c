"""The part that all producers of the plan's topics share: their records, and the end of a producer that fails."""

from __future__ import annotations

from itertools import count
from random import Random

from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError
from simulation.cluster.history import Mark
from simulation.cluster.plan import TopicPlan
from simulation.cluster.world import ClusterWorld

FOREVER_S = 10_000.0
BRIEF_S = 2.0
"""The delivery timeout of a producer that may fail."""
BATCH_RECORDS = 3
TOMBSTONES = 0.15
"""The share of tombstones among the records of a compacted topic."""
LOST = (ApiError.OUT_OF_ORDER_SEQUENCE_NUMBER, ApiError.UNKNOWN_PRODUCER_ID, ApiError.INVALID_PRODUCER_EPOCH)
"""Errors that report the loss of a producer's records."""


def must_never_fail(world: ClusterWorld, topic: TopicPlan) -> bool:
    """Return whether a producer with acks=all must never fail in this run, unless an election loses records."""
    plan = world.plan
    return topic.keeps_all and plan.forgets_producers_s >= FOREVER_S and not plan.rebuilds


def report_failure(world: ClusterWorld, topic: TopicPlan, error: ClusterError, promised: bool) -> None:
    """Count the end of a producer, and check that it was permitted.  promised: the producer must never fail."""
    watch = world.watch
    promised = promised and not watch.answers.has_lost(topic.name)
    watch.check(not promised, lambda: f"I22: a producer of {topic.name} is refused: {error.message}")
    watch.seen["loss reported to a producer" if error.code in LOST else "producer failed"] += 1


def draw_batch(
    world: ClusterWorld, topic: TopicPlan, writer: int, numbers: count[int], random: Random
) -> tuple[tuple[Mark, ...], bytearray]:
    """Return the marks of a few new records, and their sealed batch."""
    marks = tuple([Mark(writer, next(numbers)) for _ in range(random.randint(1, BATCH_RECORDS))])
    return marks, build_batch([_record(world, topic, mark, random) for mark in marks], topic.codec)


def _record(world: ClusterWorld, topic: TopicPlan, mark: Mark, random: Random) -> NewRecord:
    """Return a new record.  A tombstone has its mark in a header."""
    now_ms, compaction = world.wall_ms(), topic.compaction
    if compaction is None:
        return NewRecord(None, mark.value, now_ms, ())
    key = b"key %d" % random.randrange(compaction.keys)
    if random.random() < TOMBSTONES:
        return NewRecord(key, None, now_ms, (("mark", mark.value),))
    return NewRecord(key, mark.value, now_ms, ())
