"""Group requests: the calls that reach the coordinators, and the responses and refusals, in each version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from broker.core.coordinator import group_requests as group
from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.requests import ConsumerHeartbeatResponse
from broker.core.coordinator.placement import partition_of
from broker.kafka.coordinated import side_by_side
from broker.kafka.handlers import HANDLERS
from broker.kafka.listener import KafkaServer
from metadata.records import NO_LEADER, BrokerChange, Endpoint
from quorumlog.runtime import turns
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from tests.unit.broker.kafka.fake import FakeReplicas, listening
from tests.unit.broker.kafka.raw import RawClient
from tests.unit.broker.kafka.wellness import until

OFFSETS = "__consumer_offsets"
PARTITIONS = 4
NONE = KafkaCode.NONE
CLIENT = Client("raw", "/127.0.0.1")

Answer = Callable[[int, group.GroupRequest], Any]


class FakeGroups:
    """Answers with `answer`, or holds the calls back.  It coordinates partitions 0 and 1."""

    def __init__(self, replicas: FakeReplicas) -> None:
        self.replicas = replicas
        self.asked: list[tuple[int, group.GroupRequest]] = []
        self.held: list[asyncio.Future[Any]] = []
        self.answer: Answer | None = None
        self.problem = ""
        self.prepared = 0

    async def prepare(self) -> str:
        self.prepared += 1
        if not self.problem:
            self.replicas.create(OFFSETS, PARTITIONS)
        return self.problem

    def partition(self, name: str) -> int:
        return partition_of(name, PARTITIONS)

    def led(self) -> Sequence[int]:
        return (0, 1)

    def call(self, partition: int, request: group.GroupRequest, size: int) -> asyncio.Future[Any]:
        assert size > 0
        self.asked.append((partition, request))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.answer is None:
            self.held.append(future)
        else:
            future.set_result(self.answer(partition, request))
        return future


class Bench:
    def __init__(self, groups: FakeGroups, server: KafkaServer, client: RawClient) -> None:
        self.groups = groups
        self.replicas = groups.replicas
        self.server = server
        self.client = client

    async def ask(self, api: Api, version: int, values: dict[str, Any], answer: Any) -> Any:
        """answer: the response of each call, or a function of partition and request."""
        self.groups.asked.clear()
        self.groups.answer = answer if callable(answer) else lambda *_: answer
        return await self.client.ask(api, version, values)

    @property
    def request(self) -> Any:
        """The only request that reached a coordinator."""
        [(_, request)] = self.groups.asked
        return request


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    replicas = FakeReplicas()
    groups = FakeGroups(replicas)
    async with listening(replicas, groups=groups) as server:
        [bound] = server.endpoints
        replicas.register(Endpoint(bound.name, "127.0.0.1", bound.port))
        async with RawClient(bound.port) as client:
            yield Bench(groups, server, client)


def versions(api: Api) -> list[int]:
    return list(range(HANDLERS[api].low, HANDLERS[api].offered + 1))


# -- members


@pytest.mark.parametrize("version", versions(Api.JOIN_GROUP))
async def test_join_group_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    values = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 60_000,
        "member_id": "m",
        "group_instance_id": "i",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"topics"}],
        "reason": "because",
    }
    joined = group.JoinedMember("m", "i", b"topics")
    answer = group.JoinGroupResponse(NONE, "m", 3, "consumer", "range", "m", True, (joined,))
    response = await bench.ask(Api.JOIN_GROUP, version, values, answer)
    assert bench.request == group.JoinGroup(
        group="g",
        member_id="m",
        instance_id="i" if version >= 5 else None,
        client=CLIENT,
        protocol_type="consumer",
        protocols=(group.MemberProtocol("range", b"topics"),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000 if version >= 1 else 10_000,
        needs_member_id=version >= 4,
        can_skip_assignment=version >= 9,
        reason="because" if version >= 8 else "",
    )
    assert (response.error_code, response.generation_id, response.protocol_name) == (0, 3, "range")
    assert (response.leader, response.member_id) == ("m", "m")
    assert [(each.member_id, each.metadata) for each in response.members] == [("m", b"topics")]
    if version >= 5:
        assert response.members[0].group_instance_id == "i"
    if version >= 7:
        assert response.protocol_type == "consumer"
    if version >= 9:
        assert response.skip_assignment

    refused = await bench.ask(Api.JOIN_GROUP, version, values, KafkaCode.NOT_COORDINATOR)
    assert (refused.error_code, refused.generation_id, refused.member_id) == (16, -1, "m")
    assert refused.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", versions(Api.SYNC_GROUP))
async def test_sync_group_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    values = {
        "group_id": "g",
        "generation_id": 3,
        "member_id": "m",
        "group_instance_id": "i",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": "m", "assignment": b"mine"}],
    }
    answer = group.SyncGroupResponse(NONE, "consumer", "range", b"mine")
    response = await bench.ask(Api.SYNC_GROUP, version, values, answer)
    protocol: tuple[str | None, str | None] = ("consumer", "range") if version >= 5 else (None, None)
    instance = "i" if version >= 3 else None
    assignments = (group.MemberAssignment("m", b"mine"),)
    assert bench.request == group.SyncGroup("g", "m", instance, 3, *protocol, assignments)
    assert (response.error_code, response.assignment) == (0, b"mine")
    if version >= 5:
        assert (response.protocol_type, response.protocol_name) == protocol
    refused = await bench.ask(Api.SYNC_GROUP, version, values, KafkaCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert (refused.error_code, refused.assignment) == (14, b"")


async def test_explain_groups_is_forwarded_and_answered(bench: Bench) -> None:
    member = group.MemberName("m", "i", CLIENT)
    rebalance = group.Rebalance(
        100, None, 4, "member 'm' joined", CLIENT, 2, True, group.RebalanceReason.JOINED, member
    )
    bare = group.Rebalance(50, 7, 3, "too large", None, 1)
    answer = group.ExplainGroupsResponse(
        (
            group.GroupExplanation(
                "g", state="Stable", generation=4, members=2, loaded_ms=10, now_ms=200, empty_since_ms=None,
                last_joined=group.LastJoin(member, 99), awaited=(member,), rebalances=(bare, rebalance),
            ),
        )
    )  # fmt: skip
    response = await bench.ask(Api.EXPLAIN_GROUPS, 0, {"group_ids": ["g", "g"]}, answer)
    assert bench.request == group.ExplainGroups(("g",))
    [found] = response.groups
    assert (found.error_code, found.group_id, found.group_type, found.group_state) == (0, "g", "classic", "Stable")
    assert (found.generation, found.member_count, found.loaded, found.now, found.empty_since) == (4, 2, 10, 200, -1)
    [joined], [awaited] = found.last_joined, found.awaited
    assert (joined.member_id, joined.group_instance_id, joined.client_id, joined.at) == ("m", "i", "raw", 99)
    assert (awaited.client_host, awaited.at) == ("/127.0.0.1", -1)
    first, second = found.rebalances
    assert (first.started, first.duration, first.generation, first.members) == (50, 7, 3, 1)
    assert (first.interrupted, first.reason, first.cause, first.caused_by) == (False, "other", "too large", ())
    assert (second.duration, second.interrupted, second.reason) == (-1, True, "joined")
    assert second.caused_by[0].member_id == "m"
    refused = await bench.ask(Api.EXPLAIN_GROUPS, 0, {"group_ids": ["g"]}, KafkaCode.NOT_COORDINATOR)
    assert [each.error_code for each in refused.groups] == [16]


@pytest.mark.parametrize("version", versions(Api.HEARTBEAT))
async def test_heartbeat_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    values = {"group_id": "g", "generation_id": 3, "member_id": "m", "group_instance_id": "i"}
    answer = group.HeartbeatResponse(KafkaCode.REBALANCE_IN_PROGRESS)
    assert (await bench.ask(Api.HEARTBEAT, version, values, answer)).error_code == 27
    assert bench.request == group.Heartbeat("g", "m", "i" if version >= 3 else None, 3)
    assert (await bench.ask(Api.HEARTBEAT, version, values, KafkaCode.NOT_COORDINATOR)).error_code == 16


@pytest.mark.parametrize("version", versions(Api.LEAVE_GROUP))
async def test_leave_group_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    member = {"member_id": "m", "group_instance_id": "i", "reason": "done"}
    values = {"group_id": "g", "member_id": "m", "members": [member]}
    left = group.LeftMember("m", "i", KafkaCode.UNKNOWN_MEMBER_ID)
    response = await bench.ask(Api.LEAVE_GROUP, version, values, group.LeaveGroupResponse(NONE, (left,)))
    if version < 3:
        assert bench.request == group.LeaveGroup("g", (group.LeavingMember("m"),))
        assert response.error_code == 25
    else:
        reason = "done" if version >= 5 else ""
        assert bench.request == group.LeaveGroup("g", (group.LeavingMember("m", "i", reason),))
        assert (response.error_code, [each.error_code for each in response.members]) == (0, [25])
    assert (await bench.ask(Api.LEAVE_GROUP, version, values, KafkaCode.NOT_COORDINATOR)).error_code == 16


# -- offsets


@pytest.mark.parametrize("version", versions(Api.OFFSET_COMMIT))
async def test_offset_commit_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    topic_id = bench.replicas.create("t", 2)
    row = {"partition_index": 1, "committed_offset": 7, "committed_leader_epoch": 2, "committed_metadata": None}
    values = {
        "group_id": "g",
        "generation_id_or_member_epoch": 3,
        "member_id": "m",
        "group_instance_id": "i",
        "retention_time": 5_000,
        "topics": [{"name": "t", "topic_id": topic_id, "partitions": [{**row, "partition_index": 0}, row]}],
    }
    results = (group.PartitionResult("t", 0, NONE), group.PartitionResult("t", 1, KafkaCode.ILLEGAL_GENERATION))
    response = await bench.ask(Api.OFFSET_COMMIT, version, values, group.OffsetCommitResponse(results))
    epoch, named = 2 if version >= 6 else -1, topic_id if version >= 10 else None
    assert bench.request == group.OffsetCommit(
        group="g",
        member_id="m",
        instance_id="i" if version >= 7 else None,
        generation=3,
        offsets=tuple(group.OffsetToCommit("t", index, 7, epoch, topic_id=named) for index in (0, 1)),
        retention_ms=5_000 if version <= 4 else -1,
        knows_epochs=version >= 9,
    )
    [topic] = response.topics
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(0, 0), (1, 22)]
    refused = await bench.ask(Api.OFFSET_COMMIT, version, values, KafkaCode.NOT_COORDINATOR)
    assert [each.error_code for each in refused.topics[0].partitions] == [16, 16]


async def test_an_unknown_topic_id_does_not_prevent_commits_for_other_topics(bench: Bench) -> None:
    topic_id = bench.replicas.create("t")
    row = {"partition_index": 0, "committed_offset": 7, "committed_metadata": "x"}
    values = {
        "group_id": "g",
        "topics": [{"topic_id": None, "partitions": [row]}, {"topic_id": topic_id, "partitions": [row]}],
    }
    answer = group.OffsetCommitResponse((group.PartitionResult("t", 0, NONE),))
    response = await bench.ask(Api.OFFSET_COMMIT, 10, values, answer)
    assert bench.request.offsets == (group.OffsetToCommit("t", 0, 7, -1, "x", topic_id),)
    assert [each.partitions[0].error_code for each in response.topics] == [100, 0]


def _fetched_values(version: int, *groups: str, topics: Any) -> dict[str, Any]:
    if version < 8:
        return {"group_id": groups[0], "topics": topics, "require_stable": True}
    rows = [{"group_id": name, "member_id": "m", "member_epoch": 4, "topics": topics} for name in groups]
    return {"groups": rows, "require_stable": True}


def _fetched_groups(version: int, response: Any) -> list[Any]:
    return list(response.groups) if version >= 8 else [response]


@pytest.mark.parametrize("version", versions(Api.OFFSET_FETCH))
async def test_offset_fetch_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    topic_id = bench.replicas.create("t", 2)
    topics = [{"name": "t", "topic_id": topic_id, "partition_indexes": [0, 1]}]
    offsets = (group.FetchedOffset("t", 0, 7, 2, "x"), group.FetchedOffset("t", 1))
    answer = group.OffsetFetchResponse((group.FetchedGroup("g", NONE, offsets),))
    response = await bench.ask(Api.OFFSET_FETCH, version, _fetched_values(version, "g", topics=topics), answer)
    member = ("m", 4) if version >= 9 else (None, -1)
    named = topic_id if version >= 10 else None
    wanted = group.GroupToFetch("g", (group.TopicPartitions("t", (0, 1), named),), *member)
    assert bench.request == group.OffsetFetch((wanted,), version >= 7)
    [found] = _fetched_groups(version, response)
    [topic] = found.topics
    assert topic.topic_id == topic_id if version >= 10 else topic.name == "t"
    rows = [(each.partition_index, each.committed_offset, each.metadata, each.error_code) for each in topic.partitions]
    assert rows == [(0, 7, "x", 0), (1, -1, "", 0)]
    if version >= 5:
        assert [each.committed_leader_epoch for each in topic.partitions] == [2, -1]

    values = _fetched_values(version, "g", topics=topics)
    [refused] = _fetched_groups(version, await bench.ask(Api.OFFSET_FETCH, version, values, KafkaCode.NOT_COORDINATOR))
    if version >= 2:
        assert (refused.error_code, refused.topics) == (16, ())
    else:
        assert [each.error_code for each in refused.topics[0].partitions] == [16, 16]


@pytest.mark.parametrize("version", versions(Api.OFFSET_FETCH)[1:])
async def test_offset_fetch_without_topics_returns_the_offsets_of_all_topics_that_the_version_can_name(
    bench: Bench, version: int
) -> None:
    bench.replicas.create("t", 2)
    offsets = (group.FetchedOffset("gone", 0, 1), group.FetchedOffset("t", 0, 7), group.FetchedOffset("t", 1, 8))
    answer = group.OffsetFetchResponse((group.FetchedGroup("g", NONE, offsets),))
    response = await bench.ask(Api.OFFSET_FETCH, version, _fetched_values(version, "g", topics=None), answer)
    assert bench.request.groups[0].topics is None
    [found] = _fetched_groups(version, response)
    assert [len(topic.partitions) for topic in found.topics] == ([2] if version >= 10 else [1, 2])


async def test_an_unknown_topic_id_does_not_prevent_the_fetch_of_other_offsets(bench: Bench) -> None:
    topic_id = bench.replicas.create("t")
    topics = [{"topic_id": None, "partition_indexes": [5]}, {"topic_id": topic_id, "partition_indexes": [0]}]
    answer = group.OffsetFetchResponse((group.FetchedGroup("g", NONE, (group.FetchedOffset("t", 0, 7),)),))
    response = await bench.ask(Api.OFFSET_FETCH, 10, _fetched_values(10, "g", topics=topics), answer)
    rows = [(each.partitions[0].partition_index, each.partitions[0].error_code) for each in response.groups[0].topics]
    assert rows == [(5, 100), (0, 0)]


@pytest.mark.parametrize("version", versions(Api.OFFSET_FETCH)[7:])
async def test_a_group_that_an_offset_fetch_repeats_is_refused_once_and_others_are_answered(
    bench: Bench, version: int
) -> None:
    def answer(_: int, request: group.GroupRequest) -> Any:
        assert isinstance(request, group.OffsetFetch)
        return group.OffsetFetchResponse(tuple(group.FetchedGroup(each.group, NONE) for each in request.groups))

    for names, expected in (
        (("twice", "once", "twice", "twice"), [("twice", 42), ("once", 0)]),
        (("twice", "twice"), [("twice", 42)]),
    ):
        bench.groups.asked.clear()
        values = _fetched_values(version, *names, topics=None)
        response = await bench.ask(Api.OFFSET_FETCH, version, values, answer)
        assert [(each.group_id, each.error_code) for each in response.groups] == expected
        asked = [each.group for _, request in bench.groups.asked for each in request.groups]  # type: ignore[union-attr]
        assert asked == [name for name, code in expected if code == 0]


@pytest.mark.parametrize("version", versions(Api.OFFSET_FETCH))
async def test_partitions_that_an_offset_fetch_repeats_are_answered_once(bench: Bench, version: int) -> None:
    ids = {name: bench.replicas.create(name, 2) for name in ("t", "u")}
    repeated = (("t", [1, 1, 0]), ("u", [0]), ("t", [0, 1]), ("u", [0, 0]))
    topics = [{"name": name, "topic_id": ids[name], "partition_indexes": indexes} for name, indexes in repeated]

    def answer(_: int, request: group.GroupRequest) -> Any:
        assert isinstance(request, group.OffsetFetch)
        [wanted] = request.groups
        named = ids if version >= 10 else {}
        assert wanted.topics == (
            group.TopicPartitions("t", (1, 0), named.get("t")),
            group.TopicPartitions("u", (0,), named.get("u")),
        )
        offsets = [group.FetchedOffset(each.topic, index, 7) for each in wanted.topics for index in each.partitions]
        return group.OffsetFetchResponse((group.FetchedGroup("g", NONE, tuple(offsets)),))

    values = _fetched_values(version, "g", topics=topics)
    [found] = _fetched_groups(version, await bench.ask(Api.OFFSET_FETCH, version, values, answer))
    assert [[each.partition_index for each in topic.partitions] for topic in found.topics] == [[1, 0], [0]]


async def test_offset_delete_is_forwarded_and_answered(bench: Bench) -> None:
    partitions = [{"partition_index": 0}, {"partition_index": 1}]
    values = {"group_id": "g", "topics": [{"name": "t", "partitions": partitions}]}
    results = (group.PartitionResult("t", 0, NONE), group.PartitionResult("t", 1, KafkaCode.GROUP_SUBSCRIBED_TO_TOPIC))
    response = await bench.ask(Api.OFFSET_DELETE, 0, values, group.OffsetDeleteResponse(NONE, results))
    assert bench.request == group.OffsetDelete("g", (group.TopicPartitions("t", (0, 1)),))
    assert [(each.partition_index, each.error_code) for each in response.topics[0].partitions] == [(0, 0), (1, 86)]
    missing = group.OffsetDeleteResponse(KafkaCode.GROUP_ID_NOT_FOUND)
    for answer, code in ((missing, 69), (KafkaCode.NOT_COORDINATOR, 16)):
        response = await bench.ask(Api.OFFSET_DELETE, 0, values, answer)
        assert (response.error_code, response.topics) == (code, ())


# -- groups


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_GROUPS))
async def test_describe_groups_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    names = ["a", "b", "e", "c"]  # a and e are in one partition
    member = group.MemberDescription("m", "i", "client", "/host", b"topics", b"mine")

    def answer(partition: int, request: group.GroupRequest) -> Any:
        assert isinstance(request, group.DescribeGroups)
        assert request.report_missing is (version >= 6)
        if partition == partition_of("b", PARTITIONS):
            return KafkaCode.NOT_COORDINATOR
        found = [
            group.GroupDescription(each, state="Stable", protocol_type="consumer", protocol=each, members=(member,))
            for each in request.groups
        ]
        return group.DescribeGroupsResponse(tuple(found))

    response = await bench.ask(Api.DESCRIBE_GROUPS, version, {"groups": names}, answer)
    assert len(bench.groups.asked) == 3
    described = [(each.group_id, each.error_code, each.group_state, each.protocol_data) for each in response.groups]
    assert described == [("a", 0, "Stable", "a"), ("b", 16, "", ""), ("e", 0, "Stable", "e"), ("c", 0, "Stable", "c")]
    [found] = response.groups[0].members
    assert (found.member_id, found.client_id, found.client_host) == ("m", "client", "/host")
    assert (found.member_metadata, found.member_assignment) == (b"topics", b"mine")
    if version >= 4:
        assert found.group_instance_id == "i"


@pytest.mark.parametrize("version", versions(Api.DESCRIBE_GROUPS))
async def test_a_group_that_describe_groups_names_repeatedly_is_described_once(bench: Bench, version: int) -> None:
    def answer(_: int, request: group.GroupRequest) -> Any:
        assert isinstance(request, group.DescribeGroups)
        assert len(set(request.groups)) == len(request.groups)
        return group.DescribeGroupsResponse(tuple(group.GroupDescription(each) for each in request.groups))

    response = await bench.ask(Api.DESCRIBE_GROUPS, version, {"groups": ["b", "a", "b", "e", "a", "b"]}, answer)
    assert [each.group_id for each in response.groups] == ["b", "a", "e"]


@pytest.mark.parametrize("version", versions(Api.LIST_GROUPS))
async def test_list_groups_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    values = {"states_filter": ["Stable"], "types_filter": ["classic"]}

    def answer(partition: int, _: object) -> Any:
        return group.ListGroupsResponse((group.ListedGroup(f"g{partition}", "consumer", "Stable", "classic"),))

    response = await bench.ask(Api.LIST_GROUPS, version, values, answer)
    states = frozenset({"Stable"}) if version >= 4 else frozenset()
    types = frozenset({"classic"}) if version >= 5 else frozenset()
    assert bench.groups.asked == [(partition, group.ListGroups(states, types)) for partition in (0, 1)]
    assert response.error_code == 0
    assert [(each.group_id, each.protocol_type) for each in response.groups] == [("g0", "consumer"), ("g1", "consumer")]
    if version >= 4:
        assert response.groups[0].group_state == "Stable"
    if version >= 5:
        assert response.groups[0].group_type == "classic"


async def test_list_groups_is_refused_while_a_coordinator_loads_and_skips_a_coordinator_that_moved(
    bench: Bench,
) -> None:
    listed = group.ListGroupsResponse((group.ListedGroup("g", "consumer", "Stable", "classic"),))
    for refusal, code, names in (
        (KafkaCode.COORDINATOR_LOAD_IN_PROGRESS, 14, []),
        (KafkaCode.NOT_COORDINATOR, 0, ["g"]),
    ):
        answers = {0: listed, 1: refusal}
        response = await bench.ask(Api.LIST_GROUPS, 4, {}, lambda partition, _, answers=answers: answers[partition])
        assert (response.error_code, [each.group_id for each in response.groups]) == (code, names)


@pytest.mark.parametrize("version", versions(Api.DELETE_GROUPS))
async def test_delete_groups_is_forwarded_and_answered_in_each_version(bench: Bench, version: int) -> None:
    def answer(partition: int, request: group.GroupRequest) -> Any:
        if partition == partition_of("b", PARTITIONS):
            return KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
        groups = cast(group.DeleteGroups, request).groups
        return group.DeleteGroupsResponse(tuple(group.DeletedGroup(each, KafkaCode.NON_EMPTY_GROUP) for each in groups))

    response = await bench.ask(Api.DELETE_GROUPS, version, {"groups_names": ["b", "a"]}, answer)
    assert [(each.group_id, each.error_code) for each in response.results] == [("b", 14), ("a", 68)]


# -- FindCoordinator


def _found(version: int, response: Any) -> list[tuple[int, int]]:
    rows = response.coordinators if version >= 4 else [response]
    return [(int(row.error_code), row.node_id) for row in rows]


@pytest.mark.parametrize("version", versions(Api.FIND_COORDINATOR))
async def test_find_coordinator_returns_the_coordinator_of_groups_and_creates_the_offsets_topic(
    bench: Bench, version: int
) -> None:
    values = {"key": "g", "coordinator_keys": ["g", "h"]}
    response = await bench.ask(Api.FIND_COORDINATOR, version, values, None)
    assert bench.groups.prepared == 1, "the first use creates the topic"
    assert _found(version, response) == [(0, 1)] * (2 if version >= 4 else 1)
    row = response.coordinators[0] if version >= 4 else response
    assert (row.host, row.port) == ("127.0.0.1", bench.server.endpoints[0].port)
    await bench.ask(Api.FIND_COORDINATOR, version, values, None)
    assert bench.groups.prepared == 1


async def test_find_coordinator_reports_why_the_offsets_topic_cannot_be_created(bench: Bench) -> None:
    bench.groups.problem = "start more brokers"
    response = await bench.ask(Api.FIND_COORDINATOR, 3, {"key": "g"}, None)
    assert (response.error_code, response.error_message) == (15, "start more brokers")


async def test_a_group_has_no_coordinator_while_its_partition_has_no_leader(bench: Bench) -> None:
    bench.replicas.create(OFFSETS, PARTITIONS, leader=NO_LEADER)
    assert _found(3, await bench.ask(Api.FIND_COORDINATOR, 3, {"key": "g"}, None)) == [(15, -1)]


async def test_a_fenced_broker_is_not_returned_as_coordinator(bench: Bench) -> None:
    bench.replicas.create(OFFSETS, PARTITIONS)
    bench.replicas.apply(BrokerChange(1, bench.replicas.image.brokers[1].epoch, fenced=True))
    assert _found(3, await bench.ask(Api.FIND_COORDINATOR, 3, {"key": "g"}, None)) == [(15, -1)]


@pytest.mark.parametrize("version", versions(Api.FIND_COORDINATOR)[1:])
@pytest.mark.parametrize(("key_type", "code"), [(1, 15), (2, 15), (3, 42)])
async def test_keys_of_other_types_have_no_coordinator_and_create_no_offsets_topic(
    bench: Bench, version: int, key_type: int, code: int
) -> None:
    values = {"key": "x", "coordinator_keys": ["x"], "key_type": key_type}
    assert _found(version, await bench.ask(Api.FIND_COORDINATOR, version, values, None)) == [(code, -1)]
    assert bench.groups.prepared == 0


# -- connections


async def test_a_lost_connection_cancels_its_calls(bench: Bench) -> None:
    bench.client.send(Api.HEARTBEAT, 4, {"group_id": "g"})
    await until(lambda: bool(bench.groups.held))
    bench.client.writer.close()
    await until(lambda: bench.groups.held[0].cancelled())


async def test_a_closing_server_refuses_the_calls_that_wait(bench: Bench) -> None:
    bench.client.send(Api.HEARTBEAT, 4, {"group_id": "g"})
    await until(lambda: bool(bench.groups.held))
    closing = asyncio.ensure_future(bench.server.close())
    _, response = await bench.client.receive(Api.HEARTBEAT, 4)
    assert response.error_code == 16
    await closing
    assert bench.groups.held[0].cancelled()


# -- members of the newer protocol


async def test_the_partitions_of_a_topic_that_a_heartbeat_repeats_are_merged(bench: Bench) -> None:
    """A request may contain about 50,000 such topics."""
    topic, count = UUID(int=7), 45_000
    values = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 1,
        "topic_partitions": [{"topic_id": topic, "partitions": (index,)} for index in range(count)],
    }
    answer = ConsumerHeartbeatResponse(NONE, None, "m", 1, 5_000)
    response = await bench.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, values, answer)
    assert int(response.error_code) == NONE
    assert bench.request.owned == {topic: frozenset(range(count))}


async def test_a_heartbeat_ignores_owned_topics_without_an_id_or_without_partitions(bench: Bench) -> None:
    topics = [{"topic_id": None, "partitions": (0,)}, {"topic_id": UUID(int=7), "partitions": ()}]
    values = {"group_id": "g", "member_id": "m", "member_epoch": 1, "topic_partitions": topics}
    await bench.ask(Api.CONSUMER_GROUP_HEARTBEAT, 1, values, ConsumerHeartbeatResponse(NONE, None, "m", 1, 5_000))
    assert bench.request.owned == {}


async def test_many_groups_are_queried_concurrently_by_a_few_tasks() -> None:
    asked: list[int] = []
    release = asyncio.Event()
    before = len(asyncio.all_tasks())

    async def work(item: int) -> int:
        asked.append(item)
        if item == 0:
            await release.wait()
        await asyncio.sleep(0)
        return -item

    running = asyncio.ensure_future(side_by_side(work, range(5_000)))
    while len(asked) < 5_000:
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= before + 1 + 20
    assert not running.done(), "the group that does not answer does not delay the others"
    release.set()
    assert await running == [-item for item in range(5_000)]
    assert await side_by_side(work, ()) == []


async def test_other_tasks_run_while_many_groups_answer_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)

    async def work(item: int) -> int:
        return -item

    running = asyncio.ensure_future(side_by_side(work, range(1_000)))
    passed = 0
    while not running.done():
        passed += 1
        await asyncio.sleep(0)
    assert passed >= 1_000 // 20
