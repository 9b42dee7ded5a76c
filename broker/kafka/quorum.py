"""DescribeQuorum: the metadata quorum, in the form of partition 0 of the topic __cluster_metadata."""

from __future__ import annotations

from typing import Any, Final

from broker.kafka.api import Node, QuorumReplica, QuorumState
from quorumlog.wire.errors import KafkaCode

METADATA_TOPIC: Final = "__cluster_metadata"
CONTROLLER_LISTENER: Final = "CONTROLLER"
"""The name under which Kafka's tools see the control address of a voter."""
_NO_LEADER: Final = "the leader of the metadata quorum did not answer"


async def describe_quorum(request: Any, node: Node, timeout_ms: int) -> dict[str, Any]:
    """Return the values of a DescribeQuorum response, from the leader of the quorum."""
    asked = [(topic.topic_name, each.partition_index) for topic in request.topics for each in topic.partitions]
    if any(each != (METADATA_TOPIC, 0) for each in asked):
        return {"error_code": 0, "topics": [_unknown(topic) for topic in request.topics]}
    state = await node.quorum(timeout_ms)
    if state is None:
        return {"error_code": KafkaCode.REQUEST_TIMED_OUT, "error_message": _NO_LEADER, "topics": ()}
    partition = {
        "partition_index": 0,
        "error_code": 0,
        "leader_id": state.leader_id,
        "leader_epoch": state.leader_epoch,
        "high_watermark": state.high_watermark,
        "current_voters": [_replica(each) for each in state.voters],
        "observers": [_replica(each) for each in state.observers],
    }
    topics = [{"topic_name": METADATA_TOPIC, "partitions": [partition]}] if asked else []
    return {"error_code": 0, "topics": topics, "nodes": _nodes(state)}


def _unknown(topic: Any) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": each.partition_index,
            "error_code": KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": f"only partition 0 of {METADATA_TOPIC} is a quorum",
            "leader_id": -1,
        }
        for each in topic.partitions
    ]
    return {"topic_name": topic.topic_name, "partitions": partitions}


def _replica(replica: QuorumReplica) -> dict[str, Any]:
    return {
        "replica_id": replica.node_id,
        "replica_directory_id": replica.directory_id,
        "log_end_offset": replica.end_offset,
        "last_fetch_timestamp": replica.last_fetch_at_ms,
        "last_caught_up_timestamp": replica.last_caught_up_at_ms,
    }


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of a control address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _nodes(state: QuorumState) -> list[dict[str, Any]]:
    """Return the control addresses of the voters."""
    nodes = []
    for voter in state.voters:
        host, port = split_address(voter.address)
        listener = {"name": CONTROLLER_LISTENER, "host": host, "port": port}
        nodes.append({"node_id": voter.node_id, "listeners": [listener]})
    return nodes
