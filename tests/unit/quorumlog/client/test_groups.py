"""The client of groups, against real state machines and listeners whose coordinators move, refuse and hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import pytest

from broker.core.coordinator import group_requests as g
from metadata.image import ClusterImage
from quorumlog.client import coordinators
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST
from quorumlog.client.group_descriptions import CommittedOffset, GroupMember, ListedGroup
from quorumlog.client.group_lag import known_lags
from quorumlog.client.group_protocol import assigned_partitions, subscribed_topics
from quorumlog.client.groups import GroupClient
from quorumlog.client.log_offsets import list_offsets
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.core.coordinator.driver import subscription
from tests.unit.broker.kafka.wellness import until
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers, fake_brokers
from tests.unit.quorumlog.client.fake_groups import OFFSETS, GroupsOfCluster, group_brokers, join_member

TIMEOUT_S = 10.0
ON_1, ON_2 = "b", "a"
"""Groups of partition 0 and 1 of `__consumer_offsets`, which brokers 1 and 2 coordinate."""
ORDERS = ("orders", 0)


class Setting(NamedTuple):
    brokers: FakeBrokers
    groups: GroupsOfCluster
    client: GroupClient


@asynccontextmanager
async def setting() -> AsyncIterator[Setting]:
    async with group_brokers() as (brokers, coordinators), Cluster(brokers.bootstrap) as cluster:
        yield Setting(brokers, coordinators, GroupClient(cluster))


async def join(each: Setting, group: str) -> str:
    """Let one member join the group, and return its id."""
    return join_member(each.groups, group)


@contextmanager
def refused(code: str) -> Iterator[None]:
    with pytest.raises(ClusterError) as refusal:
        yield
    assert refusal.value.code == code, refusal.value


async def test_groups_of_all_brokers_are_listed() -> None:
    async with setting() as each:
        assert await each.client.list_groups(TIMEOUT_S) == []
        await join(each, ON_1)
        await each.client.commit(ON_2, {ORDERS: CommittedOffset(5)}, TIMEOUT_S)
        listed = await each.client.list_groups(TIMEOUT_S)
        simple = ListedGroup(ON_2, "classic", "Empty", "", 2)
        assert listed == [simple, ListedGroup(ON_1, "classic", "Stable", "consumer", 1)]
        assert await each.client.list_groups(TIMEOUT_S, ["empty"]) == [simple]


async def test_a_group_is_described_although_another_call_forgets_its_coordinator_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with setting() as each:
        await join(each, ON_1)
        calls = each.client.calls
        answer_of = calls.answer_of

        def another_call_fails(key: str, *arguments: Any) -> Any:
            calls.forget(key)
            return answer_of(key, *arguments)

        monkeypatch.setattr(calls, "answer_of", another_call_fails)
        assert (await each.client.describe(ON_1, TIMEOUT_S)).coordinator.broker_id == 1
        assert (await each.client.explain(ON_1, TIMEOUT_S)).coordinator.broker_id == 1


async def test_list_groups_waits_for_a_broker_whose_coordinators_are_loading() -> None:
    async with setting() as each:
        await each.client.commit(ON_2, {ORDERS: CommittedOffset(5)}, TIMEOUT_S)
        each.groups.refusal = KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
        listing = asyncio.ensure_future(each.client.list_groups(TIMEOUT_S))
        await until(lambda: len(each.groups.asked) >= 6)
        each.groups.refusal = None
        assert [found.group for found in await listing] == [ON_2]


@pytest.mark.parametrize("has_listed", [False, True])
async def test_list_groups_waits_until_a_broker_is_unfenced(has_listed: bool) -> None:
    """While the brokers are starting, they are fenced, and their metadata names no broker."""
    async with setting() as each:
        await join(each, ON_1)
        if has_listed:
            await each.client.list_groups(TIMEOUT_S)
        for replicas in each.brokers.replicas.values():
            replicas.behind = ClusterImage()
        listing = asyncio.ensure_future(each.client.list_groups(TIMEOUT_S))
        await asyncio.wait([listing], timeout=0.2)  # until the client has asked
        for replicas in each.brokers.replicas.values():
            replicas.behind = None
        assert [found.group for found in await listing] == [ON_1]


async def test_list_groups_times_out_if_no_broker_is_unfenced() -> None:
    async with setting() as each:
        await each.client.list_groups(TIMEOUT_S)
        for replicas in each.brokers.replicas.values():
            replicas.behind = ClusterImage()
        with pytest.raises(ClusterError, match="no broker serves yet") as refusal:
            await each.client.list_groups(0.2)
        assert (refusal.value.code, refusal.value.retriable) == ("TIMED_OUT", True)


async def test_list_groups_does_not_wait_for_a_single_broker_that_is_starting() -> None:
    async with setting() as each:
        await join(each, ON_2)
        await each.client.list_groups(TIMEOUT_S)
        each.brokers.replicas[1].behind = ClusterImage()
        assert [found.group for found in await each.client.list_groups(TIMEOUT_S)] == [ON_2]


async def test_list_groups_fails_and_names_a_broker_that_does_not_answer() -> None:
    async with setting() as each:
        each.groups.hangs.add(2)
        with pytest.raises(ClusterError, match=r"broker 2: .*no answer") as refusal:
            await each.client.list_groups(1.0)
        assert (refusal.value.code, refusal.value.retriable) == ("TIMED_OUT", True)


async def test_an_incomplete_list_names_the_brokers_that_are_missing_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last attempt may have fewer answers, from other brokers, than the attempt whose lists are returned."""
    address = Address("h", 1)
    answering = [{1, 2}, {3}]
    attempts = 0

    async def brokers(timeout_s: float) -> dict[int, Address]:
        nonlocal attempts
        attempts += 1
        return dict.fromkeys((1, 2, 3), address)

    async def ask(broker_id: int, _: Address, left_s: float) -> list[int]:
        if broker_id in answering[min(attempts, len(answering)) - 1]:
            return [broker_id]
        raise ClusterError(ApiError.BROKER_UNAVAILABLE, "no connection", retriable=True)

    cluster = Cluster("h:1")
    monkeypatch.setattr(cluster, "brokers", brokers)
    items, missing = await GroupClient(cluster).calls.of_answering_brokers("the list", 0.3, ask)
    assert attempts >= 2
    assert items == [1, 2]
    assert missing is not None
    assert missing.message == "the list: given up after 0.3 s; missing in this list: broker 3: no connection"
    assert (missing.code, missing.retriable) == ("TIMED_OUT", True)


async def test_list_answered_returns_the_groups_of_the_brokers_that_answered() -> None:
    async with setting() as each:
        await join(each, ON_1)
        await join(each, ON_2)
        listed, missing = await each.client.list_answered(TIMEOUT_S)
        assert ([found.group for found in listed], missing) == ([ON_2, ON_1], None)
        each.groups.hangs.add(2)
        listed, missing = await each.client.list_answered(1.0)
        assert [found.group for found in listed] == [ON_1]
        assert missing is not None
        assert (missing.code, missing.retriable) == ("TIMED_OUT", True)
        assert "broker 2: " in missing.message
        each.groups.hangs.add(1)
        with pytest.raises(ClusterError, match=r"broker 1: .*broker 2: ") as refusal:
            await each.client.list_answered(1.0)
        assert refusal.value.code == "TIMED_OUT"


async def test_known_lags_returns_the_lags_of_groups_whose_coordinators_answer() -> None:
    async with setting() as each, Cluster(each.brokers.bootstrap) as cluster:
        await join(each, ON_1)
        await join(each, ON_2)
        listed = await each.client.list_groups(TIMEOUT_S)
        each.groups.hangs.add(2)
        sums, unknown = await known_lags(each.client, cluster, listed, 1.0)
        assert [found.group.group for found in sums] == [ON_1]
        assert {name: error.code for name, error in unknown.items()} == {ON_2: "TIMED_OUT"}


async def test_a_group_is_described_with_its_members() -> None:
    async with setting() as each:
        member_id = await join(each, ON_2)
        found = await each.client.describe(ON_2, TIMEOUT_S)
        assert (found.group, found.group_type, found.state, found.assignor) == (ON_2, "classic", "Stable", "range")
        assert found.coordinator.broker_id == 2
        (member,) = found.members
        assert member == GroupMember(member_id, None, "app", "/10.0.0.7", ("orders",), (("orders", (0,)),))
        assert member.partitions() == [ORDERS]


@pytest.mark.parametrize("call", ["describe", "delete", "delete_offsets"])
async def test_calls_about_a_missing_group_fail_with_group_id_not_found(call: str) -> None:
    async with setting() as each:
        with refused("GROUP_ID_NOT_FOUND"):
            if call == "delete_offsets":
                await each.client.delete_offsets("c", [ORDERS], TIMEOUT_S)
            else:
                await getattr(each.client, call)("c", TIMEOUT_S)


@pytest.mark.parametrize("call", ["describe", "explain", "delete", "delete_offsets", "share_offsets"])
async def test_calls_about_a_missing_group_do_not_create_the_topic_that_holds_groups(call: str) -> None:
    async with setting() as each:
        await each.brokers.delete(OFFSETS)
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "describe": lambda: each.client.describe("c", TIMEOUT_S),
            "explain": lambda: each.client.explain("c", TIMEOUT_S),
            "delete": lambda: each.client.delete("c", TIMEOUT_S),
            "delete_offsets": lambda: each.client.delete_offsets("c", [ORDERS], TIMEOUT_S),
            "share_offsets": lambda: each.client.shares.describe("c", TIMEOUT_S),
        }
        with refused("GROUP_ID_NOT_FOUND"):
            await calls[call]()
        assert each.groups.creations == 0


async def test_a_group_is_found_although_the_metadata_of_one_broker_lacks_the_new_topic() -> None:
    async with group_brokers() as (brokers, groups):
        await brokers.delete(OFFSETS)
        await brokers.hold_back(1)
        await brokers.create(OFFSETS, [2, 2])
        join_member(groups, ON_2)
        for first in (1, 2):
            host, port = brokers.addresses[first]
            async with Cluster(f"{host}:{port}") as cluster:
                assert (await GroupClient(cluster).describe(ON_2, TIMEOUT_S)).state == "Stable"
        assert groups.creations == 0


async def test_an_empty_group_name_is_refused() -> None:
    async with setting() as each:
        with refused("INVALID_GROUP_ID"):
            await each.client.delete_offsets("", [ORDERS], TIMEOUT_S)


async def test_committed_offsets_are_returned_by_partition() -> None:
    async with setting() as each:
        offsets = {("orders", 1): CommittedOffset(7, 3, "a note"), ORDERS: CommittedOffset(5)}
        assert await each.client.commit(ON_1, offsets, TIMEOUT_S) == {}
        found = await each.client.committed(ON_1, TIMEOUT_S)
        assert list(found.items()) == [(ORDERS, CommittedOffset(5)), (("orders", 1), CommittedOffset(7, 3, "a note"))]
        some = await each.client.committed(ON_1, TIMEOUT_S, [("orders", 1), ("orders", 2), ("orders", 1)])
        assert list(some) == [("orders", 1)]
        assert await each.client.committed("c", TIMEOUT_S) == {}


async def test_a_commit_returns_the_refused_partitions_and_commits_the_others() -> None:
    async with setting() as each:
        offsets = {ORDERS: CommittedOffset(5), ("orders", 77): CommittedOffset(6)}
        refusals = await each.client.commit(ON_1, offsets, TIMEOUT_S)
        assert [(key, error.code) for key, error in refusals.items()] == [
            (("orders", 77), "UNKNOWN_TOPIC_OR_PARTITION")
        ]
        assert await each.client.committed(ON_1, TIMEOUT_S) == {ORDERS: CommittedOffset(5)}


async def test_a_commit_of_a_client_outside_the_group_is_refused_while_the_group_has_members() -> None:
    async with setting() as each:
        await join(each, ON_1)
        refusals = await each.client.commit(ON_1, {ORDERS: CommittedOffset(5)}, TIMEOUT_S)
        assert {key: error.code for key, error in refusals.items()} == {ORDERS: "UNKNOWN_MEMBER_ID"}
        assert await each.client.committed(ON_1, TIMEOUT_S) == {}


async def test_a_group_with_members_is_not_deleted() -> None:
    async with setting() as each:
        await join(each, ON_1)
        with refused("NON_EMPTY_GROUP"):
            await each.client.delete(ON_1, TIMEOUT_S)
        assert len((await each.client.describe(ON_1, TIMEOUT_S)).members) == 1


@pytest.mark.parametrize("code", [KafkaCode.COORDINATOR_NOT_AVAILABLE, KafkaCode.NOT_COORDINATOR])
async def test_a_deletion_whose_answer_is_lost_succeeds_when_repeated(code: KafkaCode) -> None:
    """A coordinator that loses its leadership refuses all waiting calls, also those whose records its log has."""
    async with setting() as each:
        await each.client.commit(ON_1, {ORDERS: CommittedOffset(5)}, TIMEOUT_S)
        each.groups.lost, each.groups.lost_code = 1, code
        await each.client.delete(ON_1, TIMEOUT_S)
        assert each.groups.lost == 0
        assert await each.client.list_groups(TIMEOUT_S) == []


async def test_a_missing_group_is_reported_although_its_coordinator_was_still_loading() -> None:
    async with setting() as each:
        each.groups.refusal = KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
        deleting = asyncio.ensure_future(each.client.delete("typo", TIMEOUT_S))
        await until(lambda: len(each.groups.asked) >= 2)
        each.groups.refusal = None
        with refused("GROUP_ID_NOT_FOUND"):
            await deleting


async def test_offsets_are_deleted_except_of_subscribed_topics() -> None:
    async with setting() as each:
        await each.client.commit(ON_1, {ORDERS: CommittedOffset(5), ("bills", 0): CommittedOffset(6)}, TIMEOUT_S)
        await join(each, ON_1)
        refusals = await each.client.delete_offsets(ON_1, [ORDERS, ("bills", 0), ("bills", 1)], TIMEOUT_S)
        assert {key: error.code for key, error in refusals.items()} == {ORDERS: "GROUP_SUBSCRIBED_TO_TOPIC"}
        assert await each.client.committed(ON_1, TIMEOUT_S) == {ORDERS: CommittedOffset(5)}


async def test_each_step_of_a_call_has_only_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with setting() as each:
        cluster = each.client._cluster
        connection, ask = cluster.connection, cluster.ask
        left: dict[Api, float] = {}

        async def connect_slowly(*arguments: Any) -> Any:
            await asyncio.sleep(0.1)  # so that less time is left
            return await connection(*arguments)

        async def ask_slowly(of: Any, api: Api, version: int, values: dict[str, Any], left_s: float) -> Any:
            left[api] = left_s
            await asyncio.sleep(0.1)  # likewise
            return await ask(of, api, version, values, left_s)

        monkeypatch.setattr(cluster, "connection", connect_slowly)
        monkeypatch.setattr(cluster, "ask", ask_slowly)
        with refused("GROUP_ID_NOT_FOUND"):
            await each.client.delete(ON_1, TIMEOUT_S)
        assert left[Api.API_VERSIONS] < TIMEOUT_S - 0.09
        assert left[Api.DELETE_GROUPS] < TIMEOUT_S - 0.18


async def test_a_call_follows_a_coordinator_that_moves() -> None:
    async with setting() as each:
        await each.client.commit(ON_1, {ORDERS: CommittedOffset(5)}, TIMEOUT_S)
        await each.brokers.move(OFFSETS, 0, 2)
        assert await each.client.committed(ON_1, TIMEOUT_S) == {ORDERS: CommittedOffset(5)}
        assert (await each.client.calls.find(ON_1, TIMEOUT_S)).broker_id == 2


async def test_a_call_follows_to_the_next_coordinator_when_the_first_one_is_killed() -> None:
    async with setting() as each:
        await each.client.commit(ON_1, {ORDERS: CommittedOffset(5)}, TIMEOUT_S)
        await each.brokers.kill(1)
        waiting = asyncio.ensure_future(each.client.committed(ON_1, TIMEOUT_S))
        await asyncio.sleep(0)
        await each.brokers.move(OFFSETS, 0, 2)
        assert await waiting == {ORDERS: CommittedOffset(5)}


async def test_a_call_does_not_wait_for_a_former_coordinator_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "LOOK_AFTER_S", 0.05)
    async with setting() as each:
        await each.client.commit(ON_1, {ORDERS: CommittedOffset(5)}, TIMEOUT_S)
        each.groups.hangs.add(1)
        waiting = asyncio.ensure_future(each.client.committed(ON_1, TIMEOUT_S))
        await until(lambda: isinstance(each.groups.asked[-1][1], g.OffsetFetch))
        await each.brokers.move(OFFSETS, 0, 2)
        async with asyncio.timeout(TIMEOUT_S / 2):
            assert await waiting == {ORDERS: CommittedOffset(5)}


@pytest.mark.parametrize("code", [KafkaCode.COORDINATOR_LOAD_IN_PROGRESS, KafkaCode.COORDINATOR_NOT_AVAILABLE])
async def test_the_timeout_of_a_call_reports_why_the_coordinator_cannot_answer(code: KafkaCode) -> None:
    async with setting() as each:
        each.groups.refusal = code
        with pytest.raises(ClusterError, match="coordinator") as refusal:
            await each.client.committed(ON_1, 0.5)
        assert (refusal.value.code, refusal.value.retriable) == ("TIMED_OUT", True)


async def test_the_timeout_of_a_call_reports_why_there_is_no_coordinator() -> None:
    async with setting() as each:
        await each.brokers.delete(OFFSETS)
        with pytest.raises(ClusterError, match="this broker creates no topics") as refusal:
            await each.client.commit(ON_1, {ORDERS: CommittedOffset(1)}, 0.5)
        assert refusal.value.code == "TIMED_OUT"


def test_subscriptions_and_assignments_in_another_format_are_unknown() -> None:
    assert subscribed_topics(subscription("b", "a", "b")) == ("a", "b")
    later = subscription("a")[:-4] + b"\0\0\0\1x" + b"\0\0\0\0" + b"\0\0\0\7" + b"\xff\xff"
    assert subscribed_topics(b"\0\3" + later[2:]) == ("a",)
    assert assigned_partitions(b"") == ()
    for broken in (b"\0", b"\xff\xff\0\0\0\0", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\5a", b"not a format"):
        assert subscribed_topics(broken) is None
        assert assigned_partitions(broken) is None


async def test_list_offsets_returns_a_reason_for_each_partition_that_fails() -> None:
    async with fake_brokers() as brokers, Cluster(brokers.bootstrap) as cluster:
        await brokers.create("t", [1, 2, -1])
        await brokers.fill("t", 1, build_batch([NewRecord(None, b"x", 1), NewRecord(None, b"y", 2)]))
        asked = {("t", 0): LATEST, ("t", 1): LATEST, ("t", 2): LATEST, ("t", 9): EARLIEST}
        found = await list_offsets(cluster, asked, 1.0)
        assert list(found) == list(asked)
        assert (found["t", 0], found["t", 1]) == (0, 2)
        codes = [error.code for error in found.values() if isinstance(error, ClusterError)]
        assert codes == ["LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PARTITION"]
        assert await list_offsets(cluster, {}, 1.0) == {}


async def test_a_refused_topic_does_not_hide_the_offsets_of_others() -> None:
    """The metadata of a topic may be refused, for example for a name that is not valid."""
    async with fake_brokers() as brokers, Cluster(brokers.bootstrap) as cluster:
        await brokers.create("t", [1])
        found = await list_offsets(cluster, {("a b", 0): LATEST, ("t", 0): LATEST}, TIMEOUT_S)
        refusal = found["a b", 0]
        assert isinstance(refusal, ClusterError)
        assert (refusal.code, refusal.retriable) == ("INVALID_TOPIC_EXCEPTION", False)
        assert found["t", 0] == 0


async def test_an_offset_is_found_at_the_next_leader() -> None:
    async with fake_brokers() as brokers, Cluster(brokers.bootstrap) as cluster:
        await brokers.create("t", [1])
        assert await list_offsets(cluster, {("t", 0): LATEST}, TIMEOUT_S) == {("t", 0): 0}
        await brokers.kill(1)
        listing = asyncio.ensure_future(list_offsets(cluster, {("t", 0): LATEST}, TIMEOUT_S))
        await asyncio.sleep(0)
        await brokers.move("t", 0, 2)
        assert await listing == {("t", 0): 0}
