"""The newer protocol of consumer groups (KIP-848): converts its frames, like `broker.kafka.groups`.

Frames and coordinators name partitions by the id of their topic.
"""

from __future__ import annotations

from typing import Any, Final

from broker.core.coordinator.consumer.partitions import Partitions, of
from broker.core.coordinator.consumer.requests import (
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    ConsumerMemberDescription,
    DescribeConsumerGroups,
    NamedPartitions,
)
from broker.kafka.connection import Pending, Reply
from broker.kafka.coordinated import DecodedRequest, Split, Values
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import milliseconds

_FIRST_HEARTBEAT_WITH_CLIENT_ID: Final = 1
"""From this version on, members make their ids themselves."""


def consumer_group_heartbeat(asked: DecodedRequest) -> Pending:
    request = asked.request
    beat = ConsumerHeartbeat(
        group=request.group_id,
        member_id=request.member_id,
        epoch=request.member_epoch,
        client=asked.client,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout),
        topics=None if request.subscribed_topic_names is None else tuple(request.subscribed_topic_names),
        regex=asked.field("subscribed_topic_regex"),
        assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        may_lack_id=asked.version < _FIRST_HEARTBEAT_WITH_CLIENT_ID,
    )

    def values(found: ConsumerHeartbeatResponse | KafkaCode) -> Values:
        if isinstance(found, KafkaCode):
            found = ConsumerHeartbeatResponse(found)
        return {
            "error_code": found.error,
            "error_message": found.message,
            "member_id": found.member_id,
            "member_epoch": found.epoch,
            "heartbeat_interval": found.heartbeat_interval_ms,
            "assignment": None if found.assignment is None else {"topic_partitions": _by_topic(found.assignment)},
        }

    return asked.one(beat, beat.group, values)


def _owned(topics: Any) -> Partitions | None:
    """Return the partitions that a member reports.  A topic without an id does not exist, and is left out."""
    if topics is None:
        return None
    # `of` adds to sets in place, because a client may repeat a topic as often as its request has room for it.
    return of((topic.topic_id, index) for topic in topics if topic.topic_id is not None for index in topic.partitions)


def _by_topic(partitions: Partitions) -> list[Values]:
    return [{"topic_id": topic, "partitions": sorted(partitions[topic])} for topic in sorted(partitions)]


def consumer_group_describe(asked: DecodedRequest) -> Pending:
    # A group that the request repeats is described once: each description may be as large as the group.
    names = tuple(dict.fromkeys(asked.request.group_ids))
    split = Split(asked, names, str, DescribeConsumerGroups)

    def finish() -> Reply:
        found: list[ConsumerGroupDescription] = split.answers(ConsumerGroupDescription)
        return asked.reply({"groups": [_described(each) for each in found]})

    return Pending(split.futures, finish, is_owned=True)


def _described(group: ConsumerGroupDescription) -> Values:
    return {
        "error_code": group.error,
        "error_message": group.error_message,
        "group_id": group.group,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_member(each) for each in group.members],
    }


def _member(member: ConsumerMemberDescription) -> Values:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topics,
        "subscribed_topic_regex": member.regex,
        "assignment": {"topic_partitions": [_named(each) for each in member.assignment]},
        "target_assignment": {"topic_partitions": [_named(each) for each in member.target]},
        "member_type": 0 if member.is_classic else 1,
    }


def _named(partitions: NamedPartitions) -> Values:
    return {
        "topic_id": partitions.topic_id,
        "topic_name": partitions.topic,
        "partitions": partitions.partitions,
    }
