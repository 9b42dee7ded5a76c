"""Servers as real processes, for benches: started from their command lines, ended by id."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_DEADLINE_S = 60
STOP_DEADLINE_S = 30


@dataclass(frozen=True)
class Standalone:
    """A `broker run --standalone` that serves: `ready_s` seconds after it was started."""

    bootstrap: str
    pid: int
    ready_s: float


@contextmanager
def standalone() -> Iterator[Standalone]:
    """A standalone broker on free ports and a data directory of its own; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="quorumlog-bench-") as folder:
        command = [sys.executable, "-m", "broker.cli", "run", "--standalone", "--data-dir", f"{folder}/data"]
        command += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off"]
        started = time.monotonic()
        with Path(folder, "log").open("w") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            ready_s = time.monotonic() - started
            if not line.startswith("ready "):
                raise RuntimeError(f"the broker did not start: {Path(folder, 'log').read_text()[-2000:]}")
            fields = dict(word.split("=", 1) for word in line.split()[1:])
            yield Standalone(bootstrap=fields["kafka"].split("=")[-1], pid=process.pid, ready_s=ready_s)
        finally:
            process.terminate()
            try:
                process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def resident_mib(pid: int) -> float:
    """Resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")
