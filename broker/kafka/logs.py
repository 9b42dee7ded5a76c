"""The logs of this broker, for tools: DescribeLogDirs, AlterReplicaLogDirs and DescribeProducers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from broker.kafka.api import DataDirectory, HostedLog, Node, Replicas, RequestedMove
from metadata.image import ClusterImage
from quorumlog.wire.errors import KafkaCode

_CORDONED = "cordoned"


def describe_log_dirs(request: Any, node: Node, replicas: Replicas, node_id: int) -> dict[str, Any]:
    """Return the values of a DescribeLogDirs response: every data directory, with the logs that the request names."""
    wanted = None
    if request.topics is not None:
        wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
    by_directory: dict[UUID, dict[str, list[HostedLog]]] = {}
    for log in replicas.hosted_logs():
        if wanted is None or (log.topic, log.index) in wanted:
            by_directory.setdefault(log.directory_id, {}).setdefault(log.topic, []).append(log)
    is_cordoned = _is_cordoned(replicas.image, node_id)
    results = []
    for directory in node.directories():
        common = {"log_dir": directory.path, "is_cordoned": is_cordoned}
        if directory.is_failed:
            results.append(
                {**common, "error_code": KafkaCode.KAFKA_STORAGE_ERROR, "total_bytes": -1, "usable_bytes": -1}
            )
            continue
        logs = by_directory.get(directory.directory_id, {})
        results.append(
            {
                **common,
                "error_code": 0,
                "topics": [{"name": name, "partitions": _partitions(logs[name])} for name in sorted(logs)],
                "total_bytes": directory.total_bytes,
                "usable_bytes": directory.free_bytes,
            }
        )
    return {"error_code": 0, "results": results}


def _partitions(logs: list[HostedLog]) -> list[dict[str, Any]]:
    return [
        {
            "partition_index": log.index,
            "partition_size": log.size,
            "offset_lag": log.offset_lag,
            "is_future_key": log.is_future,
        }
        for log in sorted(logs, key=lambda log: log.index)
    ]


def _is_cordoned(image: ClusterImage, node_id: int) -> bool:
    return image.broker_config(node_id, _CORDONED) == "true"


async def alter_log_dirs(request: Any, node: Node, replicas: Replicas) -> dict[str, Any]:
    """Request moves, which happen in the background; return the values of the AlterReplicaLogDirs response.

    As in Kafka, the last directory that the request names for a partition counts.  A path must equal the path that
    DescribeLogDirs shows, because tools compare both to find out where a replica is.
    """
    directories = {each.path: each for each in node.directories()}
    wanted: dict[tuple[str, int], DataDirectory | None] = {}
    for named in request.dirs:
        directory = directories.get(named.path)
        for topic in named.topics:
            wanted.update(((topic.name, index), directory) for index in topic.partitions)
    codes = {key: _refusal(directory) for key, directory in wanted.items()}
    moves = [
        RequestedMove(*key, directory.directory_id)
        for key, directory in wanted.items()
        if directory is not None and codes[key] is KafkaCode.NONE
    ]
    outcomes = await replicas.move_replicas(moves)
    codes.update(((move.topic, move.index), code) for move, code in zip(moves, outcomes, strict=True))
    answers: dict[str, list[dict[str, Any]]] = {}
    for (name, index), code in codes.items():
        answers.setdefault(name, []).append({"partition_index": index, "error_code": code})
    return {"results": [{"topic_name": name, "partitions": each} for name, each in answers.items()]}


def _refusal(wanted: DataDirectory | None) -> KafkaCode:
    if wanted is None:
        return KafkaCode.LOG_DIR_NOT_FOUND
    return KafkaCode.KAFKA_STORAGE_ERROR if wanted.is_failed else KafkaCode.NONE


def describe_producers(request: Any, replicas: Replicas) -> dict[str, Any]:
    """Return the values of a DescribeProducers response.

    A partition that the request repeats is described once, because it may have very many producers.
    """
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in wanted.items():
        partitions = []
        for index in indexes:
            found = replicas.active_producers(name, index)
            if isinstance(found, int):
                partitions.append({"partition_index": index, "error_code": found, "active_producers": ()})
                continue
            producers = [
                {
                    "producer_id": each.producer_id,
                    "producer_epoch": each.epoch,
                    "last_sequence": each.last_sequence,
                    "last_timestamp": each.last_timestamp_ms,
                    "coordinator_epoch": each.coordinator_epoch,
                    "current_txn_start_offset": each.transaction_start,
                }
                for each in found
            ]
            partitions.append({"partition_index": index, "error_code": 0, "active_producers": producers})
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}
