"""When the abort of a transaction counts as complete."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.client.cluster import Cluster
from quorumlog.client.transaction_admin import TransactionClient, TransactionDescription
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError

FOUND = TransactionDescription("billing", "Ongoing", 7, 3, 60_000, 1_000, (("ledger", 0),), 1)
DECIDED = FOUND._replace(state="PrepareAbort")
MISSING = ClusterError(ApiError.TRANSACTIONAL_ID_NOT_FOUND, "there is no such transactional id")
UNREACHABLE = ClusterError(ApiError.TIMED_OUT, "no answer")


async def wait(
    monkeypatch: pytest.MonkeyPatch, *answers: TransactionDescription | ClusterError, patience_s: float = 20.0
) -> int:
    """Wait for the end of the transaction, whose descriptions are `answers`; return how many were asked for."""
    client = TransactionClient(cast(Cluster, SimpleNamespace(random=None)))
    asked = 0

    async def describe(transactional_id: str, timeout_s: float) -> Any:
        nonlocal asked
        assert transactional_id == "billing"
        answer = answers[min(asked, len(answers) - 1)]
        asked += 1
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    monkeypatch.setattr(client, "describe", describe)
    await client._ended(FOUND, asyncio.get_running_loop().time() + patience_s)
    return asked


async def test_an_abort_waits_for_every_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await wait(monkeypatch, FOUND, DECIDED, FOUND._replace(state="CompleteAbort", started_ms=None)) == 3


async def test_a_transaction_whose_id_no_longer_exists_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator deletes a transaction of a scope as soon as it is complete."""
    assert await wait(monkeypatch, DECIDED, MISSING) == 2


async def test_an_error_of_the_coordinator_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="no answer"):
        await wait(monkeypatch, UNREACHABLE)


@pytest.mark.parametrize("later", [{"producer_id": 8}, {"started_ms": 2_000}])
async def test_a_later_transaction_shows_that_the_aborted_one_has_ended(
    monkeypatch: pytest.MonkeyPatch, later: dict[str, int]
) -> None:
    assert await wait(monkeypatch, FOUND._replace(**cast(Any, later))) == 1


async def test_an_abort_without_markers_is_reported_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="billing is PrepareAbort: some partitions lack the marker") as failure:
        await wait(monkeypatch, DECIDED, patience_s=0.3)
    assert failure.value.code == "TIMED_OUT"
