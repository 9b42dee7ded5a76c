"""CreatePartitions and ElectLeaders: forwarded to the active controller."""

from __future__ import annotations

from typing import Any

from broker.kafka.admin import Forwarder, code_of, is_ok, message_of, whole_failure
from metadata.image import ClusterImage
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.kafka.codec import milliseconds
from quorumlog.wire.v1 import controller_pb2 as pb

_POLICIES = {0: pb.ElectLeadersRequest.POLICY_PREFERRED, 1: pb.ElectLeadersRequest.POLICY_UNCLEAN}


async def create_partitions(forwarder: Forwarder, request: Any, image: ClusterImage) -> dict[str, Any]:
    """Forward a CreatePartitions request; return the values of its response.

    A topic that already has the requested number of partitions gets an error, as Kafka's clients expect.  (kctl reports
    a success.)
    """
    deadline = forwarder.deadline(milliseconds(request.timeout))
    message = pb.AddPartitionsRequest()
    message.header.validate_only = request.validate_only
    for topic in request.topics:
        added = message.topics.add(topic=topic.name, count=topic.count)
        for row in topic.assignments or ():
            added.assignment.add(values=row.broker_ids)
    if not message.topics:
        return {"results": ()}
    reply = await forwarder.forward(rpcs.ADD_PARTITIONS, message, deadline)
    failure = whole_failure(reply)
    if failure is not None:
        return {"results": [_result(topic.name, failure) for topic in request.topics]}
    results = []
    for topic in reply.topics:
        known = image.topic(topic.topic)
        same = request.validate_only and known is not None and len(known.partitions) == topic.partitions
        result = topic.result
        if is_ok(result) and (same or not (topic.changed or request.validate_only)):
            result = pb.Result(
                error=ApiError.INVALID_PARTITIONS, message=f"the topic already has {topic.partitions} partitions"
            )
        results.append(_result(topic.topic, result))
    if any(topic.changed for topic in reply.topics):
        await forwarder.wait_for([reply.offset], deadline)
    return {"results": results}


def _result(name: str, result: pb.Result) -> dict[str, Any]:
    code = code_of(result.error)
    return {"name": name, "error_code": code, "error_message": message_of(result) if code else None}


async def elect_leaders(forwarder: Forwarder, request: Any) -> dict[str, Any]:
    """Forward an ElectLeaders request; return the values of its response.  Version 0 elects only preferred leaders."""
    deadline = forwarder.deadline(milliseconds(request.timeout))
    election_type = getattr(request, "election_type", 0)
    policy = _POLICIES.get(election_type)
    if policy is None:
        refusal = pb.Result(error=ApiError.INVALID_REQUEST, message=f"election type {election_type} does not exist")
        return _elections({(t.topic, index): refusal for t in request.topic_partitions or () for index in t.partitions})
    message = pb.ElectLeadersRequest(policy=policy)
    for topic in request.topic_partitions or ():
        for index in topic.partitions:
            message.partitions.add(topic=topic.topic, index=index)
    if request.topic_partitions is not None and not message.partitions:
        return _elections({})  # the request names no partition, which the controller would read as all partitions
    reply = await forwarder.forward(rpcs.ELECT_LEADERS, message, deadline)
    failure = whole_failure(reply)
    if failure is not None:
        return {
            **_elections({(each.topic, each.index): failure for each in message.partitions}),
            "error_code": code_of(failure.error),
        }
    if reply.changed:
        await forwarder.wait_for([reply.offset], deadline)
    return _elections({(each.topic, each.index): each.result for each in reply.partitions})


def _elections(results: dict[tuple[str, int], pb.Result]) -> dict[str, Any]:
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), result in results.items():
        code = code_of(result.error)
        entry = {"partition_id": index, "error_code": code, "error_message": message_of(result) if code else None}
        by_topic.setdefault(topic, []).append(entry)
    found = [{"topic": topic, "partition_result": entries} for topic, entries in by_topic.items()]
    return {"error_code": 0, "replica_election_results": found}
