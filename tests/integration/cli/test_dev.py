"""`kctl dev`: a whole cluster of processes is started, repaired, and stopped without leftovers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from quorumlog.kctl import processes

from .conftest import run

PORT_BASE = 10_000 + os.getpid() % 80 * 100
"""Below the ports of other clusters of the tests, and below those that the system gives to connections."""


def test_a_dev_cluster_starts_reports_its_status_and_stops(tmp_path: Path) -> None:
    home = tmp_path / "dev"
    base = PORT_BASE
    try:
        up = run("kctl", "dev", "up", "--dir", str(home), "--port-base", str(base), "-o", "json")
        assert up.returncode == 0, up.stderr
        document = json.loads(up.stdout)
        assert [(node["role"], node["id"], node["state"]) for node in document["nodes"]] == [
            ("voter", 1, "ready"), ("voter", 2, "ready"), ("voter", 3, "ready"),
            ("broker", 11, "ready"), ("broker", 12, "ready"), ("broker", 13, "ready"),
        ]  # fmt: skip
        assert json.loads((home / "cluster.json").read_text())["controllers"] == document["controllers"]
        target = ("--controllers", document["controllers"])
        made = run("kctl", *target, "topics", "create", "t", "--partitions", "6", "--replication-factor", "3", "--wait")
        assert made.returncode == 0, made.stderr
        assert run("kctl", *target, "produce", "t", stdin="x\n").returncode == 0

        get = run("kctl", *target, "configs", "get", "auto.create.topics.enable", "--cluster", "-o", "json")
        assert [(each["value"], each["source"]) for each in json.loads(get.stdout)] == [("true", "cluster")], get.stderr
        get = run("kctl", *target, "configs", "get", "group.initial.rebalance.delay.ms", "--cluster", "-o", "json")
        assert [(each["value"], each["source"]) for each in json.loads(get.stdout)] == [("0", "cluster")], get.stderr
        off = run("kctl", *target, "configs", "set", "auto.create.topics.enable=false", "--cluster")
        assert off.returncode == 0, off.stderr

        before = (home / "cluster.json").read_text()
        other = run("kctl", "dev", "up", "--dir", str(home), "--port-base", str(base + 7_000), "-o", "json")
        refused = json.loads(other.stderr)
        assert (other.returncode, refused["error"]) == (5, "CLUSTER_EXISTS")
        assert f"cannot move to {base + 7_000}; nothing was changed" in refused["message"]
        assert f"kctl dev down --dir {home}" in refused["next"]
        assert (home / "cluster.json").read_text() == before
        same = run("kctl", "dev", "up", "--dir", str(home), "--port-base", str(base), "-o", "json")
        assert (same.returncode, json.loads(same.stdout)["changed"]) == (0, False), same.stderr

        victim = document["nodes"][4]
        os.kill(victim["pid"], signal.SIGKILL)
        status = json.loads(run("kctl", "dev", "status", "--dir", str(home), "-o", "json").stdout)
        assert status["nodes"][4]["state"] == "stopped"
        again = json.loads(run("kctl", "dev", "up", "--dir", str(home), "-o", "json").stdout)
        assert again["changed"] is True
        assert again["nodes"][4]["state"] == "ready"
        assert [node["pid"] for node in again["nodes"] if node["id"] != 12] == [
            node["pid"] for node in document["nodes"] if node["id"] != 12
        ]
        assert json.loads(run("kctl", "dev", "up", "--dir", str(home), "-o", "json").stdout)["changed"] is False
        get = run("kctl", *target, "configs", "get", "auto.create.topics.enable", "--cluster", "-o", "json")
        assert json.loads(get.stdout)[0]["value"] == "false", "an operator's value is kept"
        healthy = run("kctl", *target, "cluster", "health", "--exit-when-healthy", "--timeout", "60")
        assert healthy.returncode == 0, healthy.stderr
        read = run("kctl", *target, "consume", "t", "--from", "beginning", "--max-messages", "1", "--timeout", "30")
        assert read.stdout == "x\n", read.stderr
    finally:
        down = run("kctl", "dev", "down", "--dir", str(home), "-o", "json")
    assert down.returncode == 0, down.stderr
    assert len(json.loads(down.stdout)["stopped"]) == 6
    assert not home.exists()
    assert [node["pid"] for node in again["nodes"] if processes.command_line(node["pid"])] == []
    nothing = run("kctl", "dev", "down", "--dir", str(home), "-o", "json")
    assert (nothing.returncode, json.loads(nothing.stdout)["changed"]) == (0, False)
    assert run("kctl", "dev", "status", "--dir", str(home)).returncode == 3


def test_a_small_dev_cluster_serves_consumer_groups(tmp_path: Path) -> None:
    from confluent_kafka import Consumer, TopicPartition

    home = tmp_path / "small"
    options = ("--dir", str(home), "--voters", "3", "--brokers", "1", "--port-base", str(PORT_BASE + 50))
    up = run("kctl", "dev", "up", *options, "-o", "json")
    try:
        assert up.returncode == 0, up.stderr
        document = json.loads(up.stdout)
        target = ("--controllers", document["controllers"])
        get = run("kctl", *target, "configs", "get", "default.replication.factor", "--cluster", "-o", "json")
        assert [(each["value"], each["source"]) for each in json.loads(get.stdout)] == [("1", "cluster")], get.stderr
        made = run("kctl", *target, "topics", "create", "t", "--partitions", "1", "--wait")
        assert made.returncode == 0, made.stderr
        consumer = Consumer({"bootstrap.servers": document["bootstrap"], "group.id": "g"})
        consumer.commit(offsets=[TopicPartition("t", 0, 7)], asynchronous=False)
        assert consumer.committed([TopicPartition("t", 0)], timeout=30)[0].offset == 7
        consumer.close()
    finally:
        down = run("kctl", "dev", "down", "--dir", str(home), "-o", "json")
    assert down.returncode == 0, down.stderr
