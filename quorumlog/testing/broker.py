"""`standalone`: a broker that runs while a block is executed.

The broker is a process of its own, with its own ports and an empty data directory.  A second process, `guard.py`, stops
the broker and deletes the directory at the end, even if the process that called `standalone` is killed.  Settings in
the environment (QUORUMLOG_…) are not passed to the broker, because they are meant for other processes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from quorumlog.errors import QuorumlogError
from quorumlog.kctl.dev_cluster import environment
from quorumlog.testing import STOP_TIMEOUT_S

START_TIMEOUT_S = 30.0
CONFIGS_TIMEOUT_S = 30.0
KCTL_GRACE_S = 15.0
"""How long kctl may take to start and to end, in addition to its timeout, on a busy machine."""
_LOG_SHOWN_CHARS = 4000
_PREFIX = "quorumlog-test-"
_LOCK = "guard.lock"


@dataclass(frozen=True, slots=True)
class Broker:
    """A standalone broker that serves.

    bootstrap: the bootstrap servers for Kafka clients.  control: the value of `kctl --controllers`.  pid: the process
    id of the broker.
    """

    bootstrap: str
    control: str
    pid: int


@contextmanager
def standalone(
    start_timeout_s: float = START_TIMEOUT_S, *, configs: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """Run a standalone broker until the block or this process ends.

    configs: cluster configs that are set before the block begins, as by `kctl configs set --cluster`.

    Raises:
        QuorumlogError: the broker ended, or did not serve within `start_timeout_s`; then the message ends with the last
            lines of the broker's log.  Or the configs were refused, or could not be set in time.
    """
    __tracebackhide__ = True
    _remove_leftovers()
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    try:
        with tempfile.TemporaryFile() as log:
            guard = _start(folder, log)
            try:
                broker = _ready(guard, log, start_timeout_s)
                if configs:
                    _set_configs(broker, configs)
                yield broker
            finally:
                _stop(guard)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # usually the guard has deleted it already


def _start(folder: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the guard of a new broker.  The guard holds the lock of the folder, acquired by this process."""
    command = [sys.executable, "-P", "-m", "quorumlog.testing.guard", folder]
    command += [sys.executable, "-P", "-m", "broker.cli", "run", "--standalone", "--data-dir", f"{folder}/data"]
    command += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off"]
    command += ["--log-format", "json"]
    new = Path(folder, f"{_LOCK}.new")
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new.rename(Path(folder, _LOCK))  # another session that sees the lock free would delete the folder
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment(),
            pass_fds=(lock,),
            start_new_session=True,  # the tests handle signals that a terminal sends to its process group
        )
    finally:
        os.close(lock)


def _ready(guard: subprocess.Popen[bytes], log: IO[bytes], timeout_s: float) -> Broker:
    """Wait for the pid that the guard prints and the one line that a server prints when it serves."""
    __tracebackhide__ = True
    assert guard.stdin is not None
    assert guard.stdout is not None
    is_late = threading.Event()

    def give_up(stdin: IO[bytes] = guard.stdin) -> None:
        is_late.set()
        stdin.close()  # the guard stops the broker, which ends its output

    alarm = threading.Timer(timeout_s, give_up)
    alarm.start()
    try:
        pid, line = guard.stdout.readline(), guard.stdout.readline()
    finally:
        alarm.cancel()  # also after an interrupt: otherwise the interpreter would wait for the timer before it ends
    try:
        fields = json.loads(line)
        return Broker(str(fields["kafka"]), str(fields["control"]), int(pid))
    except (ValueError, KeyError) as cause:
        log.seek(0)
        said = log.read().decode(errors="replace")[-_LOG_SHOWN_CHARS:]
        what = f"did not serve within {timeout_s:g} s" if is_late.is_set() else "ended before it served"
        raise QuorumlogError(f"the broker {what}; its last lines:\n{said}") from cause


def _set_configs(broker: Broker, configs: Mapping[str, str]) -> None:
    __tracebackhide__ = True
    command = [sys.executable, "-P", "-m", "quorumlog.kctl.main", "--controllers", broker.control]
    command += ["--timeout", f"{CONFIGS_TIMEOUT_S:g}"]
    command += ["configs", "set", "--cluster", *(f"{key}={value}" for key, value in configs.items())]
    limit_s = CONFIGS_TIMEOUT_S + KCTL_GRACE_S
    # In a process of its own, because this thread may be running an event loop.
    try:
        finished = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, check=False, env=environment()
        )
    except subprocess.TimeoutExpired as cause:
        text = f"the configs of the broker are not set: kctl did not end within {limit_s:g} s"
        raise QuorumlogError(text, "retry when the machine is less busy") from cause
    if finished.returncode:
        raise QuorumlogError(f"the configs of the broker are not set: {finished.stderr.strip()}")


def _stop(guard: subprocess.Popen[bytes]) -> None:
    assert guard.stdin is not None
    assert guard.stdout is not None
    guard.stdin.close()
    try:
        guard.wait(2 * STOP_TIMEOUT_S)  # the guard waits for the broker, and then kills it
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    guard.stdout.close()


def _remove_leftovers() -> None:
    """Delete the folders of brokers whose guard was also killed: folders of this user that no process has locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            if _is_free(folder / _LOCK) and (not (folder / "data").exists() or _is_free(folder / "data" / "lock")):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # the folder is new or belongs to another program, or another run deletes it


def _is_free(lock: Path) -> bool:
    """Return whether no process has locked this file.

    Raises:
        FileNotFoundError: the file does not exist, because its folder is new or does not belong to this plugin.
    """
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
