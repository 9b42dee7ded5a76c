"""Real servers and the real kctl, as processes, on ports that the system chooses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration import warm_kctl, warm_nodes

ROOT = Path(__file__).resolve().parents[3]
END_TIMEOUT_S = 60
MODULES = {"broker": "broker.cli", "quorum-node": "quorumlog_server.quorum_node", "kctl": "quorumlog.kctl.main"}


def environment() -> dict[str, str]:
    """Return this process's environment, without variables that a shell may have set for the programs under test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUORUMLOG_", "KCTL_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def command(program: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-P", "-m", MODULES[program], *map(str, arguments)]


def run(program: str, *arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        command(program, *arguments),
        input=stdin, capture_output=True, text=True, timeout=END_TIMEOUT_S, check=False, env=environment(),
    )  # fmt: skip


def run_kctl(*arguments: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run kctl to its end, in a process that has loaded it already."""
    return warm_kctl.run([*map(str, arguments)], environment(), END_TIMEOUT_S, stdin)


@dataclass
class Server:
    """A running server.  fields: the fields of its ready line."""

    process: subprocess.Popen[str]
    ready_line: str = ""
    fields: dict[str, str] = field(default_factory=dict)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_TIMEOUT_S)

    def errors(self) -> str:
        """Return its standard error, after it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


StartServer = Callable[..., Server]


def popen(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@contextmanager
def starter(
    popen: Callable[[list[str], dict[str, str]], subprocess.Popen[str]] = warm_nodes.popen,
) -> Iterator[StartServer]:
    """Yield a function that starts a server and waits for its ready line or end.  No server outlives the context."""
    with ExitStack() as stack:

        def start(program: str, *arguments: str | Path) -> Server:
            process = stack.enter_context(popen(command(program, "run", *arguments), environment()))
            stack.callback(process.kill)
            assert process.stdout is not None
            server = Server(process, process.stdout.readline().strip())
            server.fields = dict(re.findall(r"(\w+)=(\S+)", server.ready_line))
            return server

        yield start


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers in the usual way."""
    with starter(popen) as start:
        yield start


@pytest.fixture
def start_node() -> Iterator[StartServer]:
    """Starts servers as forks of a process that has loaded the program already."""
    with starter() as start:
        yield start


ANYWHERE = ("--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "127.0.0.1:0")


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One `broker run --standalone` for all tests of a module: each takes topics of its own."""
    with starter() as start:
        server = start("broker", "--standalone", "--data-dir", tmp_path_factory.mktemp("standalone"), *ANYWHERE)
        assert server.ready_line.startswith("ready "), server.errors()
        yield server


@pytest.fixture
def kctl(standalone: Server) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs kctl against `standalone`."""

    def call(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return run_kctl("--controllers", standalone.fields["control"], *arguments, stdin=stdin)

    return call
