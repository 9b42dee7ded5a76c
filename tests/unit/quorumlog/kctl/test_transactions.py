"""kctl transactions describe: the scope of a producer, and the clock that judges transactions."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.client.cluster import Cluster
from quorumlog.client.scope_client import ScopeClient, ScopeDescription
from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.transactions import _clusters_time_ms, _scope_of
from quorumlog.runtime.clock import Sources
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import node_pb2

SCOPE = ScopeDescription("job", "owner", "run", 1, "Open", -1, 0, ())


async def described(monkeypatch: pytest.MonkeyPatch, answer: ScopeDescription | ClusterError, name: str) -> Any:
    async def describe(client: ScopeClient, scope: str, timeout_s: float) -> ScopeDescription:
        assert scope == "job"
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    monkeypatch.setattr(ScopeClient, "describe", describe)
    async with Cluster("localhost:1") as cluster:
        return await _scope_of(cluster, name, 1.0)


async def test_a_deleted_scope_of_a_producer_is_treated_as_no_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ClusterError(KafkaCode.RESOURCE_NOT_FOUND.name, "there is no such scope")
    assert await described(monkeypatch, missing, "__scope/job/0.1") is None
    assert await described(monkeypatch, SCOPE, "__scope/job/0.1") == SCOPE
    assert await described(monkeypatch, SCOPE, "billing") is None


async def test_a_coordinator_that_does_not_answer_about_a_scope_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="no answer"):
        await described(monkeypatch, ClusterError(ApiError.TIMED_OUT, "no answer", retriable=True), "__scope/job/0.1")


class Clock:
    """A client of two nodes, of which the first does not answer; if `wall_ms` is None, the second does not either."""

    def __init__(self, wall_ms: int | None) -> None:
        self._wall_ms = wall_ms

    async def __aenter__(self) -> Clock:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    addresses = ("h1:1", "h2:1")

    async def ask_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        assert rpc == rpcs.DESCRIBE_NODE
        if self._wall_ms is None or address == "h1:1":
            raise ClusterError(ApiError.UNAVAILABLE, "no answer", retriable=True)
        return node_pb2.DescribeNodeReply(wall_ms=self._wall_ms)


async def test_the_time_of_the_cluster_is_the_clock_of_a_node_or_else_of_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Context, "client", lambda _context: Clock(1_000))
    assert await _clusters_time_ms(Context()) == 1_000
    monkeypatch.setattr(Context, "client", lambda _context: Clock(None))
    before_ms = Sources.real().wall_ms()
    assert before_ms <= await _clusters_time_ms(Context()) <= Sources.real().wall_ms()
