"""The abort of a transaction: its completion, and repeated requests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.client.cluster import Cluster
from quorumlog.client.scope_client import ScopeClient
from quorumlog.client.transaction_admin import TransactionClient, TransactionDescription
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError, KafkaCode
from tests.unit.quorumlog.client.fake_cluster import fake_brokers

NAME = "-billing 1"
FOUND = TransactionDescription(NAME, "Ongoing", 7, 3, 60_000, 1_000, (("ledger", 0),), 1)
DECIDED = FOUND._replace(state="PrepareAbort")
MISSING = ClusterError(ApiError.TRANSACTIONAL_ID_NOT_FOUND, "there is no such transactional id")
UNREACHABLE = ClusterError(ApiError.TIMED_OUT, "no answer")


async def wait(
    monkeypatch: pytest.MonkeyPatch, *answers: TransactionDescription | ClusterError, patience_s: float = 20.0
) -> int:
    """Wait for the end of the transaction whose descriptions are `answers`; return the number of requests."""
    client = TransactionClient(cast(Cluster, SimpleNamespace(random=None)))
    asked = 0

    async def describe(transactional_id: str, timeout_s: float) -> Any:
        nonlocal asked
        assert transactional_id == NAME
        answer = answers[min(asked, len(answers) - 1)]
        asked += 1
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    monkeypatch.setattr(client, "describe", describe)
    await client._ended(FOUND, asyncio.get_running_loop().time() + patience_s)
    return asked


async def test_an_abort_waits_until_the_transaction_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await wait(monkeypatch, FOUND, DECIDED, FOUND._replace(state="CompleteAbort", started_ms=None)) == 3


async def test_a_transaction_whose_id_no_longer_exists_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator deletes the id of a scope's producer as soon as its transaction is complete."""
    assert await wait(monkeypatch, DECIDED, MISSING) == 2


async def test_an_error_of_the_coordinator_does_not_count_as_the_end_of_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ClusterError, match="no answer"):
        await wait(monkeypatch, UNREACHABLE)


@pytest.mark.parametrize("later", [{"producer_id": 8}, {"started_ms": 2_000}])
async def test_a_later_transaction_shows_that_the_aborted_one_has_ended(
    monkeypatch: pytest.MonkeyPatch, later: dict[str, int]
) -> None:
    assert await wait(monkeypatch, FOUND._replace(**cast(Any, later))) == 1


async def test_an_abort_whose_markers_are_missing_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match="billing 1 is PrepareAbort: some partitions lack the marker") as failure:
        await wait(monkeypatch, DECIDED, patience_s=0.3)
    assert failure.value.code == "TIMED_OUT"
    assert failure.value.next_step is not None
    assert failure.value.next_step.endswith(": kctl transactions describe -- '-billing 1'")


class LossyCalls:
    """The coordinator of a transaction.  It answers with `codes`, and all answers but the last one are lost."""

    def __init__(self, *codes: KafkaCode) -> None:
        self._codes = list(codes)

    async def call(self, key: str, timeout_s: float, attempt: Any) -> None:
        while len(self._codes) > 1:
            with pytest.raises(ClusterError, match="lost"):
                await attempt(None, timeout_s)
        await attempt(None, timeout_s)

    async def ask(self, connection: None, api: Any, values: Any, left_s: float) -> Any:
        code = self._codes.pop(0)
        if self._codes:
            raise ClusterError(ApiError.REQUEST_TIMED_OUT, "the answer got lost", retriable=True)
        return SimpleNamespace(error_code=code)

    def name_of(self, key: str) -> str:
        return f"transactional id {key}"


async def abort(monkeypatch: pytest.MonkeyPatch, name: str, *codes: KafkaCode) -> None:
    client = TransactionClient(cast(Cluster, SimpleNamespace(random=None)))
    monkeypatch.setattr(client, "_calls", LossyCalls(*codes))

    async def ended(transactional_id: str, timeout_s: float) -> Any:
        raise MISSING

    monkeypatch.setattr(client, "describe", ended)
    await client.abort(FOUND._replace(transactional_id=name), 5.0)


async def test_an_abort_whose_answer_was_lost_succeeds_although_the_scope_no_longer_has_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator deletes a scope's producer once its transaction is complete, so a repeated request finds none."""
    await abort(monkeypatch, "__scope/job/0.1", KafkaCode.NONE, KafkaCode.INVALID_PRODUCER_ID_MAPPING)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("__scope/job/0.1", [KafkaCode.INVALID_PRODUCER_ID_MAPPING]),
        ("billing", [KafkaCode.NONE, KafkaCode.INVALID_PRODUCER_ID_MAPPING]),
    ],
)
async def test_an_abort_fails_if_the_transactional_id_belongs_to_another_producer(
    monkeypatch: pytest.MonkeyPatch, name: str, codes: list[KafkaCode]
) -> None:
    with pytest.raises(ClusterError) as refusal:
        await abort(monkeypatch, name, *codes)
    assert refusal.value.code == KafkaCode.INVALID_PRODUCER_ID_MAPPING.name


async def test_a_missing_transactional_id_is_reported_without_creating_the_topic_that_holds_the_ids() -> None:
    async with fake_brokers() as brokers, Cluster(brokers.bootstrap) as cluster:
        for describe, code in (
            (TransactionClient(cluster).describe, "TRANSACTIONAL_ID_NOT_FOUND"),
            (ScopeClient(cluster).describe, "RESOURCE_NOT_FOUND"),
        ):
            with pytest.raises(ClusterError) as refused:
                await describe("billing", 5.0)  # a look-up of the coordinator would fail, and be repeated
            assert refused.value.code == code
