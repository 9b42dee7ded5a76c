"""Committed offsets of groups: converts OffsetCommit, OffsetFetch and OffsetDelete.

A refusal by a coordinator (`KafkaCode`) becomes the error of each group.  In responses without such an error
(OffsetCommit, old versions of OffsetFetch), it becomes the error of each partition.  The answer about a group may be
far larger than the group's name.  So an OffsetFetch that repeats a group gets INVALID_REQUEST once, in the place of the
group's first occurrence.  If it repeats a partition of one group, the partition is answered once.

Requests name topics by name, or by id from version 10 of OffsetCommit and OffsetFetch on.  Coordinators know topics by
name.  They also receive the topic id of the request, because the topic may be deleted and created again before they
apply the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from broker.core.coordinator.group_requests import (
    FetchedGroup,
    FetchedOffset,
    GroupToFetch,
    OffsetCommit,
    OffsetDelete,
    OffsetDeleteResponse,
    OffsetFetch,
    OffsetToCommit,
    PartitionResult,
    TopicPartitions,
)
from broker.kafka.connection import Pending, Reply
from broker.kafka.coordinated import DecodedRequest, Split, Values
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import milliseconds

_FIRST_COMMIT_WITH_EPOCHS: Final = 9
_FIRST_FETCH_WITH_ERROR: Final = 2
_FIRST_FETCH_WITH_GROUPS: Final = 8
_FIRST_WITH_TOPIC_ID: Final = 10


def _named(asked: DecodedRequest, topic: Any) -> str | None:
    """Return the name of a topic in a request; None if the request has an unknown topic id."""
    name: str | None = asked.topic_name(topic.topic_id) if asked.version >= _FIRST_WITH_TOPIC_ID else topic.name
    return name


def _topic_values(topic: Any, partitions: list[Values]) -> Values:
    """Return a topic of a response, named as in the request."""
    which = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}
    return {**which, "partitions": partitions}


def offset_commit(asked: DecodedRequest) -> Pending:
    request = asked.request
    names = [_named(asked, topic) for topic in request.topics]
    offsets = tuple(
        [
            OffsetToCommit(
                name,
                each.partition_index,
                each.committed_offset,
                getattr(each, "committed_leader_epoch", -1),
                each.committed_metadata or "",
                getattr(topic, "topic_id", None),
            )
            for topic, name in zip(request.topics, names, strict=True)
            if name is not None
            for each in topic.partitions
        ]
    )
    commit = OffsetCommit(
        group=request.group_id,
        member_id=request.member_id,
        instance_id=asked.field("group_instance_id"),
        generation=request.generation_id_or_member_epoch,
        offsets=offsets,
        retention_ms=milliseconds(asked.field("retention_time")),
        knows_epochs=asked.version >= _FIRST_COMMIT_WITH_EPOCHS,
    )

    def values(found: Any) -> Values:
        errors = iter(
            [found] * len(offsets) if isinstance(found, KafkaCode) else [each.error for each in found.results]
        )
        topics = []
        for topic, name in zip(request.topics, names, strict=True):
            partitions = [
                {
                    "partition_index": each.partition_index,
                    "error_code": KafkaCode.UNKNOWN_TOPIC_ID if name is None else next(errors),
                }
                for each in topic.partitions
            ]
            topics.append(_topic_values(topic, partitions))
        return {"topics": topics}

    return asked.one(commit, commit.group, values)


class _TopicToFetch(NamedTuple):
    """A topic that a group of an OffsetFetch names.  name: None if its id is unknown."""

    topic: Any
    name: str | None
    partitions: tuple[int, ...]


class _FetchedTopics(NamedTuple):
    """The topics that a group of an OffsetFetch names; None: all topics."""

    group: GroupToFetch
    topics: tuple[_TopicToFetch, ...] | None


def offset_fetch(asked: DecodedRequest) -> Pending:
    request = asked.request
    has_groups = asked.version >= _FIRST_FETCH_WITH_GROUPS
    asked_groups = request.groups if has_groups else (request,)
    named = Counter(each.group_id for each in asked_groups)
    # A frame has room for hundreds of thousands of repetitions, and each might read all offsets of a large group.
    # Two occurrences may name different topics or members, so no single answer would be right for both.
    first = {each.group_id: each for each in reversed(asked_groups)}
    wanted = {name: _to_fetch(asked, first[name]) for name in named if named[name] == 1}
    require_stable = asked.field("require_stable", False)
    split = Split(
        asked,
        [each.group for each in wanted.values()],
        lambda group: group.group,
        lambda groups: OffsetFetch(groups, require_stable),
    )

    def finish() -> Reply:
        answers: list[FetchedGroup] = split.answers(lambda group, code: FetchedGroup(group.group, code))
        found = dict(zip(wanted, answers, strict=True))
        groups = [
            _fetched(asked, wanted[name], found[name])
            if name in wanted
            else {"group_id": name, "error_code": KafkaCode.INVALID_REQUEST, "topics": []}
            for name in named
        ]
        return asked.reply({"groups": groups} if has_groups else groups[0])

    return Pending(split.futures, finish, is_owned=True)


def _to_fetch(asked: DecodedRequest, group: Any) -> _FetchedTopics:
    """Return the partitions that an OffsetFetch names for a group, each once."""
    topics, partitions = None, None
    if group.topics is not None:
        by_topic: dict[Any, tuple[Any, dict[int, None]]] = {}
        for topic in group.topics:
            key = topic.topic_id if asked.version >= _FIRST_WITH_TOPIC_ID else topic.name
            by_topic.setdefault(key, (topic, {}))[1].update(dict.fromkeys(topic.partition_indexes))
        topics = tuple(
            [_TopicToFetch(topic, _named(asked, topic), tuple(indexes)) for topic, indexes in by_topic.values()]
        )
        partitions = tuple(
            [
                TopicPartitions(each.name, each.partitions, getattr(each.topic, "topic_id", None))
                for each in topics
                if each.name is not None
            ]
        )
    member_id, member_epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    return _FetchedTopics(GroupToFetch(group.group_id, partitions, member_id, member_epoch), topics)


def _fetched(asked: DecodedRequest, wanted: _FetchedTopics, found: FetchedGroup) -> Values:
    values: Values = {"group_id": wanted.group.group, "error_code": found.error}
    if wanted.topics is None:
        return {**values, "topics": _all_fetched(asked, found.offsets)}
    if found.error is not KafkaCode.NONE and asked.version >= _FIRST_FETCH_WITH_ERROR:
        return {**values, "topics": []}
    offsets = iter(found.offsets)
    topics = []
    for topic, name, indexes in wanted.topics:
        partitions = []
        for index in indexes:
            if name is None:
                offset = FetchedOffset("", index, error=KafkaCode.UNKNOWN_TOPIC_ID)
            elif found.error is not KafkaCode.NONE:
                offset = FetchedOffset(name, index, error=found.error)
            else:
                offset = next(offsets)
            partitions.append(_offset_values(offset))
        topics.append(_topic_values(topic, partitions))
    return {**values, "topics": topics}


def _all_fetched(asked: DecodedRequest, offsets: Sequence[FetchedOffset]) -> list[Values]:
    """Return all offsets of a group by topic.  If the reply names topics by id, deleted topics are omitted."""
    by_topic: dict[str, list[Values]] = {}
    for offset in offsets:
        by_topic.setdefault(offset.topic, []).append(_offset_values(offset))
    if asked.version < _FIRST_WITH_TOPIC_ID:
        return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
    ids = {name: asked.topic_id(name) for name in by_topic}
    return [
        {"topic_id": ids[name], "partitions": partitions}
        for name, partitions in by_topic.items()
        if ids[name] is not None
    ]


def _offset_values(offset: FetchedOffset) -> Values:
    return {
        "partition_index": offset.partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": offset.error,
    }


def offset_delete(asked: DecodedRequest) -> Pending:
    request = asked.request
    topics = tuple(
        [
            TopicPartitions(topic.name, tuple([each.partition_index for each in topic.partitions]))
            for topic in request.topics
        ]
    )

    def values(found: OffsetDeleteResponse | KafkaCode) -> Values:
        error = found if isinstance(found, KafkaCode) else found.error
        if isinstance(found, KafkaCode) or error is not KafkaCode.NONE:
            return {"error_code": error, "topics": []}
        results = iter(found.results)
        deleted = [
            {"name": topic.topic, "partitions": [_deleted(next(results)) for _ in topic.partitions]} for topic in topics
        ]
        return {"error_code": 0, "topics": deleted}

    return asked.one(OffsetDelete(request.group_id, topics), request.group_id, values)


def _deleted(result: PartitionResult) -> Values:
    return {"partition_index": result.partition, "error_code": result.error}
