"""Requests about committed offsets: OffsetCommit, OffsetFetch and OffsetDelete.

A simple consumer commits without being a member.  Its group exists as long as it has offsets, and needs no `Group`.

**Topics that are created again.**  The key of an offset contains only the name of the topic, so its value contains the
topic's id, as in Kafka 4.1.  An offset with the id of an earlier topic of the same name counts as missing at once, and
the `Sweeper` deletes it later.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from broker.core.coordinator.consumer import offset_errors
from broker.core.coordinator.consumer.group import ConsumerGroup
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import (
    NO_RETENTION,
    FetchedGroup,
    FetchedOffset,
    GroupState,
    GroupToFetch,
    OffsetCommit,
    OffsetCommitResponse,
    OffsetDelete,
    OffsetDeleteResponse,
    OffsetToCommit,
    PartitionResult,
    TopicPartitions,
    Topics,
)
from broker.core.coordinator.group_step import GroupStep
from broker.core.coordinator.offsets import Offsets, key_of, place_of
from broker.core.coordinator.records import NO_TIME, OffsetValue, offset_rest, write_offset
from broker.core.coordinator.subscription import CONSUMER
from broker.core.transactions import ProducerKey
from quorumlog.wire.errors import KafkaCode

_TIME_MAX_MS = 2**63 - 1


def commit_error(
    group: Group | ConsumerGroup | None, request: OffsetCommit, exists: bool, *, is_transactional: bool
) -> KafkaCode:
    """Return the error if a client may not commit for a group, else NONE.

    exists: the group has a `Group`, or committed or pending offsets.
    is_transactional: a producer commits in a transaction.  Such a commit is permitted during a rebalance, as in Kafka:
    a producer cannot continue after REBALANCE_IN_PROGRESS, and the named member has the new generation already.
    """
    if group is None and not exists:
        # An unknown group has no members, so a generation in the request must be old.
        if request.generation < 0:
            return KafkaCode.NONE
        return KafkaCode.GROUP_ID_NOT_FOUND if request.knows_epochs else KafkaCode.ILLEGAL_GENERATION
    if isinstance(group, ConsumerGroup):
        return offset_errors.commit_error(group, request, is_transactional=is_transactional)
    if group is not None and group.state is GroupState.DEAD:
        return KafkaCode.COORDINATOR_NOT_AVAILABLE
    if group is None or group.state is GroupState.EMPTY:
        return KafkaCode.UNKNOWN_MEMBER_ID if request.generation >= 0 else KafkaCode.NONE
    error = group.member_error(request.member_id, request.instance_id)
    if error is KafkaCode.NONE and request.generation != group.generation:
        error = KafkaCode.ILLEGAL_GENERATION
    if error is KafkaCode.NONE and group.state is GroupState.COMPLETING_REBALANCE and not is_transactional:
        error = KafkaCode.REBALANCE_IN_PROGRESS
    return error


def commit(
    step: GroupStep,
    call: int,
    request: OffsetCommit,
    offsets: Offsets,
    topics: Topics,
    producer: ProducerKey | None = None,
) -> None:
    """Commit offsets, after `commit_error` has returned NONE.  A refused offset does not affect the others.

    If the offsets exceed a limit together, all of them are refused.
    producer: the producer in whose transaction they are committed; None outside a transaction.
    """
    keeps_default = request.retention_ms <= NO_RETENTION
    expire_ms = NO_TIME if keeps_default else min(step.wall_ms + request.retention_ms, _TIME_MAX_MS)
    errors = [_offset_error(step, each, topics) for each in request.offsets]
    origins = {topic: topics.origin(topic) for topic in {each.topic for each in request.offsets}}
    records = []
    size_bytes = 0
    added: set[bytes] = set()
    for each, error in zip(request.offsets, errors, strict=True):
        if error is not KafkaCode.NONE:
            continue
        place = offset_rest(each.topic, each.partition)
        value = OffsetValue(each.offset, each.leader_epoch, each.metadata, step.wall_ms, expire_ms, origins[each.topic])
        records.append((key_of(request.group, place), write_offset(value)))
        size_bytes += len(records[-1][0]) + len(records[-1][1])
        if not offsets.has(request.group, place):
            added.add(place)
    refusal = KafkaCode.NONE
    if size_bytes > step.limits.batch_max_bytes:
        refusal = KafkaCode.INVALID_COMMIT_OFFSET_SIZE
    elif added and not _has_room(step, request.group, len(added), offsets):
        refusal = KafkaCode.POLICY_VIOLATION
    if refusal is KafkaCode.NONE:
        for key, record in records:
            step.append(key, record, producer)
    else:
        errors = [refusal if error is KafkaCode.NONE else error for error in errors]
    step.answer(call, commit_response(request, errors))


def _has_room(step: GroupStep, group: str, added: int, offsets: Offsets) -> bool:
    is_new = not offsets.has_group(group)
    return offsets.count + added <= step.limits.offsets_max and offsets.group_count + is_new <= step.limits.groups_max


def _offset_error(step: GroupStep, offset: OffsetToCommit, topics: Topics) -> KafkaCode:
    has_place = place_of(offset.topic, offset.partition) is not None
    if _is_other_topic(offset.topic, offset.topic_id, topics):
        return KafkaCode.UNKNOWN_TOPIC_ID
    if not has_place or not topics.may_commit(offset.topic, offset.partition):
        return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(offset.metadata.encode()) > step.limits.offset_metadata_max_bytes:
        return KafkaCode.OFFSET_METADATA_TOO_LARGE
    return KafkaCode.OFFSET_OUT_OF_RANGE if offset.offset < 0 else KafkaCode.NONE


def _is_other_topic(name: str, topic_id: UUID | None, topics: Topics) -> bool:
    """Return whether a client named a topic by its id, and no topic of this name has this id any more."""
    topic = topics.topic(name) if topic_id is not None else None
    return topic_id is not None and (topic is None or topic.topic_id != topic_id)


def commit_response(request: OffsetCommit, errors: list[KafkaCode]) -> OffsetCommitResponse:
    """Return the response with one error for each offset of the request."""
    pairs = zip(request.offsets, errors, strict=True)
    return OffsetCommitResponse(tuple(PartitionResult(each.topic, each.partition, error) for each, error in pairs))


def fetch(
    group: Group | ConsumerGroup | None,
    request: GroupToFetch,
    offsets: Offsets,
    topics: Topics,
    unstable: frozenset[bytes] = frozenset(),
) -> FetchedGroup:
    """Return the committed offsets of a group.  A group that does not exist has none.

    unstable: the places for which an open transaction has offsets.  They get UNSTABLE_OFFSET_COMMIT.
    """
    if group is not None and group.state is GroupState.DEAD:
        # Some offsets of a Dead group are already deleted.  When the client asks again, it gets all offsets or none.
        return FetchedGroup(request.group, KafkaCode.COORDINATOR_LOAD_IN_PROGRESS)
    if isinstance(group, ConsumerGroup):
        error = offset_errors.fetch_error(group, request)
        if error is not KafkaCode.NONE:
            return FetchedGroup(request.group, error)
    found: list[FetchedOffset] = []
    if request.topics is None:
        origins: dict[str, UUID | None] = {}
        for topic, partition, value in offsets.all_of(request.group):
            if topic not in origins:
                origins[topic] = topics.origin(topic)
            if not _is_stale(value, origins[topic]):
                found.append(_fetched(topic, partition, value, unstable))
    for each in request.topics or ():
        if _is_other_topic(each.topic, each.topic_id, topics):
            unknown = KafkaCode.UNKNOWN_TOPIC_ID
            found += [FetchedOffset(each.topic, partition, error=unknown) for partition in each.partitions]
            continue
        origin = topics.origin(each.topic)
        for partition in each.partitions:
            stored = offsets.value(request.group, each.topic, partition)
            value_now = None if stored is None or _is_stale(stored, origin) else stored
            found.append(_fetched(each.topic, partition, value_now, unstable))
    return FetchedGroup(request.group, KafkaCode.NONE, tuple(found))


def _is_stale(value: OffsetValue, origin: UUID | None) -> bool:
    """Return whether an offset was committed for an earlier topic of the same name."""
    return origin is not None and value.topic_id not in (None, origin)


def _fetched(topic: str, partition: int, value: OffsetValue | None, unstable: frozenset[bytes]) -> FetchedOffset:
    if unstable and place_of(topic, partition) in unstable:
        return FetchedOffset(topic, partition, error=KafkaCode.UNSTABLE_OFFSET_COMMIT)
    if value is None:
        return FetchedOffset(topic, partition)
    return FetchedOffset(topic, partition, value.offset, value.leader_epoch, value.metadata)


def partitions_of(topics: tuple[TopicPartitions, ...]) -> Iterator[tuple[str, int]]:
    """Return each topic with each of its partitions."""
    return ((each.topic, partition) for each in topics for partition in each.partitions)


def delete(
    step: GroupStep,
    group: Group | ConsumerGroup | None,
    call: int,
    request: OffsetDelete,
    offsets: Offsets,
    topics: Topics,
) -> None:
    """Apply an OffsetDelete to a group that exists.

    Offsets of topics to which a member is subscribed are refused, and not deleted.
    """
    if group is not None and group.state is GroupState.DEAD:
        step.answer(call, OffsetDeleteResponse(KafkaCode.GROUP_ID_NOT_FOUND))
        return
    if group is not None and group.members and group.protocol_type != CONSUMER:
        step.answer(call, OffsetDeleteResponse(KafkaCode.NON_EMPTY_GROUP))
        return
    subscribed = frozenset() if group is None else group.subscribed_topics()
    results = []
    keys: dict[bytes, None] = {}
    for topic, partition in partitions_of(request.topics):
        place = place_of(topic, partition)
        error = KafkaCode.NONE
        if subscribed is None or topic in subscribed:
            error = KafkaCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif place is not None and offsets.has(request.group, place):
            keys[key_of(request.group, place)] = None
        elif not topics.has_partition(topic, partition):
            error = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        results.append(PartitionResult(topic, partition, error))
    if sum(map(len, keys)) > step.limits.batch_max_bytes:
        step.answer(call, OffsetDeleteResponse(KafkaCode.INVALID_REQUEST))
        return
    for key in keys:
        step.append(key, None)
    step.answer(call, OffsetDeleteResponse(KafkaCode.NONE, tuple(results)))
