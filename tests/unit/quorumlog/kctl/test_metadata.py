"""kctl metadata, against node services in this process: records, states and differences, as text and as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from metadata.codec import encode
from metadata.controller.node_service import NodeService, NodeState
from metadata.records import LOST as LOST_DIRECTORY
from metadata.records import (
    BrokerChange,
    Config,
    ConfigScope,
    Feature,
    ForgetTopics,
    NoOp,
    PartitionChange,
    PreferredControllers,
    ProducerIds,
    Reason,
    Record,
    RemovePartition,
    RenewTopic,
    Replica,
    UnregisterBroker,
)
from metadata.snapshot import chunks
from quorumlog.errors import ClusterError
from quorumlog.kctl import metadata_history
from quorumlog.kctl.context import Context
from quorumlog.kctl.main import run
from quorumlog.kctl.metadata_records import Names, lines
from quorumlog.kctl.output import uuid_text
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2, metadata_pb2, node_pb2, quorum_pb2
from tests.contract.samples import snapshot_bytes
from tests.unit.metadata import fake_node
from tests.unit.metadata.controller.test_history import lived
from tests.unit.metadata.fake_node import Plane
from tests.unit.metadata.kept_log import KeptLog
from tests.unit.metadata.test_snapshot import example

Said = Callable[..., tuple[int, str, str]]


class Node:
    """A node with the history of `lived`, or a part of it."""

    def __init__(self) -> None:
        self.plane: Plane
        self.kept: KeptLog
        self.plane, self.kept = fake_node.run(lived())
        state = NodeState("follower", False, None, None, {}, 0)
        self.service = NodeService(self.kept, self.plane.replay, lambda: state)
        self.is_up = True

    @property
    def end(self) -> int:
        return self.plane.node.high_watermark

    async def ask(self, rpc: AnyRpc, request: Any) -> Any:
        if not self.is_up:
            raise ClusterError("UNAVAILABLE", "no answer", retriable=True)
        reply: Any = await self.service.handle(rpc, request)
        result: controller_pb2.Result = reply.result
        if result.error != "NONE":
            raise ClusterError(result.error, result.message, result.next, retriable=result.retriable)
        return reply


class Nodes:
    """A client of several nodes; `ask_any` asks the first that is up."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = {f"node:{index + 1}": node for index, node in enumerate(nodes)}
        self.asked: list[tuple[AnyRpc, Any]] = []
        self.learned: list[str] = []
        self.at_end: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Nodes:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def learn(self, addresses: Any) -> None:
        self.learned += addresses

    async def describe_quorum(self, timeout_s: float) -> Any:
        voters = [
            quorum_pb2.ReplicaStatus(
                replica=quorum_pb2.Voter(key=quorum_pb2.ReplicaKey(node_id=number), address=address)
            )
            for number, address in enumerate(self.nodes, 1)
        ]
        return quorum_pb2.DescribeQuorumReply(voters=voters)

    async def ask_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        return await self.nodes[address].ask(rpc, request)

    def prefer(self, address: str) -> None:
        self.nodes = {address: self.nodes[address], **self.nodes}

    async def ask_any(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        self.asked.append((rpc, request))
        node = next(node for node in self.nodes.values() if node.is_up)
        if rpc == rpcs.READ_METADATA and request.wait_ms and request.from_offset == node.end:
            self.at_end()
            node = next(node for node in self.nodes.values() if node.is_up)
        return await node.ask(rpc, request)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    made = Nodes(Node())
    monkeypatch.setattr(Context, "client", lambda context: made)
    monkeypatch.delenv("KCTL_CONTROLLERS", raising=False)
    monkeypatch.setattr(metadata_history, "POLL_MS", 1)
    return made


@pytest.fixture
def kctl(capsys: pytest.CaptureFixture[str]) -> Said:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["metadata", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def only(nodes: Nodes) -> Node:
    return nodes.nodes["node:1"]


# Tail


def test_tail_from_the_beginning_shows_every_record_once(nodes: Nodes, kctl: Said) -> None:
    code, out, _ = kctl("tail", "--from", "beginning", "--exit-at-end", "-o", "json")
    assert code == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["offset"] for record in records] == list(range(only(nodes).end))
    assert {record["kind"] for record in records} >= {
        "leader_change", "register_broker", "broker_change", "topic", "partition", "partition_change", "config",
        "target_voters", "remove_topic",
    }  # fmt: skip
    assert (records[0]["kind"], records[0]["record"]) == ("leader_change", None)
    assert records[0]["text"] == "leader change: 1 leads epoch 1, with the votes of 1"
    gone = next(record for record in records if record["kind"] == "remove_topic")
    assert (gone["topic"], gone["text"]) == ("gone", "topic gone is deleted")
    fenced = next(record for record in records if record["kind"] == "partition_change")
    assert fenced["topic"] == "kept"
    assert fenced["record"]["reason"] == "broker_fenced"
    assert fenced["record"]["cause_offset"] < fenced["offset"]
    assert "adding" not in fenced["record"], "unchanged fields are absent"
    assert nodes.learned == ["node:1"], "all nodes of the cluster are asked"
    code, text, _ = kctl("tail", "--from", "beginning", "--exit-at-end")
    assert [line.split()[0] for line in text.splitlines()] == [str(number) for number in range(only(nodes).end)]


def test_tail_from_inside_a_batch_starts_at_the_requested_offset(nodes: Nodes, kctl: Said) -> None:
    for offset in range(only(nodes).end + 1):
        _, out, _ = kctl("tail", "--from", str(offset), "--exit-at-end", "-o", "json")
        assert [json.loads(line)["offset"] for line in out.splitlines()] == list(range(offset, only(nodes).end))


def test_tail_shows_the_names_of_earlier_topics(nodes: Nodes, kctl: Said) -> None:
    _, whole, _ = kctl("tail", "--from", "beginning", "--exit-at-end")
    for offset in (0, 5, 12, only(nodes).end - 1):
        _, rest, _ = kctl("tail", "--from", str(offset), "--exit-at-end")
        assert rest.splitlines() == whole.splitlines()[offset:]


def test_tail_follows_new_records_and_ends_at_its_limit(nodes: Nodes, kctl: Said) -> None:
    node = only(nodes)
    end = node.end

    def write() -> None:
        node.plane.node.append(1, encode([Feature("x", node.end), Feature("y", node.end)]), 2)
        node.plane.node.commit()

    nodes.at_end = write
    code, out, err = kctl("tail", "--max-records", "5")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == [str(end + number) for number in range(5)]


def test_tail_of_a_quiet_log_does_not_report_that_a_node_does_not_answer(
    nodes: Nodes, kctl: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_history, "POLL_MS", 5_000)
    ask = nodes.ask_any

    async def ask_any(rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        if rpc == rpcs.READ_METADATA and request.wait_ms:
            await asyncio.sleep(min(request.wait_ms / 1000, timeout_s / 2))
            if request.wait_ms / 1000 >= timeout_s / 2:  # a client leaves time for other nodes
                raise ClusterError("TIMED_OUT", "node:1 did not answer in time", retriable=True)
            request.wait_ms = 0
        return await ask(rpc, request, timeout_s)

    monkeypatch.setattr(nodes, "ask_any", ask_any)
    code, _, err = kctl("tail", "--timeout", "1")
    assert code == 4
    assert "the requested records did not arrive within 1 s" in err


def two(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> tuple[Node, Node]:
    """Add a second node.  A reader asks both again without a pause."""
    monkeypatch.setattr(metadata_history, "AGAIN_S", 0)
    nodes.nodes["node:2"] = second = Node()
    return only(nodes), second


def test_tail_continues_at_another_node_that_is_behind(
    nodes: Nodes, kctl: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two(nodes, monkeypatch)
    first.plane.node.append(1, encode([Feature("x", 1)]), 1)
    first.plane.node.commit()
    end = first.end
    looks = 0
    describe_quorum = nodes.describe_quorum

    async def count_looks(timeout_s: float) -> Any:
        """Count the look-ups of the nodes.  At the fourth look-up, the second node has caught up."""
        nonlocal looks
        looks += 1
        if looks == 4:
            for _ in range(2):
                second.plane.node.append(1, encode([Feature("x", 1)]), 1)
            second.plane.node.commit()
        return await describe_quorum(timeout_s)

    def break_down() -> None:
        first.is_up = False

    nodes.at_end = break_down  # the first node does not answer any more; the second one ends at end - 1
    monkeypatch.setattr(nodes, "describe_quorum", count_looks)
    code, out, err = kctl("tail", "--from", str(end - 1), "--max-records", "2", "--timeout", "20")
    assert (code, err) == (0, ""), err
    assert [line.split()[0] for line in out.splitlines()] == [str(end - 1), str(end)]


def test_tail_waits_for_a_node_that_restarts_if_the_others_have_deleted_its_next_record(
    nodes: Nodes, kctl: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two(nodes, monkeypatch)
    end = first.end
    ask = second.ask
    asked = 0

    async def ask_second(rpc: AnyRpc, request: Any) -> Any:
        """Answer from a log that begins after the first node's end.  At the fourth request, the first node restarts."""
        nonlocal asked
        asked += 1
        if asked == 4:
            first.plane.node.append(1, encode([Feature("x", 1)]), 1)
            first.plane.node.commit()
            first.is_up = True
        if request.from_offset not in (-1, end):
            return await ask(rpc, request)
        if request.from_offset == end:
            raise ClusterError("OFFSET_OUT_OF_RANGE", "deleted")
        return node_pb2.ReadMetadataReply(log_start=end + 1, high_watermark=end + 2)

    def break_down() -> None:
        first.is_up = False

    nodes.at_end = break_down
    monkeypatch.setattr(second, "ask", ask_second)
    code, out, err = kctl("tail", "--max-records", "1", "--timeout", "20")
    assert (code, err) == (0, ""), err
    assert out.split()[0] == str(end)


def test_tail_without_new_records_times_out(nodes: Nodes, kctl: Said) -> None:
    code, out, err = kctl("tail", "--timeout", "0.05", "-o", "json")
    assert (code, out, json.loads(err)["error"]) == (4, "", "TIMED_OUT")


# At and diff


def test_at_shows_the_cluster_at_every_offset(nodes: Nodes, kctl: Said) -> None:
    kept = only(nodes).kept
    for offset in range(only(nodes).end + 1):
        code, out, err = kctl("at", str(offset), "-o", "json")
        end = max(end for end in kept.images if end <= offset)
        assert code == 0
        assert ("is inside a batch" in err) == (end != offset)
        document = json.loads(out)
        image = kept.images[end]
        assert document["offset"] == end
        assert [topic["name"] for topic in document["topics"]] == sorted(image.topic_ids)
        assert [broker["id"] for broker in document["brokers"]] == sorted(image.brokers)
    now = json.loads(kctl("at", "end", "-o", "json")[1])
    assert now == document
    assert "metadata_lag" not in now["brokers"][0], "only heartbeats report the lag"
    code, out, err = kctl("at", "end")
    assert (code, f"the cluster at offset {only(nodes).end}" in err) == (0, True)
    assert out.startswith("voters: 1@127.0.0.1:9001, 2@")
    assert "kept" in out


def test_at_shows_only_the_requested_topics(nodes: Nodes, kctl: Said) -> None:
    assert [topic["name"] for topic in json.loads(kctl("at", "end", "--topic", "kept", "-o", "json")[1])["topics"]] == [
        "kept"
    ]
    assert kctl("at", "end", "--topic", "gone")[0] == 3


def test_diff_is_empty_for_equal_states_and_lists_a_single_change(nodes: Nodes, kctl: Said) -> None:
    end = only(nodes).end
    code, out, err = kctl("diff", str(end), "end")
    assert (code, out, "no differences" in err) == (0, "", True)
    ends = sorted(only(nodes).kept.images)
    document = json.loads(kctl("diff", str(ends[1]), str(ends[2]), "-o", "json")[1])
    assert (document["from"], document["to"]) == (ends[1], ends[2])
    [change] = document["changes"]
    assert (change["change"], change["what"], change["name"]) == ("added", "broker", "1")


def test_dump_of_a_snapshot_reports_a_requested_topic_that_does_not_exist(tmp_path: Path, kctl: Said) -> None:
    image = example()
    snapshot = tmp_path / "x.snapshot"
    snapshot.write_bytes(snapshot_bytes(image.end_offset, *(chunk for chunk in chunks(image) if chunk)))
    code, out, _ = kctl("dump", str(snapshot), "--topic", "topic1", "-o", "json")
    assert (code, [topic["name"] for topic in json.loads(out)["topics"]]) == (0, ["topic1"])
    code, out, err = kctl("dump", str(snapshot), "--topic", "topic1", "--topic", "none", "-o", "json")
    assert (code, out) == (3, "")
    assert json.loads(err.splitlines()[-1]) == {
        "error": "UNKNOWN_TOPIC_OR_PARTITION",
        "message": f"{snapshot}: topic 'none' does not exist",
        "next": "omit --topic to see all topics",
        "retriable": False,
    }


def test_diff_names_a_topic_that_exists_at_neither_offset(nodes: Nodes, kctl: Said) -> None:
    code, _, err = kctl("diff", "0", "--topic", "kept", "--topic", "no-such", "-o", "json")
    assert (code, err) == (0, "topic 'no-such' exists at neither offset\n")


def test_diff_over_the_whole_history_shows_the_current_state(nodes: Nodes, kctl: Said) -> None:
    _, out, err = kctl("diff", "0")
    assert f"from offset 0 to offset {only(nodes).end}" in err
    assert out.splitlines() == [
        *(f"+ voter {number}: new, at 127.0.0.1:{9000 + number}" for number in (1, 2, 3)),
        "+ broker 1: new, unfenced, PLAINTEXT=host1:9092",
        "+ broker 2: new, unfenced, PLAINTEXT=host2:9092",
        "+ topic kept: new, 3 partitions, replication factor 2, min.insync.replicas=1",
    ]
    _, back, _ = kctl("diff", "end", "0")
    assert [line[0] for line in back.splitlines()] == ["-"] * 6


def test_diff_shows_a_fenced_broker_and_the_new_leaders(nodes: Nodes, kctl: Said) -> None:
    kept = only(nodes).kept
    ends = sorted(kept.images)
    led = [end for end in ends if "kept" in kept.images[end].topic_ids]
    fenced = next(end for end in led if kept.images[end].brokers[1].fenced)
    before = max(end for end in ends if end < fenced)
    _, out, _ = kctl("diff", str(before), str(fenced))
    assert out.splitlines()[0] == "~ broker 1: state unfenced -> fenced"
    assert all(line.startswith(("~ kept-", "~ gone-")) for line in out.splitlines()[1:])
    assert any("leader 1 -> 2; in sync " in line for line in out.splitlines())


# Offsets that do not exist


@pytest.mark.parametrize("command", [("at",), ("diff", "0"), ("tail", "--from")])
def test_an_offset_past_the_end_is_refused_with_the_range(nodes: Nodes, kctl: Said, command: tuple[str, ...]) -> None:
    code, out, err = kctl(*command, str(10**17), "-o", "json")
    error = json.loads(err.splitlines()[-1])
    assert (code, out, error["error"]) == (3, "", "OFFSET_OUT_OF_RANGE")
    assert f"contains offsets 0 to {only(nodes).end}" in error["message"]


def test_an_offset_before_the_history_is_requested_from_every_node(nodes: Nodes, kctl: Said) -> None:
    first = only(nodes)
    begins = sorted(first.kept.images)[6]
    first.kept.drop_below(begins)
    code, _, err = kctl("at", "3")
    assert code == 3
    assert f"offset 3 is not available: the metadata history contains offsets {begins} to {first.end}" in err
    code, out, _ = kctl("tail", "--from", "beginning", "--exit-at-end", "-o", "json")
    assert (code, json.loads(out.splitlines()[0])["offset"]) == (0, begins)
    nodes.nodes["node:2"] = Node()
    nodes.nodes["node:2"].is_up = False
    assert kctl("at", "3")[0] == 3
    nodes.nodes["node:2"].is_up = True
    code, out, _ = kctl("at", "3", "-o", "json")
    assert (code, json.loads(out)["offset"]) == (0, 3)


@pytest.mark.parametrize("is_there", [True, False])
def test_tail_continues_at_a_node_that_is_not_behind_or_times_out(
    nodes: Nodes, kctl: Said, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node reports the end.  Then the client prefers the second node, which is behind.

    The first node stays available, or stops.
    """
    _, whole, _ = kctl("tail", "--from", "beginning", "--exit-at-end")
    first, behind = only(nodes), Node()
    boundary = sorted(behind.kept.images)[6]
    behind.plane.node.high_watermark = boundary
    nodes.nodes["node:2"] = behind
    ask = nodes.ask_any

    async def ask_any(rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        reply = await ask(rpc, request, timeout_s)
        if rpc == rpcs.READ_METADATA and len(nodes.asked) == 1:
            nodes.prefer("node:2")
            first.is_up = is_there
        return reply

    nodes.asked.clear()
    monkeypatch.setattr(nodes, "ask_any", ask_any)
    code, out, err = kctl("tail", "--from", str(boundary), "--exit-at-end", "--timeout", "0.5")
    if is_there:
        assert (code, out) == (0, "".join(whole.splitlines(keepends=True)[-out.count("\n") :]))
        assert out
    else:
        assert (code, out) == (4, "")
        assert "TIMED_OUT" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["at"],
        ["at", "x"],
        ["at", "1.5"],
        ["at", "9" * 19],
        ["at", "٣"],
        ["diff"],
        ["diff", "0", "y"],
        ["tail", "--from", "middle"],
        ["tail", "--max-records", "0"],
        ["dump"],
    ],
)
def test_wrong_usage_is_refused_before_any_request(nodes: Nodes, kctl: Said, arguments: list[str]) -> None:
    code, out, err = kctl(*arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert nodes.asked == []


# Records of every kind

TOPIC = b"\1" * 16
CASES: list[tuple[Record, str]] = [
    (BrokerChange(1, 5, fenced=True, directories_offline=()), "broker 1 is fenced"),
    (BrokerChange(1, 5, in_controlled_shutdown=True), "broker 1 is shutting down"),
    (UnregisterBroker(1, 5), "broker 1 is unregistered"),
    (RemovePartition(UUID(bytes=TOPIC), 3), "t-3 is removed"),
    (ProducerIds(1, 5, 2000), "broker 1 gets producer ids below 2000"),
    (PreferredControllers((3, 1)), "preferred controllers: 3,1"),
    (PreferredControllers(()), "preferred controllers: none"),
    (Feature("f", 2), "feature f has level 2"),
    (NoOp(), "nothing"),
    (ForgetTopics(("a", "b")), "the leader epochs of a, b are deleted"),
    (Config(ConfigScope.CLUSTER, "", "k", "1"), "config k of the cluster is set to 1"),
    (Config(ConfigScope.BROKER, "7", "k", None), "config k of broker 7 is unset"),
    (Config(ConfigScope.TOPIC, TOPIC.hex(), "k", ""), "config k of topic t is set to "),
]


def shown(record: Record) -> Any:
    batch = node_pb2.MetadataBatch(base_offset=4, count=1, epoch=2, timestamp_ms=1)
    batch.records.ParseFromString(encode([record]))
    [line] = lines(batch, Names([(TOPIC, "t")]))
    return line


@pytest.mark.parametrize(("record", "text"), CASES)
def test_a_record_is_described_in_words(record: Record, text: str) -> None:
    line = shown(record)
    assert line.text == text
    json.dumps(line.document())
    assert line.document()["at"] == "1970-01-01T00:00:00.001Z"


def test_every_kind_of_record_is_described() -> None:
    for field in metadata_pb2.Record.DESCRIPTOR.oneofs_by_name["record"].fields:
        batch = node_pb2.MetadataBatch()
        getattr(batch.records.records.add(), field.name).SetInParent()
        [line] = lines(batch, Names())
        assert line.kind == field.name
        assert "upgrade kctl" not in line.text
    unknown = node_pb2.MetadataBatch()
    unknown.records.records.add()
    [line] = lines(unknown, Names())
    assert line.text == "unknown: upgrade kctl to read it"


def test_a_partition_change_shows_the_changed_fields_and_the_reason() -> None:
    topic, directory = UUID(bytes=TOPIC), UUID(int=9 << 64)
    line = shown(
        PartitionChange(
            topic,
            2,
            leader=-1,
            isr=(),
            replicas=(Replica(1, LOST_DIRECTORY), Replica(2, directory)),
            reason=Reason.REPLICA_LOST,
            cause_offset=-1,
            previous_offset=3,
        )
    )
    assert (line.topic, line.partition) == ("t", 2)
    assert line.text == "t-2: no leader; replicas 1 (lost),2; in sync none (replica lost)"
    assert line.record == {
        "topic_id": uuid_text(TOPIC), "index": 2, "isr": [], "leader": None, "reason": "replica_lost",
        "cause_offset": None, "previous_offset": 3,
        "replicas": [
            {"broker_id": 1, "directory_id": uuid_text(LOST_DIRECTORY.bytes)},
            {"broker_id": 2, "directory_id": uuid_text(directory.bytes)},
        ],
    }  # fmt: skip


def test_a_topic_under_a_new_id_keeps_its_name() -> None:
    names = Names([(TOPIC, "t")])
    batch = node_pb2.MetadataBatch(count=2)
    new = UUID(int=5)
    batch.records.ParseFromString(encode([RenewTopic(UUID(bytes=TOPIC), new), RemovePartition(new, 1)]))
    first, second = lines(batch, names)
    assert first.text == f"topic t continues with the id {uuid_text(new.bytes)}; its id was {uuid_text(TOPIC)}"
    assert second.text == "t-1 is removed"
    assert Names().of(TOPIC) == uuid_text(TOPIC)
