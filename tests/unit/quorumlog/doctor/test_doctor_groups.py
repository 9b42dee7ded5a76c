"""kctl doctor: groups that are stuck, flap, fall behind or are unused, and coordinators that are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from quorumlog.client.cluster import Cluster
from quorumlog.client.coordinators import Coordinator
from quorumlog.client.group_descriptions import (
    CommittedOffset,
    GroupExplanation,
    GroupMember,
    ListedGroup,
    Rebalance,
)
from quorumlog.client.group_lag import LagSum, lag_of_all
from quorumlog.client.groups import GroupClient
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.doctor import examine as examination
from quorumlog.doctor import groups_observed
from quorumlog.doctor.groups import EMPTY_MS, FLAPS, FLAPS_WITHIN_MS, OFFSETS, STUCK_MS
from quorumlog.doctor.groups_observed import ObservedGroups, grows, look_at_groups
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import KafkaCode
from tests.unit.metadata.fake_node import run
from tests.unit.quorumlog.client.fake_groups import begin_join, commit_offsets, group_brokers, join_member
from tests.unit.quorumlog.client.fake_shares import share_brokers
from tests.unit.quorumlog.doctor.clinic import Clinic, Diagnose

NOW_MS = 1_700_000_000_000
MEMBER = GroupMember("app-1", None, "app", "/10.0.0.7", None, None)


def rebalance(age_ms: int, duration_ms: int | None = 5, reason: str = "joined") -> Rebalance:
    return Rebalance(NOW_MS - age_ms, duration_ms, 3, 2, False, reason, "member 'app-1' joined", MEMBER)


def explanation(
    *rebalances: Rebalance, name: str = "billing", empty_ms: int | None = None, awaited: tuple[GroupMember, ...] = ()
) -> GroupExplanation:
    since_ms = None if empty_ms is None else NOW_MS - empty_ms
    coordinator = Coordinator(12, Address("h12", 9092))
    state = "Stable" if empty_ms is None else "Empty"
    return GroupExplanation(name, "classic", state, 3, 2, coordinator, 0, NOW_MS, since_ms, None, awaited, rebalances)


@pytest.fixture
def seen(clinic: Clinic, monkeypatch: pytest.MonkeyPatch) -> ObservedGroups:
    """The reports of the coordinators of the clinic, which has a topic of offsets with two partitions."""
    groups = ObservedGroups()
    clinic.topic(OFFSETS, (11, 12, 13), (12, 13, 11))

    async def look(addresses: Iterable[str], timeout_s: float) -> ObservedGroups:
        assert list(addresses) == ["h11:9092", "h12:9092", "h13:9092"]
        return groups

    monkeypatch.setattr(examination, "look_at_groups", look)
    return groups


def explain(seen: ObservedGroups, *explanations: GroupExplanation) -> None:
    seen.explained = {each.group: each for each in explanations}


def test_healthy_groups_cause_no_finding(seen: ObservedGroups, diagnose: Diagnose) -> None:
    explain(
        seen,
        explanation(*[rebalance(FLAPS_WITHIN_MS + 1)] * FLAPS, *[rebalance(5)] * (FLAPS - 1)),
        explanation(rebalance(STUCK_MS - 1, None), name="young"),
        explanation(name="daily", empty_ms=EMPTY_MS),
    )
    assert diagnose() == ({}, 0)


def test_doctor_asks_no_coordinator_if_the_offsets_topic_does_not_exist(clinic: Clinic, diagnose: Diagnose) -> None:
    assert diagnose() == ({}, 0)


def test_doctor_names_the_members_that_block_a_stuck_rebalance(seen: ObservedGroups, diagnose: Diagnose) -> None:
    explain(seen, explanation(rebalance(STUCK_MS, None), name="my group", awaited=(MEMBER,)))
    findings, code = diagnose()
    found = findings["GROUP_STUCK"]
    assert (code, found["severity"], found["nodes"]) == (1, "problem", [12])
    assert found["what"] == 'group "my group" has been rebalancing for 60 s'
    assert 'waits for "app-1" ("app" at 10.0.0.7)' in found["cause"]
    assert found["next"].startswith("kctl groups explain 'my group'; ")


def test_frequent_rebalances_are_advice_with_the_most_frequent_reason(seen: ObservedGroups, diagnose: Diagnose) -> None:
    explain(seen, explanation(rebalance(9), *[rebalance(5, reason="session_expired")] * (FLAPS - 1)))
    findings, code = diagnose()
    assert (code, findings["GROUP_FLAPS"]["severity"]) == (0, "advice")
    assert findings["GROUP_FLAPS"]["cause"] == '"billing": 5 rebalances, 4 of them because: session_expired'


def test_groups_that_were_empty_for_days_are_advice_without_commands(seen: ObservedGroups, diagnose: Diagnose) -> None:
    explain(seen, explanation(name="b", empty_ms=EMPTY_MS + 1), explanation(name="a c", empty_ms=2 * EMPTY_MS))
    findings, code = diagnose()
    found = findings["GROUP_UNUSED"]
    assert (code, found["commands"], found["cause"]) == (0, [], '"a c" for 6 days; "b" for 3 days')
    assert found["next"].endswith("kctl groups delete 'a c' b --yes")


def total(lag: int, unknown: int = 0, state: str = "Stable", group_type: str = "classic") -> LagSum:
    return LagSum(ListedGroup("billing", group_type, state, "consumer", 12), 3, lag, unknown, ("t", 0), lag)


def test_lag_that_only_grows_is_advice(seen: ObservedGroups, diagnose: Diagnose) -> None:
    seen.lags, seen.watched_s = {"billing": [total(5, state="Empty"), total(9, state="Empty")]}, 12.04
    findings, code = diagnose()
    found = findings["LAG_GROWS"]
    assert (code, found["cause"]) == (0, '"billing" (Empty): from 5 to 9')
    assert found["what"] == "the lag of 1 group grew in each of 2 samples within 12 s"
    assert found["next"].startswith("kctl groups lag billing --follow; ")
    assert "members, up to the number of partitions, and start the members of groups that have none" in found["next"]


def test_a_share_group_whose_lag_grows_may_get_more_members_than_partitions(
    seen: ObservedGroups, diagnose: Diagnose
) -> None:
    seen.lags, seen.watched_s = {"billing": [total(5, group_type="share"), total(9, group_type="share")]}, 12.0
    findings, code = diagnose()
    assert (code, findings["LAG_GROWS"]["cause"]) == (0, '"billing" (Stable): from 5 to 9')
    assert findings["LAG_GROWS"]["next"] == "kctl groups lag billing --follow; add members"


def test_lag_grows_only_if_each_complete_sample_is_higher() -> None:
    assert grows([total(1), total(2), total(3)])
    assert not grows([total(1), total(2), total(2)])
    assert not grows([total(3), total(1), total(4)])
    assert not grows([total(1), total(2, unknown=1)])


def test_coordinators_that_do_not_answer_are_a_problem(seen: ObservedGroups, diagnose: Diagnose) -> None:
    seen.problem = "broker 12: the coordinator is still loading"
    findings, code = diagnose()
    assert (code, findings["GROUPS_UNKNOWN"]["cause"]) == (1, seen.problem)
    assert "kctl groups list" in findings["GROUPS_UNKNOWN"]["next"]


def test_offsets_partitions_without_a_leader_are_critical(
    clinic: Clinic, seen: ObservedGroups, diagnose: Diagnose
) -> None:
    partition = clinic.metadata.topics[0].partitions[1]
    partition.leader, partition.isr[:] = -1, []
    findings, code = diagnose()
    found = findings["NO_COORDINATOR"]
    assert (code, found["severity"], found["partitions"]) == (1, "critical", [f"{OFFSETS}-1"])
    assert "OFFLINE" in findings


def test_too_few_replicas_of_the_offsets_topic_are_advice_with_a_command(
    clinic: Clinic, seen: ObservedGroups, diagnose: Diagnose
) -> None:
    partition = clinic.metadata.topics[0].partitions[1]
    del partition.replicas[2], partition.isr[2], partition.replica_states[2]
    findings, code = diagnose()
    found = findings["OFFSETS_UNDER_REPLICATED"]
    assert (code, found["partitions"]) == (0, [f"{OFFSETS}-1"])
    (command,) = found["commands"]
    assert command.startswith(f"kctl reassign generate --topic {OFFSETS} --replication-factor 3 | ")


def test_the_offsets_topic_gets_no_advice_that_would_be_refused_or_remove_replicas(
    seen: ObservedGroups, diagnose: Diagnose, clinic: Clinic
) -> None:
    small, large = clinic.metadata.topics[0].partitions
    del small.replicas[2], small.isr[2], small.replica_states[2]
    large.replicas.add(broker_id=14, directory_id=b"\2" * 16)
    large.isr.append(14)
    large.replica_states.append("online")
    found = diagnose()[0]["OFFSETS_UNDER_REPLICATED"]
    assert found["commands"] == []
    assert found["next"] == f"start another broker before {OFFSETS} can have more replicas"
    clinic.metadata.brokers.add(broker_id=14, state="unfenced")
    (command,) = diagnose()[0]["OFFSETS_UNDER_REPLICATED"]["commands"]
    assert command.startswith(f"kctl reassign generate --topic {OFFSETS} --replication-factor 4 | ")
    large.adding.append(14)
    assert "OFFSETS_UNDER_REPLICATED" not in diagnose()[0]


def test_doctor_asks_for_no_more_replicas_of_offsets_than_brokers_may_get(
    clinic: Clinic, seen: ObservedGroups, diagnose: Diagnose
) -> None:
    partition = clinic.metadata.topics[0].partitions[1]
    del partition.replicas[2], partition.isr[2], partition.replica_states[2]
    clinic.metadata.configs.add(scope=3, resource="12", key="cordoned", value="true")
    assert diagnose()[0].keys() == {"CORDONED"}


# -- queries to coordinators


def quick(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    for name, value in {"SAMPLE_EVERY_S": 0.05, **limits}.items():
        monkeypatch.setattr(groups_observed, name, value)


async def test_doctor_returns_lag_samples_only_of_groups_whose_lag_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, SAMPLES_MAX=3)
    async with group_brokers() as (brokers, groups):
        await brokers.create("orders", [1])
        commit_offsets(groups, "b", 0)
        commit_offsets(groups, "a", 0)
        ask = lag_of_all

        async def fill_and_ask(client: GroupClient, cluster: Cluster, *rest: Any) -> list[LagSum]:
            await brokers.fill("orders", 0, build_batch([NewRecord(None, b"x", 1)]))
            await client.commit("a", {("orders", 0): CommittedOffset(len(brokers.shared.logs["orders", 0].batches))}, 5)
            return await ask(client, cluster, *rest)

        monkeypatch.setattr(groups_observed, "lag_of_all", fill_and_ask)
        seen = await look_at_groups(brokers.bootstrap.split(","), 10)
        assert (seen.problem, [each.group for each in seen.listed]) == ("", ["a", "b"])
        assert {name: [each.lag for each in samples] for name, samples in seen.lags.items()} == {"b": [1, 2, 3]}
        assert seen.watched_s > 0
        monkeypatch.setattr(groups_observed, "lag_of_all", ask)
        assert (await look_at_groups(brokers.bootstrap.split(","), 10)).lags == {}
        assert (await look_at_groups(brokers.bootstrap.split(","), 0.04)).lags == {}


async def test_doctor_samples_the_lag_of_a_share_group_unless_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, SAMPLES_MAX=3)
    async with share_brokers() as (brokers, _, shares):
        shares.join("b")
        shares.starts = {0: 2, 1: 3}
        ask = lag_of_all

        async def fill_and_ask(*arguments: Any) -> list[LagSum]:
            await brokers.fill("orders", 0, build_batch([NewRecord(None, b"x", 1)]))
            return await ask(*arguments)

        monkeypatch.setattr(groups_observed, "lag_of_all", fill_and_ask)
        seen = await look_at_groups(brokers.bootstrap.split(","), 10)
        assert (seen.problem, [each.group_type for each in seen.listed]) == ("", ["share"])
        assert {name: [each.lag for each in samples] for name, samples in seen.lags.items()} == {"b": [2, 3, 4]}
        assert seen.explained == {}
        shares.unknown.add(1)
        assert (await look_at_groups(brokers.bootstrap.split(","), 10)).lags == {}


async def test_doctor_explains_groups_and_reports_a_coordinator_that_is_still_loading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick(monkeypatch, LIST_S=0.6)
    async with group_brokers() as (brokers, groups):
        member_id = join_member(groups, "b")
        begin_join(groups, "b")
        seen = await look_at_groups(brokers.bootstrap.split(","), 10)
        assert [each.member_id for each in seen.explained["b"].awaited] == [member_id]
        groups.refusal = KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
        seen = await look_at_groups(brokers.bootstrap.split(","), 10)
        assert "broker 1: the list of its groups: the coordinator is still loading" in seen.problem


class SilentCoordinators:
    """A client that lists groups at once, and gets no answer about any of them."""

    def __init__(self, groups: int) -> None:
        self.listed = [ListedGroup(f"g{number}", "classic", "Stable", "consumer", 1) for number in range(groups)]

    def __call__(self, *_: object) -> SilentCoordinators:
        return self

    async def list_groups(self, _timeout_s: float) -> list[ListedGroup]:
        return self.listed

    async def explain(self, group: str, timeout_s: float) -> GroupExplanation:
        await asyncio.sleep(timeout_s)
        raise ClusterError("TIMED_OUT", f"group {group}: no answer", retriable=True)


@pytest.mark.parametrize(("timeout_s", "spent_max_s"), [(20.0, 3.5), (1.0, 1.5)])
def test_doctor_waits_for_silent_coordinators_of_many_groups_only_once(
    timeout_s: float, spent_max_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups_observed, "GroupClient", SilentCoordinators(groups_observed.EXPLAINED_MAX))

    async def spent_s() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert "no answer" in (await look_at_groups(["127.0.0.1:1"], timeout_s)).problem
        return loop.time() - begun

    assert run(spent_s()) <= spent_max_s
