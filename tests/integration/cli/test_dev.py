"""`kctl dev`: a whole cluster of processes, up, again, and down without a trace."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from quorumlog.kctl import processes

from .conftest import run


@pytest.mark.timeout(300)
def test_up_status_again_and_down(tmp_path: Path) -> None:
    home = tmp_path / "dev"
    base = 20_000 + os.getpid() % 20_000
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
