"""The guard of a test's broker, and the report on a broker that does not start."""

from __future__ import annotations

import fcntl
import io
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.errors import QuorumlogError
from quorumlog.testing import STOP_TIMEOUT_S, broker, guard

ROOT = str(Path(__file__).parents[3])


class Stubborn:
    """A program that ends once it has received `signals` signals."""

    def __init__(self, signals: int) -> None:
        self.signals = signals
        self.waits: list[float] = []

    def terminate(self) -> None:
        self.signals -= 1

    kill = terminate

    def wait(self, timeout_s: float | None = None) -> int:
        assert timeout_s is not None, "it would wait forever"
        self.waits.append(timeout_s)
        if self.signals > 0:
            raise subprocess.TimeoutExpired("program", timeout_s)
        return 0


@pytest.mark.parametrize(
    ("signals", "status", "waits"),
    [
        (1, 0, [STOP_TIMEOUT_S]),
        (2, 0, [STOP_TIMEOUT_S, guard.KILL_TIMEOUT_S]),
        (3, 1, [STOP_TIMEOUT_S, guard.KILL_TIMEOUT_S]),
    ],
    ids=["stops", "is killed", "hangs"],
)
def test_the_guard_waits_a_bounded_time_for_its_program(signals: int, status: int, waits: list[float]) -> None:
    program: Any = Stubborn(signals)
    assert guard._stop(program) == status
    assert program.waits == waits


def run_guard(folder: Path, *python: str) -> subprocess.CompletedProcess[str]:
    """Run the guard of a program that prints `served`."""
    ours, parents = os.pipe()  # open until the program has ended by itself
    try:
        return subprocess.run(
            [sys.executable, *python, str(folder), sys.executable, "-c", "print('served')"],
            stdin=ours,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": ROOT},
            text=True,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(parents)


def test_the_guard_runs_without_a_warning_and_deletes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    finished = run_guard(folder, "-m", "quorumlog.testing.guard")
    assert (finished.returncode, finished.stderr) == (0, "")
    pid, line = finished.stdout.split()
    assert int(pid) > 0
    assert line == "served"
    assert not folder.exists()


def test_the_pid_comes_before_the_output_of_a_program_that_is_faster_than_its_guard(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from quorumlog.testing import guard\n"
        "class Slow(subprocess.Popen):\n"
        "    def __init__(self, *args, **kwargs): super().__init__(*args, **kwargs); self.wait()\n"
        "subprocess.Popen = Slow; sys.exit(guard.main())"
    )
    finished = run_guard(tmp_path / "folder", "-c", program)
    assert (finished.returncode, finished.stderr) == (0, "")
    pid, line = finished.stdout.split()
    assert int(pid) > 0
    assert line == "served"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_the_program_of_a_killed_guard_is_stopped(tmp_path: Path) -> None:
    program = "import sys, time; print('served', flush=True); time.sleep(600)"
    command = ["-m", "quorumlog.testing.guard", str(tmp_path / "folder"), sys.executable, "-c", program]
    with subprocess.Popen(
        [sys.executable, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ROOT},
    ) as running:
        assert running.stdout is not None
        pid, line = int(running.stdout.readline()), running.stdout.readline()
        assert line == b"served\n"
        running.kill()
        ready, _, _ = select.select([running.stdout], [], [], 20)  # the end of the output is the end of the program
        if not ready:
            os.kill(pid, signal.SIGKILL)
    assert ready


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_the_end_of_the_thread_that_started_a_guard_does_not_end_its_program(tmp_path: Path) -> None:
    """Linux sends the signal of PR_SET_PDEATHSIG already when this thread ends.  So the guard must not ask for it."""
    program = "import time; print('served', flush=True); time.sleep(600)"
    command = ["-m", "quorumlog.testing.guard", str(tmp_path / "folder"), sys.executable, "-c", program]
    started: list[tuple[int, subprocess.Popen[bytes]]] = []

    def start() -> None:
        running = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": ROOT},
        )
        assert running.stdout is not None
        started.append((threading.get_native_id(), running))
        assert [running.stdout.readline() for _ in range(2)][1] == b"served\n"

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    ((thread_id, running),) = started
    while Path(f"/proc/self/task/{thread_id}").exists():  # `join` returns a little earlier
        time.sleep(0.01)
    running.communicate()  # the end of its standard input asks the guard to stop the program
    assert running.returncode == -signal.SIGTERM % 256, "the guard did not live to return the program's status"


def test_configs_that_are_not_set_in_time_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, timeout: float, **_: Any) -> None:
        assert f"{broker.CONFIGS_TIMEOUT_S:g}" in command
        assert timeout > broker.CONFIGS_TIMEOUT_S, "kctl could not report its own timeout"
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    started = broker.Broker("127.0.0.1:1", "127.0.0.1:2", 3)
    with pytest.raises(QuorumlogError, match="configs of the broker are not set: kctl did not end within 45 s"):
        broker._set_configs(started, {"auto.create.topics.enable": "false"})


def test_the_folder_of_a_session_that_is_starting_is_not_removed_as_a_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "quorumlog-test-new"
    folder.mkdir()
    others = iter([broker._remove_leftovers])
    lock = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        for remove_leftovers in others:  # before this process has locked anything
            remove_leftovers()
        lock(descriptor, operation)

    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: None)
    broker._start(str(folder), io.BytesIO())
    assert (folder / "guard.lock").exists()


def test_a_broker_that_ends_before_it_serves_is_reported_with_its_last_lines() -> None:
    process: Any = SimpleNamespace(stdin=io.BytesIO(), stdout=io.BytesIO(b"7\n"))
    with pytest.raises(QuorumlogError, match=r"(?s)^the broker ended before it served; its last lines:\n.*refused$"):
        broker._ready(process, io.BytesIO(b"x" * 10_000 + b"\nbroker: the port is refused"), 600.0)
    assert not process.stdin.closed
