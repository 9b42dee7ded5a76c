"""`broker run --standalone` and kctl, as a user sees them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from .conftest import ANYWHERE, Server, StartServer, command, environment, run

Kctl = Callable[..., subprocess.CompletedProcess[str]]


def http(server: Server, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.fields['http']}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_ready_broker_reports_its_addresses_its_health_and_its_metrics(standalone: Server) -> None:
    assert list(standalone.fields) == ["node_id", "kafka", "control", "http", "data_dir"]
    assert standalone.fields["node_id"] == "1"
    assert Path(standalone.fields["data_dir"], "quorum").is_dir()
    assert not standalone.fields["kafka"].endswith(":0")
    assert http(standalone, "/livez") == (200, "ok\n")
    status, text = http(standalone, "/readyz?verbose")
    assert status == 200
    assert "[+] broker: unfenced" in text
    status, text = http(standalone, "/metrics")
    assert status == 200
    for name in ("quorumlog_quorum_epoch 1.0", "quorumlog_quorum_is_leader 1.0", "quorumlog_quorum_fsync_seconds_count",
                 "quorumlog_broker_is_serving 1.0", "process_resident_memory_bytes"):  # fmt: skip
        assert name in text


def test_kctl_reads_records_of_confluent_kafka(standalone: Server, kctl: Kctl) -> None:
    assert kctl("topics", "create", "c", "--partitions", "2", "--replication-factor", "1").returncode == 0
    producer = Producer({"bootstrap.servers": standalone.fields["kafka"], "acks": "all"})
    for number in range(20):
        producer.produce("c", key=f"k{number}", value=f"v{number}", headers=[("h", b"1")])
    assert producer.flush(30) == 0
    done = kctl("consume", "c", "--from", "beginning", "--max-messages", "20", "-o", "json", "--timeout", "30")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((record["key"], record["value"]) for record in records) == sorted(
        (f"k{number}", f"v{number}") for number in range(20)
    )
    assert records[0]["headers"] == [{"name": "h", "value": "1"}]
    assert list(records[0]) == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def test_kctl_creates_lists_describes_and_deletes_a_topic(kctl: Kctl) -> None:
    made = kctl("topics", "create", "t", "--partitions", "3", "--replication-factor", "1", "-o", "json", "--wait")
    assert made.returncode == 0, made.stderr
    document = json.loads(made.stdout)
    assert (document["changed"], document["created"], document["partitions"]) == (True, True, 3)
    again = kctl("topics", "create", "t", "--partitions", "3", "--replication-factor", "1", "-o", "json")
    assert (again.returncode, json.loads(again.stdout)["created"]) == (0, False)
    assert json.loads(again.stdout)["topic_id"] == document["topic_id"]
    other = kctl("topics", "create", "t", "--partitions", "4", "--replication-factor", "1", "-o", "json")
    assert (other.returncode, other.stdout) == (5, "")
    assert "3" in json.loads(other.stderr)["message"]
    (listed,) = [one for one in json.loads(kctl("topics", "list", "-o", "json").stdout) if one["name"] == "t"]
    assert listed == {
        "name": "t", "topic_id": document["topic_id"], "partitions": 3, "replication_factor": 1, "internal": False,
        "offset": listed["offset"], "unconfirmed": False,
    }  # fmt: skip
    (described,) = json.loads(kctl("topics", "describe", "t", "-o", "json").stdout)
    assert [(one["partition"], one["leader"], one["isr"]) for one in described["partitions"]] == [
        (0, 1, [1]), (1, 1, [1]), (2, 1, [1]),
    ]  # fmt: skip
    assert kctl("topics", "delete", "t").returncode == 0
    assert kctl("topics", "delete", "seen").returncode == 3
    assert kctl("topics", "delete", "t", "--if-exists").returncode == 0
    assert kctl("topics", "describe", "t").returncode == 3


def test_a_refused_command_has_its_exit_status_and_one_line_of_error(kctl: Kctl) -> None:
    for arguments, code in (
        (("topics", "create", "../../etc/x"), 2),
        (("topics", "create", "r", "--replication-factor", "3"), 5),
        (("topics", "create", "r", "--replication-factor", "1", "--config", "nonsense=1"), 2),
        (("topics", "create", "r", "--assignment", "7"), 3),
        (("produce", "nowhere"), 3),
        (("consume", "nowhere"), 3),
        (("brokers", "describe", "99"), 3),
    ):
        done = kctl(*arguments, stdin="x\n")
        assert (done.returncode, done.stdout) == (code, ""), (arguments, done.stderr)
        assert len(done.stderr.splitlines()) == 1
    assert kctl("topics", "describe", "r").returncode == 3


@pytest.mark.parametrize("command", ["consume seen --from beginning --exit-at-end", "metadata tail --from beginning"])
def test_a_closed_output_of_consume_is_not_an_error(kctl: Kctl, standalone: Server, command: str) -> None:
    assert kctl("topics", "create", "seen", "--partitions", "2", "--replication-factor", "1").returncode == 0
    assert kctl("produce", "seen", stdin="".join(f"{number}\n" for number in range(20_000))).returncode == 0
    arguments = [sys.executable, "-m", "quorumlog.kctl.main", "--controllers", standalone.fields["control"]]
    with subprocess.Popen(
        [*arguments, *command.split()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        if command.startswith("metadata"):
            assert kctl("topics", "delete", "seen").returncode == 0  # one more line, which no consumer prints
        assert (process.stderr.read(), process.wait(60)) == ("", 0)


def test_ctrl_c_ends_consume_quietly(kctl: Kctl, standalone: Server) -> None:
    assert kctl("topics", "create", "quiet", "--partitions", "1", "--replication-factor", "1").returncode == 0
    assert kctl("produce", "quiet", stdin="x\n").returncode == 0
    line = command("kctl", "--controllers", standalone.fields["control"], "consume", "quiet", "--from", "beginning")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()) as reader:
        try:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "x\n"
            reader.send_signal(signal.SIGINT)
            assert reader.communicate(timeout=60) == ("", "")
            assert reader.returncode == 130
        finally:
            reader.kill()


def test_produce_and_consume_with_keys_and_from_an_offset(kctl: Kctl) -> None:
    assert kctl("topics", "create", "k", "--partitions", "3", "--replication-factor", "1").returncode == 0
    made = kctl("produce", "k", "--key-separator", ":", "-o", "json", stdin="a:1\na:2\nb:3\na:4")
    assert made.returncode == 0, made.stderr
    acknowledged = [json.loads(line) for line in made.stdout.splitlines()]
    assert len(acknowledged) == 4
    (partition,) = {one["partition"] for one in acknowledged if one["offset"] == 2}
    read = kctl("consume", "k", "--partition", str(partition), "--from", "1", "--exit-at-end")
    assert read.stdout.splitlines()[-1] == "4"
    assert kctl("produce", "k", "--partition", "3", stdin="x").returncode == 3
    broken = kctl("produce", "k", "--key-separator", ":", "--partition", "0", stdin="d:5\nd:6\nseven\nd:8\n")
    assert (broken.returncode, len(broken.stdout.splitlines())) == (2, 2), "the lines before it were written, and shown"
    assert "line 3 has no ':'" in broken.stderr
    late = kctl("consume", "k", "--from", "beginning", "--max-messages", "7", "--timeout", "1")
    assert late.returncode == 4
    beyond = kctl("consume", "k", "--from", "99", "--exit-at-end", "--partition", str(partition), "-o", "json")
    error = json.loads(beyond.stderr)
    assert (beyond.returncode, beyond.stdout, error["error"]) == (3, "", "OFFSET_OUT_OF_RANGE")
    assert "from 0 to 3 (exclusive)" in error["message"]


def test_kctl_shows_the_quorum_the_brokers_and_the_health(kctl: Kctl) -> None:
    status = json.loads(kctl("quorum", "status", "-o", "json").stdout)
    assert (status["leader_id"], status["paused"], [voter["id"] for voter in status["voters"]]) == (1, False, [1])
    (broker,) = json.loads(kctl("brokers", "list", "-o", "json").stdout)
    assert (broker["id"], broker["state"]) == (1, "unfenced")
    health = kctl("cluster", "health", "-o", "json", "--exit-when-healthy")
    assert (health.returncode, json.loads(health.stdout)["healthy"]) == (0, True)
    for view in (("quorum", "status"), ("quorum", "replication"), ("brokers", "list"), ("topics", "list")):
        assert kctl(*view).returncode == 0


def test_a_standalone_broker_keeps_its_records_over_a_restart(start_server: StartServer, tmp_path: Path) -> None:
    arguments = ("--standalone", "--data-dir", tmp_path / "data", *ANYWHERE)
    first = start_server("broker", *arguments)
    target = ("--controllers", first.fields["control"])
    assert run("kctl", *target, "topics", "create", "t", "--replication-factor", "1").returncode == 0
    assert run("kctl", *target, "produce", "t", stdin="one\ntwo\n").returncode == 0
    first.process.kill()
    first.process.wait(30)
    # A port chosen by the system changes at a restart.  The voter's address is a record, so give the port explicitly.
    second = start_server("broker", "--standalone", "--data-dir", tmp_path / "data", "--listen", "127.0.0.1:0",
                          "--control-listen", first.fields["control"], "--http", "off")  # fmt: skip
    assert second.fields["http"] == "off"
    done = run("kctl", *target, "consume", "t", "--from", "beginning", "--max-messages", "2")
    assert done.stdout.split() == ["one", "two"], done.stderr
    assert second.stop() == 0


def test_reads_of_missing_groups_and_transactional_ids_change_nothing(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server("broker", "--standalone", "--data-dir", tmp_path, *ANYWHERE)
    for words in (
        ("groups", "describe", "g"),
        ("groups", "lag", "g"),
        ("groups", "explain", "g"),
        ("groups", "delete", "g", "--yes"),
        ("groups", "delete-offsets", "g", "t"),
        ("transactions", "describe", "t"),
        ("transactions", "describe", "__scope/s/0"),
        ("transactions", "abort", "t", "--yes"),
    ):
        done = run("kctl", "--controllers", server.fields["control"], "-o", "json", *words)
        assert done.returncode == 3, (words, done.stderr)
    listed = run("kctl", "--controllers", server.fields["control"], "-o", "json", "topics", "list")
    assert json.loads(listed.stdout) == []


def test_an_unreachable_cluster_exits_with_4() -> None:
    done = run("kctl", "--controllers", "127.0.0.1:1", "--timeout", "0.5", "topics", "list", "-o", "json")
    assert done.returncode == 4
    assert json.loads(done.stderr)["retriable"] is True


@pytest.mark.parametrize(("port", "said"), [("kafka", "port for Kafka clients"), ("http", "an HTTP port")])
def test_another_port_is_not_treated_as_the_control_address(standalone: Server, port: str, said: str) -> None:
    done = run("kctl", "--controllers", standalone.fields[port], "topics", "list", "-o", "json")
    assert done.returncode == 2, done.stderr
    error = json.loads(done.stderr)
    assert (error["error"], said in error["message"]) == ("NOT_A_NODE", True)
