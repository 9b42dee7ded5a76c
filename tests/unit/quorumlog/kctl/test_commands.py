"""kctl's command line, against a table of replies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click
import pytest

from quorumlog.errors import ClusterError
from quorumlog.kctl.context import Context
from quorumlog.kctl.main import cli, run
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2, node_pb2, quorum_pb2

TOPIC_ID = bytes(range(16))
OK = pb.Result(error="NONE")


class FakeClient:
    """Records its requests.

    replies: the answers by method, or by (address, method) for the answers of a single node.  Each entry of a list
    answers one call, and the last entry all further calls.  An exception is raised.
    """

    def __init__(self) -> None:
        self.replies: dict[AnyRpc | tuple[str, AnyRpc], Any] = {}
        self.calls: list[tuple[AnyRpc, Any]] = []
        self.learned: list[str] = []

    def answer(self, replies: Mapping[AnyRpc, Any], address: str | None = None) -> None:
        """Add replies of every node, or of the node at `address`."""
        for rpc, reply in replies.items():
            self.replies[rpc if address is None else (address, rpc)] = reply

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def call(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        return self._answer(rpc, rpc, request)

    def _answer(self, key: AnyRpc | tuple[str, AnyRpc], rpc: AnyRpc, request: Any) -> Any:
        self.calls.append((rpc, request))
        reply = self.replies[key]
        if isinstance(reply, list):
            reply = reply.pop(0) if len(reply) > 1 else reply[0]
        if isinstance(reply, BaseException):
            raise reply
        return reply

    addresses = ("h1:1",)

    async def call_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        """Return one node's own answer: its entry in the table if there is one, else the method's."""
        assert request.header.unconfirmed
        key = (address, rpc)
        return self._answer(key if key in self.replies else rpc, rpc, request)

    async def ask_any(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        return self._answer(rpc, rpc, request)

    async def ask_node(self, address: str, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        key = (address, rpc)
        return self._answer(key if key in self.replies else rpc, rpc, request)

    def learn(self, addresses: Iterable[str]) -> None:
        self.learned += addresses

    async def describe_quorum(self, timeout_s: float) -> Any:
        return await self.call(rpcs.DESCRIBE_QUORUM, None, timeout_s)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()

    def make(context: Context) -> FakeClient:
        assert context.addresses
        return fake

    monkeypatch.setattr(Context, "client", make)
    monkeypatch.delenv("KCTL_CONTROLLERS", raising=False)
    return fake


def creation(error: str = "NONE", identical: bool = False, message: str = "") -> Any:
    topic = pb.CreatedTopic(
        name="t", result=pb.Result(error=error, message=message), topic_id=TOPIC_ID, partitions=3,
        replication_factor=2, identical=identical, offset=9,
    )  # fmt: skip
    return pb.CreateTopicsReply(result=OK, topics=[topic])


def test_topics_create_sends_the_options_and_reports_the_topic(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies[rpcs.CREATE_TOPICS] = creation()
    arguments = ["topics", "create", "t", "--partitions", "3", "--config", "a=b=c", "-o", "json"]
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {
        "changed": True, "offset": 9, "name": "t", "topic_id": "AAECAwQFBgcICQoLDA0ODw", "partitions": 3,
        "replication_factor": 2, "created": True,
    }  # fmt: skip
    (_, request) = client.calls[0]
    (topic,) = request.topics
    assert (topic.partitions, topic.replication_factor) == (3, -1)
    assert [(config.key, config.value) for config in topic.configs] == [("a", "b=c")]


def test_topics_create_sends_the_given_assignment(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.replies[rpcs.CREATE_TOPICS] = creation()
    assert run(["topics", "create", "t", "--assignment", "1:2,2:3"]) == 0
    assert "3 partitions, replication factor 2" in capsys.readouterr().out
    client.replies[rpcs.CREATE_TOPICS].topics[0].partitions = 1
    assert run(["topics", "create", "t", "--assignment", "1:2"]) == 0
    assert "1 partition, replication factor 2" in capsys.readouterr().out
    (topic,) = client.calls[0][1].topics
    assert [list(row.values) for row in topic.assignment] == [[1, 2], [2, 3]]


def test_topics_create_accepts_an_existing_topic_only_if_it_is_identical(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies[rpcs.CREATE_TOPICS] = creation("TOPIC_ALREADY_EXISTS", identical=True)
    assert run(["-o", "json", "topics", "create", "t"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["created"], document["changed"]) == (False, False)
    client.replies[rpcs.CREATE_TOPICS] = creation("TOPIC_ALREADY_EXISTS", message="partitions 3, not 4")
    assert run(["-o", "json", "topics", "create", "t"]) == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["message"] == "partitions 3, not 4"


def test_a_dry_run_reports_that_it_changes_nothing(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.replies[rpcs.CREATE_TOPICS] = creation()
    assert run(["topics", "create", "t", "--validate-only", "-o", "json"]) == 0
    assert client.calls[0][1].header.validate_only
    assert json.loads(capsys.readouterr().out)["changed"] is False


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "create"],
        ["topics", "create", "t", "--partitions", "0"],
        ["topics", "create", "t", "--config", "novalue"],
        ["topics", "create", "t", "--config", "a=1", "--config", "a=2"],
        ["topics", "create", "t", "--assignment", "1:x"],
        ["topics", "create", "t", "--assignment", "1_1:2"],
        ["topics", "create", "t", "--assignment", "1:2", "--partitions", "1"],
        ["topics", "create", "t", "--partitions", "1_0"],
        ["reassign", "start", "--topic", "t", "--brokers", "1_1,2"],
        ["reassign", "start", "--throttle", "5M", "--brokers", "1,2"],
        ["reassign", "start", "--throttle", "5M", "--replication-factor", "2"],
        ["reassign", "start", "--topic", "t", "--brokers", "1,2", "--throttle", "9" * 5000],
        ["topics", "create", "t", "--timeout", "-1"],
        ["--controllers", "nonsense", "topics", "list"],
        ["--controllers", "0.0.0.0:1", "topics", "list"],
        ["nonsense"],
        ["topics", "nonsense"],
        ["brokers", "describe", "one"],
        ["preferred-controllers", "set", "one"],
        ["preferred-controllers", "set", "1_1"],
        ["remove-voter", "1_1"],
        ["preferred-controllers", "set", "1,99999999999"],
        ["consume", "t", "--from", "middle"],
        ["transactions", "abort", "--topic", "t", "--partition", "0"],
        ["produce", "t", "--key", "k", "--key-separator", ":"],
        ["dev", "up", "--voters", "0"],
        ["completion", "tcsh"],
    ],
)
def test_wrong_usage_exits_with_2(client: FakeClient, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert run([*arguments, "-o", "json"]) == 2
    error = json.loads(capsys.readouterr().err)
    assert error["error"] == "USAGE"
    assert error["next"].endswith("--help")
    assert client.calls == []


@pytest.mark.parametrize("arguments", [[], ["topics"], ["dev"]])
def test_a_missing_command_shows_the_available_commands(
    client: FakeClient, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(" ".join(["Usage: kctl", *arguments]))
    assert "Commands:" in captured.err
    assert run(["-o", "json", *arguments]) == 2
    error = json.loads(capsys.readouterr().err)
    assert (error["error"], error["next"]) == ("USAGE", " ".join(["kctl", *arguments, "--help"]))
    assert error["message"] == "Missing command."


def test_global_options_are_read_before_or_after_the_command_or_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[list[str], float]] = []

    class Client(FakeClient):
        async def call(self, rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
            return pb.DescribeTopicsReply(result=OK)

    def make(context: Context) -> Client:
        seen.append((context.addresses, context.deadline_s))
        return Client()

    monkeypatch.setattr(Context, "client", make)
    monkeypatch.setenv("KCTL_CONTROLLERS", "e:1")
    assert run(["topics", "list"]) == 0
    assert run(["--controllers", "b:1,c:2", "--timeout", "3", "topics", "list"]) == 0
    assert run(["--controllers", "b:1", "topics", "list", "--controllers", "a:1", "--timeout", "4"]) == 0
    monkeypatch.delenv("KCTL_CONTROLLERS")
    assert run(["topics", "list"]) == 0
    assert seen == [(["e:1"], 30.0), (["b:1", "c:2"], 3.0), (["a:1"], 4.0), (["127.0.0.1:9093"], 30.0)]


def test_topics_delete_reports_the_deleted_topic_or_that_it_is_missing(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = pb.Result(error="UNKNOWN_TOPIC_OR_PARTITION", message="no such topic")
    client.replies[rpcs.DELETE_TOPICS] = pb.DeleteTopicsReply(
        result=OK, topics=[pb.DeletedTopic(name="t", result=missing)]
    )
    client.replies[rpcs.DESCRIBE_QUORUM] = ClusterError("UNAVAILABLE", "nobody", retriable=True)  # no suggestion
    assert run(["topics", "delete", "t"]) == 3
    assert run(["topics", "delete", "t", "--if-exists"]) == 0
    capsys.readouterr()
    gone = pb.DeletedTopic(name="t", topic_id=TOPIC_ID, result=OK, offset=12)
    client.replies[rpcs.DELETE_TOPICS] = pb.DeleteTopicsReply(result=OK, topics=[gone])
    assert run(["topics", "delete", "t", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "changed": True, "offset": 12, "name": "t", "topic_id": "AAECAwQFBgcICQoLDA0ODw",
    }  # fmt: skip


def brokers() -> Any:
    endpoint = metadata_pb2.Endpoint(name="default", host="h", port=9092, security="PLAINTEXT")
    one = pb.BrokerDescription(
        broker_id=11, broker_epoch=5, state="unfenced", endpoints=[endpoint], leaders=1, replicas=2,
        metadata_offset=40, metadata_lag=1, rack="r",
    )  # fmt: skip
    other = pb.BrokerDescription(broker_id=12, broker_epoch=6, state="fenced", metadata_offset=-1)
    return pb.DescribeBrokersReply(result=OK, brokers=[other, one])


def topics(leader: int = 11, isr: tuple[int, ...] = (11,)) -> Any:
    replicas = [metadata_pb2.Replica(broker_id=broker, directory_id=TOPIC_ID) for broker in (11, 12, 13)]
    partition = pb.PartitionDescription(index=0, leader=leader, leader_epoch=3, replicas=replicas, isr=isr)
    partition.replica_states.extend(["online", "offline", "non-existent"])
    topic = pb.TopicDescription(
        name="t", topic_id=TOPIC_ID, result=OK, partitions=[partition],
        configs=[pb.ConfigEntry(key="min.insync.replicas", value="2")],
    )  # fmt: skip
    return pb.DescribeTopicsReply(result=OK, topics=[topic])


def test_topics_describe_shows_replica_states_and_configs(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies[rpcs.DESCRIBE_TOPICS] = topics(leader=-1)
    assert run(["topics", "describe", "t", "-o", "json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    (partition,) = document["partitions"]
    assert partition["leader"] is None
    assert partition["replica_states"] == [
        {"id": 11, "state": "online"}, {"id": 12, "state": "offline"}, {"id": 13, "state": "non-existent"},
    ]  # fmt: skip
    assert document["configs"] == [{"name": "min.insync.replicas", "value": "2"}]
    assert run(["topics", "describe", "t"]) == 0
    assert "min.insync.replicas=2" in capsys.readouterr().out


def quorum_reply() -> Any:
    key = quorum_pb2.ReplicaKey(node_id=1, directory_id=TOPIC_ID)
    voter = quorum_pb2.Voter(key=key, address="a:1")
    return quorum_pb2.DescribeQuorumReply(
        known=quorum_pb2.Knowledge(cluster_id="c", generation=0, epoch=4, leader_id=1, leader_address="a:1"),
        answered_by=key, high_watermark=10, log_end_offset=12,
        voters=[quorum_pb2.ReplicaStatus(replica=voter, log_end_offset=12, lag=0, last_fetch_ms=0)],
        observers=[quorum_pb2.ReplicaStatus(
            replica=quorum_pb2.Voter(key=quorum_pb2.ReplicaKey(node_id=11, directory_id=TOPIC_ID), address="b:1"),
            log_end_offset=-1, lag=-1,
        )],
    )  # fmt: skip


def test_quorum_status_and_replication_show_the_leader_and_the_lag(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies[rpcs.DESCRIBE_QUORUM] = quorum_reply()
    assert run(["quorum", "status", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["cluster_id"], document["leader_id"], document["leader_epoch"]) == ("c", 1, 4)
    assert document["last_leader_change"] is None
    assert document["target_voters"] is None
    assert run(["quorum", "replication", "-o", "json"]) == 0
    voter, observer = json.loads(capsys.readouterr().out)
    assert (voter["role"], voter["lag"], voter["last_caught_up_ms"]) == ("leader", 0, None)
    assert (observer["role"], observer["log_end_offset"], observer["lag"]) == ("observer", None, None)
    assert run(["quorum", "status"]) == 0
    assert "AAECAwQFBgcICQoLDA0ODw" in capsys.readouterr().out


def test_a_follower_does_not_report_an_unreachable_leader_as_leading(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = quorum_reply()
    client.replies[rpcs.DESCRIBE_QUORUM] = reply
    assert run(["quorum", "status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["leader_answers"] is True
    follower = reply.voters.add()
    follower.CopyFrom(reply.voters[0])
    follower.replica.key.node_id = 2
    reply.voters[0].log_end_offset, reply.voters[0].lag = 0, 12  # reports of a follower about others are not used
    reply.answered_by.node_id = 2
    assert run(["quorum", "status"]) == 0
    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines()]
    assert ["leader_id", "1", "(does", "not", "answer)"] in rows
    assert [" ".join(row[1:5]) for row in rows if row[0] == "1"] == ["leader (does not answer)"]
    assert captured.err == (
        "answered by node 2, which names node 1 as the leader, which does not answer: "
        "lags and observers are not known (kctl doctor)\n"
    )
    assert run(["quorum", "status", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["leader_id"], document["leader_answers"], document["answered_by"]) == (1, False, 2)
    assert [(each["log_end_offset"], each["lag"]) for each in document["voters"]] == [(None, None), (12, 0)]
    reply.known.ClearField("leader_id")
    assert run(["quorum", "replication"]) == 0
    captured = capsys.readouterr()
    assert "does not answer" not in captured.out
    assert captured.err.startswith("answered by node 2, which knows no leader: lags")
    assert run(["quorum", "status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["leader_answers"] is None


def test_cluster_health_reports_problems(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.replies |= {
        rpcs.DESCRIBE_QUORUM: quorum_reply(),
        rpcs.DESCRIBE_TOPICS: topics(),
        rpcs.DESCRIBE_BROKERS: brokers(),
    }
    assert run(["cluster", "health", "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is False
    assert document["problems"] == ["broker 12 is fenced", "t-0 is under-replicated: 12,13 not in its ISR"]
    assert run(["cluster", "health", "--exit-when-healthy", "--timeout", "0.01"]) == 4
    client.replies[rpcs.DESCRIBE_QUORUM] = ClusterError("UNAVAILABLE", "nobody", retriable=True)
    capsys.readouterr()
    assert run(["cluster", "health", "-o", "json"]) == 4
    assert json.loads(capsys.readouterr().out)["problems"] == ["nobody"]
    client.replies[rpcs.DESCRIBE_QUORUM] = ClusterError("NOT_A_NODE", "a port for Kafka clients")
    assert run(["cluster", "health"]) == 2


def test_replicas_that_a_reassignment_adds_do_not_make_a_cluster_unhealthy(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    moving = topics()
    moving.topics[0].partitions[0].adding.extend([12, 13])
    client.replies |= {
        rpcs.DESCRIBE_QUORUM: quorum_reply(),
        rpcs.DESCRIBE_TOPICS: moving,
        rpcs.DESCRIBE_BROKERS: pb.DescribeBrokersReply(result=OK),
    }
    assert run(["cluster", "health", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["healthy"], document["partitions_under_replicated"]) == (True, 0)
    moving.topics[0].partitions[0].adding[:] = [13]
    assert run(["cluster", "health", "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["t-0 is under-replicated: 12 not in its ISR"]


def test_cluster_health_counts_the_problems_that_it_does_not_name(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    many = topics()
    (topic,) = many.topics
    for index in range(1, 25):
        topic.partitions.add().CopyFrom(topic.partitions[0])
        topic.partitions[-1].index = index
    client.replies |= {
        rpcs.DESCRIBE_QUORUM: quorum_reply(),
        rpcs.DESCRIBE_TOPICS: many,
        rpcs.DESCRIBE_BROKERS: pb.DescribeBrokersReply(result=OK),
    }
    assert run(["cluster", "health", "-o", "json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert problems[-2:] == [
        "t-19 is under-replicated: 12,13 not in its ISR",
        "5 more partitions are under-replicated",
    ]


def test_cluster_health_watch_prints_a_line_only_if_the_health_changed(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("quorumlog.kctl.cluster.WATCH_INTERVAL_S", 0.01)
    fenced, later = brokers(), brokers()
    later.offset = fenced.offset + 1
    client.replies |= {
        rpcs.DESCRIBE_QUORUM: [quorum_reply(), quorum_reply(), quorum_reply(), KeyboardInterrupt()],
        rpcs.DESCRIBE_TOPICS: pb.DescribeTopicsReply(result=OK, offset=99),
        rpcs.DESCRIBE_BROKERS: [fenced, later, pb.DescribeBrokersReply(result=OK, offset=99)],
    }
    assert run(["cluster", "health", "--watch"]) == 130
    assert capsys.readouterr().out.splitlines() == ["not healthy: broker 12 is fenced", "healthy"]


@pytest.mark.parametrize("arguments", [["topics", "create", "t"], ["topics", "list"], ["reassign", "status"]])
def test_an_error_without_a_controller_points_to_doctor(
    client: FakeClient, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for code, next_step, shown in (
        ("NOT_CONTROLLER", "retry, or ask another node", "kctl doctor"),
        ("UNAVAILABLE", "", "kctl doctor"),
        ("TIMED_OUT", "", "kctl doctor"),
        ("UNAVAILABLE", "start a node there", "start a node there"),
        ("OUTCOME_UNKNOWN", "look", "look"),
        ("INVALID_REPLICATION_FACTOR", "", None),
    ):
        for rpc in (rpcs.CREATE_TOPICS, rpcs.DESCRIBE_TOPICS, rpcs.LIST_REASSIGNMENTS):
            client.replies[rpc] = ClusterError(code, "no", next_step, retriable=code != "INVALID_REPLICATION_FACTOR")
        assert run([*arguments, "-o", "json"]) == (5 if code == "INVALID_REPLICATION_FACTOR" else 4)
        error = json.loads(capsys.readouterr().err)
        assert (error["error"], error["message"], error["next"]) == (code, "no", shown)


def test_an_interrupt_exits_with_130_and_cancels_nothing(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies[rpcs.DESCRIBE_TOPICS] = KeyboardInterrupt()
    assert run(["topics", "list"]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "interrupted: changes that were already requested continue; nothing was cancelled\n"
    assert run(["topics", "list", "-o", "json"]) == 130
    error = json.loads(capsys.readouterr().err)
    assert (error["error"], error["retriable"]) == ("INTERRUPTED", False)
    assert "nothing was cancelled" in error["message"]


def test_ctrl_c_ends_consume_without_a_message(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.replies[rpcs.DESCRIBE_TOPICS] = KeyboardInterrupt()
    for form in ("table", "json"):
        assert run(["consume", "t", "-o", form]) == 130
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", "")


def test_debug_shows_the_traceback(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.replies[rpcs.DESCRIBE_TOPICS] = ClusterError("INVALID_REPLICATION_FACTOR", "no")
    assert run(["topics", "list"]) == 5
    assert "Traceback" not in capsys.readouterr().err
    assert run(["--debug", "topics", "list"]) == 5
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_KCTL_COMPLETE" in capsys.readouterr().out


READING = {
    "quorum status", "quorum replication", "preferred-controllers show", "topics list", "topics describe",
    "reassign generate", "reassign status", "reassign verify", "brokers list", "brokers describe", "brokers moves",
    "configs get", "cluster health", "metadata tail", "metadata at", "metadata diff", "metadata dump", "doctor",
    "explain", "state-changes", "completion", "features describe",
    "groups list", "groups describe", "groups lag", "groups explain",
    "transactions list", "transactions describe", "transactions find-hanging",
}  # fmt: skip
OF_ITS_OWN = {"dev up", "dev status", "dev down", "produce", "consume"}


def commands(command: click.Command, path: tuple[str, ...] = ()) -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {" ".join(path): command}
    return {
        name: found for word, each in command.commands.items() for name, found in commands(each, (*path, word)).items()
    }


def test_every_change_has_the_options_dry_run_wait_and_timeout() -> None:
    found = commands(cli)
    assert found.keys() >= READING | OF_ITS_OWN, "each listed command exists"
    for name, command in found.items():
        options = {option for parameter in command.params for option in parameter.opts}
        assert {"--timeout", "--output", "--controllers"} <= options, name
        if name not in READING | OF_ITS_OWN:
            assert {"--dry-run", "--validate-only", "--wait"} <= options, name


@pytest.mark.parametrize(
    "arguments", [["topics", "describe", "ordres"], ["topics", "delete", "ordres"], ["consume", "ordres"]]
)
def test_a_mistyped_topic_gets_a_suggestion(
    client: FakeClient, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    missing = pb.Result(error="UNKNOWN_TOPIC_OR_PARTITION", message="topic 'ordres' does not exist")
    names = [pb.TopicDescription(name=name) for name in ("invoices", "orders")]
    client.replies |= {
        rpcs.DESCRIBE_QUORUM: quorum_reply(),
        rpcs.DESCRIBE_TOPICS: pb.DescribeTopicsReply(
            result=OK, topics=[pb.TopicDescription(name="ordres", result=missing)]
        ),
        rpcs.DELETE_TOPICS: pb.DeleteTopicsReply(result=OK, topics=[pb.DeletedTopic(name="ordres", result=missing)]),
        rpcs.DESCRIBE_METADATA: node_pb2.DescribeMetadataReply(result=OK, topics=names),
    }
    assert run(arguments) == 3
    assert "topic 'ordres' does not exist; did you mean orders?" in capsys.readouterr().err
    client.replies[rpcs.DESCRIBE_METADATA] = ClusterError("TIMED_OUT", "no answer", retriable=True)
    assert run(arguments) == 3
    assert "did you mean" not in capsys.readouterr().err
