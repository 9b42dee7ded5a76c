"""Coordinators of transactions that answer from tables, for brokers of `fake_cluster`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from broker.core.coordinator.transaction_requests import (
    DescribedTransaction,
    DescribeTransactions,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactions,
    ListTransactionsResponse,
    TransactionRequest,
)
from broker.core.transactions import ProducerKey
from broker.kafka.transactions import NoTransactions
from quorumlog.wire.errors import KafkaCode


class FakeTransactions(NoTransactions):
    """The coordinators of one broker.  known: their transactional ids, by name."""

    def __init__(self, *known: DescribedTransaction) -> None:
        self.known = {each.transactional_id: each for each in known}

    def partition(self, transactional_id: str) -> int:
        return 0

    def led(self) -> Sequence[int]:
        return (0,)

    def call(self, partition: int, request: TransactionRequest, size: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        match request:
            case ListTransactions():
                wanted = request.producer_ids
                listed = (ListedTransaction(name, each.producer[0], each.state) for name, each in self.known.items())
                found = tuple(each for each in listed if not wanted or each.producer_id in wanted)
                future.set_result(ListTransactionsResponse(found))
            case DescribeTransactions():
                absent = KafkaCode.TRANSACTIONAL_ID_NOT_FOUND
                names = request.transactional_ids
                described = tuple(self.known.get(each, DescribedTransaction(each, absent)) for each in names)
                future.set_result(DescribeTransactionsResponse(described))
            case _:
                raise AssertionError(f"unexpected request {request!r}")
        return future


def ongoing(name: str, producer_id: int, *partitions: tuple[str, int]) -> DescribedTransaction:
    """Return a transactional id with an open transaction in these partitions, or without one."""
    state = "Ongoing" if partitions else "CompleteCommit"
    return DescribedTransaction(name, KafkaCode.NONE, state, 60_000, -1, ProducerKey(producer_id, 0), partitions)
