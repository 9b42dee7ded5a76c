"""Topic administration over the Kafka protocol: forwards requests to the controller and translates its replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from google.protobuf.message import Message

from broker.kafka.new_configs import created_configs
from metadata.image import ClusterImage
from quorumlog.errors import ClusterError
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.kafka.codec import milliseconds
from quorumlog.wire.rpcs import ControllerCall, ReplyT, RequestT, Rpc, result_of
from quorumlog.wire.v1 import controller_pb2 as pb


def code_of(name: str) -> int:
    """Return Kafka's number for an error of the controller."""
    error = ApiError.named(name) or ApiError.UNKNOWN_SERVER_ERROR
    return int(error.kafka)


def message_of(result: pb.Result) -> str | None:
    """Return the message of a result with its next step, in one line; None if it has neither."""
    text = "; ".join(part for part in (result.message, result.next) if part)
    return text or None


class Forwarder:
    """Calls the controller within the caller's timeout, then waits until this broker has applied the change."""

    def __init__(
        self,
        call: ControllerCall,
        timeout_max_ms: int,
        wait_for_metadata: Callable[[int], Awaitable[object]] | None,
    ) -> None:
        self._call = call
        self._timeout_max_ms = timeout_max_ms
        self._wait_for_metadata = wait_for_metadata

    def deadline(self, timeout_ms: int) -> float:
        """Return the time, on the loop's clock, by which a client with this timeout must have its answer."""
        return asyncio.get_running_loop().time() + max(1, min(timeout_ms, self._timeout_max_ms)) / 1000

    async def forward(self, rpc: Rpc[RequestT, ReplyT], request: RequestT, deadline: float) -> ReplyT:
        """Return the controller's reply.  If the call fails or takes too long, return a reply with that error."""
        timeout_ms = max(1, int((deadline - asyncio.get_running_loop().time()) * 1000))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._call(rpc, request, timeout_ms)
        except TimeoutError:
            message = f"the controller did not answer within {timeout_ms} ms; the outcome is not known"
            result = pb.Result(error=ApiError.OUTCOME_UNKNOWN, message=message, retriable=True)
        except ClusterError as error:
            result = pb.Result(error=error.code, message=error.message, retriable=error.retriable)
        return rpc.reply_of(result)

    async def wait_for(self, offsets: list[int], deadline: float) -> None:
        """Wait until this broker has applied the changes, so that the client's next request finds them.

        Also returns at the deadline, because the changes are committed already.
        """
        if self._wait_for_metadata is None or not offsets:
            return
        try:
            async with asyncio.timeout_at(deadline):
                await self._wait_for_metadata(max(offsets))
        except TimeoutError:
            return


def outcome(result: pb.Result, code: int | None = None) -> dict[str, Any]:
    """Return the fields of a response for one result.  code: replaces Kafka's usual number for an error."""
    if is_ok(result):
        return {"error_code": 0, "error_message": None}
    return {"error_code": code_of(result.error) if code is None else code, "error_message": message_of(result)}


async def create_topics(forwarder: Forwarder, request: Any, image: Callable[[], ClusterImage]) -> dict[str, Any]:
    """Forward a CreateTopics request; return the values of its response.  image: returns the applied metadata."""
    deadline = forwarder.deadline(milliseconds(request.timeout))
    refused: dict[str, pb.Result] = {}
    message = pb.CreateTopicsRequest()
    message.header.validate_only = getattr(request, "validate_only", False)
    seen: set[str] = set()
    for topic in request.topics:
        if topic.name in seen:
            refused[topic.name] = pb.Result(error=ApiError.INVALID_REQUEST, message="the request repeats the topic")
        seen.add(topic.name)
        new = message.topics.add(
            name=topic.name, partitions=topic.num_partitions, replication_factor=topic.replication_factor
        )
        assignment = {item.partition_index: item.broker_ids for item in topic.assignments}
        if sorted(assignment) != list(range(len(topic.assignments))):
            reason = "the partitions of an assignment must be numbered from 0 without gaps"
            refused[topic.name] = pb.Result(error=ApiError.INVALID_REPLICA_ASSIGNMENT, message=reason)
        for index in sorted(assignment):
            new.assignment.add(values=assignment[index])
        for config in topic.configs:
            if config.value is None:
                reason = f"{config.name[:60]!a} has no value"
                refused[topic.name] = pb.Result(error=ApiError.INVALID_CONFIG, message=reason)
            else:
                new.configs.add(key=config.name, value=config.value)
    kept = [new for new in message.topics if new.name not in refused]
    del message.topics[:]
    message.topics.extend(kept)

    results: list[dict[str, Any]] = [_topic_refusal(name, refused[name]) for name in sorted(refused)]
    if kept:
        reply = await forwarder.forward(rpcs.CREATE_TOPICS, message, deadline)
        failure = whole_failure(reply)
        if failure is not None:
            results += [_topic_refusal(new.name, failure) for new in kept]
        else:
            if not message.header.validate_only:
                await forwarder.wait_for([topic.offset for topic in reply.topics if is_ok(topic.result)], deadline)
            given = {new.name: {config.key: config.value for config in new.configs} for new in kept}
            results += [_created(topic, given[topic.name], image()) for topic in reply.topics]
    return {"topics": results}


def is_ok(result: pb.Result) -> bool:
    return result.error in (ApiError.NONE, "")


def whole_failure(reply: Message) -> pb.Result | None:
    """Return the error that applies to a whole request; None if its parts have results of their own."""
    result = result_of(reply)
    return None if is_ok(result) else result


def _topic_refusal(name: str | None, result: pb.Result, topic_id: UUID | None = None) -> dict[str, Any]:
    code = code_of(result.error)
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message_of(result)}


def _created(topic: pb.CreatedTopic, given: dict[str, str], image: ClusterImage) -> dict[str, Any]:
    if not is_ok(topic.result):
        return _topic_refusal(topic.name, topic.result)
    return {
        "name": topic.name,
        "topic_id": UUID(bytes=topic.topic_id) if topic.topic_id else None,
        "error_code": 0,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "configs": created_configs(image, topic.name, given, topic.replication_factor),
    }


async def delete_topics(forwarder: Forwarder, request: Any, image: ClusterImage) -> dict[str, Any]:
    """Forward a DeleteTopics request; return the values of its response."""
    deadline = forwarder.deadline(milliseconds(request.timeout))
    message = pb.DeleteTopicsRequest()
    responses: list[dict[str, Any]] = []
    if hasattr(request, "topic_names"):
        message.names.extend(request.topic_names)
    else:
        for topic in request.topics:
            if (topic.name is None) == (topic.topic_id is None):  # the name and the id could belong to different topics
                text = "name the topic either by its name or by its id"
                refusal = pb.Result(error=ApiError.INVALID_REQUEST, message=text)
                responses.append(_topic_refusal(topic.name, refusal, topic.topic_id))
            elif topic.topic_id is not None:
                message.topic_ids.append(topic.topic_id.bytes)
            else:
                message.names.append(topic.name)
    if not message.names and not message.topic_ids:
        return {"responses": responses}
    reply = await forwarder.forward(rpcs.DELETE_TOPICS, message, deadline)
    failure = whole_failure(reply)
    if failure is not None:
        ids = [UUID(bytes=value) for value in message.topic_ids]
        named = [_topic_refusal(name, failure) for name in message.names]
        return {"responses": responses + named + [_topic_refusal(None, failure, topic_id) for topic_id in ids]}
    for deleted in reply.topics:
        topic_id = UUID(bytes=deleted.topic_id) if deleted.topic_id else None
        name: str | None = deleted.name
        if not name and topic_id is not None:  # the request named only the id
            name = image.topics[topic_id].name if topic_id in image.topics else None
        values = _topic_refusal(name, deleted.result, topic_id)
        if is_ok(deleted.result):
            values["error_code"], values["error_message"] = 0, None
        responses.append(values)
    await forwarder.wait_for([deleted.offset for deleted in reply.topics if is_ok(deleted.result)], deadline)
    return {"responses": responses}
