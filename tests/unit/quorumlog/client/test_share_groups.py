"""The admin client of share groups, against real state machines and listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from broker.core.coordinator.share.requests import ListShareStatesResponse
from quorumlog.client.cluster import Cluster
from quorumlog.client.group_descriptions import ListedGroup
from quorumlog.client.group_lag import lag_of_all
from quorumlog.client.groups import GroupClient
from quorumlog.client.share_groups import ShareOffset, share_offset
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.kafka.wellness import until
from tests.unit.quorumlog.client.fake_groups import GroupsOfCluster, commit_offsets
from tests.unit.quorumlog.client.fake_shares import FakeShares, share_brokers

TIMEOUT_S = 20.0
G = "b"
"""A group that broker 1 coordinates."""


class Setting(NamedTuple):
    groups: GroupsOfCluster
    shares: FakeShares
    cluster: Cluster
    client: GroupClient


@pytest.fixture
async def each() -> AsyncIterator[Setting]:
    async with share_brokers() as (brokers, groups, shares), Cluster(brokers.bootstrap) as cluster:
        yield Setting(groups, shares, cluster, GroupClient(cluster))


async def test_describe_returns_the_start_offsets_and_lags_of_share_partitions(each: Setting) -> None:
    each.shares.join(G)
    each.shares.starts = {0: 1}
    assert await each.client.shares.describe(G, TIMEOUT_S) == {
        ("orders", 0): ShareOffset(1, 2),
        ("orders", 1): ShareOffset(None, None),
    }
    each.shares.unknown = {0}
    assert (await each.client.shares.describe(G, TIMEOUT_S))["orders", 0] == ShareOffset(1, None)


def test_unknown_start_offsets_and_lags_are_none() -> None:
    def answer(error_code: int = 0, start_offset: int = 5, **rest: object) -> SimpleNamespace:
        return SimpleNamespace(
            **{"error_code": error_code, "start_offset": start_offset, "error_message": None, **rest}
        )

    assert share_offset(answer(lag=0), "t-0") == ShareOffset(5, 0), "a lag of 0 is known"
    assert share_offset(answer(start_offset=0, lag=9), "t-0") == ShareOffset(0, 9)
    assert share_offset(answer(lag=-1), "t-0") == ShareOffset(5, None)
    assert share_offset(answer(), "t-0") == ShareOffset(5, None), "version 0 has no lag"
    assert share_offset(answer(start_offset=-1, lag=-1), "t-0") == ShareOffset(None, None)
    failed = share_offset(answer(int(KafkaCode.COORDINATOR_NOT_AVAILABLE), lag=3, error_message="it hangs"), "t-0")
    assert (failed.start, failed.lag) == (None, None)
    assert failed.problem is not None
    assert failed.problem.startswith("the offset of t-0: ")
    assert failed.problem.endswith(": it hangs")


async def test_share_offset_calls_for_a_group_of_another_type_fail_with_group_id_not_found(each: Setting) -> None:
    commit_offsets(each.groups, G, 1)
    for call in (each.client.shares.describe(G, TIMEOUT_S), each.client.shares.delete(G, ["orders"], TIMEOUT_S)):
        with pytest.raises(ClusterError) as refusal:
            await call
        assert refusal.value.code == "GROUP_ID_NOT_FOUND"


async def test_start_offsets_that_an_unavailable_coordinator_refuses_are_set_again(each: Setting) -> None:
    each.shares.refusals = {1: KafkaCode.COORDINATOR_NOT_AVAILABLE}
    altering = asyncio.ensure_future(each.client.shares.alter(G, {("orders", 0): 2, ("orders", 1): 1}, TIMEOUT_S))
    await until(lambda: each.shares.starts == {0: 2})
    assert not altering.done()
    each.shares.refusals = {}
    assert await altering == {}
    assert await each.client.shares.describe(G, TIMEOUT_S) == {
        ("orders", 0): ShareOffset(2, 1),
        ("orders", 1): ShareOffset(1, 2),
    }
    each.shares.refusals = {1: KafkaCode.POLICY_VIOLATION}
    refusals = await each.client.shares.alter(G, {("orders", 0): 3, ("orders", 1): 3}, TIMEOUT_S)
    assert {key: error.code for key, error in refusals.items()} == {("orders", 1): "POLICY_VIOLATION"}


async def test_a_repeated_deletion_of_offsets_succeeds(each: Setting) -> None:
    each.shares.join(G)
    with pytest.raises(ClusterError) as refusal:
        await each.client.shares.delete(G, ["orders"], TIMEOUT_S)
    assert refusal.value.code == "NON_EMPTY_GROUP"
    each.shares.leave(G)
    assert len(await each.client.shares.describe(G, TIMEOUT_S)) == 2
    assert await each.client.shares.delete(G, ["orders"], TIMEOUT_S) == {}
    assert await each.client.shares.describe(G, TIMEOUT_S) == {}
    assert await each.client.shares.delete(G, ["orders"], TIMEOUT_S) == {}


async def test_lags_of_groups_of_all_types_are_in_the_requested_order(each: Setting) -> None:
    each.shares.join(G)
    each.shares.starts = {0: 1, 1: 3}
    commit_offsets(each.groups, "a", 1, 1)
    listed = await each.client.list_groups(TIMEOUT_S)
    sums = await lag_of_all(each.client, each.cluster, listed, TIMEOUT_S)
    assert [(total.group.group, total.group.group_type, total.lag, total.worst_lag) for total in sums] == [
        ("a", "classic", 4, 2),
        ("b", "share", 2, 2),
    ]


async def test_a_share_group_that_was_deleted_since_it_was_listed_has_no_lag(each: Setting) -> None:
    listed = [ListedGroup("deleted", "share", "Empty", "share", 2)]
    (total,) = await lag_of_all(each.client, each.cluster, listed, TIMEOUT_S)
    assert (total.partitions, total.lag, total.unknown, total.worst) == (0, 0, 0, None)


async def test_a_share_group_whose_coordinator_loads_is_not_treated_as_deleted(
    each: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def loading(group: str, wanted: object) -> tuple[ListShareStatesResponse, list[object]]:
        return ListShareStatesResponse(KafkaCode.COORDINATOR_LOAD_IN_PROGRESS), []

    each.shares.join(G)
    listed = await each.client.list_groups(TIMEOUT_S)
    monkeypatch.setattr(each.shares, "describe_offsets", loading)
    with pytest.raises(ClusterError) as refusal:
        await lag_of_all(each.client, each.cluster, listed, 0.5)
    assert refusal.value.code == "TIMED_OUT"
