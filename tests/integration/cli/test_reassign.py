"""`kctl reassign` against processes: a voter and four brokers."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from .conftest import ANYWHERE, Server, command, environment, run_kctl, starter

Kctl = Callable[..., subprocess.CompletedProcess[str]]
LINE = "x" * 1000 + "\n"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    root = tmp_path_factory.mktemp("reassign")
    with starter() as start:
        voter = start(
            "quorum-node", "--data-dir", root / "1", "--node-id", "1", "--standalone", "--listen", "127.0.0.1:0",
            "--http", "off",
        )  # fmt: skip
        assert voter.ready_line, voter.errors()
        running = [voter]
        for broker_id in (11, 12, 13, 14):
            server = start(
                "broker", "--data-dir", root / str(broker_id), "--node-id", str(broker_id), *ANYWHERE[:4],
                "--http", "off", "--controllers", voter.fields["control"],
            )  # fmt: skip
            assert server.ready_line, server.errors()
            running.append(server)
        yield running


@pytest.fixture(scope="module")
def kctl(servers: list[Server]) -> Kctl:
    def call(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run_kctl("--controllers", servers[0].fields["control"], *arguments, stdin=stdin)

    return call


def made(kctl: Kctl, topic: str, *rows: str, lines: int = 0) -> None:
    created = kctl("topics", "create", topic, "--assignment", ",".join(rows), "--wait")
    assert created.returncode == 0, created.stderr
    if lines:
        for partition in range(len(rows)):
            filled = kctl("produce", topic, "--partition", str(partition), stdin=LINE * lines)
            assert filled.returncode == 0, filled.stderr


def replicas(kctl: Kctl, topic: str) -> list[list[int]]:
    (described,) = json.loads(kctl("topics", "describe", topic, "-o", "json").stdout)
    return [partition["replicas"] for partition in described["partitions"]]


def plan_file(path: Path, topic: str, *rows: list[int]) -> str:
    partitions = [{"topic": topic, "partition": number, "replicas": row} for number, row in enumerate(rows)]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def test_a_generated_plan_is_executed_and_verified(kctl: Kctl, tmp_path: Path) -> None:
    made(kctl, "a", "11:12", "12:11", "11:12", "12:11", lines=50)
    generated = kctl("reassign", "generate", "--topic", "a", "--brokers", "11,12,13,14")
    assert generated.returncode == 0, generated.stderr
    (tmp_path / "plan.json").write_text(generated.stdout)
    before = json.loads(generated.stderr.split("to undo the plan: ")[1].splitlines()[0])
    assert [row["replicas"] for row in before["partitions"]] == [[11, 12], [12, 11], [11, 12], [12, 11]]
    assert "4 replicas would be copied" in generated.stderr
    plan = str(tmp_path / "plan.json")
    different = kctl("reassign", "verify", "--plan", plan)
    assert (different.returncode, "VERIFICATION_FAILED" in different.stderr) == (1, True)
    dry = json.loads(kctl("reassign", "start", "--plan", plan, "--dry-run", "-o", "json").stdout)
    assert dry["changed"] is False
    assert replicas(kctl, "a") == [[11, 12], [12, 11], [11, 12], [12, 11]]
    started = kctl("reassign", "start", "--plan", plan, "--wait", "--timeout", "60", "-o", "json")
    assert started.returncode == 0, started.stderr
    assert json.loads(started.stdout)["changed"] is True
    assert "4 of 4 partitions moved" in started.stderr
    wanted = [row["replicas"] for row in json.loads(generated.stdout)["partitions"]]
    assert replicas(kctl, "a") == wanted
    assert sorted(broker for row in wanted for broker in row) == [11, 11, 12, 12, 13, 13, 14, 14]
    verified = kctl("reassign", "verify", "--plan", plan, "-o", "json")
    assert verified.returncode == 0
    assert {row["state"] for row in json.loads(verified.stdout)} == {"complete"}
    again = kctl("reassign", "start", "--plan", plan, "-o", "json")
    assert (again.returncode, json.loads(again.stdout)["changed"]) == (0, False)
    read = kctl("consume", "a", "--from", "beginning", "--exit-at-end", "--timeout", "30")
    assert read.stdout == LINE * 200


def test_a_throttled_reassignment_is_shown_cancelled_and_interrupted(kctl: Kctl, servers: list[Server]) -> None:
    made(kctl, "b", "11:12", lines=2_000)
    started = kctl("reassign", "start", "--topic", "b", "--brokers", "13,14", "--throttle", "100k", "-o", "json")
    assert started.returncode == 0, started.stderr
    offset = json.loads(started.stdout)["offset"]
    (status,) = json.loads(kctl("reassign", "status", "--topic", "b", "-o", "json").stdout)
    assert set(status) == {
        "topic", "partition", "adding", "removing", "isr", "bytes_left", "state", "waits_for", "offset", "unconfirmed"
    }  # fmt: skip
    assert (status["adding"], status["removing"], status["isr"]) == ([13, 14], [11, 12], [11, 12])
    assert (status["state"], status["bytes_left"] > 1_000_000) == ("copying", True)
    assert "100000 bytes per second" in kctl("reassign", "status").stderr

    second = kctl("reassign", "start", "--topic", "b", "--brokers", "12,13", "-o", "json")
    assert (second.returncode, json.loads(second.stderr)["error"]) == (5, "REASSIGNMENT_IN_PROGRESS")
    verify = kctl("reassign", "verify", "--topic", "b", "--brokers", "13,14")
    assert (verify.returncode, "in_progress" in verify.stdout) == (4, True)
    late = kctl("reassign", "start", "--topic", "b", "--brokers", "13,14", "--wait", "--timeout", "1.5")
    assert (late.returncode, "TIMED_OUT" in late.stderr) == (4, True)
    assert "b-0: already under way to the same replicas; waiting for it" in late.stderr

    control = servers[0].fields["control"]
    code, shown = on_a_terminal(
        "--controllers", control, "reassign", "start", "--topic", "b", "--brokers", "13,14", "--wait", "--timeout", "60"
    )
    assert code == 130
    assert "0 of 1 partition" in shown
    assert "is not complete: 1 of 1 partition is still being moved; it continues" in shown
    (status,) = json.loads(kctl("reassign", "status", "-o", "json").stdout)
    assert status["adding"] == [13, 14]

    cancelled = kctl("reassign", "cancel", "--topic", "b", "-o", "json")
    assert cancelled.returncode == 0, cancelled.stderr
    document = json.loads(cancelled.stdout)
    assert document["changed"] is True
    assert document["offset"] > offset
    assert replicas(kctl, "b") == [[11, 12]]
    assert json.loads(kctl("reassign", "status", "-o", "json").stdout) == []
    twice = kctl("reassign", "cancel", "--topic", "b")
    assert (twice.returncode, "NO_REASSIGNMENT_IN_PROGRESS" in twice.stderr) == (5, True)
    configs = json.loads(kctl("configs", "get", "--cluster", "-o", "json").stdout)
    (throttle,) = [each for each in configs if each["name"] == "reassignment.throttle.bytes.per.second"]
    assert throttle["value"] == "-1"


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run kctl on a terminal, interrupt it once it shows a bar, and return the exit code and the standard error."""
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        command("kctl", *arguments), stdout=subprocess.DEVNULL, stderr=terminal, env=environment() | {"TERM": "xterm"}
    )
    os.close(terminal)
    shown, interrupted = b"", False
    try:
        while chunk := _read(ours):
            shown += chunk
            if not interrupted and b"partition" in shown:
                interrupted = True
                process.send_signal(signal.SIGINT)
        return process.wait(60), " ".join(shown.decode(errors="replace").split())
    finally:
        process.kill()
        os.close(ours)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(
    ("replicas_wanted", "code", "word"),
    [
        ([11, 99], 3, "BROKER_ID_NOT_REGISTERED"),
        ([11, 11], 2, "INVALID_PLAN"),
    ],
)
def test_a_plan_with_an_unknown_or_repeated_broker_is_refused(
    kctl: Kctl, tmp_path: Path, replicas_wanted: list[int], code: int, word: str
) -> None:
    topic = f"refused{len(set(replicas_wanted))}"
    made(kctl, topic, "11:12")
    refused = kctl("reassign", "start", "--plan", plan_file(tmp_path / "p", topic, replicas_wanted), "-o", "json")
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (code, word)
    assert replicas(kctl, topic) == [[11, 12]]


def test_one_bad_partition_refuses_the_whole_plan(kctl: Kctl, tmp_path: Path) -> None:
    made(kctl, "whole", "11:12")
    plan = plan_file(tmp_path / "p", "whole", [13, 14], [13, 14])
    refused = kctl("reassign", "start", "--plan", plan)
    assert refused.returncode == 3
    assert "whole has partitions 0 to 0, not 1" in refused.stderr
    assert "nothing was changed" in refused.stderr
    assert replicas(kctl, "whole") == [[11, 12]]


def test_a_plan_of_several_requests_is_checked_as_a_whole(kctl: Kctl, tmp_path: Path) -> None:
    made(kctl, "several", "11:12")
    plan = json.loads(Path(plan_file(tmp_path / "p", "missing", *[[11, 12]] * 10_000)).read_text())
    plan["partitions"].insert(0, {"topic": "several", "partition": 0, "replicas": [13, 14]})
    refused = kctl("reassign", "start", "--plan", "-", "-o", "json", stdin=json.dumps(plan))
    assert (refused.returncode, json.loads(refused.stderr)["error"]) == (3, "UNKNOWN_TOPIC_OR_PARTITION")
    assert replicas(kctl, "several") == [[11, 12]]


WRONG: dict[str, Any] = {
    "no source": ["start"],
    "two sources": ["start", "--plan", "-", "--topic", "t", "--brokers", "1"],
    "no brokers": ["start", "--topic", "t"],
    "a broker twice": ["start", "--topic", "t", "--brokers", "1,1"],
    "no number": ["start", "--topic", "t", "--brokers", "1,x"],
    "throttle 0": ["start", "--topic", "t", "--brokers", "1", "--throttle", "0"],
    "throttle words": ["start", "--topic", "t", "--brokers", "1", "--throttle", "fast"],
    "no file": ["start", "--plan", "/nowhere/plan.json"],
    "not JSON": ["start", "--plan", "-"],
    "cancel without partitions": ["cancel"],
    "generate without topics": ["generate"],
    "verify without a plan": ["verify"],
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_wrong_usage_exits_with_2(kctl: Kctl, case: str) -> None:
    found = kctl("reassign", *WRONG[case], "-o", "json", stdin="{")
    assert found.returncode == 2, found.stderr
    assert json.loads(found.stderr)["error"] in ("USAGE", "INVALID_PLAN")


def test_missing_topics_and_partitions_are_not_found(kctl: Kctl) -> None:
    for arguments in (["start", "--topic", "none", "--brokers", "11"], ["cancel", "--topic", "none"]):
        found = kctl("reassign", *arguments, "-o", "json")
        assert (found.returncode, json.loads(found.stderr)["error"]) == (3, "UNKNOWN_TOPIC_OR_PARTITION")
    assert kctl("reassign", "verify", "--topic", "none", "--brokers", "11").returncode == 3


def test_kafka_python_starts_lists_and_cancels_reassignments(kctl: Kctl, servers: list[Server]) -> None:
    made(kctl, "kip455", "11:12", "12:11", lines=2_000)
    partitions = [{"topic": "kip455", "partition": 1, "replicas": [13, 14]}]
    plan = json.dumps({"partitions": partitions})
    assert kctl("reassign", "start", "--plan", "-", "--throttle", "50k", stdin=plan).returncode == 0
    admin = KafkaAdminClient(bootstrap_servers=servers[1].fields["kafka"])
    try:
        first, second, none = (TopicPartition("kip455", index) for index in (0, 1, 7))
        answers = admin.alter_partition_reassignments({first: [13, 14], none: [11], second: [99, 11]})
        assert answers[first] is None
        assert answers[none].__name__ == "UnknownTopicOrPartitionError"
        assert answers[second].__name__ == "InvalidReplicationAssignmentError"
        moving = {"replicas": [13, 14, 11, 12], "adding_replicas": [13, 14], "removing_replicas": [11, 12]}
        assert admin.list_partition_reassignments([first]) == {first: moving}
        assert sorted(admin.list_partition_reassignments()) == [first, second]
        assert admin.alter_partition_reassignments({first: None, second: None}) == {first: None, second: None}
        assert admin.list_partition_reassignments() == {}
        again = admin.alter_partition_reassignments({first: None})[first]
        assert again.__name__ == "NoReassignmentInProgressError"
    finally:
        admin.close()
    assert replicas(kctl, "kip455") == [[11, 12], [12, 11]]
