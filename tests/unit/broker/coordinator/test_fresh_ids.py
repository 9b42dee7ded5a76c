"""Requests for which a transaction coordinator needs a fresh producer id."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinator.transactions import TransactionCoordinators
from broker.core.coordinator.transaction_requests import InitProducer, InitProducerResponse
from broker.core.transactions import ProducerKey
from quorumlog.runtime.clock import Sources
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.replica.rig import Rig

REQUEST = InitProducer("t", 60_000)


def coordinators(rig: Rig, fresh_id: int | None, answers: list[Any], sent: list[Any]) -> TransactionCoordinators:
    """Return coordinators whose machine gives these answers in turn, and that note the requests in `sent`."""
    nothing: Any = None

    async def take_id() -> int | None:
        return fresh_id

    async def call(partition: int, request: Any, size: int) -> Any:
        sent.append(request)
        return answers.pop(0)

    found = TransactionCoordinators(rig.role.table, nothing, nothing, nothing, take_id, lambda _: None, Sources.real())
    found.call = call  # type: ignore[method-assign, assignment]
    return found


async def test_a_request_that_needs_a_fresh_id_is_repeated_with_it(rig: Rig) -> None:
    sent: list[Any] = []
    needs_id = InitProducerResponse(KafkaCode.NONE, needs_id=True)
    done = InitProducerResponse(KafkaCode.NONE, ProducerKey(7, 0))
    transactions = coordinators(rig, 7, [needs_id, done], sent)
    assert await transactions.init_producer(REQUEST, 10) == done
    assert sent == [REQUEST, InitProducer("t", 60_000, fresh_id=7)]


async def test_without_a_fresh_id_the_client_is_told_to_try_again(rig: Rig) -> None:
    sent: list[Any] = []
    transactions = coordinators(rig, None, [InitProducerResponse(KafkaCode.NONE, needs_id=True)], sent)
    found = await transactions.init_producer(REQUEST, 10)
    assert found == InitProducerResponse(KafkaCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert sent == [REQUEST]


@pytest.mark.parametrize("answer", [KafkaCode.NOT_COORDINATOR, InitProducerResponse(KafkaCode.NONE, ProducerKey(5, 1))])
async def test_a_request_that_needs_no_fresh_id_is_sent_once(rig: Rig, answer: Any) -> None:
    sent: list[Any] = []
    found = await coordinators(rig, 7, [answer], sent).init_producer(REQUEST, 10)
    assert found == (InitProducerResponse(answer) if isinstance(answer, KafkaCode) else answer)
    assert sent == [REQUEST]
