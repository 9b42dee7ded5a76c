"""Requests to many leaders: time limits and results if some leaders hang, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random

import pytest

from quorumlog.client.cluster import CONNECT_TIMEOUT_S, Cluster, _Leader, _Topic
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.leader_calls import Partition, ask_leaders
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError
from tests.unit.metadata.fake_node import run

CONNECTS_LATE, ANSWERS_LATE, HEALTHY = 1, 2, 3
"""The leaders of the partitions with these indexes."""
PAUSE_S = 0.1


class Brokers(Cluster):
    """A cluster with three leaders, two of which hang."""

    def __init__(self) -> None:
        super().__init__("bootstrap:1", random=Random(1))
        leaders = (CONNECTS_LATE, ANSWERS_LATE, HEALTHY)
        self._view.brokers = {number: Address(f"b{number}", 1) for number in leaders}
        self._view.topics["t"] = _Topic(None, False, {number: _Leader(number, 0) for number in leaders}, 0, 0.0)
        self.answered_s: list[float] = []

    async def look_up(self, topics: Iterable[str], timeout_s: float) -> None:
        assert set(topics) == {"t"}

    async def _refreshed(self, topics: frozenset[str] | None, newer_than: int) -> None: ...

    async def _connection(self, address: Address) -> KafkaConnection:
        if address.host == f"b{CONNECTS_LATE}":
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise ClusterError(ApiError.BROKER_UNAVAILABLE, "no connection", retriable=True)
        return KafkaConnection(address.host, address.port)

    async def ask_leader(
        self, leader: KafkaConnection, keys: list[Partition], left_s: float
    ) -> dict[Partition, int | ClusterError]:
        if leader.host == f"b{ANSWERS_LATE}":
            await asyncio.sleep(left_s)
            raise ClusterError(ApiError.REQUEST_TIMED_OUT, "no answer", retriable=True)
        self.answered_s.append(asyncio.get_running_loop().time())
        return dict.fromkeys(keys, 7)


@pytest.mark.parametrize("limit_s", [1.0, 4.0, 8.0])
def test_leaders_that_hang_delay_neither_the_other_leaders_nor_the_end_of_a_call(limit_s: float) -> None:
    async def case() -> None:
        brokers = Brokers()
        began_s = asyncio.get_running_loop().time()
        wanted = [("t", index) for index in (CONNECTS_LATE, ANSWERS_LATE, HEALTHY)]
        found = await ask_leaders(brokers, wanted, limit_s, brokers.ask_leader)
        assert asyncio.get_running_loop().time() - began_s <= limit_s + PAUSE_S
        assert found["t", HEALTHY] == 7
        assert [time_s - began_s for time_s in brokers.answered_s] == [0]
        for index in (CONNECTS_LATE, ANSWERS_LATE):
            error = found["t", index]
            assert isinstance(error, ClusterError)
            assert error.retriable

    run(case())
