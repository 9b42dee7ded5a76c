"""kctl add-partitions, remove-partitions, configs, elect-leaders, brokers unregister, against a table of replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quorumlog.errors import ClusterError
from quorumlog.kctl import elections, losses, partition_counts
from quorumlog.kctl.main import run
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from tests.unit.quorumlog.kctl.test_commands import OK, TOPIC_ID, FakeClient, client

__all__ = ["client"]


def resized(changed: bool = True, partitions: int = 4, error: str = "NONE", message: str = "") -> Any:
    result = pb.Result(error=error, message=message)
    return pb.ChangedTopic(topic="t", result=result, topic_id=TOPIC_ID, partitions=partitions, changed=changed)


def described(partitions: int) -> Any:
    rows = [pb.PartitionDescription(index=index, leader=1) for index in range(partitions)]
    return pb.DescribeTopicsReply(result=OK, topics=[pb.TopicDescription(name="t", result=OK, partitions=rows)])


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_add_partitions_reports_the_new_number_of_partitions(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies[rpcs.ADD_PARTITIONS] = pb.AddPartitionsReply(result=OK, offset=9, topics=[resized()])
    arguments = ["topics", "add-partitions", "t", "--to", "4", "--assignment", "1:2,2:1"]
    assert run([*arguments, "-o", "json"]) == 0
    assert printed(capsys) == {
        "changed": True, "offset": 9, "name": "t", "topic_id": "AAECAwQFBgcICQoLDA0ODw", "partitions": 4
    }  # fmt: skip
    [wanted] = client.calls[0][1].topics
    assert (wanted.count, [list(row.values) for row in wanted.assignment]) == (4, [[1, 2], [2, 1]])
    assert run([*arguments, "--dry-run"]) == 0
    assert client.calls[1][1].header.validate_only
    assert capsys.readouterr().out == "topic t would have 4 partitions\n"
    client.replies[rpcs.ADD_PARTITIONS] = pb.AddPartitionsReply(result=OK, offset=9, topics=[resized(changed=False)])
    assert run(["topics", "add-partitions", "t", "--to", "4"]) == 0
    assert capsys.readouterr().out == "topic t already has 4 partitions\n"
    one = resized(changed=False, partitions=1)
    client.replies[rpcs.ADD_PARTITIONS] = pb.AddPartitionsReply(result=OK, offset=9, topics=[one])
    assert run(["topics", "add-partitions", "t", "--to", "1"]) == 0
    assert capsys.readouterr().out == "topic t already has 1 partition\n"


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The reported number of records in the removed partitions; None: unknown."""
    found: list[int | None] = [120]

    async def lost(*_: object) -> int | None:
        return found[0]

    monkeypatch.setattr(partition_counts, "lost_records", lost)
    monkeypatch.setattr(losses, "lost_records", lost)
    return found


def removal(client: FakeClient) -> None:
    client.replies[rpcs.REMOVE_PARTITIONS] = pb.RemovePartitionsReply(result=OK, offset=9, topic=resized(partitions=1))
    client.replies[rpcs.DESCRIBE_TOPICS] = described(3)


def asked(client: FakeClient) -> list[bool]:
    """Return for each RemovePartitions request whether it was a dry run."""
    return [request.header.validate_only for rpc, request in client.calls if rpc == rpcs.REMOVE_PARTITIONS]


def test_remove_partitions_validates_and_warns_before_it_removes(
    client: FakeClient, records: list[int | None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    removal(client)
    seen: list[bool] = []
    original = client.call

    async def call(rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        seen.append(request.header.validate_only)  # the request object is used twice
        return await original(rpc, request, timeout_s)

    monkeypatch.setattr(client, "call", call)
    assert run(["topics", "remove-partitions", "t", "--to", "1", "--yes", "-o", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "changed": True, "offset": 9, "name": "t", "topic_id": "AAECAwQFBgcICQoLDA0ODw", "partitions": 1, "removed": 2,
        "records": 120,
    }  # fmt: skip
    assert "t-1 to t-2 will be deleted permanently, with 120 records" in captured.err
    assert seen == [True, False, False]


def test_remove_partitions_removes_nothing_without_confirmation(
    client: FakeClient, records: list[int | None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    removal(client)
    assert run(["topics", "remove-partitions", "t", "--to", "2"]) == 5
    assert "add --yes" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", _no)
    assert run(["topics", "remove-partitions", "t", "--to", "2"]) == 130
    assert "nothing was changed" in capsys.readouterr().err
    assert all(asked(client))


@pytest.fixture
def deletion(client: FakeClient, records: list[int | None]) -> FakeClient:
    deleted = pb.DeletedTopic(name="t", result=OK, topic_id=TOPIC_ID, offset=9)
    client.replies[rpcs.DELETE_TOPICS] = pb.DeleteTopicsReply(result=OK, topics=[deleted])
    client.replies[rpcs.DESCRIBE_TOPICS] = described(3)
    return client


def methods(client: FakeClient) -> list[AnyRpc]:
    return [rpc for rpc, _ in client.calls]


def test_without_a_terminal_a_topic_is_deleted_without_confirmation(deletion: FakeClient) -> None:
    assert run(["topics", "delete", "t"]) == 0
    assert methods(deletion) == [rpcs.DELETE_TOPICS]


def test_on_a_terminal_a_topic_is_deleted_only_after_confirmation(
    deletion: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", _no)
    assert run(["topics", "delete", "t"]) == 130
    said = capsys.readouterr().err
    assert "topic t will be deleted, with 3 partitions and 120 records" in said
    assert "nothing was changed" in said
    assert methods(deletion) == [rpcs.DESCRIBE_TOPICS]
    for option in ("--yes", "--dry-run"):
        assert run(["topics", "delete", "t", option]) == 0
    monkeypatch.setattr("click.confirm", lambda *_, **__: True)
    assert run(["topics", "delete", "t"]) == 0
    assert methods(deletion).count(rpcs.DELETE_TOPICS) == 3


def test_deletion_of_a_missing_topic_is_refused_without_a_question(
    deletion: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = pb.Result(error="UNKNOWN_TOPIC_OR_PARTITION", message="no topic is named 't'")
    deletion.replies[rpcs.DESCRIBE_TOPICS].topics[0].result.CopyFrom(missing)
    deletion.replies[rpcs.DELETE_TOPICS].topics[0].result.CopyFrom(missing)
    deletion.replies[rpcs.DESCRIBE_QUORUM] = ClusterError("UNAVAILABLE", "nobody", retriable=True)  # no suggestion
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", _no)
    assert run(["topics", "delete", "t"]) == 3
    assert run(["topics", "delete", "t", "--if-exists"]) == 0


def _no(*_: object, **__: object) -> None:
    import click

    raise click.Abort


def test_remove_partitions_reports_an_unknown_number_of_records_as_null(
    client: FakeClient, records: list[int | None], capsys: pytest.CaptureFixture[str]
) -> None:
    removal(client)
    records[0] = None
    assert run(["topics", "remove-partitions", "t", "--to", "2", "--dry-run", "-o", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["records"] is None
    assert "t-2 will be deleted permanently, with all their records" in captured.err


def test_a_refused_removal_of_partitions_prints_no_warning(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = resized(False, 3, "REASSIGNMENT_IN_PROGRESS", "t-2 is being reassigned")
    client.replies[rpcs.REMOVE_PARTITIONS] = pb.RemovePartitionsReply(result=OK, topic=refused)
    assert run(["topics", "remove-partitions", "t", "--to", "1", "--yes"]) == 5
    assert capsys.readouterr().err == "kctl: REASSIGNMENT_IN_PROGRESS: t-2 is being reassigned\n"


def test_configs_commands_get_set_and_unset_values(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    configs = [pb.DescribedConfig(key="a", value="1", source="topic", allowed="a number"),
               pb.DescribedConfig(key="b", value="", source="default", allowed="anything")]  # fmt: skip
    client.replies[rpcs.DESCRIBE_CONFIGS] = pb.DescribeConfigsReply(
        result=OK, offset=7, resources=[pb.DescribedConfigs(result=OK, configs=configs)]
    )
    assert run(["configs", "get", "--topic", "t", "-o", "json"]) == 0
    assert printed(capsys) == [
        {"name": "a", "value": "1", "source": "topic", "offset": 7, "unconfirmed": False},
        {"name": "b", "value": "", "source": "default", "offset": 7, "unconfirmed": False},
    ]  # fmt: skip
    assert run(["configs", "get", "a", "--broker", "7"]) == 0
    assert "a number" in capsys.readouterr().out
    assert client.calls[1][1].resources[0].name == "7"
    capsys.readouterr()
    assert run(["configs", "get", "c", "--cluster", "-o", "json"]) == 3
    error = json.loads(capsys.readouterr().err)
    assert (error["error"], error["next"]) == ("CONFIG_NOT_FOUND", "give one of these")
    assert "its configs are a, b" in error["message"]

    client.replies[rpcs.ALTER_CONFIGS] = pb.AlterConfigsReply(
        result=OK, offset=4, resources=[pb.AlteredConfigs(result=OK, changed=True)]
    )
    assert run(["configs", "set", "a=1=2", "b=", "--cluster", "-o", "json"]) == 0
    assert printed(capsys) == {
        "changed": True, "offset": 4, "topic": None, "broker": None, "group": None,
        "configs": [{"name": "a", "value": "1=2"}, {"name": "b", "value": ""}],
    }  # fmt: skip
    [sent] = client.calls[-1][1].resources
    assert sent.resource.scope == metadata_pb2.Config.SCOPE_CLUSTER
    assert [change.value for change in sent.changes] == ["1=2", ""]
    assert run(["configs", "unset", "a", "--topic", "t"]) == 0
    assert not client.calls[-1][1].resources[0].changes[0].HasField("value")
    assert capsys.readouterr().out == "topic t: a reset to its default\n"
    assert run(["configs", "set", "a=1", "--group", "workers"]) == 0
    [sent] = client.calls[-1][1].resources
    assert (sent.resource.scope, sent.resource.name) == (metadata_pb2.Config.SCOPE_GROUP, "workers")
    assert capsys.readouterr().out == "group workers: a=1\n"
    assert run(["configs", "get", "--group", "workers", "--topic", "t"]) == 2
    assert "--group G" in capsys.readouterr().err


def elected(*words: str, leader: int = 1) -> list[Any]:
    return [
        pb.ElectedLeader(topic="t", index=index, result=pb.Result(error=word, message=f"about {index}"), leader=leader)
        for index, word in enumerate(words)
    ]


def test_elections_are_repeated_until_no_partition_needs_one(
    client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [
        pb.ElectLeadersReply(result=OK, changed=True, offset=5, partitions=elected("NONE", "NONE")),
        pb.ElectLeadersReply(result=OK, changed=True, offset=6, partitions=elected("NONE")),
        pb.ElectLeadersReply(result=OK, changed=False, offset=6),
    ]

    async def call(rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        return replies.pop(0)

    monkeypatch.setattr(client, "call", call)
    assert run(["elect-leaders", "--preferred", "-o", "json"]) == 0
    found = printed(capsys)
    assert (found["changed"], found["offset"], len(found["partitions"])) == (True, 6, 3)
    assert replies == []


def test_elections_before_a_failed_request_are_reported(
    client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[Any] = []

    async def call(rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        if answered:
            raise ClusterError("TIMED_OUT", "no node answers", retriable=True)
        answered.append(pb.ElectLeadersReply(result=OK, changed=True, offset=5, partitions=elected("NONE")))
        return answered[0]

    monkeypatch.setattr(client, "call", call)
    assert run(["elect-leaders", "--preferred", "--wait"]) == 4
    captured = capsys.readouterr()
    assert captured.out == "t-0 is led by 1\n"
    assert captured.err == "kctl: TIMED_OUT: no node answers (next: kctl doctor)\n"
    answered.clear()
    assert run(["elect-leaders", "--preferred", "-o", "json"]) == 4
    found = printed(capsys)
    assert (found["changed"], found["offset"], len(found["partitions"])) == (True, 5, 1)


@pytest.mark.parametrize(
    "errors", [("NONE", "PREFERRED_LEADER_NOT_AVAILABLE"), ("PREFERRED_LEADER_NOT_AVAILABLE",) * 2]
)
def test_refused_elections_do_not_hide_that_a_later_request_failed(
    errors: tuple[str, ...],
    client: FakeClient,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elections, "PARTITIONS_PER_REQUEST", 2)
    client.replies[rpcs.DESCRIBE_TOPICS] = described(3)
    replies = [pb.ElectLeadersReply(result=OK, offset=5, partitions=elected(*errors))]
    answer = client.call

    async def call(rpc: AnyRpc, request: Any, timeout_s: float) -> Any:
        if rpc != rpcs.ELECT_LEADERS:
            return await answer(rpc, request, timeout_s)
        if not replies:
            raise ClusterError("TIMED_OUT", "no node answers", retriable=True)
        return replies.pop()

    monkeypatch.setattr(client, "call", call)
    assert run(["elect-leaders", "--preferred", "--topic", "t"]) == 4
    captured = capsys.readouterr()
    assert captured.err == "kctl: TIMED_OUT: no node answers (next: kctl doctor)\n"
    assert captured.out.splitlines()[1] == "refused: about 1"


def test_elections_of_a_large_topic_are_requested_in_several_pieces(
    client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elections, "PARTITIONS_PER_REQUEST", 2)  # the controller refuses requests with too many
    client.replies[rpcs.DESCRIBE_TOPICS] = described(3)
    client.replies[rpcs.ELECT_LEADERS] = pb.ElectLeadersReply(result=OK, offset=5, partitions=elected("NONE"))
    assert run(["elect-leaders", "--preferred", "--topic", "t"]) == 0
    requests = [request for rpc, request in client.calls if rpc == rpcs.ELECT_LEADERS]
    assert [[each.index for each in request.partitions] for request in requests] == [[0, 1], [2]]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_elect_leaders_reports_each_partition_if_some_elections_fail(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies[rpcs.DESCRIBE_TOPICS] = described(3)
    partitions = elected("NONE", "PREFERRED_LEADER_NOT_AVAILABLE", "ELECTION_NOT_NEEDED")
    client.replies[rpcs.ELECT_LEADERS] = pb.ElectLeadersReply(result=OK, changed=True, offset=5, partitions=partitions)
    assert run(["elect-leaders", "--preferred", "--topic", "t"]) == 5
    captured = capsys.readouterr()
    assert captured.out == "t-0 is led by 1\nrefused: about 1\nnot needed: about 2\n"
    assert captured.err == "kctl: PREFERRED_LEADER_NOT_AVAILABLE: 1 of 3 partitions: about 1\n"
    assert [each.index for each in client.calls[1][1].partitions] == [0, 1, 2]


def test_an_unclean_election_warns_of_lost_records(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    [one] = elected("NONE")
    one.unclean = True
    client.replies[rpcs.ELECT_LEADERS] = pb.ElectLeadersReply(result=OK, changed=True, offset=5, partitions=[one])
    assert run(["elect-leaders", "--unclean", "--topic", "t", "--partition", "0"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "t-0 is led by 1 (unclean)\n"
    assert "will be lost" in captured.err
    assert run(["elect-leaders", "--unclean", "--topic", "t", "--partition", "0", "--dry-run"]) == 0
    assert capsys.readouterr().err == ""


def test_a_broker_is_unregistered(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.replies[rpcs.UNREGISTER_BROKER] = pb.UnregisterBrokerReply(result=OK, changed=True, offset=3)
    assert run(["brokers", "unregister", "7", "-o", "json"]) == 0
    assert printed(capsys) == {"changed": True, "offset": 3, "id": 7}
    assert run(["brokers", "unregister", "7", "--dry-run"]) == 0
    assert capsys.readouterr().out == "broker 7 would be unregistered\n"
    client.replies[rpcs.UNREGISTER_BROKER] = ClusterError("BROKER_IN_USE", "broker 7 is unfenced", "stop it")
    assert run(["brokers", "unregister", "7"]) == 5
    assert "stop it" in capsys.readouterr().err


APPLIED_COMMANDS = (
    ["configs", "set", "a=1", "--cluster"],
    ["configs", "unset", "a", "--topic", "t"],
    ["brokers", "unregister", "7"],
    ["elect-leaders", "--unclean", "--topic", "t", "--partition", "0"],
    ["features", "upgrade"],
    ["topics", "remove-partitions", "t", "--to", "3", "--yes"],
)
"""The commands whose `--wait` waits until the brokers have applied the change."""


def applied(offset: int) -> Any:
    """Return a reply in which the only unfenced broker has applied the metadata below `offset`."""
    rows = [pb.BrokerDescription(broker_id=1, state="unfenced", metadata_offset=offset),
            pb.BrokerDescription(broker_id=2, state="fenced", metadata_offset=-1)]  # fmt: skip
    return pb.DescribeBrokersReply(result=OK, brokers=rows)


def changing(client: FakeClient, *, changed: bool) -> None:
    """Let each of APPLIED_COMMANDS succeed at offset 9."""
    altered = pb.AlteredConfigs(result=OK, changed=changed)
    client.replies |= {
        rpcs.ALTER_CONFIGS: pb.AlterConfigsReply(result=OK, offset=9, resources=[altered]),
        rpcs.UNREGISTER_BROKER: pb.UnregisterBrokerReply(result=OK, changed=changed, offset=9),
        rpcs.ELECT_LEADERS: pb.ElectLeadersReply(
            result=OK, changed=changed, offset=9, partitions=elected("NONE" if changed else "ELECTION_NOT_NEEDED")
        ),
        rpcs.UPGRADE_FEATURE: pb.UpgradeFeatureReply(result=OK, changed=changed, offset=9, level=2),
        rpcs.REMOVE_PARTITIONS: pb.RemovePartitionsReply(
            result=OK, offset=9, topic=resized(changed=changed, partitions=3)
        ),
        rpcs.DESCRIBE_TOPICS: described(3),
    }


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("arguments", APPLIED_COMMANDS)
def test_the_wait_option_waits_for_the_brokers_also_if_an_earlier_command_made_the_change(
    client: FakeClient, arguments: list[str], changed: bool
) -> None:
    changing(client, changed=changed)
    client.replies[rpcs.DESCRIBE_BROKERS] = applied(9)
    assert run([*arguments, "--wait"]) == 0
    assert client.calls[-1][0] == rpcs.DESCRIBE_BROKERS
    client.replies[rpcs.DESCRIBE_BROKERS] = applied(8)
    assert run([*arguments, "--wait", "--timeout", "0.3"]) == 4
    assert run(arguments) == 0
    assert run([*arguments, "--wait", "--dry-run"]) == 0
