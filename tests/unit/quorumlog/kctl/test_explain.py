"""kctl explain, against a table of replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quorumlog.errors import ClusterError
from quorumlog.kctl.main import run
from quorumlog.kctl.output import duration_text
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import node_pb2
from tests.unit.quorumlog.kctl.test_commands import OK, FakeClient, client, quorum_reply

__all__ = ["client"]

AT = 1_795_255_292_908


def reply(*, complete: bool = True, begins: int = 0) -> Any:
    return node_pb2.ExplainPartitionReply(
        result=OK,
        offset=16,
        now="my-topic-0: leader 3 in leader epoch 1; in sync 3. Writes with acks=all are refused: one. Not in sync: 2",
        chain=[
            node_pb2.ExplainedChange(
                offset=10, timestamp_ms=AT, epoch=1, reason="created", cause_offset=-1, text="created with replicas 2",
            ),
            node_pb2.ExplainedChange(
                offset=14, timestamp_ms=AT + 50_041, epoch=2, reason="broker_fenced", cause_offset=13,
                text="leader 3 in leader epoch 1 (was 2), because broker 2 was fenced (offset 13)",
            ),
        ],
        history_begins=begins,
        complete=complete,
    )  # fmt: skip


def asked(client: FakeClient) -> Any:
    return next(request for rpc, request in client.calls if rpc == rpcs.EXPLAIN_PARTITION)


def test_json_output_has_the_documented_fields(client: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    client.replies |= {rpcs.DESCRIBE_QUORUM: quorum_reply(), ("a:1", rpcs.EXPLAIN_PARTITION): reply()}
    assert run(["explain", "my-topic-0", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"topic", "partition", "now", "chain", "history_begins"} <= document.keys()
    assert (document["topic"], document["partition"], document["history_begins"]) == ("my-topic", 0, 0)
    first, second = document["chain"]
    assert (first["offset"], first["reason"], first["cause_offset"]) == (10, "created", None)
    assert (second["at"], second["cause_offset"], second["controller_epoch"]) == ("2026-11-21T10:02:22.949Z", 13, 2)
    assert second["text"].startswith("leader 3")
    assert (asked(client).partition.topic, asked(client).partition.index, asked(client).max_changes) == (
        "my-topic", 0, 0,
    )  # fmt: skip


def test_text_shows_the_state_and_then_the_changes_with_their_causes(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies |= {rpcs.DESCRIBE_QUORUM: quorum_reply(), rpcs.EXPLAIN_PARTITION: reply()}
    assert run(["explain", "my-topic-0"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "my-topic-0: leader 3 in leader epoch 1; in sync 3",
        "Writes with acks=all are refused: one.",
        "Not in sync: 2.",
        "",
        "      10  2026-11-21T10:01:32.908Z  created",
        "          created with replicas 2",
        "",
        "      14  2026-11-21T10:02:22.949Z  broker_fenced  50 s later",
        "          leader 3 in leader epoch 1 (was 2)",
        "          because broker 2 was fenced (offset 13)",
    ]
    assert captured.err == "as of offset 16 of the metadata log\n"


def test_explain_reports_why_earlier_changes_are_not_shown(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.replies |= {rpcs.DESCRIBE_QUORUM: quorum_reply(), rpcs.EXPLAIN_PARTITION: reply(complete=False, begins=9)}
    assert run(["explain", "t-0"]) == 0
    assert "the node's log begins at offset 9" in capsys.readouterr().err
    assert run(["explain", "t-0", "--last", "2"]) == 0
    assert "the node's log begins at offset 9" in capsys.readouterr().err
    client.replies[rpcs.EXPLAIN_PARTITION] = reply()
    assert run(["explain", "t-0", "--last", "1"]) == 0
    captured = capsys.readouterr()
    assert "omit --last" in captured.err
    assert ("broker_fenced" in captured.out, "created" in captured.out) == (True, False)
    client.replies[rpcs.EXPLAIN_PARTITION] = reply()
    assert run(["explain", "t-0", "--last", "1", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert ([change["offset"] for change in document["chain"]], document["complete"]) == ([14], False)


def test_explain_asks_another_node_when_the_leader_does_not_answer(client: FakeClient) -> None:
    silent = ClusterError("UNAVAILABLE", "no answer from a:1", retriable=True)
    client.replies |= {
        rpcs.DESCRIBE_QUORUM: quorum_reply(), ("a:1", rpcs.EXPLAIN_PARTITION): silent, rpcs.EXPLAIN_PARTITION: reply(),
    }  # fmt: skip
    assert run(["explain", "t-0"]) == 0
    assert [rpc for rpc, _ in client.calls].count(rpcs.EXPLAIN_PARTITION) == 2


def test_explain_asks_no_other_node_after_the_leader_refuses(
    client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = ClusterError("UNKNOWN_TOPIC_OR_PARTITION", "no topic is named 't'", "kctl topics list")
    client.replies |= {
        rpcs.DESCRIBE_QUORUM: quorum_reply(), ("a:1", rpcs.EXPLAIN_PARTITION): unknown, rpcs.EXPLAIN_PARTITION: reply(),
    }  # fmt: skip
    assert run(["explain", "t-0", "-o", "json"]) == 3
    assert json.loads(capsys.readouterr().err)["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


@pytest.mark.parametrize(
    "text",
    ["t", "t-", "-0", "t-x", "t--", "t-2147483648", "t-99999999999999999999", "t-000000000000999999999999", "t-٣"],
)
def test_an_invalid_partition_is_wrong_usage(client: FakeClient, text: str) -> None:
    assert run(["explain", "--", text]) == 2
    assert client.calls == []


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0 ms"), (999, "999 ms"), (1000, "1 s"), (3456, "3.4 s"), (59_999, "59.9 s"), (60_000, "1 min"),
        (302_000, "5 min 2 s"), (7_500_000, "2 h 5 min"), (273_600_000, "3 d 4 h"), (-12, "-12 ms"),
    ],
)  # fmt: skip
def test_durations_are_shown_in_at_most_two_units(duration_ms: int, text: str) -> None:
    assert duration_text(duration_ms) == text
