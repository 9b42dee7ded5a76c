"""kctl brokers list and describe, against a table of replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quorumlog.errors import ClusterError
from quorumlog.kctl import broker_look, brokers
from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2, metadata_pb2, node_pb2, quorum_pb2
from tests.unit.quorumlog.kctl.test_commands import OK, FakeClient, client, quorum_reply, topics
from tests.unit.quorumlog.kctl.test_commands import brokers as registered

__all__ = ["client"]

SILENT = ClusterError("UNAVAILABLE", "no answer from c:1", retriable=True)


def described(applied: int = 39, *, offline: tuple[str, ...] = (), pending: int = 2, ok: bool = True) -> Any:
    return node_pb2.DescribeNodeReply(
        result=OK, node_id=11, is_broker=True, broker_applied_offset=applied, pending_changes=pending,
        high_watermark=41, directories_offline=offline,
        checks=[node_pb2.CheckResult(name="leader", ok=ok, detail="none is known")],
    )  # fmt: skip


@pytest.fixture
def cluster(client: FakeClient) -> FakeClient:
    """Broker 11 answers at b:1; 12 is fenced, and does not answer at c:1."""
    quorum = quorum_reply()
    replica = quorum_pb2.Voter(key=quorum_pb2.ReplicaKey(node_id=12), address="c:1")
    quorum.observers.append(quorum_pb2.ReplicaStatus(replica=replica))
    reply = registered()
    reply.offset = 40
    client.replies |= {
        rpcs.DESCRIBE_BROKERS: reply, rpcs.DESCRIBE_QUORUM: quorum, ("b:1", rpcs.DESCRIBE_NODE): described(),
        ("c:1", rpcs.DESCRIBE_NODE): SILENT,
    }  # fmt: skip
    return client


def documents(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert run([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_brokers_own_report_overrides_its_heartbeats(cluster: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = documents(["brokers", "list"], capsys)
    assert (first["id"], first["rack"], first["state"], first["control"]) == (11, "r", "unfenced", "b:1")
    assert (first["metadata_offset"], first["metadata_lag"], first["pending_changes"]) == (39, 2, 2)
    assert (first["answers"], first["problem"], first["directories_offline"]) == (True, None, [])
    assert (second["id"], second["rack"], second["state"]) == (12, None, "fenced")
    assert (second["metadata_offset"], second["metadata_lag"], second["pending_changes"]) == (None, None, None)
    assert (second["answers"], second["problem"]) == (False, "no answer from c:1")
    assert run(["brokers", "list"]) == 0
    captured = capsys.readouterr()
    assert captured.err == "as of offset 40 of the metadata log\nbroker 12: no answer from c:1\n"
    assert len(captured.out.splitlines()) == 3


def test_a_cordoned_broker_is_shown_as_cordoned(cluster: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.replies[rpcs.DESCRIBE_BROKERS].brokers[0].cordoned = True  # broker 12
    cluster.replies[rpcs.DESCRIBE_BROKERS].brokers[1].cordoned = False
    cluster.replies[rpcs.DESCRIBE_METADATA] = metadata()
    assert [each["cordoned"] for each in documents(["brokers", "list"], capsys)] == [False, True]
    assert documents(["brokers", "describe", "12"], capsys)["cordoned"] is True
    assert run(["brokers", "list"]) == 0
    header, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[header.index("cordoned")] for row in rows] == ["no", "yes"]
    assert run(["brokers", "describe", "12"]) == 0
    assert ["cordoned", "yes"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    cluster.replies[rpcs.DESCRIBE_BROKERS] = registered()  # of a version that does not report cordoned brokers
    assert [each["cordoned"] for each in documents(["brokers", "list"], capsys)] == [None, None]


def test_a_broker_that_does_not_answer_is_described_by_its_heartbeats(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies["b:1", rpcs.DESCRIBE_NODE] = SILENT
    first = documents(["brokers", "list"], capsys)[0]
    assert (first["metadata_offset"], first["metadata_lag"], first["answers"]) == (40, 1, False)


def test_problems_that_a_broker_reports_are_shown(cluster: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.replies["b:1", rpcs.DESCRIBE_NODE] = described(offline=("/b",), ok=False)
    first = documents(["brokers", "list"], capsys)[0]
    assert (first["problem"], first["directories_offline"]) == ("leader: none is known", ["/b"])
    cluster.replies["b:1", rpcs.DESCRIBE_NODE] = node_pb2.DescribeNodeReply(result=OK)
    first = documents(["brokers", "list"], capsys)[0]
    assert (first["answers"], first["problem"]) == (False, "the node with this id is not a broker")


def test_without_a_controller_the_nodes_own_metadata_is_shown(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = registered()
    reply.result.unconfirmed, reply.offset = True, 38
    for broker in reply.brokers:
        broker.metadata_offset = -1
    cluster.replies[rpcs.DESCRIBE_BROKERS] = ClusterError("NOT_CONTROLLER", "it is paused", retriable=True)
    cluster.replies["h1:1", rpcs.DESCRIBE_BROKERS] = reply
    assert run(["brokers", "list", "-o", "json"]) == 0
    captured = capsys.readouterr()
    assert "unconfirmed, as of offset 38 of the metadata log: no active controller confirmed it" in captured.err
    first, second = json.loads(captured.out)
    assert (first["metadata_offset"], first["metadata_lag"], second["metadata_offset"]) == (39, 2, None)
    assert (first["offset"], second["offset"]) == (38, 38)
    cluster.replies["h1:1", rpcs.DESCRIBE_BROKERS] = ClusterError("UNAVAILABLE", "nobody", retriable=True)
    assert run(["brokers", "list", "-o", "json"]) == 4
    assert json.loads(capsys.readouterr().err)["message"] == "it is paused"


def test_brokers_list_asks_no_other_node_after_the_controller_refuses(cluster: FakeClient) -> None:
    cluster.replies[rpcs.DESCRIBE_BROKERS] = ClusterError("INCONSISTENT_CLUSTER_ID", "another cluster")
    assert run(["brokers", "list"]) == 5
    assert len(cluster.calls) == 1


def replica(topic: str, index: int, **fields: Any) -> Any:
    return node_pb2.ReplicaDescription(topic=topic, index=index, **fields)


def metadata() -> Any:
    """Topic t: partition 0 is as in `topics`.  In partitions 1 and 2, broker 12 is in sync instead of broker 11."""
    described_topics = topics().topics
    for index, state in ((1, "new"), (2, "online")):
        partition = described_topics[0].partitions.add()
        partition.CopyFrom(described_topics[0].partitions[0])
        partition.index = index
        partition.replica_states[0] = state
        partition.isr[:] = [12]
    return node_pb2.DescribeMetadataReply(result=OK, offset=40, topics=described_topics)


def test_a_broker_is_described_with_all_its_replicas(cluster: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.replies[rpcs.DESCRIBE_METADATA] = metadata()
    own = [
        replica("t", 0, state="leader", end_offset=9, high_watermark=8, bytes=640, directory="/a"),
        replica("t", 1, state="offline", problem="checksum"),
    ]
    cluster.replies["b:1", rpcs.DESCRIBE_REPLICAS] = node_pb2.DescribeReplicasReply(
        result=OK, is_broker=True, replicas=own
    )
    document = documents(["brokers", "describe", "11"], capsys)
    assert (document["id"], document["answers"]) == (11, True)
    fine, damaged, not_there = document["replica_states"]
    assert fine == {
        "topic": "t", "partition": 0, "state": "online", "role": "leader", "in_sync": True, "leader": 11,
        "end_offset": 9, "high_watermark": 8, "bytes": 640, "directory": "/a", "problem": None,
    }  # fmt: skip
    assert (damaged["state"], damaged["role"], damaged["problem"], damaged["end_offset"]) == (
        "new", "offline", "checksum", None,
    )  # fmt: skip
    assert (not_there["state"], not_there["role"], not_there["in_sync"]) == ("online", None, False)
    assert [broker_look.is_fine(each) for each in document["replica_states"]] == [True, False, False]


def test_brokers_describe_shows_problems_first_and_reports_omitted_replicas(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.replies[rpcs.DESCRIBE_METADATA] = metadata()
    cluster.replies["b:1", rpcs.DESCRIBE_REPLICAS] = SILENT
    monkeypatch.setattr(brokers, "SHOWN_MAX", 1)
    assert run(["brokers", "describe", "11"]) == 0
    captured = capsys.readouterr()
    assert [line.split()[:3] for line in captured.out.splitlines() if line.startswith("t ")] == [["t", "1", "new"]]
    assert "broker 11 does not report its replicas: no answer from c:1" in captured.err
    assert "and 2 more replicas (--all shows them)" in captured.err
    assert run(["brokers", "describe", "11", "--all"]) == 0
    assert sum(line.startswith("t ") for line in capsys.readouterr().out.splitlines()) == 3


def test_replicas_of_an_unavailable_broker_come_from_the_metadata(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies[rpcs.DESCRIBE_METADATA] = metadata()
    document = documents(["brokers", "describe", "12"], capsys)
    assert [each["state"] for each in document["replica_states"]] == ["offline"] * 3
    assert rpcs.DESCRIBE_REPLICAS not in [rpc for rpc, _ in cluster.calls]


def test_brokers_describe_asks_for_the_topics_of_the_broker_if_the_full_reply_is_too_large(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = ClusterError("POLICY_VIOLATION", "more than 50000 partitions")
    cluster.replies[rpcs.DESCRIBE_METADATA] = [refusal, metadata()]
    cluster.replies["b:1", rpcs.DESCRIBE_REPLICAS] = node_pb2.DescribeReplicasReply(
        result=OK, is_broker=True, replicas=[replica("t", 0, state="leader")]
    )
    assert run(["brokers", "describe", "11"]) == 0
    assert "only topics that the broker itself names are shown" in capsys.readouterr().err
    assert list(cluster.calls[-1][1].topics) == ["t"]


def test_describing_a_broker_that_is_not_registered_fails(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["brokers", "describe", "99", "-o", "json"]) == 3
    assert json.loads(capsys.readouterr().err)["error"] == "BROKER_ID_NOT_REGISTERED"


def test_a_replica_may_have_no_directory_and_no_leader() -> None:
    partition = controller_pb2.PartitionDescription(
        index=0, leader=-1, replicas=[metadata_pb2.Replica(broker_id=4)], replica_states=["online"]
    )
    found = broker_look._replica("t", partition, 0, replica("t", 0, state="idle"))
    assert (found["directory"], found["leader"], found["role"]) == (None, None, "idle")
