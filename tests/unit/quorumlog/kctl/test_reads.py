"""Commands that only read, with and without a controller."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from quorumlog.client.controller import ControllerClient
from quorumlog.errors import ClusterError
from quorumlog.kctl import data
from quorumlog.kctl.context import Context
from quorumlog.kctl.main import run
from quorumlog.kctl.reads import Reads
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2, node_pb2
from tests.unit.quorumlog.kctl.test_commands import FakeClient, client, quorum_reply

__all__ = ["client"]

NOBODY = ClusterError("NOT_CONTROLLER", "no controller", retriable=True)
FINE = pb.Result(error="NONE")


def replies(unconfirmed: bool, offset: int = 41) -> dict[AnyRpc, Any]:
    result = pb.Result(error="NONE", unconfirmed=unconfirmed)
    partition = pb.PartitionDescription(index=0, leader=11, isr=[11], replica_states=["online"])
    partition.replicas.add(broker_id=11)
    topic = pb.TopicDescription(name="t", result=FINE, topic_id=bytes(range(16)), partitions=[partition])
    config = pb.DescribedConfig(key="a", value="1", source="topic", allowed="a number")
    broker = pb.BrokerDescription(
        broker_id=11, state="unfenced", endpoints=[metadata_pb2.Endpoint(name="C", host="b", port=1)]
    )
    return {
        rpcs.DESCRIBE_TOPICS: pb.DescribeTopicsReply(result=result, offset=offset, topics=[topic]),
        rpcs.DESCRIBE_CONFIGS: pb.DescribeConfigsReply(
            result=result, offset=offset, resources=[pb.DescribedConfigs(result=FINE, configs=[config])]
        ),
        rpcs.DESCRIBE_FEATURES: pb.DescribeFeaturesReply(
            result=result, offset=offset, features=[pb.DescribedFeature(name="metadata.version", level=1)]
        ),
        rpcs.DESCRIBE_PREFERRED_CONTROLLERS: pb.DescribePreferredControllersReply(
            result=result, offset=offset, node_ids=[1]
        ),
        rpcs.LIST_REASSIGNMENTS: pb.ListReassignmentsReply(
            result=result, offset=offset, throttle=-1,
            partitions=[pb.OngoingReassignment(topic="t", leader=11, replicas=[11, 12], adding=[12], isr=[11])],
        ),
        rpcs.DESCRIBE_BROKERS: pb.DescribeBrokersReply(result=result, offset=offset, brokers=[broker]),
    }  # fmt: skip


COMMANDS = [
    ["topics", "list"],
    ["topics", "describe"],
    ["topics", "describe", "t"],
    ["configs", "get", "--topic", "t"],
    ["features", "describe"],
    ["preferred-controllers", "show"],
    ["reassign", "status"],
    ["reassign", "generate", "--topic", "t"],
    ["reassign", "verify", "--topic", "t", "--brokers", "11,12"],
    ["brokers", "list"],
    ["brokers", "describe", "11"],
]


OF_NODES: dict[AnyRpc, Message | ClusterError] = {
    rpcs.DESCRIBE_METADATA: node_pb2.DescribeMetadataReply(result=FINE, offset=41),
    rpcs.DESCRIBE_NODE: NOBODY, rpcs.DESCRIBE_REPLICAS: NOBODY,
}  # fmt: skip
"""Requests that are sent to nodes, never to the controller."""


def with_controller(client: FakeClient) -> None:
    client.answer(replies(unconfirmed=False))
    client.replies[rpcs.DESCRIBE_QUORUM] = quorum_reply()
    client.answer(OF_NODES)


def without_controller(client: FakeClient) -> None:
    client.answer(dict.fromkeys(replies(False), NOBODY))
    client.answer(replies(unconfirmed=True), "h1:1")
    quorum = quorum_reply()
    quorum.known.ClearField("leader_id")
    client.replies[rpcs.DESCRIBE_QUORUM] = quorum
    client.answer(OF_NODES)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_read_reports_its_offset(
    client: FakeClient, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with_controller(client)
    assert run([*arguments]) == 0
    assert "as of offset 41 of the metadata log\n" in capsys.readouterr().err
    assert run([*arguments, "-o", "json"]) == 0
    captured = capsys.readouterr()
    assert "metadata log" not in captured.err
    document = json.loads(captured.out)
    rows = document if isinstance(document, list) else [document]
    assert [(row["offset"], row["unconfirmed"]) for row in rows] == [(41, False)]
    assert not any(request.header.unconfirmed for _, request in client.calls if request is not None)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("form", ["table", "json"])
def test_every_read_is_answered_without_a_controller(
    client: FakeClient, capsys: pytest.CaptureFixture[str], arguments: list[str], form: str
) -> None:
    without_controller(client)
    assert run([*arguments, "-o", form]) == 0
    captured = capsys.readouterr()
    assert "unconfirmed, as of offset 41 of the metadata log: no active controller confirmed it" in captured.err
    if form == "json":
        document = json.loads(captured.out)
        rows = document if isinstance(document, list) else [document]
        assert [(row["offset"], row["unconfirmed"]) for row in rows] == [(41, True)]
    confirmed = [rpc for rpc, request in client.calls if request is not None and not request.header.unconfirmed]
    asked = [rpc for rpc in confirmed if rpc not in OF_NODES]
    assert len(asked) == 1, "the command waits for a controller once, not for each request"


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_cluster_health_reports_whether_a_controller_confirmed_the_state(
    client: FakeClient, capsys: pytest.CaptureFixture[str], is_confirmed: bool
) -> None:
    (with_controller if is_confirmed else without_controller)(client)
    run(["cluster", "health", "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["offset"], document["unconfirmed"]) == (41, not is_confirmed)
    client.replies[rpcs.DESCRIBE_QUORUM] = NOBODY
    run(["cluster", "health", "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["offset"], document["unconfirmed"]) == (None, None), "nothing was read"


def test_changes_are_refused_without_a_controller(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    without_controller(client)
    client.replies[rpcs.CREATE_TOPICS] = NOBODY
    assert run(["topics", "create", "t"]) == 4
    assert not any(request.header.unconfirmed for _, request in client.calls)


@pytest.mark.parametrize(("known_there", "partition"), [(True, 0), (True, 5), (False, 0)])
async def test_a_controller_is_asked_before_a_topic_is_reported_missing(
    client: FakeClient, known_there: bool, partition: int
) -> None:
    with_controller(client)
    stale = replies(unconfirmed=True, offset=40)[rpcs.DESCRIBE_TOPICS]
    if not known_there:
        stale.topics[0].result.error = "UNKNOWN_TOPIC_OR_PARTITION"
        del stale.topics[0].partitions[:]
    client.replies["h1:1", rpcs.DESCRIBE_TOPICS] = stale
    for index in range(1, 6):
        client.replies[rpcs.DESCRIBE_TOPICS].topics[0].partitions.add(index=index)
    count = await data._partition_count(Reads(Context(), cast(ControllerClient, client)), "t", partition)
    assert count == (1 if (known_there, partition) == (True, 0) else 6)
    confirmed = [request for _, request in client.calls if not request.header.unconfirmed]
    assert len(confirmed) == (0 if (known_there, partition) == (True, 0) else 1)


async def test_broker_addresses_come_from_any_node_with_unfenced_brokers_first(client: FakeClient) -> None:
    without_controller(client)
    reply = client.replies["h1:1", rpcs.DESCRIBE_BROKERS]
    reply.brokers.add(broker_id=3, state="fenced").endpoints.add(name="C", host="a", port=3)
    assert await data.broker_addresses(Reads(Context(), cast(ControllerClient, client))) == ["b:1", "a:3"]
    assert len(client.calls) == 1


async def test_all_listeners_of_brokers_are_tried_because_the_first_one_may_be_in_another_network(
    client: FakeClient,
) -> None:
    without_controller(client)
    reply = client.replies["h1:1", rpcs.DESCRIBE_BROKERS]
    reply.brokers[0].endpoints.add(name="OUTSIDE", host="outside-b", port=2)
    added = reply.brokers.add(broker_id=13, state="unfenced").endpoints
    added.add(name="INSIDE", host="a", port=3)
    added.add(name="OUTSIDE", host="outside-a", port=4)
    addresses = await data.broker_addresses(Reads(Context(), cast(ControllerClient, client)))
    assert addresses == ["b:1", "a:3", "outside-b:2", "outside-a:4"]


# Clusters that do not fit into one answer


class LargeCluster(FakeClient):
    """One answer describes at most two topics; topic `gone` was deleted after the names were read."""

    names = ("a", "b", "c", "d", "e", "gone")

    async def call(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        if rpc is not rpcs.DESCRIBE_TOPICS:
            return await super().call(rpc, request, timeout_s)
        self.calls.append((rpc, request))
        if not request.names or len(request.names) > 2:
            raise ClusterError("POLICY_VIOLATION", "70000 partitions; one answer can describe at most 50000")
        reply = pb.DescribeTopicsReply(result=FINE, offset=50 - len(self.calls))
        for name in request.names:
            error = "UNKNOWN_TOPIC_OR_PARTITION" if name == "gone" else "NONE"
            topic = reply.topics.add(name=name, topic_id=bytes(range(16)), result=pb.Result(error=error))
            if error == "NONE":
                topic.partitions.add(leader=11, isr=[11], replica_states=["online"]).replicas.add(broker_id=11)
        return reply


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> LargeCluster:
    fake = LargeCluster()
    monkeypatch.setattr(Context, "client", lambda self: fake)
    quorum = quorum_reply()
    fake.answer(replies(unconfirmed=False) | {rpcs.DESCRIBE_QUORUM: quorum})
    whole = node_pb2.DescribeMetadataReply(result=FINE, topics=[pb.TopicDescription(name=each) for each in fake.names])
    fake.answer({rpcs.DESCRIBE_METADATA: whole})
    return fake


@pytest.mark.parametrize("command", ["list", "describe"])
def test_all_topics_are_shown_although_one_answer_cannot_hold_them(
    large: LargeCluster, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(["topics", command, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["a", "b", "c", "d", "e"]
    asked = [list(request.names) for rpc, request in large.calls if rpc is rpcs.DESCRIBE_TOPICS]
    assert [names for names in asked if 0 < len(names) <= 2] == [[each] for each in large.names]
    assert {row["offset"] for row in rows} == {50 - len(large.calls)}, "the lowest offset of the answers"


def test_health_and_drain_cover_all_topics_of_a_large_cluster(
    large: LargeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["cluster", "health", "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["topics"], found["partitions"], found["partitions_without_leader"]) == (5, 5, 0)
    large.replies[rpcs.DESCRIBE_BROKERS].brokers.add(broker_id=12, state="unfenced")
    assert run(["reassign", "generate", "--drain", "11", "-o", "json"]) == 0
    planned = json.loads(capsys.readouterr().out)["plan"]["partitions"]
    assert [(row["topic"], row["replicas"]) for row in planned] == [(each, [12]) for each in "abcde"]
    assert run(["reassign", "generate", "--drain", "99"]) == 3, "an empty plan would look as if broker 99 were drained"
    assert "broker 99 is not registered (next: kctl brokers list)" in capsys.readouterr().err
    large.replies[rpcs.DESCRIBE_BROKERS].brokers.remove(large.replies[rpcs.DESCRIBE_BROKERS].brokers[0])
    assert run(["reassign", "generate", "--drain", "11", "-o", "json"]) == 0, (
        "broker 11 is unregistered, but has replicas"
    )
    assert json.loads(capsys.readouterr().out)["plan"]["partitions"] == planned


@pytest.mark.parametrize("command", [["topics", "list"], ["topics", "describe", "a"], ["reassign", "generate"]])
def test_commands_fail_if_a_topic_does_not_fit_into_one_reply(client: FakeClient, command: list[str]) -> None:
    whole = node_pb2.DescribeMetadataReply(result=FINE, topics=[pb.TopicDescription(name=each) for each in "abc"])
    client.answer({rpcs.DESCRIBE_QUORUM: quorum_reply(), rpcs.DESCRIBE_METADATA: whole})
    client.replies[rpcs.DESCRIBE_TOPICS] = ClusterError("POLICY_VIOLATION", "70000 partitions")
    assert run([*command, "--topic", "a"] if command[0] == "reassign" else command) == 5
    assert sum(rpc is rpcs.DESCRIBE_TOPICS for rpc, _ in client.calls) <= 3
