"""A producer of a scope: its state after a failure, and a `Producer` that writes its records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn, cast

import pytest

from quorumlog.client import ClusterError, ConfigError, Producer, ScopeClient, StagedProducer, Winner
from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import CoordinatorCalls
from quorumlog.client.scope_client import OpenScope
from quorumlog.wire.errors import ApiError
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers, fake_brokers

WINNER = Winner("0", 7, 3)


class SilentCoordinator:
    async def call(self, key: str, timeout_s: float, attempt: Any) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError


class AcceptingCoordinator:
    async def call(self, key: str, timeout_s: float, attempt: Any) -> None:
        pass


class RefusingCoordinator:
    async def call(self, key: str, timeout_s: float, attempt: Any) -> NoReturn:
        raise ClusterError(ApiError.PRODUCER_FENCED, "a later run began")


def staged_at(coordinator: object) -> StagedProducer:
    return StagedProducer(cast(CoordinatorCalls, coordinator), "job", "__scope/job/0", WINNER)


@pytest.fixture
async def brokers() -> AsyncIterator[FakeBrokers]:
    async with fake_brokers() as started:
        await started.create("t", [1, 2])
        yield started


def test_a_staged_producer_that_has_failed_cannot_be_the_winner() -> None:
    staged = staged_at(SilentCoordinator())
    assert (staged.winner, staged.identity, staged.refusal) == (WINNER, (7, 3), None)
    first = ClusterError(ApiError.TIMED_OUT, "t-0 did not answer")
    staged.failed(first)
    staged.failed(ClusterError(ApiError.PRODUCER_FENCED, "later"))
    with pytest.raises(ClusterError, match="t-0 did not answer") as failure:
        _ = staged.winner
    assert failure.value.code == "TRANSACTION_ABORTABLE"
    assert failure.value.__cause__ is first
    assert staged.refusal is not None
    assert str(staged.refusal) == str(failure.value)
    assert staged.identity == (7, 3), "the producer can still be aborted"


def connections(brokers: FakeBrokers) -> int:
    return sum(len(server._connections) for server in brokers.servers.values())


async def test_a_scope_client_closes_its_own_connections(brokers: FakeBrokers) -> None:
    async with ScopeClient(brokers.bootstrap) as scopes:
        await scopes.is_served()
        assert connections(brokers) > 0
    async with asyncio.timeout(10):
        while connections(brokers):  # noqa: ASYNC110  # the brokers report no event to the test
            await asyncio.sleep(0.01)  # until the brokers have read the end of the connections


async def test_a_scope_client_leaves_the_connections_of_a_given_cluster_open(brokers: FakeBrokers) -> None:
    async with Cluster(brokers.bootstrap) as cluster:
        async with ScopeClient(cluster) as scopes:
            await scopes.is_served()
        async with ScopeClient(cluster) as scopes:
            await scopes.is_served()


async def test_a_partition_that_the_coordinator_refuses_fails_the_staged_producer(brokers: FakeBrokers) -> None:
    staged = staged_at(RefusingCoordinator())
    async with Producer(brokers.bootstrap, staged=staged) as producer:
        with pytest.raises(ClusterError, match="a later run began"):
            await producer.send_and_wait("t", b"v", partition=0)
        with pytest.raises(ClusterError, match="a later run began") as refused:
            await producer.send("t", b"v", partition=1)
        assert refused.value.code == "TRANSACTION_ABORTABLE"
    with pytest.raises(ClusterError):
        _ = staged.winner
    assert await brokers.records("t", 0) == []


async def test_a_staged_producer_whose_records_were_discarded_cannot_be_the_winner(brokers: FakeBrokers) -> None:
    staged = staged_at(SilentCoordinator())
    producer = Producer(brokers.bootstrap, staged=staged)
    await producer.start()
    await producer.send("t", b"v", partition=0)
    assert staged.winner == WINNER
    await producer.close(flush=False)
    with pytest.raises(ClusterError, match="closed"):
        _ = staged.winner


async def test_a_staged_producer_that_closes_without_a_failure_may_be_the_winner(brokers: FakeBrokers) -> None:
    staged = staged_at(AcceptingCoordinator())
    async with Producer(brokers.bootstrap, staged=staged) as producer:
        await producer.send("t", b"v", partition=0)
    assert staged.winner == WINNER
    assert not staged.is_empty
    assert [record.value for record in await brokers.records("t", 0)] == [b"v"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [({"transactional_id": "a"}, "has no transactional_id"), ({"acks": "leader"}, "acks='all'")],
)
def test_arguments_that_contradict_a_scope_are_refused(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Producer("localhost:1", staged=staged_at(SilentCoordinator()), **arguments)


SCOPE = OpenScope("job", 1, -1)


@pytest.mark.parametrize(
    ("call", "code", "problem"),
    [
        (lambda scopes: scopes.open("job", "", "run"), "INVALID_REQUEST", "the owner has 0 bytes, not 1 to 249"),
        (lambda scopes: scopes.open("job", "me", "\ud800"), "INVALID_REQUEST", "the run has a control character"),
        (lambda scopes: scopes.open("\n", "me", "run"), "INVALID_REQUEST", "the name of the scope has a control"),
        (lambda scopes: scopes.describe("\ud800"), "INVALID_REQUEST", "the name of the scope has a control"),
        (lambda scopes: scopes.end(SCOPE, 1, [Winner("\ud800", 1, 1)]), "INVALID_REQUEST", "the attempt has a control"),
        (lambda scopes: scopes.begin(SCOPE, "a/b"), "INVALID_REQUEST", "the attempt has a slash"),
        (
            lambda scopes: scopes.begin(SCOPE, "a", transaction_timeout_ms=30 * 86_400_000),
            "INVALID_TRANSACTION_TIMEOUT",
            "the timeout is 2592000000 ms, not 1 to 2147483647",
        ),
        (lambda scopes: scopes.end(SCOPE, 2**63, []), "INVALID_REQUEST", "the sequence is 9223372036854775808, not 0"),
        (lambda scopes: scopes.end(SCOPE, -1, []), "INVALID_REQUEST", "the sequence is -1, not 0"),
    ],
)
async def test_arguments_that_the_protocol_cannot_express_are_refused(call: Any, code: str, problem: str) -> None:
    async with ScopeClient("localhost:1") as scopes:
        with pytest.raises(ClusterError, match=problem) as refusal:
            await call(scopes)
    assert refusal.value.code == code
