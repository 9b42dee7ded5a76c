"""Offsets of share groups (KIP-932), for administrators: the starts of share partitions, and their lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from broker.core.coordinator.consumer.requests import NamedPartitions
from broker.core.coordinator.share.requests import ListShareStatesResponse
from broker.core.coordinator.share.states import NO_EPOCH, NO_START, StateResponse
from broker.core.fetch_session import PartitionKey
from broker.kafka.connection import Reply
from broker.kafka.coordinated import DecodedRequest, Values, side_by_side
from quorumlog.wire.errors import KafkaCode

_FIRST_WITH_LAG: Final = 1
_UNKNOWN_LAG: Final = -1
_GroupStates = tuple[ListShareStatesResponse, list[tuple[NamedPartitions, list[StateResponse]]], list[Values]]
"""The states of a group, and the answers about requested topics that do not exist."""
_REPEATED: Final[_GroupStates] = (
    ListShareStatesResponse(KafkaCode.INVALID_REQUEST, "The request names the group repeatedly."),
    [],
    [],
)


def _named(asked: DecodedRequest, topic: str, indexes: Iterable[int]) -> NamedPartitions | None:
    topic_id = asked.topic_id(topic)
    return None if topic_id is None else NamedPartitions(topic_id, topic, tuple(dict.fromkeys(indexes)))


async def describe_offsets(asked: DecodedRequest) -> Reply:
    """Answer with the start of each share partition, and with its lag if the leader of the partition answers.

    Starts are read before log ends.  In the reverse order, a group could seem to be ahead of the log.  A group that the
    request repeats is refused, in the place of its first occurrence: each answer may be far larger than the group's
    name, and no single answer would be right for all occurrences.
    """
    named = Counter(group.group_id for group in asked.request.groups)
    first = {group.group_id: group for group in reversed(asked.request.groups)}
    wanted = [first[name] for name in named]

    async def states(group: Any) -> _GroupStates:
        return _REPEATED if named[group.group_id] > 1 else await _group_states(asked, group)

    found = await side_by_side(states, wanted)
    ends: dict[PartitionKey, int] = {}
    if asked.version >= _FIRST_WITH_LAG:
        places = [place for _, topics, _ in found for topic, states in topics for place in _places(topic, states)]
        ends = await asked.shares.log_ends([key for key, response in places if _has_start(response)])
    groups = []
    for group, (listed, topics, unknown) in zip(wanted, found, strict=True):
        values: Values = {"group_id": group.group_id, "error_code": listed.error, "error_message": listed.message}
        described = [_described_topic(topic, states, ends) for topic, states in topics]
        groups.append({**values, "topics": [*described, *unknown] if listed.error is KafkaCode.NONE else []})
    return asked.reply({"groups": groups})


async def _group_states(asked: DecodedRequest, group: Any) -> _GroupStates:
    """Return the states of a group, and the answers about requested topics that do not exist."""
    unknown: list[Values] = []
    wanted: list[NamedPartitions] | None = None
    if group.topics is not None:
        wanted = []
        for topic in group.topics:
            named = _named(asked, topic.topic_name, topic.partitions)
            if named is not None:
                wanted.append(named)
            else:
                unknown.append(_unknown_topic(topic))
    listed, topics = await asked.shares.describe_offsets(group.group_id, wanted)
    return listed, topics, unknown


def _places(topic: NamedPartitions, states: Sequence[StateResponse]) -> list[tuple[PartitionKey, StateResponse]]:
    keys = [PartitionKey(topic.topic_id, index) for index in topic.partitions]
    return list(zip(keys, states, strict=True))


def _has_start(response: StateResponse) -> bool:
    return response.state is not None and response.state.start_offset >= 0


def _unknown_topic(topic: Any) -> Values:
    partitions = [
        {
            "partition_index": index,
            "start_offset": NO_START,
            "leader_epoch": NO_EPOCH,
            "error_code": KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        for index in topic.partitions
    ]
    return {"topic_name": topic.topic_name, "topic_id": None, "partitions": partitions}


def _described_topic(
    topic: NamedPartitions, states: Sequence[StateResponse], ends: Mapping[PartitionKey, int]
) -> Values:
    partitions = []
    for key, response in _places(topic, states):
        state, lag = response.state, _UNKNOWN_LAG
        if state is not None and state.start_offset >= 0 and key in ends:
            lag = max(0, ends[key] - state.start_offset - state.done_count)
        partitions.append(
            {
                "partition_index": key.partition_index,
                "start_offset": NO_START if state is None else state.start_offset,
                "leader_epoch": 0 if state is None else max(state.leader_epoch, 0),
                "lag": lag,
                "error_code": response.error,
                "error_message": response.message,
            }
        )
    return {"topic_name": topic.topic, "topic_id": topic.topic_id, "partitions": partitions}


async def alter_offsets(asked: DecodedRequest) -> Reply:
    request = asked.request
    known: list[tuple[NamedPartitions, list[int]]] = []
    unknown: list[Values] = []
    for topic in request.topics:
        topic_image = asked.replicas.image.topic(topic.topic_name)
        starts = {
            each.partition_index: each.start_offset
            for each in topic.partitions
            if topic_image is not None and topic_image.partition(each.partition_index) is not None
        }
        refused = [
            {"partition_index": each.partition_index, "error_code": KafkaCode.UNKNOWN_TOPIC_OR_PARTITION}
            for each in topic.partitions
            if each.partition_index not in starts
        ]
        if refused:
            unknown.append({"topic_name": topic.topic_name, "topic_id": None, "partitions": refused})
        if starts and topic_image is not None:
            named = NamedPartitions(topic_image.topic_id, topic.topic_name, tuple(starts))
            known.append((named, list(starts.values())))
    reset, states = await asked.shares.alter_offsets(request.group_id, known)
    if reset.error is not KafkaCode.NONE:
        return asked.reply({"error_code": reset.error, "error_message": reset.message, "responses": []})
    found = iter(states)
    responses = []
    for topic, _ in known:
        partitions = []
        for index in topic.partitions:
            response = next(found)
            partitions.append(
                {"partition_index": index, "error_code": response.error, "error_message": response.message}
            )
        responses.append({"topic_name": topic.topic, "topic_id": topic.topic_id, "partitions": partitions})
    return asked.reply({"error_code": 0, "error_message": None, "responses": [*responses, *unknown]})


async def delete_offsets(asked: DecodedRequest) -> Reply:
    request = asked.request
    names = list(dict.fromkeys(topic.topic_name for topic in request.topics))
    found = await asked.shares.delete_offsets(request.group_id, names)
    if isinstance(found, ListShareStatesResponse):
        return asked.reply({"error_code": found.error, "error_message": found.message, "responses": []})
    responses = []
    for name in names:
        topic_id, error, message = asked.topic_id(name), found[name], None
        if error is KafkaCode.UNKNOWN_TOPIC_OR_PARTITION and topic_id is not None:
            message = "The group has no offsets in this topic."
        responses.append({"topic_name": name, "topic_id": topic_id, "error_code": error, "error_message": message})
    return asked.reply({"error_code": 0, "error_message": None, "responses": responses})
