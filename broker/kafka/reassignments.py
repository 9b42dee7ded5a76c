"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455): forwarded to the active controller.

Kafka's protocol decides each partition separately, and a new target always replaces an unfinished one.  The controller
changes either all partitions of a request or none.  So the partitions that it refuses are left out, and the rest is
requested again.
"""

from __future__ import annotations

from typing import Any

from broker.kafka.admin import Forwarder, code_of, is_ok, message_of, whole_failure
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.kafka.codec import milliseconds
from quorumlog.wire.v1 import controller_pb2 as pb

Key = tuple[str, int]

SPARED = ApiError.OPERATION_NOT_ATTEMPTED
"""The controller's answer for a partition that is unchanged only because others of the request were refused."""


async def alter(forwarder: Forwarder, request: Any) -> dict[str, Any]:
    """Forward an AlterPartitionReassignments request; return the values of its response."""
    deadline = forwarder.deadline(milliseconds(request.timeout))
    keep = not getattr(request, "allow_replication_factor_change", True)
    wanted: dict[Key, tuple[int, ...]] = {}
    results: dict[Key, pb.Result] = {}
    for topic in request.topics:
        for each in topic.partitions:
            key = (topic.name, each.partition_index)
            if key in wanted or key in results:
                wanted.pop(key, None)
                results[key] = pb.Result(error=ApiError.INVALID_REQUEST, message="the request repeats the partition")
            elif each.replicas is not None and not each.replicas:
                results[key] = pb.Result(
                    error=ApiError.INVALID_REPLICA_ASSIGNMENT, message="a partition needs replicas"
                )
            else:
                wanted[key] = tuple(each.replicas or ())
    failure = None
    while wanted:
        message = pb.AlterReassignmentsRequest(replace=True, keep_replication_factor=keep)
        for (name, index), replicas in wanted.items():
            message.partitions.add(topic=name, index=index, replicas=replicas)
        reply = await forwarder.forward(rpcs.ALTER_REASSIGNMENTS, message, deadline)
        failure = whole_failure(reply)
        answers = {(each.topic, each.index): each.result for each in reply.partitions}
        decided = {key: result for key, result in answers.items() if result.error != SPARED and key in wanted}
        if failure is None or not decided:
            results.update({key: failure or answers.get(key, pb.Result()) for key in wanted})
            if failure is None and reply.changed:
                await forwarder.wait_for([reply.offset], deadline)
            break
        failure = None  # single partitions were refused; these answers are final, the others are requested again
        results.update(decided)
        wanted = {key: replicas for key, replicas in wanted.items() if key not in decided}
    return _altered(results, failure)


def _altered(results: dict[Key, pb.Result], failure: pb.Result | None) -> dict[str, Any]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), result in results.items():
        error = None if is_ok(result) else message_of(result)
        entry = {"partition_index": index, "error_code": 0 if is_ok(result) else code_of(result.error)}
        by_topic.setdefault(topic, []).append({**entry, "error_message": error})
    return {
        "error_code": 0 if failure is None else code_of(failure.error),
        "error_message": None if failure is None else message_of(failure),
        "responses": [{"name": topic, "partitions": entries} for topic, entries in by_topic.items()],
    }


async def list_ongoing(forwarder: Forwarder, request: Any) -> dict[str, Any]:
    """Forward a ListPartitionReassignments request; return the values of its response."""
    message = pb.ListReassignmentsRequest()
    for topic in request.topics or ():
        for index in topic.partition_indexes:
            message.partitions.add(topic=topic.name, index=index)
    if request.topics is not None and not message.partitions:
        return {"error_code": 0, "topics": ()}  # the request names no partition; the controller would list all
    reply = await forwarder.forward(rpcs.LIST_REASSIGNMENTS, message, forwarder.deadline(milliseconds(request.timeout)))
    failure = whole_failure(reply)
    if failure is not None:
        return {"error_code": code_of(failure.error), "error_message": message_of(failure), "topics": ()}
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for each in reply.partitions:
        entry = {
            "partition_index": each.index,
            "replicas": list(each.replicas),
            "adding_replicas": list(each.adding),
            "removing_replicas": list(each.removing),
        }
        by_topic.setdefault(each.topic, []).append(entry)
    return {
        "error_code": 0,
        "topics": [{"name": topic, "partitions": entries} for topic, entries in by_topic.items()],
    }
