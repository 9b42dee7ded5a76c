"""What kctl transactions describe shows about the scope of a producer."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.client.cluster import Cluster
from quorumlog.client.scope_client import ScopeClient, ScopeDescription
from quorumlog.errors import ClusterError
from quorumlog.kctl.transactions import _scope_of
from quorumlog.wire.errors import ApiError, KafkaCode

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


async def test_the_producer_of_a_scope_is_shown_although_its_scope_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ClusterError(KafkaCode.RESOURCE_NOT_FOUND.name, "there is no such scope")
    assert await described(monkeypatch, missing, "__scope/job/0.1") is None
    assert await described(monkeypatch, SCOPE, "__scope/job/0.1") == SCOPE
    assert await described(monkeypatch, SCOPE, "billing") is None


async def test_a_coordinator_that_does_not_answer_about_a_scope_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="no answer"):
        await described(monkeypatch, ClusterError(ApiError.TIMED_OUT, "no answer", retriable=True), "__scope/job/0.1")
