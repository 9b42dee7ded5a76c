"""Explanations for operators when brokers are killed and stopped: real processes and the real kctl.

One voter, with its metrics, and three brokers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Server, StartServer, command, environment, run_kctl

WAIT_S = 60
LINE = "x" * 1000 + "\n"
FAST = ("--set", "broker.session.timeout.ms=1500", "--set", "broker.heartbeat.interval.ms=200")


class Night:
    def __init__(self, start: StartServer, root: Path) -> None:
        self._start = start
        self._root = root
        listen = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        self.voter = start("quorum-node", "--data-dir", root / "1", "--node-id", "1", "--standalone", *listen, *FAST)
        assert self.voter.ready_line, self.voter.errors()
        self.brokers: dict[int, Server] = {}
        for broker_id in (11, 12, 13):
            self.start(broker_id)

    @property
    def control(self) -> str:
        return self.voter.fields["control"]

    def start(self, broker_id: int) -> None:
        directory = ("--data-dir", self._root / str(broker_id), "--node-id", broker_id)
        listen = ("--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off")
        server = self._start("broker", *directory, *listen, "--controllers", self.control, *FAST)
        assert server.ready_line, server.errors()
        self.brokers[broker_id] = server

    def kill(self, broker_id: int) -> None:
        self.brokers[broker_id].process.kill()
        self.brokers[broker_id].process.wait(WAIT_S)

    def signal(self, broker_id: int, number: signal.Signals) -> None:
        self.brokers[broker_id].process.send_signal(number)

    def kctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_kctl("--controllers", self.control, *arguments)

    def ok(self, *arguments: str) -> Any:
        done = self.kctl(*arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """kctl has no option to wait for this: poll."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"never: {what}"
            time.sleep(0.05)  # another process, which sends no event: poll

    def explained(self, partition: str, reason: str) -> dict[str, Any]:
        """The explanation, once its last change has this reason."""
        found: dict[str, Any] = {}

        def is_so() -> bool:
            found.update(self.ok("explain", partition))
            return bool(found["chain"][-1]["reason"] == reason)

        self.until(is_so, f"{partition}: {reason}")
        return found

    def metrics(self) -> dict[str, float]:
        url = f"http://{self.voter.fields['http']}/metrics"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            rows = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line[0] != "#"]
        return {name: float(value) for name, value in rows if "unavailable" in name}


@pytest.fixture
def night(start_node: StartServer, tmp_path: Path) -> Night:
    return Night(start_node, tmp_path)


def test_a_killed_leader_is_explained_from_its_fencing_to_its_return(night: Night) -> None:
    made = night.ok(
        "topics", "create", "my-t", "--assignment", "12:11:13", "--config", "min.insync.replicas=2", "--wait"
    )
    (created,) = night.ok("explain", "my-t-0")["chain"]
    assert (created["reason"], created["cause_offset"]) == ("created", None)
    assert created["offset"] < made["offset"] + 1
    assert night.metrics() == {
        'quorumlog_controller_partitions_unavailable{state="leaderless"}': 0,
        'quorumlog_controller_partitions_unavailable{state="under_min_isr"}': 0,
    }

    night.kill(12)
    told = night.explained("my-t-0", "broker_fenced")
    assert told["now"] == (
        "my-t-0: leader 11 in leader epoch 1; replicas 12, 11, 13; in sync 11, 13. Not in sync: 12 (is fenced)"
    )
    first, election = told["chain"]
    assert first == created
    assert election["offset"] > election["cause_offset"] > created["offset"]
    assert election["at"] > created["at"]
    assert election["text"] == (
        "leader 11 in leader epoch 1 (was 12); in sync 11, 13 (was 12, 11, 13), because broker 12 was fenced: it sent"
        f" no heartbeat in time, or requested the fencing (offset {election['cause_offset']})"
    )
    assert (told["topic"], told["partition"], told["history_begins"], told["complete"]) == ("my-t", 0, 0, True)
    shown = night.kctl("explain", "my-t-0")
    assert f"{election['offset']:>8}  {election['at']}  broker_fenced  " in shown.stdout
    assert "\x1b" not in shown.stdout

    night.kill(13)
    night.until(lambda: "acks=all are refused" in night.ok("explain", "my-t-0")["now"], "under its minimum")
    night.kill(11)
    night.until(lambda: "no leader" in night.ok("explain", "my-t-0")["now"], "no broker leads")
    assert night.ok("explain", "my-t-0")["now"].endswith(
        "Reads and writes fail until one of these can lead: 11 (is fenced), 13 (is fenced)"
    )
    down = '{partition="0",state="leaderless",topic="my-t"}'
    refused = '{partition="0",state="under_min_isr",topic="my-t"}'
    metrics = night.metrics()
    assert metrics['quorumlog_controller_partitions_unavailable{state="leaderless"}'] == 1
    assert metrics[f"quorumlog_controller_partition_unavailable{down}"] == 1
    assert metrics[f"quorumlog_controller_partition_unavailable{refused}"] == 0
    seconds = metrics[f"quorumlog_controller_partition_unavailable_seconds_total{down}"]
    assert seconds > 0

    night.start(13)
    told = night.explained("my-t-0", "broker_unfenced")
    assert "leader 13 in leader epoch 3 (was none)" in told["chain"][-1]["text"]
    assert "because broker 13 was unfenced and may lead" in told["chain"][-1]["text"]
    offsets = [change["offset"] for change in told["chain"]]
    assert offsets == sorted(offsets)
    metrics = night.metrics()
    assert metrics['quorumlog_controller_partitions_unavailable{state="leaderless"}'] == 0
    assert metrics[f"quorumlog_controller_partition_unavailable{down}"] == 0
    assert metrics[f"quorumlog_controller_partition_unavailable_seconds_total{down}"] > seconds
    (last,) = night.ok("explain", "my-t-0", "--last", "1")["chain"]
    assert last == told["chain"][-1]


def test_explanations_of_partitions_that_do_not_exist_are_refused(night: Night) -> None:
    for text, code in (("no-0", 3), ("no", 2), ("no-x", 2)):
        done = night.kctl("explain", text, "-o", "json")
        assert done.returncode == code, done.stderr
    night.ok("topics", "create", "t", "--partitions", "2", "--wait")
    assert night.kctl("explain", "t-2").returncode == 3
    night.ok("topics", "remove-partitions", "t", "--to", "1", "--yes", "--wait")
    assert night.kctl("explain", "t-1").returncode == 3
    assert "continues under another id" in night.ok("explain", "t-0")["now"]


def changes(follow: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert follow.stdout is not None
    for line in follow.stdout:
        yield json.loads(line)


def test_kctl_follows_state_changes_with_the_times_at_each_broker(night: Night) -> None:
    arguments = ("--controllers", night.control, "state-changes", "--follow", "--patience", "8", "-o", "json")
    with subprocess.Popen(
        command("kctl", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as follow:
        try:
            assert follow.stderr is not None
            assert follow.stderr.readline().startswith("following from offset ")
            coming = changes(follow)
            night.ok("topics", "create", "t", "--assignment", "12:11:13", "--wait")
            seen = [next(change for change in coming if change["kind"] == "partition")]
            assert [one["problem"] for one in seen[0]["brokers"]] == [None, None, None]
            for one in seen[0]["brokers"]:
                assert one["received_at"] <= one["completed_at"]
                assert one["took_ms"] >= 0

            night.kill(12)
            fenced = next(change for change in coming if "broker 12 is fenced" in change["text"])
            elected = next(change for change in coming if change["kind"] == "partition_change")
            assert (elected["topic"], elected["partition"], elected["reason"]) == ("t", 0, "broker_fenced")
            assert (elected["cause_offset"], elected["controller_epoch"]) == (fenced["offset"], 1)
            assert elected["at"] == fenced["at"], "one batch"
            by_id = {one["id"]: one for one in elected["brokers"]}
            assert by_id[12]["problem"].startswith("no answer from ")
            assert by_id[11]["completed_at"] >= by_id[11]["received_at"]
            assert (by_id[11]["problem"], by_id[13]["problem"]) == (None, None)

            # kctl waits only briefly for a broker that hangs; its own times are shown by a later request.
            night.signal(13, signal.SIGSTOP)
            hung = next(change for change in coming if "broker 13 is fenced" in change["text"])
            by_id = {one["id"]: one for one in hung["brokers"]}
            assert by_id[13]["problem"] is not None
            assert by_id[11]["problem"] is None
            night.signal(13, signal.SIGCONT)
            back = next(change for change in coming if "broker 13 is unfenced" in change["text"])
            assert {one["id"]: one["problem"] for one in back["brokers"]}[13] is None
            follow.send_signal(signal.SIGINT)
            assert follow.wait(WAIT_S) == 130
            assert "interrupted" not in follow.stderr.read()
        finally:
            follow.kill()
    again = {change["offset"]: change for change in night.ok("state-changes", "--from", str(fenced["offset"]))}
    assert (again[elected["offset"]]["text"], again[elected["offset"]]["at"]) == (elected["text"], elected["at"])
    assert {one["id"]: one["problem"] for one in again[hung["offset"]]["brokers"]}[13] is None
    (latest,) = night.ok("state-changes", "--last", "1", "--topic", "t")
    assert latest["topic"] == "t"
    shown = night.kctl("state-changes", "--from", str(fenced["offset"])).stdout
    assert f"{fenced['offset']:>8}  broker 12 is fenced" in shown
    assert "broker 11: received after " in shown
    assert shown.count("broker 12: no answer from ") == 1


def test_brokers_report_their_progress_and_replicas(night: Night) -> None:
    night.ok("topics", "create", "t", "--assignment", "12:11,11:12", "--wait")
    night.until(lambda: all(each["metadata_lag"] == 0 for each in night.ok("brokers", "list")), "all are caught up")
    listed = night.ok("brokers", "list")
    assert [(each["id"], each["answers"], each["pending_changes"], each["problem"]) for each in listed] == [
        (broker_id, True, 0, None) for broker_id in (11, 12, 13)
    ]  # fmt: skip
    described = night.ok("brokers", "describe", "12")
    assert [
        (each["topic"], each["partition"], each["state"], each["role"], each["in_sync"])
        for each in described["replica_states"]
    ] == [("t", 0, "online", "leader", True), ("t", 1, "online", "follower", True)]  # fmt: skip
    assert described["replica_states"][0]["directory"].endswith("/12")

    # A replica that is being added is new until it is in sync.
    filled = run_kctl("--controllers", night.control, "produce", "t", "--partition", "0", stdin=LINE * 2_000)
    assert filled.returncode == 0, filled.stderr
    night.ok("reassign", "start", "--topic", "t", "--brokers", "11,12,13", "--throttle", "100k")
    added = [each for each in night.ok("brokers", "describe", "13")["replica_states"] if each["partition"] == 0]
    assert [(each["state"], each["in_sync"]) for each in added] == [("new", False)]

    night.signal(12, signal.SIGSTOP)
    night.until(
        lambda: [each["state"] for each in night.ok("brokers", "list")] == ["unfenced", "fenced", "unfenced"],
        "12 is fenced",
    )
    silent = night.ok("brokers", "describe", "12")
    assert (silent["answers"], silent["metadata_lag"], silent["pending_changes"]) == (False, None, None)
    assert {each["state"] for each in silent["replica_states"]} == {"offline"}
    shown = night.kctl("brokers", "list")
    assert f"broker 12: {silent['problem']}" in shown.stderr
    assert night.kctl("brokers", "describe", "99").returncode == 3
