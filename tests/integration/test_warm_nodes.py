"""A node that is forked is like one that is started in the usual way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumlog.kctl import dev_cluster, processes
from quorumlog.kctl.context import wait_until
from tests.integration import warm_nodes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks only on Linux")

Start = Callable[[list[str], Path, dict[str, str]], subprocess.Popen[bytes]]
STATUS = ("Name", "Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt", "CapEff", "NoNewPrivs", "Seccomp")
"""Fields of /proc/PID/status that the start of a process determines."""
WAIT_S = 60.0


def command(folder: Path) -> list[str]:
    where = ["--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
    return [sys.executable, "-P", "-m", "broker.cli", "run", "--standalone", *where, "--http", "off"]


def seen_of(pid: int, folder: Path) -> dict[str, Any]:
    """Return everything about a process that its starter chooses, with FOLDER for the name of `folder`."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    streams = [(os.readlink(proc / "fd" / str(number)), _flags(proc, number)) for number in range(3)]
    return {
        "arguments": [argument.replace(str(folder), "FOLDER") for argument in processes.command_line(pid)],
        "folder": os.readlink(proc / "cwd"),
        "streams": [(target.replace(str(folder), "FOLDER"), flags) for target, flags in streams],
        "limits": (proc / "limits").read_text(),
        "is leader of its session and group": (os.getsid(pid), os.getpgid(pid)) == (pid, pid),
        "program": os.readlink(proc / "exe"),
        **{name: status[name] for name in STATUS if name in status},
    }


def _flags(proc: Path, number: int) -> str:
    return next(line for line in (proc / "fdinfo" / str(number)).read_text().splitlines() if line.startswith("flags:"))


async def serving(start: Start, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Start a broker, and return what is seen of it once it serves.  Stop it."""
    process = start(command(folder), log_in(folder), environment)
    try:
        mark = processes.start_mark(process.pid) or ""
        assert processes.is_ours(process.pid, mark, str(folder / "data")), "known by its arguments at once"
        await wait_until(lambda: is_ready(folder), WAIT_S, "the node is ready", 0.02)
        return seen_of(process.pid, folder)
    finally:
        processes.send(process.pid, signal.SIGTERM)
        assert await processes.gone(process.pid, mark, WAIT_S)
        process.returncode = 0
        assert "SIGTERM" in said_in(folder)


def log_in(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder / "log"


def said_in(folder: Path) -> str:
    return log_in(folder).read_text()


async def is_ready(folder: Path) -> bool:
    return re.search(r"^ready |\"event\": *\"ready\"", said_in(folder), re.MULTILINE) is not None


async def test_a_forked_node_is_like_one_that_is_started(tmp_path: Path) -> None:
    environment = {**dev_cluster.environment(), "QUORUMLOG_LOGGING_LEVEL": "info"}
    usual = await serving(processes.spawn, tmp_path / "usual", environment)
    forked = await serving(warm_nodes.spawn, tmp_path / "forked", environment)
    assert forked == usual


async def test_a_forked_node_reads_its_own_environment(tmp_path: Path) -> None:
    environment = {**dev_cluster.environment(), "QUORUMLOG_LOGGING_FORMAT": "json"}
    await serving(warm_nodes.spawn, tmp_path / "forked", environment)
    assert said_in(tmp_path / "forked").startswith("{")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)], ids=["SIGTERM", "SIGKILL"]
)
def test_the_exit_status_of_a_forked_node_is_known(tmp_path: Path, number: signal.Signals, status: int) -> None:
    with warm_nodes.popen(command(tmp_path), dev_cluster.environment()) as node:
        assert node.stdout is not None
        assert node.stdout.readline().startswith("ready node_id=1 ")
        assert node.poll() is None
        node.send_signal(number)
        assert node.wait(WAIT_S) == status
        assert node.poll() == status
    with warm_nodes.popen([*command(tmp_path), "--nonsense"], dev_cluster.environment()) as node:
        assert node.stderr is not None
        assert "--nonsense" in node.stderr.read()
        assert node.wait(WAIT_S) == 2


@pytest.mark.parametrize("added", [{"PYTHONHASHSEED": "1"}, {"LD_PRELOAD": ""}, {"GRPC_TRACE": "none"}], ids=str)
def test_a_node_with_another_command_or_interpreter_environment_is_not_forked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, added: dict[str, str]
) -> None:
    started: list[str] = []
    monkeypatch.setattr(warm_nodes, "_spawn", lambda command, log, environment: started.append(command))
    monkeypatch.setattr(warm_nodes, "_fork", lambda command, environment, files: 1)
    environment = dev_cluster.environment()
    warm_nodes.spawn(command(tmp_path), tmp_path / "log", environment)
    assert started == []
    warm_nodes.spawn(command(tmp_path), tmp_path / "log", environment | added)
    warm_nodes.spawn(["env", *command(tmp_path)], tmp_path / "log", environment)
    assert len(started) == 2
