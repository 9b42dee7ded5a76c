"""Adding partitions to a topic, and removing them.

New partitions are added at the end.  Removal deletes the highest-numbered partitions with all their records, because
the partitioners of clients expect the numbers 0 to n-1 without a gap.  The topic then gets a new id, because a client
that knows the topic's id does not accept a smaller number of partitions; to the client, the old topic is deleted.  The
remaining partitions keep their identity (`created`), leaders and epochs.  If partitions are added again later, their
leader epochs continue, since clients ignore lower epochs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from uuid import UUID

import msgspec

from metadata.control.decision import Decision
from metadata.control.errors import OK, Outcome, no_topic
from metadata.control.placement import Placer
from metadata.control.topics import REPLICAS_PER_REQUEST_MAX, check_rows, fresh_id, internal_refusal, new_partitions
from metadata.image import ClusterImage, TopicImage, is_internal
from metadata.records import RECORDS_PER_BATCH_MAX, Record, RemovePartition, RenewTopic
from quorumlog.wire.errors import ApiError

PARTITIONS_MAX = 1_000_000
"""Maximum number of partitions that a topic may have after the change."""


class NewPartitions(msgspec.Struct, frozen=True):
    """count: the new number of partitions.  assignment: brokers of each new partition, the leader first; empty:
    the controller chooses them."""

    topic: str
    count: int
    assignment: tuple[tuple[int, ...], ...] = ()


class Resized(msgspec.Struct, frozen=True):
    """The topic after the change.  changed: False for a refusal, a dry run, or a topic that already had this number."""

    topic: str
    outcome: Outcome
    topic_id: UUID | None = None
    partitions: int = 0
    changed: bool = False


# Adding


def add_partitions(
    image: ClusterImage, wanted: Sequence[NewPartitions], *, validate_only: bool = False
) -> Decision[tuple[Resized, ...]]:
    """Decide which partitions are added, each topic independently; all permitted additions are one batch."""
    counts = Counter(each.topic for each in wanted)
    placer = Placer(image)
    refusals = [_refuse_more(image, each, counts[each.topic], placer.broker_count) for each in wanted]
    more = [
        (each, each.count - _size(image, each.topic))
        for each, refusal in zip(wanted, refusals, strict=True)
        if refusal is None
    ]
    records_made = sum(number for _, number in more)
    replicas_made = sum(number * _factor(image, each.topic) for each, number in more)
    problem = None
    if records_made > RECORDS_PER_BATCH_MAX:
        problem = f"the request adds {records_made} partitions; one batch can hold at most {RECORDS_PER_BATCH_MAX}"
    elif replicas_made > REPLICAS_PER_REQUEST_MAX:
        problem = f"the request adds {replicas_made} replicas; one request can add at most {REPLICAS_PER_REQUEST_MAX}"
    records: list[Record] = []
    answers: list[Resized] = []
    for each, refusal in zip(wanted, refusals, strict=True):
        if refusal is None and problem is not None:
            refusal = Outcome(ApiError.POLICY_VIOLATION, problem, "add fewer at a time")
        if refusal is not None:
            answers.append(_as_it_is(image, each.topic, refusal))
            continue
        topic = image.topic(each.topic)
        assert topic is not None, f"topic {each.topic} existed a moment ago"
        added = _added(image, topic, each, placer)
        records += added
        answers.append(Resized(topic.name, OK, topic.topic_id, each.count, bool(added) and not validate_only))
    return Decision(tuple(answers), () if validate_only else tuple(records))


def _refuse_more(image: ClusterImage, wanted: NewPartitions, times: int, brokers: int) -> Outcome | None:
    """brokers: the number of brokers that accept replicas."""
    topic = image.topic(wanted.topic)
    if times > 1:
        return Outcome(ApiError.INVALID_REQUEST, f"topic {wanted.topic[:60]!a} is named {times} times in one request")
    if topic is None:
        return no_topic(wanted.topic)
    now, number = len(topic.partitions), wanted.count - len(topic.partitions)
    if wanted.count < 1 or wanted.count > PARTITIONS_MAX:
        return Outcome(
            ApiError.INVALID_PARTITIONS, f"{wanted.count} partitions: the number must be 1 to {PARTITIONS_MAX}"
        )
    if number < 0:
        text = f"topic {topic.name} has {now} partitions, more than {wanted.count}"
        return Outcome(
            ApiError.INVALID_PARTITIONS, text, f"kctl topics remove-partitions {topic.name} --to {wanted.count}"
        )
    if number == 0 and _is_so(topic, wanted.assignment):
        return None
    if is_internal(topic.name):
        return internal_refusal(topic.name, "its number of partitions cannot change")
    if wanted.assignment and len(wanted.assignment) != number:
        text = f"topic {topic.name} has {now} partitions: {number} more are needed for {wanted.count}"
        return Outcome(ApiError.INVALID_REPLICA_ASSIGNMENT, f"{text}; the assignment has {len(wanted.assignment)}")
    factor = _factor(image, topic.name)
    if wanted.assignment:
        return check_rows(image, wanted.assignment, now, factor)
    if number and factor > brokers:
        text = f"replication factor {factor}; unfenced brokers that accept replicas: {brokers}"
        return Outcome(ApiError.INVALID_REPLICATION_FACTOR, text, "start more brokers, or give an assignment")
    return None


def _is_so(topic: TopicImage, assignment: Sequence[tuple[int, ...]]) -> bool:
    """Return whether the request was already applied: the last partitions are on these brokers."""
    last = topic.partitions[len(topic.partitions) - len(assignment) :]
    return len(last) == len(assignment) and all(
        partition is not None and partition.replica_ids == row for partition, row in zip(last, assignment, strict=True)
    )


def _added(image: ClusterImage, topic: TopicImage, wanted: NewPartitions, placer: Placer) -> list[Record]:
    first = len(topic.partitions)
    if wanted.count == first:
        return []
    rows: Sequence[tuple[int, ...]] = wanted.assignment
    if not rows:
        present = [partition.replica_ids for partition in topic.partitions if partition is not None]
        rows = placer.place(wanted.count - first, _factor(image, topic.name), present)
    return new_partitions(image, topic.name, topic.topic_id, first, rows)


def _size(image: ClusterImage, name: str) -> int:
    topic = image.topic(name)
    return 0 if topic is None else len(topic.partitions)


def _factor(image: ClusterImage, name: str) -> int:
    """Return the replication factor: the number of replicas of partition 0, after any reassignment in progress."""
    topic = image.topic(name)
    first = None if topic is None else topic.partition(0)
    assert first is not None, f"topic {name} has no partition"
    return len(first.replicas) - len(first.removing)


# Removing


def remove_partitions(
    image: ClusterImage, name: str, count: int, new_id: Callable[[], UUID], *, validate_only: bool = False
) -> Decision[Resized]:
    """Decide to remove all but the first `count` partitions of a topic.  new_id: returns a random uuid."""
    topic = image.topic(name)
    if topic is None:
        return Decision(_as_it_is(image, name, no_topic(name)))
    refusal = _refuse_fewer(topic, count)
    if refusal is not None:
        return Decision(_as_it_is(image, name, refusal))
    now = len(topic.partitions)
    if count == now:
        return Decision(Resized(name, OK, topic.topic_id, now))
    renewed = fresh_id(image, new_id)
    records: list[Record] = [RemovePartition(topic.topic_id, index) for index in range(now - 1, count - 1, -1)]
    records.append(RenewTopic(topic.topic_id, renewed))
    if validate_only:
        return Decision(Resized(name, OK, topic.topic_id, count))
    return Decision(Resized(name, OK, renewed, count, changed=True), tuple(records))


def _refuse_fewer(topic: TopicImage, count: int) -> Outcome | None:
    now = len(topic.partitions)
    if count == now:
        return None  # the request is already satisfied
    if is_internal(topic.name):
        return internal_refusal(topic.name, "its number of partitions cannot change")
    if count < 1:
        text = f"{count} partitions: at least 1 must remain"
        return Outcome(ApiError.INVALID_PARTITIONS, text, f"kctl topics delete {topic.name}, to delete all of them")
    if count > now:
        text = f"topic {topic.name} has {now} partitions, fewer than {count}"
        return Outcome(ApiError.INVALID_PARTITIONS, text, f"kctl topics add-partitions {topic.name} --to {count}")
    if now - count >= RECORDS_PER_BATCH_MAX:
        text = f"{now - count} partitions: one request can remove at most {RECORDS_PER_BATCH_MAX - 1}"
        return Outcome(ApiError.POLICY_VIOLATION, text, f"first --to {now - RECORDS_PER_BATCH_MAX + 1}")
    moving = [each.index for each in topic.partitions[count:] if each is not None and each.reassigning]
    if moving:
        text = f"{topic.name}-{moving[0]} is being reassigned"
        return Outcome(ApiError.REASSIGNMENT_IN_PROGRESS, text, "wait until it ends, or: kctl reassign cancel")
    return None


def _as_it_is(image: ClusterImage, name: str, outcome: Outcome) -> Resized:
    topic = image.topic(name)
    return Resized(name, outcome, None if topic is None else topic.topic_id, _size(image, name))
