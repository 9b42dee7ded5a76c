"""Produce and Fetch: converts frames into calls of the replicas, and their results into frames.

This module never copies record bytes.  A produced batch is passed on as a slice of its frame.  A fetched batch is a
buffer that is written to the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from broker.core.coordinator.transaction_requests import TransactionSupport
from broker.kafka.api import (
    CONSUMER,
    NO_EPOCH,
    FetchPartition,
    FetchPlan,
    FetchReply,
    FetchResult,
    ForgottenPartition,
    ProduceResult,
    Replicas,
)
from broker.kafka.connection import Caller, HangUp, Pending, Reply
from broker.kafka.metadata import node_endpoints
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import fetch, produce

_SERVER_ERROR = ProduceResult(int(KafkaCode.UNKNOWN_SERVER_ERROR), error_message="the broker failed; see its log")
_EMPTY = memoryview(b"")

R = TypeVar("R", ProduceResult, FetchResult)

_FIRST_FETCH_WITH_STORAGE_ERROR = 6
_FIRST_PRODUCE_WITH_STORAGE_ERROR = 4
_FIRST_PRODUCE_WITH_ABORTABLE = 11
_FIRST_PRODUCE_THAT_ADDS = 12
_FIRST_FETCH_WITH_ERROR = 7
_FIRST_FETCH_WITH_STATE = 15

logger = get_logger("kafka")


def handle_produce(replicas: Replicas, caller: Caller, frame: memoryview) -> Reply | Pending:
    """Begin to append the batches of a Produce.

    Raises: RemoteProtocolError.  `Pending.finish` raises HangUp if a produce with acks=0 has failed, because no
    reply can report the failure.
    """
    header = caller.header
    version = header.api_version
    request = produce.decode_request(frame, header.body, version)
    if request.acks not in (-1, 0, 1):
        message = f"acks must be -1, 0 or 1, not {request.acks}"
        refusal = ProduceResult(int(KafkaCode.INVALID_REQUIRED_ACKS), error_message=message)
        return _produce_reply(replicas, caller, request.partitions, [refusal] * len(request.partitions))

    timeout_ms = max(0, request.timeout_ms)
    support = _support(version)
    futures = []
    for item in request.partitions:
        topic = item.topic if isinstance(item.topic, str) else _name(replicas, item.topic)
        if topic is None:
            futures.append(_unknown_id())
            continue
        records = item.records if item.records is not None else _EMPTY
        futures.append(
            replicas.start_produce(
                topic, item.index, records, request.acks, timeout_ms, request.transactional_id, support
            )
        )

    def finish() -> Reply:
        results = [_produce_result(future) for future in futures]
        if request.acks != 0:
            return _produce_reply(replicas, caller, request.partitions, results)
        for item, result in zip(request.partitions, results, strict=True):
            if result.error_code:  # without a reply, the only signal is a closed connection
                reason = f"acks=0 to {item.topic}-{item.index}: error {result.error_code} {result.error_message}"
                raise HangUp(reason.rstrip())
        return None

    return Pending(futures, finish)


def _support(version: int) -> TransactionSupport:
    if version >= _FIRST_PRODUCE_THAT_ADDS:
        return TransactionSupport.ADDS
    return TransactionSupport.ABORTABLE if version >= _FIRST_PRODUCE_WITH_ABORTABLE else TransactionSupport.OLDEST


def _name(replicas: Replicas, topic_id: UUID) -> str | None:
    found = replicas.image.topics.get(topic_id)
    return None if found is None else found.name


def _unknown_id() -> asyncio.Future[ProduceResult]:
    future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
    message = "this broker knows no topic with this id"
    future.set_result(ProduceResult(int(KafkaCode.UNKNOWN_TOPIC_ID), error_message=message))
    return future


def _produce_result(future: asyncio.Future[ProduceResult]) -> ProduceResult:
    if future.cancelled():
        return _SERVER_ERROR
    if (error := future.exception()) is not None:
        logger.error("produce failed", error=repr(error))
        return _SERVER_ERROR
    return future.result()


def _produce_reply(
    replicas: Replicas, caller: Caller, partitions: Sequence[produce.ProducePartition], results: list[ProduceResult]
) -> Reply:
    leaders = {result.leader_id for result in results if result.leader_id != -1}
    endpoints = node_endpoints(replicas.image, leaders, caller.listener) if leaders else []
    answers = ((item.topic, item.index, result) for item, result in zip(partitions, results, strict=True))
    version = caller.header.api_version
    if version < _FIRST_PRODUCE_WITH_STORAGE_ERROR:
        answers = ((topic, index, _without_storage_error(result)) for topic, index, result in answers)
    return (produce.encode_response(version, answers, endpoints),)


async def handle_fetch(replicas: Replicas, caller: Caller, frame: memoryview, room: Callable[[], int]) -> Reply:
    """Answer a Fetch.  room: returns how many bytes of records a reply to a consumer may contain now."""
    version = caller.header.api_version
    request = fetch.decode_request(frame, caller.header.body, version, FetchPartition, ForgottenPartition)
    refusal = _refusal(request, version)
    reply = FetchReply(int(refusal)) if refusal is not None else await replicas.fetch(_plan(request, caller, room))
    results = reply.results
    if reply.error_code and version < _FIRST_FETCH_WITH_ERROR:
        results = tuple(
            FetchResult(item.topic_id, item.topic, item.index, reply.error_code) for item in request.partitions
        )
    if version < _FIRST_FETCH_WITH_STORAGE_ERROR:
        results = tuple([_without_storage_error(result) for result in results])
    leaders = {result.leader_id for result in results if result.leader_id != -1}
    endpoints = node_endpoints(replicas.image, leaders, caller.listener) if leaders else []
    parts = fetch.encode_response(version, reply.error_code, reply.session_id, results, endpoints)
    caller.hold(sum(map(len, parts)))
    return parts


def _without_storage_error(result: R) -> R:
    """Replace KAFKA_STORAGE_ERROR, which old clients do not know, by an error that makes them look for the leader."""
    if result.error_code != KafkaCode.KAFKA_STORAGE_ERROR:
        return result
    return replace(result, error_code=int(KafkaCode.NOT_LEADER_OR_FOLLOWER))


def _refusal(request: fetch.FetchRequest, version: int) -> KafkaCode | None:
    """Return the error for the request as a whole, if there is one."""
    follower = request.replica_id >= 0
    if follower and version < _FIRST_FETCH_WITH_STATE:
        # Brokers of this cluster use newer versions.  A fetch by any other client must not move a watermark.
        return KafkaCode.CLUSTER_AUTHORIZATION_FAILED
    return None


def _plan(request: fetch.FetchRequest, caller: Caller, room: Callable[[], int]) -> FetchPlan:
    follower = request.replica_id >= 0
    max_bytes = max(0, request.max_bytes)
    return FetchPlan(
        partitions=tuple(request.partitions),
        max_wait_ms=max(0, request.max_wait_ms),
        min_bytes=request.min_bytes,
        max_bytes=max_bytes if follower else min(max_bytes, room()),
        replica_id=request.replica_id if follower else CONSUMER,
        broker_epoch=request.broker_epoch if follower else NO_EPOCH,
        session_id=request.session_id,
        session_epoch=request.session_epoch,
        forgotten=tuple(request.forgotten),
        by_id=caller.header.api_version >= fetch.FIRST_WITH_TOPIC_ID,
        read_committed=not follower and request.isolation_level == fetch.READ_COMMITTED,
        rack="" if follower else request.rack,
        listener=caller.listener,
    )
