"""DescribeTopicPartitions: topics with their partitions, in pages.

Topics come in the order of their names.  A response has a limited number of partitions, and its cursor names the next
partition.  The client sends the cursor with its next request.
"""

from __future__ import annotations

from typing import Any, Final

from broker.kafka.metadata import is_topic_name, leader_or_error, node_endpoints, offline_replicas
from metadata.image import ClusterImage, PartitionImage, TopicImage, is_internal
from quorumlog.wire.errors import KafkaCode

PARTITIONS_MAX: Final = 2_000
"""Maximum number of partitions in one response, even if the client allows more."""


def describe_topic_partitions(request: Any, image: ClusterImage, listener: str) -> dict[str, Any]:
    """Return the values of a DescribeTopicPartitions response.  No topic in the request means all topics."""
    cursor = request.cursor
    asked = sorted({topic.name for topic in request.topics})
    names = asked or sorted(image.topic_ids)
    first = 0
    if cursor is not None:
        names = [name for name in names if name >= cursor.topic_name]
        if cursor.partition_index < 0:
            code = KafkaCode.INVALID_REQUEST
            return {"topics": [_refused(name, code) for name in asked or [cursor.topic_name]]}
        if names and names[0] == cursor.topic_name:
            first = cursor.partition_index
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    reachable = frozenset(node.node_id for node in node_endpoints(image, image.brokers, listener))
    topics: list[dict[str, Any]] = []
    for name in names:
        if room == 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        topic = image.topic(name)
        if topic is None:
            known_name = is_topic_name(name)
            code = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION if known_name else KafkaCode.INVALID_TOPIC_EXCEPTION
            topics.append(_refused(name, code))
            continue
        left = [each for each in topic.partitions if each is not None and each.index >= first]
        first = 0
        topics.append(_topic(topic, [_partition(image, each, reachable) for each in left[:room]]))
        if len(left) > room:
            cursor_values = {"topic_name": name, "partition_index": left[room].index}
            return {"topics": topics, "next_cursor": cursor_values}
        room -= len(left)
    return {"topics": topics}


def _refused(name: str, code: KafkaCode) -> dict[str, Any]:
    return {"error_code": code, "name": name, "is_internal": is_internal(name), "partitions": ()}


def _topic(topic: TopicImage, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": is_internal(topic.name),
        "partitions": partitions,
    }


def _partition(image: ClusterImage, partition: PartitionImage, reachable: frozenset[int]) -> dict[str, Any]:
    leader, code = leader_or_error(image, partition, reachable)
    return {
        "error_code": code,
        "partition_index": partition.index,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replica_ids,
        "isr_nodes": partition.isr,
        "eligible_leader_replicas": partition.elr,
        "last_known_elr": (),
        "offline_replicas": offline_replicas(image, partition),
    }
