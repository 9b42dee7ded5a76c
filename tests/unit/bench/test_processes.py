"""Processes of benches: suspended and continued together, and limited to cores with all of their threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.processes import Servers, limit_cores

PROGRAM = """
import threading, sys
for _ in range(3):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Run a program with four threads."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_servers_are_suspended_and_continued(process: subprocess.Popen[bytes]) -> None:
    servers = Servers("x", (process.pid,))
    servers.pause()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    assert _state(process.pid) == "T"
    servers.resume()
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)
    assert _state(process.pid) != "T"


def test_servers_that_have_ended_do_not_prevent_the_others_from_being_continued(
    process: subprocess.Popen[bytes],
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    servers = Servers("x", (ended.pid, process.pid))
    servers.pause()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    servers.resume()
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)


def test_all_threads_are_limited_to_the_cores(process: subprocess.Popen[bytes]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    limit_cores([process.pid], {cores[0]})
    threads = os.listdir(f"/proc/{process.pid}/task")
    assert len(threads) == 4
    assert all(os.sched_getaffinity(int(thread)) == {cores[0]} for thread in threads)
    limit_cores([process.pid], set(cores))
    assert all(os.sched_getaffinity(int(thread)) == set(cores) for thread in threads)
