"""The pytest plugin in a session and process of its own."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.errors import QuorumlogError
from quorumlog.testing import standalone

A_USERS_TEST = """
from confluent_kafka import Producer


def test_produce(quorumlog_broker, quorumlog_topic):
    delivered = []
    producer = Producer({"bootstrap.servers": quorumlog_broker.bootstrap})
    on_delivery = lambda error, message: delivered.append((error, message.offset()))
    producer.produce(quorumlog_topic, b"one", on_delivery=on_delivery)
    assert producer.flush(20) == 0
    assert delivered == [(None, 0)]
"""


def test_the_fixture_is_a_real_broker(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(A_USERS_TEST)
    root = str(Path(__file__).parents[3])
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "quorumlog.testing.plugin",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": root, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "1 passed" in finished.stdout


def test_the_broker_is_stopped_after_the_block() -> None:
    with standalone() as broker:
        assert Path(f"/proc/{broker.pid}").exists()
    assert not Path(f"/proc/{broker.pid}").exists()


def kctl(control: str, *arguments: str) -> str:
    command = [sys.executable, "-m", "quorumlog.kctl.main", "--controllers", control, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_first_member_of_a_group_does_not_wait_for_others() -> None:
    with standalone() as broker:
        name = "group.initial.rebalance.delay.ms"
        shown = kctl(broker.control, "configs", "get", name, "--cluster", "-o", "json")
    assert [(each["value"], each["source"]) for each in json.loads(shown)] == [("0", "cluster")]


def test_the_broker_ignores_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMLOG_NODE_ID", "none of them")
    with standalone() as broker:
        assert broker.bootstrap


def test_a_start_that_is_interrupted_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        stdin: Any = SimpleNamespace(close=lambda: None)
        stdout: Any = SimpleNamespace(readline=lambda: interrupt(), close=lambda: None)

        def kill(self) -> None: ...

        def terminate(self) -> None: ...

        def wait(self, timeout_s: float | None = None) -> None: ...

    def interrupt() -> bytes:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Interrupted())
    with pytest.raises(KeyboardInterrupt), standalone():
        pytest.fail("interrupted")
    for thread in set(threading.enumerate()) - before:
        assert isinstance(thread, threading.Timer)
        assert thread.finished.is_set()


def test_a_failed_start_of_the_broker_names_its_cause() -> None:
    with pytest.raises(QuorumlogError, match="did not serve within"), standalone(start_timeout_s=0.01):
        pytest.fail("it cannot have started so soon")


KILLED = """
import os, signal, sys
from quorumlog.testing import standalone

with standalone() as broker:
    print(broker.pid, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("is_guard_killed", [False, True], ids=["alone", "with its guard"])
def test_a_killed_run_leaves_no_broker_and_no_folder(
    tmp_path: Path, is_guard_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all processes are killed together, the next run deletes the folder."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "TMPDIR": str(tmp_path)}
    user = subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )
    with user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        (folder,) = tmp_path.iterdir()
        if is_guard_killed:
            os.kill(guard, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
        user.kill()
    wait_until_gone(guard)
    wait_until_gone(pid)
    assert folder.exists() == is_guard_killed
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with standalone():
        assert not folder.exists()
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def wait_until_gone(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([handle], [], [])
    os.close(handle)


def test_only_unused_folders_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    new, other, used = tmp_path / "quorumlog-test-new", tmp_path / "another", tmp_path / "quorumlog-test-used"
    for folder in (new, other, used / "data"):
        folder.mkdir(parents=True)
    (other / "guard.lock").touch()
    (used / "guard.lock").touch()
    with standalone() as broker, (used / "data" / "lock").open("w") as lock:
        (first,) = set(tmp_path.iterdir()) - {new, other, used}
        fcntl.flock(lock, fcntl.LOCK_EX)
        with standalone():
            assert {first, new, other, used} < set(tmp_path.iterdir())
        assert Path(f"/proc/{broker.pid}").exists()


def test_configs_are_set_before_the_block_begins() -> None:
    with standalone(configs={"num.partitions": "3"}) as broker:
        shown = kctl(broker.control, "configs", "get", "num.partitions", "--cluster", "-o", "json")
    assert [each["value"] for each in json.loads(shown)] == ["3"]


def test_a_refused_config_is_reported() -> None:
    with (
        pytest.raises(QuorumlogError, match=r"not set: .*no\.such\.config"),
        standalone(configs={"no.such.config": "1"}),
    ):
        pytest.fail("the config is unknown")


BROKEN = """
import quorumlog.testing.broker

quorumlog.testing.broker.standalone.__wrapped__.__defaults__ = (0.01,)


def test_one(quorumlog_broker, quorumlog_topic): ...
"""


def test_a_broker_that_does_not_start_is_reported_without_the_plugins_code(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "quorumlog.testing.plugin"]
    finished = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "the broker did not serve within 0.01 s" in finished.stdout
    assert "plugin.py" not in finished.stdout
