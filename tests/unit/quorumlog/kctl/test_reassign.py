"""kctl reassign, against a table of replies."""

from __future__ import annotations

import json
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import pytest

from metadata.control.reassign import CHANGES_MAX
from metadata.records import RECORDS_PER_BATCH_MAX
from quorumlog.errors import ClusterError
from quorumlog.kctl import elections, reassign, reassign_progress, reassign_requests
from quorumlog.kctl.main import run
from quorumlog.kctl.reassign_plan import Move
from quorumlog.kctl.reassign_progress import blocked_reason, summary
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from quorumlog.words import Key
from tests.unit.quorumlog.kctl.test_commands import OK, FakeClient, client, quorum_reply

__all__ = ["client"]

SILENT = ClusterError("UNAVAILABLE", "no answer", retriable=True)


def ongoing(topic: str = "t", index: int = 0, **changes: Any) -> Any:
    """Return a reassignment from brokers 11,12 to 11,13; broker 13 is not in sync yet."""
    lists = {"replicas": [11, 13, 12], "adding": [13], "removing": [12], "isr": [11, 12], "leader": 11, **changes}
    return pb.OngoingReassignment(topic=topic, index=index, **lists)


def going_on(*partitions: Any) -> Any:
    return pb.ListReassignmentsReply(result=OK, offset=9, throttle=-1, partitions=partitions)


def altered(*rows: tuple[int, bool, str], changed: bool | None = None) -> Any:
    """Return a reply with these rows: partition of topic t, whether it changed, message."""
    reply = pb.AlterReassignmentsReply(result=OK, offset=9)
    for index, is_changed, message in rows:
        result = pb.Result(error="NONE", message=message)
        reply.partitions.add(topic="t", index=index, result=result, changed=is_changed)
    reply.changed = any(is_changed for _, is_changed, _ in rows) if changed is None else changed
    return reply


def brokers(**fenced: bool) -> Any:
    """Return a reply that lists brokers; `b13=True` means that broker 13 is fenced."""
    reply = pb.DescribeBrokersReply(result=OK)
    for name, is_fenced in fenced.items():
        reply.brokers.add(broker_id=int(name[1:]), state="fenced" if is_fenced else "unfenced")
    return reply


@pytest.fixture
def cluster(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """t-0 is being moved from 11,12 to 11,13; all brokers are unfenced, and none reports sizes."""
    monkeypatch.setattr(reassign_progress, "LOOK_S", 0.01)
    client.replies |= {
        rpcs.DESCRIBE_QUORUM: quorum_reply(),
        rpcs.DESCRIBE_REPLICAS: SILENT,
        rpcs.LIST_REASSIGNMENTS: going_on(ongoing()),
        rpcs.DESCRIBE_BROKERS: brokers(b11=False, b12=False, b13=False),
        rpcs.DESCRIBE_TOPICS: described((11, 13), (11, 13)),
    }
    return client


def test_a_plan_omits_cordoned_brokers_unless_they_are_named(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies[rpcs.DESCRIBE_TOPICS] = described((11, 12))
    cluster.replies[rpcs.DESCRIBE_BROKERS].brokers[1].cordoned = True

    def planned(*arguments: str) -> tuple[set[int], str]:
        assert run(["reassign", "generate", "--topic", "t", "-o", "json", *arguments]) == 0
        captured = capsys.readouterr()
        [partition] = json.loads(captured.out)["plan"]["partitions"]
        return set(partition["replicas"]), captured.err

    assert planned() == ({11, 13}, "broker 12 is cordoned, and gets no replicas unless named in --brokers\n")
    assert planned("--brokers", "11,12") == ({11, 12}, "")


@pytest.mark.parametrize(("stop", "code"), [("SIGINT", 130), ("--timeout", 4)])
def test_ctrl_c_and_the_time_limit_end_the_computation_of_a_large_plan(
    cluster: FakeClient, monkeypatch: pytest.MonkeyPatch, stop: str, code: int
) -> None:
    released, computed = threading.Event(), threading.Event()

    def compute(*_: object) -> list[Move]:
        if stop == "SIGINT":
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # as a terminal does
        released.wait(20)
        computed.set()
        return []

    monkeypatch.setattr(reassign, "propose", compute)
    limit = ["--timeout", "0.5"] if stop == "--timeout" else []
    try:
        assert run(["reassign", "generate", "--topic", "t", *limit]) == code
        assert not computed.is_set()
    finally:
        released.set()


START = ["reassign", "start", "--plan", "-"]


class Input:
    """Standard input that each command reads from its beginning."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @property
    def buffer(self) -> BinaryIO:
        self._file.seek(0)
        return self._file


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard input contains a plan that moves both partitions of t to 11,13."""
    rows = [{"topic": "t", "partition": index, "replicas": [11, 13]} for index in (0, 1)]
    with typed(monkeypatch, {"partitions": rows}):
        yield


@contextmanager
def typed(monkeypatch: pytest.MonkeyPatch, document: object) -> Iterator[None]:
    """Let standard input contain a document."""
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(json.dumps(document).encode())
        monkeypatch.setattr("sys.stdin", Input(cast(BinaryIO, file)))
        yield


def described(*rows: tuple[int, ...]) -> Any:
    """Return a reply that describes topic t with these replicas."""
    topic = pb.TopicDescription(name="t", result=OK)
    for index, row in enumerate(rows):
        replicas = [metadata_pb2.Replica(broker_id=each) for each in row]
        topic.partitions.add(index=index, leader=row[0], replicas=replicas, isr=row)
    return pb.DescribeTopicsReply(result=OK, topics=[topic])


def asked(client: FakeClient, rpc: AnyRpc) -> int:
    return sum(each == rpc for each, _ in client.calls)


@pytest.mark.usefixtures("plan")
def test_start_reports_reassignments_in_progress_and_waits_for_them(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    there, moving = "t-1 is already there", "t-0 is already being moved there"
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, False, moving), (1, False, there))
    assert run(START) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["t-0: already under way to the same replicas", there]
    assert captured.out == "nothing to do: already in progress (kctl reassign status)\n"

    cluster.replies[rpcs.LIST_REASSIGNMENTS] = [going_on(ongoing()), going_on(ongoing()), going_on()]
    assert run([*START, "--wait"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == "t-0: already under way to the same replicas; waiting for it"
    assert captured.err.splitlines()[-2:] == ["2 of 2 partitions moved", there]
    assert captured.out == "1 of 2 partitions moved\n"

    cluster.replies[rpcs.LIST_REASSIGNMENTS] = [going_on(ongoing()), going_on()]
    assert run([*START, "--wait", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["changed"], [each["changed"] for each in document["partitions"]]) == (False, [False, False])


@pytest.mark.usefixtures("plan")
def test_start_counts_new_reassignments_and_those_in_progress_together(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, False, "moving"), (1, True, ""))
    assert run(START) == 0
    assert capsys.readouterr().out == "2 of 2 partitions being moved\n"
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = [going_on(ongoing()), going_on()]
    assert run([*START, "--wait"]) == 0
    assert capsys.readouterr().out == "2 of 2 partitions moved\n"


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize(
    ("after", "code", "told", "error"),
    [
        (
            described((11, 12), (11, 13)), 1, "1 of 2 partitions moved; cancelled or replaced elsewhere: t-0",
            "VERIFICATION_FAILED: not as planned: t-0; the reassignment was cancelled or replaced elsewhere",
        ),
        (
            described((11, 12), (11, 12)), 1, "0 of 2 partitions moved; cancelled or replaced elsewhere: t-0..1",
            "VERIFICATION_FAILED: not as planned: t-0, t-1; the reassignment was cancelled or replaced elsewhere",
        ),
        (
            described((11, 13)), 3, "1 of 2 partitions moved; cancelled or replaced elsewhere: t-1",
            "UNKNOWN_TOPIC_OR_PARTITION: missing: t-1",
        ),
    ],
)  # fmt: skip
def test_a_reassignment_that_is_cancelled_elsewhere_does_not_count_as_moved(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], after: Any, code: int, told: str, error: str
) -> None:
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, True, ""), (1, True, ""))
    cluster.replies[rpcs.DESCRIBE_TOPICS] = after
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = [going_on(ongoing(), ongoing(index=1)), going_on()]
    assert run([*START, "--wait"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    first, *_, last, failure = captured.err.splitlines()
    assert first.startswith("0 of 2 partitions moved, 0 bytes to copy")
    assert last == told
    assert failure.startswith(f"kctl: {error}")


@pytest.mark.usefixtures("plan")
def test_start_does_not_wait_for_a_reassignment_that_was_replaced_elsewhere(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = ongoing(index=1, replicas=[11, 14, 12], adding=[14])
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, True, ""), (1, True, ""))
    cluster.replies[rpcs.DESCRIBE_TOPICS] = described((11, 13), (11, 14))
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = [going_on(ongoing(), elsewhere), going_on(elsewhere)]
    assert run([*START, "--wait"]) == 1
    *_, last, _ = capsys.readouterr().err.splitlines()
    assert last == "1 of 2 partitions moved; cancelled or replaced elsewhere: t-1"


@pytest.mark.usefixtures("plan")
def test_start_does_not_wait_if_the_plan_is_already_satisfied(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, False, "t-0 is there"), (1, False, "t-1 is there"))
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on()
    assert run([*START, "--wait"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("nothing to do: already as requested\n", "t-0 is there\nt-1 is there\n")
    assert asked(cluster, rpcs.LIST_REASSIGNMENTS) == 1


def test_draining_a_broker_again_waits_for_the_replicas_that_already_leave_it(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.replies[rpcs.DESCRIBE_TOPICS] = described((11, 13, 12), (11, 13))
    [leaving, _] = cluster.replies[rpcs.DESCRIBE_TOPICS].topics[0].partitions
    leaving.removing.append(12)
    drain = ["reassign", "generate", "--topic", "t", "--drain", "12"]

    def planned(*options: str) -> Any:
        assert run([*drain, *options]) == 0
        captured = capsys.readouterr()
        assert "0 replicas would be copied" in captured.err
        return json.loads(captured.out)

    row = {"topic": "t", "partition": 0, "replicas": [11, 13]}
    assert planned()["partitions"] == planned("--brokers", "11,13")["partitions"] == [row]
    assert planned("--replication-factor", "2")["partitions"] == [row]
    assert planned("--brokers", "11")["partitions"] == planned("--replication-factor", "1")["partitions"] == []
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, False, ""))
    with typed(monkeypatch, planned()):
        assert run([*START, "--wait", "--timeout", "0.3"]) == 4
    assert "already under way to the same replicas; waiting for it" in capsys.readouterr().err


def test_draining_an_empty_broker_succeeds_and_changes_nothing(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["reassign", "generate", "--topic", "t", "--drain", "12"]) == 0
    with typed(monkeypatch, json.loads(capsys.readouterr().out)):
        assert run([*START, "--wait"]) == 0
        assert capsys.readouterr().out == "nothing to do: the plan names no partitions\n"
        assert run([*START, "--throttle", "1M", "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"changed": False, "offset": None, "partitions": []}
        assert run(["reassign", "cancel", "--plan", "-"]) == 2  # it must not cancel all reassignments
        assert run(["reassign", "verify", "--plan", "-"]) == 2
    assert asked(cluster, rpcs.ALTER_REASSIGNMENTS) == 0


@pytest.mark.usefixtures("plan")
def test_start_with_a_different_throttle_reports_a_change(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, False, ""), (1, False, ""), changed=True)
    assert run([*START, "--throttle", "1M"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "the throttle is changed"
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on()
    assert run([*START, "--throttle", "1M"]) == 0
    assert capsys.readouterr().out.splitlines() == ["the throttle is changed"]


def test_the_controller_accepts_as_many_partitions_as_kctl_names_in_one_request() -> None:
    assert reassign_requests.REQUEST_MAX == CHANGES_MAX
    assert elections.PARTITIONS_PER_REQUEST == RECORDS_PER_BATCH_MAX


@pytest.mark.usefixtures("plan")
def test_a_dry_run_does_not_say_that_the_throttle_stays_as_it_is(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reply to a dry run reports no change, even if the throttle would change."""
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on()
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered(changed=False)
    assert run(["reassign", "start", "--throttle", "1M", "--dry-run"]) == 0
    assert capsys.readouterr().out == "the throttle would be set\n"
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, False, ""), (1, False, ""), changed=False)
    assert run([*START, "--throttle", "1M", "--dry-run"]) == 0
    assert capsys.readouterr().out == "the throttle would be set\n"
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, True, ""), (1, True, ""), changed=False)
    assert run([*START, "--throttle", "1M", "--dry-run"]) == 0
    assert capsys.readouterr().out == "the throttle would be set\n2 of 2 partitions would be moved\n"
    assert run([*START, "--dry-run"]) == 0
    assert capsys.readouterr().out == "2 of 2 partitions would be moved\n"


def sent(cluster: FakeClient) -> list[tuple[bool, list[int]]]:
    """Return the requests to alter reassignments: whether each was a dry run, and its partitions of t."""
    return [
        (request.header.validate_only, [each.index for each in request.partitions])
        for rpc, request in cluster.calls
        if rpc == rpcs.ALTER_REASSIGNMENTS
    ]


@pytest.mark.usefixtures("plan")
def test_a_large_plan_is_checked_as_a_whole_and_started_in_several_requests(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassign_requests, "REQUEST_MAX", 1)  # the controller refuses requests with more than 9,999
    checked, first, second = [(True, [0]), (True, [1])], altered((0, True, "")), altered((1, True, ""))
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = [first, second, first, second]
    assert run([*START, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["changed"], [each["partition"] for each in document["partitions"]]) == (True, [0, 1])
    assert sent(cluster) == [*checked, (False, [0]), (False, [1])]
    refusal = ClusterError("INVALID_REPLICA_ASSIGNMENT", "t-1: broker 13 is fenced")
    cluster.calls.clear()
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = [first, refusal]
    assert run(START) == 2
    assert sent(cluster) == checked
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = [altered((0, True, "")), second, altered((0, True, "")), refusal]
    capsys.readouterr()
    assert run(START) == 2
    assert "fenced; requests for 1 partition were accepted before, and the" in capsys.readouterr().err
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = [altered((0, True, "")), refusal]
    assert run([*START, "--dry-run"]) == 2
    assert "accepted" not in capsys.readouterr().err


@pytest.mark.usefixtures("plan")
def test_start_reports_why_the_controller_refuses_a_different_target(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = ClusterError(
        "REASSIGNMENT_IN_PROGRESS", "t-0 is being moved", "--replace"
    )
    assert run([*START, "--wait"]) == 5
    assert capsys.readouterr().err == "kctl: REASSIGNMENT_IN_PROGRESS: t-0 is being moved (next: --replace)\n"
    assert asked(cluster, rpcs.LIST_REASSIGNMENTS) == 0


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize(
    ("there", "error", "code"),
    [
        ({"b11": False, "b12": False, "b13": True}, "BROKER_NOT_AVAILABLE", 5),
        ({"b11": False, "b12": False}, "BROKER_ID_NOT_REGISTERED", 3),
        ({"b11": True, "b12": False}, "BROKER_ID_NOT_REGISTERED", 3),
        ({"b11": False, "b12": False, "b13": False}, "INVALID_REPLICA_ASSIGNMENT", 2),
        (None, "INVALID_REPLICA_ASSIGNMENT", 2),
    ],
)
def test_start_reports_whether_a_target_broker_is_fenced_or_not_registered(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], there: dict[str, bool] | None, error: str, code: int
) -> None:
    cluster.replies[rpcs.DESCRIBE_BROKERS] = SILENT if there is None else brokers(**there)
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = ClusterError("INVALID_REPLICA_ASSIGNMENT", "t-0: broker 13 …", "look")
    assert run(START) == code
    assert capsys.readouterr().err == f"kctl: {error}: t-0: broker 13 … (next: look)\n"


def test_a_malformed_assignment_is_not_reported_as_an_unregistered_broker(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies[rpcs.DESCRIBE_BROKERS] = brokers(b11=False, b12=False)
    text = "partition 1 has 1 replica; partition 0 has 2"
    refused = pb.Result(error="INVALID_REPLICA_ASSIGNMENT", message=text)
    cluster.replies[rpcs.CREATE_TOPICS] = pb.CreateTopicsReply(result=OK, topics=[pb.CreatedTopic(result=refused)])
    assert run(["topics", "create", "t", "--assignment", "11:12,99"]) == 2
    assert capsys.readouterr().err == f"kctl: INVALID_REPLICA_ASSIGNMENT: {text}\n"


def status(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, list[int]]]:
    assert run(["reassign", "status", "-o", "json"]) == 0
    return [(row["state"], row["waits_for"]) for row in json.loads(capsys.readouterr().out)]


def test_a_partition_that_waits_for_a_broker_is_not_shown_as_copying(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(capsys) == [("copying", [])]
    cluster.replies[rpcs.DESCRIBE_BROKERS] = brokers(b11=False, b12=True, b13=False)
    assert status(capsys) == [("copying", [])], "the reassignment does not wait for the removed replica"
    cluster.replies[rpcs.DESCRIBE_BROKERS] = brokers(b11=False, b12=False, b13=True)
    assert status(capsys) == [("broker_down", [13])]
    cluster.replies[rpcs.DESCRIBE_BROKERS] = brokers(b11=False, b12=False)
    assert status(capsys) == [("broker_down", [13])], "an unregistered broker counts as down"
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on(ongoing(isr=[13], replicas=[11, 13, 12]))
    cluster.replies[rpcs.DESCRIBE_BROKERS] = brokers(b11=True, b12=False, b13=False)
    assert status(capsys) == [("broker_down", [11])], "all added replicas are in sync, but a replica that stays is not"
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on(ongoing(leader=-1))
    assert status(capsys) == [("no_leader", [])]
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on()
    assert status(capsys) == []


def test_brokers_that_block_a_reassignment_are_named_with_a_next_step(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ongoing("u", 3, replicas=[12, 13, 11], adding=[12, 13], removing=[11], isr=[11])
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on(ongoing(), ongoing(index=1), both)
    cluster.replies[rpcs.DESCRIBE_BROKERS] = brokers(b11=False, b12=True, b13=True)
    assert run(["reassign", "status"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "as of offset 0 of the metadata log",
        "throttle: none",
        "u-3 waits for broker 12 and 13, which are down (next: start broker 12 and broker 13, "
        "or kctl reassign cancel --topic u)",
        "t-0..1 wait for broker 13, which is down (next: start broker 13, or kctl reassign cancel --topic t)",
    ]
    many = [ongoing(f"t{number}") for number in range(6)]
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on(*many)
    assert run(["reassign", "status"]) == 0
    assert "or kctl reassign cancel --plan FILE.json)" in capsys.readouterr().err


def test_the_next_step_cancels_only_partitions_that_wait(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = ongoing(index=1, replicas=[11, 14, 12], adding=[14])
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = going_on(ongoing(), elsewhere)
    cluster.replies[rpcs.DESCRIBE_BROKERS] = brokers(b11=False, b12=False, b13=True, b14=False)
    plan = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [11, 13]}]}
    for which in ([], ["--brokers", "13"], ["--plan", "-"]):
        with typed(monkeypatch, plan):
            assert run(["reassign", "status", *which]) == 0
        shown = capsys.readouterr()
        assert "(next: start broker 13, or kctl reassign cancel --topic t --partition 0)" in shown.err
        assert ("14" in shown.out) == (not which)


def test_a_waiting_command_reports_the_blocking_brokers() -> None:
    assert blocked_reason(ongoing(), ()) == ""
    assert blocked_reason(ongoing(leader=-1), (13,)) == "no_leader"
    assert blocked_reason(ongoing(isr=[11, 13]), ()) == "waiting"
    text = summary([ongoing()], {("t", 0): None}, {("t", 0): [13]})
    assert text.endswith("; blocked: t-0 (waits for broker 13, which is down)")
    rest = [ongoing(index=index, leader=-1) for index in range(7)]
    waits: dict[Key, list[int]] = {("t", index): [] for index in range(7)}
    assert summary(rest, dict.fromkeys(waits, 5), waits).endswith("t-4 (no_leader) and 2 more")


def test_a_single_byte_is_written_in_the_singular() -> None:
    assert summary([ongoing()], {("t", 0): 1}, {("t", 0): []}) == "1 byte to copy"
    both: dict[Key, int | None] = {("t", 0): 1, ("t", 1): 1}
    waits: dict[Key, list[int]] = {key: [] for key in both}
    assert summary([ongoing(), ongoing(index=1)], both, waits) == "2 bytes to copy"


# Cancellation

GONE = ClusterError("NO_REASSIGNMENT_IN_PROGRESS", "t-1 is not being reassigned; nothing was changed")


@pytest.mark.usefixtures("plan")
def test_a_plan_is_cancelled_although_some_of_its_partitions_have_moved(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, True, ""))
    assert run(["reassign", "cancel", "--plan", "-"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "1 of 1 partition returned to their previous replicas\n"
    assert captured.err == "t-1 is not being reassigned (any more), and is not changed\n"
    (request,) = [request for rpc, request in cluster.calls if rpc == rpcs.ALTER_REASSIGNMENTS]
    assert [(each.topic, each.index, list(each.replicas)) for each in request.partitions] == [("t", 0, [])]


@pytest.mark.parametrize("which", [["--all"], ["--topic", "t"], ["--plan", "-"]])
@pytest.mark.usefixtures("plan")
def test_cancel_continues_although_one_of_the_reassignments_ends_meanwhile(
    cluster: FakeClient, which: list[str]
) -> None:
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = [going_on(ongoing(), ongoing(index=1)), going_on(ongoing())]
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = [GONE, altered((0, True, ""))]
    assert run(["reassign", "cancel", *which]) == 0
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = [going_on(ongoing(index=1)), going_on()]
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = GONE
    assert run(["reassign", "cancel", *which]) == 5


@pytest.mark.parametrize("dry_run", [False, True])
def test_many_reassignments_are_cancelled_in_several_requests(
    cluster: FakeClient, dry_run: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassign_requests, "REQUEST_MAX", 1)
    everything = going_on(ongoing(), ongoing(index=1))
    rest = everything if dry_run else going_on(ongoing(index=1))
    cluster.replies[rpcs.LIST_REASSIGNMENTS] = [everything, rest, rest]
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = [altered((0, True, "")), GONE, altered((1, True, ""))]
    assert run(["reassign", "cancel", "--all", *(["--dry-run"] if dry_run else [])]) == 0
    assert sent(cluster) == [(dry_run, [0]), (dry_run, [1]), (dry_run, [1])]
    assert capsys.readouterr().out.startswith("2 of 2 partitions ")


def test_single_partitions_of_a_topic_are_cancelled(cluster: FakeClient, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.replies[rpcs.ALTER_REASSIGNMENTS] = altered((0, True, ""))
    assert run(["reassign", "cancel", "--topic", "t", "--partition", "0", "--partition", "1"]) == 0
    assert capsys.readouterr().err == "t-1 is not being reassigned (any more), and is not changed\n"
    (listed,) = [request for rpc, request in cluster.calls if rpc == rpcs.LIST_REASSIGNMENTS]
    assert [(each.topic, each.index) for each in listed.partitions] == [("t", 0), ("t", 1)]
    (request,) = [request for rpc, request in cluster.calls if rpc == rpcs.ALTER_REASSIGNMENTS]
    assert [(each.topic, each.index, list(each.replicas)) for each in request.partitions] == [("t", 0, [])]


@pytest.mark.parametrize(
    ("arguments", "error", "code"),
    [
        (["--topic", "t", "--partition", "7"], "UNKNOWN_TOPIC_OR_PARTITION: partition t-7 does not exist", 3),
        (["--topic", "t", "--topic", "u", "--partition", "0"], "--partition needs one --topic", 2),
        (["--all", "--partition", "0"], "--partition needs one --topic", 2),
        (["--partition", "0"], "give one of --plan FILE.json, --topic T and --all", 2),
    ],
)
def test_cancel_refuses_missing_partitions_and_invalid_options(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str, code: int
) -> None:
    assert run(["reassign", "cancel", *arguments]) == code
    assert error in capsys.readouterr().err
    assert rpcs.ALTER_REASSIGNMENTS not in [rpc for rpc, _ in cluster.calls]


def test_a_usage_error_names_only_options_of_the_command(
    cluster: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, is_option in (("start", True), ("verify", False)):
        assert run(["reassign", command, "--topic", "t"]) == 2
        assert ("--replication-factor" in capsys.readouterr().err) == is_option
