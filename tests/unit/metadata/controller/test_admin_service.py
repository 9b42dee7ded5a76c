"""Administration at the Controller service: the effect of each request, and error codes for invalid requests."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from metadata.controller import configs, describe
from metadata.records import Config, ConfigScope
from quorumlog.runtime import turns
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from tests.other_tasks import counting
from tests.unit.metadata.builders import Cluster
from tests.unit.metadata.controller.test_controller import beat, new_topic, started
from tests.unit.metadata.fake_node import Plane, run, settle

TOPIC, BROKER, CLUSTER = (
    metadata_pb2.Config.SCOPE_TOPIC,
    metadata_pb2.Config.SCOPE_BROKER,
    metadata_pb2.Config.SCOPE_CLUSTER,
)


def changes(scope: Any, name: str, *values: tuple[str, str | None], **more: Any) -> pb.ConfigChanges:
    made = [pb.ConfigChange(key=key, value=value) for key, value in values]
    return pb.ConfigChanges(resource=pb.ConfigResource(scope=scope, name=name), changes=made, **more)


async def ready() -> Plane:
    """Brokers 1 and 2, topic t with two partitions on both."""
    plane = await started(1, 2)
    plane.node.auto_commit = True
    await plane.call(rpcs.CREATE_TOPICS, new_topic("t", 2, 2))
    return plane


# The decision to unregister a broker


def test_only_a_fenced_broker_without_replicas_is_unregistered() -> None:
    from metadata.control.brokers import unregister

    cluster = Cluster()
    cluster.start(1, 2)
    for number in range(5):
        cluster.create(f"t{number}", (1, 2))
    cluster.apply([Config(ConfigScope.BROKER, "2", "cordoned", "true")])
    assert unregister(cluster.image, 3).reply.outcome.error == "BROKER_ID_NOT_REGISTERED"
    refused = unregister(cluster.image, 2).reply.outcome
    assert (refused.error, refused.message) == ("BROKER_IN_USE", "broker 2 is unfenced")
    cluster.fence(2)
    refused = unregister(cluster.image, 2).reply.outcome
    assert refused.message == "broker 2 has 5 replicas of t0, t1, t2 and 2 more topics"
    assert refused.next_step == "kctl reassign generate --drain 2 | kctl reassign start --plan - --wait"
    assert "reassign" in refused.next_step
    for topic in list(cluster.image.topics.values()):
        from metadata.control.topics import delete_topics

        cluster.apply(delete_topics(cluster.image, [topic.name], []).records)
    assert unregister(cluster.image, 2, validate_only=True).records == ()
    decision = unregister(cluster.image, 2)
    assert decision.reply.changed
    cluster.apply(decision.records)
    assert sorted(cluster.image.brokers) == [1]
    assert not cluster.image.config(ConfigScope.BROKER, "2")
    cluster.start(2)
    assert cluster.image.broker_config(2, "cordoned") == "false"


# The effects of requests


def test_partitions_are_added_and_removed_at_the_service() -> None:
    async def test() -> None:
        plane = await ready()
        before = next(iter(plane.replay.image.topics)).bytes
        request = pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=4)])
        reply = await plane.call(rpcs.ADD_PARTITIONS, request)
        assert (reply.result.error, reply.topics[0].changed, reply.topics[0].partitions) == ("NONE", True, 4)
        assert (reply.topics[0].topic_id, reply.offset) == (before, plane.node.log_end_offset)
        row = metadata_pb2.IntList(values=[2, 1])
        request = pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=5, assignment=[row])])
        assert (await plane.call(rpcs.ADD_PARTITIONS, request)).topics[0].changed
        one = plane.replay.image.topic("t")
        assert one is not None
        added = one.partitions[4]
        assert added is not None
        assert added.replica_ids == (2, 1)
        removed = await plane.call(rpcs.REMOVE_PARTITIONS, pb.RemovePartitionsRequest(topic="t", count=1))
        assert (removed.result.error, removed.topic.changed, removed.topic.partitions) == ("NONE", True, 1)
        assert removed.topic.topic_id not in (before, b"")
        again = await plane.call(rpcs.REMOVE_PARTITIONS, pb.RemovePartitionsRequest(topic="t", count=1))
        assert (again.topic.result.error, again.topic.changed) == ("NONE", False)
        assert again.offset == plane.node.log_end_offset == removed.offset

    run(test())


def test_other_tasks_run_while_the_configs_of_many_resources_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)

    async def test() -> None:
        plane = await ready()
        resources = [pb.ConfigResource(scope=TOPIC, name="t")] * 50
        with counting() as passed:
            reply = await plane.call(rpcs.DESCRIBE_CONFIGS, pb.DescribeConfigsRequest(resources=resources))
        assert [each.resource.name for each in reply.resources] == ["t"] * 50
        assert passed() >= 50

    run(test())


def test_configs_that_do_not_fit_into_one_answer_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise gRPC would refuse the answer, and only after it was built."""
    monkeypatch.setattr(configs, "REPLY_MAX_BYTES", 20_000)

    async def test() -> None:
        plane = await ready()
        request = pb.DescribeConfigsRequest(resources=[pb.ConfigResource(scope=TOPIC, name="t")] * 50)
        reply = await plane.call(rpcs.DESCRIBE_CONFIGS, request)
        assert (reply.result.error, len(reply.resources)) == ("POLICY_VIOLATION", 0)
        found = re.fullmatch(r"describe at most (\d+) of them at a time", reply.result.next)
        assert found is not None
        del request.resources[int(found[1]) :]
        reply = await plane.call(rpcs.DESCRIBE_CONFIGS, request)
        assert (reply.result.error, len(reply.resources)) == ("NONE", len(request.resources))

    run(test())


def test_other_tasks_run_while_topics_that_do_not_exist_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)

    async def test() -> None:
        plane = await ready()
        with counting() as passed:
            reply = await plane.call(
                rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=[f"none{number}" for number in range(50)])
            )
        assert {each.result.error for each in reply.topics} == {"UNKNOWN_TOPIC_OR_PARTITION"}
        assert passed() >= 50

    run(test())


def test_other_tasks_run_while_a_large_topic_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "YIELD_MS", 0)

    async def test() -> None:
        plane = await ready()
        await plane.call(rpcs.CREATE_TOPICS, new_topic("large", 50, 2))
        with counting() as passed:
            reply = await plane.call(rpcs.DESCRIBE_TOPICS, pb.DescribeTopicsRequest(names=["large"]))
        assert [each.index for each in reply.topics[0].partitions] == list(range(50))
        assert passed() >= 50

    run(test())


def test_the_number_of_topics_to_describe_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "ITEMS_MAX", 3)

    async def test() -> None:
        plane = await ready()
        request = pb.DescribeTopicsRequest(names=["t", "a", "b", "c"])
        reply = await plane.call(rpcs.DESCRIBE_TOPICS, request)
        assert (reply.result.error, list(reply.topics)) == ("POLICY_VIOLATION", [])
        del request.names[-1]
        assert len((await plane.call(rpcs.DESCRIBE_TOPICS, request)).topics) == 3

    run(test())


def test_configs_are_changed_and_described() -> None:
    async def test() -> None:
        plane = await ready()
        wanted = [changes(TOPIC, "t", ("retention.ms", "7")), changes(CLUSTER, "", ("segment.ms", "8"))]
        reply = await plane.call(rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(resources=wanted))
        assert [each.changed for each in reply.resources] == [True, True]
        assert [each.resource for each in reply.resources] == [each.resource for each in wanted]
        resources = [*[each.resource for each in wanted], pb.ConfigResource(scope=BROKER, name="1")]
        described = await plane.call(rpcs.DESCRIBE_CONFIGS, pb.DescribeConfigsRequest(resources=resources))
        first, second, third = described.resources
        found = {config.key: (config.value, config.source) for config in first.configs}
        assert (found["retention.ms"], found["segment.ms"]) == (("7", "topic"), ("8", "cluster"))
        assert {config.key for config in second.configs} > set(found)
        assert [(config.key, config.value, config.source) for config in third.configs] == [
            ("cordoned", "false", "default"),
            ("follower.replication.throttled.rate", str(2**63 - 1), "default"),
            ("leader.replication.throttled.rate", str(2**63 - 1), "default"),
            ("replica.alter.log.dirs.io.max.bytes.per.second", str(2**63 - 1), "default"),
        ]
        back = pb.AlterConfigsRequest(resources=[changes(TOPIC, "t", ("retention.ms", None))])
        assert (await plane.call(rpcs.ALTER_CONFIGS, back)).resources[0].changed
        again = await plane.call(rpcs.ALTER_CONFIGS, back)
        assert (again.resources[0].result.error, again.resources[0].changed) == ("NONE", False)

    run(test())


def test_a_codec_whose_library_is_missing_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        plane = await ready()
        monkeypatch.setitem(sys.modules, "cramjam", None)  # makes its import fail
        new = new_topic("u")
        new.topics[0].configs.add(key="compression.type", value="zstd")
        created = (await plane.call(rpcs.CREATE_TOPICS, new)).topics[0]
        wanted = [changes(TOPIC, "t", ("compression.type", "lz4")), changes(CLUSTER, "", ("compression.type", "gzip"))]
        altered = (await plane.call(rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(resources=wanted))).resources
        results = [created.result, *[each.result for each in altered]]
        assert [each.error for each in results] == ["INVALID_CONFIG", "INVALID_CONFIG", "NONE"]
        for result, codec in zip(results, ("zstd", "lz4"), strict=False):
            problem = f"compression.type cannot be {codec}: the Python package cramjam cannot be imported"
            assert result.message.startswith(problem)

    run(test())


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_unclean_election_is_made_once_the_config_allows_it(is_answered: bool) -> None:
    async def test() -> None:
        plane = await ready()
        for broker_id in (2, 1):
            await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id, want_fence=True))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2))
        topic = plane.replay.image.topic("t")
        assert topic is not None
        assert {each.leader for each in topic.partitions if each} == {-1}
        wanted = [changes(TOPIC, "t", ("unclean.leader.election.enable", "true"))]
        plane.node.auto_commit = is_answered
        reply = await plane.call(rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(resources=wanted), 1000)
        assert reply.result.error == ("NONE" if is_answered else "OUTCOME_UNKNOWN")
        plane.node.commit()
        await settle()
        plane.node.commit()
        topic = plane.replay.image.topic("t")
        assert topic is not None
        assert {each.leader for each in topic.partitions if each} == {2}

    run(test())


def test_a_fenced_broker_without_replicas_is_unregistered_through_the_service() -> None:
    async def test() -> None:
        plane = await ready()
        request = pb.UnregisterBrokerRequest(broker_id=2)
        assert (await plane.call(rpcs.UNREGISTER_BROKER, request)).result.error == "BROKER_IN_USE"
        await plane.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=["t"]))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 2, want_fence=True))
        request.header.validate_only = True
        reply = await plane.call(rpcs.UNREGISTER_BROKER, request)
        assert (reply.result.error, reply.changed) == ("NONE", False)
        request.header.validate_only = False
        reply = await plane.call(rpcs.UNREGISTER_BROKER, request)
        assert (reply.result.error, reply.changed, reply.offset) == ("NONE", True, plane.node.log_end_offset)
        assert sorted(plane.replay.image.brokers) == [1]
        assert plane.controller.session(2) is None
        answer = await plane.call(rpcs.BROKER_HEARTBEAT, pb.BrokerHeartbeatRequest(broker_id=2, broker_epoch=1))
        assert answer.result.error == "BROKER_ID_NOT_REGISTERED"

    run(test())


# Empty requests and bad input: (method, request, the errors in the answer)


def _topics(reply: Any) -> list[str]:
    return [each.result.error for each in reply.topics]


def _resources(reply: Any) -> list[str]:
    return [each.result.error for each in reply.resources]


def _whole(reply: Any) -> list[str]:
    return [reply.result.error]


def _topic(reply: Any) -> list[str]:
    return [reply.result.error, reply.topic.result.error]


UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"
LONG = "x" * 100_000
ROW = metadata_pb2.IntList

BAD: list[tuple[AnyRpc, Message, Callable[[Any], list[str]], list[str]]] = [
    (rpcs.ADD_PARTITIONS, pb.AddPartitionsRequest(), _topics, []),
    (rpcs.ADD_PARTITIONS, pb.AddPartitionsRequest(topics=[pb.NewPartitions()]), _topics, [UNKNOWN]),
    (rpcs.ADD_PARTITIONS, pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic=LONG, count=3)]), _topics, [UNKNOWN]),
    (
        rpcs.ADD_PARTITIONS,
        pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t")]),
        _topics,
        ["INVALID_PARTITIONS"],
    ),
    (
        rpcs.ADD_PARTITIONS,
        pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=-(2**31))]),
        _topics,
        ["INVALID_PARTITIONS"],
    ),
    (
        rpcs.ADD_PARTITIONS,
        pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=2**31 - 1)]),
        _topics,
        ["INVALID_PARTITIONS"],
    ),
    (
        rpcs.ADD_PARTITIONS,
        pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=3)] * 2),
        _topics,
        ["INVALID_REQUEST"] * 2,
    ),
    (
        rpcs.ADD_PARTITIONS,
        pb.AddPartitionsRequest(topics=[pb.NewPartitions(topic="t", count=3, assignment=[ROW()])]),
        _topics,
        ["INVALID_REPLICA_ASSIGNMENT"],
    ),
    (
        rpcs.ADD_PARTITIONS,
        pb.AddPartitionsRequest(
            topics=[pb.NewPartitions(topic="t", count=3, assignment=[ROW(values=[-1, 2**31 - 1])])]
        ),
        _topics,
        ["INVALID_REPLICA_ASSIGNMENT"],
    ),
    (rpcs.ADD_PARTITIONS, pb.AddPartitionsRequest(topics=[pb.NewPartitions()] * 100_001), _whole, ["INVALID_REQUEST"]),
    (rpcs.REMOVE_PARTITIONS, pb.RemovePartitionsRequest(), _topic, ["NONE", UNKNOWN]),
    (rpcs.REMOVE_PARTITIONS, pb.RemovePartitionsRequest(topic=LONG, count=1), _topic, ["NONE", UNKNOWN]),
    (rpcs.REMOVE_PARTITIONS, pb.RemovePartitionsRequest(topic="t"), _topic, ["NONE", "INVALID_PARTITIONS"]),
    (rpcs.REMOVE_PARTITIONS, pb.RemovePartitionsRequest(topic="t", count=-1), _topic, ["NONE", "INVALID_PARTITIONS"]),
    (
        rpcs.REMOVE_PARTITIONS,
        pb.RemovePartitionsRequest(topic="t", count=2**31 - 1),
        _topic,
        ["NONE", "INVALID_PARTITIONS"],
    ),
    (rpcs.UNREGISTER_BROKER, pb.UnregisterBrokerRequest(), _whole, ["BROKER_ID_NOT_REGISTERED"]),
    (rpcs.UNREGISTER_BROKER, pb.UnregisterBrokerRequest(broker_id=-1), _whole, ["BROKER_ID_NOT_REGISTERED"]),
    (rpcs.UNREGISTER_BROKER, pb.UnregisterBrokerRequest(broker_id=2**31 - 1), _whole, ["BROKER_ID_NOT_REGISTERED"]),
    (rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(), _resources, []),
    (rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(resources=[pb.ConfigChanges()]), _resources, ["INVALID_REQUEST"]),
    (rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(resources=[changes(9, "t")]), _resources, ["INVALID_REQUEST"]),
    (
        rpcs.ALTER_CONFIGS,
        pb.AlterConfigsRequest(resources=[changes(TOPIC, "t", ("", ""))]),
        _resources,
        ["INVALID_CONFIG"],
    ),
    (
        rpcs.ALTER_CONFIGS,
        pb.AlterConfigsRequest(resources=[changes(TOPIC, "t", (LONG, LONG))]),
        _resources,
        ["INVALID_CONFIG"],
    ),
    (
        rpcs.ALTER_CONFIGS,
        pb.AlterConfigsRequest(resources=[changes(TOPIC, "t", ("retention.ms", LONG))]),
        _resources,
        ["INVALID_CONFIG"],
    ),
    (
        rpcs.ALTER_CONFIGS,
        pb.AlterConfigsRequest(resources=[changes(TOPIC, "t")] * 2),
        _resources,
        ["INVALID_REQUEST"] * 2,
    ),
    (rpcs.ALTER_CONFIGS, pb.AlterConfigsRequest(resources=[pb.ConfigChanges()] * 100_001), _whole, ["INVALID_REQUEST"]),
    (rpcs.DESCRIBE_CONFIGS, pb.DescribeConfigsRequest(), _resources, []),
    (
        rpcs.DESCRIBE_CONFIGS,
        pb.DescribeConfigsRequest(resources=[pb.ConfigResource()]),
        _resources,
        ["INVALID_REQUEST"],
    ),
    (
        rpcs.DESCRIBE_CONFIGS,
        pb.DescribeConfigsRequest(resources=[pb.ConfigResource(scope=TOPIC, name=LONG)]),
        _resources,
        [UNKNOWN],
    ),
    (
        rpcs.DESCRIBE_CONFIGS,
        pb.DescribeConfigsRequest(resources=[pb.ConfigResource()] * 100_001),
        _whole,
        ["INVALID_REQUEST"],
    ),
    (
        rpcs.ELECT_LEADERS,
        pb.ElectLeadersRequest(policy=pb.ElectLeadersRequest.POLICY_UNCLEAN, partitions=[pb.TopicPartition()]),
        lambda reply: [each.result.error for each in reply.partitions],
        [UNKNOWN],
    ),
]


@pytest.mark.parametrize("at", range(len(BAD)), ids=lambda at: f"{BAD[at][0]}-{at}")
def test_empty_and_invalid_requests_get_the_expected_errors_and_change_nothing(at: int) -> None:
    rpc, request, words, expected = BAD[at]

    async def test() -> None:
        plane = await ready()
        before = plane.node.log_end_offset
        reply = await plane.call(rpc, request)
        assert words(reply) == expected
        assert all("\n" not in text and len(text) < 400 for text in _messages(reply))
        assert plane.node.log_end_offset == before
        assert plane.controller.active
        assert (await plane.call(rpcs.CREATE_TOPICS, new_topic("u"))).topics[0].result.error == "NONE"

    run(test())


def _messages(reply: Any) -> list[str]:
    inner = [*getattr(reply, "topics", ()), *getattr(reply, "resources", ()), *getattr(reply, "partitions", ())]
    return [reply.result.message, *[each.result.message for each in inner]]
