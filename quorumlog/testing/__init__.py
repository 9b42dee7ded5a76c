"""A real broker for tests, in under a second: `standalone()` here, the fixture `quorumlog_broker` in `plugin.py`.

The broker is a process of its own, with its own ports and an empty data directory, and is gone afterwards.  Settings in
the environment (QUORUMLOG_…) are for other processes, and not passed on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quorumlog.errors import QuorumlogError
from quorumlog.kctl.dev_cluster import environment

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
_LOG_SHOWN_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Broker:
    """A standalone broker that serves.

    bootstrap: what Kafka clients take as bootstrap servers.  control: what `kctl --controllers` takes.
    """

    bootstrap: str
    control: str
    pid: int


@contextmanager
def standalone(start_timeout_s: float = START_TIMEOUT_S) -> Iterator[Broker]:
    """Run a standalone broker for as long as the block lasts.

    Raises:
        QuorumlogError: it did not serve within `start_timeout_s`; the message ends with its log.
    """
    with tempfile.TemporaryDirectory(prefix="quorumlog-test-") as folder:
        log = Path(folder, "log")
        command = [sys.executable, "-P", "-m", "broker.cli", "run", "--standalone", "--data-dir", f"{folder}/data"]
        command += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off"]
        command += ["--log-format", "json"]
        with log.open("wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment())
        try:
            yield _ready(process, log, start_timeout_s)
        finally:
            _stop(process)


def _ready(process: subprocess.Popen[bytes], log: Path, timeout_s: float) -> Broker:
    """Wait for the one line that a server prints when it serves."""
    assert process.stdout is not None
    alarm = threading.Timer(timeout_s, process.kill)
    alarm.start()
    try:
        line = process.stdout.readline()
    finally:
        alarm.cancel()  # interrupted, too: the interpreter would wait for it before it ends
    try:
        fields = json.loads(line)
        return Broker(str(fields["kafka"]), str(fields["control"]), process.pid)
    except (ValueError, KeyError) as cause:
        said = log.read_text(errors="replace")[-_LOG_SHOWN_CHARS:]
        raise QuorumlogError(f"the broker did not serve within {timeout_s:g} s; its log:\n{said}") from cause


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
