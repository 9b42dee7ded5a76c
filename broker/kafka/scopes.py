"""Transaction scopes: converts frames into requests to the coordinators of scopes, and their responses into frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from broker.core.coordinator.scope_requests import (
    AbortScope,
    DescribedScope,
    DescribeScopes,
    EndScope,
    InitScope,
    InitScopeProducer,
    ScopeRequest,
    Winner,
)
from broker.core.transactions import ProducerKey
from broker.kafka.connection import Pending, Reply
from broker.kafka.coordinated import DecodedRequest
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import milliseconds
from quorumlog.wire.scope_names import coordinator_key

Values = dict[str, Any]


def _call(asked: DecodedRequest, scope: str, request: ScopeRequest, size: int) -> asyncio.Future[Any]:
    return asked.transactions.call(asked.transactions.partition(coordinator_key(scope)), request, size)


def _one(
    asked: DecodedRequest, request: InitScope | EndScope | AbortScope, values_of: Callable[[Any], Values]
) -> Pending:
    """Send a request about one scope.  values_of: makes the fields of the answer except its error."""
    future = _call(asked, request.scope, request, asked.size)

    def finish() -> Reply:
        found = KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()
        if isinstance(found, KafkaCode):
            return asked.reply({"error_code": found})
        return asked.reply({"error_code": found.error, "error_message": found.message or None, **values_of(found)})

    return Pending((future,), finish, is_owned=True)


def init_scope(asked: DecodedRequest) -> Pending:
    request = asked.request
    wanted = InitScope(request.scope, request.owner, request.run, request.reset)
    return _one(
        asked,
        wanted,
        lambda found: {"scope_epoch": found.epoch, "last_sequence": found.sequence, "owner": found.owner},
    )


async def init_scope_producer(asked: DecodedRequest) -> Reply:
    request = asked.request
    timeout_ms = milliseconds(request.transaction_timeout)
    wanted = InitScopeProducer(request.scope, request.scope_epoch, request.attempt, timeout_ms)
    found = await asked.transactions.init_scope_producer(wanted, asked.size)
    if isinstance(found, KafkaCode):
        return asked.reply({"error_code": found})
    return asked.reply(
        {
            "error_code": found.error,
            "error_message": found.message or None,
            "transactional_id": found.transactional_id,
            "producer_id": found.producer.producer_id,
            "producer_epoch": found.producer.epoch,
        }
    )


def end_scope(asked: DecodedRequest) -> Pending:
    request = asked.request
    winners = tuple(
        [Winner(each.attempt, ProducerKey(each.producer_id, each.producer_epoch)) for each in request.winners]
    )
    wanted = EndScope(request.scope, request.scope_epoch, request.sequence, winners)
    return _one(asked, wanted, lambda found: {"changed": found.changed, "last_sequence": found.sequence})


def abort_scope(asked: DecodedRequest) -> Pending:
    request = asked.request
    return _one(asked, AbortScope(request.scope, request.scope_epoch, request.close), lambda found: {})


def describe_scopes(asked: DecodedRequest) -> Pending:
    """Describe scopes, each at its coordinator.  A repeated name is described once, because an answer may be large."""
    names = tuple(dict.fromkeys(asked.request.scopes))
    size = asked.size // max(1, len(names))
    futures = [_call(asked, name, DescribeScopes((name,)), size) for name in names]

    def finish() -> Reply:
        described = []
        for name, future in zip(names, futures, strict=True):
            found = KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()
            described.append(DescribedScope(name, found) if isinstance(found, KafkaCode) else found.scopes[0])
        return asked.reply({"scopes": [_described(each) for each in described]})

    return Pending(futures, finish, is_owned=True)


def _described(found: DescribedScope) -> Values:
    return {
        "error_code": found.error,
        "error_message": found.message or None,
        "scope": found.scope,
        "owner": found.owner,
        "run": found.run,
        "scope_epoch": found.epoch,
        "scope_state": found.state,
        "last_sequence": found.sequence,
        "updated": found.updated_ms,
        "producers": [
            {
                "attempt": each.attempt,
                "producer_id": each.producer.producer_id,
                "producer_epoch": each.producer.epoch,
                "producer_state": each.state,
                "started": each.started_ms,
                "partitions": each.partitions,
            }
            for each in found.producers
        ],
    }
